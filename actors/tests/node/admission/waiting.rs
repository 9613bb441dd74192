//! Pods that wait for what other pods give back.

use std::time::Duration;

use podwright_actors::explain::WaitKind;
use podwright_core::pod_worker::Lifecycle;
use podwright_fixtures::api_pods::pod;
use podwright_fixtures::scripted_runtime::{Op, Script};
use podwright_model::ids::FullName;
use podwright_ports::SourceKind;

use super::critical;
use crate::support::test_node::{Setup, TestNode};

/// Whether a pod waits for admission: it has no record and no status, and no call was made for it.
fn waits(node: &TestNode, uid: &str) -> bool {
    (node.lifecycle(uid), node.phase(uid)) == (None, String::new()) && node.runtime.calls_of(uid).is_empty()
}

// The removals of a set are applied before its additions (POD-S93), and a removed pod counts until it has stopped (POD-W1,
// POD-S100). The API server no longer has a pod that was deleted with force.
#[actix::test]
async fn pod_waits_for_the_capacity_of_a_removed_pod_until_its_containers_stopped() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::stubborn());
    node.deliver(&[pod("a").cpu("3").grace(60)]).await;
    node.deliver(&[pod("b").cpu("3")]).await;
    assert!(waits(&node, "b"));
    let explanation = node.node.explainer().explain(&FullName::new("test", "b"), None, &|_| Vec::new()).unwrap();
    let kinds: Vec<_> = explanation.chain.iter().map(|wait| (wait.depth, wait.what)).collect();
    assert_eq!(kinds[..2], [(0, WaitKind::Admission), (1, WaitKind::Grace)]);
    assert_eq!(explanation.chain[0].on.name, "test/a");
    assert!(explanation.chain[0].detail.contains("(test/a gives back cpu: 3)"), "{:?}", explanation.chain[0]);
    assert!(explanation.chain[1].next.is_some(), "{:?}", explanation.chain[1]);
    node.wait(3.0).await;
    assert_eq!(node.metric("podwright_admission_pods"), 1.0);
    assert_eq!(node.pod_counts(), ["working_pods{orphan,terminating,} 1"]);
    node.wait(55.0).await;
    assert!(waits(&node, "b"));
    node.eventually(5.0, "b runs", || node.phase("b") == "Running").await;
    assert_eq!(node.runtime.running("a"), [""; 0]);
    assert_eq!(node.events.count("b", "OutOfcpu"), 0);

    // A pod that does not fit beside b is rejected, and a rejected pod stays rejected.
    node.deliver(&[pod("b").cpu("3"), pod("c").cpu("3")]).await;
    assert_eq!((node.phase("c"), node.reason("c")), ("Failed".into(), "OutOfcpu".into()));
    node.deliver(&[pod("c").cpu("3")]).await;
    node.wait(120.0).await;
    assert_eq!(node.runtime.calls_of("c"), [""; 0]);
}

#[actix::test]
async fn pod_waits_for_a_pod_whose_final_status_is_stored_before_its_containers_stop() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::stubborn());
    node.final_statuses.slow(3000);
    let old = pod("old").cpu("3").grace(20).spec("activeDeadlineSeconds", 2);
    node.deliver(std::slice::from_ref(&old)).await;
    node.wait(3.0).await;
    assert_eq!((node.phase("old"), node.final_statuses.has("old")), ("Running".into(), false), "it is being stored");
    node.pass().await;
    assert_eq!(node.metric("podwright_admission_pods"), 1.0);
    node.deliver(&[old, pod("new").cpu("3")]).await;
    assert!(waits(&node, "new"));
    node.final_statuses.slow(0);
    node.eventually(5.0, "the status is published", || node.reason("old") == "DeadlineExceeded").await;
    assert_eq!(node.runtime.running("old"), ["main"]);
    assert!(waits(&node, "new"));
    node.eventually(30.0, "new runs", || node.phase("new") == "Running").await;
    assert_eq!(node.runtime.running("old"), [""; 0]);
}

// The container fails to start, and the final status is stored for three seconds. After that no status can be read.
#[actix::test]
async fn no_pod_waits_for_ever_for_a_pod_that_has_ended_and_whose_syncs_fail() {
    let node = TestNode::start().await;
    node.runtime.script("bad", Script { start_error: Some("no such command"), ..Script::default() });
    node.final_statuses.slow(3000);
    let old = pod("old").containers(&["bad"]).cpu("3").policy("Never");
    node.deliver(std::slice::from_ref(&old)).await;
    node.wait(1.0).await;
    node.runtime.fail(Op::Status);
    node.wait(4.0).await;
    assert_eq!((node.lifecycle("old"), node.final_statuses.has("old")), (Some(Lifecycle::Sync), true));
    node.deliver(&[old, pod("new").cpu("3")]).await;
    node.wait(110.0).await;
    assert!(waits(&node, "new"));
    assert_eq!(node.lifecycle("old"), Some(Lifecycle::Sync));
    node.eventually(20.0, "it does not fit beside the old pod", || node.reason("new") == "OutOfcpu").await;
}

#[actix::test]
async fn waiting_pods_start_in_their_order_unless_they_are_deleted() {
    let node = TestNode::start().await;
    node.runtime.script("slow", Script::stubborn());
    node.deliver(&[pod("old").containers(&["slow"]).cpu("4").grace(20)]).await;
    let [first, second, third] = ["first", "second", "third"].map(|name| pod(name).cpu("2"));
    node.deliver(&[first.clone(), second.clone(), third.clone()]).await;
    assert!(waits(&node, "first") && waits(&node, "second"));
    // The room is reserved for the pods that came before it.
    assert_eq!((node.phase("third"), node.reason("third")), ("Failed".into(), "OutOfcpu".into()));
    // A changed pod keeps its place.
    let second = second.label("2");
    node.deliver(&[first.clone(), second.clone(), third.clone()]).await;
    assert!(waits(&node, "first") && waits(&node, "second"));
    // A deleted pod ends, and what was reserved for it is free.
    let first = first.deleting(5);
    node.deliver(&[first.clone(), second.clone(), third.clone()]).await;
    assert_eq!(node.lifecycle("first"), Some(Lifecycle::Finished));
    node.deliver(&[first, second, third, pod("fourth").cpu("2")]).await;
    assert!(waits(&node, "second") && waits(&node, "fourth"));
    node.eventually(25.0, "both pods run", || ["second", "fourth"].iter().all(|uid| node.phase(uid) == "Running"))
        .await;
    assert_eq!(node.runtime.calls_of("first"), [""; 0]);
}

#[actix::test]
async fn pod_waits_for_a_stop_that_fails_until_two_minutes_after_its_grace_period() {
    let node = TestNode::start().await;
    node.deliver(&[pod("old").cpu("3").grace(10)]).await;
    node.runtime.fail_stops();
    let new = pod("new").cpu("3");
    node.deliver(std::slice::from_ref(&new)).await;
    node.wait(128.0).await;
    assert!(waits(&node, "new"));
    node.eventually(6.0, "it does not fit beside the old pod", || node.reason("new") == "OutOfcpu").await;
    let late = pod("late").cpu("3");
    node.deliver(&[new.clone(), late.clone()]).await;
    assert_eq!(node.reason("late"), "OutOfcpu");
    // The old pod still counts, and gives everything back once its stop succeeds.
    node.runtime.heal();
    node.eventually(60.0, "the old pod stops", || node.runtime.running("old").is_empty()).await;
    node.wait(5.0).await;
    node.deliver(&[new, late, pod("later").cpu("3")]).await;
    assert_eq!(node.phase("later"), "Running");
}

#[actix::test]
async fn critical_pod_goes_before_waiting_pods() {
    let node = TestNode::start().await;
    node.runtime.script("slow", Script::stubborn());
    node.deliver(&[pod("old").containers(&["slow"]).cpu("4").grace(20)]).await;
    let (large, small) = (pod("large").cpu("3"), pod("small").cpu("1"));
    node.deliver(&[large.clone(), small.clone()]).await;
    assert!(waits(&node, "large") && waits(&node, "small"));
    let vip = critical(pod("vip").cpu("2"));
    node.deliver(&[large.clone(), small.clone(), vip.clone()]).await;
    // The large pod does not fit beside it, and is rejected at once. The small one fits.
    assert_eq!((node.phase("large"), node.reason("large")), ("Failed".into(), "OutOfcpu".into()));
    assert!(waits(&node, "vip") && waits(&node, "small"));
    node.eventually(25.0, "both pods run", || ["vip", "small"].iter().all(|uid| node.phase(uid) == "Running")).await;
    assert_eq!(node.events.of("Preempting"), []);
}

// A cascade of preemptions would follow otherwise: each stop that fails would stop one more pod.
#[actix::test]
async fn critical_pod_waits_for_its_victim_however_long_the_stop_fails_and_stops_no_other_pod() {
    let node = TestNode::start().await;
    let (other, small) = (pod("other").cpu("2"), pod("small").cpu("1").grace(10));
    node.deliver(&[other.clone(), small.clone()]).await;
    node.runtime.fail_stops();
    let vip = critical(pod("vip").cpu("2"));
    node.deliver(&[other.clone(), small.clone(), vip.clone()]).await;
    node.wait(300.0).await;
    assert!(waits(&node, "vip"));
    assert_eq!(["small", "other"].map(|uid| node.events.count(uid, "Preempting")), [1, 0]);
    let explanation = node.node.explainer().explain(&FullName::new("test", "vip"), None, &|_| Vec::new()).unwrap();
    assert_eq!(explanation.chain[0].on.name, "test/small");
    // A pod for which no pod was stopped does not wait for the stop.
    node.deliver(&[other, small, vip, pod("late").cpu("1")]).await;
    assert_eq!(node.reason("late"), "OutOfcpu");
    node.runtime.heal();
    node.eventually(120.0, "the critical pod runs", || node.phase("vip") == "Running").await;
    assert_eq!(node.phase("other"), "Running");
}

#[actix::test]
async fn pod_that_is_deleted_already_gives_its_room_to_a_pod_that_comes_with_it() {
    let node = TestNode::start().await;
    node.deliver(&[pod("gone").cpu("3").deleting(5), pod("new").cpu("3")]).await;
    node.eventually(5.0, "new runs", || node.phase("new") == "Running").await;
    assert_eq!(node.events.count("new", "OutOfcpu"), 0);
}

#[actix::test]
async fn critical_pod_that_is_deleted_already_stops_no_other_pod() {
    let node = TestNode::start().await;
    let usual = pod("usual").cpu("3");
    node.deliver(std::slice::from_ref(&usual)).await;
    node.deliver(&[usual, critical(pod("gone").cpu("3")).deleting(5)]).await;
    node.wait(5.0).await;
    assert_eq!((node.phase("usual"), node.lifecycle("gone")), ("Running".into(), Some(Lifecycle::Finished)));
}

// Its record is forgotten two seconds after it has stopped at the earliest. Until then, its UID is known to the engine.
#[actix::test]
async fn static_pod_that_comes_back_is_admitted_beside_the_pods_that_got_its_room() {
    let node = TestNode::start().await;
    let [first, second] = ["first", "second"].map(|name| pod(name).of_file().cpu("3"));
    node.deliver(std::slice::from_ref(&first)).await;
    node.deliver(&[]).await;
    assert_eq!((node.lifecycle("first"), node.runtime.running("first").len()), (Some(Lifecycle::Finished), 0));
    node.deliver(std::slice::from_ref(&second)).await;
    node.deliver(&[first.clone(), second]).await;
    node.wait(10.0).await;
    assert_eq!((node.runtime.running("first").len(), node.runtime.running("second").len()), (0, 1));
    node.deliver(&[first]).await;
    node.eventually(10.0, "first runs", || node.runtime.running("first") == ["main"]).await;
}

#[actix::test]
async fn static_pod_that_comes_back_while_it_stops_keeps_its_room() {
    let node = TestNode::start().await;
    node.runtime.script("slow", Script::stubborn());
    let first = pod("first").of_file().containers(&["slow"]).cpu("3").grace(20);
    node.deliver(std::slice::from_ref(&first)).await;
    node.deliver(&[]).await;
    node.deliver(std::slice::from_ref(&first)).await;
    node.deliver(&[first, pod("new").cpu("3")]).await;
    assert_eq!((node.phase("new"), node.reason("new")), ("Failed".into(), "OutOfcpu".into()));
    node.eventually(30.0, "first runs again", || node.lifecycle("first") == Some(Lifecycle::Sync)).await;
    assert_eq!(node.events.of("Preempting"), []);
}

// The pod has not ended, whatever its restart policy says of the exits of its containers (POD-W28, POD-S46, KF1).
#[actix::test]
async fn static_pod_that_comes_back_at_any_time_of_its_stop_keeps_its_room_and_starts_anew_under_every_policy() {
    tokio::time::pause();
    for (policy, exit_code) in [("Always", 0), ("OnFailure", 0), ("OnFailure", 1), ("Never", 0), ("Never", 1)] {
        for back_after in [0.0, 0.7, 1.5, 2.2, 2.9, 3.6, 4.3] {
            let what = format!("{policy}, exit code {exit_code}, back after {back_after} s");
            let node = Setup::again(true).start();
            let slow_stop = Script { stops: Some((Duration::from_secs(2), exit_code)), ..Script::default() };
            node.runtime.script("main", slow_stop);
            let first = pod("first").of_file().cpu("3").grace(10).policy(policy);
            node.deliver(std::slice::from_ref(&first)).await;
            node.deliver(&[]).await;
            node.wait(back_after).await;
            node.deliver(std::slice::from_ref(&first)).await;
            node.deliver(&[first, pod("new").cpu("3")]).await;
            assert_eq!((node.phase("new"), node.reason("new")), ("Failed".into(), "OutOfcpu".into()), "{what}");
            node.wait(15.0).await;
            assert_eq!((node.phase("first"), node.runtime.running("first").len()), ("Running".into(), 1), "{what}");
            assert_eq!(node.runtime.times_of("start main").len(), 2, "{what}");
            assert!(!node.final_statuses.has("first"), "{what}");
        }
    }
}

// The dead containers are removed before the start, because they would end the pod.
#[actix::test]
async fn static_pod_that_comes_back_counts_until_its_dead_containers_can_be_removed() {
    let node = TestNode::start().await;
    let first = pod("first").of_file().cpu("3").policy("Never");
    node.deliver(std::slice::from_ref(&first)).await;
    node.runtime.fail(Op::Remove);
    node.deliver(&[]).await;
    node.deliver(std::slice::from_ref(&first)).await;
    node.wait(10.0).await;
    assert_eq!((node.lifecycle("first"), node.runtime.running("first").len()), (None, 0));
    let explanation = node.node.explainer().explain(&FullName::new("test", "first"), None, &|_| Vec::new()).unwrap();
    let detail = &explanation.chain[0].detail;
    assert!(detail.contains("once the containers of its earlier life are removed"), "{detail}");
    // A change of the manifest does not start it earlier.
    let first = first.label("2");
    node.deliver(&[first.clone(), pod("new").cpu("3")]).await;
    assert_eq!(node.reason("new"), "OutOfcpu");
    assert_eq!(node.lifecycle("first"), None);
    node.runtime.heal();
    node.wait(10.0).await;
    assert_eq!((node.phase("first"), node.runtime.running("first").len()), ("Running".into(), 1));
    assert_eq!(node.metric("kubelet_restarted_pods_total{static=\"true\"}"), 1.0);
}

#[actix::test]
async fn static_pod_that_had_ended_before_its_stop_does_not_start_anew() {
    let node = TestNode::start().await;
    node.runtime.script("main", Script::stubborn());
    let first = pod("first").of_file().cpu("3").grace(20).spec("activeDeadlineSeconds", 2);
    node.deliver(std::slice::from_ref(&first)).await;
    node.wait(5.0).await;
    node.deliver(&[]).await;
    node.deliver(std::slice::from_ref(&first)).await;
    assert_eq!((node.lifecycle("first"), node.phase("first")), (Some(Lifecycle::Terminating), "Failed".into()));
    node.deliver(&[first, pod("new").cpu("3")]).await;
    assert!(waits(&node, "new"));
    node.wait(40.0).await;
    assert_eq!((node.phase("first"), node.runtime.running("first").len()), ("Failed".into(), 0));
    assert_eq!(node.phase("new"), "Running");
}

// The source may have had a list from before the creation of the pod. The stopped pod has ended, so it gives its room back.
#[actix::test]
async fn pod_of_the_api_server_that_comes_back_while_it_stops_gives_its_room_back() {
    let node = TestNode::start().await;
    node.runtime.script("slow", Script::stubborn());
    let first = pod("first").containers(&["slow"]).cpu("3").grace(20);
    node.deliver(std::slice::from_ref(&first)).await;
    node.deliver(&[]).await;
    node.deliver(std::slice::from_ref(&first)).await;
    let new = pod("new").cpu("3");
    node.deliver(&[first, new]).await;
    assert_eq!(node.lifecycle("first"), Some(Lifecycle::Terminating));
    assert!(waits(&node, "new"));
    node.eventually(30.0, "new runs", || node.phase("new") == "Running").await;
    node.wait(10.0).await;
    assert_eq!((node.runtime.running("first").len(), node.events.count("new", "OutOfcpu")), (0, 0));
}

#[actix::test]
async fn pod_of_the_api_server_that_comes_back_after_its_end_uses_nothing() {
    let node = TestNode::start().await;
    let first = pod("first").cpu("3");
    node.deliver(std::slice::from_ref(&first)).await;
    node.deliver(&[]).await;
    node.deliver(std::slice::from_ref(&first)).await;
    assert_eq!(node.lifecycle("first"), Some(Lifecycle::Finished));
    node.deliver(&[first, pod("new").cpu("3")]).await;
    assert_eq!(node.phase("new"), "Running");
    node.wait(10.0).await;
    assert_eq!(node.runtime.running("first"), [""; 0]);
}

// The first critical pod starts only once its victim has stopped, so the two never use the node together.
#[actix::test]
async fn critical_pod_stops_no_other_pod_for_room_that_a_victim_and_its_critical_pod_share() {
    let node = Setup { cpu_millis: 6000, ..Setup::new(true) }.start();
    let (other, victim) = (pod("other").cpu("3"), pod("victim").cpu("2").grace(10));
    node.deliver(&[other.clone(), victim.clone()]).await;
    node.runtime.fail_stops();
    let vip = critical(pod("vip").cpu("2"));
    node.deliver(&[other.clone(), victim.clone(), vip.clone()]).await;
    node.wait(300.0).await;
    assert!(waits(&node, "vip"));
    node.deliver(&[other, victim, vip, critical(pod("late").cpu("1"))]).await;
    assert_eq!(node.phase("late"), "Running");
    assert_eq!(["victim", "other"].map(|uid| node.events.count(uid, "Preempting")), [1, 0]);
    node.runtime.heal();
    node.eventually(120.0, "the first critical pod runs", || node.phase("vip") == "Running").await;
    assert_eq!(["other", "late"].map(|uid| node.phase(uid)), ["Running", "Running"]);
}

/// A node with a manifest URL that has not answered yet.
fn with_silent_url() -> TestNode {
    Setup { sources: vec![SourceKind::File, SourceKind::Api, SourceKind::Http], ..Setup::new(true) }.start()
}

// The URL may desire the removed pod, so the removed pod runs on. It may run for ever, so no pod waits for it.
#[actix::test]
async fn no_pod_waits_for_a_removed_static_pod_that_a_silent_source_may_desire() {
    let node = with_silent_url();
    node.deliver(&[pod("old").of_file().cpu("3")]).await;
    let (usual, file) = (pod("usual").cpu("3"), pod("file").of_file().cpu("2"));
    node.deliver(&[usual.clone(), file.clone()]).await;
    assert_eq!((node.phase("usual"), node.reason("usual")), ("Failed".into(), "OutOfcpu".into()));
    assert_eq!(node.reason("file"), "UnexpectedAdmissionError");
    node.wait(60.0).await;
    assert_eq!(node.runtime.running("old"), ["main"]);
    // What fits beside the removed pod starts.
    node.deliver(&[usual, file, pod("small").cpu("1")]).await;
    assert_eq!(node.phase("small"), "Running");
    node.deliver_set(SourceKind::Http, vec![], vec![]).await;
    node.eventually(10.0, "the static pod runs", || node.phase("file") == "Running").await;
    assert_eq!(node.runtime.running("old"), [""; 0]);
}

#[actix::test]
async fn new_version_of_a_static_pod_waits_for_the_old_one_and_for_the_silent_source_and_stops_no_pod() {
    let node = with_silent_url();
    let (web, other) = (pod("web").of_file().cpu("2"), pod("other").cpu("2"));
    node.deliver(&[web.clone(), other.clone()]).await;
    node.deliver(&[web.uid("web-2"), other]).await;
    node.wait(300.0).await;
    assert!(waits(&node, "web-2"));
    let (name, uid) = (FullName::new("test", "web"), "web-2".into());
    let explanation = node.node.explainer().explain(&name, Some(&uid), &|_| Vec::new()).unwrap();
    let kinds: Vec<_> = explanation.chain.iter().map(|wait| (wait.depth, wait.what)).collect();
    assert_eq!(kinds, [(0, WaitKind::Admission), (1, WaitKind::Housekeeping), (2, WaitKind::Source)]);
    assert_eq!(explanation.chain[0].on.name, "test/web");
    node.deliver_set(SourceKind::Http, vec![], vec![]).await;
    node.eventually(10.0, "the new version runs", || node.phase("web-2") == "Running").await;
    assert_eq!((node.phase("other"), node.events.of("Preempting").len()), ("Running".into(), 0));
}
