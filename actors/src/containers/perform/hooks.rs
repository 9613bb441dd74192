//! Running a container's lifecycle hooks.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ExecAction, HTTPGetAction, LifecycleHandler, SleepAction, TCPSocketAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::containers::definition::Definition;
use crate::ids::{ContainerId, ContainerName};
use crate::pod::PodObject;
use crate::ports::{HttpTarget, NetworkError, RuntimeError, TcpTarget};

use super::ContainerPorts;

/// How much of a failed command's output its event shows.
const SHOWN_OUTPUT: usize = 1024;

/// A hook did not do its work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HookError {
    #[error("command exited with {code}: {output:?}")]
    Exit { code: i32, output: String },
    #[error("{0}")]
    Runtime(RuntimeError),
    #[error("{0}")]
    Network(NetworkError),
    #[error("port {0:?} is not a port of the container")]
    Port(String),
    #[error("the pod has no address")]
    NoAddress,
    #[error("it has no action")]
    NoAction,
}

/// A hook with all that it needs to run by itself, however often its caller is cancelled.
pub(super) struct Hook {
    pub(super) ports: ContainerPorts,
    pub(super) pod: Arc<PodObject>,
    pub(super) container: ContainerName,
    pub(super) id: ContainerId,
    pub(super) ips: Vec<IpAddr>,
    pub(super) handler: LifecycleHandler,
    /// For how long it may run.
    pub(super) limit: Duration,
}

impl Hook {
    pub(super) async fn run(self) -> Result<(), HookError> {
        if let Some(action) = &self.handler.exec {
            self.exec(action).await
        } else if let Some(action) = &self.handler.http_get {
            self.http_get(action).await
        } else if let Some(action) = &self.handler.tcp_socket {
            self.tcp_connect(action).await
        } else if let Some(action) = &self.handler.sleep {
            self.sleep(action).await;
            Ok(())
        } else {
            Err(HookError::NoAction)
        }
    }

    async fn exec(&self, action: &ExecAction) -> Result<(), HookError> {
        let command = action.command.as_deref().unwrap_or_default();
        let done = self.ports.runtime.exec(&self.id, command, self.limit).await.map_err(HookError::Runtime)?;
        if done.exit_code == 0 {
            return Ok(());
        }
        let shown = &done.output[..done.output.len().min(SHOWN_OUTPUT)];
        Err(HookError::Exit { code: done.exit_code, output: String::from_utf8_lossy(shown).trim_end().to_owned() })
    }

    /// Any answer will do: a hook tells the container something, it does not ask (upstream `runHTTPHandler`, kubelet
    /// 1.36).
    async fn http_get(&self, action: &HTTPGetAction) -> Result<(), HookError> {
        let path = action.path.as_deref().unwrap_or_default();
        let target = HttpTarget {
            https: action.scheme.as_deref().is_some_and(|scheme| scheme.eq_ignore_ascii_case("https")),
            host: self.host(action.host.as_deref())?,
            port: self.port(&action.port)?,
            path: if path.starts_with('/') { path.to_owned() } else { format!("/{path}") },
            headers: action.http_headers.iter().flatten().map(|h| (h.name.clone(), h.value.clone())).collect(),
        };
        self.ports.network.http_get(target, self.limit).await.map_err(HookError::Network)?;
        Ok(())
    }

    async fn tcp_connect(&self, action: &TCPSocketAction) -> Result<(), HookError> {
        let target = TcpTarget { host: self.host(action.host.as_deref())?, port: self.port(&action.port)? };
        self.ports.network.tcp_connect(target, self.limit).await.map_err(HookError::Network)
    }

    async fn sleep(&self, action: &SleepAction) {
        let asked = Duration::from_secs(u64::try_from(action.seconds).unwrap_or(0));
        tokio::time::sleep(asked.min(self.limit)).await;
        if asked > self.limit {
            self.ports.counter.sleep_cut_short();
        }
    }

    fn host(&self, asked: Option<&str>) -> Result<String, HookError> {
        match (asked, self.ips.first()) {
            (Some(host), _) if !host.is_empty() => Ok(host.to_owned()),
            (_, Some(ip)) => Ok(ip.to_string()),
            // A pod on the node's network can always be reached here.
            (_, None) if self.pod.is_host_network() => Ok("127.0.0.1".to_owned()),
            (_, None) => Err(HookError::NoAddress),
        }
    }

    fn port(&self, asked: &IntOrString) -> Result<u16, HookError> {
        let number = match asked {
            IntOrString::Int(number) => Some(*number),
            IntOrString::String(name) => {
                let container = Definition::find(&self.pod, self.container.as_str());
                let ports = container.map(|container| container.ports).unwrap_or_default();
                let named = ports.iter().find(|port| port.name.as_deref() == Some(name));
                named.map(|port| port.container_port).or_else(|| name.parse().ok())
            }
        };
        number.and_then(|number| u16::try_from(number).ok()).filter(|number| *number > 0).ok_or_else(|| {
            HookError::Port(match asked {
                IntOrString::Int(number) => number.to_string(),
                IntOrString::String(name) => name.clone(),
            })
        })
    }
}
