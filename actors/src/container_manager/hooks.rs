//! Runs the lifecycle hooks of containers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    ContainerPort, ExecAction, HTTPGetAction, LifecycleHandler, SleepAction, TCPSocketAction,
};

use crate::containers::definition::Definition;
use crate::ids::{ContainerId, ContainerName};
use crate::pod::PodObject;
use crate::ports::{ExecOutput, NetworkError, RuntimeError};
use crate::probes::target::{HOOK_USER_AGENT, http_target, tcp_target};
use crate::text::error_chain;
use crate::texts::containers::hooks as texts;
use crate::texts::probes::no_http_answer;

use super::ContainerPorts;

/// The maximum length of a failed command's output in the log, in bytes.
const LOGGED_OUTPUT: usize = 1024;

/// A lifecycle hook failed. The text of the error appears in logs. It does not contain the output of the hook's command, because
/// the output may contain secrets. [`HookError::message`] contains the output.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum HookError {
    #[error("command exited with {}", .0.exit_code)]
    Exit(ExecOutput),
    #[error(transparent)]
    Runtime(RuntimeError),
    #[error("{}", no_http_answer(.url, &error_chain(.error).to_string()))]
    Http { url: String, error: NetworkError },
    #[error(transparent)]
    Tcp(NetworkError),
    #[error("{0}")]
    Target(String),
    #[error("the pod has no address")]
    NoAddress,
    #[error("{}", texts::NO_ACTION)]
    NoAction,
    #[error("the hook panicked")]
    Panicked,
}

impl HookError {
    /// The waiting message of a container whose post-start hook failed. It has the output of the command, as the kubelet's does
    /// (`lifecycle/handlers.go`, `Run`, 1.36). Only the pod's status may contain the output, because more people can read events
    /// and logs.
    pub(super) fn message(&self, pod: &PodObject, container: &Definition<'_>) -> String {
        self.text(pod, container, true)
    }

    /// The same message without the output of the command, for logs.
    pub(super) fn summary(&self, pod: &PodObject, container: &Definition<'_>) -> String {
        self.text(pod, container, false)
    }

    fn text(&self, pod: &PodObject, container: &Definition<'_>, with_output: bool) -> String {
        let name = container.name();
        let handler = container.lifecycle().and_then(|lifecycle| lifecycle.post_start.as_ref());
        let action = handler.map(|handler| (&handler.exec, &handler.http_get));
        match action {
            Some((Some(exec), _)) => {
                let command = exec.command.as_deref().unwrap_or_default();
                let shown = |bytes| if with_output { String::from_utf8_lossy(bytes) } else { "".into() };
                let (error, output) = match self {
                    HookError::Exit(done) => {
                        (texts::exit(command, done.exit_code, &shown(done.stderr())), shown(&done.output))
                    }
                    HookError::Runtime(error) => (error.of_runtime(), "".into()),
                    error => (error.to_string(), "".into()),
                };
                texts::exec_failed(command, name, pod, &error, &output)
            }
            Some((None, Some(http))) => {
                texts::http_failed(http.path.as_deref().unwrap_or_default(), name, pod, &self.to_string())
            }
            _ => self.to_string(),
        }
    }
}

/// A lifecycle hook with its ports, so that it can outlive a cancelled caller.
pub(super) struct Hook {
    pub(super) ports: Arc<ContainerPorts>,
    pub(super) pod: Arc<PodObject>,
    pub(super) container: ContainerName,
    pub(super) id: ContainerId,
    pub(super) ips: Vec<IpAddr>,
    pub(super) handler: LifecycleHandler,
    /// The time limit of the hook.
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
        let start = &done.output[..done.output.len().min(LOGGED_OUTPUT)];
        tracing::debug!(
            pod.uid = %self.pod.uid(),
            container.name = %self.container,
            exit_code = done.exit_code,
            output = ?String::from_utf8_lossy(start),
            "the command of a lifecycle hook failed"
        );
        Err(HookError::Exit(done))
    }

    /// Sends the request. Any answer counts as success (the kubelet's `runHTTPHandler`, 1.36). If the server does not
    /// speak TLS, the request is repeated without TLS.
    async fn http_get(&self, action: &HTTPGetAction) -> Result<(), HookError> {
        let target = http_target(action, &self.container_ports(), &self.address(&action.host)?, HOOK_USER_AGENT)
            .map_err(HookError::Target)?;
        let url = target.url();
        let mut answer = self.ports.network.http_get(target.clone(), self.limit).await;
        if target.https && matches!(answer, Err(NetworkError::PlainHttp)) {
            answer = self.ports.network.http_get(target.without_tls(), self.limit).await;
            if answer.is_ok() {
                self.ports.metrics.containers.http_fallback();
            }
        }
        answer.map(drop).map_err(|error| HookError::Http { url, error })
    }

    async fn tcp_connect(&self, action: &TCPSocketAction) -> Result<(), HookError> {
        let target = tcp_target(action, &self.container_ports(), &self.address(&action.host)?);
        let target = target.map_err(HookError::Target)?;
        self.ports.network.tcp_connect(target, self.limit).await.map_err(HookError::Tcp)
    }

    async fn sleep(&self, action: &SleepAction) {
        let asked = Duration::from_secs(u64::try_from(action.seconds).unwrap_or(0));
        tokio::time::sleep(asked.min(self.limit)).await;
        if asked > self.limit {
            self.ports.metrics.containers.sleep_cut_short();
        }
    }

    /// The host of a hook: the pod's address, unless the hook names its own.
    fn address(&self, own: &Option<String>) -> Result<String, HookError> {
        let node = self.ports.resolver.host_ips.first();
        match self.pod.address(self.ips.first().copied(), node) {
            Some(ip) => Ok(ip.to_string()),
            None if own.as_deref().is_some_and(|host| !host.is_empty()) => Ok(String::new()),
            None => Err(HookError::NoAddress),
        }
    }

    fn container_ports(&self) -> Vec<ContainerPort> {
        let container = Definition::find(&self.pod, self.container.as_str());
        container.map(|container| container.ports().to_vec()).unwrap_or_default()
    }
}
