//! The Node object and the lease of a node in an API server.

mod deregistration;
mod panics;
mod two_agents;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{NodeSystemInfo, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use podwright_actors::{NodeRegistration, Registration};
use podwright_fixtures::api_pods::pod;
use podwright_fixtures::scripted_runtime::Op;
use podwright_ports::{ApiError, SourceKind, Unready};
use serde_json::{Value, json};

use crate::support::fake_disks::FakeDisks;
use crate::support::fake_node_api::FakeNodeApi;
use crate::support::fake_pod_api::FakePodApi;
use crate::support::test_node::{Setup, TestNode};

const JSON: &str = "application/json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
const READY: &str = "True kubelet is posting ready status";

struct Registered {
    node: TestNode,
    api: Arc<FakeNodeApi>,
}

fn settings(instance: &str) -> NodeRegistration {
    let info = NodeSystemInfo {
        operating_system: "linux".to_owned(),
        architecture: "amd64".to_owned(),
        boot_id: "boot-1".to_owned(),
        ..NodeSystemInfo::default()
    };
    let resources = [("cpu", "4"), ("memory", "8Gi"), ("pods", "110"), ("ephemeral-storage", "100Gi")];
    let resources = resources.map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())));
    let taint = Taint { key: "drain".to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
    NodeRegistration::new(instance)
        .system_info(info)
        .labels([("disk".to_owned(), "ssd".to_owned())].into())
        .taints(vec![taint])
        .resources(resources.clone().into(), resources.into())
}

impl Registered {
    /// A node that is about to register itself at a new server.
    fn setup() -> (Setup, Arc<FakePodApi>) {
        let setup = Setup::new(true);
        let server = Arc::new(FakePodApi::new(setup.clock));
        (Setup { sources: vec![SourceKind::File], ..setup }, server)
    }

    async fn start(setup: Setup, server: &Arc<FakePodApi>, registration: NodeRegistration) -> Self {
        let api = Arc::new(FakeNodeApi { server: server.clone(), user: "node1" });
        let node = Setup { node_api: Some((api.clone(), registration)), ..setup }.start();
        node.deliver_set(SourceKind::File, Vec::new(), Vec::new()).await;
        node.wait(2.0).await;
        Registered { node, api }
    }

    async fn new() -> Self {
        let (setup, server) = Registered::setup();
        Registered::start(setup, &server, settings("agent-1")).await
    }

    fn progress(&self) -> Registration {
        self.node.node.registration().unwrap().borrow().clone()
    }

    fn patches(&self) -> usize {
        self.api.server.take_calls().iter().filter(|call| *call == "PATCH node").count()
    }

    fn renewed(&self) -> String {
        self.api.read_lease().unwrap()["spec"]["renewTime"].as_str().unwrap().to_owned()
    }
}

#[actix::test]
async fn node_registers_itself_and_becomes_ready() {
    let this = Registered::new().await;
    let node = this.api.read().unwrap();
    assert_eq!(this.api.ready(), READY);
    assert_eq!(node["metadata"]["labels"]["disk"], "ssd");
    assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], "node1");
    let taints = node["spec"]["taints"].as_array().unwrap();
    assert!(taints.iter().any(|taint| taint["key"] == "drain"), "{taints:?}");
    assert_eq!(node["status"]["capacity"]["cpu"], "4");
    assert_eq!(
        node["status"]["addresses"],
        json!([
        {"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": "node1"}])
    );
    assert!(matches!(this.progress(), Registration::Registered(_)));
    for reason in ["Starting", "NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"] {
        assert_eq!(this.node.events.count("node", reason), 1, "{reason}");
    }
    let lease = this.api.read_lease().unwrap();
    assert_eq!(
        (&lease["spec"]["holderIdentity"], &lease["spec"]["leaseDurationSeconds"]),
        (&json!("node1"), &json!(40))
    );
    assert_eq!(lease["metadata"]["ownerReferences"][0]["uid"], node["metadata"]["uid"]);
}

#[actix::test]
async fn unchanged_status_is_written_every_five_minutes_and_the_lease_every_ten_seconds() {
    let this = Registered::new().await;
    this.api.server.take_calls();
    this.node.wait(295.0).await;
    let calls = this.api.server.take_calls();
    let count = |call: &str| calls.iter().filter(|made| *made == call).count();
    assert_eq!((count("PATCH node"), count("PUT lease"), count("GET lease")), (0, 29, 0), "{calls:?}");
    this.node.wait(15.0).await;
    assert_eq!(this.patches(), 1);
}

impl Registered {
    /// The label `team` of the node as the agent knows it.
    fn known_team(&self) -> Option<String> {
        let Registration::Registered(node) = self.progress() else { return None };
        node.metadata.labels.as_ref()?.get("team").cloned()
    }

    fn set_team(&self, team: &str) {
        let labels = json!({"metadata": {"labels": {"team": team}}});
        self.api.server.request("PATCH", "/api/v1/nodes/node1", STRATEGIC, &labels).unwrap();
    }

    fn reads(&self) -> usize {
        self.api.server.take_calls().iter().filter(|call| *call == "GET node").count()
    }
}

#[actix::test]
async fn changes_of_the_node_are_known_at_once_and_nothing_is_read_periodically() {
    let this = Registered::new().await;
    this.reads();
    this.set_team("a");
    this.node.wait(0.2).await;
    assert_eq!(this.known_team().as_deref(), Some("a"));
    this.node.wait(120.0).await;
    assert_eq!(this.reads(), 0);

    this.api.server.break_watch(true);
    this.node.wait(1.0).await;
    this.set_team("b");
    this.node.wait(11.0).await;
    assert_eq!(this.known_team().as_deref(), Some("b"), "the node is read while it cannot be watched");
    assert!(this.reads() > 0);
    this.api.server.break_watch(false);
    this.node.wait(11.0).await;
    this.reads();
    this.node.wait(60.0).await;
    assert_eq!(this.reads(), 0);
}

#[actix::test]
async fn deleted_node_is_not_created_by_the_agent_and_is_registered_again_if_a_user_creates_it() {
    let this = Registered::new().await;
    this.api.server.request("DELETE", "/api/v1/nodes/node1", JSON, &Value::Null).unwrap();
    this.node.wait(0.2).await;
    assert!(matches!(this.progress(), Registration::Deleted(_)), "{:?}", this.progress());
    this.api.server.take_calls();
    this.node.wait(60.0).await;
    let calls = this.api.server.take_calls();
    assert!(calls.iter().all(|call| call == "GET node"), "no lease is written for a node without a UID: {calls:?}");
    assert_eq!(this.api.read(), None);

    this.api.server.request("POST", "/api/v1/nodes", JSON, &json!({"metadata": {"name": "node1"}})).unwrap();
    this.node.wait(11.0).await;
    assert!(matches!(this.progress(), Registration::Registered(_)));
    assert_eq!(this.api.ready(), READY);
}

#[actix::test]
async fn node_is_not_ready_while_the_runtime_is_away() {
    let this = Registered::new().await;
    this.node.runtime.unreachable();
    this.node.wait(25.0).await;
    assert_eq!(this.api.ready(), READY, "a short outage does not count");
    this.node.wait(30.0).await;
    assert_eq!(this.api.ready(), "False container runtime is down");
    this.node.runtime.heal();
    this.node.wait(25.0).await;
    assert_eq!(this.api.ready(), READY);
    assert_eq!((this.node.events.count("node", "NodeNotReady"), this.node.events.count("node", "NodeReady")), (1, 1));

    let network = Some("container runtime network not ready: cni".to_owned());
    this.node.runtime.unready(Unready { network, ..Unready::default() });
    this.node.wait(12.0).await;
    assert_eq!(this.api.ready(), "False container runtime network not ready: cni");
}

#[actix::test]
async fn address_that_the_machine_gets_later_is_reported() {
    let (setup, server) = Registered::setup();
    let addresses = setup.host_ips.clone();
    addresses.set(vec!["127.0.0.1".parse().unwrap()]);
    let this = Registered::start(Setup { api: Some(server.clone()), ..setup }, &server, settings("agent-1")).await;
    let host_pod = pod("web").of_file().spec("hostNetwork", true).build();
    this.node.deliver_set(SourceKind::File, vec![host_pod], Vec::new()).await;
    this.node.wait(5.0).await;
    assert_eq!(this.api.read().unwrap()["status"]["addresses"][0]["address"], "127.0.0.1");
    assert_eq!(this.node.status("web").host_ip.as_deref(), Some("127.0.0.1"));
    addresses.set(vec!["192.0.2.9".parse().unwrap()]);
    this.node.wait(11.0).await;
    assert_eq!(this.api.read().unwrap()["status"]["addresses"][0]["address"], "192.0.2.9");
    this.node.wait(120.0).await;
    assert_eq!(this.node.status("web").host_ip.as_deref(), Some("192.0.2.9"));
}

#[actix::test]
async fn node_is_not_ready_while_the_runtime_hangs() {
    let (setup, server) = Registered::setup();
    let disks = FakeDisks::new(900);
    let this = Registered::start(Setup { disks: Some(disks.clone()), ..setup }, &server, settings("agent-1")).await;
    this.node.wait(10.0).await;
    assert_eq!(this.api.ready(), READY);
    this.node.runtime.slow(Op::List, 100_000.0);
    disks.hang_images();
    this.node.wait(25.0).await;
    assert_eq!(this.api.ready(), READY, "a short outage does not count");
    this.node.wait(30.0).await;
    assert_eq!(this.api.ready(), "False container runtime is down");
}

#[actix::test]
async fn node_recovers_after_a_minute_without_the_api_server() {
    let this = Registered::new().await;
    let before = this.renewed();
    this.api.server.fail(Some(ApiError::unavailable("connection refused", None)));
    this.node.wait(60.0).await;
    // The node lifecycle controller does this to a node without renewals.
    let unknown =
        json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]}});
    this.api.server.request("PATCH", "/api/v1/nodes/node1/status", STRATEGIC, &unknown).unwrap();
    this.api.server.fail(None);
    this.node.wait(12.0).await;
    assert_eq!(this.api.ready(), READY);
    assert_ne!(this.renewed(), before);
    assert!(matches!(this.progress(), Registration::Registered(_)));
}

#[actix::test]
async fn node_registers_itself_once_the_api_server_answers() {
    let (setup, server) = Registered::setup();
    server.fail(Some(ApiError::unavailable("connection refused", None)));
    let this = Registered::start(setup, &server, settings("agent-1")).await;
    let Registration::Pending { problem: Some(problem) } = this.progress() else { panic!("{:?}", this.progress()) };
    assert!(problem.contains("connection refused"), "{problem}");
    this.node.wait(58.0).await;
    server.fail(None);
    this.node.wait(9.0).await;
    assert_eq!(this.api.ready(), READY);
}

#[actix::test]
async fn node_that_a_proxy_says_does_not_exist_keeps_its_status_and_its_lease() {
    let this = Registered::new().await;
    this.api.server.fail(Some(ApiError::NotFound));
    this.node.runtime.unreachable();
    this.node.wait(45.0).await;
    assert!(matches!(this.progress(), Registration::Deleted(_)), "{:?}", this.progress());
    let before = this.renewed();
    this.api.server.fail(None);
    this.node.wait(21.0).await;
    assert!(matches!(this.progress(), Registration::Registered(_)), "{:?}", this.progress());
    assert_eq!(this.api.ready(), "False container runtime is down");
    assert_ne!(this.renewed(), before);
}

#[actix::test]
async fn node_waits_as_long_as_the_server_requests() {
    let (setup, server) = Registered::setup();
    let busy = || Some(ApiError::unavailable("too many requests", Some(Duration::from_secs(30))));
    server.fail(busy());
    let this = Registered::start(setup, &server, settings("agent-1")).await;
    this.node.wait(25.0).await;
    assert_eq!(server.take_calls(), ["GET lease"]);
    server.fail(None);
    server.fail_after(Some(1));
    this.node.wait(5.0).await;
    let calls = server.take_calls();
    assert!(calls[..2] == ["GET lease", "POST node"], "{calls:?}");
    server.fail_after(None);
    server.fail(busy());
    this.node.wait(7.0).await;
    server.take_calls();
    this.node.wait(22.0).await;
    assert_eq!(server.take_calls(), [""; 0], "the registration waits");
    server.fail(None);
    this.node.wait(31.0).await;
    assert_eq!(this.api.ready(), READY);

    server.fail(busy());
    this.node.runtime.unreachable();
    server.take_calls();
    this.node.wait(60.0).await;
    let calls = server.take_calls().iter().filter(|call| call.ends_with(" node")).count();
    assert!((1..=6).contains(&calls), "{calls} calls in six periods");
}

#[actix::test]
async fn existing_node_is_adopted_and_keeps_the_fields_of_other_writers() {
    let (setup, server) = Registered::setup();
    let foreign = json!({"metadata": {"name": "node1", "labels": {"team": "a", "kubernetes.io/os": "other"}, "annotations": {"note": "b"}},
        "spec": {"taints": [{"key": "foreign", "effect": "NoExecute"}], "podCIDR": "10.0.0.0/24"}});
    server.request("POST", "/api/v1/nodes", JSON, &foreign).unwrap();
    let network = json!({"status": {"conditions": [{"type": "NetworkUnavailable", "status": "False"}], "capacity": {"example.com/dongle": "4"}}});
    server.request("PATCH", "/api/v1/nodes/node1/status", STRATEGIC, &network).unwrap();
    let this = Registered::start(setup, &server, settings("agent-1")).await;
    let node = this.api.read().unwrap();
    assert_eq!(this.api.ready(), READY);
    let labels = &node["metadata"]["labels"];
    assert_eq!(
        (&labels["team"], &labels["kubernetes.io/os"], &labels["disk"]),
        (&json!("a"), &json!("linux"), &Value::Null)
    );
    assert_eq!(node["metadata"]["annotations"]["note"], "b");
    let taints = node["spec"]["taints"].as_array().unwrap();
    assert!(
        taints.iter().any(|it| it["key"] == "foreign") && taints.iter().all(|it| it["key"] != "drain"),
        "{taints:?}"
    );
    assert_eq!(this.api.condition("NetworkUnavailable").unwrap()["status"], "False");
    assert_eq!(node["status"]["capacity"]["example.com/dongle"], "4");
    assert_eq!(node["status"]["allocatable"]["example.com/dongle"], "4");
}

#[actix::test]
async fn node_without_permission_to_register_reports_the_reason_and_tries_again() {
    let (setup, server) = Registered::setup();
    let api = Arc::new(FakeNodeApi { server: server.clone(), user: "node2" });
    let node = Setup { node_api: Some((api.clone(), settings("agent-1"))), ..setup }.start();
    node.wait(20.0).await;
    let progress = node.node.registration().unwrap().borrow().clone();
    let Registration::Pending { problem: Some(problem) } = progress else { panic!("{progress:?}") };
    assert!(problem.contains("use the credentials of this node, or correct --node-name"), "{problem}");
    assert!(problem.contains("is not allowed to modify node"), "{problem}");
    assert_eq!(api.read(), None);
}

#[actix::test]
async fn node_that_must_not_be_created_waits_until_somebody_creates_it() {
    let (setup, server) = Registered::setup();
    let this = Registered::start(setup, &server, settings("agent-1").creates(false)).await;
    this.node.wait(20.0).await;
    assert_eq!(this.api.read(), None);
    server.request("POST", "/api/v1/nodes", JSON, &json!({"metadata": {"name": "node1"}})).unwrap();
    this.node.wait(9.0).await;
    assert_eq!(this.api.ready(), READY);
}

#[actix::test]
async fn second_agent_with_the_name_of_a_node_changes_nothing() {
    let first = Registered::new().await;
    let before = first.api.read();
    let setup = Setup { clock: first.node.clock, ..Setup::again(true) };
    let second = Registered::start(setup, &first.api.server, settings("agent-2")).await;
    second.node.wait(15.0).await;
    assert!(matches!(second.progress(), Registration::Taken), "{:?}", second.progress());
    assert!(matches!(first.progress(), Registration::Registered(_)));
    assert_eq!(first.api.read(), before);
}

#[actix::test]
async fn restarted_agent_is_recognized_by_its_instance() {
    let first = Registered::new().await;
    let (server, clock) = (first.api.server.clone(), first.node.clock);
    drop(first);
    let setup = Setup { clock, ..Setup::again(true) };
    let second = Registered::start(setup, &server, settings("agent-1")).await;
    assert!(matches!(second.progress(), Registration::Registered(_)), "{:?}", second.progress());
}

#[actix::test]
async fn agent_replaces_one_that_no_longer_renews_the_lease_and_stops_if_it_is_replaced() {
    let (setup, server) = Registered::setup();
    let now = setup.clock;
    let renewed = podwright_ports::Clock::now(&now).to_timestamp().to_string();
    let lease = json!({"metadata": {"name": "node1"}, "spec": {"holderIdentity": "node1", "renewTime": renewed}});
    server.request("POST", LEASES, JSON, &lease).unwrap();
    let this = Registered::start(setup, &server, settings("agent-1")).await;
    this.node.wait(35.0).await;
    assert_eq!(this.api.read(), None, "a kubelet may still run");
    this.node.wait(10.0).await;
    assert_eq!(this.api.ready(), READY);

    let other = json!({"metadata": {"annotations": {"podwright.dev/instance": "agent-2"}}});
    server.request("PATCH", &format!("{LEASES}/node1"), STRATEGIC, &other).unwrap();
    this.node.wait(12.0).await;
    assert!(matches!(this.progress(), Registration::Taken), "{:?}", this.progress());
}

#[actix::test]
async fn lease_that_seems_old_is_not_taken_at_once() {
    let (setup, server) = Registered::setup();
    // The clock of this machine is an hour ahead of the clock of the other one.
    let renewed = podwright_model::time::Time::from_secs(1_800_000_000 - 3600).to_timestamp().to_string();
    let lease = json!({"metadata": {"name": "node1"}, "spec": {"holderIdentity": "node1", "renewTime": renewed}});
    server.request("POST", LEASES, JSON, &lease).unwrap();
    let this = Registered::start(setup, &server, settings("agent-1")).await;
    this.node.wait(5.0).await;
    let renewed = podwright_model::time::Time::from_secs(1_800_000_000 - 3590).to_timestamp().to_string();
    let renewal = json!({"spec": {"renewTime": renewed}});
    server.request("PATCH", &format!("{LEASES}/node1"), STRATEGIC, &renewal).unwrap();
    this.node.wait(5.0).await;
    assert!(matches!(this.progress(), Registration::Taken), "{:?}", this.progress());
    assert_eq!(this.api.read(), None);
}

#[actix::test]
async fn agent_that_is_replaced_leaves_its_pods_and_writes_nothing() {
    let (setup, server) = Registered::setup();
    let setup = Setup { api: Some(server.clone()), ..setup };
    let this = Registered::start(setup, &server, settings("agent-1")).await;
    this.node.deliver_set(SourceKind::File, vec![pod("web").of_file().build()], Vec::new()).await;
    this.node.wait(5.0).await;
    assert_eq!(this.node.runtime.running("web"), ["main"]);
    let other = json!({"metadata": {"annotations": {"podwright.dev/instance": "agent-2"}}});
    server.request("PATCH", &format!("{LEASES}/node1"), STRATEGIC, &other).unwrap();
    this.node.wait(12.0).await;
    assert!(matches!(this.progress(), Registration::Taken), "{:?}", this.progress());
    server.take_calls();
    let report = this.node.node.shutdown(Duration::from_secs(30)).await;
    this.node.wait(20.0).await;
    assert_eq!((report.stopped, report.late.len()), (0, 0), "the other agent may run the pods");
    assert_eq!(this.node.runtime.running("web"), ["main"]);
    assert_eq!(server.take_calls(), [""; 0]);
}

#[actix::test]
async fn deleted_lease_is_created_again() {
    let this = Registered::new().await;
    this.api.server.request("DELETE", &format!("{LEASES}/node1"), JSON, &Value::Null).unwrap();
    this.node.wait(12.0).await;
    assert_eq!(this.api.read_lease().unwrap()["metadata"]["annotations"]["podwright.dev/instance"], "agent-1");
}

#[actix::test]
async fn shutdown_that_stops_pods_makes_the_node_not_ready_at_once() {
    let this = Registered::new().await;
    this.node.node.stop_pods(std::time::Duration::from_secs(5)).await;
    this.node.wait(0.1).await;
    assert_eq!(this.api.ready(), "False node is shutting down");
    this.node.node.resume().await;
    this.node.wait(0.1).await;
    assert_eq!(this.api.ready(), READY);
}

#[actix::test]
async fn end_of_an_agent_that_leaves_its_pods_running_does_not_change_the_node() {
    let this = Registered::new().await;
    this.node.node.shutdown(std::time::Duration::ZERO).await;
    this.node.wait(1.0).await;
    assert_eq!(this.api.ready(), READY);
}

#[actix::test]
async fn agent_that_ends_before_the_answer_to_its_registration_deletes_its_node() {
    let (setup, server) = Registered::setup();
    server.hold_answers(Some("node"));
    let this = Registered::start(setup, &server, settings("agent-1")).await;
    assert!(matches!(this.progress(), Registration::Pending { .. }) && this.api.read().is_some());
    this.node.node.shutdown(Duration::ZERO).await;
    this.node.wait(0.2).await;
    server.hold_answers(None);
    // A node may not delete itself.
    let answer = this.node.node.deregister().await;
    assert!(matches!(answer, Err(ApiError::Refused(_))), "{answer:?}");
}
