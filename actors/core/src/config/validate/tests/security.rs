//! Tests of IDs, privileges, profiles and kernel parameters.

use super::*;

/// IDs that become another ID, or that of root, if they are cut to 32 bits or to fewer.
const BAD_IDS: [i64; 5] = [-5, -1, 1 << 31, u32::MAX as i64, 1 << 32];

#[test]
fn ids_of_a_pod_are_range_checked() {
    for id in BAD_IDS {
        for name in ["runAsUser", "runAsGroup", "fsGroup"] {
            let spec = json!({"securityContext": { name: id }});
            let problems = validate(&pod(spec, json!({})));
            assert_eq!(paths(&problems), [format!("spec.securityContext.{name}")], "{id}");
            assert!(problems[0].remedy.contains("0 to 2147483647"), "{}", problems[0]);
        }
        let spec = json!({"securityContext": {"supplementalGroups": [0, id]}});
        assert_eq!(paths(&validate(&pod(spec, json!({})))), ["spec.securityContext.supplementalGroups[1]"]);
        for name in ["runAsUser", "runAsGroup"] {
            let own = json!({"securityContext": { name: id }});
            let path = format!("securityContext.{name}");
            assert_eq!(paths(&validate(&pod(json!({}), own.clone()))), [format!("spec.containers[0].{path}")]);
            let mut init = own.clone();
            merge(&mut init, json!({"name": "i", "image": "x"}));
            let spec = json!({"initContainers": [init.clone()]});
            assert_eq!(paths(&validate(&pod(spec, json!({})))), [format!("spec.initContainers[0].{path}")]);
            let spec = json!({"ephemeralContainers": [init]});
            assert_eq!(paths(&validate(&pod(spec, json!({})))), [format!("spec.ephemeralContainers[0].{path}")]);
        }
    }
    let valid = json!({"securityContext": {
        "runAsUser": 0, "runAsGroup": 2_147_483_647, "fsGroup": 0, "supplementalGroups": [0, 2_147_483_647]}});
    assert_eq!(validate(&pod(valid, json!({"securityContext": {"runAsUser": 2_147_483_647}}))), []);
}

#[test]
fn security_settings_of_a_pod_that_contradict_each_other_are_named() {
    let context = |context: Value| json!({ "securityContext": context });
    let local = |name: Value| json!({"type": "Localhost", "localhostProfile": name});
    let cases = [
        (json!({"hostUsers": false, "hostNetwork": true}), "spec.hostNetwork"),
        (json!({"hostUsers": false, "hostPID": true}), "spec.hostPID"),
        (json!({"hostUsers": false, "hostIPC": true}), "spec.hostIPC"),
        (json!({"hostPID": true, "shareProcessNamespace": true}), "spec.shareProcessNamespace"),
        (context(json!({"fsGroupChangePolicy": "Never"})), "spec.securityContext.fsGroupChangePolicy"),
        (context(json!({"supplementalGroupsPolicy": "None"})), "spec.securityContext.supplementalGroupsPolicy"),
        (context(json!({"seLinuxChangePolicy": "Mount"})), "spec.securityContext.seLinuxChangePolicy"),
        (context(json!({"seccompProfile": {"type": ""}})), "spec.securityContext.seccompProfile.type"),
        (context(json!({"seccompProfile": {"type": "Own"}})), "spec.securityContext.seccompProfile.type"),
        (
            context(json!({"seccompProfile": {"type": "Localhost"}})),
            "spec.securityContext.seccompProfile.localhostProfile",
        ),
        (
            context(json!({"seccompProfile": local("../x".into())})),
            "spec.securityContext.seccompProfile.localhostProfile",
        ),
        (
            context(json!({"seccompProfile": local("/x".into())})),
            "spec.securityContext.seccompProfile.localhostProfile",
        ),
        (
            context(json!({"seccompProfile": {"type": "Unconfined", "localhostProfile": "x"}})),
            "spec.securityContext.seccompProfile.localhostProfile",
        ),
        (
            context(json!({"appArmorProfile": local(" x".into())})),
            "spec.securityContext.appArmorProfile.localhostProfile",
        ),
        (
            context(json!({"appArmorProfile": local("x".repeat(4096).into())})),
            "spec.securityContext.appArmorProfile.localhostProfile",
        ),
        (context(json!({"sysctls": [{"name": "", "value": "1"}]})), "spec.securityContext.sysctls[0].name"),
        (context(json!({"sysctls": [{"name": "net..x", "value": "1"}]})), "spec.securityContext.sysctls[0].name"),
        (
            context(json!({"sysctls": [{"name": "net.a", "value": "1"}, {"name": "net/a", "value": "2"}]})),
            "spec.securityContext.sysctls[1].name",
        ),
        (
            json!({"hostNetwork": true, "securityContext": {"sysctls": [{"name": "net.core.somaxconn", "value": "1"}]}}),
            "spec.securityContext.sysctls[0].name",
        ),
        (
            json!({"hostIPC": true, "securityContext": {"sysctls": [{"name": "kernel.shmmax", "value": "1"}]}}),
            "spec.securityContext.sysctls[0].name",
        ),
        (
            json!({"os": {"name": "linux"}, "securityContext": {"windowsOptions": {}}}),
            "spec.securityContext.windowsOptions",
        ),
        (json!({"os": {"name": "windows"}, "hostUsers": true}), "spec.hostUsers"),
        (json!({"os": {"name": "windows"}, "securityContext": {"runAsUser": 1}}), "spec.securityContext.runAsUser"),
    ];
    for (spec, path) in cases {
        assert_eq!(paths(&validate(&pod(spec.clone(), json!({})))), [path], "{spec}");
    }
    let valid = json!({
        "hostUsers": false, "shareProcessNamespace": true,
        "securityContext": {
            "seccompProfile": {"type": "RuntimeDefault"}, "appArmorProfile": {"type": "Localhost", "localhostProfile": "p"},
            "fsGroupChangePolicy": "Always", "supplementalGroupsPolicy": "Strict", "seLinuxChangePolicy": "Recursive",
            "sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}, {"name": "kernel/shmmax", "value": "1"}],
        },
    });
    assert_eq!(validate(&pod(valid, json!({"securityContext": {"procMount": "Unmasked"}}))), []);
}

#[test]
fn security_settings_of_a_container_that_contradict_each_other_are_named() {
    let cases = [
        (json!({"procMount": "Half"}), "procMount"),
        (json!({"procMount": "Unmasked"}), "procMount"),
        (json!({"privileged": true, "allowPrivilegeEscalation": false}), "allowPrivilegeEscalation"),
        (
            json!({"capabilities": {"add": ["CAP_SYS_ADMIN"]}, "allowPrivilegeEscalation": false}),
            "allowPrivilegeEscalation",
        ),
        (json!({"seccompProfile": {"type": "Localhost"}}), "seccompProfile.localhostProfile"),
        (json!({"appArmorProfile": {"type": "Custom"}}), "appArmorProfile.type"),
    ];
    for (own, path) in cases {
        let own = json!({ "securityContext": own });
        let expected = [format!("spec.containers[0].securityContext.{path}")];
        assert_eq!(paths(&validate(&pod(json!({}), own.clone()))), expected, "{own}");
    }
    let windows = json!({"os": {"name": "windows"}});
    let own = json!({"securityContext": {"privileged": false}});
    assert_eq!(paths(&validate(&pod(windows, own))), ["spec.containers[0].securityContext.privileged"]);
    let devices = json!({"volumeDevices": [{"name": "d", "devicePath": "/dev/d"}]});
    let claim = json!({"hostUsers": false, "volumes": [{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]});
    assert_eq!(paths(&validate(&pod(claim, devices))), ["spec.containers[0].volumeDevices"]);
    let valid = json!({"securityContext": {"privileged": true, "allowPrivilegeEscalation": true, "procMount": "Default",
        "capabilities": {"add": ["CAP_SYS_ADMIN"], "drop": ["ALL"]}}});
    assert_eq!(validate(&pod(json!({}), valid)), []);
}

#[test]
fn profile_annotations_must_be_valid_and_equal_the_fields() {
    let with = |key: &str, value: &str, profile: Value| {
        let mut pod = pod(json!({}), json!({"securityContext": profile}));
        pod.metadata.annotations = Some([(key.to_owned(), value.to_owned())].into());
        paths(&validate(&pod)).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let apparmor = "container.apparmor.security.beta.kubernetes.io/c";
    let seccomp = "container.seccomp.security.alpha.kubernetes.io/c";
    let annotation = |key: &str| vec![format!("metadata.annotations[{key}]")];
    assert_eq!(with(apparmor, "localhost/x", json!({})), Vec::<String>::new());
    assert_eq!(with(apparmor, "other", json!({})), annotation(apparmor));
    let of_other = "container.apparmor.security.beta.kubernetes.io/other";
    assert_eq!(with(of_other, "unconfined", json!({})), annotation(of_other));
    assert_eq!(with(seccomp, "docker/default", json!({})), Vec::<String>::new());
    assert_eq!(with(seccomp, "localhost/../x", json!({})), annotation(seccomp));
    let field = |name: &str, kind: &str| json!({ name: {"type": kind} });
    let same = Vec::<String>::new();
    assert_eq!(with(apparmor, "unconfined", field("appArmorProfile", "Unconfined")), same);
    assert_eq!(with(seccomp, "runtime/default", field("seccompProfile", "RuntimeDefault")), same);
    let path = |name: &str| vec![format!("spec.containers[0].securityContext.{name}")];
    assert_eq!(with(apparmor, "unconfined", field("appArmorProfile", "RuntimeDefault")), path("appArmorProfile"));
    assert_eq!(with(seccomp, "localhost/x", field("seccompProfile", "Unconfined")), path("seccompProfile"));
    assert_eq!(with("note", &"x".repeat(256 << 10), json!({})), ["metadata.annotations"]);
}
