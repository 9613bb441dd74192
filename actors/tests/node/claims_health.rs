//! The health of devices in the statuses of pods.

use std::sync::Arc;

use podwright_actors::claims::ClaimManager;
use podwright_fixtures::api_pods::{PodBuilder, pod};
use podwright_fixtures::fake_claims::{FakeClaims, FakeDrivers, prepared_device};
use podwright_fixtures::fake_ports::FakeFinalStatuses;
use podwright_ports::{DeviceHealth, DeviceHealthSink, DeviceReport, PreparedDevice, ResourcePhase};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::manager_opener::ManagerOpener;
use crate::support::test_node::{Setup, TestNode};

struct HealthNode {
    node: TestNode,
    claims: Arc<FakeClaims>,
    drivers: Arc<FakeDrivers>,
    manager: Arc<ClaimManager>,
    /// The file of device health.
    file: Arc<FakeFinalStatuses>,
    stop: CancellationToken,
}

impl HealthNode {
    fn start() -> Self {
        let (drivers, claims) = (FakeDrivers::of(&["gpu"]), Arc::<FakeClaims>::default());
        let setup = Setup::new(true);
        let file = Arc::<FakeFinalStatuses>::default();
        let opener = ManagerOpener::new(&claims, &drivers, setup.clock).health_file(file.clone());
        let (manager, stop) = opener.open();
        let node = Setup { resources: Some(manager.clone()), ..setup }.start();
        HealthNode { node, claims, drivers, manager, file, stop }
    }

    fn report(&self, health: DeviceHealth, message: &str) {
        self.report_all(&[("g0", health, message)]);
    }

    fn report_all(&self, devices: &[(&str, DeviceHealth, &str)]) {
        let report = |(device, health, message): &(&str, DeviceHealth, &str)| DeviceReport {
            pool: "pool".to_owned(),
            device: (*device).to_owned(),
            health: *health,
            timeout_seconds: 0,
            message: (*message).to_owned(),
        };
        self.manager.reported(&"gpu".into(), devices.iter().map(report).collect());
    }

    /// The resources in the status of the pod's container.
    fn resources(&self, name: &str) -> Value {
        let status = self.node.status(name);
        let status = serde_json::to_value(status).unwrap();
        status["containerStatuses"][0]["allocatedResourcesStatus"].clone()
    }
}

fn with_claim(name: &str, claim: &str) -> PodBuilder {
    let container = json!({"name": "main", "image": "img", "resources": {"claims": [{"name": "dev"}]}});
    let claims = json!([{"name": "dev", "resourceClaimName": claim}]);
    pod(name).spec("containers", json!([container])).spec("resourceClaims", claims)
}

fn entry(health: &str, message: Option<&str>) -> Value {
    let mut resource = json!({"resourceID": "gpu/gpu=cam", "health": health});
    if let Some(message) = message {
        resource["message"] = json!(message);
    }
    json!([{"name": "claim:dev", "resources": [resource]}])
}

/// Devices with one CDI device are one resource in the status, which shows the worst of them.
#[actix::test]
async fn devices_of_one_resource_show_the_worst_health() {
    let this = HealthNode::start();
    let of_claim =
        |name: &&str| PreparedDevice { cdi_devices: vec!["gpu/gpu=cam".to_owned()], ..prepared_device(name) };
    this.drivers.set_devices(["g0", "g1", "g2"].iter().map(of_claim).collect());
    this.claims.put("cam", &["gpu"], &["a"]);
    this.node.deliver(&[with_claim("a", "cam")]).await;
    this.node.wait(2.0).await;
    let healthy = ("g0", DeviceHealth::Healthy, "fine");
    let other = ("g2", DeviceHealth::Healthy, "");
    this.report_all(&[healthy, ("g1", DeviceHealth::Unknown, "no contact"), other]);
    this.node.wait(1.0).await;
    assert_eq!(this.resources("a"), entry("Unknown", Some("no contact")));
    this.report_all(&[healthy, ("g1", DeviceHealth::Unhealthy, "too hot"), other]);
    this.node.wait(1.0).await;
    assert_eq!(this.resources("a"), entry("Unhealthy", Some("too hot")));
}

/// DRA-H1, DRA-H4, DRA-H9, DRA-H11: the status follows the reports, the expiry, and the end of the streams.
#[actix::test]
async fn status_shows_the_health_of_devices() {
    let this = HealthNode::start();
    this.claims.put("cam", &["gpu"], &["a"]);
    this.node.deliver(&[with_claim("a", "cam"), pod("b")]).await;
    this.node.wait(2.0).await;
    assert_eq!(this.resources("a"), entry("Unknown", None));
    assert_eq!(this.resources("b"), Value::Null);
    this.report(DeviceHealth::Healthy, "fine");
    this.node.wait(1.0).await;
    assert_eq!(this.resources("a"), entry("Healthy", Some("fine")));
    this.manager.ended(&"gpu".into());
    this.node.wait(1.0).await;
    assert_eq!(this.resources("a"), entry("Unknown", None));
    this.report(DeviceHealth::Unhealthy, "");
    this.node.wait(1.0).await;
    assert_eq!(this.resources("a"), entry("Unhealthy", None));
    this.node.wait(32.0).await;
    assert_eq!(this.resources("a"), entry("Unknown", None));
}

/// DRA 11.11: the terminal status keeps the health from before the release.
#[actix::test]
async fn terminal_status_keeps_the_last_health() {
    let this = HealthNode::start();
    this.claims.put("cam", &["gpu"], &["a"]);
    this.node.deliver(&[with_claim("a", "cam").grace(1)]).await;
    this.node.wait(2.0).await;
    this.report(DeviceHealth::Unhealthy, "hot");
    this.node.wait(1.0).await;
    this.node.deliver(&[with_claim("a", "cam").deleting(1)]).await;
    this.node.wait(1.5).await;
    this.node.eventually(60.0, "the claim is released", || !this.manager.holds(&"a".into())).await;
    this.node.wait(1.0).await;
    assert!(this.node.phase("a") != "Running");
    assert_eq!(this.resources("a"), entry("Unhealthy", Some("hot")));
}

/// The message of the device in the file.
fn message_in(file: &FakeFinalStatuses) -> String {
    let content: Value = serde_json::from_str(&file.records()[0]).unwrap();
    content["gpu"]["Devices"]["pool/g0"]["Message"].as_str().unwrap().to_owned()
}

/// A driver that reports often causes few writes of the file, and the file gets the newest report. One write runs at a time: each of them
/// takes longer than the time between two reports.
#[actix::test]
async fn file_of_health_is_written_rarely_and_has_the_newest_report() {
    let this = HealthNode::start();
    this.file.slow(300);
    for report in 0..100 {
        this.report(DeviceHealth::Healthy, &format!("report {report}"));
        this.node.wait(0.1).await;
    }
    this.node.wait(5.0).await;
    assert_eq!(message_in(&this.file), "report 99");
    let writes = this.file.writes();
    assert!((5..=9).contains(&writes), "one write in 1.3 s: {writes}");
    this.node.wait(20.0).await;
    assert_eq!(this.file.writes(), writes, "nothing has changed");
}

/// A report that arrives during a write is written by the next one.
#[actix::test]
async fn report_during_a_write_is_not_lost() {
    let this = HealthNode::start();
    this.file.slow(300);
    this.report(DeviceHealth::Healthy, "first");
    this.node.wait(0.1).await;
    this.report(DeviceHealth::Healthy, "second");
    this.node.wait(5.0).await;
    assert_eq!((message_in(&this.file).as_str(), this.file.writes()), ("second", 2));
}

/// The report arrives less than the shortest time between two writes before the agent stops.
#[actix::test]
async fn last_report_is_in_the_file_after_a_stop() {
    let this = HealthNode::start();
    this.report(DeviceHealth::Healthy, "first");
    this.node.wait(0.1).await;
    this.report(DeviceHealth::Unhealthy, "last");
    this.stop.cancel();
    this.manager.stopped().await;
    assert_eq!(message_in(&this.file), "last");
}

/// The stop comes before the next try of a write that failed.
#[actix::test]
async fn write_of_health_that_failed_is_repeated_at_a_stop() {
    let this = HealthNode::start();
    this.file.broken(true);
    this.report(DeviceHealth::Healthy, "first");
    this.node.wait(2.0).await;
    this.file.broken(false);
    this.stop.cancel();
    this.manager.stopped().await;
    assert_eq!(message_in(&this.file), "first");
}

/// A panic of the task that keeps the health ends neither the expiry of reports nor the writes.
#[actix::test]
async fn health_is_kept_after_a_panic() {
    let this = HealthNode::start();
    this.claims.put("cam", &["gpu"], &["a"]);
    this.node.deliver(&[with_claim("a", "cam")]).await;
    this.node.wait(2.0).await;
    this.file.panics(true);
    this.report(DeviceHealth::Healthy, "fine");
    this.node.wait(3.0).await;
    this.file.panics(false);
    this.node.wait(2.0).await;
    assert_eq!(message_in(&this.file), "fine");
    this.node.wait(30.0).await;
    assert_eq!(this.resources("a"), entry("Unknown", None), "the report expires");
}
