//! Admission of pods.

mod replica_set;
mod waiting;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use podwright_actors::explain::WaitKind;
use podwright_core::admission::{
    AdmissionHandler, Admitted, AppArmor, NodeCapacity, NodePredicates, Rejection, SysctlAllowlist,
};
use podwright_core::pod_worker::Lifecycle;
use podwright_engine::replay::{Pick, replay};
use podwright_fixtures::api_pods::{PodBuilder, pod};
use podwright_fixtures::scripted_runtime::Script;
use podwright_model::ids::FullName;
use podwright_model::pod::PodObject;
use podwright_ports::SourceKind;
use serde_json::json;

use crate::support::test_node::{Setup, TestNode};

// Scenario POD-S93.
#[actix::test]
async fn one_source_set_removes_adds_and_updates_pods() {
    let node = TestNode::start().await;
    node.deliver(&[pod("foo"), pod("foo2")]).await;
    node.deliver(&[pod("foo2").label("2"), pod("foo4")]).await;
    assert_eq!(node.runtime.running("foo"), [""; 0]);
    assert_eq!(node.runtime.running("foo4"), ["main"]);
    let changed = node.node.engine().active_pod(&"foo2".into()).unwrap();
    assert_eq!(changed.metadata().labels.as_ref().unwrap()["v"], "2");
    assert_eq!(node.runtime.times_of("start main").len(), 3);
}

#[actix::test]
async fn pods_of_one_set_share_capacity_and_finished_pods_use_none() {
    let node = TestNode::start().await;
    node.runtime.script("done", Script::ends(1.0, 0));
    let done = pod("done").policy("Never").containers(&["done"]).cpu("4");
    node.deliver(std::slice::from_ref(&done)).await;
    node.wait(5.0).await;
    let pods = ["a", "b", "c", "d", "e"].map(|name| pod(name).cpu("1"));
    node.deliver(&[&[done][..], &pods].concat()).await;
    let phases = ["a", "b", "c", "d", "e"].map(|name| node.phase(name));
    assert_eq!(phases, ["Running", "Running", "Running", "Running", "Failed"]);
}

// No static pod is stopped until every source of static pods has delivered, so a removed pod keeps running. Its capacity must not reject itself.
#[actix::test]
async fn pod_removed_and_added_before_all_sources_delivered_stays_admitted() {
    let node = Setup { sources: vec![SourceKind::File, SourceKind::Http], ..Setup::new(true) }.start();
    let large = || vec![pod("a").of_file().cpu("3").build()];
    for pods in [large(), Vec::new(), large()] {
        node.deliver_set(SourceKind::File, pods, Vec::new()).await;
        node.settled().await;
    }
    node.deliver_set(SourceKind::Http, Vec::new(), Vec::new()).await;
    node.wait(120.0).await;
    assert_eq!(node.phase("a"), "Running");
}

/// An admission handler that panics for pod `b` while the flag is set.
struct PanickingHandler(AtomicBool);

impl AdmissionHandler for PanickingHandler {
    fn admit(&self, pod: &PodObject, _: &Admitted) -> Result<(), Rejection> {
        assert!(pod.uid().to_string() != "b" || !self.0.load(Ordering::Relaxed), "the handler does not know pod b");
        Ok(())
    }
}

#[actix::test]
async fn admission_panic_is_retried_and_delays_no_other_pod() {
    let admission = Arc::new(PanickingHandler(AtomicBool::new(true)));
    let setup = Setup { admission: Some(admission.clone()), ..Setup::new(true) };
    let node = setup.start();
    node.deliver(&[]).await;
    node.deliver(&[pod("a"), pod("b"), pod("c")]).await;
    node.wait(25.0).await;
    assert_eq!(["a", "b", "c"].map(|uid| node.runtime.running(uid).len()), [1, 0, 1]);
    assert_eq!(node.metric("podwright_hook_panics_total"), 3.0);
    // An update does not start the pod without admission either.
    node.deliver(&[pod("a"), pod("b").label("2"), pod("c")]).await;
    assert_eq!(node.runtime.running("b"), [""; 0]);
    admission.0.store(false, Ordering::Relaxed);
    node.wait(11.0).await;
    assert_eq!(node.runtime.running("b"), ["main"]);
    // A pod that left its source before the retry is not admitted any more.
    admission.0.store(true, Ordering::Relaxed);
    node.deliver(&[pod("a"), pod("b").label("2")]).await;
    node.deliver(&[pod("a")]).await;
    node.wait(10.0).await;
    node.deliver(&[pod("a"), pod("b")]).await;
    node.deliver(&[pod("a")]).await;
    admission.0.store(false, Ordering::Relaxed);
    node.wait(30.0).await;
    assert_eq!(node.pod_counts(), ["active_pods{} 1", "desired_pods{} 1", "working_pods{desired,sync,} 1"]);
}

#[actix::test]
async fn source_updates_do_not_delay_an_admission_retry() {
    let admission = Arc::new(PanickingHandler(AtomicBool::new(true)));
    let node = Setup { admission: Some(admission.clone()), ..Setup::new(true) }.start();
    node.deliver(&[pod("b")]).await;
    node.wait(6.0).await;
    node.deliver(&[pod("b").label("2")]).await;
    admission.0.store(false, Ordering::Relaxed);
    node.wait(5.0).await;
    assert_eq!(node.runtime.running("b"), ["main"]);
}

/// A pod with one container that uses a host port.
fn with_port(name: &str, port: i32) -> PodBuilder {
    let ports = json!([{"containerPort": port, "hostPort": port}]);
    pod(name).spec("containers", json!([{"name": "main", "image": "img", "ports": ports}]))
}

#[actix::test]
async fn pod_that_fails_a_check_of_the_node_is_rejected_with_upstreams_texts() {
    let predicates = NodePredicates::new("node1", NodeCapacity::new(4000, 1 << 30, 500).ephemeral_storage(1 << 30));
    let setup = Setup { admission: Some(Arc::new(predicates.strict_groups(|| false))), ..Setup::new(true) };
    let node = setup.start();
    let main =
        |resources: serde_json::Value| json!([{"name": "main", "image": "img", "resources": {"requests": resources}}]);
    let refused = [
        (
            pod("name").spec("nodeName", "node2"),
            "NodeName",
            "Predicate NodeName failed: node(s) didn't match the requested node name",
        ),
        (
            pod("selector").spec("nodeSelector", json!({"disk": "ssd"})),
            "NodeAffinity",
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
        (
            with_port("port", 80),
            "NodePorts",
            "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
        ),
        (
            pod("os").spec("os", json!({"name": "windows"})),
            "PodOSNotSupported",
            "Failed to admit pod as the OS field doesn't match node OS",
        ),
        (
            pod("groups").spec("securityContext", json!({"supplementalGroupsPolicy": "Strict"})),
            "SupplementalGroupsPolicyNotSupported",
            "SupplementalGroupsPolicy=Strict is not supported in this node",
        ),
        (
            pod("disk").spec("containers", main(json!({"ephemeral-storage": "2Gi"}))),
            "OutOfephemeral-storage",
            "Node didn't have enough resource: ephemeral-storage, requested: 2147483648, used: 0, capacity: 1073741824",
        ),
        (
            pod("huge").spec("containers", main(json!({"hugepages-2Mi": "2Mi"}))),
            "OutOfhugepages-2Mi",
            "Node didn't have enough resource: hugepages-2Mi, requested: 2097152, used: 0, capacity: 0",
        ),
    ];
    node.deliver(&[with_port("web", 80), pod("fits").spec("nodeSelector", json!({"kubernetes.io/hostname": "node1"}))])
        .await;
    let mut pods =
        vec![with_port("web", 80), pod("fits").spec("nodeSelector", json!({"kubernetes.io/hostname": "node1"}))];
    pods.extend(refused.iter().map(|(pod, ..)| pod.clone()));
    node.deliver(&pods).await;
    for (pod, reason, message) in refused {
        let uid = pod.build().uid().to_string();
        let status = node.status(&uid);
        assert_eq!(status.phase.as_deref(), Some("Failed"), "{uid}");
        assert_eq!(status.reason.as_deref(), Some(reason));
        assert_eq!(status.message, Some(format!("Pod was rejected: {message}")));
        assert_eq!(node.events.count(&uid, reason), 1);
        assert_eq!(node.runtime.calls_of(&uid), [""; 0]);
    }
    assert_eq!([node.phase("web"), node.phase("fits")], ["Running", "Running"]);
}

#[actix::test]
async fn pod_with_a_forbidden_sysctl_or_a_profile_without_apparmor_is_rejected() {
    let sysctl = |name: &str| json!({"sysctls": [{"name": name, "value": "1"}]});
    let sysctls = SysctlAllowlist::safe((6, 1)).allow("kernel.msg*").unwrap();
    let node = Setup { admission: Some(Arc::new(sysctls)), ..Setup::new(true) }.start();
    let pods = [
        pod("safe").spec("securityContext", sysctl("net.ipv4.tcp_syncookies")),
        pod("allowed").spec("securityContext", sysctl("kernel.msgmax")),
        pod("unsafe").spec("securityContext", sysctl("net.core.somaxconn")),
        pod("host").spec("securityContext", sysctl("net.ipv4.tcp_syncookies")).spec("hostNetwork", true),
    ];
    node.deliver(&pods).await;
    assert_eq!(
        ["safe", "allowed", "unsafe", "host"].map(|uid| node.phase(uid)),
        ["Running", "Running", "Failed", "Failed"]
    );
    assert_eq!(node.reason("unsafe"), "SysctlForbidden");
    let message = "Pod was rejected: forbidden sysctl: \"net.ipv4.tcp_syncookies\" not allowed with host net enabled";
    assert_eq!(node.status("host").message.as_deref(), Some(message));

    let node = Setup { admission: Some(Arc::new(AppArmor { is_enabled: false })), ..Setup::again(true) }.start();
    let profile = |kind: &str| json!({"appArmorProfile": {"type": kind}});
    let pods = ["Unconfined", "RuntimeDefault"].map(|kind| pod(kind).spec("securityContext", profile(kind)));
    node.deliver(&pods).await;
    assert_eq!(["Unconfined", "RuntimeDefault"].map(|uid| node.phase(uid)), ["Running", "Failed"]);
    let message = "Pod was rejected: Cannot enforce AppArmor: AppArmor is not enabled on the host";
    assert_eq!(node.status("RuntimeDefault").message.as_deref(), Some(message));
}

fn critical(pod: PodBuilder) -> PodBuilder {
    pod.spec("priority", 2_000_000_000)
}

// Upstream blocks its dispatcher here (POD-W30).
#[actix::test]
async fn critical_pod_waits_for_its_victim_while_other_pods_start() {
    let node = Setup { cpu_millis: 5000, ..Setup::new(true) }.start();
    node.deliver(&[]).await;
    node.runtime.script("slow", Script::stubborn());
    let small = pod("small").cpu("1");
    let large = pod("large").containers(&["slow"]).cpu("3").grace(20);
    node.deliver(&[small.clone(), large.clone()]).await;
    let vip = critical(pod("vip").cpu("3"));
    node.deliver(&[small.clone(), large.clone(), vip.clone()]).await;
    // The victim is the pod that is nearest to the missing CPU, with the texts of upstream.
    assert_eq!(node.lifecycle("large"), Some(Lifecycle::Terminating));
    assert_eq!(node.events.count("large", "Preempting"), 1);
    assert_eq!(node.events.count("small", "Preempting"), 0);
    assert_eq!(node.metric("kubelet_preemptions{preemption_signal=\"cpu\"}"), 1.0);
    assert_eq!((node.lifecycle("vip"), node.phase("vip")), (None, String::new()));
    let name = FullName::new("test", "vip");
    let explanation = node.node.explainer().explain(&name, None, &|_| Vec::new()).unwrap();
    assert_eq!(explanation.chain[0].what, WaitKind::Admission);
    assert_eq!(explanation.chain[0].on.name, "test/large");
    assert!(
        explanation.chain[0].detail.contains("Node didn't have enough resource: cpu"),
        "{:?}",
        explanation.chain[0]
    );
    assert_eq!((explanation.chain[1].what, explanation.chain[1].depth), (WaitKind::Grace, 1));

    // Other pods are admitted meanwhile, but not to what is reserved for the critical pod: one core is free now and later.
    let all = [small.clone(), large.clone(), vip.clone(), pod("one").cpu("1"), pod("two").cpu("1")];
    node.deliver(&all).await;
    assert_eq!([node.phase("one"), node.phase("two")], ["Running", "Failed"]);
    assert_eq!(node.reason("two"), "OutOfcpu");
    node.wait(10.0).await;
    assert_eq!(node.runtime.calls_of("vip"), [""; 0]);

    node.eventually(15.0, "the critical pod runs", || node.phase("vip") == "Running").await;
    let status = node.status("large");
    assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("Preempting")));
    assert_eq!(status.message.as_deref(), Some("Preempted in order to admit critical pod"));
    let conditions = status.conditions.unwrap();
    let target = conditions.iter().find(|condition| condition.type_ == "DisruptionTarget").unwrap();
    assert_eq!(target.reason.as_deref(), Some("TerminationByKubelet"));
    assert_eq!(target.message.as_deref(), Some("Pod was preempted by Kubelet to accommodate a critical pod."));
    assert_eq!([node.phase("small"), node.phase("one")], ["Running", "Running"]);

    // The recording has the decisions.
    let recorded = |uid: &str| {
        let file = node.node.engine().recording().unwrap();
        let lines = replay(&file, &Pick::Uid(uid.into())).unwrap().timeline.into_iter().map(|line| line.event);
        lines.filter(|line| line.starts_with("admission: ")).collect::<Vec<_>>()
    };
    let lack = "Node didn't have enough resource: cpu, requested: 3000, used: 4000, capacity: 5000";
    let waits = format!("admission: the pod waits, and 1 other pod is stopped for it: {lack}");
    assert_eq!(recorded("vip"), [waits, "admission: the pod may start now".to_owned()]);
    assert_eq!(recorded("large"), ["admission: the pod is stopped for the critical pod test/vip"]);
    let lack = "Node didn't have enough resource: cpu, requested: 1000, used: 5000, capacity: 5000";
    assert_eq!(recorded("two"), [format!("admission: rejected with OutOfcpu: {lack}")]);
    assert_eq!(recorded("one"), [""; 0]);
}

#[actix::test]
async fn two_critical_pods_have_victims_of_their_own() {
    let node = TestNode::start().await;
    let pods = ["a", "b"].map(|name| pod(name).cpu("2"));
    node.deliver(&pods).await;
    let vips = ["v", "w"].map(|name| critical(pod(name).cpu("2")));
    node.deliver(&[&pods[..], &vips[..]].concat()).await;
    node.wait(5.0).await;
    assert_eq!(["a", "b"].map(|uid| node.reason(uid)), ["Preempting", "Preempting"]);
    assert_eq!(["v", "w"].map(|uid| node.phase(uid)), ["Running", "Running"]);
}

#[actix::test]
async fn critical_pod_that_leaves_its_source_gives_its_room_back() {
    let node = TestNode::start().await;
    node.runtime.script("slow", Script::stubborn());
    let large = pod("large").containers(&["slow"]).cpu("3").grace(60);
    node.deliver(std::slice::from_ref(&large)).await;
    node.deliver(&[large.clone(), critical(pod("vip").cpu("4"))]).await;
    node.deliver(&[large.clone(), critical(pod("vip").cpu("4")), pod("late").cpu("1")]).await;
    assert_eq!(node.reason("late"), "OutOfcpu");
    node.deliver(&[large.clone(), pod("later").cpu("1")]).await;
    assert_eq!(node.phase("later"), "Running");
    node.wait(70.0).await;
    assert_eq!((node.lifecycle("vip"), node.runtime.calls_of("vip").len()), (None, 0));
}

#[actix::test]
async fn critical_pod_without_victims_is_rejected_and_preempts_nothing() {
    let node = TestNode::start().await;
    let running = [pod("a").cpu("2"), critical(pod("b").cpu("2"))];
    node.deliver(&running).await;
    node.deliver(&[&running[..], &[critical(pod("vip").cpu("3"))]].concat()).await;
    assert_eq!(node.reason("vip"), "UnexpectedAdmissionError");
    assert!(node.status("vip").message.unwrap().ends_with("to reclaim resources: [(res: cpu, q: 1000), ]"));
    assert_eq!([node.phase("a"), node.phase("b")], ["Running", "Running"]);
    // A pod of the API server is replaced by a controller, so that it is not judged again.
    node.deliver(&[critical(pod("vip").cpu("3"))]).await;
    node.wait(60.0).await;
    assert_eq!(node.phase("vip"), "Failed");
}

// The pod leaves its source and comes back within one pass of housekeeping.
#[actix::test]
async fn rejected_static_pod_that_is_put_back_at_once_is_judged_again() {
    let setup = Setup {
        admission: Some(Arc::new(NodePredicates::new("node1", NodeCapacity::new(4000, 1 << 30, 500)))),
        ..Setup::new(true)
    };
    let node = setup.start();
    let (large, web) = (pod("large").of_file().cpu("3"), pod("web").of_file().cpu("2"));
    node.deliver(std::slice::from_ref(&large)).await;
    let both = [large.clone(), web.clone()];
    node.deliver(&both).await;
    assert_eq!(node.phase("web"), "Failed");
    node.deliver(std::slice::from_ref(&large)).await;
    assert_eq!(node.lifecycle("web"), None, "a rejected pod gets no record");
    node.deliver(&both).await;
    node.wait(5.0).await;
    assert_eq!(node.phase("web"), "Failed");
    node.deliver(&[web]).await;
    node.eventually(10.0, "a removed pod gives its CPUs back", || node.phase("web") == "Running").await;
}

#[actix::test]
async fn static_pod_that_lacks_something_starts_when_it_is_freed() {
    let setup = Setup {
        admission: Some(Arc::new(NodePredicates::new("node1", NodeCapacity::new(4000, 1 << 30, 500)))),
        ..Setup::new(true)
    };
    let final_statuses = setup.final_statuses.clone();
    let node = setup.start();
    node.deliver(&[]).await;
    node.runtime.script("short", Script::ends(30.0, 0));
    let short = pod("short").of_file().policy("Never").containers(&["short"]).cpu("3");
    let web = with_port("web", 80).of_file();
    let greedy = pod("greedy").of_file().cpu("3");
    let port = with_port("port", 80).of_file();
    let elsewhere = pod("elsewhere").of_file().spec("nodeSelector", json!({"disk": "ssd"}));
    node.deliver(&[short.clone(), web.clone()]).await;
    let rest = [greedy.clone(), port.clone(), elsewhere.clone()];
    node.deliver(&[&[short.clone(), web.clone()][..], &rest].concat()).await;
    let uids = ["greedy", "port", "elsewhere"];
    assert_eq!(uids.map(|uid| node.reason(uid)), ["UnexpectedAdmissionError", "NodePorts", "NodeAffinity"]);
    assert_eq!(
        node.status("greedy").message.as_deref(),
        Some(
            "Pod was rejected: Unexpected error while attempting to recover from admission failure: preemption: error \
             finding a set of pods to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 2000), ]"
        )
    );
    let name = FullName::new("test", "port");
    let explanation = node.node.explainer().explain(&name, None, &|_| Vec::new()).unwrap();
    let rejected = &explanation.chain[0].detail;
    assert!(rejected.ends_with("requested pod ports); port 80 (TCP) is used by test/web"), "{rejected}");
    node.wait(10.0).await;
    assert_eq!(uids.map(|uid| node.phase(uid)), ["Failed", "Failed", "Failed"]);
    assert_eq!(node.events.count("greedy", "UnexpectedAdmissionError"), 1, "each rejection is reported once");
    node.eventually(25.0, "a finished pod gives its CPUs back", || node.phase("greedy") == "Running").await;
    assert_eq!((node.reason("greedy"), node.phase("port")), (String::new(), "Failed".into()));
    node.deliver(&[&[short.clone()][..], &rest].concat()).await;
    node.eventually(5.0, "a removed pod gives its port back", || node.phase("port") == "Running").await;
    assert_eq!(node.phase("elsewhere"), "Failed");
    drop(node);

    // The next agent judges such pods again, and keeps lasting rejections.
    let setup = Setup { final_statuses, ..Setup::again(true) };
    let node = setup.start();
    node.deliver(&[greedy, port, elsewhere]).await;
    assert_eq!([node.phase("greedy"), node.phase("port")], ["Running", "Running"]);
    assert_eq!(node.reason("elsewhere"), "NodeAffinity");
}

#[actix::test]
async fn changed_static_pod_waits_for_the_resources_and_ports_of_its_old_version() {
    let predicates = NodePredicates::new("node1", NodeCapacity::new(4000, 1 << 30, 500));
    let node = Setup { admission: Some(Arc::new(predicates)), ..Setup::new(true) }.start();
    node.deliver(&[]).await;
    node.runtime.script("main", Script::stubborn());
    let version = |uid: &str| with_port("web", 80).of_file().uid(uid).cpu("3").grace(15);
    node.deliver(&[version("1")]).await;
    node.deliver(&[version("2")]).await;
    assert_eq!((node.phase("2"), node.events.count("2", "NodePorts")), (String::new(), 0));
    node.eventually(25.0, "the new version runs", || node.phase("2") == "Running").await;
    assert_eq!(node.metric("kubelet_admission_rejections_total{reason=\"NodePorts\"}"), 0.0);
}
