//! The runtimes that `--runtime` chooses from.

use std::path::Path;
use std::str::FromStr;

use crate::actors::admission::NodeCapacity;
use crate::actors::eviction::EvictionPolicy;
use crate::actors::ports::RuntimeName;
#[cfg(feature = "cri")]
use crate::adapters::cri::{Endpoint, ParseEndpointError};
#[cfg(feature = "simulated")]
use crate::adapters::simulated::{BadSetting, SimulatedConfig};
use crate::adapters::storage::FileStorage;
use crate::agent::machine::{self, Reservation};

/// A simulated node has a million cores and one exbibyte of memory, so that no pod is rejected for a lack of resources.
#[cfg(feature = "simulated")]
const SIMULATED_CPU_MILLIS: i64 = 1_000_000_000;
#[cfg(feature = "simulated")]
const SIMULATED_MEMORY: i64 = 1 << 60;

/// A runtime of this build. A build without features has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Runtime {
    /// Containers are processes of this machine.
    #[cfg(feature = "process")]
    Process,
    /// A container runtime runs the containers. It serves the CRI API at this endpoint.
    #[cfg(feature = "cri")]
    Cri(Endpoint),
    /// Pods exist only in memory.
    #[cfg(feature = "simulated")]
    Simulated,
}

/// The values of `--runtime` in this build.
const AVAILABLE: &[&str] = &[
    #[cfg(feature = "process")]
    "process",
    #[cfg(feature = "cri")]
    "cri=unix:///PATH",
    #[cfg(feature = "simulated")]
    "simulated",
];

impl Runtime {
    /// What pods may request on a machine with this capacity. Simulated pods use no resources, so a simulated node has a larger
    /// capacity than any pod requests.
    #[cfg_attr(
        not(any(feature = "process", feature = "cri")),
        expect(unused_variables, reason = "no runtime uses the resources of the machine")
    )]
    pub(crate) fn allocatable(
        &self,
        machine: NodeCapacity,
        reservations: &[Reservation],
        eviction: &EvictionPolicy,
    ) -> NodeCapacity {
        let of_machine = machine::allocatable(machine.clone(), reservations, eviction);
        match *self {
            #[cfg(feature = "process")]
            Runtime::Process => of_machine,
            #[cfg(feature = "cri")]
            Runtime::Cri(_) => of_machine,
            #[cfg(feature = "simulated")]
            Runtime::Simulated => NodeCapacity::new(SIMULATED_CPU_MILLIS, SIMULATED_MEMORY, machine.pods),
        }
    }

    /// The whole capacity of the node, of which pods may request a part.
    #[cfg(feature = "kube")]
    #[cfg_attr(
        not(any(feature = "process", feature = "cri", feature = "simulated")),
        expect(unused_variables, reason = "without a runtime there is no capacity")
    )]
    pub(crate) fn capacity(&self, machine: NodeCapacity) -> NodeCapacity {
        match *self {
            #[cfg(feature = "process")]
            Runtime::Process => machine,
            #[cfg(feature = "cri")]
            Runtime::Cri(_) => machine,
            #[cfg(feature = "simulated")]
            Runtime::Simulated => NodeCapacity::new(SIMULATED_CPU_MILLIS, SIMULATED_MEMORY, machine.pods),
        }
    }

    /// Whether the agent limits what all pods use together.
    #[cfg(feature = "kube")]
    pub(crate) fn limits_all_pods(&self) -> bool {
        match *self {
            #[cfg(feature = "process")]
            Runtime::Process => false,
            #[cfg(feature = "cri")]
            Runtime::Cri(_) => true,
            #[cfg(feature = "simulated")]
            Runtime::Simulated => false,
        }
    }

    /// The runtime's name, the prefix of container IDs in statuses. A container runtime reports its name itself.
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

    /// Adapts the storage of pod directories and volumes to the runtime.
    #[cfg_attr(
        not(feature = "cri"),
        expect(unused_variables, reason = "only a container runtime has a log directory of its own")
    )]
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

    /// Whether pods exist on this machine: they use its disk, and run on after the end of an agent that does not stop them.
    /// Simulated pods are in the memory of the agent.
    pub(crate) fn has_pods_on_machine(&self) -> bool {
        match *self {
            #[cfg(feature = "process")]
            Runtime::Process => true,
            #[cfg(feature = "cri")]
            Runtime::Cri(_) => true,
            #[cfg(feature = "simulated")]
            Runtime::Simulated => false,
        }
    }

    /// Whether an agent that was started in a terminal stops its pods when it ends. The pods of a container runtime belong to
    /// the machine, not to the terminal.
    pub(crate) fn stops_pods_in_terminal(&self) -> bool {
        match *self {
            #[cfg(feature = "process")]
            Runtime::Process => true,
            #[cfg(feature = "cri")]
            Runtime::Cri(_) => false,
            #[cfg(feature = "simulated")]
            Runtime::Simulated => true,
        }
    }
}

impl FromStr for Runtime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        #[cfg(feature = "cri")]
        if text == "cri" {
            return Err("the endpoint is missing: write cri=unix:///run/containerd/containerd.sock".to_owned());
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
        let available = AVAILABLE.iter().map(|runtime| format!("`{runtime}`")).collect::<Vec<_>>();
        let available = if available.is_empty() { "no runtime".to_owned() } else { available.join(", ") };
        Err(match text.split('=').next().unwrap_or_default() {
            kind @ ("process" | "cri" | "simulated") if !AVAILABLE.iter().any(|runtime| runtime.starts_with(kind)) => {
                format!("this build has {available}: build it with the feature `{kind}`")
            }
            _ => format!("no such runtime: this build has {available}"),
        })
    }
}

/// A validated value of `--simulate`: one default for simulated pods.
#[cfg(feature = "simulated")]
#[derive(Clone, Debug)]
pub(crate) struct SimulatedDefault {
    key: String,
    value: String,
}

#[cfg(feature = "simulated")]
impl SimulatedDefault {
    /// Sets the default in `config`.
    ///
    /// # Errors
    /// [`BadSetting`], which does not occur after parsing: `from_str` has applied the same setting.
    pub(crate) fn apply(&self, config: &mut SimulatedConfig) -> Result<(), BadSetting> {
        config.set(&self.key, &self.value)
    }
}

#[cfg(feature = "simulated")]
impl FromStr for SimulatedDefault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (key, value) = text.split_once('=').ok_or("not of the form KEY=VALUE: write it like run-for=5s")?;
        let simulate = SimulatedDefault { key: key.trim().to_owned(), value: value.trim().to_owned() };
        simulate.apply(&mut SimulatedConfig::default()).map_err(|error| error.to_string())?;
        Ok(simulate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_runtime_is_refused_with_the_available_ones() {
        for text in ["docker", "", "process=x"] {
            let error = text.parse::<Runtime>().unwrap_err();
            assert!(AVAILABLE.iter().all(|runtime| error.contains(&format!("`{runtime}`"))), "{error}");
        }
        for text in AVAILABLE {
            assert!(text.parse::<Runtime>().is_ok(), "{text}");
        }
    }

    #[cfg(feature = "cri")]
    #[test]
    fn a_bad_cri_endpoint_is_refused_with_an_example() {
        for text in ["cri", "cri=", "cri=/", "cri=containerd", "cri=tcp://127.0.0.1:1234"] {
            let error = text.parse::<Runtime>().unwrap_err();
            assert!(error.contains("unix:///run/containerd/containerd.sock"), "{text}: {error}");
        }
    }

    #[cfg(feature = "simulated")]
    #[test]
    fn a_bad_simulate_setting_is_refused_with_a_remedy() {
        for (text, says) in [
            ("run-for", "KEY=VALUE"),
            ("run-for=soon", "write a duration"),
            ("run=5s", "write one of"),
            ("seed=x", "a whole number"),
        ] {
            let error = text.parse::<SimulatedDefault>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
        for text in ["seed=1", "run-for = 5s..10s", "exits=0.1"] {
            assert!(text.parse::<SimulatedDefault>().is_ok(), "{text}");
        }
    }
}
