//! The client, the watcher and the reflector of kube against the stand-in.

use std::pin::pin;

use futures_util::{Stream, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use podwright_stand_in::StandIn;
use serde_json::json;

async fn client(server: &StandIn) -> Client {
    server.client(&server.admin_token()).await
}

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name, "labels": {"t": ""}}})).unwrap()
}

/// The next event that is not an error, in words.
async fn next(stream: &mut (impl Stream<Item = watcher::Result<Event<ConfigMap>>> + Unpin)) -> String {
    loop {
        match stream.next().await.unwrap() {
            Ok(Event::Init) => return "init".to_owned(),
            Ok(Event::InitApply(object)) => return format!("listed {}", object.name_any()),
            Ok(Event::InitDone) => return "listed all".to_owned(),
            Ok(Event::Apply(object)) => return format!("applied {}", object.name_any()),
            Ok(Event::Delete(object)) => return format!("deleted {}", object.name_any()),
            Err(_) => {}
        }
    }
}

async fn follow(config: watcher::Config) {
    let server = StandIn::start().await.unwrap();
    let api: Api<ConfigMap> = Api::namespaced(client(&server).await, "default");
    for name in ["a", "a2"] {
        api.create(&PostParams::default(), &map(name)).await.unwrap();
    }
    let mut stream = pin!(watcher(api.clone(), config.labels("t")));
    for expected in ["init", "listed a", "listed a2", "listed all"] {
        assert_eq!(next(&mut stream).await, expected);
    }
    api.create(&PostParams::default(), &map("b")).await.unwrap();
    assert_eq!(next(&mut stream).await, "applied b");
    api.delete("a", &DeleteParams::default()).await.unwrap();
    assert_eq!(next(&mut stream).await, "deleted a");
    // The watcher resumes a dropped watch at its version, and lists again when that version is gone.
    server.drop_watches();
    api.create(&PostParams::default(), &map("c")).await.unwrap();
    assert_eq!(next(&mut stream).await, "applied c");
    server.stop().await;
    server
        .create("/api/v1/namespaces/default/configmaps", json!({"metadata": {"name": "d", "labels": {"t": ""}}}))
        .unwrap();
    server.compact();
    server.resume().await.unwrap();
    for expected in ["init", "listed a2", "listed b", "listed c", "listed d", "listed all"] {
        assert_eq!(next(&mut stream).await, expected);
    }
}

#[tokio::test]
async fn the_watcher_follows_by_list_and_watch() {
    follow(watcher::Config::default().page_size(1)).await;
}

#[tokio::test]
async fn the_watcher_follows_by_streaming_lists() {
    follow(watcher::Config::default().streaming_lists()).await;
}

#[tokio::test]
async fn the_client_reads_writes_and_applies() {
    let server = StandIn::start().await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client(&server).await, "default");
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "a", "image": "i"}]}});
    let made = pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let again = pods.create(&PostParams::default(), &made).await.unwrap_err();
    assert!(matches!(again, kube::Error::Api(_)), "{again}");
    let status = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "uid": made.uid()},
        "status": {"resourceClaimStatuses": [{"name": "c", "resourceClaimName": "x"}]},
    });
    let apply = PatchParams::apply("ResourceClaimController").force();
    let found = pods.patch_status("p", &apply, &Patch::Apply(status)).await.unwrap();
    assert_eq!(found.status.unwrap().resource_claim_statuses.unwrap().len(), 1);
    let phase = json!({"metadata": {"uid": made.uid()}, "status": {"phase": "Running"}});
    pods.patch_status("p", &PatchParams::default(), &Patch::Strategic(phase)).await.unwrap();
    let selected = pods.list(&ListParams::default().fields("spec.nodeName=n,status.phase=Running")).await.unwrap();
    assert_eq!(selected.items.len(), 1);
    let other_uid = Preconditions { uid: Some("other".to_owned()), resource_version: None };
    let refused = pods.delete("p", &DeleteParams::default().grace_period(0).preconditions(other_uid)).await;
    assert_eq!(status_code(&refused.unwrap_err()), 409);
    let same_uid = Preconditions { uid: made.uid(), resource_version: None };
    pods.delete("p", &DeleteParams::default().grace_period(0).preconditions(same_uid)).await.unwrap();
    assert!(pods.get_opt("p").await.unwrap().is_none());
}

fn status_code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        other => panic!("not an answer of the server: {other}"),
    }
}

#[tokio::test]
async fn the_reflector_keeps_its_store_equal_to_the_server() {
    let server = StandIn::start().await.unwrap();
    let api: Api<ConfigMap> = Api::namespaced(client(&server).await, "default");
    api.create(&PostParams::default(), &map("a")).await.unwrap();
    let (reader, writer) = reflector::store();
    let mut stream = pin!(reflector::reflector(writer, watcher(api.clone(), watcher::Config::default().labels("t"))));
    for _ in ["init", "listed a", "listed all"] {
        next(&mut stream).await;
    }
    assert_eq!(reader.state().len(), 1);
    api.create(&PostParams::default(), &map("b")).await.unwrap();
    assert_eq!(next(&mut stream).await, "applied b");
    api.delete("a", &DeleteParams::default()).await.unwrap();
    assert_eq!(next(&mut stream).await, "deleted a");
    let find = |name: &str| reader.get(&ObjectRef::new(name).within("default"));
    assert!(find("a").is_none() && find("b").is_some());
}

#[tokio::test]
async fn a_node_is_applied_and_its_lease_is_renewed() {
    let server = StandIn::start().await.unwrap();
    let client = client(&server).await;
    let nodes: Api<Node> = Api::all(client.clone());
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"a": "b"}}});
    let apply = PatchParams::apply("agent");
    let made = nodes.patch("n1", &apply, &Patch::Apply(&node)).await.unwrap();
    assert_eq!(
        nodes.patch("n1", &apply, &Patch::Apply(&node)).await.unwrap().resource_version(),
        made.resource_version()
    );
    let other = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"a": "c"}}});
    let conflict = nodes.patch("n1", &PatchParams::apply("other"), &Patch::Apply(&other)).await.unwrap_err();
    assert_eq!(status_code(&conflict), 409);

    let leases: Api<Lease> = Api::namespaced(client, "kube-node-lease");
    let lease = json!({"metadata": {"name": "n1"}, "spec": {"holderIdentity": "n1", "leaseDurationSeconds": 40}});
    let first = leases.create(&PostParams::default(), &serde_json::from_value(lease).unwrap()).await.unwrap();
    let mut renewed = first.clone();
    let time = serde_json::from_value(json!("2026-01-01T00:00:00.000000Z")).unwrap();
    renewed.spec.as_mut().unwrap().renew_time = Some(time);
    let second = leases.replace("n1", &PostParams::default(), &renewed).await.unwrap();
    assert_ne!(second.resource_version(), first.resource_version());
    let stale = leases.replace("n1", &PostParams::default(), &first).await.unwrap_err();
    assert_eq!(status_code(&stale), 409);
}
