//! A node over the process runtime: one pod that ends by itself. `cargo run --locked --example node`

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use podwright::adapters::network::Network;
use podwright::adapters::process::{ProcessConfig, ProcessRuntime, SHIM_ARGUMENT, shim_main};
use podwright::adapters::storage::FileStorage;
use podwright::ports::{SourceKind, SourceSet};
use podwright::{Node, NodePorts, PodObject};

const HELLO: &str = r#"{
    "metadata": {"name": "hello", "namespace": "default", "uid": "1"},
    "spec": {
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "none", "command": ["/bin/sh", "-c", "echo hello"]}]
    }
}"#;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    // The process runtime starts this program again, once for each container.
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|arg| arg == SHIM_ARGUMENT) {
        return Ok(shim_main(args));
    }
    actix::System::new().block_on(run())
}

async fn run() -> Result<ExitCode, Box<dyn Error>> {
    let root = tempfile::tempdir()?;
    let runtime = Arc::new(ProcessRuntime::open(ProcessConfig::new(root.path())).await?);
    let storage = Arc::new(FileStorage::new(root.path(), Default::default()));
    let node = Node::builder(NodePorts::new(runtime, Arc::new(Network::new()?), storage))
        .name("example")
        .runtime_name("process")
        .sources([SourceKind::File])
        .start()?;

    // A source sends all of its pods each time. A pod that is missing from the next set is stopped.
    let pod = PodObject::new(serde_json::from_str(HELLO)?)?;
    let pods = vec![pod.clone()];
    node.sources().send(SourceSet { source: SourceKind::File, pods, problems: Vec::new() }.into()).await?;

    let mut changes = node.statuses().subscribe();
    let mut last = None;
    loop {
        let phase = node.statuses().phase(pod.uid());
        if phase != last {
            println!("{}: {phase:?}", pod.full_name());
            last = phase;
        }
        if phase.is_some_and(|phase| phase.is_terminal()) {
            break;
        }
        changes.changed().await?;
    }

    let report = node.shutdown(Duration::from_secs(5)).await;
    println!("late pods: {}", report.late.len());
    Ok(if report.late.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
