//! Static pods: full names, edits and ends.

use podwright_core::pod_worker::Lifecycle;
use podwright_fixtures::api_pods::{PodBuilder, pod};
use podwright_fixtures::scripted_runtime::Script;
use podwright_ports::{Severity, SourceKind, SourceProblem};

use crate::support::test_node::TestNode;

fn version(n: usize) -> PodBuilder {
    pod("web").of_file().uid(&format!("web-{n}")).label(&n.to_string()).containers(&[&format!("c{n}")])
}

// Scenarios POD-S44, POD-S45.
#[actix::test]
async fn static_pod_waiting_for_its_full_name_makes_no_runtime_calls() {
    let node = TestNode::start().await;
    node.runtime.script("c1", Script::stubborn());
    node.deliver(&[version(1)]).await;
    node.deliver(&[version(2)]).await;
    node.wait(5.0).await;
    let expected = [
        "active_pods{true} 1",
        "desired_pods{true} 1",
        "working_pods{desired,sync,true} 1",
        "working_pods{orphan,terminating,true} 1",
    ];
    assert_eq!(node.pod_counts(), expected);
    assert_eq!(node.lifecycle("web-2"), Some(Lifecycle::Waiting));
    assert!(node.node.engine().active_pod(&"web-2".into()).is_none());

    node.deliver(&[]).await;
    node.wait(3.0).await;
    assert_eq!(node.lifecycle("web-2"), None);
    assert_eq!(node.runtime.calls_of("web-2"), [""; 0]);
    assert_eq!(node.pod_counts(), ["working_pods{orphan,terminating,true} 1"]);
}

// KF1. Scenario POD-S46.
#[actix::test]
async fn static_pod_with_same_uid_starts_after_the_failing_stop_succeeded() {
    let node = TestNode::start().await;
    let web = pod("web").of_file();
    node.deliver(&[web.clone().label("1")]).await;
    node.runtime.fail_stops();
    node.deliver(&[]).await;
    node.deliver(&[web.label("2")]).await;
    node.wait(5.0).await;
    assert_eq!(node.runtime.times_of("stop main").len(), 1);
    let expected = ["active_pods{true} 1", "desired_pods{true} 1", "working_pods{desired,terminating,true} 1"];
    assert_eq!(node.pod_counts(), expected);
    node.runtime.heal();
    node.eventually(15.0, "the new one runs", || node.lifecycle("web") == Some(Lifecycle::Sync)).await;
    node.wait(2.0).await;
    assert_eq!(node.runtime.running("web"), ["main"]);
    assert_eq!(node.metric("kubelet_restarted_pods_total{static=\"true\"}"), 1.0);
}

// Scenario POD-S31, without the mirror pod (`mirrors.rs`).
#[actix::test]
async fn only_the_last_of_many_static_pod_edits_runs() {
    let node = TestNode::start().await;
    node.runtime.script("c0", Script::stubborn());
    node.deliver(&[version(0)]).await;
    for n in 1..=300 {
        node.deliver(&[version(n)]).await;
    }
    node.wait(60.0).await;
    let started: Vec<_> = node.runtime.calls().into_iter().filter(|call| call.what.starts_with("start ")).collect();
    let uids: Vec<_> = started.iter().map(|call| call.uid.to_string()).collect();
    assert_eq!(uids, ["web-0", "web-300"]);
    assert_eq!(node.node.engine().known_pods(), 1);
    let expected = ["active_pods{true} 1", "desired_pods{true} 1", "working_pods{desired,sync,true} 1"];
    assert_eq!(node.pod_counts(), expected);
}

// Rule POD-W27.
#[actix::test]
async fn static_pod_is_kept_while_its_manifest_is_unreadable() {
    let node = TestNode::start().await;
    let web = pod("web").of_file().build();
    node.deliver_set(SourceKind::File, vec![web.clone()], vec![]).await;
    node.wait(3.0).await;
    let problem = SourceProblem {
        what: "/manifests/web.yaml".into(),
        message: "line 3: no such field".into(),
        pods: vec![],
        severity: Severity::Fault,
    };
    node.deliver_set(SourceKind::File, vec![web.clone()], vec![problem.clone()]).await;
    node.wait(10.0).await;
    assert_eq!(node.node.desired().problems(), [problem]);
    assert_eq!(node.lifecycle("web"), Some(Lifecycle::Sync));
    node.deliver_set(SourceKind::File, vec![web], vec![]).await;
    node.wait(3.0).await;
    assert_eq!(node.node.desired().problems(), []);
    assert_eq!(node.runtime.times_of("stop"), [0.0; 0]);
}

#[actix::test]
async fn warning_about_a_manifest_is_an_event_of_its_pod_once_and_the_pod_runs() {
    let node = TestNode::start().await;
    let set = |uid: &str| {
        let web = pod("web").uid(uid).of_file().build();
        let warning = SourceProblem {
            what: "/manifests/web.yaml".into(),
            message: "line 3: unknown field".into(),
            pods: vec![web.full_name().clone()],
            severity: Severity::Warning,
        };
        (vec![web], vec![warning])
    };
    for (uid, events) in [("one", 1), ("one", 1), ("two", 2)] {
        let (pods, warnings) = set(uid);
        node.deliver_set(SourceKind::File, pods, warnings).await;
        node.wait(40.0).await;
        assert_eq!(
            (node.events.count("web", "UnknownField"), node.lifecycle(uid)),
            (events, Some(Lifecycle::Sync)),
            "{uid}"
        );
    }
}

#[actix::test]
async fn succeeded_static_pod_is_not_started_again() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::ends(2.0, 0));
    node.deliver(&[pod("job").of_file().policy("Never")]).await;
    node.wait(300.0).await;
    assert_eq!(node.phase("job"), "Succeeded");
    assert_eq!(node.lifecycle("job"), Some(Lifecycle::Finished));
    assert_eq!(node.runtime.times_of("start main").len(), 1);
    assert_eq!(node.pod_counts(), ["desired_pods{true} 1", "working_pods{desired,terminated,true} 1"]);
}
