//! A process runtime whose shims are the program of the agent.

use podwright::adapters::process::{ProcessConfig, ProcessRuntime};
pub(crate) use podwright_fixtures::polling::PATIENCE;
pub(crate) use podwright_fixtures::processes::{
    Root, echo_server, ended, host_pod, is_alive, kill, sandbox, script, served_port, status,
};

/// Opens a runtime on a root directory.
pub(crate) async fn open(root: &Root) -> ProcessRuntime {
    let mut config = ProcessConfig::new(root.path());
    config.shim[0] = env!("CARGO_BIN_EXE_podwright").into();
    ProcessRuntime::open(config).await.unwrap()
}
