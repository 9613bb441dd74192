//! The simulated runtime: [`ContainerRuntime`](podwright_actors::ports::ContainerRuntime) wholly in memory.
//!
//! Nothing is run. Pods get an address, start, end, fail, restart and stop as their annotations say, in tokio's time:
//! a node agent with many thousands of pods on one machine, or a test of days in milliseconds under
//! `tokio::time::pause()`. Everything above the runtime is the real node: workers, plans, backoffs, probes, statuses.
//!
//! ```
//! use std::time::Duration;
//! use podwright::adapters::simulated::{Latency, RunFor, SimulatedConfig, SimulatedRuntime};
//!
//! let mut config = SimulatedConfig { seed: 7, ..SimulatedConfig::default() };
//! config.defaults.run_for = RunFor::Time(Latency::exactly(Duration::from_secs(5)));
//! config.defaults.set("start-latency", "10ms..50ms")?;
//! let runtime = SimulatedRuntime::new(config);
//! let network = runtime.network();
//! # let _ = network;
//! # Ok::<(), podwright::adapters::simulated::BadSetting>(())
//! ```
//!
//! **What a pod does** is a [`Behaviour`]: the defaults, changed by annotations that begin with [`ANNOTATION_PREFIX`].
//! A container whose pod has an annotation that cannot be followed is not created (`CreateContainerConfigError`), and the
//! reason names the annotation, its value and what to write instead.
//!
//! **Chance** comes from one seed, the pod's UID, the container's name and the number of the attempt, and from nothing
//! else: a run repeats whatever the order in which pods get their turn. Pods whose UIDs are new behave anew.
//!
//! **Probes and hooks.** A command in a container ends at once with `exec-exit-code`. Over HTTP, TCP and gRPC nothing is
//! called: [`SimulatedNetwork`] answers in the pod's place, with success unless `network-failures` says otherwise.
//!
//! **What is not there.** No logs, no images: a pull takes its time and is done. State is in memory: an agent that
//! starts again finds nothing running, and starts its pods anew.

mod behaviour;
mod draw;
mod network;
mod runtime;
mod table;

use std::fmt;
use std::sync::Arc;

use podwright_actors::ports::{Clock, TokioClock};

pub use behaviour::{
    ANNOTATION_PREFIX, AnnotationProblem, BadAnnotation, BadSetting, Behaviour, Latency, RunFor, Share, StopLatency,
};
pub use network::SimulatedNetwork;
pub use runtime::SimulatedRuntime;

/// Settings of a simulated runtime.
#[derive(Clone)]
pub struct SimulatedConfig {
    /// What pods do unless their annotations say otherwise.
    pub defaults: Behaviour,
    /// Of what random choices are made.
    pub seed: u64,
    /// Tells when things happen; the node's own. It must go with tokio's time, in which the runtime waits.
    pub clock: Arc<dyn Clock>,
}

impl Default for SimulatedConfig {
    fn default() -> Self {
        SimulatedConfig { defaults: Behaviour::default(), seed: 0, clock: Arc::new(TokioClock::new()) }
    }
}

impl SimulatedConfig {
    /// Sets `seed`, or one of the defaults by its key.
    ///
    /// # Errors
    /// [`BadSetting`] as [`Behaviour::set`] says.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), BadSetting> {
        if key != "seed" {
            return self.defaults.set(key, value);
        }
        let bad = |_| BadSetting::Value { key: key.into(), value: value.into(), expected: "a whole number" };
        self.seed = value.parse().map_err(bad)?;
        Ok(())
    }
}

impl fmt::Debug for SimulatedConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimulatedConfig")
            .field("defaults", &self.defaults)
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}
