//! DRA-D6: the metadata of devices.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::resource::v1::{NetworkDeviceData, ResourceClaim};
use podwright_dra_api::v1::dra_plugin_client::DraPluginClient;
use podwright_dra_api::v1::{NodePrepareResourcesRequest, NodePrepareResourcesResponse, NodeUnprepareResourcesRequest};
use podwright_dra_driver::{
    ApiError, ClaimApi, ClaimMetadata, ClaimName, ClaimRef, DescribedDevice, DeviceMetadata, MetadataError,
    PreparedDevice, ReadMetadataError, RunningDriver, StartError,
};
use podwright_dra_tests::connect;
use podwright_ports::ApiFuture;
use serde_json::{Value, json};

use super::{Act, DRIVER, Folders, TestDriver, claim};

/// The claims of the API server: `cam`, and `pod-gpu-x7` from a template.
struct Claims;

impl ClaimApi for Claims {
    fn claim<'a>(&'a self, name: &'a ClaimName) -> ApiFuture<'a, Arc<ResourceClaim>> {
        let annotations = match name.name() {
            "pod-gpu-x7" => json!({"resource.kubernetes.io/pod-claim-name": "gpu"}),
            "escape" => json!({"resource.kubernetes.io/pod-claim-name": "../../etc"}),
            _ => json!({}),
        };
        let uid = if name.name() == "cam" { "c-1" } else { "c-2" };
        let result =
            |request: &str, device: &str| json!({"request": request, "driver": DRIVER, "pool": "n7", "device": device});
        let results = [result("r/a", "g0"), result("r/b", "g1"), result("r/b", "g2"), result("q", "g3")];
        let claim = json!({"metadata": {"name": name.name(), "namespace": "shop", "uid": uid, "annotations": annotations},
            "spec": {}, "status": {"allocation": {"devices": {"results": results}}}});
        Box::pin(async {
            serde_json::from_value(claim).map(Arc::new).map_err(|error| ApiError::unavailable(error, None))
        })
    }
}

fn device(name: &str, request: &str) -> PreparedDevice {
    PreparedDevice {
        pool: "n7".to_owned(),
        device: name.to_owned(),
        requests: vec![request.to_owned()],
        ..PreparedDevice::default()
    }
}

fn model(name: &str) -> DeviceMetadata {
    let attributes = serde_json::from_value(json!({"acme.test/model": {"string": name}})).unwrap();
    DeviceMetadata { attributes, network_data: None }
}

struct Driver {
    folders: Folders,
    test: TestDriver,
    running: RunningDriver,
}

impl Driver {
    async fn start() -> Self {
        let (folders, test) = (Folders::new(), TestDriver::new().0);
        let devices = [device("g0", "r/a"), device("g1", "r/b"), device("g2", "r/b"), device("g3", "q")];
        for claim in ["cam", "pod-gpu-x7", "escape"] {
            test.on(claim, Act::Devices(devices.to_vec()));
        }
        for name in ["g0", "g1", "g2", "g3"] {
            test.metadata.lock().insert(name.to_owned(), model(name));
        }
        let builder = folders.builder(test.clone()).claims(Arc::new(Claims));
        let builder = builder.device_metadata(true).cdi_dir(folders.root().join("cdi"));
        let running = builder.metadata_versions(["v9", "v1alpha1"]).start().await.unwrap();
        Driver { folders, test, running }
    }

    async fn prepare(&self, name: &str, uid: &str) -> NodePrepareResourcesResponse {
        let mut node = DraPluginClient::new(connect(self.running.endpoint()).await);
        let request = NodePrepareResourcesRequest { claims: vec![claim(name, uid)] };
        node.node_prepare_resources(request).await.unwrap().into_inner()
    }

    async fn unprepare(&self, name: &str, uid: &str) {
        let mut node = DraPluginClient::new(connect(self.running.endpoint()).await);
        let request = NodeUnprepareResourcesRequest { claims: vec![claim(name, uid)] };
        let answer = node.node_unprepare_resources(request).await.unwrap().into_inner();
        assert_eq!(answer.claims[uid].error, "");
    }

    fn host_file(&self, claim: &str, request: &str) -> PathBuf {
        self.folders.data(&format!("dra-device-metadata/shop_{claim}/{request}/metadata.json"))
    }

    fn cdi_files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folders.root().join("cdi")).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The path in containers for a CDI file, whose mount must come from the file on the host.
    fn mounted(&self, cdi_file: &str, host_file: &Path) -> String {
        let spec: Value = json(&self.folders.root().join("cdi").join(cdi_file));
        assert_eq!((&spec["cdiVersion"], &spec["kind"]), (&json!("0.5.0"), &json!("gpu.acme.test/metadata")));
        let mount = &spec["devices"][0]["containerEdits"]["mounts"][0];
        assert_eq!(mount["hostPath"], json!(host_file));
        assert_eq!(mount["options"], json!(["ro", "bind"]));
        mount["containerPath"].as_str().unwrap().to_owned()
    }
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn reference(name: &str, uid: &str) -> ClaimRef {
    ClaimRef { name: ClaimName::new("shop", name), uid: uid.into() }
}

#[tokio::test]
async fn containers_get_a_file_for_each_base_request() {
    let driver = Driver::start().await;
    let answer = driver.prepare("cam", "c-1").await;
    let ids: Vec<_> = answer.claims["c-1"].devices.iter().map(|device| device.cdi_device_ids.clone()).collect();
    assert_eq!(ids, [vec!["gpu.acme.test/metadata=c-1_r"], vec![], vec![], vec!["gpu.acme.test/metadata=c-1_q"]]);
    let [q, r] = ["q", "r"].map(|request| driver.host_file("cam", request));
    assert_eq!(driver.cdi_files(), ["gpu.acme.test_metadata_c-1_q.json", "gpu.acme.test_metadata_c-1_r.json"]);
    let root = "/var/run/kubernetes.io/dra-device-attributes";
    assert_eq!(
        driver.mounted("gpu.acme.test_metadata_c-1_r.json", &r),
        format!("{root}/resourceclaims/cam/r/gpu.acme.test-metadata.json")
    );
    let described = |name: &str| json!({"driver": DRIVER, "pool": "n7", "name": name, "attributes": {"acme.test/model": {"string": name}}});
    let expected = json!({
        "apiVersion": "metadata.resource.k8s.io/v1alpha1", "kind": "DeviceMetadata",
        "metadata": {"name": "cam", "namespace": "shop", "uid": "c-1", "generation": 1},
        "requests": [
            {"name": "r/a", "devices": [described("g0")]},
            {"name": "r/b", "devices": [described("g1"), described("g2")]},
        ],
    });
    assert_eq!(json(&r), expected);
    assert_eq!(json(&q)["requests"], json!([{"name": "q", "devices": [described("g3")]}]));

    driver.prepare("pod-gpu-x7", "c-2").await;
    let of_template = driver.host_file("pod-gpu-x7", "q");
    assert_eq!(
        driver.mounted("gpu.acme.test_metadata_c-2_q.json", &of_template),
        format!("{root}/resourceclaimtemplates/gpu/q/gpu.acme.test-metadata.json")
    );
    assert_eq!(ClaimMetadata::read(&of_template).unwrap().pod_claim_name.as_deref(), Some("gpu"));

    driver.unprepare("cam", "c-1").await;
    assert!(!r.exists() && !q.exists() && of_template.exists());
    assert_eq!(driver.cdi_files(), ["gpu.acme.test_metadata_c-2_q.json", "gpu.acme.test_metadata_c-2_r.json"]);
    driver.unprepare("cam", "c-1").await;
}

#[tokio::test]
async fn update_rewrites_the_mounted_file_with_the_next_generation() {
    let driver = Driver::start().await;
    driver.prepare("cam", "c-1").await;
    let path = driver.host_file("cam", "r");
    let (inode, before) = (fs::metadata(&path).unwrap().ino(), ClaimMetadata::read(&path).unwrap());
    driver.prepare("cam", "c-1").await;
    assert_eq!(ClaimMetadata::read(&path).unwrap(), before, "the same content has the same generation");

    let network_data = NetworkDeviceData { interface_name: Some("eth1".to_owned()), ..NetworkDeviceData::default() };
    let new = DescribedDevice {
        driver: DRIVER.to_owned(),
        pool: "n7".to_owned(),
        name: "g0".to_owned(),
        metadata: DeviceMetadata { network_data: Some(network_data), ..DeviceMetadata::default() },
    };
    driver.running.update_metadata(&reference("cam", "c-1"), "r/a", vec![new.clone()]).unwrap();
    let after = ClaimMetadata::read(&path).unwrap();
    assert_eq!((after.metadata.generation, &after.requests[0].devices[..]), (2, &[new][..]));
    assert_eq!(after.requests[1], before.requests[1]);
    assert_eq!(fs::metadata(&path).unwrap().ino(), inode, "the containers have mounted the file");
    // Less content, so that nothing of the longer one may remain.
    driver.running.update_metadata(&reference("cam", "c-1"), "r/b", Vec::new()).unwrap();
    assert_eq!(ClaimMetadata::read(&path).unwrap().metadata.generation, 3);

    let update = |claim: &ClaimRef, request: &str| driver.running.update_metadata(claim, request, Vec::new());
    assert!(matches!(update(&reference("cam", "c-1"), "r/c"), Err(MetadataError::UnknownRequest { .. })));
    assert!(matches!(update(&reference("cam", "c-1"), "s"), Err(MetadataError::UnknownRequest { .. })));
    assert!(matches!(update(&reference("cam", "c-9"), "r/a"), Err(MetadataError::UnknownClaim { .. })));
    assert!(matches!(update(&reference("../cam", "c-1"), "r/a"), Err(MetadataError::Name(_))));
}

#[tokio::test]
async fn files_of_an_earlier_claim_are_replaced_and_its_release_keeps_the_new_ones() {
    let driver = Driver::start().await;
    let (old, damaged) = (driver.host_file("cam", "old"), driver.host_file("cam", "r"));
    let earlier = json!({"apiVersion": "metadata.resource.k8s.io/v1alpha1", "kind": "DeviceMetadata",
        "metadata": {"name": "cam", "namespace": "shop", "uid": "c-0", "generation": 4}});
    for (path, text) in [(&old, earlier.to_string().as_str()), (&damaged, "{")] {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    driver.prepare("cam", "c-1").await;
    assert!(!old.exists());
    assert_eq!(ClaimMetadata::read(&damaged).unwrap().metadata.uid, "c-1");
    driver.unprepare("cam", "c-0").await;
    assert!(damaged.exists());
    driver.test.on("cam", Act::Fail);
    let mut node = DraPluginClient::new(connect(driver.running.endpoint()).await);
    let request = NodeUnprepareResourcesRequest { claims: vec![claim("cam", "c-1")] };
    let answer = node.node_unprepare_resources(request).await.unwrap().into_inner();
    assert_ne!(answer.claims["c-1"].error, "");
    assert!(damaged.exists(), "the claim is not released");
}

/// Files may be slow, and the driver may block while it describes a device. The calls of other claims run on.
#[tokio::test]
async fn files_are_written_on_threads_that_may_block() {
    let driver = Driver::start().await;
    driver.prepare("cam", "c-1").await;
    let threads = driver.test.described_on.lock().clone();
    assert!(!threads.is_empty() && !threads.contains(&std::thread::current().id()));
}

/// A driver was killed while it rewrote a file. The containers have mounted the file, so it is repaired in place.
#[tokio::test]
async fn rewrite_that_was_cut_off_is_repeated() {
    let driver = Driver::start().await;
    driver.prepare("cam", "c-1").await;
    let path = driver.host_file("cam", "r");
    let (inode, whole) = (fs::metadata(&path).unwrap().ino(), fs::read_to_string(&path).unwrap());
    let cut_off = |pending: Option<&str>| {
        fs::write(&path, &whole[..40]).unwrap();
        pending.into_iter().for_each(|text| fs::write(path.with_file_name("metadata.new"), text).unwrap());
    };
    let read = || {
        assert_eq!(fs::metadata(&path).unwrap().ino(), inode, "the containers have mounted the file");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing else remains");
        ClaimMetadata::read(&path).unwrap().metadata.generation
    };

    let next = whole.replace("\"generation\":1", "\"generation\":7");
    cut_off(Some(&next));
    driver.running.update_metadata(&reference("cam", "c-1"), "r/b", Vec::new()).unwrap();
    assert_eq!(read(), 8, "after the content that was being written");
    cut_off(Some(&next));
    driver.prepare("cam", "c-1").await;
    assert_eq!(read(), 7, "this is the content of the driver");
    // The second file may be damaged too, after a loss of power.
    for pending in [None, Some("{")] {
        cut_off(pending);
        let update = driver.running.update_metadata(&reference("cam", "c-1"), "r/b", Vec::new());
        assert!(matches!(update, Err(MetadataError::Damaged { .. })), "{update:?}");
        driver.prepare("cam", "c-1").await;
        assert_eq!(read(), 1);
    }
    cut_off(None);
    driver.unprepare("cam", "c-0").await;
    assert!(path.exists(), "another claim has no right to it");
    driver.unprepare("cam", "c-1").await;
    assert!(!driver.folders.data("dra-device-metadata/shop_cam").exists());
}

/// A prepare that was cut off leaves a folder without a file.
#[tokio::test]
async fn unprepare_leaves_no_folders() {
    let driver = Driver::start().await;
    fs::create_dir_all(driver.host_file("cam", "r").parent().unwrap()).unwrap();
    driver.unprepare("cam", "c-1").await;
    assert!(!driver.folders.data("dra-device-metadata/shop_cam").exists());
}

/// A larger file could not be read by containers, and would count as damaged.
#[tokio::test]
async fn metadata_that_is_too_large_is_not_written() {
    let driver = Driver::start().await;
    driver.prepare("cam", "c-1").await;
    let large = DescribedDevice { name: "g".repeat(4 << 20), ..DescribedDevice::default() };
    let update = driver.running.update_metadata(&reference("cam", "c-1"), "r/a", vec![large]);
    let Err(error @ MetadataError::TooLarge { .. }) = update else { panic!("{update:?}") };
    assert!(error.to_string().contains("at most 4194304"), "{error}");
    assert_eq!(ClaimMetadata::read(driver.host_file("cam", "r")).unwrap().metadata.generation, 1);
}

/// The author of a claim chooses the annotation. Its value becomes a part of a path in containers.
#[tokio::test]
async fn name_of_a_pod_claim_that_is_a_path_is_refused() {
    let driver = Driver::start().await;
    let answer = driver.prepare("escape", "c-2").await;
    assert!(answer.claims["c-2"].error.contains("../../etc"), "{}", answer.claims["c-2"].error);
    assert!(!driver.folders.data("dra-device-metadata").exists() && !driver.folders.root().join("cdi").exists());
}

#[tokio::test]
async fn driver_without_a_known_version_is_not_started_and_without_metadata_writes_none() {
    let folders = Folders::new();
    let builder = || folders.builder(TestDriver::new().0).without_api();
    let unknown = builder().device_metadata(true).metadata_versions(["v9"]).start().await;
    assert!(matches!(unknown, Err(StartError::MetadataVersions(versions)) if versions == ["v9"]));
    let driver = builder().start().await.unwrap();
    let refused = driver.update_metadata(&reference("cam", "c-1"), "r", Vec::new());
    assert!(matches!(refused, Err(MetadataError::Off)));
}

#[test]
fn first_object_with_a_known_version_is_read() {
    let object = |version: &str, generation: i64| {
        let identity = json!({"name": "cam", "namespace": "shop", "uid": "c-1", "generation": generation});
        json!({"apiVersion": format!("metadata.resource.k8s.io/{version}"), "kind": "DeviceMetadata",
            "metadata": identity, "new": true})
        .to_string()
    };
    let text = [object("v2", 1), object("v1alpha1", 2), object("v1alpha1", 3), "{".to_owned()].join("\n");
    assert_eq!(ClaimMetadata::parse(&text).unwrap().metadata.generation, 2);
    let error = ClaimMetadata::parse(&object("v2", 1)).unwrap_err();
    assert!(error.to_string().contains("metadata.resource.k8s.io/v2 DeviceMetadata"), "{error}");
    assert!(matches!(ClaimMetadata::parse("{"), Err(ReadMetadataError::Malformed(_))));
}
