//! The URLs at which the runtime's streaming server serves exec, attach and port-forward streams.

use podwright_host::streaming::StreamRequest;
use podwright_ports::RuntimeError;

use super::inner::CriRuntimeInner;
use super::v1;

impl CriRuntimeInner {
    /// Asks the runtime for the URL of a stream. The runtime accepts one request to the URL, within a minute.
    pub(super) async fn streaming_url(&self, stream: StreamRequest) -> Result<String, RuntimeError> {
        // With a terminal, the interface allows no separate standard error.
        Ok(match stream {
            StreamRequest::Exec { container, command: cmd, stdin, stdout, stderr, tty } => {
                let (container_id, stderr) = (container.as_str().to_owned(), stderr && !tty);
                self.client.exec(v1::ExecRequest { container_id, cmd, tty, stdin, stdout, stderr }).await?.url
            }
            StreamRequest::Attach { container, stdin, stdout, stderr, tty } => {
                let (container_id, stderr) = (container.as_str().to_owned(), stderr && !tty);
                self.client.attach(v1::AttachRequest { container_id, stdin, tty, stdout, stderr }).await?.url
            }
            StreamRequest::PortForward { sandbox, ports } => {
                let (pod_sandbox_id, port) = (sandbox.as_str().to_owned(), ports.into_iter().map(i32::from).collect());
                self.client.port_forward(v1::PortForwardRequest { pod_sandbox_id, port }).await?.url
            }
        })
    }
}
