//! Every fault has the effect that its documentation describes.

use std::time::Duration;

use podwright_stand_in::{Fault, Rule, StandIn, Verb};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::http::Client;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn start() -> (StandIn, Client) {
    let server = StandIn::start().await.unwrap();
    let client = Client::admin(&server);
    (server, client)
}

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

#[tokio::test]
async fn a_status_code_is_answered_as_often_as_the_rule_says() {
    let (server, client) = start().await;
    let rule = Rule::new().verb(Verb::Create).resource("configmaps").skip(1).times(2);
    server.faults().inject(rule, Fault::status(500));
    let mut codes = Vec::new();
    for name in ["a", "b", "c", "d"] {
        codes.push(client.post(MAPS, map(name)).await.code);
    }
    assert_eq!(codes, [201, 500, 500, 201]);
    assert!(server.get("configmaps", "default", "b").is_none());
    let served: Vec<u16> = server.requests().iter().map(|request| request.code).collect();
    assert_eq!(served, codes);
}

#[tokio::test]
async fn too_many_requests_carries_retry_after() {
    let (server, client) = start().await;
    server.faults().inject(Rule::new().user("kubernetes-admin"), Fault::too_many_requests(7));
    let reply = client.get(MAPS).await;
    assert_eq!((reply.code, reply.headers["retry-after"].to_str().unwrap()), (429, "7"));
    assert_eq!(reply.body["details"]["retryAfterSeconds"], 7);
}

#[tokio::test]
async fn a_connection_is_dropped_before_or_after_the_write() {
    let (server, client) = start().await;
    server.faults().inject(Rule::new().times(1), Fault::DropBefore);
    assert!(client.try_send("POST", MAPS, "application/json", &map("before")).await.is_err());
    assert!(server.get("configmaps", "default", "before").is_none());
    server.faults().inject(Rule::new().times(1), Fault::DropAfter);
    assert!(client.try_send("POST", MAPS, "application/json", &map("after")).await.is_err());
    assert!(server.get("configmaps", "default", "after").is_some());
}

#[tokio::test]
async fn a_stalled_request_goes_on_when_it_is_released() {
    let (server, client) = start().await;
    server.faults().inject(Rule::new().verb(Verb::Create), Fault::Stall);
    let stalled = tokio::spawn({
        let client = client.clone();
        async move { client.post(MAPS, map("slow")).await.code }
    });
    // The server answers other requests while this one is stalled.
    for _ in 0..5 {
        assert_eq!(client.get(MAPS).await.code, 200);
    }
    assert!(!stalled.is_finished());
    assert!(server.get("configmaps", "default", "slow").is_none());
    while !stalled.is_finished() {
        server.faults().release();
        tokio::task::yield_now().await;
    }
    assert_eq!(stalled.await.unwrap(), 201);
}

#[tokio::test(start_paused = true)]
async fn latency_and_delays_hold_requests_back() {
    let (server, client) = start().await;
    server.faults().set_latency(Duration::from_secs(20));
    server.faults().inject(Rule::new().name("late"), Fault::Delay(Duration::from_secs(30)));
    for (path, expected) in [(MAPS.to_owned(), 20), (format!("{MAPS}/late"), 50)] {
        let start = Instant::now();
        client.get(&path).await;
        assert_eq!(start.elapsed().as_secs(), expected, "{path}");
    }
    server.faults().clear();
    let start = Instant::now();
    assert_eq!(client.get("/healthz").await.code, 200);
    assert_eq!(start.elapsed().as_secs(), 0);
}

#[tokio::test]
async fn dropped_watches_break_and_new_ones_work() {
    let (server, client) = start().await;
    let mut watch = client.watch(&format!("{MAPS}?watch=1")).await;
    assert_eq!(watch.event().await, "ADDED kube-root-ca.crt");
    server.drop_watches();
    assert_eq!(watch.event().await, "END");
    let mut watch = client.watch(&format!("{MAPS}?watch=1")).await;
    assert_eq!(watch.event().await, "ADDED kube-root-ca.crt");
}

#[tokio::test]
async fn a_compacted_version_is_gone() {
    let (server, client) = start().await;
    let old = client.get(MAPS).await.body["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let page = client.get("/api/v1/configmaps?limit=1").await.body["metadata"]["continue"].as_str().unwrap().to_owned();
    server.create(MAPS, map("new")).unwrap();
    let path = format!("{MAPS}?watch=1&resourceVersion={old}");
    assert_eq!(client.watch(&path).await.event().await, "ADDED new");
    server.compact();
    let line = client.watch(&path).await.next().await.unwrap();
    assert_eq!((&line["type"], &line["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert_eq!(line["object"]["reason"], "Expired");
    let expired = client.get(&format!("/api/v1/configmaps?limit=1&continue={page}")).await;
    assert_eq!(expired.code, 410);
    let next = expired.body["metadata"]["continue"].as_str().unwrap();
    assert_eq!(client.get(&format!("/api/v1/configmaps?limit=1&continue={next}")).await.code, 200);
    let exact = format!("{MAPS}?resourceVersion={old}&resourceVersionMatch=Exact");
    assert_eq!(client.get(&exact).await.code, 410);
}

#[tokio::test]
async fn held_events_of_one_resource_come_after_later_events_of_another() {
    let (server, client) = start().await;
    let secrets = "/api/v1/namespaces/default/secrets";
    let mut maps = client.watch(&format!("{MAPS}?watch=1&labelSelector=t")).await;
    let mut others = client.watch(&format!("{secrets}?watch=1")).await;
    server.hold("configmaps");
    server.create(MAPS, json!({"metadata": {"name": "first", "labels": {"t": ""}}})).unwrap();
    server.create(secrets, map("second")).unwrap();
    assert_eq!(others.event().await, "ADDED second");
    let cached = client.get(&format!("{MAPS}?resourceVersion=0&labelSelector=t")).await;
    assert_eq!(cached.body["items"], json!([]));
    assert_eq!(client.get(&format!("{MAPS}?labelSelector=t")).await.body["items"].as_array().unwrap().len(), 1);
    server.release("configmaps");
    assert_eq!(maps.event().await, "ADDED first");
}

#[tokio::test(start_paused = true)]
async fn a_lag_delays_the_events_of_its_resource() {
    let epoch = Instant::now();
    let clock = move || {
        let elapsed = jiff::SignedDuration::try_from(epoch.elapsed()).unwrap();
        jiff::Timestamp::UNIX_EPOCH + elapsed
    };
    let server = StandIn::builder().clock(clock).start().await.unwrap();
    let client = Client::admin(&server);
    server.faults().set_lag("configmaps", Duration::from_secs(4));
    let mut watch = client.watch(&format!("{MAPS}?watch=1&labelSelector=t")).await;
    let start = Instant::now();
    server.create(MAPS, json!({"metadata": {"name": "late", "labels": {"t": ""}}})).unwrap();
    assert_eq!(watch.event().await, "ADDED late");
    assert_eq!(start.elapsed().as_secs(), 4);
}

#[tokio::test]
async fn a_restart_closes_connections_and_keeps_objects() {
    let (server, client) = start().await;
    server.create(MAPS, map("kept")).unwrap();
    let version = client.get(MAPS).await.body["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let mut watch = client.watch(&format!("{MAPS}?watch=1&resourceVersion={version}")).await;
    server.stop().await;
    assert_eq!(watch.event().await, "END");
    assert!(client.try_send("GET", MAPS, "", &Value::Null).await.is_err());
    server.resume().await.unwrap();
    assert_eq!(client.get(&format!("{MAPS}/kept")).await.code, 200);
    server.create(MAPS, map("forgotten")).unwrap();
    server.restart(true).await.unwrap();
    server.create(MAPS, map("new")).unwrap();
    let mut watch = client.watch(&format!("{MAPS}?watch=1&resourceVersion={version}")).await;
    assert_eq!(watch.event().await, "ERROR");
}

#[tokio::test]
async fn a_hook_sees_the_request() {
    let (server, client) = start().await;
    server.faults().on(|request| {
        let is_meant =
            request.method == "GET" && request.path.ends_with("/secret-map") && request.namespace == "default";
        is_meant.then(|| Fault::status(503))
    });
    assert_eq!(client.get(&format!("{MAPS}/secret-map")).await.code, 503);
    assert_eq!(client.delete(&format!("{MAPS}/secret-map")).await.code, 404);
}

#[tokio::test]
async fn a_percentage_hits_evenly() {
    let (server, client) = start().await;
    server.faults().inject(Rule::new().percent(50), Fault::status(500));
    let mut codes = Vec::new();
    for _ in 0..4 {
        codes.push(client.get(MAPS).await.code);
    }
    assert_eq!(codes, [200, 500, 200, 500]);
}
