//! The runtimes that `run` can be told to use.

use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use crate::actors::admission::NodeCapacity;
use crate::actors::ports::{Clock, ContainerRuntime, NetworkClient};
#[cfg(feature = "simulated")]
use crate::adapters::simulated::{BadSetting, SimulatedConfig};

use super::cli::RunArgs;

/// A simulated node has a million cores and an exbibyte: more than any number of pods asks for.
#[cfg(feature = "simulated")]
const SIMULATED_CPU_MILLIS: i64 = 1_000_000_000;
#[cfg(feature = "simulated")]
const SIMULATED_MEMORY: i64 = 1 << 60;

/// What runs containers: those of this build, which may have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runtime {
    /// Processes of this machine.
    #[cfg(feature = "process")]
    Process,
    /// Nothing.
    #[cfg(feature = "simulated")]
    Simulated,
}

impl Runtime {
    /// Those of this build.
    const ALL: &[Runtime] = &[
        #[cfg(feature = "process")]
        Runtime::Process,
        #[cfg(feature = "simulated")]
        Runtime::Simulated,
    ];

    /// What pods can have of what the machine has. Simulated ones use nothing and must not be refused for want of it.
    #[cfg_attr(
        not(any(feature = "process", feature = "simulated")),
        expect(unused_variables, reason = "there is no runtime")
    )]
    pub(crate) fn capacity(self, machine: NodeCapacity) -> NodeCapacity {
        match self {
            #[cfg(feature = "process")]
            Runtime::Process => machine,
            #[cfg(feature = "simulated")]
            Runtime::Simulated => {
                NodeCapacity { cpu_millis: SIMULATED_CPU_MILLIS, memory_bytes: SIMULATED_MEMORY, ..machine }
            }
        }
    }

    /// Its name in flags and statuses.
    pub(crate) fn name(self) -> &'static str {
        match self {
            #[cfg(feature = "process")]
            Runtime::Process => "process",
            #[cfg(feature = "simulated")]
            Runtime::Simulated => "simulated",
        }
    }
}

impl FromStr for Runtime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(runtime) = Runtime::ALL.iter().find(|runtime| runtime.name() == text) {
            return Ok(*runtime);
        }
        let here = Runtime::ALL.iter().map(|runtime| format!("`{}`", runtime.name())).collect::<Vec<_>>();
        let here = if here.is_empty() { "none".to_owned() } else { here.join(" and ") };
        Err(match text {
            "process" | "simulated" => format!("this build has {here}: build it with the feature `{text}`"),
            _ if text == "cri" || text.starts_with("cri=") => {
                format!("this build cannot talk to a CRI runtime yet: it has {here}")
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
    #[cfg(feature = "process")]
    #[error("cannot make network calls")]
    Network(#[from] crate::adapters::network::BuildNetworkError),
    #[cfg(feature = "simulated")]
    #[error("--simulate is for simulated pods: give --runtime simulated too, or leave it out")]
    NotSimulated,
    #[cfg(feature = "simulated")]
    #[error("--simulate")]
    Simulate(#[from] BadSetting),
}

/// What containers run on, and what reaches them.
pub(crate) struct Machine {
    pub(crate) runtime: Arc<dyn ContainerRuntime>,
    pub(crate) network: Arc<dyn NetworkClient>,
}

impl Machine {
    /// Opens the runtime that the flags ask for.
    ///
    /// # Errors
    /// [`OpenRuntimeError`], by runtime.
    pub(crate) async fn open(
        args: &RunArgs,
        root: &Path,
        addresses: Vec<IpAddr>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, OpenRuntimeError> {
        // Not every runtime takes all of it.
        let _ = (root, &addresses, clock);
        #[cfg(feature = "simulated")]
        if args.runtime != Runtime::Simulated && !args.simulate.is_empty() {
            return Err(OpenRuntimeError::NotSimulated);
        }
        match args.runtime {
            #[cfg(feature = "process")]
            Runtime::Process => {
                use crate::adapters::network::Network;
                use crate::adapters::process::{ProcessConfig, ProcessRuntime};
                let config = ProcessConfig { addresses, ..ProcessConfig::new(root) };
                let runtime = Arc::new(ProcessRuntime::open(config).await?);
                Ok(Machine { runtime, network: Arc::new(Network::new()?) })
            }
            #[cfg(feature = "simulated")]
            Runtime::Simulated => {
                use crate::adapters::simulated::SimulatedRuntime;
                let mut config = SimulatedConfig { clock: clock.clone(), ..SimulatedConfig::default() };
                args.simulate.iter().try_for_each(|simulate| simulate.apply(&mut config))?;
                let runtime = SimulatedRuntime::new(config);
                Ok(Machine { network: Arc::new(runtime.network()), runtime: Arc::new(runtime) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_that_is_not_there_is_refused_with_what_is() {
        for text in ["cri=unix:///run/containerd/containerd.sock", "docker"] {
            let error = text.parse::<Runtime>().unwrap_err();
            assert!(Runtime::ALL.iter().all(|runtime| error.contains(&format!("`{}`", runtime.name()))), "{error}");
        }
        for runtime in Runtime::ALL {
            assert_eq!(runtime.name().parse(), Ok(*runtime));
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
