//! What a container does not inherit from the program that started the agent.

use std::time::Duration;

use k8s_openapi::api::core::v1::Lifecycle;
use podwright_fixtures::processes::{ended, pod, run};
use podwright_ports::ContainerRuntime;
use rustix::process::Signal;

use super::namespaces::open_with_script;
use super::settings::{main_pid, process_field};
use crate::support::{Root, SHIM};

// A shell starts a program in the background of a script with such signals.
#[tokio::test]
async fn containers_of_an_agent_that_ignores_signals_do_not_ignore_them() {
    let root = Root::new();
    let runtime = open_with_script(&root, "trap '' HUP INT QUIT").await;
    let pod = pod("u", |spec| {
        let stop_signal = Some("SIGINT".into());
        spec.containers[0].lifecycle = Some(Lifecycle { stop_signal, ..Lifecycle::default() });
    });
    let id = run(&runtime, &pod, "exec sleep 1000").await;
    let command = ["sh", "-c", "cat /proc/self/status"].map(str::to_owned);
    let exec = runtime.exec(&id, &command, Duration::from_secs(60)).await.unwrap();
    for status in [std::fs::read(format!("/proc/{}/status", main_pid(&root, &id))).unwrap(), exec.output] {
        let status = String::from_utf8(status).unwrap();
        let mask = u64::from_str_radix(process_field(&status, "SigIgn").unwrap(), 16).unwrap();
        let numbers = [Signal::HUP, Signal::INT, Signal::QUIT].map(Signal::as_raw);
        assert_eq!(numbers.map(|number| (mask >> (number - 1)) & 1), [0; 3], "{mask:x}");
    }
    runtime.stop_container(&id, Duration::from_secs(60)).await.unwrap();
    let exit = ended(&runtime, &pod).await;
    assert_eq!((exit.exit_code, exit.signal), (130, Some(2)), "{}", exit.message);
}

// The ends of processes are signals too: without them, a probe would not end before its timeout.
#[tokio::test]
async fn containers_of_an_agent_that_blocks_signals_do_not_block_them() {
    let root = Root::new();
    let blocked = format!("exec env --block-signal {SHIM} \"$@\"");
    let runtime = open_with_script(&root, &blocked).await;
    let pod = pod("u", |_| {});
    let id = run(&runtime, &pod, "exec sleep 1000").await;
    let command = ["cat", "/proc/self/status"].map(str::to_owned);
    let exec = runtime.exec(&id, &command, Duration::from_secs(60)).await.unwrap();
    for status in [std::fs::read(format!("/proc/{}/status", main_pid(&root, &id))).unwrap(), exec.output] {
        let status = String::from_utf8(status).unwrap();
        assert_eq!(process_field(&status, "SigBlk"), Some("0000000000000000"), "{status}");
    }
    runtime.stop_container(&id, Duration::from_secs(60)).await.unwrap();
    let exit = ended(&runtime, &pod).await;
    assert_eq!((exit.exit_code, exit.signal), (143, Some(15)), "{}", exit.message);
}
