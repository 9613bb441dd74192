//! The slices of a node: the agent deletes those of drivers that are gone, and publishes for a driver with node resources. Real
//! sockets need real time, so the delay is short, and all waits are for conditions.

use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceSlice;
use podwright_dra::{DraPlugins, PluginsConfig, SlicesConfig};
use podwright_dra_api::node_resources::{NodeListAndWatchResourcesResponse, NodePool, NodeSlice};
use podwright_dra_api::{NODE_RESOURCES_SERVICE, V1_SERVICE};
use podwright_dra_tests::fake_driver::{FakeDriver, Serve, Served};
use podwright_fixtures::polling::{eventually, until};
use podwright_metrics::{Format, Metrics};
use podwright_stand_in::{Fault, Rule, StandIn, User, Verb};
use serde_json::json;
use tokio_util::sync::CancellationToken;

const DRIVER: &str = "gpu.acme.test";
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

/// A node `n7` with an API server, and the credentials of a node.
struct Node {
    server: StandIn,
    dir: tempfile::TempDir,
    metrics: Metrics,
    plugins: Option<std::sync::Arc<DraPlugins>>,
    stop: CancellationToken,
}

impl Node {
    /// A node that has not started.
    async fn new() -> Self {
        let (server, dir) = (StandIn::start().await.unwrap(), tempfile::tempdir().unwrap());
        server.create("/api/v1/nodes", json!({"metadata": {"name": "n7"}})).unwrap();
        std::fs::create_dir(dir.path().join("plugins_registry")).unwrap();
        Node { server, dir, metrics: Metrics::new(), plugins: None, stop: CancellationToken::new() }
    }

    async fn start(&mut self) {
        let mut slices = SlicesConfig::new(self.server.client(&User::node("n7")).await, "n7");
        slices.wipe_delay = Duration::from_millis(200);
        let registry = self.dir.path().join("plugins_registry");
        let plugins = DraPlugins::start(PluginsConfig::new(registry), &self.metrics, &self.stop).unwrap();
        plugins.manage_slices(slices);
        self.plugins = Some(plugins);
    }

    /// A driver that offers node resources.
    fn driver(&self) -> FakeDriver {
        let driver = FakeDriver::new(DRIVER, self.dir.path().join("dra.sock"));
        driver.set(|behaviour| behaviour.versions = vec![V1_SERVICE.into(), NODE_RESOURCES_SERVICE.into()]);
        driver
    }

    fn serve(&self, driver: &FakeDriver) -> [Served; 2] {
        [driver.serve(Serve::All), driver.announce(&self.dir.path().join("plugins_registry/gpu-reg.sock"))]
    }

    /// The slices in the API server, in the order of their names.
    fn slices(&self) -> Vec<ResourceSlice> {
        let slices = self.server.all("resourceslices");
        let mut slices: Vec<ResourceSlice> =
            slices.iter().map(|slice| serde_json::from_value((**slice).clone()).unwrap()).collect();
        slices.sort_by_key(|slice| slice.metadata.name.clone());
        slices
    }

    /// Waits until the slices have these devices, in the order of their names.
    async fn until_published(&self, devices: &[&[&str]]) -> Vec<ResourceSlice> {
        eventually(&format!("the slices have {devices:?}"), || async {
            let slices = self.slices();
            let is_published = names(&slices) == devices;
            is_published.then_some(slices)
        })
        .await
    }

    fn create_slice(&self, name: &str, node: &str) {
        let spec = json!({"driver": DRIVER, "nodeName": node, "devices": [{"name": "old"}],
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}});
        self.server.create(SLICES, json!({"metadata": {"name": name}, "spec": spec})).unwrap();
    }

    fn metric(&self, line: &str) -> bool {
        self.metrics.encode(Format::Classic).lines().any(|found| found == line)
    }
}

fn names(slices: &[ResourceSlice]) -> Vec<Vec<&str>> {
    slices
        .iter()
        .map(|slice| slice.spec.devices.iter().flatten().map(|device| device.name.as_str()).collect())
        .collect()
}

/// The message of a driver whose pool has these slices.
fn message(slices: &[&[&str]]) -> NodeListAndWatchResourcesResponse {
    let slice = |devices: &&[&str]| {
        let devices: Vec<_> = devices.iter().map(|name| json!({"name": name})).collect();
        NodeSlice { devices_json: serde_json::to_vec(&devices).unwrap(), ..Default::default() }
    };
    let pool = NodePool { slices: slices.iter().map(slice).collect(), ..Default::default() };
    NodeListAndWatchResourcesResponse { pools: vec![pool] }
}

/// DRA-W1, DRA-W4
#[tokio::test]
async fn slices_that_an_earlier_agent_left_are_deleted_and_those_of_other_nodes_stay() {
    let mut node = Node::new().await;
    node.create_slice("own", "n7");
    node.create_slice("other", "n8");
    let registry = node.dir.path().join("standalone");
    let standalone = DraPlugins::start(PluginsConfig::new(registry), &node.metrics, &node.stop).unwrap();
    let once = Rule::new().verb(Verb::DeleteCollection).resource("resourceslices").times(1);
    node.server.faults().inject(once, Fault::status(500));
    assert_eq!(node.slices().len(), 2, "without an API server, the agent touches no slice");
    drop(standalone);
    node.start().await;
    eventually("the slice of this node is deleted", || async {
        let slices = node.slices();
        (slices.len() == 1).then(|| assert_eq!(slices[0].metadata.name.as_deref(), Some("other")))
    })
    .await;
    let is_counted =
        || async { node.metric("podwright_resource_slice_wipes_total{result=\"succeeded\"} 1").then_some(()) };
    eventually("the deletion is counted", is_counted).await;
    assert!(node.metric("podwright_resource_slice_wipes_total{result=\"failed\"} 1"));
}

/// A user sees what happens to the slices of a driver, and when.
#[tokio::test]
async fn state_of_a_driver_has_its_stream_and_the_deletion_of_its_slices() {
    let mut node = Node::new().await;
    // The deletion does not succeed.
    node.server
        .faults()
        .inject(Rule::new().verb(Verb::DeleteCollection).resource("resourceslices"), Fault::status(500));
    node.start().await;
    let state = |text: &'static str| {
        let plugins = node.plugins.clone().unwrap();
        let lines = move || plugins.states().iter().map(ToString::to_string).collect::<Vec<_>>();
        async move { until(text, || matches!(&lines()[..], [line] if line.contains(text))).await }
    };
    let plugins = node.plugins.clone().unwrap();
    until("the deletion after the start has failed", || plugins.startup_deletion().is_some_and(|now| now.failures > 0))
        .await;
    let driver = node.driver();
    let served = node.serve(&driver);
    state("1 of 1 instances connected; the stream of node resources is open").await;
    drop(served);
    state("not registered; its slices are deleted").await;
}

/// DRA-N1, DRA-N4, DRA-W2
#[tokio::test]
async fn devices_of_a_driver_without_access_to_the_api_server_are_published() {
    let mut node = Node::new().await;
    node.start().await;
    let driver = node.driver();
    driver.send_resources(message(&[&["a", "b"], &["c"]]));
    let served = node.serve(&driver);
    let first = node.until_published(&[&["a", "b"], &["c"]]).await;
    for slice in &first {
        assert_eq!((slice.spec.pool.name.as_str(), slice.spec.pool.generation), ("n7", 1));
        assert_eq!((slice.spec.pool.resource_slice_count, slice.spec.node_name.as_deref()), (2, Some("n7")));
        let owner = &slice.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!((owner.kind.as_str(), owner.name.as_str(), owner.controller), ("Node", "n7", Some(true)));
    }
    driver.send_resources(message(&[&["a", "b"], &["d"]]));
    let second = node.until_published(&[&["a", "b"], &["d"]]).await;
    assert_eq!(second[0], first[0], "the slice that is the same is not written");
    assert_eq!((&second[1].metadata.uid, second[1].spec.pool.generation), (&first[1].metadata.uid, 1));

    drop(served);
    eventually("the slices are deleted", || async { node.slices().is_empty().then_some(()) }).await;
    let _served = node.serve(&driver);
    node.until_published(&[&["a", "b"], &["d"]]).await;
    for (operation, count) in [("create", 4), ("update", 1)] {
        let line = format!("podwright_resource_slice_writes_total{{operation=\"{operation}\"}} {count}");
        eventually(&line, || async { node.metric(&line).then_some(()) }).await;
    }
    // The queue of the publisher that was deleted with the slices stays counted.
    let text = node.metrics.encode(Format::Classic);
    for name in ["adds_total", "work_duration_seconds_count", "queue_duration_seconds_count"] {
        let series = format!("workqueue_{name}{{name=\"node_resource_slices\"}} ");
        let count =
            text.lines().find_map(|line| line.strip_prefix(series.as_str())).unwrap_or_else(|| panic!("{series}"));
        assert!(count.parse::<u64>().unwrap() >= 3, "{series}{count}");
    }
    node.stop.cancel();
    node.plugins.as_ref().unwrap().stopped().await;
    assert_eq!(node.slices().len(), 2, "the slices stay when the agent ends");
}
