//! Connects to the ports on which the processes of a pod listen, and to no others.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::sync::Arc;

use podwright_host::streaming::PodPorts;
use podwright_model::ids::SandboxId;
use podwright_ports::ContainerState;
use rustix::io::Errno;
use rustix::process::Pid;
use tokio::net::TcpStream;

use super::super::container::Container;
use super::super::record::{self, ReadError, RunRecord};
use super::super::shared::ProcessRuntimeState;
use super::super::stats;
use super::listeners::{self, LOOPBACK, Listener, Receiver};

/// The ports of the pod of a sandbox.
pub(super) fn of_sandbox(shared: &Arc<ProcessRuntimeState>, sandbox: SandboxId) -> PodPorts {
    let shared = Arc::clone(shared);
    PodPorts::new(move |port| {
        let pod = Pod { shared: Arc::clone(&shared), sandbox: sandbox.clone() };
        async move { pod.connect(port).await }
    })
}

struct Pod {
    shared: Arc<ProcessRuntimeState>,
    sandbox: SandboxId,
}

impl Pod {
    /// # Errors
    /// The reason why no connection is made, for the client.
    async fn connect(&self, port: u16) -> Result<TcpStream, String> {
        let sockets = self.sockets().await?;
        let mut refused = None;
        for address in LOOPBACK {
            if sockets.receiver(address, port) != Receiver::Pod {
                continue;
            }
            match TcpStream::connect((address, port)).await {
                Ok(connection) => return self.confirm(connection, address, port).await,
                // A socket with all addresses of IPv6 may have none of IPv4.
                Err(error) => refused = refused.or(Some(error.to_string())),
            }
        }
        Err(refused.unwrap_or_else(|| refusal(sockets.hidden)))
    }

    /// Returns the connection unless another process listens there now: the pod may have closed its socket before the connection was made,
    /// and the other process may have bound the port since. A server that serves one connection only may have ended, so it may be that
    /// nobody listens any more.
    async fn confirm(&self, connection: TcpStream, to: IpAddr, port: u16) -> Result<TcpStream, String> {
        match self.sockets().await?.receiver(to, port) {
            Receiver::Pod | Receiver::Nobody => Ok(connection),
            Receiver::Other => Err("another process has bound the port of the pod".to_owned()),
        }
    }

    async fn sockets(&self) -> Result<Sockets, String> {
        let containers = self.shared.table.containers_of(&self.sandbox);
        let found = self.shared.blocking(move || Sockets::find(&containers)).await;
        found.map_err(|error| format!("cannot find out which processes listen: {error}"))
    }
}

/// The sockets that listen, and those that the processes of a pod have open.
struct Sockets {
    listeners: Vec<Listener>,
    own: HashSet<u64>,
    /// A process of the pod whose sockets the agent may not read.
    hidden: Option<Pid>,
}

impl Sockets {
    /// Finds the sockets. Blocks.
    fn find(containers: &[Arc<Container>]) -> io::Result<Self> {
        let (mut own, mut hidden) = (HashSet::new(), None);
        for container in containers.iter().filter(|container| container.state() == ContainerState::Running) {
            let run: RunRecord = match record::read(&container.files.run()) {
                // The container has just been removed.
                Err(ReadError::Missing(_)) => continue,
                run => run.map_err(io::Error::other)?,
            };
            for process in stats::processes_of(container, &run) {
                match sockets_of(process) {
                    Ok(sockets) => own.extend(sockets),
                    Err(error) if error.kind() == ErrorKind::PermissionDenied => hidden = Some(process),
                    Err(error) => return Err(error),
                }
            }
        }
        // This comes last: a socket that the pod closes meanwhile must not count as one of another process.
        let mut listeners = Vec::new();
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            listeners.extend(read(table)?);
        }
        Ok(Sockets { listeners, own, hidden })
    }

    fn receiver(&self, address: IpAddr, port: u16) -> Receiver {
        listeners::receiver(&self.listeners, &self.own, address, port)
    }
}

fn read(table: &str) -> io::Result<Vec<Listener>> {
    match std::fs::read_to_string(table) {
        Ok(text) => Ok(listeners::parse(&text)),
        // A kernel without IPv6 has no table for it.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The inodes of the sockets that a process has open. None if the process has ended.
///
/// # Errors
/// The system's error, above all if the agent may not read the open files of the process.
fn sockets_of(process: Pid) -> io::Result<Vec<u64>> {
    let is_gone = |error: &io::Error| matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::SRCH));
    let files = match std::fs::read_dir(format!("/proc/{process}/fd")) {
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        files => files?,
    };
    let mut sockets = Vec::new();
    for file in files {
        match file.and_then(|file| std::fs::read_link(file.path())) {
            Ok(target) => sockets.extend(target.to_str().and_then(socket_inode)),
            // The process has closed the file, or has ended.
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sockets)
}

/// The inode in the target of the link of an open socket, such as `socket:[4711]`.
fn socket_inode(target: &str) -> Option<u64> {
    target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// Why no connection is made. `hidden` is a process of the pod whose sockets the agent may not read.
fn refusal(hidden: Option<Pid>) -> String {
    match hidden {
        None => "no process of the pod listens on this port of 127.0.0.1 or ::1".to_owned(),
        Some(pid) => format!(
            "the agent may not read the sockets of process {pid} of the pod: run the agent as root with CAP_SYS_PTRACE"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_a_process_are_found_until_they_are_closed() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = || -> HashSet<u64> { sockets_of(rustix::process::getpid()).unwrap().into_iter().collect() };
        let listening = read("/proc/net/tcp").unwrap();
        let receiver = || listeners::receiver(&listening, &own(), LOOPBACK[0], port);
        assert_eq!(receiver(), Receiver::Pod);
        drop(listener);
        assert_eq!(receiver(), Receiver::Other);
        assert_eq!(
            [socket_inode("socket:[12]"), socket_inode("pipe:[12]"), socket_inode("/a")],
            [Some(12), None, None]
        );
    }
}
