//! The start, the output and the end of containers.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use podwright_fixtures::polling::PATIENCE;
use podwright_fixtures::processes::{ended, host_pod, is_alive, kill, parent, pod, run, sandbox, script, status};
use podwright_ports::{ContainerRuntime, ContainerState, RuntimeError, SandboxState};
use podwright_process::testing::record::{self as record, Durability, RunRecord};
use podwright_process::{OpenError, ProcessRuntime, UntrustedDirectory};
use rustix::process::Signal;

use crate::support::{Root, config};

#[tokio::test]
async fn container_exit_codes_and_signals_are_reported() {
    let root = Root::new();
    let runtime = root.open().await;
    for (i, (text, code, signal, reason)) in [
        ("exit 0", 0, None, "Completed"),
        ("exit 3", 3, None, "Error"),
        ("kill -9 $$", 137, Some(9), "Error"),
        ("kill -TERM $$", 143, Some(15), "Error"),
        ("kill -USR1 $$", 138, Some(10), "Error"),
    ]
    .into_iter()
    .enumerate()
    {
        let pod = pod(&format!("u{i}"), |_| {});
        run(&runtime, &pod, text).await;
        let status = ended(&runtime, &pod).await;
        assert_eq!((status.exit_code, status.signal, status.reason.as_str()), (code, signal, reason), "{text}");
        assert!(status.created_at <= status.started_at.unwrap(), "{text}");
        assert!(status.started_at <= status.finished_at, "{text}");
        assert_eq!((status.spec_hash, status.image.as_str()), (42, "busybox:1"));
    }
}

// Another user could replace the records, which say what is run as the agent's user.
#[tokio::test]
async fn directories_that_other_users_can_write_to_are_refused() {
    let root = Root::new();
    drop(root.open().await);
    for name in ["", "pods", "process", "process/containers", "process/sandboxes"] {
        let dir = root.path().join(name);
        let mode = std::fs::metadata(&dir).unwrap().permissions();
        for bad in [0o777, 0o1777, 0o770] {
            std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(bad)).unwrap();
            let error = root.try_open().await.unwrap_err();
            assert!(
                matches!(&error, OpenError::Untrusted(UntrustedDirectory::Mode { path, .. }) if path.ends_with(name)),
                "{name}: {error}"
            );
            assert!(error.to_string().contains("chmod go-w"), "{error}");
        }
        std::fs::set_permissions(&dir, mode).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&dir, Some(65534), None).unwrap();
            let error = root.try_open().await.unwrap_err();
            assert!(
                matches!(error, OpenError::Untrusted(UntrustedDirectory::Owner { owner: 65534, user: 0, .. })),
                "{name}: {error}"
            );
            std::os::unix::fs::chown(&dir, Some(0), None).unwrap();
        }
    }
    root.open().await;
}

#[tokio::test]
async fn directories_above_that_other_users_can_write_to_are_refused() {
    let above = tempfile::tempdir().unwrap();
    let root = above.path().join("root");
    std::fs::set_permissions(above.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let error = ProcessRuntime::open(config(&root)).await.unwrap_err();
    assert!(matches!(&error, OpenError::Untrusted(UntrustedDirectory::ModeAbove { mode: 0o777, .. })), "{error}");
    std::fs::set_permissions(above.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
    ProcessRuntime::open(config(&root)).await.unwrap();
}

// A record may have been written by whoever had the directory before.
#[tokio::test]
async fn program_that_a_record_names_as_its_shim_is_not_executed() {
    let root = Root::new();
    let runtime = root.open().await;
    let (program, executed) = (root.path().join("program"), root.path().join("executed"));
    std::fs::write(&program, format!("#!/bin/sh\ntouch {}\n", executed.display())).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let pod = pod("u", |_| {});
    let sandbox = sandbox(&runtime, &pod).await;
    let id = runtime.create_container(script(&pod, &sandbox, "exec sleep 1000")).await.unwrap();
    let file = root.records(&id).join("run");
    let mut planted: RunRecord = record::read(&file).unwrap();
    planted.shim[0] = program.to_str().unwrap().into();
    record::write(&file, &planted, Durability::Boot).unwrap();
    runtime.start_container(&id).await.unwrap();
    let output = runtime.exec(&id, &["true".to_owned()], Duration::from_secs(60)).await.unwrap();
    assert!(output.exit_code == 0 && !executed.exists());

    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
        let error = runtime.exec(&id, &["true".to_owned()], Duration::from_secs(60)).await.unwrap_err();
        assert!(podwright_model::text::error_chain(&error).to_string().contains("must not be trusted"), "{error}");
    }
}

#[tokio::test]
async fn container_output_is_logged_in_the_cri_format() {
    let root = Root::new();
    let runtime = root.open().await;
    let pod = pod("u", |_| {});
    let text = "echo one; echo two >&2; head -c 40000 /dev/zero | tr '\\0' x; echo; printf last";
    let id = run(&runtime, &pod, text).await;
    ended(&runtime, &pod).await;

    let log = std::fs::read_to_string(runtime.log_path(&id).unwrap()).unwrap();
    let mut of = [Vec::new(), Vec::new()];
    for line in log.lines() {
        let [time, stream, tag, text] = line.splitn(4, ' ').collect::<Vec<_>>().try_into().unwrap();
        assert!(time.parse::<jiff::Timestamp>().is_ok() && time.len() == 30, "{time}");
        of[usize::from(stream == "stderr")].push((tag, text));
    }
    let [stdout, stderr] = of;
    assert_eq!(stderr, [("F", "two")]);
    let sizes: Vec<(&str, usize)> = stdout.iter().map(|(tag, text)| (*tag, text.len())).collect();
    assert_eq!(sizes, [("F", 3), ("P", 16384), ("P", 16384), ("F", 7232), ("F", 4)]);
    assert_eq!(stdout.last(), Some(&("F", "last")));
}

#[tokio::test]
async fn reopened_log_continues_in_a_new_file() {
    let root = Root::new();
    let runtime = root.open().await;
    let pod = pod("u", |_| {});
    let (ready, go) = (root.fifo("ready"), root.fifo("go"));
    let id = run(&runtime, &pod, &format!("echo old; echo x > {}; cat {}; echo new", ready.path(), go.path())).await;
    ready.read().await;
    let path = runtime.log_path(&id).unwrap();
    let moved = path.with_extension("moved");
    std::fs::rename(&path, &moved).unwrap();
    runtime.reopen_log(&id).unwrap();
    std::fs::write(go.path(), "").unwrap();
    ended(&runtime, &pod).await;
    // The line that was written just before the rename may be in either file, but no line is lost.
    let (before, after) = (std::fs::read_to_string(moved).unwrap(), std::fs::read_to_string(path).unwrap());
    assert!(format!("{before}{after}").contains("stdout F old\n"));
    assert!(after.ends_with("stdout F new\n"));
}

#[tokio::test]
async fn stopped_container_can_exit_by_itself_after_sigterm() {
    let root = Root::new();
    let runtime = root.open().await;
    let pod = pod("u", |_| {});
    let ready = root.fifo("ready");
    let text = format!("trap 'echo bye; exit 5' TERM; echo x > {}; while :; do sleep 0.01; done", ready.path());
    let id = run(&runtime, &pod, &text).await;
    ready.read().await;
    runtime.stop_container(&id, Duration::from_secs(600)).await.unwrap();
    let status = status(&runtime, &pod).await;
    assert_eq!((status.state, status.exit_code), (ContainerState::Exited, 5));
    // Stopping a container that has stopped or never existed succeeds.
    runtime.stop_container(&id, Duration::ZERO).await.unwrap();
    runtime.stop_container(&"none".into(), Duration::ZERO).await.unwrap();
}

#[tokio::test]
async fn container_ignoring_sigterm_is_killed_after_the_grace_period() {
    let root = Root::new();
    let runtime = root.open().await;
    let pod = pod("u", |_| {});
    let ready = root.fifo("ready");
    let text = format!("trap '' TERM; echo x > {}; while :; do sleep 1000; done", ready.path());
    let id = run(&runtime, &pod, &text).await;
    ready.read().await;
    let begin = Instant::now();
    runtime.stop_container(&id, Duration::from_millis(300)).await.unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(300), "{:?}", begin.elapsed());
    assert_eq!(status(&runtime, &pod).await.signal, Some(9));
}

// A shorter grace period applies at once, also to the stop call that is already running.
#[tokio::test]
async fn later_stop_with_shorter_grace_period_shortens_the_first() {
    let root = Root::new();
    let runtime = Arc::new(root.open().await);
    let pod = pod("u", |_| {});
    let ready = root.fifo("ready");
    let text = format!("trap '' TERM; echo x > {}; while :; do sleep 1000; done", ready.path());
    let id = run(&*runtime, &pod, &text).await;
    ready.read().await;
    let mut first = runtime.stop_container(&id, Duration::from_secs(600));
    // The call is polled once and then dropped. Its stop request stays in force.
    assert!(futures_util::FutureExt::now_or_never(&mut first).is_none());
    drop(first);
    let longer = runtime.stop_container(&id, Duration::from_secs(900));
    let shorter = runtime.stop_container(&id, Duration::from_millis(100));
    // Without the shorter grace period both would wait for ten minutes.
    let both = async { tokio::join!(longer, shorter) };
    let (longer, shorter) = tokio::time::timeout(PATIENCE, both).await.expect("the first grace period is in force");
    longer.unwrap();
    shorter.unwrap();
    assert_eq!(status(&*runtime, &pod).await.exit_code, 137);
}

#[tokio::test]
async fn container_stopped_before_its_start_never_starts() {
    let root = Root::new();
    let runtime = root.open().await;
    let pod = pod("u", |_| {});
    let sandbox = sandbox(&runtime, &pod).await;
    let id = runtime.create_container(script(&pod, &sandbox, "exit 0")).await.unwrap();
    assert_eq!(status(&runtime, &pod).await.state, ContainerState::Created);
    runtime.stop_container(&id, Duration::ZERO).await.unwrap();
    assert_eq!(status(&runtime, &pod).await.state, ContainerState::Exited);
    assert!(matches!(runtime.start_container(&id).await, Err(RuntimeError::Failed(_))));
}

#[tokio::test]
async fn processes_outside_the_session_end_with_their_container() {
    for cgroups in [true, false] {
        let root = Root::new();
        let runtime = root.open_with(|config| config.cgroups = cgroups).await;
        let pod = host_pod("u", |_| {});
        let (first, second, go) = (root.fifo("first"), root.fifo("second"), root.fifo("go"));
        // The second process has no environment either. Only its ancestry shows that it belongs to the container.
        let text = format!(
            "setsid sh -c 'echo $$ > {}; trap \"\" TERM HUP; sleep 1000' & \
             env -i setsid sh -c \"sh -c 'echo \\$\\$ > {}; exec sleep 1000' >/dev/null 2>&1 &\" & \
             cat {}; exit 4",
            first.path(),
            second.path(),
            go.path(),
        );
        run(&runtime, &pod, &text).await;
        let escaped = [first.pid().await, second.pid().await];
        assert_eq!(escaped.map(is_alive), [true, true]);
        std::fs::write(go.path(), "").unwrap();
        assert_eq!(ended(&runtime, &pod).await.exit_code, 4);
        assert_eq!(escaped.map(is_alive), [false, false], "cgroups: {cgroups}");
        assert_eq!(processes_in(root.path()), 0, "cgroups: {cgroups}");
    }
}

/// The number of processes whose working directory is below this directory.
fn processes_in(dir: &std::path::Path) -> usize {
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path().join("cwd")).ok())
        .filter(|cwd| cwd.starts_with(dir))
        .count()
}

// KF22
#[tokio::test]
async fn container_is_killed_when_its_shim_is_killed() {
    for cgroups in [true, false] {
        let root = Root::new();
        let runtime = root.open_with(|config| config.cgroups = cgroups).await;
        let pod = host_pod("u", |_| {});
        let (main, escaped) = (root.fifo("main"), root.fifo("escaped"));
        let text = format!(
            "setsid sh -c 'echo $$ > {}; exec sleep 1000' & echo $$ > {}; exec sleep 1000",
            escaped.path(),
            main.path()
        );
        run(&runtime, &pod, &text).await;
        let (escaped, main) = (escaped.pid().await, main.pid().await);
        kill(parent(main), Signal::KILL);
        let status = ended(&runtime, &pod).await;
        assert_eq!((status.exit_code, status.reason.as_str()), (137, "ContainerStatusUnknown"));
        assert!(status.message.contains("shim died"), "{}", status.message);
        assert!(!is_alive(main) && !is_alive(escaped), "cgroups: {cgroups}");
    }
}

#[tokio::test]
async fn sandbox_is_ready_until_stopped_and_removable_after_that() {
    let root = Root::new();
    let runtime = root.open().await;
    let pod = pod("u", |_| {});
    let id = run(&runtime, &pod, "exec sleep 1000").await;
    let all = runtime.pod_status(pod.uid()).await.unwrap();
    let sandbox = &all.sandboxes[0];
    // The sandbox reports its own network with the node's addresses, so the plan does not create the sandbox again.
    assert_eq!((sandbox.state, sandbox.host_network, sandbox.ips.len()), (SandboxState::Ready, false, 1));
    assert!(matches!(runtime.remove_sandbox(&sandbox.id).await, Err(RuntimeError::Failed(_))));
    assert!(matches!(runtime.remove_container(&id, false).await, Err(RuntimeError::Failed(_))));

    // Stopping the sandbox also stops a container that never started.
    let idle = runtime.create_container(script(&pod, &sandbox.id, "exit")).await.unwrap();
    runtime.stop_sandbox(&sandbox.id).await.unwrap();
    assert!(matches!(runtime.start_container(&idle).await, Err(RuntimeError::Failed(_))));
    let stopped = runtime.pod_status(pod.uid()).await.unwrap();
    assert_eq!(stopped.sandboxes[0].state, SandboxState::NotReady);
    assert!(!stopped.is_running());
    runtime.create_container(script(&pod, &sandbox.id, "exit")).await.unwrap_err();

    runtime.remove_sandbox(&sandbox.id).await.unwrap();
    assert!(runtime.list_pods().await.unwrap().is_empty());
    assert!(!root.records(&id).exists());
    assert!(!root.rootfs(&pod, &id).exists());
    runtime.remove_sandbox(&sandbox.id).await.unwrap();
}

#[tokio::test]
async fn removed_container_keeps_its_log_if_requested() {
    let root = Root::new();
    let runtime = root.open().await;
    for keep in [true, false] {
        let pod = pod(if keep { "k" } else { "r" }, |_| {});
        let id = run(&runtime, &pod, "echo hi").await;
        ended(&runtime, &pod).await;
        let log = runtime.log_path(&id).unwrap();
        let rotated = log.with_extension("log.20261121-203000.gz");
        std::fs::write(&rotated, "").unwrap();
        runtime.remove_container(&id, keep).await.unwrap();
        assert_eq!((log.exists(), rotated.exists()), (keep, keep));
    }
}

#[tokio::test]
async fn many_containers_start_and_end_concurrently() {
    let root = Root::new();
    let runtime = Arc::new(root.open().await);
    let pods: Vec<_> = (0..50).map(|i| pod(&format!("u{i}"), |_| {})).collect();
    let starts: Vec<_> = pods
        .iter()
        .enumerate()
        .map(|(i, pod)| {
            let (runtime, pod) = (Arc::clone(&runtime), Arc::clone(pod));
            tokio::spawn(async move { run(&*runtime, &pod, &format!("echo {i}; exit {i}")).await })
        })
        .collect();
    let mut ids = Vec::new();
    for start in starts {
        ids.push(start.await.unwrap());
    }
    for (i, (pod, id)) in pods.iter().zip(&ids).enumerate() {
        let status = ended(&*runtime, pod).await;
        assert_eq!(status.exit_code, i32::try_from(i).unwrap());
        let log = std::fs::read_to_string(runtime.log_path(id).unwrap()).unwrap();
        assert!(log.ends_with(&format!(" stdout F {i}\n")), "{log}");
    }
}
