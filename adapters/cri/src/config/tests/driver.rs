//! Tests of the choice of the cgroup driver.

use serde_json::{Value, json};

use super::super::CgroupDriver::{self, Cgroupfs, Systemd};
use super::super::driver::{cgroup_driver, reported_driver};

#[test]
fn the_runtime_configuration_decides_the_cgroup_driver() {
    let runc = |options: Value| json!({"runtimeType": "io.containerd.runc.v2", "options": options});
    let config = |default: &str, runtimes: Value| json!({"containerd": {"defaultRuntimeName": default, "runtimes": runtimes}, "systemdCgroup": false});
    let kata = json!({"runtimeType": "io.containerd.kata.v2", "options": {"ConfigPath": "/etc/kata"}});
    let cases: [(Value, Option<CgroupDriver>); 10] = [
        (config("runc", json!({"runc": runc(json!({"SystemdCgroup": true}))})), Some(Systemd)),
        (config("runc", json!({"runc": runc(json!({"SystemdCgroup": false, "BinaryName": ""}))})), Some(Cgroupfs)),
        (config("runc", json!({"runc": runc(json!({}))})), Some(Cgroupfs)),
        (config("runc", json!({"runc": runc(Value::Null)})), Some(Cgroupfs)),
        // The default runtime takes precedence over the others.
        (config("z", json!({"a": runc(json!({})), "z": runc(json!({"SystemdCgroup": true}))})), Some(Systemd)),
        (config("kata", json!({"kata": kata, "runc": runc(json!({"SystemdCgroup": true}))})), Some(Systemd)),
        (config("kata", json!({"kata": kata})), None),
        (json!({"containerd": null, "systemdCgroup": true}), Some(Systemd)),
        (json!({"sandboxImage": "pause"}), None),
        (json!([]), None),
    ];
    for (config, expected) in cases {
        assert_eq!(reported_driver(&config.to_string()), expected, "{config}");
    }
    assert_eq!(reported_driver("cgroup_manager = \"systemd\""), None);
}

#[test]
fn a_flag_that_contradicts_the_runtime_is_an_error_with_a_remedy() {
    assert_eq!(cgroup_driver(None, None), Ok(Cgroupfs));
    assert_eq!(cgroup_driver(None, Some(Systemd)), Ok(Systemd));
    assert_eq!(cgroup_driver(Some(Systemd), None), Ok(Systemd));
    assert_eq!(cgroup_driver(Some(Systemd), Some(Systemd)), Ok(Systemd));
    for (flag, reported) in [(Cgroupfs, Systemd), (Systemd, Cgroupfs)] {
        let error = cgroup_driver(Some(flag), Some(reported)).unwrap_err().to_string();
        assert!(error.contains(&format!("uses the cgroup driver {reported}")), "{error}");
        assert!(error.contains(&format!("--cgroup-driver is {flag}: remove --cgroup-driver")), "{error}");
    }
}
