//! The objects of a new pod, while the Node authorizer of an API server learns of the pod later than the node. In paused time.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use podwright::adapters::kube::KubeObjects;
use podwright::adapters::simulated::{SimulatedConfig, SimulatedRuntime};
use podwright_actors::node::{Node, NodePorts};
use podwright_engine::{EngineConfig, Threads};
use podwright_fixtures::fake_ports::{Events, FakeStorage};
use podwright_model::pod::{Phase, PodObject};
use podwright_model::time::Time;
use podwright_ports::{Clock, SourceKind, SourceSet, TokioClock};
use podwright_stand_in::{StandIn, User};
use serde_json::json;
use tokio::time::{Instant, pause, timeout};

const CORE: &str = "/api/v1/namespaces/test";

#[actix::test]
async fn pod_whose_objects_are_refused_for_900_ms_starts_without_a_warning() {
    pause();
    let clock = TokioClock::starting_at(Time::from_secs(1_800_000_000));
    let server = StandIn::builder()
        .clock(move || clock.now().to_timestamp())
        .settings(|settings| settings.node_authorizer_delay = Duration::from_millis(900))
        .without_port();
    server.create_namespace("test");
    for plural in ["configmaps", "secrets"] {
        server.create(&format!("{CORE}/{plural}"), json!({"metadata": {"name": "web"}})).unwrap();
    }
    let client = Client::new(server.service(User::node("n1")), "test");
    let runtime = SimulatedRuntime::new(SimulatedConfig { clock: Arc::new(clock), ..SimulatedConfig::default() });
    let (network, events) = (Arc::new(runtime.network()), Arc::new(Events::default()));
    let ports = NodePorts::new(Arc::new(runtime), network, Arc::new(FakeStorage::default()))
        .objects(Arc::new(KubeObjects::new(client, Arc::new(clock))))
        .events(events.clone())
        .clock(Arc::new(clock));
    let engine = EngineConfig::default().threads(Threads::Current).seed(7);
    let node = Node::builder(ports).sources([SourceKind::Api]).engine(engine).start().unwrap();

    let pod = json!({
        "metadata": {"name": "web", "annotations": {"kubernetes.io/config.source": "api"}},
        "spec": {"nodeName": "n1", "volumes": [{"name": "settings", "configMap": {"name": "web"}}],
            "containers": [{"name": "main", "image": "img", "envFrom": [{"secretRef": {"name": "web"}}]}]}});
    let created = server.create(&format!("{CORE}/pods"), pod).unwrap();
    let pod = PodObject::new(serde_json::from_value(created).unwrap()).unwrap();
    let (uid, begin) = (pod.uid().clone(), Instant::now());
    let set = SourceSet { source: SourceKind::Api, pods: vec![pod], problems: Vec::new() };
    node.sources().send(set.into()).await.unwrap();
    let mut changes = node.statuses().subscribe();
    let runs = changes.wait_for(|_| node.statuses().phase(&uid) == Some(Phase::Running));
    assert!(timeout(Duration::from_secs(60), runs).await.is_ok(), "the pod runs");
    let took = begin.elapsed().as_secs_f64();
    assert!((1.0..2.0).contains(&took), "the repetition after 1,050 ms is the first that succeeds: {took} s");
    let failures = ["FailedMount", "Failed"].map(|reason| events.of(reason));
    assert!(failures.iter().all(Vec::is_empty), "{failures:?}");
}
