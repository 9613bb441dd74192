//! Failures that users of other node agents reported. `docs/rules.md` defines the codes.

use std::sync::Arc;

use podwright_fixtures::api_pods::pod;
use podwright_fixtures::scripted_runtime::{Op, Script};
use podwright_ports::{ApiError, ContainerState, ExecOutput};
use serde_json::json;

use crate::support::api_node::ApiNode;
use crate::support::test_node::Setup;

// KF2
#[actix::test]
async fn pod_that_was_force_deleted_while_it_cannot_be_stopped_ends_once_it_can() {
    let this = ApiNode::start().await;
    this.api.create_pod("web", &json!({"terminationGracePeriodSeconds": 2}));
    this.watch().await;
    this.wait(2).await;
    let uid = this.uid("web");
    this.node.runtime.fail_stops();
    this.api.delete_pod("web");
    this.wait(10).await;
    this.api.force_delete("web");
    this.wait(60).await;
    assert_eq!(this.node.runtime.running(&uid), ["main"]);
    this.node.runtime.heal();
    this.wait(60).await;
    assert_eq!(this.node.runtime.running(&uid), [""; 0]);
    assert_eq!(this.node.lifecycle(&uid), None, "nothing of the pod is left");
}

// KF9
#[actix::test]
async fn deletion_does_not_wait_for_an_image_pull() {
    let this = ApiNode::start().await;
    this.node.runtime.slow(Op::Pull, 29.0 * 60.0);
    this.api.create_pod("web", &json!({}));
    this.watch().await;
    this.wait(5).await;
    let uid = this.uid("web");
    this.api.delete_pod("web");
    this.wait(3).await;
    assert!(this.api.pod("web").is_none(), "{:?}", this.api.status("web"));
    this.node.wait(30.0 * 60.0).await;
    assert_eq!(this.starts(&uid), 0);
}

// KF14
#[actix::test]
async fn status_that_the_server_refuses_delays_no_stop() {
    let this = ApiNode::start().await;
    this.api.create_pod("web", &json!({"terminationGracePeriodSeconds": 2}));
    this.api.create_pod("other", &json!({}));
    this.watch().await;
    this.wait(2).await;
    let uid = this.uid("web");
    this.api.fail(Some(ApiError::refused("a webhook forbids it")));
    this.api.delete_pod("web");
    this.wait(5).await;
    assert_eq!(this.node.runtime.running(&uid), [""; 0], "the container does not wait for the status");
    this.api.fail(None);
    this.wait(90).await;
    assert!(this.api.pod("web").is_none(), "the pod is deleted once the server accepts its status");
    assert_eq!(this.api.phase("other"), "Running");
}

// KF15
#[actix::test]
async fn pod_that_succeeded_is_not_admitted_again_by_the_next_agent() {
    tokio::time::pause();
    for is_disk_lost in [false, true] {
        let this = ApiNode::again().await;
        this.node.runtime.script("main", Script::ends(1.0, 0));
        let requests = json!([{"name": "main", "image": "img", "resources": {"requests": {"cpu": "3"}}}]);
        this.api.create_pod("job", &json!({"restartPolicy": "Never", "containers": requests}));
        this.watch().await;
        this.wait(4).await;
        let uid = this.uid("job");
        assert_eq!(this.api.phase("job"), "Succeeded");
        this.node.runtime.script("main", Script::default());
        this.api.create_pod("web", &json!({"containers": requests}));
        this.wait(3).await;
        assert_eq!(this.api.phase("web"), "Running", "a pod that has ended uses no resources");

        let (mut setup, api) = (this.next_setup(), this.api.clone());
        drop(this);
        if is_disk_lost {
            // Only the API server knows that the pod has ended.
            setup.final_statuses = Arc::default();
        }
        let this = ApiNode::of(setup, api).await;
        this.wait(10).await;
        let phases = (this.api.phase("job"), this.api.phase("web"));
        assert_eq!(phases, ("Succeeded".to_owned(), "Running".to_owned()), "disk lost: {is_disk_lost}");
        assert_eq!(this.starts(&uid), 1, "disk lost: {is_disk_lost}");
        assert_eq!(this.node.events.of("OutOfcpu"), [], "disk lost: {is_disk_lost}");
        this.api.check_phases();
    }
}

// KF16
#[actix::test]
async fn pod_that_runs_is_not_admitted_again_by_an_agent_with_fewer_resources() {
    let this = ApiNode::start().await;
    let requests = json!([{"name": "main", "image": "img", "resources": {"requests": {"cpu": "3"}}}]);
    this.api.create_pod("web", &json!({"containers": requests}));
    this.watch().await;
    this.wait(2).await;
    let uid = this.uid("web");
    let (setup, api) = (Setup { cpu_millis: 1000, ..this.next_setup() }, this.api.clone());
    drop(this);
    let this = ApiNode::of(setup, api).await;
    this.wait(30).await;
    assert_eq!(this.api.phase("web"), "Running");
    assert_eq!((this.starts(&uid), this.node.runtime.running(&uid).len()), (1, 1));
}

// KF17. A pod that runs gets a deletion timestamp, while an API server removes a pod with a terminal phase at once.
#[actix::test]
async fn pod_that_ended_and_is_deleted_while_no_agent_runs_is_gone_soon() {
    tokio::time::pause();
    for is_end_written in [false, true] {
        let this = ApiNode::again().await;
        this.api.create_pod("job", &json!({"restartPolicy": "Never"}));
        this.watch().await;
        this.wait(2).await;
        let uid = this.uid("job");
        let (setup, api) = (this.next_setup(), this.api.clone());
        drop(this);
        api.delete_pod("job");
        setup.runtime.edit(&uid, "main", |run| run.state = ContainerState::Exited);
        if is_end_written {
            // The last call of the earlier agent was the write of the terminal phase.
            api.patch_status_of("job", &json!({"phase": "Succeeded"}));
        }
        assert!(api.pod("job").is_some_and(|pod| pod.is_deleting()), "end written: {is_end_written}");
        let this = ApiNode::of(setup, api).await;
        this.wait(3).await;
        assert!(this.api.pod("job").is_none(), "end written: {is_end_written}: {:?}", this.api.status("job"));
    }
}

// KF18
#[actix::test]
async fn agent_that_restarts_follows_the_deletions_that_it_did_not_see() {
    let this = ApiNode::start().await;
    this.api.create_pod("web", &json!({"terminationGracePeriodSeconds": 2}));
    this.api.create_pod("stays", &json!({}));
    this.watch().await;
    this.wait(2).await;
    let (first, stays) = (this.uid("web"), this.uid("stays"));
    let (setup, api) = (this.next_setup(), this.api.clone());
    drop(this);
    api.force_delete("web");
    api.create_pod("web", &json!({}));
    let this = ApiNode::of(setup, api).await;
    this.wait(10).await;
    let second = this.uid("web");
    assert_eq!(this.api.phase("web"), "Running");
    assert_eq!(this.node.runtime.running(&first), [""; 0]);
    assert_eq!([&first, &second, &stays].map(|uid| this.starts(uid)), [1, 1, 1]);
}

// KF29
#[actix::test]
async fn addresses_of_a_hundred_new_pods_are_in_the_api_server_at_once() {
    let this = ApiNode::start().await;
    this.api.latency(20);
    let names: Vec<String> = (0..100).map(|number| format!("web-{number}")).collect();
    names.iter().for_each(|name| this.api.create_pod(name, &json!({})));
    this.watch().await;
    this.node.wait(1.5).await;
    let without = names.iter().filter(|name| this.api.status(name).pod_ip.is_none()).count();
    assert_eq!(without, 0);
}

// KF31
#[actix::test]
async fn rejected_pod_is_failed_and_deleted_without_a_delay() {
    let this = ApiNode::start().await;
    let requests = json!([{"name": "main", "image": "img", "resources": {"requests": {"cpu": "64"}}}]);
    this.api.create_pod("web", &json!({"containers": requests}));
    this.watch().await;
    this.node.wait(0.2).await;
    assert_eq!(this.api.phase("web"), "Failed");
    this.watch().await;
    this.api.delete_pod("web");
    this.watch().await;
    this.node.wait(2.5).await;
    assert!(this.api.pod("web").is_none());
}

// KF28, KF14
#[actix::test]
async fn one_pod_whose_status_is_refused_delays_no_other_pod() {
    let this = ApiNode::start().await;
    this.api.create_pod("bad", &json!({}));
    this.api.fail(Some(ApiError::refused("a webhook forbids it")));
    this.watch().await;
    this.node.wait(1.0).await;
    this.api.fail(None);
    this.api.create_pod("good", &json!({}));
    this.watch().await;
    this.node.wait(2.0).await;
    assert_eq!(this.api.phase("good"), "Running");
    assert_eq!(this.api.phase("bad"), "Pending", "its backoff has not ended");
    this.wait(90).await;
    assert_eq!(this.api.phase("bad"), "Running");
}

// KF8, KF14
#[actix::test]
async fn call_that_hangs_for_one_pod_delays_no_start_and_no_stop() {
    let this = ApiNode::start().await;
    this.api.create_pod("web", &json!({"terminationGracePeriodSeconds": 1}));
    this.watch().await;
    this.wait(2).await;
    let uid = this.uid("web");
    this.api.latency(30_000);
    this.api.create_pod("new", &json!({}));
    this.api.delete_pod("web");
    this.watch().await;
    this.node.wait(3.0).await;
    assert_eq!(this.node.runtime.running(&uid), [""; 0]);
    assert_eq!(this.node.runtime.running(&this.uid("new")), ["main"]);
    this.api.latency(0);
    this.wait(45).await;
    assert!(this.api.pod("web").is_none());
    assert_eq!(this.api.phase("new"), "Running");
}

// KF32
#[actix::test]
async fn three_hundred_pods_that_change_at_once_are_read_at_the_same_time() {
    let this = ApiNode::start().await;
    let names: Vec<String> = (0..300).map(|number| format!("web-{number}")).collect();
    names.iter().for_each(|name| this.api.create_pod(name, &json!({"restartPolicy": "Never"})));
    this.watch().await;
    this.node.wait(40.0).await;
    this.watch().await;
    assert!(names.iter().all(|name| this.api.phase(name) == "Running"));
    // One after the other, the reads would take more than five minutes.
    for name in &names {
        this.node.runtime.slow_pod(&this.uid(name), 1.0);
    }
    for pod in this.api.pods() {
        this.node.runtime.edit(&pod.uid().to_string(), "main", |run| run.state = ContainerState::Exited);
    }
    for _ in 0..15 {
        this.node.wait(1.0).await;
        assert!(*this.node.node.healthy().borrow(), "the health of the node does not depend on the reads");
    }
    this.node.wait(45.0).await;
    let left = names.iter().filter(|name| this.api.phase(name) != "Succeeded").count();
    assert_eq!(left, 0);
}

// KF1
#[actix::test]
async fn static_pod_with_a_fixed_uid_that_is_put_back_at_any_time_of_its_life_runs() {
    tokio::time::pause();
    for removed_after in [0.0, 0.3, 5.0] {
        for back_after in [0.0, 0.3, 1.5, 2.5, 4.0, 60.0] {
            let node = Setup::again(true).start();
            let slow_stop = Script { stops: Some((std::time::Duration::from_secs(2), 0)), ..Script::default() };
            node.runtime.script("main", slow_stop);
            let web = pod("web").of_file().grace(10);
            node.deliver(std::slice::from_ref(&web)).await;
            node.wait(removed_after).await;
            node.deliver(&[]).await;
            node.wait(back_after).await;
            node.deliver(&[web]).await;
            node.wait(20.0).await;
            assert_eq!(
                node.runtime.running("web"),
                ["main"],
                "removed after {removed_after} s, back after {back_after} s"
            );
            assert_eq!(node.phase("web"), "Running", "removed after {removed_after} s, back after {back_after} s");
        }
    }
}

// KF34
#[actix::test]
async fn static_pod_starts_once_although_events_and_lists_of_the_runtime_disagree() {
    tokio::time::pause();
    for (with_events, list_age) in [(true, 0.0), (true, 5.0), (false, 5.0), (true, 30.0)] {
        let node = Setup::again(with_events).start();
        node.deliver(&[]).await;
        node.runtime.old_lists(list_age);
        node.deliver(&[pod("web").of_file()]).await;
        node.wait(60.0).await;
        node.runtime.unreachable();
        node.wait(20.0).await;
        node.runtime.heal();
        node.wait(60.0).await;
        let starts = node.runtime.times_of("start main").len();
        assert_eq!(
            (starts, node.runtime.running("web").len()),
            (1, 1),
            "events: {with_events}, lists of {list_age} s ago"
        );
    }
}

// KF35
#[actix::test]
async fn thirty_pods_that_start_slowly_are_not_killed_by_their_liveness_probes() {
    let this = ApiNode::start().await;
    let probe = json!({"exec": {"command": ["alive"]}, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 1});
    let containers = json!([{"name": "main", "image": "img", "livenessProbe": probe}]);
    let names: Vec<String> = (0..30).map(|number| format!("web-{number}")).collect();
    for op in [Op::RunSandbox, Op::Create, Op::Start] {
        this.node.runtime.slow(op, 3.0);
    }
    names.iter().for_each(|name| this.api.create_pod(name, &json!({"containers": containers})));
    this.watch().await;
    this.node.wait(20.0).await;
    assert!(names.iter().any(|name| this.starts(&this.uid(name)) == 0), "the starts wait for their turn");
    for _ in 0..20 {
        this.node.wait(10.0).await;
        this.watch().await;
    }
    for name in &names {
        assert_eq!((this.starts(&this.uid(name)), this.api.phase(name).as_str()), (1, "Running"), "{name}");
    }
}

// KF35
#[actix::test]
async fn liveness_probe_counts_its_delay_from_the_start_of_its_container() {
    let this = ApiNode::start().await;
    this.node.runtime.exec_result(Ok(ExecOutput { exit_code: 1, ..ExecOutput::default() }));
    let probe =
        json!({"exec": {"command": ["alive"]}, "initialDelaySeconds": 30, "periodSeconds": 1, "failureThreshold": 1});
    for op in [Op::RunSandbox, Op::Create, Op::Start] {
        this.node.runtime.slow(op, 20.0);
    }
    let containers = json!([{"name": "main", "image": "img", "livenessProbe": probe}]);
    this.api.create_pod("web", &json!({"containers": containers}));
    this.watch().await;
    this.node.wait(110.0).await;
    // The fake notes a start when the call begins, 20 s before the container runs.
    let (starts, stops) = (this.node.runtime.times_of("start main"), this.node.runtime.times_of("stop main"));
    assert_eq!(stops.len(), 1, "{starts:?}, {stops:?}");
    assert!((50.0..53.0).contains(&(stops[0] - starts[0])), "{starts:?}, {stops:?}");
}
