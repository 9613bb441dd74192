//! The slices of a driver in an API server.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use podwright_fixtures::polling::until;
use podwright_slices::{DriverResources, Owner, Pool, Slice, SliceEngine, SliceError, SliceOptions, WriteCounts};
use podwright_stand_in::{Fault, Refusal, Rule, StandIn, User, Verb};
use serde_json::json;
use tokio::sync::mpsc;

const DRIVER: &str = "gpu.acme.test";

/// An engine for the node `n7`, and its API server.
struct Published {
    server: StandIn,
    engine: SliceEngine,
    errors: mpsc::UnboundedReceiver<SliceError>,
    node_uid: String,
}

impl Published {
    async fn new(change: impl FnOnce(SliceOptions) -> SliceOptions) -> Self {
        let server = StandIn::start().await.unwrap();
        let node = server.create("/api/v1/nodes", json!({"metadata": {"name": "n7"}})).unwrap();
        let (report, errors) = mpsc::unbounded_channel();
        let options = SliceOptions::new(DRIVER, move |error| report.send(error).unwrap());
        let engine = SliceEngine::start(server.client(&User::admin()).await, change(options));
        let node_uid = node["metadata"]["uid"].as_str().unwrap().to_owned();
        Published { server, engine, errors, node_uid }
    }

    async fn of_node() -> Self {
        Self::new(|options| options.owner(Owner::node("n7", None))).await
    }

    fn slices(&self) -> Vec<ResourceSlice> {
        let mut slices: Vec<ResourceSlice> = self
            .server
            .all("resourceslices")
            .iter()
            .map(|slice| serde_json::from_value((**slice).clone()).unwrap())
            .collect();
        slices.sort_by_key(|slice| slice.metadata.name.clone());
        slices
    }

    /// Offers slices with these devices, and waits until the API server has them. Returns the writes that were needed.
    async fn offer(&self, pool: Pool) -> WriteCounts {
        let before = self.engine.counts();
        let names = |slice: &[Device]| slice.iter().map(|device| device.name.clone()).collect::<Vec<_>>();
        let offered: Vec<_> = pool.slices.iter().map(|slice| names(&slice.devices)).collect();
        self.engine.update(DriverResources { pools: BTreeMap::from([("n7".to_owned(), pool)]) }).unwrap();
        let is_done = || {
            let slices = self.slices();
            let found: Vec<_> =
                slices.iter().map(|slice| names(slice.spec.devices.as_deref().unwrap_or_default())).collect();
            found == offered
                && slices.iter().all(|slice| slice.spec.pool.resource_slice_count as usize == offered.len())
        };
        self.until("the offer is published", is_done).await;
        self.since(before)
    }

    /// Waits until the engine has counted its last write.
    async fn until(&self, what: &str, is_done: impl Fn() -> bool) {
        until(what, is_done).await;
        let writes = || {
            let WriteCounts { creates, updates, deletes } = self.engine.counts();
            creates + updates + deletes
        };
        let served = || {
            let requests = self.server.requests();
            let is_write = |verb| matches!(verb, Some(Verb::Create | Verb::Update | Verb::Delete));
            let writes = requests.iter().filter(|served| served.resource == "resourceslices" && is_write(served.verb));
            writes.filter(|served| served.code < 300).count() as u64
        };
        until("the last write is counted", || writes() >= served()).await;
    }

    fn since(&self, before: WriteCounts) -> WriteCounts {
        let now = self.engine.counts();
        WriteCounts {
            creates: now.creates - before.creates,
            updates: now.updates - before.updates,
            deletes: now.deletes - before.deletes,
        }
    }
}

fn slice(devices: &[&str]) -> Slice {
    let devices = devices.iter().map(|name| Device { name: (*name).to_owned(), ..Device::default() });
    Slice { devices: devices.collect(), ..Slice::default() }
}

fn pool(slices: &[&[&str]]) -> Pool {
    Pool { slices: slices.iter().map(|devices| slice(devices)).collect(), ..Pool::default() }
}

fn counts(creates: u64, updates: u64, deletes: u64) -> WriteCounts {
    WriteCounts { creates, updates, deletes }
}

/// DRA-S1
#[tokio::test]
async fn empty_slice_shows_that_the_driver_runs() {
    let published = Published::of_node().await;
    assert_eq!(published.offer(pool(&[&[]])).await, counts(1, 0, 0));
    let slice = published.slices().remove(0);
    assert!(slice.metadata.name.as_ref().unwrap().starts_with("00000-gpu.acme.test-n7-"));
    assert_eq!((slice.spec.pool.generation, slice.spec.pool.resource_slice_count), (1, 1));
    assert_eq!(slice.spec.node_name.as_deref(), Some("n7"));
    let owner = slice.metadata.owner_references.unwrap().remove(0);
    let expected = ("v1", "Node", "n7", published.node_uid.as_str(), Some(true));
    let found = (&*owner.api_version, &*owner.kind, &*owner.name, &*owner.uid, owner.controller);
    assert_eq!(found, expected);
}

/// DRA-S4, DRA-S5, DRA-S6
#[tokio::test]
async fn slices_are_reused() {
    let published = Published::of_node().await;
    assert_eq!(published.offer(pool(&[&["a"], &["b"], &["c"]])).await, counts(3, 0, 0));
    let names =
        |published: &Published| published.slices().into_iter().map(|slice| slice.metadata.uid).collect::<Vec<_>>();
    let first = names(&published);
    assert_eq!(published.offer(pool(&[&["a"], &["x"], &["c"]])).await, counts(0, 1, 0));
    assert_eq!(published.offer(pool(&[&["a"], &["y"], &["z"]])).await, counts(0, 3, 0));
    assert_eq!(names(&published), first);
    assert_eq!(published.offer(pool(&[&["a"], &["y"]])).await, counts(0, 2, 1));
    assert_eq!(published.slices()[0].spec.pool.generation, 3);
    assert_eq!(published.offer(pool(&[&["a"], &["y"], &["n"]])).await, counts(1, 2, 0));

    let before = published.engine.counts();
    published.engine.update(DriverResources::default()).unwrap();
    published.until("nothing is published", || published.slices().is_empty()).await;
    assert_eq!(published.since(before), counts(0, 0, 3));
}

/// DRA-S8, DRA-S9, DRA-S10
#[tokio::test]
async fn slices_of_other_kinds_are_created_as_given() {
    let cluster = Published::new(|options| options).await;
    assert_eq!(cluster.offer(Pool { all_nodes: true, ..pool(&[&["a"]]) }).await, counts(1, 0, 0));
    let slice = cluster.slices().remove(0);
    assert!(slice.metadata.name.as_ref().unwrap().starts_with("00000-gpu.acme.test-"));
    assert_eq!((slice.metadata.owner_references, slice.spec.node_name, slice.spec.all_nodes), (None, None, Some(true)));

    let owner =
        Owner { api_version: "apps/v1".into(), kind: "Deployment".into(), name: "d".into(), uid: Some("u-1".into()) };
    let published = Published::new(|options| options.owner(owner)).await;
    let counters = json!([{"name": "memory", "counters": {"bytes": {"value": "8Gi"}}}]);
    let device = json!({"name": "g", "bindingConditions": ["ready"], "bindingFailureConditions": ["broken"],
        "bindsToNode": true, "consumesCounters": [{"counterSet": "memory", "counters": {"bytes": {"value": "4Gi"}}}]});
    let with = |zone: &str| {
        let selector = json!({"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]},
        ]});
        let counters = Slice { shared_counters: serde_json::from_value(counters.clone()).unwrap(), ..Slice::default() };
        let devices = Slice { devices: vec![serde_json::from_value(device.clone()).unwrap()], ..Slice::default() };
        let node_selector = Some(serde_json::from_value(selector).unwrap());
        Pool { node_selector, slices: vec![counters, devices], ..Pool::default() }
    };
    assert_eq!(published.offer(with("a")).await, counts(2, 0, 0));
    let slices = published.slices();
    assert_eq!(slices[0].spec.shared_counters, Some(with("a").slices[0].shared_counters.clone()));
    assert_eq!(slices[1].spec.devices, Some(with("a").slices[1].devices.clone()));
    assert_eq!(slices[1].spec.node_selector, with("a").node_selector);
    assert_eq!(slices[1].spec.node_name, None);
}

/// DRA-S7
#[tokio::test]
async fn slices_of_an_earlier_process_are_reused_and_superfluous_ones_deleted() {
    let published = Published::of_node().await;
    published.offer(pool(&[&["a"]])).await;
    let mut extra = published.slices().remove(0);
    extra.metadata = serde_json::from_value(json!({"name": "00001-gpu.acme.test-n7-extra"})).unwrap();
    let extra = serde_json::to_value(extra).unwrap();
    published.server.create("/apis/resource.k8s.io/v1/resourceslices", extra).unwrap();
    let Published { server, engine, .. } = published;
    engine.stop().await;

    let (report, errors) = mpsc::unbounded_channel();
    let options = SliceOptions::new(DRIVER, move |error| report.send(error).unwrap()).owner(Owner::node("n7", None));
    let engine = SliceEngine::start(server.client(&User::admin()).await, options);
    let node_uid = String::new();
    server.forget_requests();
    let next = Published { server, engine, errors, node_uid };
    assert_eq!(next.offer(pool(&[&["a"]])).await, counts(0, 0, 1));
}

/// DRA-S12
#[tokio::test]
async fn single_pool_refuses_other_pools() {
    let published = Published::new(|options| options.owner(Owner::node("n7", None)).single_pool("n7")).await;
    let pools = |names: &[&str]| DriverResources {
        pools: names.iter().map(|name| ((*name).to_owned(), Pool { all_nodes: true, ..pool(&[&[]]) })).collect(),
    };
    assert!(published.engine.update(pools(&["n7", "n8"])).is_err());
    assert!(published.engine.update(pools(&["n8"])).is_err());
    assert!(published.engine.update(pools(&[])).is_ok());
    assert_eq!(published.offer(Pool { all_nodes: true, ..pool(&[&[]]) }).await, counts(1, 0, 0));
    let slice = published.slices().remove(0);
    assert_eq!((slice.spec.node_name, slice.metadata.owner_references.unwrap().len()), (None, 1));
}

/// DRA-S14
#[tokio::test]
async fn large_pool_shrinks_to_one_empty_slice() {
    const SLICES: usize = 20;
    let published = Published::of_node().await;
    let names: Vec<Vec<String>> =
        (0..SLICES).map(|slice| (0..128).map(|device| format!("g{slice}-{device}")).collect()).collect();
    let slices: Vec<Vec<&str>> = names.iter().map(|names| names.iter().map(String::as_str).collect()).collect();
    let slices: Vec<&[&str]> = slices.iter().map(Vec::as_slice).collect();
    assert_eq!(published.offer(pool(&slices)).await, counts(20, 0, 0));
    assert_eq!(published.offer(pool(&[&[]])).await, counts(0, 1, 19));
}

/// The server refuses a create once. The engine reports the failure, and publishes the slice afterwards.
#[tokio::test]
async fn failed_write_is_reported_and_repeated() {
    let mut published = Published::of_node().await;
    let once = Rule::new().verb(Verb::Create).resource("resourceslices").times(1);
    published.server.faults().inject(once, Fault::Refuse(Refusal::plain(500, "InternalError", "etcd is gone")));
    assert_eq!(published.offer(pool(&[&["a"]])).await, counts(1, 0, 0));
    let error = published.errors.recv().await.unwrap();
    assert!(error.is_recoverable());
    let text = error.to_string();
    assert!(text.starts_with("cannot publish the pool n7: cannot create 00000-gpu.acme.test-n7-"), "{text}");
    assert!(text.contains("etcd is gone"), "{text}");
}
