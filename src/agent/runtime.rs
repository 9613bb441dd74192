//! The runtimes that `--runtime` chooses from.

use std::path::Path;
use std::str::FromStr;

use crate::adapters::cri::{Endpoint, ParseEndpointError};
use crate::adapters::simulated::{BadSetting, SimulatedConfig};
use crate::adapters::storage::{FileStorage, PodLogs};
use crate::agent::machine::{self, Reservation};
use podwright_actors::eviction::EvictionPolicy;
use podwright_core::admission::NodeCapacity;
use podwright_ports::RuntimeName;

/// A simulated node has a million cores and one exbibyte of memory, so that no pod is rejected for a lack of resources.
const SIMULATED_CPU_MILLIS: i64 = 1_000_000_000;
const SIMULATED_MEMORY: i64 = 1 << 60;

/// The key of the label and of the taint that say with which runtime a node runs pods.
pub(crate) const RUNTIME_KEY: &str = "podwright.dev/runtime";

/// A value of `--runtime`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Runtime {
    /// Containers are processes of this machine.
    Process,
    /// A container runtime runs the containers. It serves the CRI API at this endpoint.
    Cri(Endpoint),
    /// Pods exist only in memory.
    Simulated,
}

/// The values of `--runtime`.
const AVAILABLE: [&str; 3] = ["process", "cri=unix:///PATH", "simulated"];

impl Runtime {
    /// What pods may request on a machine with this capacity. Simulated pods use no resources, so a simulated node has a larger
    /// capacity than any pod requests.
    pub(crate) fn allocatable(
        &self,
        machine: NodeCapacity,
        reservations: &[Reservation],
        eviction: &EvictionPolicy,
    ) -> NodeCapacity {
        let of_machine = machine::allocatable(machine.clone(), reservations, eviction);
        match *self {
            Runtime::Process | Runtime::Cri(_) => of_machine,
            Runtime::Simulated => NodeCapacity::new(SIMULATED_CPU_MILLIS, SIMULATED_MEMORY, machine.pods),
        }
    }

    /// The whole capacity of the node, of which pods may request a part.
    pub(crate) fn capacity(&self, machine: NodeCapacity) -> NodeCapacity {
        match *self {
            Runtime::Process | Runtime::Cri(_) => machine,
            Runtime::Simulated => NodeCapacity::new(SIMULATED_CPU_MILLIS, SIMULATED_MEMORY, machine.pods),
        }
    }

    /// Whether the agent limits what all pods use together.
    pub(crate) fn limits_all_pods(&self) -> bool {
        match *self {
            Runtime::Cri(_) => true,
            Runtime::Process | Runtime::Simulated => false,
        }
    }

    /// The runtime's name, the prefix of container IDs in statuses. A container runtime reports its name itself.
    pub(crate) fn name(&self) -> RuntimeName {
        match *self {
            Runtime::Process => "process".into(),
            Runtime::Cri(_) => RuntimeName::default(),
            Runtime::Simulated => "simulated".into(),
        }
    }

    /// The value of the node's label [`RUNTIME_KEY`], if pods must expect something else than containers.
    pub(crate) fn label(&self) -> Option<&'static str> {
        match *self {
            Runtime::Process => Some("process"),
            Runtime::Cri(_) | Runtime::Simulated => None,
        }
    }

    /// Adapts the storage of pod directories and volumes to the runtime.
    pub(crate) fn storage(&self, storage: FileStorage, logs: &Path) -> FileStorage {
        match *self {
            Runtime::Process => storage,
            Runtime::Cri(_) => storage
                .for_mounted_volumes()
                .with_logs(PodLogs { pods: logs.join("pods"), links: logs.join("containers") }),
            Runtime::Simulated => storage.without_mounts(),
        }
    }

    /// Whether pods exist on this machine: they use its disk, and run on after the end of an agent that does not stop them.
    /// Simulated pods are in the memory of the agent.
    pub(crate) fn has_pods_on_machine(&self) -> bool {
        match *self {
            Runtime::Process | Runtime::Cri(_) => true,
            Runtime::Simulated => false,
        }
    }

    /// Whether an agent that was started in a terminal stops its pods when it ends. The pods of a container runtime belong to
    /// the machine, not to the terminal.
    pub(crate) fn stops_pods_in_terminal(&self) -> bool {
        match *self {
            Runtime::Process | Runtime::Simulated => true,
            Runtime::Cri(_) => false,
        }
    }
}

impl FromStr for Runtime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "cri" {
            return Err("the endpoint is missing: write cri=unix:///run/containerd/containerd.sock".to_owned());
        }
        if let Some(endpoint) = text.strip_prefix("cri=") {
            return endpoint.parse().map(Runtime::Cri).map_err(|error: ParseEndpointError| error.to_string());
        }
        match text {
            "process" => Ok(Runtime::Process),
            "simulated" => Ok(Runtime::Simulated),
            _ => {
                let available = AVAILABLE.map(|runtime| format!("`{runtime}`")).join(", ");
                Err(format!("no such runtime: this build has {available}"))
            }
        }
    }
}

/// A validated value of `--simulate`: one default for simulated pods.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedDefault {
    key: String,
    value: String,
}

impl SimulatedDefault {
    /// Sets the default in `config`.
    ///
    /// # Errors
    /// [`BadSetting`], which does not occur after parsing: `from_str` has applied the same setting.
    pub(crate) fn apply(&self, config: &mut SimulatedConfig) -> Result<(), BadSetting> {
        config.set(&self.key, &self.value)
    }
}

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

    #[test]
    fn a_bad_cri_endpoint_is_refused_with_an_example() {
        for text in ["cri", "cri=", "cri=/", "cri=containerd", "cri=tcp://127.0.0.1:1234"] {
            let error = text.parse::<Runtime>().unwrap_err();
            assert!(error.contains("unix:///run/containerd/containerd.sock"), "{text}: {error}");
        }
    }

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
