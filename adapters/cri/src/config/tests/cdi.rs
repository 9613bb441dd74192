//! CDI devices: who applies them, and the fields of the CRI.

use std::fs;

use podwright_host::cdi::{CdiError, SpecCache};
use serde_json::{Value, json};

use super::super::fixtures::{container, facts, lookups, mount, pod};
use super::super::inputs::HostIdRange;
use super::super::{CdiFields, CdiSupport, PodAssignments, container_config};
use crate::v1;

#[test]
fn the_configuration_and_then_the_version_decide_who_applies_devices() {
    use CdiSupport::{Agent, Runtime};
    let (on, off, old) =
        (Some(r#"{"enableCDI": true}"#), Some(r#"{"enableCDI": false}"#), Some(r#"{"containerd": {}}"#));
    for (config, name, version, support) in [
        (old, "containerd", "1.6.20~ds1", Agent),
        (off, "containerd", "v1.7.24", Agent),
        (on, "containerd", "v1.7.24", Runtime),
        (off, "containerd", "v2.2.0", Agent),
        (on, "containerd", "v2.0.0", Runtime),
        (old, "containerd", "v3.0.0", Runtime),
        (None, "containerd", "v1.7.0", Agent),
        (None, "containerd", "v2.1.0", Runtime),
        (None, "containerd", "", Runtime),
        (Some("[crio]\n"), "cri-o", "1.27.3", Agent),
        (Some("[crio]\n"), "cri-o", "1.28.0", Runtime),
        (None, "cri-o", "1.34.1", Runtime),
        (None, "docker", "20.10.1", Runtime),
    ] {
        assert_eq!(CdiSupport::of(config, name, version), support, "{config:?} {name} {version}");
    }
}

/// The fields for a device with these edits.
fn fields(edits: Value) -> Result<CdiFields, CdiError> {
    let dir = tempfile::tempdir().unwrap();
    let devices = json!([{"name": "g0", "containerEdits": edits}]);
    let spec = json!({"cdiVersion": "1.1.0", "kind": "v.example/gpu", "devices": devices});
    fs::write(dir.path().join("v.json"), spec.to_string()).unwrap();
    CdiFields::resolve(&SpecCache::new(vec![dir.path().to_owned()]), &["v.example/gpu=g0".to_owned()])
}

#[test]
fn edits_become_fields_and_replace_those_of_the_pod() {
    let pod = pod(json!({"containers": [{"name": "a", "volumeMounts": [{"name": "v", "mountPath": "/lib/vendor"}]}],
        "securityContext": {"supplementalGroups": [44]}}));
    let mut config = container(&pod, "a", 0);
    config.cdi_devices = vec!["v.example/gpu=g0".into()];
    config.env = vec![("A".into(), "pod".into()), ("B".into(), "pod".into())];
    config.mounts = vec![mount("/lib/vendor/"), mount("/other")];
    let assignments = PodAssignments { users: Some(HostIdRange { first: 65536 }), ..PodAssignments::default() };
    let mut requested = container_config(&facts(), &assignments, &config, &lookups()).unwrap();
    assert_eq!(requested.cdi_devices.len(), 1);
    let fields = fields(json!({
        "env": ["A=device", "C=device"],
        "mounts": [{"hostPath": "/usr", "containerPath": "/lib/vendor", "options": ["ro", "nosuid", "rslave"]}],
        "deviceNodes": [{"path": "/dev/gpu0", "hostPath": "/dev/null", "type": "c", "major": 1, "minor": 3, "permissions": "rw"},
                        {"path": "/dev/zero"}],
        "additionalGids": [44, 45],
    }))
    .unwrap();
    fields.apply(&assignments, &mut requested);
    assert!(requested.cdi_devices.is_empty());
    let env: Vec<_> = requested.envs.iter().map(|env| (env.key.as_str(), env.value.as_str())).collect();
    assert_eq!(env, [("B", "pod"), ("A", "device"), ("C", "device")]);
    let of_device: Vec<_> = requested.mounts.iter().filter(|mount| mount.container_path.starts_with("/lib")).collect();
    let mapping = v1::IdMapping { host_id: 65536, container_id: 0, length: 65536 };
    let expected = v1::Mount {
        container_path: "/lib/vendor".into(),
        host_path: "/usr".into(),
        readonly: true,
        propagation: v1::MountPropagation::PropagationHostToContainer.into(),
        uid_mappings: vec![mapping],
        gid_mappings: vec![mapping],
        ..Default::default()
    };
    assert_eq!(of_device, [&expected]);
    assert!(requested.mounts.iter().any(|mount| mount.container_path == "/other"));
    let device = |at: &str, host: &str, permissions: &str| v1::Device {
        container_path: at.into(),
        host_path: host.into(),
        permissions: permissions.into(),
    };
    assert_eq!(requested.devices, [device("/dev/gpu0", "/dev/null", "rw"), device("/dev/zero", "/dev/zero", "rwm")]);
    let groups = requested.linux.unwrap().security_context.unwrap().supplemental_groups;
    assert_eq!(groups, [44, 45]);
}

#[test]
fn edits_that_the_cri_cannot_express_are_refused() {
    let device = |more: Value| {
        let mut device = json!({"path": "/dev/gpu0", "hostPath": "/dev/null"});
        device.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"deviceNodes": [device]})
    };
    for (edits, expected) in [
        (
            json!({"hooks": [{"hookName": "prestart", "path": "/h"}]}),
            "CDI hook prestart \"/h\" cannot be applied: the CRI",
        ),
        (json!({"intelRdt": {"closID": "c"}}), "CDI intelRdt"),
        (json!({"netDevices": [{"hostInterfaceName": "a", "name": "b"}]}), "CDI netDevices"),
        (device(json!({"permissions": "none"})), "without permissions"),
        (device(json!({"type": "c", "major": 1, "minor": 5})), "not device 1:5"),
        (device(json!({"uid": 4242})), "its uid is not that of \"/dev/null\""),
        (device(json!({"hostPath": "/nowhere/null"})), "check that the device exists"),
        (json!({"mounts": [{"hostPath": "/nowhere/lib", "containerPath": "/c"}]}), "check that the device exists"),
        (json!({"mounts": [{"hostPath": "tmpfs", "containerPath": "/c", "type": "tmpfs"}]}), "not an absolute path"),
        (
            json!({"mounts": [{"hostPath": "/usr", "containerPath": "/c", "options": ["size=1m"]}]}),
            "option \"size=1m\"",
        ),
    ] {
        let text = fields(edits).unwrap_err().to_string();
        assert!(text.contains(expected), "{text}: {expected}");
    }
}
