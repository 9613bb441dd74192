//! One run: all pods prepare their claims at once, and then all release them at once.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use podwright::adapters::checkpoint::ClaimCheckpoint;
use podwright_actors::claims::{ClaimFeatures, ClaimManager, ClaimPorts};
use podwright_metrics::Metrics;
use podwright_model::pod::PodObject;
use podwright_ports::{ResourcePhase, SystemClock};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tokio_util::sync::CancellationToken;

use crate::figures::file;
use crate::ports::{BenchClaims, BenchDrivers, CountedFile, Service, Written};

/// What a run found.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) prepare: Phase,
    pub(crate) release: Phase,
}

/// The operations of one kind.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Phase {
    /// From the begin of an operation to its end, in milliseconds.
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    /// The same of the calls in their drivers: queue and latency.
    pub(crate) driver_p50_ms: f64,
    pub(crate) driver_p99_ms: f64,
    /// The time until all operations had ended.
    pub(crate) all_ms: f64,
    /// Per operation: what was added to the journal.
    pub(crate) records_per_operation: f64,
    pub(crate) bytes_per_operation: f64,
    /// The number of times that records were added. One write has the records of all operations that wait for it.
    pub(crate) appends: u64,
    /// The number of times that the whole file was written in place of an append, and the bytes of all of them.
    pub(crate) saves: u64,
    pub(crate) saved_bytes: u64,
}

fn pods(n: usize) -> Vec<Arc<PodObject>> {
    let pod = |i: usize| {
        let name = format!("pod-{i:06}");
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "bench", "uid": format!("{i:08x}-0000-4000-8000-{i:012x}")},
            "spec": {
                "containers": [{"name": "main", "image": "i", "resources": {"claims": [{"name": "device"}]}}],
                "resourceClaims": [{"name": "device", "resourceClaimName": name}],
            },
        }))
        .expect("the fields above are those of a pod");
        PodObject::new(pod).expect("name, namespace, UID and spec are set above")
    };
    (0..n).map(pod).collect()
}

fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a thread of its own needs no resource that can be lacking")
}

/// Runs a workload with `n` pods. The manager has a thread of its own, as in the agent.
pub(crate) fn run(service: Service, n: usize) -> Figures {
    // The last pod makes the agent write its first file, which is whole.
    let all = pods(n + 1);
    let (pods, first) = (&all[..n], &all[n]);
    let directory = file("podwright-claims-bench");
    // Left by a run that was killed.
    let _missing = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).expect("the target directory is writable, or cargo could not build");
    let drivers = Arc::new(BenchDrivers::new(service));
    let written = Arc::<Mutex<Written>>::default();
    let ports = ClaimPorts {
        api: Some(Arc::new(BenchClaims::of(
            all.iter().map(|pod| (pod.metadata().name.as_deref().unwrap_or_default(), pod.uid().to_string())),
        ))),
        drivers: drivers.clone(),
        checkpoint: Arc::new(CountedFile { file: ClaimCheckpoint::new(directory.clone()), written: written.clone() }),
        clock: Arc::new(SystemClock::new()),
        metrics: Metrics::new().dra.clone(),
    };
    let (manager, tasks) = ClaimManager::open(ports, ClaimFeatures::default()).expect("the file is new");
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let server = thread::spawn(move || runtime().block_on(tasks.run(stopped)));
    let figures = runtime().block_on(async {
        timed(manager.prepare(first)).await;
        timed(manager.release(first.uid())).await;
        let _not_measured = drivers.take_calls();
        let prepare = phase(&drivers, &written, pods.iter().map(|pod| manager.prepare(pod))).await;
        let release = phase(&drivers, &written, pods.iter().map(|pod| manager.release(pod.uid()))).await;
        Figures { prepare, release }
    });
    stop.cancel();
    server.join().expect("the tasks of the manager do not panic");
    let _leftover = std::fs::remove_dir_all(&directory);
    figures
}

async fn timed<E: std::fmt::Debug>(operation: impl Future<Output = Result<(), E>>) -> Duration {
    let begin = Instant::now();
    operation.await.expect("neither the drivers nor the file fail");
    begin.elapsed()
}

/// Performs operations all at once.
async fn phase<E: std::fmt::Debug>(
    drivers: &BenchDrivers,
    written: &Mutex<Written>,
    operations: impl Iterator<Item = impl Future<Output = Result<(), E>>>,
) -> Phase {
    let before = *written.lock();
    let begin = Instant::now();
    let took = join_all(operations.map(timed)).await;
    let all = begin.elapsed();
    let after = *written.lock();
    let (calls, count) = (drivers.take_calls(), took.len() as f64);
    Phase {
        p50_ms: percentile(&took, 50),
        p99_ms: percentile(&took, 99),
        driver_p50_ms: percentile(&calls, 50),
        driver_p99_ms: percentile(&calls, 99),
        all_ms: millis(all),
        records_per_operation: (after.appended.records - before.appended.records) as f64 / count,
        bytes_per_operation: (after.appended.bytes - before.appended.bytes) as f64 / count,
        appends: after.appended.count - before.appended.count,
        saves: after.saved.count - before.saved.count,
        saved_bytes: after.saved.bytes - before.saved.bytes,
    }
}

fn percentile(times: &[Duration], percent: usize) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    let index = (times.len() * percent).div_ceil(100).saturating_sub(1);
    times.get(index).copied().map_or(0.0, millis)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
