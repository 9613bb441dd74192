//! The process runtime under a user without rights.

use std::os::unix::process::CommandExt;
use std::process::Command;

use podwright_fixtures::processes::{ended, pod, run, sandbox, script};
use podwright_ports::{ContainerRuntime, RuntimeError};
use serde_json::json;

use super::settings::{process_field, secured};
use crate::support::Root;

/// The user and the group that have no rights.
const NOBODY: u32 = 65534;

#[tokio::test]
async fn security_context_holds_for_an_agent_without_rights() {
    if as_nobody(concat!(module_path!(), "::security_context_holds_for_an_agent_without_rights")) {
        security_context_holds().await;
    }
}

/// Whether this process runs as a user without rights. A process of root runs the test with this path as such a user, and gets false.
pub(super) fn as_nobody(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        return true;
    }
    let (_, test) = test.split_once("::").unwrap();
    let again = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env("TMPDIR", "/tmp")
        .uid(NOBODY)
        .gid(NOBODY)
        .output();
    match again {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            eprintln!("skipped: other users cannot execute the tests");
        }
        again => {
            let again = again.unwrap();
            let text = String::from_utf8_lossy(&again.stdout);
            assert!(
                again.status.success() && text.contains("1 passed"),
                "{text}{}",
                String::from_utf8_lossy(&again.stderr)
            );
        }
    }
    false
}

async fn security_context_holds() {
    let root = Root::new();
    let runtime = root.open().await;
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());

    for (uid, security, no_new_privs) in [
        ("a", json!({}), "0"),
        ("b", json!({"allowPrivilegeEscalation": false}), "1"),
        ("c", json!({"capabilities": {"drop": ["ALL"]}}), "1"),
        ("d", json!({"runAsUser": user, "runAsGroup": group, "runAsNonRoot": true}), "0"),
    ] {
        let pod = secured(uid, security);
        let id = run(&runtime, &pod, "cat /proc/self/status > status").await;
        assert_eq!(ended(&runtime, &pod).await.exit_code, 0);
        let status = std::fs::read_to_string(root.rootfs(&pod, &id).join("status")).unwrap();
        assert_eq!(process_field(&status, "NoNewPrivs"), Some(no_new_privs), "{uid}");
        assert_eq!(process_field(&status, "CapEff"), Some("0000000000000000"), "{uid}");
        assert_eq!(process_field(&status, "Uid"), Some([user.to_string().as_str(); 4].join("\t").as_str()), "{uid}");
    }

    for (uid, security, field) in [
        ("e", json!({"runAsUser": 0}), "runAsUser"),
        ("f", json!({"runAsGroup": 0}), "runAsGroup"),
        ("g", json!({"privileged": true}), "privileged"),
        ("h", json!({"capabilities": {"add": ["NET_ADMIN"]}}), "capabilities.add"),
    ] {
        let pod = secured(uid, security);
        let sandbox = sandbox(&runtime, &pod).await;
        let refused = runtime.create_container(script(&pod, &sandbox, "true")).await;
        assert!(
            matches!(&refused, Err(RuntimeError::Config(text)) if text.to_string().contains(field)),
            "{field}: {refused:?}"
        );
    }
    let pod = pod("i", |spec| spec.security_context = Some(serde_json::from_value(json!({"fsGroup": 0})).unwrap()));
    let sandbox = sandbox(&runtime, &pod).await;
    let refused = runtime.create_container(script(&pod, &sandbox, "true")).await;
    assert!(matches!(&refused, Err(RuntimeError::Config(text)) if text.to_string().contains("fsGroup")), "{refused:?}");
}
