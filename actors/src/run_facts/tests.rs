mod abandoned;
mod disk;
mod observed;
mod property;
mod resize;
mod stops;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use podwright_fixtures::containers::{Is, run, status};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::ports::CheckpointWriter;

/// A file in memory, which the stores of several agents open one after the other.
#[derive(Clone, Default)]
struct Disk(Arc<Content>);

#[derive(Default)]
struct Content {
    records: Mutex<Vec<String>>,
    broken: AtomicBool,
    hangs: AtomicBool,
}

impl Disk {
    /// The store of the next agent, with a running writer.
    fn agent(&self) -> Arc<RunFacts> {
        let facts = Arc::new(RunFacts::open(self).unwrap());
        let writer = facts.clone();
        tokio::spawn(async move { writer.run(&CancellationToken::new()).await });
        facts
    }

    async fn write(&self, all: bool, records: Vec<Arc<str>>) -> Result<(), CheckpointError> {
        while self.0.hangs.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        if self.0.broken.load(Ordering::Relaxed) {
            return Err(CheckpointError::new("/run_facts", "no space is left"));
        }
        let mut kept = self.0.records.lock();
        if all {
            kept.clear();
        }
        kept.extend(records.iter().map(|record| record.to_string()));
        Ok(())
    }
}

impl Checkpoint for Disk {
    fn open(&self) -> Result<OpenCheckpoint, CheckpointError> {
        Ok(OpenCheckpoint { records: self.0.records.lock().clone(), writer: Box::new(self.clone()) })
    }
}

impl CheckpointWriter for Disk {
    fn save(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        self.write(true, records).boxed()
    }

    fn append(&self, records: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        self.write(false, records).boxed()
    }
}

fn uid() -> PodUid {
    "u".into()
}

/// A run that the runtime ended before its process was executed.
fn never_started(name: &str) -> ContainerStatus {
    ContainerStatus { started_at: None, reason: "StartError".into(), ..run(name, Is::Exited(128)) }
}

fn of(runs: Vec<ContainerStatus>) -> PodRuntimeStatus {
    PodRuntimeStatus { containers: runs, ..status(&[]) }
}

/// The runs of a pod that are left, and those whose starts were abandoned.
fn observe(facts: &RunFacts, pod: &str, status: &PodRuntimeStatus) -> (Vec<String>, Vec<String>) {
    let left = facts.observe(&pod.into(), Arc::new(status.clone()), Time::ZERO);
    let left = left.containers.iter().map(|run| run.id.to_string()).collect();
    let abandoned = |run: &ContainerStatus| Some(facts.abandoned(&pod.into(), run.name.as_str())?.to_string());
    (left, status.containers.iter().filter_map(abandoned).collect())
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}
