//! A container cannot change which namespaces its exec commands join.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::isolation::output;
use super::settings::{is_root, main_pid};
use crate::support::processes::{PATIENCE, Root, parent, pod, run};

fn user_namespace(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/user")).ok()
}

// In a user namespace of its own, a command has every capability over the processes that join it. A keeper of the node's root
// that joined it could be traced.
#[tokio::test]
async fn exec_command_does_not_join_a_user_namespace_that_the_command_created() {
    if !is_root("only an agent of root has a keeper of the node's root") {
        return;
    }
    for shared in [false, true] {
        let root = Root::new();
        let runtime = root.open().await;
        let pod = pod("u", |spec| spec.share_process_namespace = Some(shared));
        let id = run(&runtime, &pod, "unshare -U true || exit 0; exec unshare -Ur sleep 1000").await;
        let main = main_pid(&root, &id);
        let of_shim = user_namespace(parent(main)).expect("the shim runs");
        let entered = async {
            while user_namespace(main).as_ref() == Some(&of_shim) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, entered).await.expect("the command enters a user namespace or ends");
        if user_namespace(main).is_none() {
            eprintln!("skipped: this node does not let a container create a user namespace");
            return;
        }
        let found = output(&runtime, &id, "readlink /proc/self/ns/user").await;
        assert_eq!(found.trim(), of_shim.to_str().unwrap(), "shareProcessNamespace: {shared}");
    }
}
