//! Opens the runtime that `--runtime` names.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::adapters::adoption::Adoption;
use crate::adapters::log::WritesLogs;
use crate::adapters::simulated::{BadSetting, SimulatedConfig};
use podwright_host::stats::{NoStats, RuntimeStats};
use podwright_host::streaming::{NoStreams, StreamingRuntime};
use podwright_metrics::Metrics;
use podwright_model::ids::ContainerId;
use podwright_node_api::Checkpoints;
use podwright_ports::{
    Clock, ContainerRuntime, CredentialProviders, HostIps, ImageStore, NetworkClient, NoCredentialProviders,
    PodCgroups, PullSecrets, RuntimeError, RuntimeName, ServiceAccounts,
};

use super::cli::RunArgs;
use super::events::EventLog;
use super::runtime::Runtime;

/// Why the runtime cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenRuntimeError {
    #[error("cannot open the process runtime")]
    Process(#[from] crate::adapters::process::OpenError),
    #[error("cannot use the container runtime")]
    Cri(#[from] crate::adapters::cri::OpenError),
    #[error("the settings do not fit the container runtime")]
    CriSettings(#[from] podwright_ports::RuntimeError),
    #[error(transparent)]
    CredentialProviders(#[from] crate::adapters::credentials::OpenPluginsError),
    #[error(transparent)]
    Adopted(#[from] crate::adapters::adoption::LoadError),
    #[error("cannot set up the network client")]
    Network(#[from] crate::adapters::network::BuildNetworkError),
    #[error("cannot apply --simulate")]
    Simulate(#[from] BadSetting),
}

/// What the agent passes to a runtime that it opens.
pub(crate) struct RuntimeConfig<'a> {
    pub(crate) root: &'a Path,
    /// The log directory of containers that a container runtime runs.
    pub(crate) logs: &'a Path,
    pub(crate) addresses: HostIps,
    pub(crate) clock: &'a Arc<dyn Clock>,
    pub(crate) name: &'a RuntimeName,
    pub(crate) metrics: &'a Metrics,
    pub(crate) events: &'a Arc<EventLog>,
    /// The soft limit on open files that containers get, if the agent raised its own.
    pub(crate) open_files: Option<u64>,
    /// What pods may use together: CPU in thousandths of a core, and memory in bytes.
    pub(crate) enforced: Option<(i64, i64)>,
    /// The secrets of image pulls.
    pub(crate) pull_secrets: Arc<dyn PullSecrets>,
    /// The service accounts of pods, if the node has an API server.
    pub(crate) accounts: Option<Arc<dyn ServiceAccounts>>,
}

/// The ports of an open runtime.
pub(crate) struct RuntimePorts {
    pub(crate) runtime: Arc<dyn ContainerRuntime>,
    /// Present if the runtime pulls images.
    pub(crate) images: Option<Arc<dyn ImageStore>>,
    pub(crate) network: Arc<dyn NetworkClient>,
    /// Present if pods have cgroups of their own.
    pub(crate) cgroups: Option<Arc<dyn PodCgroups>>,
    /// Present if containers write logs that the agent rotates.
    pub(crate) log_writer: Option<Arc<dyn WritesLogs>>,
    /// Present if a kubelet may have started pods in the runtime.
    pub(crate) adoption: Option<Adoption>,
    /// Opens commands, attached containers and forwarded ports.
    pub(crate) streams: Arc<dyn StreamingRuntime>,
    /// Measures containers.
    pub(crate) stats: Arc<dyn RuntimeStats>,
    /// Present if the runtime may write checkpoints of containers.
    pub(crate) checkpoints: Option<Arc<dyn Checkpoints>>,
    /// Whether the runtime supports strict supplemental groups.
    pub(crate) strict_groups: Box<dyn Fn() -> bool + Send + Sync>,
}

/// The checkpoints of a container runtime.
struct RuntimeCheckpoints(Arc<crate::adapters::cri::CriRuntime>);

impl Checkpoints for RuntimeCheckpoints {
    fn checkpoint<'a>(
        &'a self,
        container: &'a ContainerId,
        file: &'a str,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<PathBuf, RuntimeError>> {
        self.0.checkpoint(container, file, timeout).boxed()
    }
}

impl RuntimePorts {
    /// Opens the runtime that `--runtime` names.
    ///
    /// # Errors
    /// [`OpenRuntimeError`] if the runtime cannot be used.
    pub(crate) async fn open(args: &RunArgs, node: RuntimeConfig<'_>) -> Result<Self, OpenRuntimeError> {
        let RuntimeConfig {
            root,
            logs,
            addresses,
            clock,
            name,
            metrics,
            events,
            open_files,
            enforced,
            pull_secrets,
            accounts,
        } = node;
        match args.runtime {
            Runtime::Cri(ref endpoint) => {
                use crate::adapters::adoption::AdoptedPods;
                use crate::adapters::cri::{Allocatable, CriConfig, CriRuntime, NodeSettings};
                use crate::adapters::network::Network;
                let adopted = Arc::new(AdoptedPods::load(root, args.node_settings.adopt_kubelet_pods)?);
                let allocatable = enforced.map(|(cpu_millis, memory_bytes)| Allocatable { cpu_millis, memory_bytes });
                let runtime = Arc::new(CriRuntime::open(CriConfig {
                    endpoint: endpoint.clone(),
                    root: root.to_owned(),
                    logs: logs.join("pods"),
                    log_links: logs.join("containers"),
                    registry_config: args.images.registry_config.clone(),
                    pull_secrets,
                    credential_providers: credential_providers(args, accounts, clock, metrics).await?,
                    parallel_pulls: args.images.max_parallel_image_pulls,
                    name: name.clone(),
                    metrics: metrics.clone(),
                    settings: NodeSettings { allocatable, ..(&*args.node_settings).into() },
                    runtime_classes: Arc::new(args.node_settings.runtime_classes()),
                    events: events.clone(),
                    verification: args.images.verification(),
                    adopted: adopted.clone(),
                    cdi_directories: args.cdi_spec_dirs.clone(),
                })?);
                runtime.check().await?;
                let features = runtime.clone();
                Ok(RuntimePorts {
                    strict_groups: Box::new(move || features.supports_strict_groups()),
                    images: Some(runtime.clone()),
                    streams: runtime.clone(),
                    stats: runtime.clone(),
                    checkpoints: Some(Arc::new(RuntimeCheckpoints(runtime.clone()))),
                    cgroups: Some(runtime.clone()),
                    log_writer: Some(runtime.clone()),
                    adoption: Some(Adoption { pods: adopted, runtime: runtime.clone() }),
                    runtime,
                    network: Arc::new(Network::new()?),
                })
            }
            Runtime::Process => {
                use crate::adapters::network::Network;
                use crate::adapters::process::{ProcessConfig, ProcessRuntime};
                let cdi_directories = args.cdi_spec_dirs.clone();
                let refuse_ephemeral_root = args.registration.refuses_root_pods();
                let config = ProcessConfig::new(root);
                let config = ProcessConfig { addresses, refuse_ephemeral_root, open_files, cdi_directories, ..config };
                let runtime = Arc::new(ProcessRuntime::open(config).await?);
                let network = Arc::new(Network::new()?);
                Ok(RuntimePorts {
                    log_writer: Some(runtime.clone()),
                    streams: runtime.clone(),
                    stats: runtime.clone(),
                    checkpoints: None,
                    runtime,
                    images: None,
                    network,
                    cgroups: None,
                    adoption: None,
                    // A process has the groups of its pod and no others.
                    strict_groups: Box::new(|| true),
                })
            }
            Runtime::Simulated => {
                use crate::adapters::simulated::SimulatedRuntime;
                let mut config = SimulatedConfig { clock: clock.clone(), ..SimulatedConfig::default() };
                args.simulate.iter().try_for_each(|simulate| simulate.apply(&mut config))?;
                let runtime = SimulatedRuntime::new(config);
                let network = Arc::new(runtime.network());
                Ok(RuntimePorts {
                    runtime: Arc::new(runtime),
                    images: None,
                    network,
                    streams: Arc::new(NoStreams),
                    stats: Arc::new(NoStats),
                    checkpoints: None,
                    cgroups: None,
                    log_writer: None,
                    adoption: None,
                    strict_groups: Box::new(|| true),
                })
            }
        }
    }
}

/// The plugins that the flags name.
async fn credential_providers(
    args: &RunArgs,
    accounts: Option<Arc<dyn ServiceAccounts>>,
    clock: &Arc<dyn Clock>,
    metrics: &Metrics,
) -> Result<Arc<dyn CredentialProviders>, OpenRuntimeError> {
    use crate::adapters::credentials::{CredentialPlugins, PluginsConfig};
    let Some((configuration, directory)) = args.images.credential_providers() else {
        return Ok(Arc::new(NoCredentialProviders));
    };
    let (clock, metrics) = (clock.clone(), metrics.image_credentials.clone());
    let plugins = CredentialPlugins::open(PluginsConfig { configuration, directory, accounts, clock, metrics }).await?;
    Ok(Arc::new(plugins))
}
