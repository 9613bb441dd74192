//! Exec commands in a container.

use std::path::PathBuf;
use std::time::Duration;

use podwright_fixtures::polling::PATIENCE;
use podwright_fixtures::processes::{ended, host_pod, is_alive, kill, parent, run};
use podwright_ports::{ContainerRuntime, RuntimeError};

use rustix::process::Signal;

use crate::support::Root;

fn shell(text: &str) -> [String; 3] {
    ["sh", "-c", text].map(str::to_owned)
}

#[tokio::test]
async fn exec_command_runs_in_the_container_environment() {
    let root = Root::new();
    let runtime = root.open().await;
    let pod = host_pod("u", |_| {});
    let id = run(&runtime, &pod, "exec sleep 1000").await;
    let exec = async |text: &str| runtime.exec(&id, &shell(text), PATIENCE).await.unwrap();

    let out = exec("echo $PODWRIGHT_CONTAINER_ID; pwd; echo err >&2; echo out; exit 3").await;
    let expected = format!("{id}\n{}\nerr\nout\n", root.rootfs(&pod, &id).canonicalize().unwrap().display());
    assert_eq!((out.exit_code, String::from_utf8(out.output).unwrap()), (3, expected));
    assert_eq!(exec("kill -9 $$").await.exit_code, 137);
    assert_eq!(exec("head -c 100000 /dev/zero").await.output.len(), 10 * 1024);
    // A background process keeps the output open.
    assert_eq!(exec("sleep 1000 & echo done").await.output, b"done\n");

    let missing = runtime.exec(&id, &["no-such-program".to_owned()], PATIENCE).await;
    assert!(
        matches!(&missing, Err(RuntimeError::Failed(text)) if podwright_model::text::error_chain(&**text).to_string().contains("PATH")),
        "{missing:?}"
    );

    // Background processes of a command end with the container.
    let left = String::from_utf8(exec("sleep 1000 >/dev/null 2>&1 & echo $!").await.output).unwrap();
    runtime.stop_container(&id, Duration::ZERO).await.unwrap();
    assert!(!is_alive(left.trim().parse().unwrap()));
}

#[tokio::test]
async fn exec_command_past_its_timeout_is_killed_with_its_children() {
    let root = Root::new();
    let runtime = root.open().await;
    let pod = host_pod("u", |_| {});
    let files = [root.shared().join("main"), root.shared().join("escaped")];
    let id = run(&runtime, &pod, "exec sleep 1000").await;
    let command = shell(&format!(
        "setsid sh -c 'echo $$ > {}; exec sleep 1000' & echo $$ > {}; exec sleep 1000",
        files[1].display(),
        files[0].display()
    ));
    let pid = |file: &PathBuf| -> Option<u32> { std::fs::read_to_string(file).ok()?.trim().parse().ok() };
    // On a slow machine, a short limit may end before the processes have begun. Then the test repeats the command with a longer limit.
    for limit in [1, 4, 16, 60] {
        for file in &files {
            std::fs::write(file, "").unwrap();
        }
        let result = runtime.exec(&id, &command, Duration::from_secs(limit)).await;
        assert!(matches!(result, Err(RuntimeError::Timeout { .. })), "{result:?}");
        let [Some(main), Some(escaped)] = files.each_ref().map(pid) else { continue };
        // Remaining processes are killed in the background, and the end of the container waits for that.
        runtime.stop_container(&id, Duration::ZERO).await.unwrap();
        assert!(!is_alive(main) && !is_alive(escaped));
        return;
    }
    panic!("the processes of the command do not begin");
}

#[tokio::test]
async fn exec_commands_end_with_their_container() {
    let root = Root::new();
    let runtime = root.open().await;
    let pod = host_pod("u", |_| {});
    let (in_exec, go) = (root.fifo("in-exec"), root.fifo("go"));
    let id = run(&runtime, &pod, &format!("cat {}", go.path())).await;
    let command = shell(&format!("echo $$ > {}; exec sleep 1000", in_exec.path()));
    let exec = runtime.exec(&id, &command, PATIENCE);
    let end = async {
        let pid = in_exec.pid().await;
        std::fs::write(go.path(), "").unwrap();
        ended(&runtime, &pod).await;
        pid
    };
    let (result, pid) = tokio::join!(exec, end);
    assert!(result.is_ok_and(|out| out.exit_code == 137) || !is_alive(pid));
    assert!(!is_alive(pid));
    let late = runtime.exec(&id, &shell("true"), PATIENCE).await;
    assert!(matches!(late, Err(RuntimeError::Failed(_))), "{late:?}");
}

// The process has another session, no environment and no parent of the container: only its keeper knows it.
#[tokio::test]
async fn processes_that_hide_from_their_exec_command_end_with_the_container() {
    for kill_shim in [false, true] {
        let root = Root::new();
        let runtime = root.open_with(|config| config.cgroups = false).await;
        let pod = host_pod("u", |_| {});
        let (main, hidden) = (root.fifo("main"), root.fifo("hidden"));
        let script = format!("echo $$ > {}; exec sleep 1000", main.path());
        let (id, main) = tokio::join!(run(&runtime, &pod, &script), main.pid());
        let command =
            shell(&format!("env -i setsid sh -c 'echo $$ > {}; exec sleep 1000' > /dev/null 2>&1 &", hidden.path()));
        let (done, hidden) = tokio::join!(runtime.exec(&id, &command, PATIENCE), hidden.pid());
        assert_eq!(done.unwrap().exit_code, 0);
        assert!(is_alive(hidden), "a process in the background outlives its exec command");
        if kill_shim {
            kill(parent(main), Signal::KILL);
            ended(&runtime, &pod).await;
        } else {
            runtime.stop_container(&id, Duration::ZERO).await.unwrap();
        }
        assert!(!is_alive(hidden), "shim killed: {kill_shim}");
    }
}
