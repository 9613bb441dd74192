//! The pod-resources socket of the real agent.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use futures_util::future::join_all;
use podwright_dra_api::pod_resources::pod_resources_lister_client::PodResourcesListerClient;
use podwright_dra_api::pod_resources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, CdiDevice, ClaimResource, ContainerResources,
    DynamicResource, GetPodResourcesRequest, ListPodResourcesRequest, ListPodResourcesResponse, PodResources,
};
use podwright_dra_tests::connect;
use podwright_dra_tests::http2::{SETTINGS, call, field, frame, response};
use prost::Message;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::claim_cluster::{ClaimCluster, DRIVER};
use crate::agent::harness::{AgentHome, eventually};

const SHARE: &str = "8a5cc1c5-46bb-4a2c-8a43-1e05e6f4ca27";
const SLEEPS: &str = "exec sleep 1000";

fn socket(home: &AgentHome) -> PathBuf {
    home.root().join("pod-resources/kubelet.sock")
}

async fn lister(home: &AgentHome) -> PodResourcesListerClient<Channel> {
    let path = socket(home);
    eventually("the socket exists", || async { path.exists().then_some(()) }).await;
    PodResourcesListerClient::new(connect(&path).await)
}

fn request(name: &str) -> GetPodResourcesRequest {
    GetPodResourcesRequest { pod_name: name.to_owned(), pod_namespace: "default".to_owned() }
}

async fn get(lister: &mut PodResourcesListerClient<Channel>, name: &str) -> Result<PodResources, Status> {
    lister.get(request(name)).await.map(|answer| answer.into_inner().pod_resources.unwrap())
}

async fn listed(lister: &mut PodResourcesListerClient<Channel>) -> Vec<String> {
    let pods = lister.list(ListPodResourcesRequest {}).await.unwrap().into_inner().pod_resources;
    pods.into_iter().map(|pod| pod.name).collect()
}

fn container(name: &str, script: &str, claims: Value) -> Value {
    json!({"name": name, "image": "img", "command": ["/bin/sh", "-c", script], "resources": {"claims": claims}})
}

/// Creates a pod and binds it to the node.
fn run(cluster: &ClaimCluster, name: &str, mut spec: Value) {
    spec["automountServiceAccountToken"] = json!(false);
    spec["restartPolicy"] = json!("Never");
    spec["terminationGracePeriodSeconds"] = json!(1);
    let pod = json!({"metadata": {"name": name}, "spec": spec});
    cluster.server.create("/api/v1/namespaces/default/pods", pod).unwrap();
}

/// The pod `web` with two devices: all of them in `main`, one in the sidecar, none in `plain`.
fn web() -> Value {
    let mut sidecar = container("side", SLEEPS, json!([{"name": "gpu", "request": "b"}]));
    sidecar["restartPolicy"] = json!("Always");
    json!({
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "cam"}],
        "initContainers": [container("setup", "true", json!([{"name": "gpu"}])), sidecar],
        "containers": [container("main", SLEEPS, json!([{"name": "gpu"}])), container("plain", SLEEPS, json!([]))],
    })
}

fn allocate(cluster: &ClaimCluster) {
    cluster.claim("cam");
    let results = json!([
        {"request": "a", "driver": DRIVER, "pool": "n1", "device": "device-0", "shareID": SHARE},
        {"request": "b", "driver": DRIVER, "pool": "n1", "device": "device-1"},
    ]);
    let reserved = json!([{"resource": "pods", "name": "web", "uid": cluster.pod("web")["metadata"]["uid"]}]);
    let status = json!({"status": {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}});
    let path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/cam/status";
    cluster.server.request("PATCH", path, "application/merge-patch+json", &status).unwrap();
}

fn with_claim(name: &str, claim_resources: Vec<ClaimResource>) -> ContainerResources {
    let claim =
        DynamicResource { claim_name: "cam".to_owned(), claim_namespace: "default".to_owned(), claim_resources };
    ContainerResources { dynamic_resources: vec![claim], ..without_claim(name) }
}

fn without_claim(name: &str) -> ContainerResources {
    ContainerResources { name: name.to_owned(), ..ContainerResources::default() }
}

/// DRA-G3. A pod without devices is listed, also while its devices are not prepared. A pod that has ended is not.
#[tokio::test]
async fn active_pods_are_listed_with_the_devices_of_their_containers() {
    let cluster = ClaimCluster::start().await;
    let agent = cluster.agent().await;
    let mut lister = lister(&cluster.home).await;
    run(&cluster, "bare", json!({"containers": [container("main", SLEEPS, json!([]))]}));
    run(&cluster, "ends", json!({"containers": [container("main", "true", json!([]))]}));
    run(&cluster, "web", web());
    allocate(&cluster);
    ["bare", "ends", "web"].iter().for_each(|pod| cluster.bind(pod));
    cluster.event("web", "FailedPrepareDynamicResources").await;
    let unprepared = get(&mut lister, "web").await.unwrap();
    assert_eq!(unprepared.containers, ["side", "main", "plain"].map(without_claim));

    let _driver = cluster.driver(&[]).await;
    cluster.wait_for_phase("web", "Running").await;
    cluster.wait_for_phase("ends", "Succeeded").await;
    assert_eq!(listed(&mut lister).await, ["bare", "web"]);
    let uid = cluster.server.get("resourceclaims", "default", "cam").unwrap()["metadata"]["uid"].clone();
    let device = |name: &str, share_id: Option<&str>| ClaimResource {
        cdi_devices: vec![CdiDevice { name: format!("{DRIVER}/device={}-{name}", uid.as_str().unwrap()) }],
        driver_name: DRIVER.to_owned(),
        pool_name: "n1".to_owned(),
        device_name: name.to_owned(),
        share_id: share_id.map(str::to_owned),
    };
    let both = vec![device("device-0", Some(SHARE)), device("device-1", None)];
    let expected = PodResources {
        name: "web".to_owned(),
        namespace: "default".to_owned(),
        containers: vec![
            with_claim("side", vec![device("device-1", None)]),
            with_claim("main", both),
            without_claim("plain"),
        ],
    };
    assert_eq!(get(&mut lister, "web").await.unwrap(), expected);
    for name in ["ends", "other", ""] {
        let error = get(&mut lister, name).await.unwrap_err();
        assert_eq!(error.code(), Code::NotFound, "{name}");
        assert!(error.message().contains(&format!("pod default/{name} does not run on this node")), "{error}");
    }
    let allocatable = lister.get_allocatable_resources(AllocatableResourcesRequest {}).await.unwrap();
    assert_eq!(allocatable.into_inner(), AllocatableResourcesResponse::default());

    let metrics = agent.get_from_port("/metrics", "").1;
    for (family, count) in [
        ("requests_total", 7),
        ("requests_list", 1),
        ("requests_get", 5),
        ("requests_get_allocatable", 1),
        ("errors_get", 3),
    ] {
        let line = format!("kubelet_pod_resources_endpoint_{family}{{server_api_version=\"v1\"}} {count}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
}

#[tokio::test]
async fn clients_may_send_the_path_as_authority() {
    let cluster = ClaimCluster::start().await;
    let _agent = cluster.agent().await;
    lister(&cluster.home).await;
    let path = socket(&cluster.home);
    let mut stream = UnixStream::connect(&path).await.unwrap();
    let headers = [
        &[0x83, 0x86],
        &field(&[0x45], "/v1.PodResourcesLister/List")[..],
        &field(&[0x41], &path.display().to_string().replace('/', "%2F")),
        &field(&[0x5f], "application/grpc"),
        &field(b"\x40\x02te", "trailers"),
    ];
    let start = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(SETTINGS, 0, 0, &[])].concat();
    stream.write_all(&[start, call(1, &headers.concat(), &[])].concat()).await.unwrap();
    let answer = ListPodResourcesResponse::decode(&response(&mut stream, 1).await[..]).unwrap();
    assert_eq!(answer, ListPodResourcesResponse::default());
}

#[tokio::test]
async fn large_requests_and_too_many_calls_are_refused() {
    let home = AgentHome::new();
    let _agent = home.start(&[]).await;
    let lister = lister(&home).await;
    let large = get(&mut lister.clone(), &"n".repeat(5000)).await.unwrap_err();
    assert_eq!(large.code(), Code::OutOfRange, "{large}");
    // At a rate of 100 per second, these calls would take 50 seconds.
    let calls = (0..5000).map(|_| {
        let mut lister = lister.clone();
        async move { lister.list(ListPodResourcesRequest {}).await.map(drop) }
    });
    let results = join_all(calls).await;
    assert!(results.iter().any(Result::is_ok));
    let refused: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    assert!(!refused.is_empty());
    for status in refused {
        assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "rejected by rate limit"));
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn socket_is_private_and_gone_after_the_agent() {
    let home = AgentHome::new();
    let path = socket(&home);
    fs::create_dir(path.parent().unwrap()).unwrap();
    // The socket of an agent that was killed.
    drop(UnixListener::bind(&path).unwrap());
    let mut agent = home.start(&[]).await;
    agent.wait_for_line("pod-resources socket is open").await;
    assert_eq!(mode(&path), 0o600);
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().await, Some(0));
    assert!(!path.exists());

    fs::remove_dir(path.parent().unwrap()).unwrap();
    let elsewhere = home.root().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let file = elsewhere.join("kubelet.sock");
    fs::write(&file, "kept").unwrap();
    let agent = home.start(&["--pod-resources", file.to_str().unwrap()]).await;
    let line = agent.wait_for_line("cannot listen on").await;
    assert!(line.contains("(the file is not a socket): remove what is there"), "{line}");
    agent.crash().await;
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept");

    let agent = home.start(&["--pod-resources", "off"]).await;
    assert!(!path.parent().unwrap().exists());
    assert!(agent.line("pod-resources").is_none());
}
