//! The health of devices, from the socket of a driver to the status of a pod.

use std::sync::Arc;

use futures_util::FutureExt;
use k8s_openapi::api::core::v1::PodStatus;
use podwright_actors::claims::{ClaimFeatures, ClaimManager, ClaimPorts};
use podwright_dra::{DraPlugins, HealthStreams, PluginsConfig};
use podwright_dra_api::health::{DeviceHealth, DeviceIdentifier, HealthStatus, NodeWatchResourcesResponse};
use podwright_dra_api::{V1_SERVICE, v1};
use podwright_dra_tests::fake_driver::{Answer, FakeDriver, Serve, Served};
use podwright_fixtures::api_pods::{PodBuilder, pod};
use podwright_fixtures::fake_claims::FakeClaims;
use podwright_fixtures::fake_ports::FakeFinalStatuses;
use podwright_fixtures::polling::{PATIENCE, eventually, until};
use podwright_metrics::Metrics;
use podwright_model::pod::PodObject;
use podwright_ports::{ResourcePhase, SystemClock};
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::Status;

const DRIVER: &str = "gpu.acme.test";

/// A node with claims, and the plugins that prepare them.
struct Node {
    dir: tempfile::TempDir,
    plugins: Arc<DraPlugins>,
    claims: Arc<FakeClaims>,
    manager: Arc<ClaimManager>,
    stop: CancellationToken,
}

impl Node {
    fn start() -> Self {
        Self::start_with(ClaimFeatures::default())
    }

    fn start_with(features: ClaimFeatures) -> Self {
        let (dir, stop, metrics) = (tempfile::tempdir().unwrap(), CancellationToken::new(), Metrics::new());
        let registry = dir.path().join("plugins_registry");
        std::fs::create_dir(&registry).unwrap();
        let plugins = DraPlugins::start(PluginsConfig::new(registry), &metrics, &stop).unwrap();
        let claims = Arc::<FakeClaims>::default();
        let ports = ClaimPorts {
            api: Some(claims.clone()),
            drivers: plugins.drivers(),
            checkpoint: Arc::<FakeFinalStatuses>::default(),
            clock: Arc::new(SystemClock::new()),
            metrics: metrics.dra.clone(),
        };
        let (manager, tasks) = ClaimManager::open(ports, features).unwrap();
        actix::spawn(tasks.run(stop.clone()));
        plugins.watch_health(manager.clone());
        let waiting = manager.clone();
        plugins.on_usable(move |driver| waiting.driver_usable(driver));
        Node { dir, plugins, claims, manager, stop }
    }

    fn driver(&self) -> FakeDriver {
        FakeDriver::new(DRIVER, self.dir.path().join("dra.sock"))
    }

    async fn serve(&self, driver: &FakeDriver) -> [Served; 2] {
        let served = [driver.serve(Serve::All), driver.announce(&self.dir.path().join("plugins_registry/gpu.sock"))];
        let mut drivers = self.plugins.subscribe();
        let usable = drivers.wait_for(|drivers| drivers.is_usable(&DRIVER.into()));
        timeout(PATIENCE, usable).await.expect("the driver is connected").unwrap();
        served
    }

    /// Prepares the claims of a pod.
    async fn prepare(&self, pod: &PodBuilder) -> Arc<PodObject> {
        let pod = pod.build();
        self.manager.prepare(&pod).await.unwrap();
        pod
    }

    /// The pods whose statuses have changed.
    async fn changed(&self) -> Vec<String> {
        let changed = timeout(PATIENCE, self.manager.changed()).await.expect("a status changes");
        changed.into_iter().map(|uid| uid.to_string()).collect()
    }

    /// What the status of the pod's container shows of its devices.
    fn shown(&self, pod: &PodObject) -> Value {
        let container = json!({"name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0});
        let mut status: PodStatus = serde_json::from_value(json!({"containerStatuses": [container]})).unwrap();
        self.manager.fill_status(pod, None, &mut status);
        serde_json::to_value(status).unwrap()["containerStatuses"][0]["allocatedResourcesStatus"].clone()
    }

    async fn until_shown(&self, pod: &PodObject, expected: Value) {
        let what = format!("the status shows {expected}");
        eventually(&what, || async { (self.shown(pod) == expected).then_some(()) }).await;
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A driver that does not announce the service is asked once, and not again every 5 seconds.
#[actix::test]
async fn driver_without_the_service_is_asked_once() {
    let node = Node::start();
    let driver = node.driver();
    driver.set(|behaviour| behaviour.versions = vec![V1_SERVICE.to_owned()]);
    let _served = [driver.serve(Serve::V1), driver.announce(&node.dir.path().join("plugins_registry/gpu.sock"))];
    let is_not_offered = || node.plugins.states().iter().any(|state| state.health == Some(HealthStreams::NotOffered));
    until("the driver has refused the stream", is_not_offered).await;
}

/// A user sees whether a driver reports the health of its devices.
#[actix::test]
async fn state_of_a_driver_has_its_health_streams() {
    let node = Node::start();
    let driver = node.driver();
    let served = node.serve(&driver).await;
    let state = |text: &'static str| {
        let plugins = node.plugins.clone();
        let states = move || plugins.states().iter().map(ToString::to_string).collect::<Vec<_>>();
        async move { until(text, || matches!(&states()[..], [line] if line.ends_with(text))).await }
    };
    state("1 of 1 instances connected; reports the health of its devices").await;
    driver.end_health(None);
    state("the stream of device health ended: the driver ended it").await;
    drop(served);
    until("it is gone", || node.plugins.states().is_empty()).await;
}

/// A pod whose container uses the claim `cam` by this entry of its list.
fn with_entry(name: &str, entry: Value) -> PodBuilder {
    let container = json!({"name": "main", "image": "img", "resources": {"claims": [entry]}});
    let claims = json!([{"name": "dev", "resourceClaimName": "cam"}]);
    pod(name).spec("containers", json!([container])).spec("resourceClaims", claims)
}

fn with_claim(name: &str) -> PodBuilder {
    with_entry(name, json!({"name": "dev"}))
}

/// A report on the health of the device that the driver prepares. The report does not expire while a test runs.
fn report(health: HealthStatus, message: &str) -> NodeWatchResourcesResponse {
    let device = Some(DeviceIdentifier { pool_name: "n7".into(), device_name: "g0".into() });
    let (health, message, health_check_timeout_seconds) = (health.into(), message.into(), 3600);
    let device = DeviceHealth { device, health, message, health_check_timeout_seconds, ..Default::default() };
    NodeWatchResourcesResponse { devices: vec![device] }
}

/// The device of the driver for a request, without CDI devices.
fn device(request: &str, share: &str) -> Vec<v1::Device> {
    vec![v1::Device {
        request_names: vec![request.to_owned()],
        pool_name: "n7".to_owned(),
        device_name: "g0".to_owned(),
        cdi_device_ids: Vec::new(),
        share_id: Some(share.to_owned()),
    }]
}

fn entry(name: &str, health: &str) -> Value {
    json!([{"name": name, "resources": [{"resourceID": "gpu.acme.test/n7/g0", "health": health}]}])
}

/// DRA-H2, DRA-H11: the driver ends the stream, breaks it, or is gone. It is healthy again after it is back.
#[actix::test]
async fn health_is_unknown_after_the_stream_and_known_again_after_the_next_one() {
    let node = Node::start();
    let driver = node.driver();
    driver.set(|behaviour| behaviour.answer = Answer::Of(|_| device("r0", "s0")));
    node.claims.put("cam", &[DRIVER], &["a"]);
    for end in [Some(None), Some(Some(Status::internal("broken"))), None] {
        driver.send_health(report(HealthStatus::Healthy, ""));
        let served = node.serve(&driver).await;
        let pod = node.prepare(&with_claim("a")).await;
        node.until_shown(&pod, entry("claim:dev", "Healthy")).await;
        match end {
            Some(status) => driver.end_health(status),
            None => drop(served),
        }
        node.until_shown(&pod, entry("claim:dev", "Unknown")).await;
        assert_eq!(node.changed().await, ["a"]);
    }
}

/// DRA-H3
#[actix::test]
async fn all_pods_with_a_share_of_the_device_are_refreshed_together() {
    let node = Node::start();
    let driver = node.driver();
    driver.set(|behaviour| behaviour.answer = Answer::Of(|uid| device("r0", uid)));
    let _served = node.serve(&driver).await;
    for (claim, pod) in [("cam", "a"), ("mic", "b")] {
        node.claims.put(claim, &[DRIVER], &[pod]);
        let claims = json!([{"name": "dev", "resourceClaimName": claim}]);
        node.prepare(&with_claim(pod).spec("resourceClaims", claims)).await;
    }
    driver.send_health(report(HealthStatus::Unhealthy, "hot"));
    assert_eq!(node.changed().await, ["a", "b"]);
    driver.send_health(report(HealthStatus::Unhealthy, "hot"));
    driver.send_health(report(HealthStatus::Healthy, ""));
    assert_eq!(node.changed().await, ["a", "b"]);
    assert!(node.manager.changed().now_or_never().is_none(), "each change refreshes once");
}

/// DRA-H4: the claim has another name than the entry of the pod, or was generated from a template.
#[actix::test]
async fn entry_has_the_name_of_the_pod_claim() {
    let node = Node::start();
    let driver = node.driver();
    driver.set(|behaviour| behaviour.answer = Answer::Of(|_| device("r0", "s0")));
    driver.send_health(report(HealthStatus::Healthy, "fine"));
    let _served = node.serve(&driver).await;
    node.claims.put("cam", &[DRIVER], &["a"]);
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "b", "uid": "b", "controller": true}]);
    node.claims.put("b-dev-x7k2p", &[DRIVER], &["b"]);
    node.claims.own("b-dev-x7k2p", owner);
    let generated = with_claim("b")
        .spec("resourceClaims", json!([{"name": "dev", "resourceClaimTemplateName": "template"}]))
        .status_field("resourceClaimStatuses", json!([{"name": "dev", "resourceClaimName": "b-dev-x7k2p"}]));
    for pod in [with_claim("a"), generated] {
        let pod = node.prepare(&pod).await;
        let mut expected = entry("claim:dev", "Healthy");
        expected[0]["resources"][0]["message"] = json!("fine");
        node.until_shown(&pod, expected).await;
    }
}

/// DRA-H5
#[actix::test]
async fn entry_of_a_request_has_the_devices_of_its_base_request() {
    for (request, is_shown) in [("base", true), ("other", false)] {
        let node = Node::start();
        let driver = node.driver();
        let answer: fn(&str) -> Vec<v1::Device> = match is_shown {
            true => |_| device("base", "s0"),
            false => |_| device("other", "s0"),
        };
        driver.set(|behaviour| behaviour.answer = Answer::Of(answer));
        driver.send_health(report(HealthStatus::Healthy, ""));
        let _served = node.serve(&driver).await;
        node.claims.put("cam", &[DRIVER], &["a", "b"]);
        let pod = node.prepare(&with_entry("a", json!({"name": "dev", "request": "base/sub"}))).await;
        let all = node.prepare(&with_claim("b")).await;
        node.until_shown(&all, entry("claim:dev", "Healthy")).await;
        let expected = if is_shown { entry("claim:dev/base/sub", "Healthy") } else { Value::Null };
        assert_eq!(node.shown(&pod), expected, "a device of the request {request}");
    }
}

/// DRA-H6, DRA-H11: a device without CDI devices, and the switches of health and of its messages.
#[actix::test]
async fn status_shows_no_more_than_the_switches_permit() {
    let defaults = ClaimFeatures::default();
    let without_message = ClaimFeatures { health_message: false, ..defaults };
    for (features, message) in
        [(defaults, ""), (without_message, "hot"), (ClaimFeatures { health: false, ..defaults }, "hot")]
    {
        let node = Node::start_with(features);
        let driver = node.driver();
        driver.set(|behaviour| behaviour.answer = Answer::Of(|_| device("r0", "s0")));
        driver.send_health(report(HealthStatus::Unhealthy, message));
        let _served = node.serve(&driver).await;
        node.claims.put("cam", &[DRIVER], &["a"]);
        let pod = node.prepare(&with_claim("a")).await;
        let expected = if features.health { entry("claim:dev", "Unhealthy") } else { Value::Null };
        node.until_shown(&pod, expected).await;
    }
}

/// The driver registers after the first try, as after a restart of the node.
#[actix::test]
async fn pod_that_waits_for_its_driver_is_tried_again_when_the_driver_is_connected() {
    let node = Node::start();
    let driver = node.driver();
    node.claims.put("cam", &[DRIVER], &["a"]);
    let pod = with_claim("a").build();
    let error = node.manager.prepare(&pod).await.unwrap_err().to_string();
    assert!(error.contains("gpu.acme.test, which is not registered"), "{error}");
    let _served = node.serve(&driver).await;
    assert_eq!(node.changed().await, ["a"]);
    node.manager.prepare(&pod).await.unwrap();
    assert!(node.manager.changed().now_or_never().is_none(), "a try that succeeds is the last one");
}
