mod observed;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use podwright_fixtures::containers::{Is, status};
use podwright_metrics::Metrics;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::admission::Requests;
use crate::ports::{CgroupLimits, CheckpointWriter, NoCheckpoint, OpenCheckpoint, SystemClock};
use crate::testing::pod;

/// The records that an earlier agent wrote.
struct Written(Vec<String>);

impl Checkpoint for Written {
    fn open(&self) -> Result<OpenCheckpoint, CheckpointError> {
        Ok(OpenCheckpoint { records: self.0.clone(), writer: Box::new(NoCheckpoint) })
    }
}

struct NoEvents;

impl EventRecorder for NoEvents {
    fn record(&self, _: &Arc<PodObject>, _: PodEvent) {}
}

fn of_cpu(cpu: &str) -> Arc<PodObject> {
    let resources = json!({"requests": {"cpu": cpu}});
    pod("p").spec(|spec| spec.containers[0].resources = Some(serde_json::from_value(resources).unwrap())).build()
}

fn open(records: &[Value]) -> (Arc<DesiredPods>, Resizes) {
    let desired = Arc::new(DesiredPods::new([]));
    let written = Written(records.iter().map(Value::to_string).collect());
    let clock = Arc::new(SystemClock::new());
    let resizes = Resizes::open(&written, desired.clone(), clock, Arc::new(NoEvents), Metrics::new().resize).unwrap();
    (desired, resizes)
}

fn record(allocated: &str, in_use: &Value) -> Value {
    json!({
        "uid": "p", "allocated": {"containers": {"main": {"requests": {"cpu": allocated}}}},
        "in_use": {"containers": in_use, "cgroup": {"cpu_request": 1000, "cpu_limit": null, "memory_limit": null}},
    })
}

/// A store whose first write panics.
#[derive(Default)]
struct Panicking(Arc<AtomicUsize>);

impl Checkpoint for Panicking {
    fn open(&self) -> Result<OpenCheckpoint, CheckpointError> {
        Ok(OpenCheckpoint { records: Vec::new(), writer: Box::new(Panicking(self.0.clone())) })
    }
}

impl CheckpointWriter for Panicking {
    fn append(&self, _: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        async { Ok(()) }.boxed()
    }

    fn save(&self, _: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        assert!(self.0.fetch_add(1, Ordering::Relaxed) > 0, "the first write panics");
        async { Ok(()) }.boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn write_that_panics_is_tried_again() {
    let (store, desired, clock) = (Panicking::default(), Arc::new(DesiredPods::new([])), Arc::new(SystemClock::new()));
    let resizes = Resizes::open(&store, desired, clock, Arc::new(NoEvents), Metrics::new().resize).unwrap();
    resizes.admitted(&of_cpu("1"));
    let stop = CancellationToken::new();
    let written = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        stop.cancel();
    };
    tokio::join!(resizes.run(&stop), written);
    assert_eq!(store.0.load(Ordering::Relaxed), 2);
}

// A pod becomes a desired pod, and leaves its source, while the file is written.
#[test]
fn every_snapshot_of_the_file_has_the_pod_that_is_delivered_meanwhile() {
    let (desired, resizes) = open(&[]);
    let (pod, ends) = (of_cpu("1"), AtomicBool::new(false));
    resizes.removed(&pod);
    let missing = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                let mut state = desired.lock();
                state.pods.put(pod.clone());
                resizes.admitted(&pod);
                drop(state);
                let mut state = desired.lock();
                state.pods.remove(&pod);
                resizes.removed(&pod);
            }
        });
        let missing = (0..20_000).find(|_| resizes.records().len() != 1);
        ends.store(true, Ordering::Relaxed);
        missing
    });
    assert_eq!(missing, None);
}

#[test]
fn loaded_resources_in_use_that_equal_the_allocated_ones_are_no_resize() {
    let runs = status(&[("main", Is::Running)]);
    let of = |cpu: &str| json!({"main": {"requests": {"cpu": cpu}}});
    for (in_use, in_progress) in [(of("1000m"), false), (json!({"gone": {}}), false), (of("2"), true)] {
        let (_, resizes) = open(&[record("1", &in_use)]);
        let pod = resizes.take(None, of_cpu("1"));
        resizes.settle(&pod, &runs, true);
        let resize = resizes.get(pod.uid());
        assert_eq!(resize.is_some_and(|resize| resize.actuated.is_some()), in_progress, "{in_use}");
    }
}

// Pod-level requests replace those of the containers, so that the pod has less as soon as they are allocated.
#[test]
fn larger_pod_level_resources_count_until_the_resize_is_complete() {
    let whole = |cpu: &str| {
        let resources = json!({"requests": {"cpu": cpu}});
        pod("p").spec(|spec| spec.resources = Some(serde_json::from_value(resources).unwrap())).build()
    };
    let counted =
        |resizes: &Resizes, pod: &Arc<PodObject>| resizes.in_use(pod).map(|pod| Requests::of(&pod).get("cpu"));
    let (large, small, middle) = (whole("3"), whole("1"), whole("2"));
    let (desired, resizes) = open(&[]);
    resizes.allocate(&large, &small);
    assert_eq!(counted(&resizes, &small), Some(3000));
    resizes.allocate(&small, &middle);
    assert_eq!(counted(&resizes, &middle), Some(3000), "the first resize is not complete");

    // The next agent finds them in the file. A file without them is one of an older agent.
    desired.lock().pods.put(middle.clone());
    let mut records: Vec<Value> = resizes.records().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (_, next) = open(&records);
    let loaded = next.take(None, middle);
    assert_eq!(counted(&next, &loaded), Some(3000));
    records[0]["in_use"].as_object_mut().unwrap().remove("pod_level").unwrap();
    let (_, older) = open(&records);
    assert_eq!(counted(&older, &older.take(None, loaded.clone())), None);

    let limits = CgroupLimits { cpu_request: Some(2000), ..CgroupLimits::default() };
    next.done(loaded.uid(), &Step::Cgroup(limits));
    next.settle(&loaded, &status(&[("main", Is::Running)]), true);
    assert_eq!(counted(&next, &loaded), None);
}

/// A store whose writes wait until they are allowed.
#[derive(Clone, Default)]
struct Held(Arc<Notify>);

impl Checkpoint for Held {
    fn open(&self) -> Result<OpenCheckpoint, CheckpointError> {
        Ok(OpenCheckpoint { records: Vec::new(), writer: Box::new(self.clone()) })
    }
}

impl CheckpointWriter for Held {
    fn append(&self, _: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        async { Ok(()) }.boxed()
    }

    fn save(&self, _: Vec<Arc<str>>) -> BoxFuture<'_, Result<(), CheckpointError>> {
        async {
            self.0.notified().await;
            Ok(())
        }
        .boxed()
    }
}

// No container of the pod runs, so that nothing is left of the resize once it is allocated.
#[tokio::test(start_paused = true)]
async fn container_starts_once_the_file_has_its_resized_allocation() {
    let (store, desired, clock) = (Held::default(), Arc::new(DesiredPods::new([])), Arc::new(SystemClock::new()));
    let resizes = Resizes::open(&store, desired, clock, Arc::new(NoEvents), Metrics::new().resize).unwrap();
    let (pod, stop) = (of_cpu("2"), CancellationToken::new());
    resizes.allocate(&of_cpu("1"), &pod);
    resizes.settle(&pod, &status(&[("main", Is::Exited(0))]), false);
    assert_eq!(resizes.get(pod.uid()).map(|resize| resize.actuated.is_some()), Some(false));
    let starts = async {
        let mut starts = std::pin::pin!(resizes.starts(&pod, "main"));
        let early = timeout(Duration::from_secs(5), &mut starts).await;
        assert!(early.is_err(), "the container starts although no file has its allocation");
        store.0.notify_one();
        assert_eq!(starts.await, Ok(()));
        assert!(resizes.get(pod.uid()).is_none());
        assert_eq!(resizes.starts(&pod, "main").await, Ok(()), "the second start waits for nothing");
        stop.cancel();
    };
    tokio::join!(resizes.run(&stop), starts);
}
