//! The server as a service, without a port and in virtual time.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, PostParams, WatchParams};
use kube::core::WatchEvent;
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use podwright_stand_in::{Fault, Rule, StandIn, User, Verb, Write};
use serde_json::json;
use tokio::time::Instant;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn maps(server: &StandIn, user: User) -> Api<ConfigMap> {
    Api::namespaced(Client::new(server.service(user), "default"), "default")
}

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

fn is_reset(error: &kube::Error) -> bool {
    let kube::Error::Service(error) = error else { return false };
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
}

#[tokio::test(start_paused = true)]
async fn a_service_answers_with_the_rights_of_its_user_and_has_the_faults_of_the_server() {
    let server = StandIn::builder().without_port();
    let (admin, node) = (maps(&server, User::admin()), maps(&server, User::node("n1")));
    assert_eq!(admin.list(&ListParams::default()).await.unwrap().items.len(), 1);
    let refused = node.create(&PostParams::default(), &map("a")).await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 403));

    let (create, begin) = (Rule::new().verb(Verb::Create).times(1), Instant::now());
    server.faults().inject(create.clone(), Fault::DropBefore);
    assert!(is_reset(&admin.create(&PostParams::default(), &map("a")).await.unwrap_err()));
    assert!(server.get("configmaps", "default", "a").is_none());
    server.faults().inject(create.clone(), Fault::DropAfter);
    assert!(is_reset(&admin.create(&PostParams::default(), &map("a")).await.unwrap_err()));
    assert!(server.get("configmaps", "default", "a").is_some());
    assert_eq!(begin.elapsed(), Duration::ZERO);

    server.faults().inject(create, Fault::DelayAfter(Duration::from_secs(40)));
    let (params, b) = (PostParams::default(), map("b"));
    let answer = admin.create(&params, &b);
    assert!(tokio::time::timeout(Duration::from_secs(30), answer).await.is_err());
    assert!(server.get("configmaps", "default", "b").is_some(), "the request is processed before its delay");
}

/// A client gives up while its requests wait.
async fn give_up<T>(request: impl Future<Output = T>) {
    assert!(tokio::time::timeout(Duration::from_secs(1), request).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_client_has_gone_is_processed_if_a_hook_says_so() {
    let server = StandIn::builder().without_port();
    let (maps, params) = (maps(&server, User::admin()), PostParams::default());
    let is_there = |name: &str| server.get("configmaps", "default", name).is_some();
    server.faults().inject(Rule::new(), Fault::Delay(Duration::from_secs(60)));
    give_up(maps.create(&params, &map("a"))).await;
    assert!(!is_there("a"), "there is no hook");

    let asked = Arc::new(Mutex::new(Vec::new()));
    let verbs = asked.clone();
    server.faults().on_hang_up(move |request| {
        verbs.lock().push(request.verb);
        request.verb == Some(Verb::Create)
    });
    give_up(maps.get("b")).await;
    give_up(maps.create(&params, &map("b"))).await;
    assert!(is_there("b"));
    give_up(maps.delete("b", &DeleteParams::default())).await;
    assert!(is_there("b"), "the hook says no");
    assert_eq!(*asked.lock(), [Some(Verb::Create), Some(Verb::Delete)], "a read changes nothing");

    maps.create(&params, &map("c")).await.unwrap();
    server.faults().clear();
    server.faults().inject(Rule::new(), Fault::DropBefore);
    server.faults().on_hang_up(|_| true);
    assert!(is_reset(&maps.create(&params, &map("d")).await.unwrap_err()));
    assert!(!is_there("d"), "the server has closed the connection");
}

#[tokio::test(start_paused = true)]
async fn a_watch_of_a_service_breaks_when_watches_are_dropped() {
    let server = StandIn::builder().without_port();
    let api = maps(&server, User::admin());
    let params = WatchParams::default().disable_bookmarks();
    let mut events = pin!(api.watch(&params, "0").await.unwrap());
    assert!(matches!(events.next().await, Some(Ok(WatchEvent::Added(_)))));
    server.create(MAPS, json!({"metadata": {"name": "a"}})).unwrap();
    let Some(Ok(WatchEvent::Added(added))) = events.next().await else { panic!("no event") };
    assert_eq!(added.name_any(), "a");
    server.drop_watches();
    assert!(matches!(events.next().await, Some(Err(_))));
}

// Their order decides the order of what clients do.
#[tokio::test(start_paused = true)]
async fn watches_wake_in_the_order_in_which_they_wait() {
    let server = StandIn::builder().without_port();
    let api = maps(&server, User::admin());
    let seen = Arc::new(Mutex::new(Vec::new()));
    for number in 0..16 {
        let (api, seen) = (api.clone(), seen.clone());
        tokio::spawn(async move {
            let params = WatchParams::default().labels("t").disable_bookmarks();
            let mut events = pin!(api.watch(&params, "0").await.unwrap());
            while events.next().await.is_some() {
                seen.lock().push(number);
            }
        });
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.create(MAPS, json!({"metadata": {"name": "a", "labels": {"t": ""}}})).unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(*seen.lock(), (0..16).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_hook_sees_each_object_before_and_after_a_write() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let words = seen.clone();
    let hook = move |user: &User, write: &Write| {
        let value = |object: &Option<Arc<serde_json::Value>>| match object {
            Some(object) => object["data"]["v"].as_str().unwrap_or("-").to_owned(),
            None => "none".to_owned(),
        };
        let line = format!("{} {} {} {}", user.name, write.resource, value(&write.before), value(&write.after));
        words.lock().push(line);
    };
    let server = StandIn::builder().on_write(hook).without_port();
    server.create(MAPS, json!({"metadata": {"name": "a"}})).unwrap();
    let path = format!("{MAPS}/a");
    for value in ["1", "2", "2"] {
        server.replace(&path, |map| map["data"] = json!({"v": value})).unwrap();
    }
    server.request("DELETE", &path, "", &json!(null)).unwrap();
    server.request("GET", MAPS, "", &json!(null)).unwrap();
    let expected = ["none -", "- 1", "1 2", "2 none"];
    assert_eq!(*seen.lock(), expected.map(|change| format!("kubernetes-admin configmaps {change}")));
}

#[test]
fn an_annotation_names_the_uid_of_a_new_object() {
    let server = StandIn::builder().settings(|settings| settings.uid_annotation = Some("uid")).without_port();
    let created = server.create(MAPS, json!({"metadata": {"name": "a", "annotations": {"uid": "u-1"}}})).unwrap();
    assert_eq!(created["metadata"]["uid"], "u-1");
    let created = server.create(MAPS, json!({"metadata": {"name": "b"}})).unwrap();
    assert_eq!(created["metadata"]["uid"].as_str().map(str::len), Some(36));
}
