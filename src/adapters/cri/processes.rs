//! The processes of containers, read from the machine.

use podwright_actors::ids::ContainerId;
use podwright_actors::ports::{ContainerProcess, RuntimeError};

use super::inner::CriRuntimeInner;
use super::tasks::blocking;
use super::v1;

impl CriRuntimeInner {
    /// The first process of a container. `None` if the runtime reports no process, as it does for a container that was never started.
    pub(super) async fn process_of(&self, id: &ContainerId) -> Result<Option<ContainerProcess>, RuntimeError> {
        let request = v1::ContainerStatusRequest { container_id: id.as_str().to_owned(), verbose: true };
        let answer = self.client.container_status(request).await?;
        let Some(pid) = answer.info.get("info").and_then(|info| pid_of_container(info)) else { return Ok(None) };
        let has_ended = blocking(move || Ok(has_ended(pid))).await?;
        Ok(Some(ContainerProcess { pid, has_ended }))
    }
}

/// The process in the verbose status of a container. containerd and CRI-O use the same JSON field.
fn pid_of_container(info: &str) -> Option<u32> {
    let info: serde_json::Value = serde_json::from_str(info).ok()?;
    info.get("pid")?.as_u64().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0)
}

/// Whether a process has ended. A zombie has ended too (proc_pid_stat(5)). If the kernel has given the number to another process, the
/// answer is no.
fn has_ended(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    // The name of the command is in parentheses, and may contain parentheses and spaces.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    matches!(state, Some('Z' | 'X') | None)
}
