//! The seccomp profile `RuntimeDefault`.

use std::process::Command;
use std::time::Duration;

use podwright_fixtures::processes::{ended, run};
use podwright_ports::ContainerRuntime;
use serde_json::json;

use crate::settings::secured;
use crate::support::Root;

/// Prints whether a filter limits the system calls of the shell's children, and whether they can get more rights.
const PRINT: &str = "grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status";
const CONFINED: &str = "NoNewPrivs:\t1\nSeccomp:\t2\n";

/// What [`PRINT`] prints outside of a container.
fn printed() -> String {
    String::from_utf8(Command::new("sh").args(["-c", PRINT]).output().unwrap().stdout).unwrap()
}

// The fields of the Pod Security Standard `restricted`.
#[tokio::test]
async fn container_of_the_restricted_profile_runs_with_limited_system_calls() {
    let root = Root::new();
    let runtime = root.open().await;
    let mut security = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": true,
        "seccompProfile": {"type": "RuntimeDefault"}});
    if rustix::process::geteuid().is_root() {
        std::fs::set_permissions(root.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        security["runAsUser"] = 12345.into();
    }
    let pod = secured("u", security);
    // The shell starts programs in the foreground and in the background, connects them by pipes and reads their results.
    let text = format!("x=$(echo one | cat); {PRINT} > dev/termination-log & wait; test \"$x\" = one");
    run(&runtime, &pod, &text).await;
    let status = ended(&runtime, &pod).await;
    assert_eq!((status.exit_code, status.message.as_str()), (0, CONFINED));
}

#[tokio::test]
async fn profile_holds_for_exec_commands_and_only_for_containers_that_request_it() {
    let root = Root::new();
    let runtime = root.open().await;
    let profile = |kind: &str| json!({"seccompProfile": {"type": kind}, "allowPrivilegeEscalation": true});
    // A container runtime may confine the tests too.
    let (own, is_permitted) = (printed(), Command::new("unshare").arg("true").status().unwrap().success());
    for (uid, kind, is_confined) in [("a", "RuntimeDefault", true), ("b", "Unconfined", false)] {
        let id = run(&runtime, &secured(uid, profile(kind)), "exec sleep 1000").await;
        let command = ["sh", "-c", PRINT].map(str::to_owned);
        let output = runtime.exec(&id, &command, Duration::from_secs(60)).await.unwrap();
        let printed = String::from_utf8_lossy(&output.output);
        assert_eq!(printed == CONFINED, is_confined || own == CONFINED, "{kind}: {printed}");
        // Without flags, the call needs no right.
        let command = ["unshare", "true"].map(str::to_owned);
        let output = runtime.exec(&id, &command, Duration::from_secs(60)).await.unwrap();
        assert_eq!(output.exit_code == 0, is_permitted && !is_confined, "{kind}: {output:?}");
    }
}
