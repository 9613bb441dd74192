//! Statuses of pods that are written to an API server.

use std::sync::Arc;
use std::time::Duration;

use podwright_fixtures::api_pods::pod;
use podwright_fixtures::scripted_runtime::{Script, ScriptedRuntime};
use podwright_model::pod::{Phase, PodObject};
use podwright_ports::{ApiError, ContainerState, SourceKind};
use serde_json::{Value, json};

use crate::support::api_node::{ApiNode, unavailable};
use crate::support::fake_pod_api::FakePodApi;
use crate::support::test_node::Setup;

#[actix::test]
async fn each_change_of_a_pod_is_one_patch_and_its_end_is_one_deletion() {
    let this = ApiNode::start().await;
    this.api.create_pod("web", &json!({}));
    this.watch().await;
    this.wait(5).await;
    assert_eq!(this.api.phase("web"), "Running");
    assert_eq!(this.condition("web", "Ready").as_deref(), Some("True"));
    let calls = this.api.take_calls();
    assert!(calls.len() <= 3 && calls.iter().all(|call| call == "PATCH web"), "{calls:?}");

    this.wait(60).await;
    assert_eq!(this.api.take_calls(), [""; 0], "nothing has changed");

    this.api.delete_pod("web");
    this.wait(5).await;
    assert!(this.api.pod("web").is_none(), "{:?} {:?}", this.api.take_calls(), this.api.pod("web").unwrap().metadata());
    let calls = this.api.take_calls();
    assert_eq!(calls.last().map(String::as_str), Some("DELETE web"));
    assert!(calls.len() <= 4, "{calls:?}");
}

// KF27, POD-I6, POD-S78
#[actix::test]
async fn terminal_phase_and_deletion_wait_until_the_containers_have_stopped() {
    let this = ApiNode::start().await;
    this.node.runtime.script("main", Script::stubborn());
    this.api.create_pod("web", &json!({"terminationGracePeriodSeconds": 20, "restartPolicy": "Never"}));
    this.watch().await;
    this.wait(2).await;
    this.api.delete_pod("web");
    for _ in 0..19 {
        this.wait(1).await;
        assert_eq!(this.api.phase("web"), "Running", "the container still runs");
    }
    this.wait(5).await;
    assert!(this.api.pod("web").is_none(), "{:?}", this.api.status("web"));
}

// KF27, POD-I6
#[actix::test]
async fn pod_past_its_deadline_is_failed_in_the_api_server_only_after_its_containers_have_stopped() {
    let this = ApiNode::start().await;
    this.node.runtime.script("main", Script::stubborn());
    this.api.create_pod("web", &json!({"terminationGracePeriodSeconds": 20, "activeDeadlineSeconds": 5}));
    this.watch().await;
    this.wait(10).await;
    assert_eq!(this.node.phase(&this.uid("web")), "Failed", "the node has decided that the pod ends");
    for _ in 0..14 {
        assert_eq!(this.api.phase("web"), "Running", "the container still runs");
        this.wait(1).await;
    }
    this.wait(5).await;
    assert_eq!(this.api.phase("web"), "Failed");
}

// KF27
#[actix::test]
async fn pod_stays_in_the_api_server_until_its_cleanup_is_complete() {
    let this = ApiNode::start().await;
    this.api.create_pod("web", &json!({"terminationGracePeriodSeconds": 1}));
    this.watch().await;
    this.wait(2).await;
    this.node.storage.stuck(true);
    this.api.delete_pod("web");
    this.wait(60).await;
    assert_eq!(this.node.runtime.running(&this.uid("web")), [""; 0]);
    assert!(["Succeeded", "Failed"].contains(&this.api.phase("web").as_str()), "{}", this.api.phase("web"));
    this.node.storage.stuck(false);
    this.wait(60).await;
    assert!(this.api.pod("web").is_none());
}

#[actix::test]
async fn exit_codes_are_written_before_the_pod_is_deleted() {
    let this = ApiNode::start().await;
    this.node.runtime.script("main", Script::ends(1.0, 3));
    this.api.create_pod("job", &json!({"restartPolicy": "Never"}));
    this.watch().await;
    this.wait(5).await;
    let status = this.api.status("job");
    assert_eq!(status.phase.as_deref(), Some("Failed"));
    let end = status.container_statuses.unwrap()[0].state.clone().unwrap().terminated.unwrap();
    assert_eq!(end.exit_code, 3);
    assert_eq!(this.condition("job", "Ready").as_deref(), Some("False"));
}

// KF28
#[actix::test]
async fn two_hundred_pods_that_change_at_once_are_written_in_half_a_second() {
    let this = ApiNode::start().await;
    let names: Vec<String> = (0..200).map(|number| format!("web-{number}")).collect();
    names.iter().for_each(|name| this.api.create_pod(name, &json!({"restartPolicy": "Never"})));
    this.watch().await;
    this.node.wait(30.0).await;
    this.watch().await;
    assert!(this.api.pods().iter().all(|pod| pod.phase() == Phase::Running));
    this.api.latency(20);
    this.api.take_calls();

    for pod in this.api.pods() {
        this.node.runtime.edit(&pod.uid().to_string(), "main", |run| run.state = ContainerState::Exited);
    }
    this.node.wait(5.0).await;
    assert!(this.api.pods().iter().all(|pod| pod.phase() == Phase::Succeeded));
    let calls = this.api.take_timed_calls();
    let took = calls.last().unwrap().0 - calls[0].0 + 0.02;
    assert!(took < 0.5, "{took} s");
    assert!(calls.len() <= 400, "{} calls", calls.len());
    assert!(this.api.most_active() <= 32, "{}", this.api.most_active());
}

// KF28
#[actix::test]
async fn terminal_phase_is_written_before_other_changes() {
    let this = ApiNode::start().await;
    let names: Vec<String> = (0..150).map(|number| format!("web-{number}")).collect();
    names.iter().for_each(|name| this.api.create_pod(name, &json!({})));
    this.api.create_pod("job", &json!({"restartPolicy": "Never"}));
    this.watch().await;
    this.node.wait(30.0).await;
    this.watch().await;
    assert_eq!(this.api.phase("job"), "Running");

    // With a second for each call, the repairs of the other pods take five rounds.
    this.api.latency(1000);
    let meddled = json!({"conditions": [{"type": "Ready", "status": "False", "reason": "Meddling"}]});
    names.iter().for_each(|name| this.api.patch_status_of(name, &meddled));
    this.watch().await;
    this.node.runtime.edit(&this.uid("job"), "main", |run| run.state = ContainerState::Exited);
    this.node.wait(2.3).await;
    let repaired = names.iter().filter(|name| this.condition(name, "Ready").as_deref() == Some("True")).count();
    assert_eq!((this.api.phase("job").as_str(), repaired < names.len()), ("Succeeded", true), "{repaired} repaired");
    this.node.wait(5.0).await;
    assert!(names.iter().all(|name| this.condition(name, "Ready").as_deref() == Some("True")));
}

// Each status that changed during an outage is written after the outage, with the newest state only.
#[actix::test]
async fn no_status_is_lost_in_an_outage_of_a_minute() {
    let this = ApiNode::start().await;
    this.node.runtime.script("main", Script::ends(30.0, 0));
    this.api.create_pod("job", &json!({"restartPolicy": "Never"}));
    this.api.fail(unavailable());
    this.watch().await;
    this.node.wait(60.0).await;
    let tries = this.api.take_calls().len();
    assert!((5..=15).contains(&tries), "{tries} tries in a minute");
    assert_eq!(this.api.phase("job"), "Pending");

    this.api.fail(None);
    this.node.wait(10.5).await;
    assert_eq!(this.api.phase("job"), "Succeeded");
    assert_eq!(this.api.take_calls(), ["PATCH job"], "the states in between are not written");
}

#[actix::test]
async fn writer_waits_as_long_as_the_server_requests() {
    let this = ApiNode::start().await;
    this.api.fail(Some(ApiError::unavailable("too many requests", Some(Duration::from_secs(7)))));
    this.api.create_pod("web", &json!({}));
    this.watch().await;
    this.node.wait(20.0).await;
    let times: Vec<f64> = this.api.take_timed_calls().into_iter().map(|(at, _)| at).collect();
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= 7.0), "{times:?}");
    assert!(times.len() >= 2, "{times:?}");
}

// A server answers a conflict to one of several writes at one time, and a proxy before a server may answer that nothing exists.
#[actix::test]
async fn status_is_written_although_the_server_first_answers_a_conflict_or_that_the_pod_does_not_exist() {
    tokio::time::pause();
    for wrong in [ApiError::conflict("the object has been modified"), ApiError::NotFound] {
        let this = ApiNode::again().await;
        this.api.fail(Some(wrong.clone()));
        this.api.create_pod("web", &json!({}));
        this.watch().await;
        this.node.wait(60.0).await;
        let tries = this.api.take_calls().len();
        assert!((5..=15).contains(&tries), "{wrong}: {tries} tries in a minute");
        this.api.fail(None);
        this.node.wait(10.5).await;
        assert_eq!(this.api.phase("web"), "Running", "{wrong}");
        this.node.wait(60.0).await;
        assert_eq!(this.api.take_calls(), ["PATCH web"], "{wrong}");
    }
}

#[actix::test]
async fn pod_that_is_gone_is_not_written_again_once_its_source_has_removed_it() {
    let this = ApiNode::start().await;
    this.api.create_pod("web", &json!({}));
    this.watch().await;
    this.wait(2).await;
    let uid = this.uid("web");
    this.api.force_delete("web");
    this.node.runtime.edit(&uid, "main", |run| run.restart_count += 1);
    this.node.wait(3.0).await;
    this.watch().await;
    this.node.wait(15.0).await;
    this.api.take_calls();
    this.node.wait(60.0).await;
    assert_eq!(this.api.take_calls(), [""; 0]);
}

// KF13, POD-U5
#[actix::test]
async fn status_of_a_pod_is_not_written_to_another_pod_of_its_name() {
    let this = ApiNode::start().await;
    this.node.runtime.script("main", Script::stubborn());
    this.api.create_pod("web", &json!({"terminationGracePeriodSeconds": 10}));
    this.watch().await;
    this.wait(1).await;
    let old = this.api.pods();
    // A user deletes the pod without a grace period and creates another one. The node does not know this yet.
    this.api
        .request("DELETE", "/api/v1/namespaces/test/pods/web", "application/json", &json!({"gracePeriodSeconds": 0}))
        .unwrap();
    this.api.create_pod("web", &json!({}));
    this.api.take_calls();
    this.node.runtime.edit(&old[0].uid().to_string(), "main", |run| {
        run.restart_count += 1;
        run.state = ContainerState::Exited;
    });
    this.node.wait(5.0).await;
    assert!(this.api.take_calls().contains(&"PATCH web".to_owned()), "the status of the old pod is not written");
    assert_eq!(this.api.status("web").container_statuses, None, "the new pod has not started");

    this.wait(30).await;
    assert_eq!(this.api.phase("web"), "Running");
    assert_eq!(this.api.status("web").container_statuses.unwrap()[0].restart_count, 0);
}

#[actix::test]
async fn changes_by_others_to_the_conditions_of_the_node_are_repaired_and_other_conditions_stay() {
    let this = ApiNode::start().await;
    this.api.create_pod("web", &json!({}));
    this.watch().await;
    this.wait(2).await;
    this.api.patch_status_of(
        "web",
        &json!({"conditions": [
        {"type": "Ready", "status": "False", "reason": "Meddling"},
        {"type": "example.com/gate", "status": "True"}]}),
    );
    this.watch().await;
    this.wait(1).await;
    assert_eq!(this.condition("web", "Ready").as_deref(), Some("True"));
    assert_eq!(this.condition("web", "example.com/gate").as_deref(), Some("True"));
    let ready = this.api.status("web").conditions.unwrap().into_iter().find(|have| have.type_ == "Ready").unwrap();
    assert_eq!(ready.reason, None);
}

#[actix::test]
async fn late_watch_event_causes_no_second_patch() {
    let this = ApiNode::start().await;
    this.api.create_pod("web", &json!({}));
    let created = this.api.pods();
    this.watch().await;
    this.node.wait(5.0).await;
    assert_eq!(this.api.phase("web"), "Running");
    this.api.take_calls();
    // The source delivers a version of the pod from before the patches, with a new label.
    let mut late: Value = serde_json::to_value(created[0].pod()).unwrap();
    late["metadata"]["labels"] = json!({"late": "true"});
    let late = PodObject::new(serde_json::from_value(late).unwrap()).unwrap();
    this.deliver(vec![late]).await;
    this.node.wait(5.0).await;
    assert_eq!(this.api.take_calls(), [""; 0]);
}

// The second address is the one that the node knows the server to have, so the patch of the second change has no address.
#[actix::test]
async fn change_that_was_undone_while_answers_were_lost_is_undone_in_the_api_server() {
    let setup = Setup::new(true);
    let (addresses, api) = (setup.host_ips.clone(), Arc::new(FakePodApi::new(setup.clock)));
    let setup = Setup { api: Some(api.clone()), sources: vec![SourceKind::Api], ..setup };
    let this = ApiNode::of(setup, api).await;
    this.api.create_pod("web", &json!({}));
    this.watch().await;
    this.wait(5).await;
    let known = serde_json::to_value(this.api.pods()[0].pod()).unwrap();
    let change = async |address: &str, generation: i64| {
        addresses.set(vec![address.parse().unwrap()]);
        let mut stale: Value = known.clone();
        stale["metadata"]["generation"] = json!(generation);
        this.deliver(vec![PodObject::new(serde_json::from_value(stale).unwrap()).unwrap()]).await;
    };
    let written = || {
        let status = this.api.status("web");
        (status.host_ip.unwrap(), status.observed_generation.unwrap())
    };

    this.api.lose_answers(true);
    change("192.0.2.9", 8).await;
    this.node.wait(2.0).await;
    assert_eq!(written(), ("192.0.2.9".to_owned(), 8));
    change("192.0.2.1", 9).await;
    this.node.wait(10.0).await;
    assert_eq!(written(), ("192.0.2.9".to_owned(), 9));

    this.api.lose_answers(false);
    this.api.take_calls();
    this.node.wait(10.5).await;
    assert_eq!(written(), ("192.0.2.1".to_owned(), 9));
    assert_eq!(this.api.take_calls(), ["PATCH web", "PATCH web"]);
    this.node.wait(30.0).await;
    assert_eq!(this.api.take_calls(), [""; 0]);
}

#[actix::test]
async fn field_that_the_server_does_not_store_is_written_once() {
    let this = ApiNode::start().await;
    this.api.drop_field("qosClass");
    this.api.drop_field("hostIPs");
    this.api.create_pod("web", &json!({}));
    this.watch().await;
    this.wait(5).await;
    assert_eq!(this.api.phase("web"), "Running");
    this.api.take_calls();
    this.wait(30).await;
    assert_eq!(this.api.take_calls(), [""; 0]);
}

#[actix::test]
async fn fields_that_undo_each_other_are_written_once() {
    let this = ApiNode::start().await;
    this.api.oppose(["hostIP", "hostIPs"]);
    this.api.create_pod("web", &json!({}));
    this.watch().await;
    this.wait(5).await;
    assert_eq!(this.api.phase("web"), "Running");
    this.api.take_calls();
    // The first status has both fields. A later patch has the one that is missing.
    this.node.runtime.edit(&this.uid("web"), "main", |run| run.state = ContainerState::Exited);
    this.wait(5).await;
    let calls = this.api.take_calls().len();
    assert!((2..=6).contains(&calls), "{calls}");
    this.wait(30).await;
    assert_eq!(this.api.take_calls(), [""; 0]);
}

#[actix::test]
async fn status_of_a_static_pod_is_written_to_its_mirror_pod() {
    let setup = Setup::new(true);
    let api = Arc::new(FakePodApi::new(setup.clock));
    let setup = Setup { api: Some(api.clone()), ..setup };
    let this = ApiNode { node: setup.start(), api };
    this.node.deliver_set(SourceKind::File, vec![pod("web").of_file().uid("static").build()], Vec::new()).await;
    this.watch().await;
    this.node.wait(5.0).await;
    assert_eq!(this.api.take_calls(), [""; 0], "there is no mirror pod");

    let mirror = json!({
        "metadata": {"name": "web", "namespace": "test", "annotations": {"kubernetes.io/config.mirror": "static"}},
        "spec": {"nodeName": "node1", "containers": [{"name": "main", "image": "img"}]}});
    this.api.request("POST", "/api/v1/namespaces/test/pods", "application/json", &mirror).unwrap();
    this.watch().await;
    this.wait(2).await;
    assert_eq!(this.api.phase("web"), "Running");
}

// KF30
#[actix::test]
async fn shutdown_waits_until_the_last_statuses_are_written() {
    let this = ApiNode::start().await;
    this.api.create_pod("web", &json!({}));
    this.watch().await;
    this.wait(2).await;
    this.api.latency(1000);
    this.node.node.shutdown(Duration::from_secs(30)).await;
    assert_eq!(this.api.phase("web"), "Failed");
    assert_eq!(this.api.status("web").reason.as_deref(), Some("Terminated"));
}

// KF20
#[actix::test]
async fn final_status_that_was_not_written_is_written_by_the_next_agent() {
    tokio::time::pause();
    for has_containers in [true, false] {
        let this = ApiNode::again().await;
        this.node.runtime.script("main", Script::ends(1.0, 0));
        this.api.create_pod("job", &json!({"restartPolicy": "Never"}));
        this.watch().await;
        this.api.fail(unavailable());
        this.node.wait(5.0).await;
        let (mut setup, api) = (this.next_setup(), this.api.clone());
        drop(this);
        if !has_containers {
            // The machine has rebooted, so only the file of final statuses has the end of the pod.
            setup.runtime = Arc::new(ScriptedRuntime::new(setup.clock, true));
        }
        let runtime = setup.runtime.clone();
        let starts = runtime.times_of("start main").len();

        api.fail(None);
        let this = ApiNode::of(setup, api).await;
        this.wait(5).await;
        assert_eq!(this.api.phase("job"), "Succeeded", "containers in the runtime: {has_containers}");
        assert_eq!(runtime.times_of("start main").len(), starts, "containers in the runtime: {has_containers}");
    }
}
