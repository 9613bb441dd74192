//! An agent that starts after another one and adopts its containers.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use podwright_fixtures::polling::PATIENCE;
use podwright_fixtures::processes::{ended, host_pod, is_alive, kill, parent, pod, run, sandbox, script, status};
use podwright_model::ids::ContainerId;
use podwright_model::pod::{PodObject, SOURCE_ANNOTATION};
use podwright_ports::{ContainerRuntime, ContainerState, Mount, SandboxState};
use podwright_process::OpenError;
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;

use crate::support::Root;

#[tokio::test]
async fn running_containers_are_adopted_and_ended_ones_are_reported() {
    let root = Root::new();
    let (stays, ends, lost) = (host_pod("stays", |_| {}), host_pod("ends", |_| {}), host_pod("lost", |_| {}));
    let (stays_pid, ends_pid, lost_pid) = (root.fifo("stays"), root.fifo("ends"), root.fifo("lost"));
    let go = root.fifo("go");
    let first = root.open().await;
    let stays_id = run(&first, &stays, &format!("echo $$ > {}; exec sleep 1000", stays_pid.path())).await;
    run(&first, &ends, &format!("echo $$ > {}; cat {}; exit 7", ends_pid.path(), go.path())).await;
    run(&first, &lost, &format!("echo $$ > {}; exec sleep 1000", lost_pid.path())).await;
    let (stays_pid, ends_pid, lost_pid) = (stays_pid.pid().await, ends_pid.pid().await, lost_pid.pid().await);
    let before = status(&first, &stays).await;
    drop(first);

    // While no agent runs, the pid descriptor of a shim reports its end.
    let shims = [parent(ends_pid), parent(lost_pid)].map(watch);
    let command = watch(lost_pid);
    kill(parent(lost_pid), Signal::KILL);
    std::fs::write(go.path(), "").unwrap();
    for shim in shims {
        shim.await.unwrap();
    }
    // A command ends with its shim even while no agent runs.
    tokio::time::timeout(PATIENCE, command).await.expect("the command outlives its shim").unwrap();

    let second = root.open().await;
    assert_eq!(status(&second, &stays).await, before);
    let ended_meanwhile = ended(&second, &ends).await;
    assert_eq!((ended_meanwhile.exit_code, ended_meanwhile.reason.as_str()), (7, "Error"));
    assert_eq!(ended(&second, &lost).await.reason, "ContainerStatusUnknown");
    assert!(!is_alive(lost_pid));
    let all = second.pod_status(stays.uid()).await.unwrap();
    assert_eq!(all.sandboxes[0].state, SandboxState::Ready);

    // An adopted container is watched and stopped like any other.
    let out = second.exec(&stays_id, &["true".to_owned()], Duration::from_secs(60)).await.unwrap();
    assert_eq!(out.exit_code, 0);
    assert!(is_alive(stays_pid));
    kill(stays_pid, Signal::USR2);
    assert_eq!(ended(&second, &stays).await.signal, Some(Signal::USR2.as_raw()));
}

/// A task that ends when a process does.
pub(super) fn watch(pid: u32) -> tokio::task::JoinHandle<OwnedFd> {
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    let pidfd = pidfd_open(Pid::from_raw(pid.cast_signed()).unwrap(), PidfdFlags::empty()).unwrap();
    tokio::task::spawn_blocking(move || {
        rustix::io::retry_on_intr(|| poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None)).unwrap();
        pidfd
    })
}

#[tokio::test]
async fn container_start_that_was_only_recorded_can_be_repeated() {
    let root = Root::new();
    let pod = pod("u", |_| {});
    let first = root.open().await;
    let sandbox = sandbox(&first, &pod).await;
    let id = first.create_container(script(&pod, &sandbox, "exit 9")).await.unwrap();
    drop(first);
    // The state after an agent died between writing the record and spawning the shim.
    std::fs::write(root.records(&id).join("lock"), "").unwrap();
    let second = root.open().await;
    assert_eq!(status(&second, &pod).await.state, ContainerState::Created);
    second.start_container(&id).await.unwrap();
    assert_eq!(ended(&second, &pod).await.exit_code, 9);
}

/// The record of an agent that mounted each `subPath` at its path in the volume.
#[tokio::test]
async fn container_of_an_older_agent_that_was_not_started_is_created_again() {
    let root = Root::new();
    let pod = pod("u", |_| {});
    let first = root.open().await;
    let sandbox = sandbox(&first, &pod).await;
    let volume = "volumes/kubernetes.io~empty-dir/data";
    let sub_path = root.path().join("pods/u").join(volume).join("sub");
    std::fs::create_dir_all(&sub_path).unwrap();
    let config = || {
        let mut config = script(&pod, &sandbox, "exit 9");
        config.mounts = vec![Mount {
            volume: "data".into(),
            host_path: sub_path.clone(),
            sub_path: "sub".into(),
            container_path: "/data".into(),
            read_only: false,
            image: None,
        }];
        config
    };
    let id = first.create_container(config()).await.unwrap();
    drop(first);
    let record = root.records(&id).join("run");
    let at = "volume-subpaths/data/main/0";
    if !std::fs::read_to_string(&record).unwrap().contains(at) {
        eprintln!("skipped: containers have no mount namespaces");
        return;
    }
    replace(&record, at, &format!("{volume}/sub"));
    let second = root.open().await;
    assert!(second.pod_status(pod.uid()).await.unwrap().containers.is_empty());
    assert!(!root.records(&id).exists() && !root.rootfs(&pod, &id).exists());
    let id = second.create_container(config()).await.unwrap();
    second.start_container(&id).await.unwrap();
    assert_eq!(ended(&second, &pod).await.exit_code, 9);
}

// The manifest of the pod may be gone when the next agent stops it.
#[tokio::test]
async fn adopted_pod_keeps_its_source_and_its_grace_period() {
    let root = Root::new();
    let (plain, mut object) = (pod("plain", |_| {}), pod("static", |_| {}).pod().clone());
    object.spec.as_mut().unwrap().termination_grace_period_seconds = Some(45);
    object.metadata.annotations = Some([(SOURCE_ANNOTATION.to_owned(), "file".to_owned())].into());
    let first = root.open().await;
    for pod in [&plain, &PodObject::new(object).unwrap()] {
        run(&first, pod, "exec sleep 1000").await;
    }
    drop(first);
    let pods = root.open().await.list_pods().await.unwrap();
    let facts = |uid: &str| {
        let pod = pods.iter().find(|pod| pod.uid == uid.into()).unwrap();
        (pod.is_static, pod.grace.map(|grace| grace.seconds()))
    };
    assert_eq!((facts("plain"), facts("static")), ((false, None), (true, Some(45))));
}

#[tokio::test]
async fn unfinished_container_creations_and_removals_are_cleaned_up() {
    let root = Root::new();
    let pod = pod("u", |_| {});
    let first = root.open().await;
    let sandbox = sandbox(&first, &pod).await;
    let [half_made, half_gone] = [(), ()].map(|()| first.create_container(script(&pod, &sandbox, "exit")));
    let (half_made, half_gone) = (half_made.await.unwrap(), half_gone.await.unwrap());
    drop(first);
    std::fs::remove_file(root.records(&half_made).join("state")).unwrap();
    std::fs::rename(root.records(&half_gone), root.records(&half_gone).with_extension("removing")).unwrap();
    let second = root.open().await;
    assert!(second.pod_status(pod.uid()).await.unwrap().containers.is_empty());
    assert_eq!(std::fs::read_dir(root.path().join("process/containers")).unwrap().count(), 0);
}

#[tokio::test]
async fn damaged_container_record_is_moved_aside_and_its_processes_killed() {
    let root = Root::new();
    let (bad, good) = (host_pod("bad", |_| {}), host_pod("good", |_| {}));
    let pid = root.fifo("pid");
    let first = root.open().await;
    let id = run(&first, &bad, &format!("echo $$ > {}; exec sleep 1000", pid.path())).await;
    run(&first, &good, "exec sleep 1000").await;
    let pid = pid.pid().await;
    drop(first);
    let state = root.records(&id).join("state");
    let text = std::fs::read_to_string(&state).unwrap();
    std::fs::write(&state, text.replace("bad", "bat")).unwrap();

    let second = root.open().await;
    assert!(!is_alive(pid));
    assert!(second.pod_status(bad.uid()).await.unwrap().containers.is_empty());
    assert!(root.records(&id).with_extension("corrupt").join("state").exists());
    assert_eq!(status(&second, &good).await.state, ContainerState::Running);
}

// A name that is empty as text, or the start of an id, would match the processes of other containers.
#[tokio::test]
async fn damaged_directory_without_the_name_of_a_container_ends_no_container() {
    let root = Root::new();
    let pod = pod("u", |_| {});
    let first = root.open().await;
    let id = run(&first, &pod, "exec sleep 1000").await;
    drop(first);
    let records = root.path().join("process/containers");
    let names = [OsStr::from_bytes(b"\xff"), OsStr::new(&id.as_str()[..4]), OsStr::new("copy")];
    for name in names {
        std::fs::create_dir(records.join(name)).unwrap();
        std::fs::write(records.join(name).join("state"), "damaged").unwrap();
    }
    std::fs::copy(root.records(&id).join("state"), records.join("copy/state")).unwrap();
    let second = root.open().await;
    assert_eq!(status(&second, &pod).await.state, ContainerState::Running);
    assert_eq!(second.exec(&id, &["true".to_owned()], PATIENCE).await.unwrap().exit_code, 0);
    for name in names {
        assert!(records.join(name).with_extension("corrupt").exists(), "{name:?}");
    }
}

#[tokio::test]
async fn damaged_exit_record_is_an_unknown_exit_that_names_the_file() {
    let root = Root::new();
    let pod = pod("u", |_| {});
    let first = root.open().await;
    let id = run(&first, &pod, "exit 0").await;
    ended(&first, &pod).await;
    drop(first);
    let exit = root.records(&id).join("exit");
    std::fs::write(&exit, "").unwrap();
    for _ in 0..2 {
        let status = status(&root.open().await, &pod).await;
        assert_eq!((status.exit_code, status.reason.as_str()), (137, "ContainerStatusUnknown"));
        assert!(status.message.contains(&format!("containers/{id}/exit is damaged")), "{}", status.message);
    }
}

#[tokio::test]
async fn reboot_ends_every_sandbox_and_container() {
    let root = Root::new();
    let pod = pod("u", |_| {});
    let first = root.open().await;
    let id = run(&first, &pod, "exit 0").await;
    ended(&first, &pod).await;
    drop(first);
    boot_ends(&root, &pod, &id, true).await;
    // Records that a reboot makes obsolete need not have reached the disk before it.
    boot_ends(&root, &pod, &id, false).await;
}

async fn boot_ends(root: &Root, pod: &Arc<PodObject>, id: &ContainerId, has_shim: bool) {
    // The records after a crash of the machine: the container started, has no exit record, and belongs to an earlier boot.
    std::fs::remove_file(root.records(id).join("exit")).unwrap();
    let sandboxes = root.path().join("process/sandboxes");
    let sandbox = std::fs::read_dir(&sandboxes).unwrap().next().unwrap().unwrap().path().join("state");
    let shim = root.records(id).join("shim");
    if has_shim {
        reboot(&shim);
    } else {
        std::fs::remove_file(&shim).unwrap();
    }
    reboot(&sandbox);
    let second = root.open().await;
    let all = second.pod_status(pod.uid()).await.unwrap();
    assert!(!all.is_running());
    assert_eq!((all.containers[0].exit_code, all.sandboxes[0].state), (137, SandboxState::NotReady));
    assert!(all.containers[0].message.contains("node restarted"), "{}", all.containers[0].message);
}

/// Rewrites a record so that it belongs to another boot.
fn reboot(path: &std::path::Path) {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    replace(path, boot.trim(), "00000000-0000-0000-0000-000000000000");
}

/// Replaces a text in a record.
fn replace(path: &std::path::Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    let (_, json) = text.split_once('\n').unwrap();
    let json = json.replace(from, to);
    let sum = json.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    std::fs::write(path, format!("podwright 1 {sum:016x}\n{json}")).unwrap();
}

#[tokio::test]
async fn stuck_shim_delays_only_its_own_pod() {
    let root = Root::new();
    let (stuck, other) = (pod("stuck", |_| {}), pod("other", |_| {}));
    let first = root.open().await;
    let sandbox = sandbox(&first, &stuck).await;
    let id = first.create_container(script(&stuck, &sandbox, "exit 9")).await.unwrap();
    run(&first, &other, "exec sleep 1000").await;
    drop(first);
    // The shim was spawned, holds the lock, and does not write its first record.
    let lock = std::fs::File::create(root.records(&id).join("lock")).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();

    let second = root.open().await;
    let found = tokio::time::timeout(PATIENCE, second.pod_status(other.uid())).await;
    let found = found.expect("the other pod does not wait").unwrap();
    assert_eq!(found.containers[0].state, ContainerState::Running);
    let mut waiting = second.pod_status(stuck.uid());
    assert!((&mut waiting).now_or_never().is_none(), "its state is not known yet");
    drop(lock);
    let found = waiting.await.unwrap();
    assert_eq!(
        (found.containers[0].state, found.containers[0].reason.as_str()),
        (ContainerState::Exited, "StartError")
    );
}

#[tokio::test]
async fn two_process_runtimes_cannot_share_a_root_directory() {
    let root = Root::new();
    let _first = root.open().await;
    assert!(matches!(root.try_open().await, Err(OpenError::InUse(_))));
}

/// The next agent ends a command that an earlier agent was running when it was killed. The container keeps running.
#[tokio::test]
async fn exec_commands_of_an_earlier_agent_end() {
    let root = Root::new();
    let pod = host_pod("u", |_| {});
    let in_exec = root.fifo("in-exec");
    let first = root.open().await;
    let id = run(&first, &pod, "exec sleep 1000").await;
    let command = format!("env -i setsid sh -c 'echo $$ > {}; exec sleep 1000'", in_exec.path());
    let command = ["sh", "-c", &command].map(str::to_owned);
    let pid = tokio::select! {
        done = first.exec(&id, &command, PATIENCE) => panic!("the command ends: {done:?}"),
        pid = in_exec.pid() => pid,
    };
    let end = watch(pid);
    drop(first);
    let second = root.open().await;
    assert_eq!(status(&second, &pod).await.state, ContainerState::Running);
    // The keeper kills the command in the background.
    tokio::time::timeout(PATIENCE, end).await.expect("the exec command outlives its agent").unwrap();
}
