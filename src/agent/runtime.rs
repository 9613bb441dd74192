//! The runtimes that `run` can be told to use.

use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use crate::actors::admission::NodeCapacity;
use crate::actors::ports::{Clock, ContainerRuntime, ImageStore, NetworkClient, PodCgroups, RuntimeName};
#[cfg(feature = "cri")]
use crate::adapters::cri::{Endpoint, ParseEndpointError};
#[cfg(feature = "simulated")]
use crate::adapters::simulated::{BadSetting, SimulatedConfig};

use crate::adapters::log::WritesLogs;
use crate::adapters::storage::FileStorage;
use crate::metrics::Metrics;

use super::cli::RunArgs;
use super::events::EventLog;

/// A simulated node has a million cores and an exbibyte: more than any number of pods asks for.
#[cfg(feature = "simulated")]
const SIMULATED_CPU_MILLIS: i64 = 1_000_000_000;
#[cfg(feature = "simulated")]
const SIMULATED_MEMORY: i64 = 1 << 60;

/// What runs containers: those of this build, which may have none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Runtime {
    /// Processes of this machine.
    #[cfg(feature = "process")]
    Process,
    /// Containers of the runtime that listens there.
    #[cfg(feature = "cri")]
    Cri(Endpoint),
    /// Nothing.
    #[cfg(feature = "simulated")]
    Simulated,
}

/// How those of this build are written.
const HERE: &[&str] = &[
    #[cfg(feature = "process")]
    "process",
    #[cfg(feature = "cri")]
    "cri=unix:///PATH",
    #[cfg(feature = "simulated")]
    "simulated",
];

impl Runtime {
    /// What pods can have of what the machine has. Simulated ones use nothing and must not be refused for want of it.
    #[cfg_attr(
        not(any(feature = "process", feature = "cri", feature = "simulated")),
        expect(unused_variables, reason = "there is no runtime")
    )]
    pub(crate) fn capacity(&self, machine: NodeCapacity) -> NodeCapacity {
        match *self {
            #[cfg(feature = "process")]
            Runtime::Process => machine,
            #[cfg(feature = "cri")]
            Runtime::Cri(_) => machine,
            #[cfg(feature = "simulated")]
            Runtime::Simulated => {
                NodeCapacity { cpu_millis: SIMULATED_CPU_MILLIS, memory_bytes: SIMULATED_MEMORY, ..machine }
            }
        }
    }

    /// Its name in statuses; a container runtime tells its own.
    pub(crate) fn name(&self) -> RuntimeName {
        match *self {
            #[cfg(feature = "process")]
            Runtime::Process => "process".into(),
            #[cfg(feature = "cri")]
            Runtime::Cri(_) => RuntimeName::default(),
            #[cfg(feature = "simulated")]
            Runtime::Simulated => "simulated".into(),
        }
    }

    /// How directories and volumes are kept for it.
    #[cfg_attr(not(feature = "cri"), expect(unused_variables, reason = "no other runtime has logs of its own"))]
    pub(crate) fn storage(&self, storage: FileStorage, logs: &Path) -> FileStorage {
        match *self {
            #[cfg(feature = "process")]
            Runtime::Process => storage,
            #[cfg(feature = "cri")]
            Runtime::Cri(_) => {
                use crate::adapters::storage::PodLogs;
                storage
                    .for_mounted_volumes()
                    .with_logs(PodLogs { pods: logs.join("pods"), links: logs.join("containers") })
            }
            #[cfg(feature = "simulated")]
            Runtime::Simulated => storage.without_mounts(),
        }
    }

    /// Whether its containers go on without the agent, as those of a node do: then the agent's end stops none.
    pub(crate) fn outlives_agent(&self) -> bool {
        match *self {
            #[cfg(feature = "process")]
            Runtime::Process => false,
            #[cfg(feature = "cri")]
            Runtime::Cri(_) => true,
            #[cfg(feature = "simulated")]
            Runtime::Simulated => false,
        }
    }
}

impl FromStr for Runtime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        #[cfg(feature = "cri")]
        if text == "cri" {
            return Err("say where it listens: cri=unix:///run/containerd/containerd.sock".to_owned());
        }
        #[cfg(feature = "cri")]
        if let Some(endpoint) = text.strip_prefix("cri=") {
            return endpoint.parse().map(Runtime::Cri).map_err(|error: ParseEndpointError| error.to_string());
        }
        match text {
            #[cfg(feature = "process")]
            "process" => return Ok(Runtime::Process),
            #[cfg(feature = "simulated")]
            "simulated" => return Ok(Runtime::Simulated),
            _ => {}
        }
        let here = HERE.iter().map(|runtime| format!("`{runtime}`")).collect::<Vec<_>>();
        let here = if here.is_empty() { "none".to_owned() } else { here.join(", ") };
        Err(match text.split('=').next().unwrap_or_default() {
            kind @ ("process" | "cri" | "simulated") if !HERE.iter().any(|here| here.starts_with(kind)) => {
                format!("this build has {here}: build it with the feature `{kind}`")
            }
            _ => format!("there is no such runtime: this build has {here}"),
        })
    }
}

/// One default of simulated pods, known to be good.
#[cfg(feature = "simulated")]
#[derive(Clone, Debug)]
pub(crate) struct Simulate {
    key: String,
    value: String,
}

#[cfg(feature = "simulated")]
impl Simulate {
    /// Sets it.
    ///
    /// # Errors
    /// [`BadSetting`], which one that was parsed does not meet.
    pub(crate) fn apply(&self, config: &mut SimulatedConfig) -> Result<(), BadSetting> {
        config.set(&self.key, &self.value)
    }
}

#[cfg(feature = "simulated")]
impl FromStr for Simulate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (key, value) = text.split_once('=').ok_or("not of the form KEY=VALUE: write for example run-for=5s")?;
        let simulate = Simulate { key: key.trim().to_owned(), value: value.trim().to_owned() };
        simulate.apply(&mut SimulatedConfig::default()).map_err(|error| error.to_string())?;
        Ok(simulate)
    }
}

/// A runtime cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenRuntimeError {
    #[cfg(feature = "process")]
    #[error("cannot open the process runtime")]
    Process(#[from] crate::adapters::process::OpenError),
    #[cfg(feature = "cri")]
    #[error("cannot use the container runtime")]
    Cri(#[from] crate::adapters::cri::OpenError),
    #[cfg(any(feature = "process", feature = "cri"))]
    #[error("cannot make network calls")]
    Network(#[from] crate::adapters::network::BuildNetworkError),
    #[cfg(feature = "simulated")]
    #[error("--simulate")]
    Simulate(#[from] BadSetting),
}

/// What the agent has for a runtime.
pub(crate) struct MachineConfig<'a> {
    pub(crate) root: &'a Path,
    /// Where the logs of containers go that have a place of their own.
    pub(crate) logs: &'a Path,
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) clock: &'a Arc<dyn Clock>,
    pub(crate) name: &'a RuntimeName,
    pub(crate) metrics: &'a Metrics,
    pub(crate) events: &'a Arc<EventLog>,
    /// The limit on open files that containers get, where it is not the agent's.
    pub(crate) open_files: Option<u64>,
}

/// What containers run on, and what reaches them.
pub(crate) struct Machine {
    pub(crate) runtime: Arc<dyn ContainerRuntime>,
    /// If it has images.
    pub(crate) images: Option<Arc<dyn ImageStore>>,
    pub(crate) network: Arc<dyn NetworkClient>,
    /// Where pods have cgroups of their own.
    pub(crate) cgroups: Option<Arc<dyn PodCgroups>>,
    /// Whose containers write logs that are to be rotated.
    pub(crate) logs: Option<Arc<dyn WritesLogs>>,
}

impl Machine {
    /// Opens the runtime that the flags ask for.
    ///
    /// # Errors
    /// [`OpenRuntimeError`], by runtime.
    pub(crate) async fn open(args: &RunArgs, node: MachineConfig<'_>) -> Result<Self, OpenRuntimeError> {
        let MachineConfig { root, logs, addresses, clock, name, metrics, events, open_files } = node;
        // Not every runtime takes all of it.
        let _ = (root, logs, &addresses, clock, name, metrics, events, open_files);
        match args.runtime {
            #[cfg(feature = "cri")]
            Runtime::Cri(ref endpoint) => {
                use crate::actors::ports::NoPullSecrets;
                use crate::adapters::cri::{CriConfig, CriRuntime};
                use crate::adapters::network::Network;
                let runtime = Arc::new(CriRuntime::open(CriConfig {
                    endpoint: endpoint.clone(),
                    root: root.to_owned(),
                    logs: logs.join("pods"),
                    log_links: logs.join("containers"),
                    registry_config: args.images.registry_config.clone(),
                    // No API server, no secrets.
                    pull_secrets: Arc::new(NoPullSecrets),
                    parallel_pulls: args.images.max_parallel_image_pulls,
                    name: name.clone(),
                    metrics: metrics.clone(),
                    settings: (&*args.node_settings).into(),
                    runtime_classes: Arc::new(args.node_settings.runtime_classes()),
                    events: events.clone(),
                })?);
                Ok(Machine {
                    images: Some(runtime.clone()),
                    cgroups: Some(runtime.clone()),
                    logs: Some(runtime.clone()),
                    runtime,
                    network: Arc::new(Network::new()?),
                })
            }
            #[cfg(feature = "process")]
            Runtime::Process => {
                use crate::adapters::network::Network;
                use crate::adapters::process::{ProcessConfig, ProcessRuntime};
                let config = ProcessConfig { addresses, open_files, ..ProcessConfig::new(root) };
                let runtime = Arc::new(ProcessRuntime::open(config).await?);
                let network = Arc::new(Network::new()?);
                Ok(Machine { logs: Some(runtime.clone()), runtime, images: None, network, cgroups: None })
            }
            #[cfg(feature = "simulated")]
            Runtime::Simulated => {
                use crate::adapters::simulated::SimulatedRuntime;
                let mut config = SimulatedConfig { clock: clock.clone(), ..SimulatedConfig::default() };
                args.simulate.iter().try_for_each(|simulate| simulate.apply(&mut config))?;
                let runtime = SimulatedRuntime::new(config);
                let network = Arc::new(runtime.network());
                Ok(Machine { runtime: Arc::new(runtime), images: None, network, cgroups: None, logs: None })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_that_is_not_there_is_refused_with_what_is() {
        for text in ["docker", "", "process=x"] {
            let error = text.parse::<Runtime>().unwrap_err();
            assert!(HERE.iter().all(|runtime| error.contains(&format!("`{runtime}`"))), "{error}");
        }
        for text in HERE {
            assert!(text.parse::<Runtime>().is_ok(), "{text}");
        }
    }

    #[cfg(feature = "cri")]
    #[test]
    fn an_endpoint_that_is_none_is_refused_with_how_one_is_written() {
        for text in ["cri", "cri=", "cri=/", "cri=containerd", "cri=tcp://127.0.0.1:1234"] {
            let error = text.parse::<Runtime>().unwrap_err();
            assert!(error.contains("unix:///run/containerd/containerd.sock"), "{text}: {error}");
        }
    }

    #[cfg(feature = "simulated")]
    #[test]
    fn a_bad_default_of_simulated_pods_is_refused_with_a_remedy() {
        for (text, says) in [
            ("run-for", "KEY=VALUE"),
            ("run-for=soon", "write a duration"),
            ("run=5s", "write one of"),
            ("seed=x", "a whole number"),
        ] {
            let error = text.parse::<Simulate>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
        for text in ["seed=1", "run-for = 5s..10s", "exits=0.1"] {
            assert!(text.parse::<Simulate>().is_ok(), "{text}");
        }
    }
}
