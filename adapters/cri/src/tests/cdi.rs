//! CDI devices with a runtime that applies them and one that does not.

use podwright_ports::{ContainerRuntime, RuntimeError};
use serde_json::json;

use super::fake::FakeRuntime;
use super::run_sandbox;
use crate::config::fixtures::{container, pod};

const DEVICE: &str = "vendor.example/gpu=g0";

#[tokio::test]
async fn the_agent_applies_devices_only_if_the_runtime_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let specs = dir.path().to_owned();
    for (enabled, expected) in [(true, (vec![DEVICE.to_owned()], vec![])), (false, (vec![], vec!["GPU=g0".to_owned()]))]
    {
        let specs = specs.clone();
        let fake = FakeRuntime::with(1, |config| config.cdi_directories = vec![specs]).await;
        fake.set_verbose_config(&json!({"enableCDI": enabled}));
        let pod = pod(json!({"containers": [{"name": "a"}]}));
        let mut config = container(&pod, "a", 0);
        config.sandbox = run_sandbox(&fake).await.unwrap();
        config.cdi_devices = vec![DEVICE.into()];
        if !enabled {
            let created = fake.runtime.create_container(config.clone()).await;
            assert!(
                matches!(created, Err(RuntimeError::MissingDevice(_))),
                "no specification has the device: {created:?}"
            );
            let devices = json!([{"name": "g0", "containerEdits": {"env": ["GPU=g0"]}}]);
            let spec = json!({"cdiVersion": "0.3.0", "kind": "vendor.example/gpu", "devices": devices});
            std::fs::write(dir.path().join("v.json"), spec.to_string()).unwrap();
        }
        fake.runtime.create_container(config).await.unwrap();
        assert_eq!(fake.cdi_devices_and_variables(), expected);
    }
}
