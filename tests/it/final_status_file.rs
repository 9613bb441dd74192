//! Two nodes over one file of final statuses.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use podwright::adapters::checkpoint::FileCheckpoint;
use podwright::adapters::simulated::{SimulatedConfig, SimulatedRuntime};
use podwright_actors::node::{Node, NodeHandle, NodePorts};
use podwright_core::admission::NodeCapacity;
use podwright_engine::{EngineConfig, Threads};
use podwright_fixtures::api_pods::pod;
use podwright_fixtures::fake_ports::{FakeStorage, has_end_of};
use podwright_model::pod::{Phase, PodObject};
use podwright_ports::{Checkpoint, SourceKind, SourceSet};
use tokio::time::sleep;

use crate::support::polling::until;

/// A node with 4 CPUs and two sources of pods.
struct SmallNode {
    node: NodeHandle,
    runtime: SimulatedRuntime,
}

impl SmallNode {
    fn start(final_statuses: &Arc<dyn Checkpoint>) -> Self {
        let config = SimulatedConfig::default();
        let clock = config.clock.clone();
        let runtime = SimulatedRuntime::new(config);
        let network = Arc::new(runtime.network());
        let ports = NodePorts::new(Arc::new(runtime.clone()), network, Arc::new(FakeStorage::default()))
            .final_statuses(final_statuses.clone())
            .clock(clock)
            .admission(Arc::new(NodeCapacity::new(4000, 1 << 30, 500)));
        let engine = EngineConfig::default().threads(Threads::Current);
        let sources = [SourceKind::File, SourceKind::Api];
        let node = Node::builder(ports).sources(sources).engine(engine).start().unwrap();
        SmallNode { node, runtime }
    }

    /// Delivers a full set of each source.
    async fn deliver(&self, files: Vec<Arc<PodObject>>, api: Vec<Arc<PodObject>>) {
        for (source, pods) in [(SourceKind::File, files), (SourceKind::Api, api)] {
            let set = SourceSet { source, pods, problems: Vec::new() };
            self.node.sources().send(set.into()).await.unwrap();
        }
    }

    async fn until_failed(&self, uid: &str) {
        until("the pod is Failed", || self.node.statuses().phase(&uid.into()) == Some(Phase::Failed)).await;
    }
}

/// A pod that needs more CPUs than the node has.
fn rejected(name: &str) -> Arc<PodObject> {
    pod(name).cpu("9").build()
}

/// Two nodes run one after the other over one `FileCheckpoint`. The first is dropped while one of its appends waits for the only
/// blocking thread and another final status is queued.
#[test]
fn dropped_node_writes_nothing_after_the_next_node_has_started() {
    let runtime =
        || tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    actix::System::with_tokio_rt(runtime).block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let stored = || {
            let lines: Vec<_> = std::fs::read_to_string(&path).unwrap_or_default().lines().map(str::to_owned).collect();
            ["a", "b", "c", "d"].map(|uid| has_end_of(&lines, uid))
        };
        let checkpoint: Arc<dyn Checkpoint> = Arc::new(FileCheckpoint::new(path.clone()));

        // Writes to a real file take real time, so time is not paused.
        let old = SmallNode::start(&checkpoint);
        let first = rejected("a");
        old.deliver(Vec::new(), vec![first.clone()]).await;
        old.until_failed("a").await;
        let (free, occupied) = mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || occupied.recv());
        let done = pod("c").policy("Never").of_file().build();
        old.deliver(vec![done], vec![first, rejected("b")]).await;
        until("the container runs", || old.runtime.exit(&"c".into(), "main", 0)).await;
        sleep(Duration::from_millis(200)).await;
        assert_eq!(stored(), [true, false, false, false]);

        drop(old);
        let new = SmallNode::start(&checkpoint);
        drop(free);
        // The refused append has ended before the tasks of the old node run again.
        let (ended, last) = mpsc::channel();
        tokio::task::spawn_blocking(move || ended.send(()));
        last.recv_timeout(Duration::from_secs(180)).unwrap();
        sleep(Duration::from_millis(100)).await;
        tokio::task::spawn_blocking(|| ()).await.unwrap();
        assert_eq!(stored(), [true, false, false, false], "the old node writes nothing");

        new.deliver(Vec::new(), vec![rejected("a"), rejected("d")]).await;
        new.until_failed("d").await;
        assert_eq!(stored(), [true, false, false, true]);
    });
}
