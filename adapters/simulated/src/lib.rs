//! The simulated runtime: a [`ContainerRuntime`](podwright_ports::ContainerRuntime) in memory.
//!
//! It runs no processes. Pods get addresses, and containers start, end, fail and stop as the pod's annotations say, in
//! tokio's time. So a machine can simulate a node with many thousands of pods, and with `tokio::time::pause()` a test that
//! spans days takes milliseconds. All other parts of the node are real: workers, plans, backoffs, probes and statuses.
//!
//! ```
//! use std::time::Duration;
//! use podwright_simulated::{Latency, RunFor, SimulatedConfig, SimulatedRuntime};
//!
//! let mut config = SimulatedConfig { seed: 7, ..SimulatedConfig::default() };
//! config.defaults.run_for = RunFor::Time(Latency::exactly(Duration::from_secs(5)));
//! config.defaults.set("start-latency", "10ms..50ms")?;
//! let runtime = SimulatedRuntime::new(config);
//! let network = runtime.network();
//! # let _ = network;
//! # Ok::<(), podwright_simulated::BadSetting>(())
//! ```
//!
//! **Behaviour.** What a pod does is a [`Behaviour`]: the defaults, changed by annotations that begin with
//! [`ANNOTATION_PREFIX`]. If an annotation is invalid, the pod's containers are not created (`CreateContainerConfigError`),
//! and the message names the annotation, its value and the remedy.
//!
//! **Randomness.** A random choice depends on the seed, the pod's UID, the container's name and the number of the attempt,
//! and on nothing else. So a run with the same seed and UIDs repeats, even if the pods' tasks run in another order.
//!
//! **Probes and hooks.** A command in a container ends at once with the exit code `exec-exit-code`. HTTP, TCP and gRPC calls
//! are not made: [`SimulatedNetwork`] answers for the pod, with success unless `network-failures` says otherwise.
//!
//! **Limits.** There are no logs and no images: a pull only takes time. All state is in memory: after a restart the agent
//! finds no containers and starts its pods again.
//!
//! # Parts
//!
//! - [`SimulatedRuntime`]: the runtime, with the settings of [`SimulatedConfig`].
//! - [`SimulatedNetwork`]: the [`NetworkClient`](podwright_ports::NetworkClient) of its pods.
//! - [`Behaviour`]: what a pod and its containers do, with the values [`Latency`], [`RunFor`], [`Share`] and [`StopLatency`].
//!
//! # Arrows
//!
//! The crate uses `podwright-model` and `podwright-ports`. The agent, the simulation, and the tests and
//! benches of the node use it.

mod behaviour;
mod draw;
mod network;
mod runtime;
mod table;

use std::fmt;
use std::sync::Arc;

use podwright_ports::{Clock, TokioClock};

pub use behaviour::{
    ANNOTATION_PREFIX, AnnotationProblem, BadAnnotation, BadSetting, Behaviour, Latency, RunFor, Share, StopLatency,
};
pub use network::SimulatedNetwork;
pub use runtime::SimulatedRuntime;

/// Settings of a simulated runtime.
#[derive(Clone)]
pub struct SimulatedConfig {
    /// What pods do, unless their annotations say otherwise.
    pub defaults: Behaviour,
    /// The seed of all random choices.
    pub seed: u64,
    /// The clock for the times in statuses. It must be the node's clock and follow tokio's time, in which the runtime waits.
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
    /// [`BadSetting`] if there is no such key, or the value is not valid for it. Then nothing is changed.
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
