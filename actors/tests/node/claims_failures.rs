//! Known failures of other agents with claims, on a whole node with fake drivers.

use std::time::Duration;

use podwright_core::pod_worker::Lifecycle;
use podwright_fixtures::api_pods::{PodBuilder, pod};
use podwright_fixtures::fake_claims::prepared_device;
use podwright_fixtures::scripted_runtime::Script;
use podwright_model::ids::{ClaimName, FullName};
use podwright_ports::{DeviceHealth, DeviceHealthSink, DeviceReport, PreparedDevice, ResourcePhase};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::claims::{ClaimNode, with_claim};
use super::explain::reading::waits;

/// A pod whose claim was created from a template.
fn of_template(name: &str) -> PodBuilder {
    let container = json!({"name": "main", "image": "img", "resources": {"claims": [{"name": "gpu"}]}});
    let claims = json!([{"name": "gpu", "resourceClaimTemplateName": "t"}]);
    pod(name).spec("containers", json!([container])).spec("resourceClaims", claims)
}

/// KF37: another client has wiped the names of the claims from the status of the pod, and the claim is gone. The agent knows what it
/// has prepared from its own records.
#[actix::test]
async fn wiped_status_does_not_keep_a_pod_from_its_release() {
    let this = ClaimNode::start(&["gpu"]).await;
    let result = json!({"request": "r0", "driver": "gpu", "pool": "pool", "device": "g0"});
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "a", "controller": true});
    this.claims.put_object(
        "a-gpu",
        json!({
            "metadata": {"name": "a-gpu", "namespace": "test", "uid": "u-a-gpu", "ownerReferences": [owner]},
            "spec": {},
            "status": {"allocation": {"devices": {"results": [result]}},
                       "reservedFor": [{"resource": "pods", "name": "a", "uid": "a"}]},
        }),
    );
    let names = json!([{"name": "gpu", "resourceClaimName": "a-gpu"}]);
    this.node.deliver(&[of_template("a").status_field("resourceClaimStatuses", names)]).await;
    this.node.wait(2.0).await;
    assert_eq!(this.node.phase("a"), "Running");
    this.claims.remove("a-gpu");
    this.node.deliver(&[of_template("a").deleting(1)]).await;
    this.node.eventually(60.0, "the claim is released", || this.drivers.prepared().is_empty()).await;
    this.node.wait(5.0).await;
    assert_eq!(this.calls(), ["gpu prepare a-gpu", "gpu unprepare a-gpu"]);
    assert!(matches!(this.node.phase("a").as_str(), "Succeeded" | "Failed"), "{}", this.node.phase("a"));
}

/// KF40: a pod whose claim is being unprepared for another pod waits, and then gets the claim prepared anew.
#[actix::test]
async fn pod_does_not_adopt_a_claim_that_is_being_unprepared() {
    let this = ClaimNode::start(&["gpu"]).await;
    this.claims.put("cam", &["gpu"], &["a", "b"]);
    let first = || with_claim("a", "cam").grace(1);
    this.node.deliver(&[first()]).await;
    this.node.wait(2.0).await;
    this.drivers.withhold_answers(true);
    this.node.deliver(&[first().deleting(1)]).await;
    this.node.eventually(30.0, "the driver is called", || this.calls().len() == 2).await;
    this.node.deliver(&[first().deleting(1), with_claim("b", "cam")]).await;
    this.node.wait(20.0).await;
    assert_eq!(this.calls(), ["gpu prepare cam", "gpu unprepare cam"]);
    assert_eq!(this.node.phase("b"), "Pending");
    assert!(this.node.runtime.calls_of("b").iter().all(|call| !call.contains("sandbox")), "it has no device yet");
    this.drivers.withhold_answers(false);
    this.node.eventually(30.0, "the second pod runs", || this.node.phase("b") == "Running").await;
    assert_eq!(this.calls(), ["gpu prepare cam", "gpu unprepare cam", "gpu prepare cam"]);
    assert_eq!(this.drivers.prepared(), ["gpu u-cam"]);
    assert_eq!(this.node.lifecycle("a"), Some(Lifecycle::Finished));
}

/// A claim of one device for one pod.
fn claim_of(pod: &str, uid: &str, device: &str) -> Value {
    let result = json!({"request": "r0", "driver": "gpu", "pool": "pool", "device": device});
    json!({
        "metadata": {"name": "cam", "namespace": "test", "uid": uid},
        "spec": {},
        "status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": [{"resource": "pods", "name": pod, "uid": pod}]},
    })
}

/// A pod fails to get its claim while the pod of the earlier one stops. It runs as soon as the earlier one is released. Its backoff would
/// end after 10 s.
async fn runs_after_the_release_of_the_earlier_devices(uid: &str, device: &str) {
    let this = ClaimNode::start(&["gpu"]).await;
    this.claims.put_object("cam", claim_of("a", "u-1", "g0"));
    this.node.runtime.script("main", Script::stubborn());
    this.node.deliver(&[with_claim("a", "cam")]).await;
    this.node.wait(2.0).await;
    this.claims.put_object("cam", claim_of("b", uid, device));
    this.node.deliver(&[with_claim("a", "cam").deleting(5), with_claim("b", "cam")]).await;
    this.node.wait(3.0).await;
    let text = waits(&this.node, "b");
    assert!(text.contains("released yet"), "{text}");
    this.node.wait(4.0).await;
    assert_eq!(this.calls(), ["gpu prepare cam", "gpu unprepare cam", "gpu prepare cam"]);
    assert_eq!(this.node.phase("b"), "Running");
}

#[actix::test]
async fn pod_of_a_replaced_claim_runs_when_the_earlier_claim_is_released() {
    runs_after_the_release_of_the_earlier_devices("u-2", "g0").await;
}

#[actix::test]
async fn pod_of_a_reallocated_claim_runs_when_its_earlier_devices_are_released() {
    runs_after_the_release_of_the_earlier_devices("u-1", "g1").await;
}

/// The claim is allocated anew while no agent runs, and the containers of the earlier pod still run. The next agent knows the earlier devices
/// from its file, and gives them back before it prepares the new ones.
#[actix::test]
async fn earlier_devices_of_a_claim_reallocated_over_a_restart_are_released_first() {
    let this = ClaimNode::start(&["gpu"]).await;
    this.claims.put_object("cam", claim_of("a", "u-1", "g0"));
    this.node.runtime.script("main", Script::stubborn());
    this.node.deliver(&[with_claim("a", "cam")]).await;
    this.node.wait(2.0).await;
    let this = this.restart();
    this.claims.put_object("cam", claim_of("b", "u-1", "g1"));
    this.node.deliver(&[with_claim("b", "cam")]).await;
    this.node.wait(1.0).await;
    let text = waits(&this.node, "b");
    assert!(text.contains("released yet"), "{text}");
    assert_eq!(this.node.runtime.running("a"), ["main"]);
    assert_eq!(this.calls(), ["gpu prepare cam"]);
    this.node.eventually(200.0, "b runs", || this.node.phase("b") == "Running").await;
    assert_eq!(this.node.runtime.running("a"), [""; 0]);
    assert_eq!(this.calls(), ["gpu prepare cam", "gpu unprepare cam", "gpu prepare cam"]);
}

/// KF36: an operator gives up a driver that hangs. The command answers and the pod ends at once. A pod that gets the claim next waits for
/// the end of the call.
#[actix::test]
async fn driver_that_hangs_is_given_up_at_once() {
    let this = ClaimNode::start(&["gpu"]).await;
    this.claims.put("cam", &["gpu"], &["a", "b"]);
    this.node.deliver(&[with_claim("a", "cam").grace(1)]).await;
    this.node.wait(2.0).await;
    this.drivers.block(true);
    this.node.deliver(&[with_claim("a", "cam").deleting(1)]).await;
    this.node.eventually(30.0, "the driver is called", || this.calls().len() == 2).await;
    let cam = ClaimName::new("test", "cam");
    let given_up = timeout(Duration::from_secs(1), this.manager.give_up(&cam, &"gpu".into())).await;
    given_up.expect("the driver is not waited for").unwrap();
    this.node.wait(1.0).await;
    assert!(!this.manager.holds(&"a".into()));
    assert_eq!(this.node.phase("a"), "Succeeded");
    this.node.deliver(&[with_claim("a", "cam").deleting(1), with_claim("b", "cam")]).await;
    this.node.wait(3.0).await;
    assert_eq!((this.node.phase("b").as_str(), this.calls().len()), ("Pending", 2));
    let text = waits(&this.node, "b");
    assert!(text.contains("ResourceClaim test/cam is not prepared: DRA driver gpu has not answered"), "{text}");
    this.drivers.block(false);
    this.node.wait(1.0).await;
    assert_eq!(this.node.phase("b"), "Running");
    assert_eq!(this.calls(), ["gpu prepare cam", "gpu unprepare cam", "gpu prepare cam"]);
}

/// KF41: the agent is killed after a driver has done its work and before the answer. The next agent knows of the call, and gives the
/// devices of a pod that is gone back.
#[actix::test]
async fn killed_agent_leaves_no_prepared_claim() {
    let this = ClaimNode::start(&["gpu"]).await;
    this.claims.put("cam", &["gpu"], &["a"]);
    this.drivers.withhold_answers(true);
    this.node.deliver(&[with_claim("a", "cam")]).await;
    this.node.wait(2.0).await;
    assert_eq!(this.drivers.prepared(), ["gpu u-cam"]);
    this.drivers.withhold_answers(false);
    let this = this.restart();
    this.node.deliver(&[]).await;
    this.node.eventually(65.0, "the claim is released", || this.drivers.prepared().is_empty()).await;
    assert_eq!(this.calls(), ["gpu prepare cam", "gpu unprepare cam"]);
    // The agent is killed once more, after the driver has released the claim and before the answer.
    this.claims.put("mic", &["gpu"], &["b"]);
    this.node.deliver(&[with_claim("b", "mic").grace(1)]).await;
    this.node.eventually(30.0, "the pod runs", || this.node.phase("b") == "Running").await;
    this.drivers.withhold_answers(true);
    this.node.deliver(&[with_claim("b", "mic").deleting(1)]).await;
    this.node.eventually(30.0, "the driver has released it", || this.drivers.prepared().is_empty()).await;
    this.drivers.withhold_answers(false);
    let this = this.restart();
    this.node.deliver(&[]).await;
    let holds = || this.manager.read(|table| table.record(&ClaimName::new("test", "mic")).is_some());
    this.node.eventually(65.0, "the agent forgets the claim", || !holds()).await;
    assert_eq!(this.calls()[2..], ["gpu prepare mic", "gpu unprepare mic", "gpu unprepare mic"]);
}

/// A driver does not answer for longer than the period of housekeeping. The passes in the meantime begin no other tries: the next
/// one comes a period after the first has failed.
#[actix::test]
async fn claims_of_an_ended_pod_are_released_by_one_try_at_a_time() {
    let this = ClaimNode::start(&["gpu"]).await;
    this.claims.put("cam", &["gpu"], &["a"]);
    this.node.deliver(&[with_claim("a", "cam").grace(1)]).await;
    this.node.wait(2.0).await;
    let this = this.restart();
    this.drivers.block(true);
    this.node.deliver(&[]).await;
    this.node.eventually(130.0, "the driver is called", || this.calls().len() == 2).await;
    this.node.wait(30.0).await;
    this.drivers.fail("gpu", "busy");
    this.drivers.block(false);
    this.node.wait(50.0).await;
    assert_eq!(this.calls(), ["gpu prepare cam", "gpu unprepare cam"]);
    this.drivers.heal("gpu");
    this.node.eventually(20.0, "the claim is released", || this.drivers.prepared().is_empty()).await;
}

/// The specification of a device vanishes while its pod runs, for example because its driver has cleaned up. A container that starts again
/// makes the driver prepare the claim again.
#[actix::test]
async fn device_that_is_missing_is_prepared_again() {
    let this = ClaimNode::start(&["gpu"]).await;
    this.claims.put("cam", &["gpu"], &["a"]);
    this.node.runtime.script("main", Script::ends(20.0, 1));
    this.node.deliver(&[with_claim("a", "cam")]).await;
    this.node.wait(2.0).await;
    this.node.runtime.lose_device("gpu/gpu=cam");
    // The driver is away at first. Then each prepare writes another specification.
    this.drivers.fail("gpu", "unavailable");
    this.drivers.set_devices(vec![PreparedDevice { cdi_devices: vec!["gpu/gpu=new".into()], ..prepared_device("g0") }]);
    this.node.wait(40.0).await;
    assert!(this.node.runtime.running("a").is_empty());
    assert!(this.node.events.has("a", "FailedPrepareDynamicResources"));
    this.drivers.heal("gpu");
    // Its next start has the backoff of a container that has failed.
    this.node.eventually(60.0, "the container runs again", || !this.node.runtime.running("a").is_empty()).await;
    assert_eq!(this.node.runtime.cdi_devices("a"), ["gpu/gpu=new"]);
    let sandboxes = this.node.runtime.calls_of("a").iter().filter(|call| call.contains("sandbox")).count();
    assert_eq!(sandboxes, 1, "in its sandbox");
}

/// KF42: however often the agent restarts and prepares a claim again, the claim has the devices of one call.
#[actix::test]
async fn restarts_do_not_multiply_devices() {
    let mut this = ClaimNode::start(&["gpu"]).await;
    this.claims.put("cam", &["gpu"], &["a"]);
    this.node.deliver(&[with_claim("a", "cam")]).await;
    this.node.wait(2.0).await;
    let mut records = Vec::new();
    for restart in 1..=5 {
        this = this.restart();
        this.node.deliver(&[with_claim("a", "cam")]).await;
        this.node.wait(2.0).await;
        // A new sandbox prepares the claim again.
        this.node.runtime.end_sandbox("a");
        this.node.eventually(60.0, "the claim is prepared again", || this.calls().len() == restart + 1).await;
        this.node.eventually(60.0, "the pod runs again", || !this.node.runtime.running("a").is_empty()).await;
        assert_eq!(this.node.runtime.cdi_devices("a"), ["gpu/gpu=cam"]);
        records.push(this.manager.read(|table| table.record(&ClaimName::new("test", "cam")).cloned()));
    }
    assert!(records.iter().all(|record| *record == records[0]), "{records:?}");
    let last: Value = serde_json::from_str(this.file.records().last().unwrap()).unwrap();
    assert_eq!(last["DriverState"]["gpu"]["Devices"].as_array().map(Vec::len), Some(1), "{last}");
    let text = waits(&this.node, "a");
    assert!(!text.contains("devices"), "it waits for no claim: {text}");
}

/// A pod whose container uses two claims.
fn with_claims(name: &str, first: &str, second: &str) -> PodBuilder {
    let container =
        json!({"name": "main", "image": "img", "resources": {"claims": [{"name": "one"}, {"name": "two"}]}});
    let claims = json!([{"name": "one", "resourceClaimName": first}, {"name": "two", "resourceClaimName": second}]);
    pod(name).spec("containers", json!([container])).spec("resourceClaims", claims)
}

/// POD-W21: a driver that cannot be reached delays no claim of another driver, and is not called for the release.
#[actix::test]
async fn unreachable_driver_delays_no_claim_of_another_driver() {
    let this = ClaimNode::start(&["gpu", "nic"]).await;
    this.claims.put("cam", &["gpu"], &["a"]);
    this.claims.put("net", &["nic"], &["a"]);
    this.drivers.set_reachable("nic", false);
    this.node.deliver(&[with_claims("a", "cam", "net")]).await;
    this.node.wait(2.0).await;
    assert_eq!((this.node.phase("a").as_str(), this.calls()), ("Pending", vec!["gpu prepare cam".to_owned()]));
    let text = waits(&this.node, "a");
    assert!(text.contains("ResourceClaim test/net is not prepared: DRA driver nic cannot be reached"), "{text}");
    assert!(!text.contains("test/cam"), "{text}");
    this.node.deliver(&[with_claims("a", "cam", "net").deleting(0)]).await;
    this.node.eventually(30.0, "the pod has finished", || !this.manager.holds(&"a".into())).await;
    assert_eq!(this.calls(), ["gpu prepare cam", "gpu unprepare cam"]);
}

/// KF36: the explanation of the node names the claim of a pod that no source knows any more. Its release is tried again as soon as its
/// driver is back.
#[actix::test]
async fn claim_of_an_ended_pod_is_explained_and_released_when_its_driver_is_back() {
    let this = ClaimNode::start(&["gpu"]).await;
    this.claims.put("cam", &["gpu"], &["a"]);
    this.node.deliver(&[with_claim("a", "cam").grace(1)]).await;
    this.node.wait(2.0).await;
    let this = this.restart();
    this.drivers.fail("gpu", "no power");
    this.node.deliver(&[]).await;
    this.node.eventually(130.0, "the driver is called", || this.calls().len() == 2).await;
    this.node.wait(1.0).await;
    let problems = this.node.node.explainer().node_problems();
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert_eq!(
        problem.detail,
        "the pod with UID a has ended, and ResourceClaim test/cam is not released: DRA driver gpu: no power; it is released when \
         DRA driver gpu answers, or an operator gives the driver up (podwright give-up test/cam --driver gpu)"
    );
    assert_eq!(
        (problem.claim.as_deref(), problem.driver.as_deref(), problem.tries),
        (Some("test/cam"), Some("gpu"), Some(1))
    );
    assert!(problem.next.is_some());
    this.drivers.heal("gpu");
    this.manager.driver_usable(&"gpu".into());
    // Not with the next pass of the grid, which is due in a second.
    this.node.wait(0.1).await;
    assert!(this.drivers.prepared().is_empty());
    assert_eq!(this.node.node.explainer().node_problems(), []);
}

/// The driver of a pod without a worker reports another health all the time. Only the grid makes passes.
#[actix::test]
async fn health_of_a_device_of_an_ended_pod_causes_no_pass() {
    let this = ClaimNode::start(&["gpu"]).await;
    this.claims.put("cam", &["gpu"], &["a"]);
    this.node.deliver(&[with_claim("a", "cam").grace(1)]).await;
    this.node.wait(2.0).await;
    let this = this.restart();
    this.drivers.fail("gpu", "no power");
    this.node.deliver(&[]).await;
    this.node.eventually(130.0, "the driver is called", || this.calls().len() == 2).await;
    this.node.wait(1.0).await;
    let passes = || this.node.metric("podwright_actor_messages_total{actor=\"housekeeping\"}");
    let before = passes();
    assert!(before > 0.0);
    for report in 0..100 {
        let health = if report % 2 == 0 { DeviceHealth::Healthy } else { DeviceHealth::Unhealthy };
        let (pool, device, message) = ("pool".to_owned(), "g0".to_owned(), String::new());
        let report = DeviceReport { pool, device, health, timeout_seconds: 0, message };
        this.manager.reported(&"gpu".into(), vec![report]);
        this.node.wait(0.01).await;
    }
    let passed = passes() - before;
    assert!(passed <= 1.0, "{passed} passes in a second");
}

// The agent was killed after the release of the claim, and the runtime finished a sandbox whose creation had been cancelled.
#[actix::test]
async fn container_does_not_start_in_a_late_sandbox_without_its_devices() {
    let this = ClaimNode::start(&["gpu"]).await;
    this.claims.put("cam", &["gpu"], &["a"]);
    this.drivers.fail("gpu", "unavailable");
    this.node.runtime.plant_sandbox("a", FullName::new("test", "a"));
    // The container uses no claim itself. Upstream prepares all claims of a pod before its first container.
    let pod = with_claim("a", "cam").containers(&["main"]);
    this.node.deliver(std::slice::from_ref(&pod)).await;
    this.node.wait(5.0).await;
    assert_eq!(this.node.runtime.running("a"), [""; 0]);
    assert!(this.node.events.has("a", "FailedPrepareDynamicResources"));
    this.drivers.heal("gpu");
    this.node.wait(15.0).await;
    assert_eq!(this.node.runtime.running("a"), ["main"]);
    assert_eq!(this.drivers.prepared().len(), 1);
}

// After a restart of the agent, nothing is prepared in its lifetime. A container that has run keeps its devices.
#[actix::test]
async fn container_that_has_run_starts_again_although_the_driver_is_away_and_another_container_waits_for_it() {
    let this = ClaimNode::start(&["gpu"]).await;
    this.claims.put("cam", &["gpu"], &["a"]);
    this.node.runtime.script("main", Script::ends(20.0, 1));
    this.node.runtime.no_image("missing");
    let containers = json!([{"name": "main", "image": "img"}, {"name": "other", "image": "missing"}]);
    let pod = with_claim("a", "cam").spec("containers", containers);
    this.node.deliver(std::slice::from_ref(&pod)).await;
    this.node.wait(3.0).await;
    assert_eq!(this.node.runtime.running("a"), ["main"]);
    let this = this.restart();
    this.drivers.fail("gpu", "unavailable");
    this.node.deliver(&[pod]).await;
    let starts = this.node.runtime.times_of("start main").len();
    this.node.wait(60.0).await;
    assert!(this.node.runtime.times_of("start main").len() > starts, "it needs no driver");
    assert!(this.node.events.has("a", "FailedPrepareDynamicResources"));
}
