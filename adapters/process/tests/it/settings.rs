//! The settings in the definition of a container.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Lifecycle, PodSecurityContext, Volume};
use podwright_fixtures::processes::{ended, host_pod, parent, pod, run, sandbox, script, status};
use podwright_host::storage::FileStorage;
use podwright_model::ids::ContainerId;
use podwright_model::pod::PodObject;
use podwright_ports::{ContainerRuntime, ContainerState, Mount, PodStorage, RuntimeError};
use podwright_process::testing::record::StartedRecord;
use serde_json::{Value, json};

use crate::support::Root;

#[tokio::test]
async fn command_that_cannot_be_executed_is_a_start_error() {
    let root = Root::new();
    let runtime = root.open().await;
    for (uid, program, dir, says) in [
        ("a", "no-such-program", None, "PATH"),
        ("b", "/no/such/program", None, "/no/such/program"),
        ("c", "/etc/passwd", None, "ermission denied"),
        ("d", "true", Some("/no/such/dir"), "workingDir"),
    ] {
        let pod = pod(uid, |spec| spec.containers[0].working_dir = dir.map(str::to_owned));
        let sandbox = sandbox(&runtime, &pod).await;
        let mut config = script(&pod, &sandbox, "");
        config.command = vec![program.into()];
        let id = runtime.create_container(config).await.unwrap();
        let result = runtime.start_container(&id).await;
        assert!(
            matches!(&result, Err(RuntimeError::Config(text)) if text.to_string().contains(says)),
            "{program}: {result:?}"
        );
        let status = status(&runtime, &pod).await;
        assert_eq!((status.state, status.exit_code), (ContainerState::Exited, 128), "{program}");
        assert_eq!(status.reason, "StartError");
        assert!(status.message.contains(says), "{}", status.message);
        assert_eq!(status.started_at, None);
    }
}

#[tokio::test]
async fn container_without_command_is_refused() {
    let root = Root::new();
    let runtime = root.open().await;
    let pod = pod("u", |_| {});
    let sandbox = sandbox(&runtime, &pod).await;
    let mut config = script(&pod, &sandbox, "");
    config.command.clear();
    let result = runtime.create_container(config).await;
    assert!(
        matches!(&result, Err(RuntimeError::Config(text)) if text.to_string().contains("does not run images")),
        "{result:?}"
    );
    assert!(runtime.pod_status(pod.uid()).await.unwrap().containers.is_empty());
}

#[tokio::test]
async fn container_mounts_are_links_and_environment_variables() {
    let root = Root::new();
    let runtime = root.open().await;
    let volume = root.path().join("volume");
    std::fs::create_dir(&volume).unwrap();
    let pod = pod("u", |spec| spec.containers[0].working_dir = Some("/var/data".into()));
    let sandbox = sandbox(&runtime, &pod).await;
    let mut config = script(
        &pod,
        &sandbox,
        "echo a > by-cwd; cd $PODWRIGHT_ROOTFS; echo b > var/data/by-path; echo c > $PODWRIGHT_MOUNT_MY_DATA/by-var",
    );
    config.mounts = vec![Mount {
        volume: "my-data".into(),
        host_path: volume.clone(),
        sub_path: "".into(),
        container_path: "/var/data".into(),
        read_only: false,
        image: None,
    }];
    let id = runtime.create_container(config).await.unwrap();
    runtime.start_container(&id).await.unwrap();
    assert_eq!(ended(&runtime, &pod).await.exit_code, 0);
    for (file, text) in [("by-cwd", "a\n"), ("by-path", "b\n"), ("by-var", "c\n")] {
        assert_eq!(std::fs::read_to_string(volume.join(file)).unwrap(), text);
    }
    // Removing the container removes the links but not their targets.
    runtime.remove_container(&id, false).await.unwrap();
    assert!(!root.rootfs(&pod, &id).exists());
    assert!(volume.join("by-cwd").exists());
}

#[tokio::test]
async fn every_container_run_has_its_own_root_directory() {
    let root = Root::new();
    let runtime = root.open().await;
    let pod = pod("u", |_| {});
    for _ in 0..2 {
        run(&runtime, &pod, "test ! -e mark && touch mark").await;
        assert_eq!(ended(&runtime, &pod).await.exit_code, 0);
    }
}

#[tokio::test]
async fn termination_message_comes_from_its_file_or_from_the_log() {
    let root = Root::new();
    let runtime = root.open().await;
    for (uid, policy, text, message) in [
        ("a", None, "printf why > dev/termination-log; exit 1", "why"),
        ("b", None, "printf why > $PODWRIGHT_TERMINATION_LOG", "why"),
        ("c", None, "echo log; exit 1", ""),
        ("d", Some("FallbackToLogsOnError"), "echo first; echo second; exit 1", "first\nsecond\n"),
        ("e", Some("FallbackToLogsOnError"), "echo log; exit 0", ""),
        ("f", Some("FallbackToLogsOnError"), "echo log; printf file > dev/termination-log; exit 1", "file"),
        // The shim does not follow a link and does not wait for a FIFO that replaces the file.
        ("g", None, "rm dev/termination-log; ln -s /etc/passwd dev/termination-log; exit 1", ""),
        ("h", None, "rm dev/termination-log; mkfifo dev/termination-log; exit 1", ""),
    ] {
        let pod = pod(uid, |spec| spec.containers[0].termination_message_policy = policy.map(str::to_owned));
        run(&runtime, &pod, text).await;
        assert_eq!(ended(&runtime, &pod).await.message, message, "{text}");
    }
}

#[tokio::test]
async fn container_is_stopped_with_its_own_stop_signal() {
    let root = Root::new();
    let runtime = root.open().await;
    let pod = pod("u", |spec| {
        spec.containers[0].lifecycle = Some(Lifecycle { stop_signal: Some("SIGUSR1".into()), ..Lifecycle::default() })
    });
    let ready = root.fifo("ready");
    let text = format!("trap 'exit 6' USR1; trap 'exit 7' TERM; echo > {}; while :; do sleep 0.01; done", ready.path());
    let id = run(&runtime, &pod, &text).await;
    ready.read().await;
    runtime.stop_container(&id, Duration::from_secs(60)).await.unwrap();
    assert_eq!(status(&runtime, &pod).await.exit_code, 6);
}

/// Runs a script in a pod with this security context, in a runtime of root, and returns the lines of its log.
async fn lines(root: &Root, uid: &str, security: PodSecurityContext, text: &str) -> Vec<String> {
    let runtime = root.open().await;
    let pod = pod(uid, |spec| spec.security_context = Some(security));
    let id = run(&runtime, &pod, text).await;
    ended(&runtime, &pod).await;
    let log = std::fs::read_to_string(runtime.log_path(&id).unwrap()).unwrap();
    log.lines().map(|line| line.splitn(4, ' ').nth(3).unwrap().to_owned()).collect()
}

#[tokio::test]
async fn root_agent_runs_a_container_as_its_run_as_user() {
    if !is_root("only root can run a container as another user") {
        return;
    }
    let root = Root::new();
    for (uid, group, fs_group, gid, groups) in [
        ("a", Some(23456), Some(34567), "23456", "23456 34567"),
        // Neither the agent's group 0 nor its supplementary groups reach the container.
        ("b", None, None, "12345", "12345"),
    ] {
        let security = PodSecurityContext {
            run_as_user: Some(12345),
            run_as_group: group,
            fs_group,
            ..PodSecurityContext::default()
        };
        let found = lines(&root, uid, security, "id -u; id -g; id -G; touch mine && echo wrote").await;
        let own = std::fs::metadata(root.path().join("pods").join(uid)).unwrap().gid();
        assert_eq!(found, ["12345", gid, &format!("{groups} {own}"), "wrote"]);
    }
}

#[tokio::test]
async fn files_of_a_pod_with_several_users_are_closed_to_other_local_users() {
    if !is_root("only root can run a container as another user") {
        return;
    }
    let root = Root::new();
    std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let storage = FileStorage::new(root.path(), Default::default());
    let with_volume = |uid: &str, user: i64| {
        pod(uid, |spec| {
            spec.security_context = Some(PodSecurityContext { run_as_user: Some(user), ..Default::default() });
            spec.volumes = Some(vec![Volume { name: "data".into(), ..Volume::default() }]);
        })
    };
    let runtime = root.open().await;
    let ran = async |pod: &Arc<PodObject>, volume: &std::path::Path, text: &str| {
        let sandbox = sandbox(&runtime, pod).await;
        let mut config = script(pod, &sandbox, text);
        config.mounts = vec![Mount {
            volume: "data".into(),
            host_path: volume.to_owned(),
            sub_path: "".into(),
            container_path: "/data".into(),
            read_only: false,
            image: None,
        }];
        let id = runtime.create_container(config).await.unwrap();
        runtime.start_container(&id).await.unwrap();
        let code = ended(&runtime, pod).await.exit_code;
        runtime.stop_sandbox(&sandbox).await.unwrap();
        runtime.remove_sandbox(&sandbox).await.unwrap();
        code
    };
    let pod = with_volume("u", 12345);
    let volume = storage.set_up(&pod).await.unwrap()["data"].clone();
    assert_eq!(ran(&pod, &volume, "echo first > data/one").await, 0);
    // Another container of the pod may have another user.
    let other_user = with_volume("u", 23456);
    assert_eq!(ran(&other_user, &volume, "cat data/one && mv data/one data/two").await, 0);
    // The same user in another pod has no access.
    let other_pod = with_volume("v", 12345);
    let other_volume = storage.set_up(&other_pod).await.unwrap()["data"].clone();
    let path = volume.join("two").display().to_string();
    assert_ne!(ran(&other_pod, &other_volume, &format!("cat {path}")).await, 0);
    assert_ne!(ran(&other_pod, &other_volume, &format!("echo replaced > {path}")).await, 0);
    assert_eq!(std::fs::read_to_string(path).unwrap(), "first\n");
    // Neither has another local user.
    let other = std::process::Command::new("cat").arg(volume.join("two")).uid(12345).gid(12345).output().unwrap();
    assert!(!other.status.success());
}

#[tokio::test]
async fn container_has_the_capabilities_and_privileges_of_its_security_context() {
    if !is_root("only root can limit capabilities") {
        return;
    }
    let root = Root::new();
    let runtime = root.open().await;
    let all = std::fs::read_to_string("/proc/self/status").unwrap();
    let all = process_field(&all, "CapPrm").unwrap();
    for (uid, security, capabilities, no_new_privs) in [
        ("a", json!({}), "00000000a80425fb", "0"),
        ("b", json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}), "0000000000000000", "1"),
        ("c", json!({"capabilities": {"drop": ["ALL"], "add": ["CHOWN"]}}), "0000000000000001", "0"),
        ("d", json!({"privileged": true}), all, "0"),
    ] {
        let pod = secured(uid, security);
        let id = run(&runtime, &pod, "exec sleep 1000").await;
        let command = ["sh", "-c", "cat /proc/self/status"].map(str::to_owned);
        // The rights of an exec command are those of its container.
        let exec = runtime.exec(&id, &command, Duration::from_secs(60)).await.unwrap();
        let main = main_pid(&root, &id);
        for status in [std::fs::read(format!("/proc/{main}/status")).unwrap(), exec.output] {
            let status = String::from_utf8(status).unwrap();
            let field = |name: &str| process_field(&status, name);
            assert_eq!(field("CapEff"), Some(capabilities), "{uid}");
            assert_eq!(field("CapPrm"), Some(capabilities), "{uid}");
            assert_eq!(field("NoNewPrivs"), Some(no_new_privs), "{uid}");
            assert_eq!((field("CapInh"), field("CapAmb")), (Some("0000000000000000"), Some("0000000000000000")));
        }
    }
}

/// A directory that all users may enter, in a directory that only `owner` may enter.
fn closed_dir(root: &Root, name: &str, owner: u32) -> PathBuf {
    let inner = root.shared().join(name).join("inner");
    std::fs::create_dir_all(&inner).unwrap();
    for dir in [&inner, inner.parent().unwrap()] {
        std::os::unix::fs::chown(dir, Some(owner), Some(owner)).unwrap();
    }
    std::fs::set_permissions(inner.parent().unwrap(), std::fs::Permissions::from_mode(0o700)).unwrap();
    inner
}

#[tokio::test]
async fn working_directory_is_entered_with_the_rights_of_the_container() {
    if !is_root("only root runs containers as other users") {
        return;
    }
    let root = Root::new();
    for dir in [root.path(), root.shared()] {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let runtime = root.open().await;
    let (of_root, of_user) = (closed_dir(&root, "root", 0), closed_dir(&root, "user", 1000));
    let none = json!({"runAsUser": 0, "capabilities": {"drop": ["ALL"]}});
    for (uid, security, host_pid, target, enters) in [
        ("a", json!({"runAsUser": 1000}), false, of_root.as_path(), false),
        ("b", json!({"runAsUser": 1000}), false, of_user.as_path(), true),
        ("c", none.clone(), false, of_user.as_path(), false),
        ("d", none.clone(), false, of_root.as_path(), true),
        ("e", json!({"runAsUser": 0}), false, of_user.as_path(), true),
        // The first process of the node is in other namespaces than the container.
        ("f", json!({"runAsUser": 1000}), true, Path::new("/proc/1/root"), false),
        ("g", none, true, Path::new("/proc/1/root"), false),
    ] {
        let volume = root.path().join(format!("volume-{uid}"));
        std::fs::create_dir(&volume).unwrap();
        std::os::unix::fs::symlink(target, volume.join("link")).unwrap();
        let pod = pod(uid, |spec| {
            spec.host_pid = Some(host_pid);
            spec.containers[0].security_context = serde_json::from_value(security).unwrap();
            spec.containers[0].working_dir = Some("/v/link".into());
        });
        let mut config = script(&pod, &sandbox(&runtime, &pod).await, "exec sleep 1000");
        config.mounts = vec![Mount {
            volume: "v".into(),
            host_path: volume.clone(),
            sub_path: "".into(),
            container_path: "/v".into(),
            read_only: false,
            image: None,
        }];
        let id = runtime.create_container(config).await.unwrap();
        let started = runtime.start_container(&id).await;
        if !enters {
            assert!(
                matches!(&started, Err(RuntimeError::Config(text)) if text.to_string().contains("may not enter it")),
                "{uid}: {started:?}"
            );
            continue;
        }
        started.unwrap();
        // An exec command finds what the container made of the path meanwhile.
        std::fs::remove_file(volume.join("link")).unwrap();
        std::os::unix::fs::symlink(closed_dir(&root, &format!("late-{uid}"), 2000), volume.join("link")).unwrap();
        let exec = runtime.exec(&id, &["true".to_owned()], Duration::from_secs(60)).await;
        assert_eq!(exec.is_ok(), uid == "e", "{uid}: {exec:?}");
    }
}

#[tokio::test]
async fn processes_have_the_oom_score_of_their_pod_and_not_of_the_agent() {
    let root = Root::new();
    let runtime = root.open().await;
    let score = |pid: u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
        text.trim().parse::<i64>().unwrap()
    };
    let own = score(std::process::id());
    let full = json!({"limits": {"cpu": "1", "memory": "64Mi"}});
    for (uid, resources, expected) in
        [("a", json!({}), 1000), ("b", json!({"requests": {"cpu": "1m"}}), 999), ("c", full, -997)]
    {
        let pod = host_pod(uid, |spec| spec.containers[0].resources = Some(serde_json::from_value(resources).unwrap()));
        let id = run(&runtime, &pod, "exec sleep 1000").await;
        let main = main_pid(&root, &id);
        let command = ["sh", "-c", "cat /proc/self/oom_score_adj /proc/$(cut -d ' ' -f 4 /proc/$$/stat)/oom_score_adj"];
        let exec = runtime.exec(&id, &command.map(str::to_owned), Duration::from_secs(60)).await.unwrap();
        let exec = String::from_utf8(exec.output).unwrap();
        let exec: Vec<i64> = exec.lines().map(|line| line.parse().unwrap()).collect();
        // Without CAP_SYS_RESOURCE, the kernel does not let a process lower the value.
        let allowed = |value: i64, found: i64| found == value || (value < own && found == own);
        assert!(allowed(expected, score(main)) && allowed(expected, exec[0]), "{uid}: {} {exec:?}", score(main));
        assert!(allowed(-998, score(parent(main))) && allowed(-998, exec[1]), "{uid}: {exec:?}");
    }
}

#[tokio::test]
async fn security_context_that_cannot_be_applied_is_refused_by_its_field() {
    let root = Root::new();
    let runtime = root.open().await;
    let seccomp = json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "p.json"}});
    let pod = secured("u", seccomp);
    let sandbox = sandbox(&runtime, &pod).await;
    let result = runtime.create_container(script(&pod, &sandbox, "true")).await;
    assert!(
        matches!(&result, Err(RuntimeError::Config(text)) if text.to_string().contains("seccompProfile.type")),
        "{result:?}"
    );
}

#[tokio::test]
async fn read_only_settings_hold_and_other_pods_are_out_of_sight() {
    if !is_root("the expected output is that of an agent of root") {
        return;
    }
    let (root, elsewhere) = (Root::new(), tempfile::tempdir().unwrap());
    let runtime = root.open().await;
    let (data, config) = (root.path().join("data"), root.path().join("config"));
    for dir in [&data, &config] {
        std::fs::create_dir(dir).unwrap();
    }
    let other = pod("other", |_| {});
    run(&runtime, &other, "exec sleep 1000").await;
    for (uid, read_only_root, expected) in [("a", false, "rw ro rw log u=a r=0"), ("b", true, "rw ro ro log u=b r=0")] {
        let security = json!({"readOnlyRootFilesystem": read_only_root});
        let pod = secured(uid, security);
        let sandbox = sandbox(&runtime, &pod).await;
        let writes = |path: &str| format!("(echo x > {path}) 2>/dev/null && printf 'rw ' || printf 'ro ';");
        let text = [
            writes("data/file"),
            writes("$PODWRIGHT_MOUNT_CONFIG/file"),
            writes(&elsewhere.path().join("file").display().to_string()),
            "printf why > dev/termination-log && printf 'log ';".to_owned(),
            format!("echo u=$(ls {0}/pods) r=$(ls -d {0}/process 2>/dev/null | wc -l)", root.path().display()),
        ]
        .concat();
        let mut config_of = script(&pod, &sandbox, &text);
        let mount = |volume: &str, path: &std::path::Path, read_only| Mount {
            volume: volume.into(),
            host_path: path.to_owned(),
            sub_path: "".into(),
            container_path: format!("/{volume}"),
            read_only,
            image: None,
        };
        config_of.mounts = vec![mount("data", &data, false), mount("config", &config, true)];
        let id = runtime.create_container(config_of).await.unwrap();
        runtime.start_container(&id).await.unwrap();
        let status = ended(&runtime, &pod).await;
        let log = std::fs::read_to_string(runtime.log_path(&id).unwrap()).unwrap();
        assert!(log.ends_with(&format!(" F {expected}\n")), "{log}");
        assert_eq!((status.exit_code, status.message.as_str()), (0, "why"));
    }
    // The node's own view is unchanged.
    std::fs::write(config.join("file"), "").unwrap();
}

/// Whether the test may run. Otherwise it is skipped for this reason.
pub(super) fn is_root(why: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: {why}");
    }
    is_root
}

/// A pod whose container has this security context.
pub(super) fn secured(uid: &str, security: Value) -> Arc<PodObject> {
    pod(uid, |spec| spec.containers[0].security_context = Some(serde_json::from_value(security).unwrap()))
}

/// A field of the text of `/proc/PID/status`.
pub(super) fn process_field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"))
}

/// The process of a container's own command.
pub(super) fn main_pid(root: &Root, id: &ContainerId) -> u32 {
    let started = root.records(id).join("started");
    let started: StartedRecord = podwright_process::testing::record::read(&started).unwrap();
    started.pid.cast_unsigned()
}
