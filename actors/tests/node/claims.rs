//! ResourceClaims as a phase of pods: prepared before the sandbox, released after the last container and before the terminal status.

use std::sync::Arc;
use std::time::Duration;

use podwright_actors::claims::{ClaimManager, ClaimsError};
use podwright_core::pod_worker::Lifecycle;
use podwright_fixtures::api_pods::{PodBuilder, pod};
use podwright_fixtures::fake_claims::{FakeClaims, FakeDrivers};
use podwright_fixtures::fake_ports::FakeFinalStatuses;
use podwright_fixtures::scripted_runtime::Script;
use podwright_metrics::{Format, Metrics};
use podwright_model::ids::ClaimName;
use podwright_model::text::error_chain;
use podwright_ports::{DeviceHealth, DeviceHealthSink, DeviceReport, ResourcePhase};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::explain::reading::{explain, waits};
use crate::support::manager_opener::ManagerOpener;
use crate::support::test_node::{Setup, TestNode};

/// A node whose pods may have claims.
pub(super) struct ClaimNode {
    pub(super) node: TestNode,
    pub(super) drivers: Arc<FakeDrivers>,
    pub(super) claims: Arc<FakeClaims>,
    pub(super) file: Arc<FakeFinalStatuses>,
    pub(super) manager: Arc<ClaimManager>,
    kill: CancellationToken,
}

impl ClaimNode {
    pub(super) async fn start(drivers: &[&str]) -> Self {
        let this = ClaimNode::over(Setup::new(true), FakeDrivers::of(drivers), Arc::default(), Arc::default());
        this.node.deliver(&[]).await;
        this
    }

    fn over(setup: Setup, drivers: Arc<FakeDrivers>, claims: Arc<FakeClaims>, file: Arc<FakeFinalStatuses>) -> Self {
        let (manager, kill) = ManagerOpener::new(&claims, &drivers, setup.clock).file(file.clone()).open_to_kill();
        let node = Setup { resources: Some(manager.clone()), ..setup }.start();
        ClaimNode { node, drivers, claims, file, manager, kill }
    }

    /// Kills the agent: nothing of it runs on. The runtime keeps its containers.
    fn kill(self) -> (Setup, Arc<FakeDrivers>, Arc<FakeClaims>, Arc<FakeFinalStatuses>) {
        let ClaimNode { node, drivers, claims, file, manager, kill } = self;
        let setup =
            Setup { runtime: node.runtime.clone(), final_statuses: node.final_statuses.clone(), ..Setup::again(true) };
        kill.cancel();
        drop((node, manager));
        (setup, drivers, claims, file)
    }

    /// Kills the agent and starts another one, to which no source has delivered.
    pub(super) fn restart(self) -> Self {
        let (setup, drivers, claims, file) = self.kill();
        ClaimNode::over(setup, drivers, claims, file)
    }

    pub(super) fn calls(&self) -> Vec<String> {
        self.drivers.calls()
    }
}

/// A pod whose container uses a claim.
pub(super) fn with_claim(name: &str, claim: &str) -> PodBuilder {
    let container = json!({"name": "main", "image": "img", "resources": {"claims": [{"name": "gpu"}]}});
    let claims = json!([{"name": "gpu", "resourceClaimName": claim}]);
    pod(name).spec("containers", json!([container])).spec("resourceClaims", claims)
}

/// DRA-P8, DRA-G1, DRA-U3, DRA-U7: the driver is called before the sandbox, the container gets the device, and the release comes after the last
/// container and before the terminal phase.
#[actix::test]
async fn pod_gets_its_devices_and_gives_them_back() {
    let this = ClaimNode::start(&["gpu"]).await;
    this.claims.put("cam", &["gpu"], &["a"]);
    this.node.runtime.script("main", Script::stubborn());
    this.node.deliver(&[with_claim("a", "cam")]).await;
    this.node.wait(2.0).await;
    assert_eq!(this.node.phase("a"), "Running");
    assert_eq!(this.calls(), ["gpu prepare cam"]);
    assert_eq!(this.node.runtime.cdi_devices("a"), ["gpu/gpu=cam"]);
    this.node.deliver(&[with_claim("a", "cam").deleting(5)]).await;
    this.node.wait(3.0).await;
    assert_eq!(this.calls().len(), 1, "the container still runs");
    this.drivers.block(true);
    this.node.wait(5.0).await;
    assert_eq!(this.calls(), ["gpu prepare cam", "gpu unprepare cam"]);
    assert!(this.node.runtime.running("a").is_empty());
    assert_eq!(this.node.phase("a"), "Running", "the phase is withheld");
    assert_eq!(this.node.lifecycle("a"), Some(Lifecycle::Terminating));
    this.drivers.block(false);
    this.node.wait(2.0).await;
    assert_eq!(this.node.phase("a"), "Failed");
    assert!(this.drivers.prepared().is_empty() && !this.manager.holds(&"a".into()));
}

/// DRA-P19 and KF44: a failed prepare makes no sandbox, has an event, and is retried by the normal backoff.
#[actix::test]
async fn failed_prepare_is_retried_within_seconds() {
    let this = ClaimNode::start(&["gpu"]).await;
    this.claims.put("cam", &["gpu"], &["a"]);
    this.drivers.fail("gpu", "no such device");
    this.node.deliver(&[with_claim("a", "cam")]).await;
    this.node.wait(2.0).await;
    assert_eq!(this.node.phase("a"), "Pending");
    assert!(this.node.runtime.calls_of("a").iter().all(|call| !call.contains("sandbox")));
    let events = this.node.events.of("FailedPrepareDynamicResources");
    assert_eq!(
        events[0].message,
        "Failed to prepare dynamic resources: prepare dynamic resources: DRA driver gpu: no such device"
    );
    let text = waits(&this.node, "a");
    assert!(text.contains("ResourceClaim test/cam is not prepared: DRA driver gpu: no such device"), "{text}");
    this.drivers.heal("gpu");
    this.node.wait(15.0).await;
    assert_eq!(this.node.phase("a"), "Running");
}

/// DRA-U1, DRA-U4 and KF36: a driver that is away keeps the pod from its terminal phase, explain names it, and an operator can give it up.
#[actix::test]
async fn failed_release_withholds_the_terminal_phase() {
    let this = ClaimNode::start(&["gpu"]).await;
    this.claims.put("cam", &["gpu"], &["a"]);
    this.node.deliver(&[with_claim("a", "cam").grace(1)]).await;
    this.node.wait(2.0).await;
    this.drivers.fail("gpu", "unavailable");
    this.node.deliver(&[with_claim("a", "cam").deleting(1)]).await;
    this.node.wait(120.0).await;
    assert!(this.node.runtime.running("a").is_empty());
    assert_eq!(this.node.phase("a"), "Running");
    assert!(this.node.events.has("a", "FailedUnprepareDynamicResources"));
    assert!(this.calls().len() > 3, "{:?}", this.calls());
    let text = waits(&this.node, "a");
    for part in [
        "ResourceClaim test/cam is not released: DRA driver gpu: unavailable",
        "tries",
        "podwright give-up test/cam --driver gpu",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let heading = text.lines().next().unwrap();
    assert!(heading.contains("waits for DRA driver gpu"), "{heading}");
    this.manager.give_up(&ClaimName::new("test", "cam"), &"gpu".into()).await.unwrap();
    let calls = this.calls().len();
    // The release is tried again at once, not after its backoff.
    this.node.wait(1.0).await;
    assert_eq!(this.node.phase("a"), "Succeeded");
    assert_eq!(this.calls().len(), calls, "the driver is not called any more");
}

/// KF36: the explanation has the claim, the driver and the time of the first call to a driver that hangs. The same holds for a pod
/// that waits for the call of another pod, or for a driver that has not registered.
#[actix::test]
async fn explanation_names_the_claim_and_driver_of_a_running_call() {
    let this = ClaimNode::start(&["gpu"]).await;
    this.claims.put("cam", &["gpu"], &["a", "b"]);
    this.claims.put("net", &["nic"], &["c"]);
    this.drivers.block(true);
    this.node.deliver(&[with_claim("a", "cam")]).await;
    this.node.wait(1.0).await;
    this.node.deliver(&[with_claim("a", "cam"), with_claim("b", "cam"), with_claim("c", "net")]).await;
    this.node.wait(5.0).await;
    for (pod, part) in [
        ("a", "ResourceClaim test/cam is not prepared: DRA driver gpu has not answered"),
        ("b", "ResourceClaim test/cam is not prepared: an operation of another pod on the claim comes first"),
        (
            "c",
            "ResourceClaim test/net is not prepared: ResourceClaim net needs DRA driver nic, which is not registered",
        ),
    ] {
        let text = waits(&this.node, pod);
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// KF36: a program reads the claim, the driver, the time and the tries from fields of the JSON.
#[actix::test]
async fn explanation_has_fields_for_the_claim_and_its_driver() {
    let this = ClaimNode::start(&["gpu"]).await;
    this.claims.put("cam", &["gpu"], &["a", "b"]);
    this.claims.put("net", &["nic"], &["c"]);
    this.node.deliver(&[with_claim("a", "cam").grace(1)]).await;
    this.node.wait(2.0).await;
    this.drivers.fail("gpu", "no power");
    this.node.deliver(&[with_claim("a", "cam").deleting(1), with_claim("c", "net")]).await;
    this.node.wait(60.0).await;
    for (pod, claim, driver) in [("a", "test/cam", "gpu"), ("c", "test/net", "nic")] {
        let json = serde_json::to_value(explain(&this.node, pod)).unwrap();
        let wait = json["chain"].as_array().unwrap().iter().find(|wait| wait["what"] == "claim").unwrap();
        assert_eq!((&wait["claim"], &wait["driver"]), (&claim.into(), &driver.into()), "{wait}");
        assert!(wait["tries"].as_u64() > Some(1) && wait["since"].is_string(), "{wait}");
    }
}

/// KF38: a pod whose driver never got a call is deleted without the driver, also after a restart of the agent.
#[actix::test]
async fn pod_of_an_unreachable_driver_is_deleted_without_it() {
    let this = ClaimNode::start(&["gpu", "nic"]).await;
    this.claims.put("cam", &["gpu", "nic"], &["a"]);
    this.drivers.set_reachable("nic", false);
    this.node.deliver(&[with_claim("a", "cam")]).await;
    this.node.wait(30.0).await;
    assert_eq!(this.node.phase("a"), "Pending");
    let text = waits(&this.node, "a");
    assert!(text.contains("ResourceClaim test/cam is not prepared: DRA driver nic cannot be reached"), "{text}");
    assert!(this.calls().is_empty() && this.file.records().is_empty(), "{:?}", this.calls());
    let (setup, drivers, claims, file) = this.kill();
    let this = ClaimNode::over(setup, drivers, claims, file);
    this.node.deliver(&[with_claim("a", "cam").deleting(0)]).await;
    let is_over = || this.node.lifecycle("a").is_none_or(|state| state == Lifecycle::Finished);
    this.node.eventually(30.0, "the pod has finished", is_over).await;
    assert!(this.calls().is_empty() && !this.manager.holds(&"a".into()));
}

/// A claim that is prepared needs no connection to its driver for another pod.
#[actix::test]
async fn prepared_claim_needs_no_reachable_driver() {
    let this = ClaimNode::start(&["gpu"]).await;
    this.claims.put("cam", &["gpu"], &["a", "b"]);
    this.node.deliver(&[with_claim("a", "cam")]).await;
    this.node.wait(2.0).await;
    this.drivers.set_reachable("gpu", false);
    this.node.deliver(&[with_claim("a", "cam"), with_claim("b", "cam")]).await;
    this.node.wait(2.0).await;
    assert_eq!((this.node.phase("b").as_str(), this.calls().len()), ("Running", 1));
}

/// A client that panics before it returns a future fails its call, and nothing else. The pod is retried.
#[actix::test]
async fn panic_of_a_client_fails_one_call() {
    let this = ClaimNode::start(&["gpu", "nic"]).await;
    this.claims.put("cam", &["gpu"], &["a"]);
    this.claims.put("net", &["nic"], &["b"]);
    this.drivers.panic("gpu", true);
    this.node.deliver(&[with_claim("a", "cam"), with_claim("b", "net")]).await;
    this.node.wait(5.0).await;
    assert_eq!((this.node.phase("a").as_str(), this.node.phase("b").as_str()), ("Pending", "Running"));
    let text = waits(&this.node, "a");
    assert!(text.contains("the client of DRA driver gpu panicked"), "{text}");
    this.drivers.panic("gpu", false);
    this.node.wait(15.0).await;
    assert_eq!(this.node.phase("a"), "Running");
}

/// DRA-U5: the claim of a pod that was deleted while no agent ran is released when its containers have stopped, and not before.
#[actix::test]
async fn claim_of_a_pod_deleted_while_no_agent_ran_is_released() {
    let this = ClaimNode::start(&["gpu"]).await;
    this.claims.put("cam", &["gpu"], &["a"]);
    this.node.runtime.script("main", Script::stubborn());
    this.node.deliver(&[with_claim("a", "cam")]).await;
    this.node.wait(2.0).await;
    let this = this.restart();
    this.node.wait(90.0).await;
    assert_eq!(this.calls(), ["gpu prepare cam"], "no source has delivered");
    this.node.deliver(&[]).await;
    this.node.eventually(120.0, "the orphan has stopped", || this.node.runtime.running("a").is_empty()).await;
    assert_eq!(this.calls(), ["gpu prepare cam"], "the container ran until now");
    this.node.eventually(62.0, "the claim is released", || this.drivers.prepared().is_empty()).await;
    assert!(this.file.records().is_empty(), "{:?}", this.file.records());
}

/// KF16 and KF43: an agent that restarts calls no driver for a pod that runs; a new sandbox calls it again.
#[actix::test]
async fn running_pod_keeps_its_devices_over_a_restart() {
    let this = ClaimNode::start(&["gpu"]).await;
    this.claims.put("cam", &["gpu"], &["a"]);
    this.node.deliver(&[with_claim("a", "cam")]).await;
    this.node.wait(2.0).await;
    let this = this.restart();
    this.node.deliver(&[with_claim("a", "cam")]).await;
    this.node.wait(100.0).await;
    assert_eq!(this.calls(), ["gpu prepare cam"]);
    this.node.runtime.end_sandbox("a");
    this.node.wait(30.0).await;
    assert_eq!(this.calls(), ["gpu prepare cam", "gpu prepare cam"]);
    assert_eq!(this.node.phase("a"), "Running");
}

/// DRA-P18: a pod that is deleted during its prepare is released after it, and makes no sandbox.
#[actix::test]
async fn pod_deleted_during_its_prepare_is_released() {
    let this = ClaimNode::start(&["gpu"]).await;
    this.claims.put("cam", &["gpu"], &["a"]);
    this.drivers.block(true);
    this.node.deliver(&[with_claim("a", "cam")]).await;
    this.node.wait(5.0).await;
    this.node.deliver(&[with_claim("a", "cam").deleting(0)]).await;
    this.node.wait(5.0).await;
    assert_eq!(this.calls(), ["gpu prepare cam"], "the release waits for the prepare");
    this.drivers.block(false);
    this.node.wait(15.0).await;
    assert_eq!(this.calls(), ["gpu prepare cam", "gpu unprepare cam"]);
    assert!(this.drivers.prepared().is_empty());
    assert!(this.node.runtime.calls_of("a").iter().all(|call| !call.contains("sandbox")));
}

/// DRA-P17: pods with claims of their own prepare and release in parallel.
#[actix::test]
async fn thirty_pods_prepare_in_parallel() {
    let this = ClaimNode::start(&["gpu"]).await;
    this.drivers.slow(Duration::from_secs(1));
    let names: Vec<_> = (0..30).map(|n| format!("p{n}")).collect();
    let pods: Vec<_> = names.iter().map(|name| with_claim(name, &format!("c-{name}"))).collect();
    names.iter().for_each(|name| this.claims.put(&format!("c-{name}"), &["gpu"], &[name]));
    this.node.deliver(&pods).await;
    this.node.wait(4.0).await;
    assert!(names.iter().all(|name| this.node.phase(name) == "Running"));
    let deleted: Vec<_> = names.iter().map(|name| with_claim(name, &format!("c-{name}")).deleting(0)).collect();
    this.node.deliver(&deleted).await;
    this.node.wait(10.0).await;
    assert!(this.drivers.prepared().is_empty());
    assert_eq!(this.manager.read(|table| table.records().len()), 0);
}

/// DRA-P1, DRA-P2, DRA-P4, DRA-P15, DRA-P16, DRA-C2: a pod that may not use its claim calls no driver, and can be released without any.
#[actix::test]
async fn claims_are_checked_before_any_driver_is_called() {
    tokio::time::pause();
    let (drivers, claims, metrics) = (FakeDrivers::of(&["gpu"]), Arc::<FakeClaims>::default(), Metrics::new());
    let clock = Setup::again(true).clock;
    let (manager, _stop) = ManagerOpener::new(&claims, &drivers, clock).metrics(&metrics).open();
    claims.put("unregistered", &["nic"], &["a"]);
    claims.put("foreign", &["gpu"], &["b"]);
    claims.put_object(
        "unallocated",
        json!({"metadata": {"name": "unallocated", "namespace": "test", "uid": "u"}, "spec": {},
        "status": {"reservedFor": [{"resource": "pods", "name": "a", "uid": "a"}]}}),
    );
    claims.put("other", &["gpu"], &["a"]);
    let template = |status: serde_json::Value| {
        let pod = pod("a").spec("resourceClaims", json!([{"name": "gpu", "resourceClaimTemplateName": "t"}]));
        pod.status_field("resourceClaimStatuses", status)
    };
    for (pod, error) in [
        (with_claim("a", "missing"), "cannot read ResourceClaim missing: the object does not exist"),
        (
            with_claim("a", "unregistered"),
            "ResourceClaim unregistered needs DRA driver nic, which is not registered on this node: check that the driver runs",
        ),
        (
            with_claim("a", "foreign"),
            "the pod is not allowed to use ResourceClaim foreign: the claim is not reserved for it, check which pods its status.reservedFor names",
        ),
        (
            with_claim("a", "unallocated"),
            "ResourceClaim unallocated has no allocated devices: check that the scheduler allocates devices for the pod",
        ),
        (
            template(json!([])),
            "the ResourceClaim of the pod claim \"gpu\" was not created yet: check that the resource claim controller runs",
        ),
        (
            template(json!([{"name": "gpu", "resourceClaimName": "other"}])),
            "ResourceClaim other was not created for the pod: delete the claim, or remove its name from the status of the pod",
        ),
        (
            pod("a").spec("resourceClaims", json!([{"name": "gpu"}])),
            "the pod claim \"gpu\" has unsupported fields: it needs resourceClaimName or resourceClaimTemplateName",
        ),
    ] {
        let pod = pod.build();
        let refused = manager.prepare(&pod).await.unwrap_err();
        assert_eq!(error_chain(&refused).to_string(), error);
        assert!(!manager.holds(pod.uid()));
        manager.release(pod.uid()).await.unwrap();
    }
    // A template claim without a name needs nothing.
    manager.prepare(&template(json!([{"name": "gpu"}])).build()).await.unwrap();
    assert!(drivers.calls().is_empty());
    let text = metrics.encode(Format::Classic);
    let count = |labels: &str| {
        let series = format!("dra_operations_duration_seconds_count{{{labels}}} ");
        text.lines().find_map(|line| line.strip_prefix(series.as_str())).map(str::to_owned)
    };
    assert_eq!(count(r#"is_error="true",operation_name="PrepareResources""#).as_deref(), Some("7"));
    assert_eq!(count(r#"is_error="false",operation_name="UnprepareResources""#).as_deref(), Some("7"));
    assert_eq!(count(r#"is_error="false",operation_name="PrepareResources""#).as_deref(), Some("1"));
}

/// A panic of a driver's client while it connects is the error of the prepare, and the pod is tried again.
#[actix::test]
async fn panic_while_connecting_is_an_error_of_the_prepare() {
    tokio::time::pause();
    let (drivers, claims) = (FakeDrivers::of(&["gpu"]), Arc::<FakeClaims>::default());
    let (manager, _stop) = ManagerOpener::new(&claims, &drivers, Setup::again(true).clock).open();
    claims.put("cam", &["gpu"], &["a"]);
    drivers.panic_in_reach("gpu");
    let failed = manager.prepare(&with_claim("a", "cam").build()).await.unwrap_err();
    assert_eq!(error_chain(&failed).to_string(), "the client of DRA driver gpu panicked");
    assert!(!manager.holds(&"a".into()) && drivers.calls().is_empty());
}

/// The tasks end although each write of the file panics.
#[actix::test]
async fn panic_of_the_last_write_does_not_keep_the_agent_from_stopping() {
    tokio::time::pause();
    let (drivers, claims) = (FakeDrivers::of(&["gpu"]), Arc::<FakeClaims>::default());
    let files = [(); 2].map(|()| Arc::<FakeFinalStatuses>::default());
    let opener = ManagerOpener::new(&claims, &drivers, Setup::again(true).clock);
    let (manager, stop) = opener.file(files[0].clone()).health_file(files[1].clone()).open();
    files.iter().for_each(|file| file.panics(true));
    let report = DeviceReport {
        pool: "pool".to_owned(),
        device: "g0".to_owned(),
        health: DeviceHealth::Healthy,
        timeout_seconds: 0,
        message: String::new(),
    };
    manager.reported(&"gpu".into(), vec![report]);
    stop.cancel();
    tokio::time::timeout(std::time::Duration::from_secs(600), manager.stopped()).await.expect("the tasks end");
}

/// DRA-M1: the gauge counts prepared claims, of all drivers and of each.
#[actix::test]
async fn gauge_counts_prepared_claims() {
    tokio::time::pause();
    let (drivers, claims, metrics) = (FakeDrivers::of(&["a", "b"]), Arc::<FakeClaims>::default(), Metrics::new());
    let clock = Setup::again(true).clock;
    let (manager, stop) = ManagerOpener::new(&claims, &drivers, clock).metrics(&metrics).open();
    claims.put("one", &["a"], &["p"]);
    claims.put("two", &["a", "b"], &["q"]);
    let gauge = |driver: &str| {
        let series = format!("dra_resource_claims_in_use{{driver_name=\"{driver}\"}} ");
        let text = metrics.encode(Format::Classic);
        text.lines().find_map(|line| line.strip_prefix(series.as_str())).map(str::to_owned)
    };
    assert_eq!(gauge("<any>").as_deref(), Some("0"));
    manager.prepare(&with_claim("p", "one").build()).await.unwrap();
    manager.prepare(&with_claim("q", "two").build()).await.unwrap();
    assert_eq!(["<any>", "a", "b"].map(|driver| gauge(driver).unwrap()), ["2", "2", "1"]);
    manager.release(&"q".into()).await.unwrap();
    assert_eq!((gauge("<any>").as_deref(), gauge("a").as_deref(), gauge("b")), (Some("1"), Some("1"), None));
    stop.cancel();
    // The first call may begin before the tasks have ended, the second one begins after that.
    for _ in 0..2 {
        let stopped = manager.prepare(&with_claim("q", "two").build()).await.unwrap_err();
        assert_eq!(error_chain(&stopped).to_string(), ClaimsError::Stopped.to_string());
    }
}

/// The driver registers 3 s after the pod's first try, as after a restart of the node. The backoff would end after 10 s.
#[actix::test]
async fn driver_that_is_back_ends_the_backoff_of_its_pods() {
    let this = ClaimNode::start(&[]).await;
    this.claims.put("cam", &["gpu"], &["a"]);
    this.node.deliver(&[with_claim("a", "cam")]).await;
    this.node.wait(3.0).await;
    assert_eq!((this.node.phase("a").as_str(), this.calls().len()), ("Pending", 0));
    this.drivers.register("gpu");
    this.manager.driver_usable(&"gpu".into());
    this.node.wait(1.0).await;
    assert_eq!((this.node.phase("a").as_str(), this.calls()), ("Running", vec!["gpu prepare cam".to_owned()]));
}
