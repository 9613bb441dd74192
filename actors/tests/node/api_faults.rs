//! Faults of the API server and of its watches, and ends of the agent, while pods start, end and are deleted.

use podwright_fixtures::scripted_runtime::{Op, Script};
use podwright_ports::Clock;
use serde_json::{Value, json};

use crate::support::api_node::{ApiNode, unavailable};

/// The spec of a pod with one container of this name. The name selects the script of the fake runtime.
fn with_container(name: &str, grace: i64, policy: &str) -> Value {
    json!({"containers": [{"name": name, "image": "img"}], "terminationGracePeriodSeconds": grace, "restartPolicy": policy})
}

#[actix::test]
async fn pods_start_end_and_are_deleted_while_the_api_server_is_away_for_a_minute() {
    let this = ApiNode::start().await;
    this.node.runtime.script("job", Script::ends(20.0, 3));
    this.node.runtime.script("stubborn", Script::stubborn());
    this.api.create_pod("stays", &json!({}));
    this.api.create_pod("job", &with_container("job", 30, "Never"));
    for name in ["stops", "deleted", "removed"] {
        this.api.create_pod(name, &with_container("stubborn", 15, "Always"));
    }
    this.watch().await;
    this.wait(3).await;
    let uids = ["stays", "job", "stops", "deleted", "removed"].map(|name| this.uid(name));
    let [_, _, stops, deleted, removed] = &uids;
    this.node.runtime.slow(Op::Pull, 10.0);
    this.api.create_pod("starts", &json!({}));
    this.api.delete_pod("stops");
    this.watch().await;

    this.api.fail(unavailable());
    // The watch does not deliver these changes.
    this.api.delete_pod("deleted");
    this.api.force_delete("removed");
    this.api.create_pod("new", &json!({}));
    this.node.wait(60.0).await;
    assert_eq!(this.node.runtime.running(&this.uid("starts")), ["main"]);
    assert_eq!(this.node.runtime.running(stops), [""; 0]);
    assert_eq!(this.node.runtime.running(deleted), ["stubborn"], "the node does not know about its deletion");
    let phases = ["starts", "job", "stops"].map(|name| this.api.phase(name));
    assert_eq!(phases, ["Pending", "Running", "Running"], "nothing could be written");

    this.api.fail(None);
    this.wait(40).await;
    let phases = ["stays", "starts", "new", "job"].map(|name| this.api.phase(name));
    assert_eq!(phases, ["Running", "Running", "Running", "Failed"]);
    assert_eq!(this.api.pods().len(), 4, "three pods were deleted");
    for uid in uids.iter().chain(&[this.uid("starts"), this.uid("new")]) {
        assert_eq!(this.starts(uid), 1);
    }
    assert_eq!(this.node.runtime.running(removed), [""; 0]);
    this.api.check_phases();
}

// The `minReadySeconds` of a Deployment begin at this time.
#[actix::test]
async fn conditions_have_the_times_of_their_changes_after_an_outage_of_the_api_server() {
    let this = ApiNode::start().await;
    this.api.create_pod("web", &json!({}));
    this.api.fail(unavailable());
    let begin = this.node.clock.now().to_timestamp().as_second();
    this.watch().await;
    this.node.wait(60.0).await;
    assert_eq!(this.condition("web", "Ready"), None, "nothing could be written");
    this.api.fail(None);
    this.wait(40).await;
    let conditions = this.api.status("web").conditions.unwrap();
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready").unwrap();
    let changed = ready.last_transition_time.as_ref().unwrap().0.as_second() - begin;
    assert_eq!(ready.status, "True");
    assert!((0..=5).contains(&changed), "changed {changed} s after the pod came");
}

/// The changes that users make while the watch may be lost.
const USER_STEPS: [fn(&ApiNode); 6] = [
    |this| this.api.create_pod("web", &json!({})),
    |this| this.api.delete_pod("web"),
    |this| {
        this.api.force_delete("web");
        this.api.create_pod("web", &json!({}));
    },
    |this| this.api.create_pod("job", &with_container("job", 30, "Never")),
    |this| {
        this.api.force_delete("web");
        this.api.create_pod("web", &json!({}));
    },
    |this| {
        this.api.create_pod("other", &json!({}));
        this.api.delete_pod("job");
    },
];

#[actix::test]
async fn pods_reach_the_last_desired_state_whichever_versions_the_watch_delivers() {
    tokio::time::pause();
    for delivered in 0..1_u32 << USER_STEPS.len() {
        let this = ApiNode::again().await;
        this.node.runtime.script("job", Script::ends(1.0, 0));
        let mut uids = Vec::new();
        for (number, step) in USER_STEPS.iter().enumerate() {
            step(&this);
            uids.extend(this.api.pods().iter().map(|pod| pod.uid().to_string()));
            if delivered & (1 << number) != 0 {
                this.watch().await;
            }
            this.node.wait(0.7).await;
        }
        this.wait(5).await;
        let names = this.api.pods().iter().map(|pod| pod.full_name().name().to_owned()).collect::<Vec<_>>();
        assert_eq!(names, ["other", "web"], "deliveries {delivered:06b}");
        for name in names {
            assert_eq!(this.api.phase(&name), "Running", "{name}, deliveries {delivered:06b}");
        }
        let last = [this.uid("other"), this.uid("web")];
        for uid in uids {
            assert!(this.starts(&uid) <= 1, "{uid} ran twice, deliveries {delivered:06b}");
            let runs = !this.node.runtime.running(&uid).is_empty();
            assert_eq!(runs, last.contains(&uid), "{uid}, deliveries {delivered:06b}");
        }
        this.api.check_phases();
    }
}

#[actix::test]
async fn agent_that_is_killed_before_any_of_its_writes_loses_no_status() {
    tokio::time::pause();
    for successes in 0..5 {
        let this = ApiNode::again().await;
        this.node.runtime.script("main", Script::ends(1.0, 3));
        this.api.fail_after(Some(successes));
        this.api.create_pod("job", &json!({"restartPolicy": "Never"}));
        this.watch().await;
        this.wait(4).await;
        let uid = this.uid("job");
        this.api.fail_after(None);
        let this = this.crash().await;
        this.wait(5).await;
        let status = this.api.status("job");
        assert_eq!(status.phase.as_deref(), Some("Failed"), "killed after {successes} writes");
        let end = status.container_statuses.unwrap()[0].state.clone().unwrap().terminated.unwrap();
        assert_eq!(end.exit_code, 3, "killed after {successes} writes");
        assert_eq!(this.starts(&uid), 1, "killed after {successes} writes");

        this.api.delete_pod("job");
        this.wait(3).await;
        assert!(this.api.pod("job").is_none(), "killed after {successes} writes");
        this.api.check_phases();
    }
}

#[actix::test]
async fn pod_that_a_killed_agent_did_not_delete_is_deleted_by_the_next_agent() {
    tokio::time::pause();
    for successes in 0..4 {
        let this = ApiNode::again().await;
        this.api.create_pod("web", &json!({"terminationGracePeriodSeconds": 1}));
        this.watch().await;
        this.wait(2).await;
        let uid = this.uid("web");
        this.api.delete_pod("web");
        this.api.fail_after(Some(successes));
        this.wait(3).await;
        this.api.fail_after(None);
        let this = this.crash().await;
        this.wait(5).await;
        assert!(this.api.pod("web").is_none(), "killed after {successes} calls");
        assert_eq!(
            (this.starts(&uid), this.node.runtime.running(&uid).len()),
            (1, 0),
            "killed after {successes} calls"
        );
        this.api.check_phases();
    }
}

// KF13
#[actix::test]
async fn pod_that_is_deleted_and_created_again_at_any_time_of_its_life_runs_once() {
    tokio::time::pause();
    // Each call takes a second, so the pod is at another step of its start or of its stop at each of these times.
    let times: [f64; 11] = [0.0, 0.5, 1.5, 2.5, 3.5, 4.5, 6.0, 6.5, 7.5, 9.0, 11.0];
    for (at, is_deleted_first) in times.iter().flat_map(|at| [(*at, false), (*at, true)]) {
        let case = format!("created again after {at} s, deleted first: {is_deleted_first}");
        let this = ApiNode::again().await;
        for op in [Op::RunSandbox, Op::Pull, Op::Create, Op::Start] {
            this.node.runtime.slow(op, 1.0);
        }
        let slow_stop = Script { stops: Some((std::time::Duration::from_secs(2), 0)), ..Script::default() };
        this.node.runtime.script("main", slow_stop);
        this.api.create_pod("web", &json!({}));
        if at > 0.0 {
            this.watch().await;
        }
        let first = this.uid("web");
        let deleted_at = if is_deleted_first { at.min(6.0) } else { at };
        this.node.wait(deleted_at).await;
        if is_deleted_first {
            this.api.delete_pod("web");
            this.watch().await;
            this.node.wait(at - deleted_at).await;
        }
        this.api.force_delete("web");
        this.api.create_pod("web", &json!({}));
        let second = this.uid("web");
        this.wait(20).await;
        assert_eq!(this.uid("web"), second, "{case}: the new pod was deleted");
        assert_eq!(this.api.phase("web"), "Running", "{case}");
        assert_eq!(this.api.status("web").container_statuses.unwrap()[0].restart_count, 0, "{case}");
        assert_eq!((this.starts(&second), this.node.runtime.running(&second).len()), (1, 1), "{case}");
        assert!(this.starts(&first) <= 1, "{case}");
        assert_eq!(this.node.runtime.running(&first), [""; 0], "{case}");
        this.api.check_phases();
    }
}

#[actix::test]
async fn five_hundred_pods_start_and_are_deleted_at_once() {
    let this = ApiNode::start().await;
    this.api.latency(20);
    let names: Vec<String> = (0..500).map(|number| format!("web-{number}")).collect();
    names.iter().for_each(|name| this.api.create_pod(name, &json!({"terminationGracePeriodSeconds": 1})));
    this.watch().await;
    this.node.wait(20.0).await;
    this.watch().await;
    this.node.wait(5.0).await;
    assert!(names.iter().all(|name| this.api.phase(name) == "Running"));
    assert_eq!(this.node.runtime.times_of("start main").len(), 500);
    let calls = this.api.take_calls().len();
    assert!(calls <= 2000, "{calls} calls");

    names.iter().for_each(|name| this.api.delete_pod(name));
    this.watch().await;
    this.node.wait(20.0).await;
    this.watch().await;
    this.node.wait(5.0).await;
    assert_eq!(this.api.pods().len(), 0);
    let calls = this.api.take_calls().len();
    assert!(calls <= 2000, "{calls} calls");
    this.api.check_phases();
}
