//! Tests of the cgroup driver that the runtime reports.

use serde_json::json;

use super::super::CgroupDriver;
use super::fake::FakeRuntime;
use super::run_sandbox;

#[tokio::test]
async fn the_driver_of_a_runtime_without_runtime_config_is_read_from_its_verbose_status() {
    let systemd = json!({"containerd": {"defaultRuntimeName": "runc", "runtimes": {
        "runc": {"runtimeType": "io.containerd.runc.v2", "options": {"SystemdCgroup": true}},
    }}});
    for flag in [None, Some(CgroupDriver::Systemd)] {
        let fake = FakeRuntime::with(1, |config| config.settings.cgroup_driver = flag).await;
        fake.set_verbose_config(&systemd);
        fake.runtime.check().await.unwrap();
        run_sandbox(&fake).await.unwrap();
        let parent = fake.cgroup_parents().pop().unwrap();
        assert!(parent.ends_with("/podwright-kubepods-besteffort-podu_1.slice"), "{parent}");
    }

    let fake = FakeRuntime::with(1, |config| config.settings.cgroup_driver = Some(CgroupDriver::Cgroupfs)).await;
    fake.set_verbose_config(&systemd);
    for error in [fake.runtime.check().await.unwrap_err(), run_sandbox(&fake).await.unwrap_err()] {
        assert!(error.to_string().contains("remove --cgroup-driver"), "{error}");
    }
    assert!(fake.cgroup_parents().is_empty(), "no sandbox is created with the wrong driver");
}

#[tokio::test]
async fn a_runtime_that_does_not_answer_passes_the_check_of_settings() {
    let fake = FakeRuntime::with(1, |config| {
        config.endpoint = "/nowhere/c.sock".parse().unwrap();
        config.settings.cgroup_driver = Some(CgroupDriver::Systemd);
    })
    .await;
    fake.runtime.check().await.unwrap();
}
