//! Creates many pods, kills them in a random order, and checks that no memory stays allocated for them.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use podwright_core::pod_worker::Update;
use podwright_engine::{Engine, EngineConfig, Threads};
use podwright_model::ids::PodUid;
use podwright_model::pod::{PodObject, SOURCE_ANNOTATION};
use podwright_model::time::Grace;
use podwright_ports::{HookContext, PodSyncer, RunningPod, SyncError, SyncOutcome, SyncPod, TerminatingPod};

/// The environment variable that sets the number of pods.
const COUNT: &str = "PODWRIGHT_CHURN";
const DEFAULT_COUNT: usize = 100_000;
const BATCH: usize = 2_000;
/// The number of stretches. The first one warms up the allocator, maps and channels and is not counted.
const STRETCHES: usize = 6;
/// A leak of this many bytes per pod fails the test.
const LEAK: usize = 16;

struct Nothing;

impl PodSyncer for Nothing {
    async fn sync_pod(&self, _cx: &HookContext, _work: &SyncPod) -> Result<SyncOutcome, SyncError> {
        Ok(SyncOutcome::Continue { check_at: None })
    }

    async fn sync_terminating_pod(&self, _cx: &HookContext, _work: &TerminatingPod) -> Result<(), SyncError> {
        Ok(())
    }

    async fn sync_terminating_runtime_pod(
        &self,
        _cx: &HookContext,
        _running: &RunningPod,
        _: Grace,
    ) -> Result<(), SyncError> {
        Ok(())
    }

    async fn sync_terminated_pod(&self, _cx: &HookContext, _pod: &Arc<PodObject>) -> Result<(), SyncError> {
        Ok(())
    }
}

/// Every third pod is a static pod, and two static pods share each name, so that the test covers the queues of names too.
fn pod(n: usize) -> Arc<PodObject> {
    let (name, source) = match n % 3 {
        0 => (format!("static-{}", n / 6), "file"),
        _ => (format!("pod-{n}"), "api"),
    };
    let pod = Pod {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some("churn".to_owned()),
            uid: Some(format!("{n:08x}-0000-4000-8000-000000000000")),
            annotations: Some([(SOURCE_ANNOTATION.to_owned(), source.to_owned())].into()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec { containers: vec![Container::default()], ..PodSpec::default() }),
        status: None,
    };
    PodObject::new(pod).expect("all that is needed is set")
}

fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs is mounted");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a process has memory");
    let kib: usize = line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number of kB");
    kib * 1024
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(60), "did not happen: {what}");
        std::thread::yield_now();
    }
}

// KF26
#[test]
fn created_and_killed_pods_leave_no_memory_behind() {
    let count = std::env::var(COUNT).map_or(DEFAULT_COUNT, |count| count.parse().expect("a number"));
    let seed = podwright_random::seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let config = EngineConfig::default().threads(Threads::Own(NonZeroUsize::MIN)).seed(seed);
    let engine = Engine::builder(Arc::new(Nothing)).config(config).start().unwrap();
    let none = HashSet::new();
    let stretch = (count / STRETCHES).next_multiple_of(BATCH);
    let mut grown = Vec::new();
    for first in (0..STRETCHES).map(|number| number * stretch) {
        let before = resident_bytes();
        for first in (first..first + stretch).step_by(BATCH) {
            let mut pods: Vec<_> = (first..first + BATCH).map(pod).collect();
            for pod in &pods {
                engine.update_pod(Update::create(pod.clone()));
            }
            // A static pod may be killed while it waits for the name of another one, or after it has the name.
            random.shuffle(&mut pods);
            for pod in &pods {
                engine.update_pod(Update::kill(pod.clone()));
            }
            drop(pods);
            until("all end", || engine.is_quiescent());
            engine.sync_known_pods(&none);
            assert_eq!(engine.known_pods(), 0);
            assert!(engine.snapshots().is_empty() && engine.unterminated_pods().is_empty());
        }
        grown.push(resident_bytes().saturating_sub(before));
    }
    // The worker's thread runs while a batch is created, so the number of pods in memory at one time differs between
    // batches. A batch sometimes needs more pages than all batches before it, which makes one stretch grow. A leak makes
    // every stretch grow, so the median is checked.
    eprintln!("{grown:?} bytes in stretches of {stretch} pods");
    let mut counted = grown.split_off(1);
    counted.sort_unstable();
    let usual = counted[counted.len() / 2];
    assert!(usual < LEAK * stretch, "{usual} bytes more with every {stretch} pods: {counted:?}");
    assert!(!engine.is_pod_known(&PodUid::new("00000000-0000-4000-8000-000000000000")));
}
