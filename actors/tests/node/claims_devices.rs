//! Which claims a pod needs, and which devices its containers and its status get.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PodStatus;
use podwright_actors::claims::{ClaimFeatures, ClaimManager};
use podwright_fixtures::api_pods::{PodBuilder, pod};
use podwright_fixtures::fake_claims::{FakeClaims, FakeDrivers, prepared_device};
use podwright_fixtures::fake_ports::FakeFinalStatuses;
use podwright_model::ids::ClaimName;
use podwright_model::pod::PodObject;
use podwright_model::text::error_chain;
use podwright_ports::{DeviceHealth, DeviceHealthSink, DeviceReport, PreparedDevice, ResourcePhase};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::manager_opener::ManagerOpener;
use crate::support::test_node::Setup;

/// A manager of claims without a node.
struct Claims {
    api: Arc<FakeClaims>,
    drivers: Arc<FakeDrivers>,
    file: Arc<FakeFinalStatuses>,
    manager: Arc<ClaimManager>,
    _stop: CancellationToken,
}

impl Claims {
    fn new() -> Self {
        Claims::with(|_| {})
    }

    fn with(edit: impl FnOnce(&mut ClaimFeatures)) -> Self {
        let mut features = ClaimFeatures::default();
        edit(&mut features);
        let (drivers, api) = (FakeDrivers::of(&["gpu"]), Arc::<FakeClaims>::default());
        let (file, clock) = (Arc::<FakeFinalStatuses>::default(), Setup::again(true).clock);
        let (manager, _stop) = ManagerOpener::new(&api, &drivers, clock).features(features).file(file.clone()).open();
        Claims { api, drivers, file, manager, _stop }
    }

    async fn prepare(&self, pod: &Arc<PodObject>) -> Result<(), String> {
        let prepared = self.manager.prepare(pod).await;
        prepared.map_err(|error| error_chain(&error).to_string())
    }

    fn devices(&self, pod: &PodObject, container: &str) -> Result<Vec<String>, String> {
        self.manager.container_devices(pod, container).map_err(|error| error.to_string())
    }

    fn report(&self, health: DeviceHealth, message: &str) {
        let (pool, message) = ("pool".to_owned(), message.to_owned());
        let report = DeviceReport { pool, device: "g0".to_owned(), health, timeout_seconds: 0, message };
        self.manager.reported(&"gpu".into(), vec![report]);
    }

    /// What the status of the container `main` has of devices.
    fn status(&self, pod: &PodObject) -> Value {
        let container = json!({"name": "main", "image": "img", "imageID": "", "ready": true, "restartCount": 0});
        let mut status: PodStatus = serde_json::from_value(json!({"containerStatuses": [container]})).unwrap();
        self.manager.fill_status(pod, None, &mut status);
        serde_json::to_value(status).unwrap()["containerStatuses"][0]["allocatedResourcesStatus"].clone()
    }
}

/// A pod whose claim `cam` is used by its container `main` as these entries say.
fn with_uses(name: &str, uses: Value) -> PodBuilder {
    let container = json!({"name": "main", "image": "img", "resources": {"claims": uses}});
    let claims = json!([{"name": "dev", "resourceClaimName": "cam"}]);
    pod(name).spec("containers", json!([container])).spec("resourceClaims", claims)
}

fn device(name: &str, request: &str) -> PreparedDevice {
    let cdi_devices = vec![format!("gpu/gpu={name}")];
    PreparedDevice { requests: vec![request.to_owned()], cdi_devices, ..prepared_device(name) }
}

/// DRA-P5: a claim that no container uses is prepared too.
#[actix::test]
async fn claim_without_a_container_is_prepared() {
    let this = Claims::new();
    this.api.put("cam", &["gpu"], &["a"]);
    let pod = with_uses("a", json!([])).build();
    this.prepare(&pod).await.unwrap();
    assert_eq!(this.drivers.calls(), ["gpu prepare cam"]);
    assert_eq!(this.devices(&pod, "main"), Ok(vec![]));
    assert!(this.manager.holds(pod.uid()));
}

/// A container that names a claim and one of its requests, or two devices with one CDI device, gets each CDI device once.
#[actix::test]
async fn containers_get_each_cdi_device_once() {
    let this = Claims::new();
    this.api.put("cam", &["gpu"], &["a"]);
    let share = PreparedDevice { device: "share".to_owned(), ..device("g0", "r0") };
    this.drivers.set_devices(vec![device("g0", "r0"), share, device("g1", "r1")]);
    let pod = with_uses("a", json!([{"name": "dev"}, {"name": "dev", "request": "r0"}])).build();
    this.prepare(&pod).await.unwrap();
    assert_eq!(this.devices(&pod, "main").unwrap(), ["gpu/gpu=g0", "gpu/gpu=g1"]);
}

/// DRA-P9, DRA-G1, DRA-U3: a claim that stands for extended resources is prepared, its devices go to the containers of its mappings, and
/// it is released. The status has the health under the name of the resource.
#[actix::test]
async fn extended_resources_get_the_devices_of_their_claim() {
    let this = Claims::new();
    this.api.put("ext", &["gpu"], &["a"]);
    this.drivers.set_devices(vec![device("g0", "r0"), device("g1", "r1")]);
    let container = |name: &str, amount: &str| {
        let amounts = json!({"example.com/gpu": amount, "deviceclass.resource.kubernetes.io/fast": amount});
        json!({"name": name, "image": "img", "resources": {"requests": amounts, "limits": amounts}})
    };
    let mapping = |container: &str, resource: &str, request: &str| json!({"containerName": container, "resourceName": resource, "requestName": request});
    let claim = json!({"resourceClaimName": "ext", "requestMappings": [
        mapping("main", "example.com/gpu", "r0"),
        mapping("side", "deviceclass.resource.kubernetes.io/fast", "r1"),
        mapping("none", "example.com/gpu", "r0"),
    ]});
    let containers = json!([container("main", "1"), container("side", "2"), container("none", "0")]);
    let pod = pod("a").spec("containers", containers).status_field("extendedResourceClaimStatus", claim).build();
    this.prepare(&pod).await.unwrap();
    assert_eq!(this.drivers.calls(), ["gpu prepare ext"]);
    for (name, expected) in [("main", &["gpu/gpu=g0"][..]), ("side", &["gpu/gpu=g1"]), ("none", &[])] {
        assert_eq!(this.devices(&pod, name).unwrap(), expected, "{name}");
    }
    this.report(DeviceHealth::Healthy, "");
    let resources = json!([{"resourceID": "gpu/gpu=g0", "health": "Healthy"}]);
    assert_eq!(this.status(&pod), json!([{"name": "example.com/gpu", "resources": resources}]));
    this.manager.release(pod.uid()).await.unwrap();
    assert_eq!(this.drivers.calls().last().unwrap(), "gpu unprepare ext");
    // Without the feature, the pod needs no claim.
    let off = Claims::with(|features| features.extended_resources = false);
    off.prepare(&pod).await.unwrap();
    assert!(off.drivers.calls().is_empty());
    assert_eq!(off.devices(&pod, "main"), Ok(vec![]));
}

/// DRA-P10: a claim that is reserved for the group of the pod is the pod's only if the feature is on.
#[actix::test]
async fn claim_of_a_pod_group_needs_the_feature() {
    let claim = |owner: &str| {
        let consumer = json!({"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "team", "uid": "g"});
        let owner = json!({"apiVersion": "scheduling.k8s.io/v1alpha1", "kind": "PodGroup", "name": owner, "uid": "g", "controller": true});
        json!({"metadata": {"name": "cam", "namespace": "test", "uid": "u-cam", "ownerReferences": [owner]}, "spec": {},
            "status": {"allocation": {"devices": {"results": [
                {"request": "r0", "driver": "gpu", "pool": "pool", "device": "g0"}]}}, "reservedFor": [consumer]}})
    };
    let named = with_uses("a", json!([])).spec("schedulingGroup", json!({"podGroupName": "team"}));
    let generated = pod("a")
        .spec("schedulingGroup", json!({"podGroupName": "team"}))
        .spec("resourceClaims", json!([{"name": "dev", "resourceClaimTemplateName": "t"}]))
        .status_field("resourceClaimStatuses", json!([{"name": "dev", "resourceClaimName": "cam"}]));
    let (named, generated) = (named.build(), generated.build());
    let off = Claims::new();
    off.api.put_object("cam", claim("team"));
    assert!(off.prepare(&named).await.unwrap_err().contains("not allowed"));
    assert!(off.prepare(&generated).await.unwrap_err().contains("was not created for the pod"));
    let on = Claims::with(|features| features.pod_groups = true);
    on.api.put_object("cam", claim("team"));
    assert_eq!(on.prepare(&named).await, Ok(()));
    assert_eq!(on.prepare(&generated).await, Ok(()));
    on.api.put_object("cam", claim("other"));
    assert!(on.prepare(&generated).await.unwrap_err().contains("was not created for the pod"));
}

/// DRA-P12: the share id of a device is in the claim, in the file, and with the devices of the container.
#[actix::test]
async fn share_id_is_kept() {
    let this = Claims::new();
    this.api.put("cam", &["gpu"], &["a"]);
    let shared = PreparedDevice { share_id: Some("s-1".to_owned()), ..device("g0", "r0") };
    this.drivers.set_devices(vec![shared.clone()]);
    let pod = with_uses("a", json!([{"name": "dev"}])).build();
    this.prepare(&pod).await.unwrap();
    let claims = this.manager.container_claims(&pod, "main").unwrap();
    assert_eq!(claims[0].devices, [("gpu".into(), shared)]);
    let records = this.file.records();
    assert!(records.iter().any(|record| record.contains(r#""ShareID":"s-1""#)), "{records:?}");
}

/// DRA-G2: a container gets the devices of the requests that it names, and those of the whole claim if it names none.
#[actix::test]
async fn containers_get_the_devices_of_their_requests() {
    let this = Claims::new();
    this.api.put("cam", &["gpu"], &["a"]);
    this.drivers.set_devices(vec![device("g0", "r0"), device("g1", "r1")]);
    let container = |name: &str, uses: Value| json!({"name": name, "image": "img", "resources": {"claims": uses}});
    let all = json!([{"name": "dev"}]);
    let pod = pod("a")
        .spec("initContainers", json!([container("init", all.clone())]))
        .spec("containers", json!([container("a", all), container("b", json!([{"name": "dev", "request": "r1"}]))]))
        .spec("resourceClaims", json!([{"name": "dev", "resourceClaimName": "cam"}]))
        .build();
    this.prepare(&pod).await.unwrap();
    for (name, expected) in
        [("a", &["gpu/gpu=g0", "gpu/gpu=g1"][..]), ("init", &["gpu/gpu=g0", "gpu/gpu=g1"]), ("b", &["gpu/gpu=g1"])]
    {
        assert_eq!(this.devices(&pod, name).unwrap(), expected, "{name}");
    }
}

/// DRA-G1, DRA-G4: a container whose claim is not prepared, or cannot be determined, is not started.
#[actix::test]
async fn container_without_its_claim_is_an_error() {
    let this = Claims::new();
    let uses = json!([{"name": "dev"}]);
    let unprepared = with_uses("a", uses.clone()).build();
    assert_eq!(this.devices(&unprepared, "main").unwrap_err(), "ResourceClaim cam is not prepared on this node");
    let nameless = with_uses("a", uses).spec("resourceClaims", json!([{"name": "dev"}])).build();
    assert!(this.devices(&nameless, "main").unwrap_err().contains("unsupported fields"));
    let unknown = with_uses("a", json!([{"name": "other"}])).build();
    assert!(this.devices(&unknown, "main").unwrap_err().contains("which the pod does not have"));
    // A claim of another pod is not this pod's.
    this.api.put("cam", &["gpu"], &["b"]);
    this.prepare(&with_uses("b", json!([])).build()).await.unwrap();
    assert!(this.devices(&unprepared, "main").is_err());
    assert!(this.manager.read(|table| table.record(&ClaimName::new("test", "cam")).is_some()));
}

/// DRA-H3: all pods that share a device are refreshed, each once.
#[actix::test]
async fn pods_that_share_a_device_are_refreshed_once() {
    let this = Claims::new();
    for (claim, pod_name) in [("one", "a"), ("two", "b")] {
        this.api.put(claim, &["gpu"], &[pod_name]);
        let shared = PreparedDevice { share_id: Some(format!("s-{claim}")), ..device("g0", "r0") };
        this.drivers.set_devices(vec![shared]);
        let claims = json!([{"name": "dev", "resourceClaimName": claim}]);
        this.prepare(&pod(pod_name).spec("resourceClaims", claims).build()).await.unwrap();
    }
    this.report(DeviceHealth::Unhealthy, "");
    let mut changed: Vec<_> = this.manager.changed().await.iter().map(ToString::to_string).collect();
    changed.sort();
    assert_eq!(changed, ["a", "b"]);
}

/// DRA-H5: an alternative of a request has the devices of the request in the status.
#[actix::test]
async fn status_has_the_devices_of_the_request() {
    for (request, expected) in [
        (
            "base",
            json!([{"name": "claim:dev/base/sub", "resources": [{"resourceID": "gpu/gpu=g0", "health": "Unknown"}]}]),
        ),
        ("other", Value::Null),
    ] {
        let this = Claims::new();
        this.api.put("cam", &["gpu"], &["a"]);
        this.drivers.set_devices(vec![device("g0", request)]);
        let pod = with_uses("a", json!([{"name": "dev", "request": "base/sub"}])).build();
        this.prepare(&pod).await.unwrap();
        assert_eq!(this.status(&pod), expected, "{request}");
    }
}

/// DRA-H6, DRA-H11: a device without a CDI device has a name of its own, and the features decide what the status has.
#[actix::test]
async fn features_decide_what_the_status_has_of_devices() {
    type Edit = fn(&mut ClaimFeatures);
    let cases: [(Edit, &str, Option<Value>); 4] = [
        (|_| {}, "hot", Some(json!({"resourceID": "gpu/pool/g0", "health": "Unhealthy", "message": "hot"}))),
        (|_| {}, "", Some(json!({"resourceID": "gpu/pool/g0", "health": "Unhealthy"}))),
        (
            |features| features.health_message = false,
            "hot",
            Some(json!({"resourceID": "gpu/pool/g0", "health": "Unhealthy"})),
        ),
        (|features| features.health = false, "hot", None),
    ];
    for (edit, message, expected) in cases {
        let this = Claims::with(edit);
        this.api.put("cam", &["gpu"], &["a"]);
        this.drivers.set_devices(vec![prepared_device("g0")]);
        let pod = with_uses("a", json!([{"name": "dev"}])).build();
        this.prepare(&pod).await.unwrap();
        this.report(DeviceHealth::Unhealthy, message);
        let expected = expected.map_or(Value::Null, |resource| json!([{"name": "claim:dev", "resources": [resource]}]));
        assert_eq!(this.status(&pod), expected, "{message}");
    }
}
