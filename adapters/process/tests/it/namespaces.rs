//! The namespaces of containers hold against the containers' own processes.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use podwright_fixtures::polling::{PATIENCE, until};
use podwright_fixtures::processes::{ended, is_alive, kill, parent, pod, run, sandbox, script};
use podwright_model::ids::ContainerId;
use podwright_model::text::error_chain;
use podwright_ports::{ContainerRuntime, Mount, RuntimeError};
use podwright_process::ProcessRuntime;
use podwright_process::testing::record::{self as record, StartedRecord};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::isolation::{on_node, output, shell};
use super::settings::{is_root, main_pid, process_field, secured};
use super::unprivileged::as_nobody;
use crate::support::{Root, SHIM};

/// The namespace of a process of the node; `None` if the process has ended.
fn namespace(pid: u32, kind: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()
}

/// Starts a container whose command enters a user namespace and a mount namespace, and runs an exec command in it.
async fn exec_command_stays_out_of_namespaces_of_the_command(host_pid: bool, security: &Value) {
    let root = Root::new();
    std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let runtime = root.open().await;
    let pod = pod("u", |spec| {
        spec.host_pid = Some(host_pid);
        spec.containers[0].security_context = serde_json::from_value(security.clone()).unwrap();
    });
    let id = run(&runtime, &pod, "unshare -Ur true || exit 0; exec unshare -Urm sleep 1000").await;
    let main = main_pid(&root, &id);
    let of_shim = namespace(parent(main), "user").expect("the shim runs");
    until("the command enters a user namespace or ends", || namespace(main, "user").as_ref() != Some(&of_shim)).await;
    let Some(mounts) = namespace(main, "mnt") else {
        return eprintln!("skipped: this node does not let a container create a user namespace");
    };
    let found = output(&runtime, &id, "readlink /proc/self/ns/user /proc/self/ns/mnt").await;
    let [users, own_mounts] = found.lines().collect::<Vec<_>>().try_into().unwrap();
    assert_eq!(Path::new(users), of_shim, "hostPID: {host_pid} {security}");
    assert_ne!(Path::new(own_mounts), mounts, "hostPID: {host_pid} {security}");
}

// In its own user namespace, the command has every capability over the processes that join it. A keeper of the node's root that joined
// it could be traced.
#[tokio::test]
async fn exec_command_does_not_join_a_namespace_that_the_command_created() {
    let user = json!({"runAsUser": 1000, "capabilities": {"drop": ["ALL"]}, "allowPrivilegeEscalation": false});
    let securities = if rustix::process::geteuid().is_root() { vec![json!({}), user] } else { vec![json!({})] };
    for security in securities {
        for host_pid in [false, true] {
            exec_command_stays_out_of_namespaces_of_the_command(host_pid, &security).await;
        }
    }
}

#[tokio::test]
async fn exec_command_of_an_agent_without_rights_does_not_join_such_a_namespace() {
    if as_nobody(concat!(module_path!(), "::exec_command_of_an_agent_without_rights_does_not_join_such_a_namespace")) {
        for host_pid in [false, true] {
            exec_command_stays_out_of_namespaces_of_the_command(host_pid, &json!({})).await;
        }
    }
}

#[tokio::test]
async fn first_process_of_a_namespace_has_no_rights_and_only_the_files_of_the_container() {
    if !is_root("only root reads the files of another process without capabilities") {
        return;
    }
    let root = Root::new();
    let runtime = root.open().await;
    let id = run(&runtime, &pod("u", |_| {}), "exec sleep 1000").await;
    let started: StartedRecord = record::read(&root.records(&id).join("started")).unwrap();
    let init = started.init.expect("the container has a PID namespace").cast_unsigned();
    assert_eq!(namespace(init, "mnt"), namespace(main_pid(&root, &id), "mnt"));
    let visible = std::fs::read_dir(format!("/proc/{init}/root{}", root.path().display())).unwrap();
    let visible: Vec<_> = visible.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(visible, ["pods"]);
    let status = std::fs::read_to_string(format!("/proc/{init}/status")).unwrap();
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(process_field(&status, set), Some("0000000000000000"), "{set}");
    }
    assert_eq!(process_field(&status, "NoNewPrivs"), Some("1"));
    assert_eq!(process_field(&status, "Groups").map(str::trim), Some(""));
}

#[tokio::test]
async fn container_with_host_pid_has_its_own_view_of_the_files() {
    let root = Root::new();
    let runtime = root.open().await;
    let pod = pod("u", |spec| spec.host_pid = Some(true));
    let mut config = script(&pod, &sandbox(&runtime, &pod).await, "exec sleep 1000");
    config.mounts = vec![Mount {
        volume: "v".into(),
        host_path: root.shared().to_owned(),
        sub_path: "".into(),
        container_path: "/v".into(),
        read_only: true,
        image: None,
    }];
    let id = runtime.create_container(config).await.unwrap();
    runtime.start_container(&id).await.unwrap();
    let (path, volume) = (root.path().display(), root.shared().display());
    let found =
        output(&runtime, &id, &format!("ls {path}; (echo > {volume}/file) 2>/dev/null || echo read-only")).await;
    assert_eq!(found, "pods\nread-only\n");
}

/// Whether this process lacks a capability. A process of root runs the test with this path without the capability, and gets false.
fn without(capability: &str, test: &str) -> bool {
    const WITHOUT: &str = "PODWRIGHT_TEST_WITHOUT";
    if std::env::var_os(WITHOUT).is_some() || !is_root("only root has the capability") {
        return std::env::var_os(WITHOUT).is_some();
    }
    let (_, test) = test.split_once("::").unwrap();
    let minus = format!("-{capability}");
    let again = Command::new("setpriv")
        .args(["--bounding-set", &minus, "--inh-caps", &minus])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(WITHOUT, capability)
        .output();
    let again = again.expect("setpriv, which is part of util-linux, runs");
    let (text, errors) = (String::from_utf8_lossy(&again.stdout), String::from_utf8_lossy(&again.stderr));
    assert!(again.status.success() && text.contains("1 passed"), "{text}{errors}");
    false
}

/// Runs a container that counts its runs, and returns whether it has a mount namespace.
async fn command_runs_once() -> bool {
    let root = Root::new();
    let runtime = root.open().await;
    let pod = pod("u", |_| {});
    let file = root.shared().join("runs");
    run(&runtime, &pod, &format!("readlink /proc/self/ns/mnt >> {}", file.display())).await;
    assert_eq!(ended(&runtime, &pod).await.exit_code, 0);
    let runs = std::fs::read_to_string(file).unwrap();
    let [run] = runs.lines().collect::<Vec<_>>().try_into().unwrap();
    Path::new(run) != std::fs::read_link("/proc/self/ns/mnt").unwrap()
}

#[tokio::test]
async fn command_runs_once_for_an_agent_that_may_not_join_mounts() {
    if without("sys_chroot", concat!(module_path!(), "::command_runs_once_for_an_agent_that_may_not_join_mounts")) {
        assert!(!command_runs_once().await);
    }
}

#[tokio::test]
async fn command_runs_without_namespaces_for_an_agent_of_root_that_may_not_create_them() {
    let test = "::command_runs_without_namespaces_for_an_agent_of_root_that_may_not_create_them";
    if without("sys_admin", &format!("{}{test}", module_path!())) {
        assert!(!command_runs_once().await);
    }
}

/// A runtime whose shims are started by a shell script that does this first.
pub(super) async fn open_with_script(root: &Root, first: &str) -> ProcessRuntime {
    let file = root.shared().join("shim");
    std::fs::write(&file, format!("#!/bin/sh\n{first}\nexec {SHIM} \"$@\"\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    root.open_with(|config| config.shim[0] = file.into()).await
}

#[tokio::test]
async fn other_users_enter_their_directory_whatever_the_umask_of_the_agent_is() {
    if !is_root("only root runs containers as other users") {
        return;
    }
    for host_pid in [false, true] {
        let root = Root::new();
        std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let runtime = open_with_script(&root, "umask 077").await;
        let pod = pod("u", |spec| {
            spec.host_pid = Some(host_pid);
            spec.containers[0].security_context = serde_json::from_value(json!({"runAsUser": 1000})).unwrap();
        });
        run(&runtime, &pod, "cd $PODWRIGHT_ROOTFS && echo > file").await;
        assert_eq!(ended(&runtime, &pod).await.exit_code, 0, "hostPID: {host_pid}");
    }
}

// The script stands for a node without memory.
#[tokio::test]
async fn namespaces_are_tested_again_after_a_lack_of_resources() {
    let root = Root::new();
    let lacks = root.shared().join("lacks");
    std::fs::write(&lacks, "").unwrap();
    let fail = "echo exhausted; echo no memory is left >&2; exit 1";
    let runtime =
        open_with_script(&root, &format!("if [ \"$2\" = probe ] && [ -e {} ]; then {fail}; fi", lacks.display())).await;
    let pod = pod("u", |_| {});
    let sandbox = sandbox(&runtime, &pod).await;
    let refused = runtime.create_container(script(&pod, &sandbox, "exec sleep 1000")).await;
    assert!(
        matches!(&refused, Err(RuntimeError::Failed(error)) if error_chain(&**error).to_string().contains("no memory is left")),
        "{refused:?}"
    );
    std::fs::remove_file(lacks).unwrap();
    let id = runtime.create_container(script(&pod, &sandbox, "exec sleep 1000")).await.unwrap();
    runtime.start_container(&id).await.unwrap();
    assert_ne!(namespace(main_pid(&root, &id), "mnt"), namespace(std::process::id(), "mnt"));
}

#[tokio::test]
async fn orphans_of_an_exec_command_end_at_its_timeout() {
    orphans_end_at_the_timeout(&json!({})).await;
    if rustix::process::geteuid().is_root() {
        orphans_end_at_the_timeout(&json!({"runAsUser": 1000})).await;
    }
}

#[tokio::test]
async fn orphans_of_an_exec_command_of_an_agent_without_rights_end_at_its_timeout() {
    if as_nobody(concat!(module_path!(), "::orphans_of_an_exec_command_of_an_agent_without_rights_end_at_its_timeout"))
    {
        orphans_end_at_the_timeout(&json!({})).await;
    }
}

/// Starts two processes that have no environment, no session and no parent of their exec command.
const ORPHANS: &str = "env -i setsid sh -c '(sleep 1000 &); sleep 1000 &' > /dev/null 2>&1";

/// The number of processes of a container, with those that count them.
async fn processes(runtime: &ProcessRuntime, id: &ContainerId) -> String {
    output(runtime, id, "ls -d /proc/[0-9]* | wc -l").await
}

/// Waits until a container has this many processes.
async fn until_processes(runtime: &ProcessRuntime, id: &ContainerId, expected: &str) {
    let wait = async { while processes(runtime, id).await != expected {} };
    if timeout(PATIENCE, wait).await.is_err() {
        panic!("other processes remain: {}", output(runtime, id, "cat /proc/[0-9]*/cmdline").await);
    }
}

async fn orphans_end_at_the_timeout(security: &Value) {
    let root = Root::new();
    std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let runtime = root.open().await;
    let id = run(&runtime, &secured("u", security.clone()), "exec sleep 1000").await;
    let before = processes(&runtime, &id).await;
    let result = runtime.exec(&id, &shell(&format!("{ORPHANS}; exec sleep 1000")), Duration::from_secs(1)).await;
    assert!(matches!(result, Err(RuntimeError::Timeout { .. })), "{result:?}");
    until_processes(&runtime, &id, &before).await;
    // What a finished command leaves behind lives on.
    output(&runtime, &id, ORPHANS).await;
    assert_ne!(processes(&runtime, &id).await, before, "{security}");
}

#[tokio::test]
async fn exec_command_ends_with_its_keeper() {
    let root = Root::new();
    let runtime = root.open().await;
    let pid = root.fifo("pid");
    let id = run(&runtime, &pod("u", |_| {}), "exec sleep 1000").await;
    let before = processes(&runtime, &id).await;
    let command = shell(&format!("{ORPHANS}; echo $$ > {}; exec sleep 1000", pid.path()));
    let exec = runtime.exec(&id, &command, PATIENCE);
    let end_keeper = async {
        let command = on_node(&root, &id, pid.pid().await);
        let reaper = parent(command);
        let keeper = parent(reaper);
        assert_eq!(std::fs::read_to_string(format!("/proc/{keeper}/comm")).unwrap(), "podwright-exec\n");
        kill(keeper, Signal::KILL);
        (command, reaper)
    };
    let (result, (command, reaper)) = tokio::join!(exec, end_keeper);
    assert!(matches!(result, Err(RuntimeError::Failed(_))), "{result:?}");
    until("the exec command ends", || !is_alive(command) && !is_alive(reaper)).await;
    until_processes(&runtime, &id, &before).await;
}

#[tokio::test]
async fn exec_command_in_a_pid_namespace_reports_how_it_ended() {
    let root = Root::new();
    let runtime = root.open().await;
    let id = run(&runtime, &pod("u", |_| {}), "exec sleep 1000").await;
    let exec = async |text: &str| runtime.exec(&id, &shell(text), PATIENCE).await.unwrap();
    for (text, code) in [
        ("exit 3", 3),
        ("kill -9 $$", 137),
        // The signal reaches the process group of the command only.
        ("trap '' TERM; kill -TERM 0; exit 7", 7),
        ("(sleep 1000 &); exit 4", 4),
    ] {
        assert_eq!(exec(text).await.exit_code, code, "{text}");
    }
    assert_eq!(exec("sleep 1000 & echo done").await.output, b"done\n");
    let out = exec("test -t 0; cat; echo out; echo err >&2").await;
    assert_eq!(String::from_utf8(out.output).unwrap(), "out\nerr\n");
    let missing = runtime.exec(&id, &["no-such-program".to_owned()], PATIENCE).await;
    let is_named = |error: &RuntimeError| error_chain(error).to_string().contains("no directory in PATH");
    assert!(matches!(&missing, Err(error) if is_named(error)), "{missing:?}");
    // The process between the keeper and the command gives up its rights after it has started the command.
    let without_rights =
        "until grep -q '^CapPrm:.0000000000000000' /proc/$PPID/status; do :; done; cat /proc/$PPID/status";
    let status = String::from_utf8(exec(without_rights).await.output).unwrap();
    assert_eq!(process_field(&status, "CapEff"), Some("0000000000000000"), "{status}");
}
