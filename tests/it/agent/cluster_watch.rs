//! The watches of the agent at an API server that refuses streaming lists, forgets its history, or lags.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use podwright_stand_in::{Fault, Refusal, RequestInfo, StandIn, Verb};
use serde_json::json;
use tokio::time::sleep;

use super::cluster::{Cluster, PODS};
use super::harness::eventually;

fn is_watch_of_pods(request: &RequestInfo) -> bool {
    request.resource == "pods" && request.verb == Some(Verb::Watch)
}

fn is_streaming(request: &RequestInfo) -> bool {
    request.query.contains("sendInitialEvents=true")
}

#[tokio::test]
async fn pods_are_listed_by_a_stream() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    cluster.create("web", &json!({}), &json!({}));
    cluster.wait_for_phase("web", "Running").await;
    let is_list = |verb: Option<Verb>, resource: &str| verb == Some(Verb::List) && resource == "pods";
    assert!(cluster.server.requests().iter().all(|served| !is_list(served.verb, &served.resource)));
}

#[tokio::test]
async fn server_that_refuses_streaming_lists_is_listed_in_pages() {
    let cluster = Cluster::start().await;
    let refusal = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
    let refusal = Refusal::plain(422, "Invalid", refusal);
    cluster.server.faults().on(move |request| is_streaming(request).then(|| Fault::Refuse(refusal.clone())));
    let agent = cluster.agent().await;
    cluster.create("web", &json!({}), &json!({}));
    cluster.wait_for_phase("web", "Running").await;
    agent.wait_for_line("the server refuses streaming lists, listing in pages").await;
    cluster.delete("web");
    cluster.is_gone("web").await;
}

#[tokio::test]
async fn idle_watch_is_resumed_at_the_version_of_its_bookmark() {
    let cluster = Cluster::of(StandIn::builder().bookmark_period(Duration::from_millis(50)).start().await.unwrap());
    // The version at which the last watch began; 0 for a list.
    let begun = Arc::new(AtomicU64::new(0));
    let latest = begun.clone();
    cluster.server.faults().on(move |request| {
        if is_watch_of_pods(request) {
            let version = request.query.split('&').find_map(|option| option.strip_prefix("resourceVersion="));
            latest.store(version.and_then(|version| version.parse().ok()).unwrap_or(0), Ordering::SeqCst);
        }
        None
    });
    let _agent = cluster.agent().await;
    cluster.create("web", &json!({}), &json!({}));
    cluster.wait_for_phase("web", "Running").await;

    // The version grows although no pod changes.
    let note = json!({"metadata": {"name": "note"}});
    let note = cluster.server.create("/api/v1/namespaces/default/configmaps", note).unwrap();
    let version: u64 = note["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    // Without this pause, the watch may end before its bookmark, and the next one begins after a longer delay.
    sleep(Duration::from_millis(300)).await;
    cluster.server.drop_watches();
    eventually("a watch of pods begins at the version of a bookmark", || async {
        let last = begun.swap(0, Ordering::SeqCst);
        if last > 0 && last < version {
            cluster.server.drop_watches();
        }
        (last >= version).then_some(())
    })
    .await;
}

#[tokio::test]
async fn pods_start_and_are_deleted_while_each_watch_expires() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    for round in 0..3 {
        let name = format!("web-{round}");
        cluster.create(&name, &json!({}), &json!({}));
        cluster.server.compact();
        cluster.server.drop_watches();
        cluster.wait_for_phase(&name, "Running").await;
        cluster.delete(&name);
        cluster.server.compact();
        cluster.server.drop_watches();
        cluster.is_gone(&name).await;
    }
}

// A server whose cache lags answers a list at version 0 with objects that are gone.
#[tokio::test]
async fn restarted_agent_lists_the_newest_pods_at_a_server_whose_cache_lags() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    cluster.create("gone", &json!({}), &json!({}));
    cluster.wait_for_phase("gone", "Running").await;
    agent.crash().await;
    cluster.server.hold("pods");
    let options = json!({"gracePeriodSeconds": 0});
    cluster.server.request("DELETE", &format!("{PODS}/gone"), "application/json", &options).unwrap();
    cluster.create("new", &json!({}), &json!({}));
    let agent = cluster.agent().await;
    cluster.wait_for_phase("new", "Running").await;
    assert!(agent.named("gone").is_empty());
}

#[tokio::test]
async fn pods_are_listed_again_if_the_server_refuses_to_resume_the_watch() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    cluster.create("first", &json!({}), &json!({}));
    cluster.wait_for_phase("first", "Running").await;
    let expired = Refusal::plain(410, "Expired", "too old resource version");
    cluster.server.faults().on(move |request| {
        (is_watch_of_pods(request) && !is_streaming(request)).then(|| Fault::Refuse(expired.clone()))
    });
    cluster.server.drop_watches();
    cluster.create("second", &json!({}), &json!({}));
    cluster.wait_for_phase("second", "Running").await;
}
