//! Faults of the machine: full disks, processes that hang in the kernel, no file descriptors, and stuck shims.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use podwright_fixtures::disks::SmallDisk;
use podwright_fixtures::polling::{PATIENCE, until};
use podwright_fixtures::processes::{ended, host_pod, is_alive, kill, parent, pod, run, sandbox, script, status};
use podwright_ports::{ContainerRuntime, ContainerState, ContainerStatus, RuntimeError, SandboxConfig};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

use super::adoption::watch;
use super::isolation::on_node;
use crate::support::Root;

fn summary(status: &ContainerStatus) -> (i32, &str, &str) {
    (status.exit_code, &status.reason, &status.message)
}

#[tokio::test]
async fn full_disk_fails_creations_and_starts_without_leaving_files() {
    let root = Root::new();
    let Some(disk) = SmallDisk::new(root.path()) else { return };
    let runtime = root.open().await;
    let pod = pod("u", |_| {});
    let sandbox = sandbox(&runtime, &pod).await;
    let idle = runtime.create_container(script(&pod, &sandbox, "true")).await.unwrap();
    let count = |dir: &str| fs::read_dir(root.path().join(dir)).unwrap().count();
    let fill = disk.fill();
    for _ in 0..2 {
        runtime.create_container(script(&pod, &sandbox, "true")).await.unwrap_err();
        runtime.run_sandbox(SandboxConfig { pod: Arc::clone(&pod), attempt: 1 }).await.unwrap_err();
    }
    let dirs = ["process/containers", "process/sandboxes", "pods/u/containers/main"];
    assert_eq!(dirs.map(count), [1, 1, 1]);
    let start = runtime.start_container(&idle).await;
    assert!(
        matches!(&start, Err(RuntimeError::Config(text)) if text.to_string().contains("No space left")),
        "{start:?}"
    );
    let status = ended(&runtime, &pod).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (128, "StartError"));
    assert!(status.message.contains("No space left"), "{}", status.message);
    fs::remove_file(fill).unwrap();
    runtime.remove_container(&idle, false).await.unwrap();
    let id = runtime.create_container(script(&pod, &sandbox, "exit 3")).await.unwrap();
    runtime.start_container(&id).await.unwrap();
    assert_eq!(ended(&runtime, &pod).await.exit_code, 3);
}

#[tokio::test]
async fn exit_code_survives_a_full_disk() {
    let root = Root::new();
    let Some(_disk) = SmallDisk::new(root.path()) else { return };
    let first = root.open().await;
    let pod = pod("u", |_| {});
    let id = run(&first, &pod, "cat /dev/zero > fill 2> /dev/null; printf why > dev/termination-log; exit 7").await;
    let exit = ended(&first, &pod).await;
    drop(first);
    let second = root.open().await;
    let adopted = ended(&second, &pod).await;
    second.remove_container(&id, false).await.unwrap();
    let removed = second.pod_status(pod.uid()).await.unwrap().containers.is_empty();
    drop(second);
    // The message did not fit on the disk.
    assert_eq!(summary(&exit), (7, "Error", ""));
    assert_eq!(adopted, exit);
    assert!(removed);
}

// The shim cannot write to its own log either.
#[tokio::test]
async fn container_that_writes_to_its_log_on_a_full_disk_runs_and_stops() {
    let root = Root::new();
    let Some(disk) = SmallDisk::new(root.path()) else { return };
    let runtime = root.open().await;
    // More output than the pipe to the shim holds.
    let text = "until [ -e go ]; do sleep 0.1; done; head -c 200000 /dev/zero && exit 7";
    let [writes, stops] = ["writes", "stops"].map(|uid| pod(uid, |_| {}));
    run(&runtime, &writes, text).await;
    let stopped = run(&runtime, &stops, "trap 'exit 9' TERM; touch on; while :; do echo x; sleep 0.01; done").await;
    let in_root = |pod: &str, file: &str| {
        let dir = fs::read_dir(root.path().join(format!("pods/{pod}/containers/main"))).unwrap().next().unwrap();
        dir.unwrap().path().join(file)
    };
    until("the container runs", || in_root("stops", "on").exists()).await;
    File::create(in_root("writes", "go.new")).unwrap();
    let fill = disk.fill();
    fs::rename(in_root("writes", "go.new"), in_root("writes", "go")).unwrap();
    assert_eq!(ended(&runtime, &writes).await.exit_code, 7);
    let log = root.path().join("pods/stops/logs/main/0.log");
    // The last record fits only up to the end of a page.
    until("the log fills the disk", || fs::metadata(&log).unwrap().len().is_multiple_of(4096)).await;
    let lines = || fs::read_to_string(&log).unwrap().lines().filter(|line| line.ends_with(" stdout F x")).count();
    let before = lines();
    fs::remove_file(fill).unwrap();
    // A record of which only a part was written is not continued by the next one.
    until("the output is in the log", || lines() >= before + 2).await;
    let text = fs::read_to_string(&log).unwrap();
    let stamps = |line: &str| line.matches("Z stdout").count();
    assert!(text.lines().all(|line| stamps(line) <= 1), "{text}");
    runtime.stop_container(&stopped, PATIENCE).await.unwrap();
    assert_eq!(ended(&runtime, &stops).await.exit_code, 9);
}

/// A freezer cgroup of version 1. Its processes are in state `D` and cannot be killed until it is dropped.
struct Frozen(PathBuf);

impl Frozen {
    /// `None` if this machine or this user has no freezer of version 1.
    fn new(pid: u32) -> Option<Self> {
        let dir = PathBuf::from(format!("/sys/fs/cgroup/freezer/podwright-test-{pid}"));
        fs::create_dir(&dir).ok()?;
        let frozen = Frozen(dir);
        let prepared =
            frozen.write("cgroup.procs", &pid.to_string()).and_then(|()| frozen.write("freezer.state", "FROZEN"));
        prepared.ok().map(|()| frozen)
    }

    fn write(&self, file: &str, text: &str) -> std::io::Result<()> {
        fs::write(self.0.join(file), text)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = self.write("freezer.state", "THAWED");
        // Killed processes leave the cgroup when they end.
        let end = Instant::now() + PATIENCE;
        while fs::remove_dir(&self.0).is_err() && Instant::now() < end {
            std::thread::yield_now();
        }
    }
}

// KF24
#[tokio::test]
async fn process_that_hangs_in_the_kernel_does_not_hide_the_exit_code() {
    for pod in [host_pod("u", |_| {}), pod("u", |_| {})] {
        let root = Root::new();
        let runtime = root.open_with(|config| config.cgroups = false).await;
        let (hangs, go) = (root.fifo("hangs"), root.fifo("go"));
        let text = format!("sh -c 'echo $$ > {}; exec sleep 1000' & cat {}; exit 7", hangs.path(), go.path());
        let id = run(&runtime, &pod, &text).await;
        // In a PID namespace, its first process waits for the process that hangs.
        let Some(frozen) = Frozen::new(on_node(&root, &id, hangs.pid().await)) else {
            eprintln!("skipped: this machine has no freezer cgroup of version 1");
            return;
        };
        fs::write(go.path(), "").unwrap();
        let exit = ended(&runtime, &pod).await;
        drop(frozen);
        assert_eq!(summary(&exit), (7, "Error", ""));
    }
}

#[tokio::test]
async fn container_whose_command_hangs_in_the_kernel_runs_until_the_command_ends() {
    let root = Root::new();
    let runtime = root.open_with(|config| config.cgroups = false).await;
    let pod = host_pod("u", |_| {});
    let main = root.fifo("main");
    let id = run(&runtime, &pod, &format!("trap '' TERM; echo $$ > {}; exec sleep 1000", main.path())).await;
    let Some(frozen) = Frozen::new(main.pid().await) else {
        eprintln!("skipped: this machine has no freezer cgroup of version 1");
        return;
    };
    // Longer than the time after which the agent kills a shim that is stuck.
    let stop = tokio::time::timeout(Duration::from_secs(12), runtime.stop_container(&id, Duration::ZERO)).await;
    let state = status(&runtime, &pod).await.state;
    drop(frozen);
    assert!(stop.is_err(), "{stop:?}");
    assert_eq!(state, ContainerState::Running);
    let exit = ended(&runtime, &pod).await;
    assert_eq!((exit.signal, exit.reason.as_str()), (Some(Signal::KILL.as_raw()), "Error"), "{}", exit.message);
}

#[tokio::test]
async fn process_of_another_user_with_the_mark_of_a_container_changes_nothing() {
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can start a process of another user");
        return;
    }
    let root = Root::new();
    let runtime = root.open_with(|config| config.cgroups = false).await;
    let pod = host_pod("u", |_| {});
    let main = root.fifo("main");
    let id = run(&runtime, &pod, &format!("echo $$ > {}; exec sleep 1000", main.path())).await;
    let main = main.pid().await;
    let mut marked = std::process::Command::new("sleep")
        .arg("1000")
        .env("PODWRIGHT_CONTAINER_ID", id.as_str())
        .uid(65534)
        .gid(65534)
        .spawn()
        .unwrap();
    // Only the mark shows which processes remain after the shim was killed.
    kill(parent(main), Signal::KILL);
    let exit = ended(&runtime, &pod).await;
    let survived = marked.try_wait().unwrap().is_none();
    marked.kill().unwrap();
    marked.wait().unwrap();
    assert!(survived);
    assert_eq!((exit.exit_code, exit.message.contains("could not be killed")), (137, false), "{}", exit.message);
    assert!(!is_alive(main));
}

/// Whether this process runs no other test. Otherwise, runs the test with this path in a process of its own, where it must pass, and
/// returns false. nextest starts a process for each test.
fn is_alone(test: &str) -> bool {
    const ALONE: &str = "PODWRIGHT_TEST_ALONE";
    if std::env::var_os("NEXTEST").is_some() || std::env::var_os(ALONE).is_some() {
        return true;
    }
    let (_, path) = test.split_once("::").unwrap();
    let mut again = Command::new(std::env::current_exe().unwrap());
    let again = again.args(["--exact", path, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&again.stdout), String::from_utf8_lossy(&again.stderr));
    assert!(again.status.success() && text.contains("1 passed"), "{text}{errors}");
    false
}

/// Takes all file descriptors of this process except `free`.
fn take_descriptors(free: usize) -> Vec<File> {
    let limit = Rlimit { current: Some(256), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    taken.truncate(taken.len() - free);
    taken
}

#[tokio::test]
async fn exit_code_survives_an_agent_without_descriptors() {
    if !is_alone(concat!(module_path!(), "::exit_code_survives_an_agent_without_descriptors")) {
        return;
    }
    let root = Root::new();
    let runtime = root.open().await;
    let pod = host_pod("u", |_| {});
    let (main, go) = (root.fifo("main"), root.fifo("go"));
    run(&runtime, &pod, &format!("echo $$ > {}; read line < {}; exit 7", main.path(), go.path())).await;
    let shim = watch(parent(main.pid().await));
    let go = go.path();
    let mut go = tokio::task::spawn_blocking(|| OpenOptions::new().write(true).open(go).unwrap()).await.unwrap();
    let taken = take_descriptors(0);
    go.write_all(b"\n").unwrap();
    let _pidfd = shim.await.unwrap();
    // The agent notices the end of the shim and tries to read the exit code.
    let early = tokio::time::timeout(Duration::from_millis(500), ended(&runtime, &pod)).await;
    drop(taken);
    assert!(early.is_err(), "{early:?}");
    assert_eq!(summary(&ended(&runtime, &pod).await), (7, "Error", ""));
}

#[tokio::test]
async fn containers_survive_an_adoption_without_descriptors() {
    if !is_alone(concat!(module_path!(), "::containers_survive_an_adoption_without_descriptors")) {
        return;
    }
    let root = Root::new();
    let pods: Vec<_> = ["a", "b", "c"].map(|uid| host_pod(uid, |_| {})).into();
    let first = root.open().await;
    let mut pids = Vec::new();
    for (i, pod) in pods.iter().enumerate() {
        let main = root.fifo(&i.to_string());
        run(&first, pod, &format!("echo $$ > {}; exec sleep 1000", main.path())).await;
        pids.push(main.pid().await);
    }
    drop(first);
    // The tasks of the first runtime end and close their descriptors.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    // One for the lock of the root directory, one for a shim, and one to read files.
    let taken = take_descriptors(3);
    let second = root.open().await;
    let mut states = Vec::new();
    for pod in &pods {
        states.push(status(&second, pod).await.state);
    }
    drop(taken);
    // Containers are adopted concurrently, so each may take a descriptor that another one needs.
    assert!(
        states.iter().all(|state| matches!(state, ContainerState::Running | ContainerState::Unknown)),
        "{states:?}"
    );
    assert!(states.contains(&ContainerState::Unknown), "{states:?}");
    let adopted = async {
        for pod in &pods {
            while status(&second, pod).await.state != ContainerState::Running {
                second.next_event().await;
            }
        }
    };
    tokio::time::timeout(PATIENCE, adopted).await.expect("the containers are not adopted");
    for (pod, pid) in pods.iter().zip(pids) {
        kill(pid, Signal::USR2);
        assert_eq!(ended(&second, pod).await.signal, Some(Signal::USR2.as_raw()));
    }
}

#[tokio::test]
async fn stuck_shims_delay_the_adoption_of_other_containers_by_a_limited_time() {
    let root = Root::new();
    let healthy = host_pod("healthy", |_| {});
    let stuck: Vec<_> = (0..16).map(|n| host_pod(&format!("stuck-{n}"), |_| {})).collect();
    let main = root.fifo("main");
    let first = root.open().await;
    run(&first, &healthy, &format!("echo $$ > {}; exec sleep 1000", main.path())).await;
    let main = main.pid().await;
    let mut locks = Vec::new();
    for pod in &stuck {
        let sandbox = sandbox(&first, pod).await;
        let id = first.create_container(script(pod, &sandbox, "true")).await.unwrap();
        // The shim of an earlier agent that hangs before it writes its first record.
        let lock = File::create(root.records(&id).join("lock")).unwrap();
        flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
        locks.push(lock);
    }
    drop(first);
    let begin = Instant::now();
    let second = root.open().await;
    let took = begin.elapsed();
    // If the agent asked the stuck shims one after the other, each would delay it by 5 s.
    assert!(took < Duration::from_secs(60), "one after the other: {took:?}");
    assert_eq!(status(&second, &healthy).await.state, ContainerState::Running);
    for pod in &stuck {
        // Reported as exited, it would be started a second time.
        assert_eq!(status(&second, pod).await.state, ContainerState::Unknown);
    }
    drop(locks);
    for pod in &stuck {
        assert_eq!(ended(&second, pod).await.reason, "StartError");
    }
    assert!(is_alive(main));
}
