//! The life of claims: generation, reservation, release and deletion.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::Pod;
use podwright_controllers::resource_claim::WatchEvent;
use podwright_metrics::Format;
use podwright_stand_in::{Fault, Rule, Verb};
use serde_json::json;
use tokio::time::timeout;

use super::*;

#[tokio::test]
async fn claims_of_pods_are_generated_and_named_in_their_statuses() {
    let cluster = Cluster::start().await;
    cluster.template("one");
    cluster.template("two");
    for at in 0..10 {
        cluster.pod(&format!("p{at}"), &["one", "two"], &json!({}));
    }
    let replica = Replica::alone(client(&cluster).await);
    cluster.has_all_claims().await;
    replica.until_idle().await;
    let requests = cluster.server.requests();
    let count = |verb, resource: &str| {
        requests.iter().filter(|served| served.verb == Some(verb) && served.resource == resource).count()
    };
    assert_eq!((count(Verb::Create, "resourceclaims"), count(Verb::Patch, "pods/status")), (20, 10));
    let others = requests.iter().filter(|served| {
        !matches!(served.verb, Some(Verb::List | Verb::Watch))
            && !["resourceclaims", "pods/status"].contains(&&*served.resource)
    });
    assert_eq!(others.count(), 0, "{requests:?}");
    let lists = requests.iter().filter(|served| served.verb == Some(Verb::List)).count();
    assert_eq!(lists, 3, "each watch lists once: {requests:?}");
    let claim = cluster.object("resourceclaims", &cluster.recorded("p3")["c1"]);
    assert!(claim["metadata"]["name"].as_str().unwrap().starts_with("p3-c1-"));
    assert_eq!(claim["metadata"]["annotations"][ENTRY], "c1");
    assert_eq!(claim["metadata"]["ownerReferences"][0]["controller"], true);
    let pod = cluster.object("pods", "p3");
    let managers = pod["metadata"]["managedFields"].as_array().unwrap();
    assert!(
        managers.iter().any(|entry| entry["manager"] == "ResourceClaimController" && entry["operation"] == "Apply")
    );
    let metrics = replica.metrics.encode(Format::Classic);
    for line in [
        r#"resourceclaim_controller_creates_total{admin_access="false",status="success"} 20"#,
        r#"resourceclaim_controller_resource_claims{admin_access="false",allocated="false",source="resource_claim_template"} 20"#,
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[tokio::test]
async fn missing_template_is_reported_and_its_claim_follows_when_it_appears() {
    let cluster = Cluster::start().await;
    cluster.template("one");
    cluster.pod("p", &["one", "late"], &json!({}));
    let _replica = Replica::alone(client(&cluster).await);
    let event = eventually("the pod has an event", || async {
        cluster.server.all("events").into_iter().find(|event| event["reason"] == "FailedResourceClaimCreation")
    })
    .await;
    let (object, pod) = (&event["involvedObject"], &cluster.object("pods", "p")["metadata"]);
    assert_eq!((&object["name"], &object["namespace"], &object["uid"]), (&pod["name"], &pod["namespace"], &pod["uid"]));
    assert_eq!((&event["type"], &event["source"]["component"]), (&json!("Warning"), &json!("resource_claim")));
    let message = event["message"].as_str().unwrap();
    assert!(message.starts_with("PodResourceClaim c1: ") && message.contains("default/late"), "{message}");
    eventually("the first claim is recorded", || async { cluster.recorded("p").get("c0").cloned() }).await;
    cluster.template("late");
    cluster.has_all_claims().await;
}

#[tokio::test]
async fn claim_is_reserved_for_a_pod_on_a_node_and_deleted_when_the_pod_has_ended() {
    let cluster = Cluster::start().await;
    cluster.template("one");
    cluster.pod("p", &["one"], &json!({"nodeName": "n1"}));
    let replica = Replica::alone(client(&cluster).await);
    cluster.has_all_claims().await;
    let name = cluster.recorded("p")["c0"].clone();
    cluster.allocate(&name, &[]);
    let uid = cluster.object("pods", "p")["metadata"]["uid"].clone();
    eventually("the claim is reserved", || async {
        (cluster.object("resourceclaims", &name)["status"]["reservedFor"][0]["uid"] == uid).then_some(())
    })
    .await;
    assert!(cluster.object("resourceclaims", &name)["status"]["allocation"].is_object());
    cluster.set_phase("p", "Succeeded");
    eventually("the claim is deleted", || async { cluster.server.all("resourceclaims").is_empty().then_some(()) })
        .await;
    replica.until_idle().await;
}

#[tokio::test]
async fn claim_of_a_user_outlives_its_consumers() {
    let cluster = Cluster::start().await;
    cluster.claim("shared", PARAMETERS);
    let entry = json!([{"name": "c0", "resourceClaimName": "shared"}]);
    for pod in ["p", "q"] {
        cluster.pod_with(pod, &entry, &json!({}));
    }
    cluster.allocate("shared", &["p", "q"]);
    let replica = Replica::alone(client(&cluster).await);
    replica.until_idle().await;
    assert_eq!(cluster.consumers("shared"), 2);
    cluster.delete(PODS, "p");
    eventually("one consumer is left", || async { (cluster.consumers("shared") == 1).then_some(()) }).await;
    assert!(cluster.object("resourceclaims", "shared")["status"]["allocation"].is_object());
    cluster.set_phase("q", "Failed");
    eventually("the devices are given back", || async {
        let claim = cluster.object("resourceclaims", "shared");
        let finalizers = claim["metadata"]["finalizers"].as_array().map_or(0, Vec::len);
        let is_free = claim["status"]["allocation"].is_null() && finalizers == 0;
        is_free.then_some(())
    })
    .await;
    assert_eq!(cluster.consumers("shared"), 0);
}

/// A server refuses each JSON write of a claim with some of these parameters, also a patch that does not name them.
#[tokio::test]
async fn claims_with_any_parameters_are_released_and_deleted() {
    let cluster = Cluster::start().await;
    let replica = Replica::alone(client(&cluster).await);
    let spellings = [
        r#"{"apiVersion":"v1","kind":"P"}"#,
        r#"{"kind":"P","apiVersion":"v1"}"#,
        r#"{"kind":"P","apiVersion":"v1","text":"\u003c"}"#,
        r#"{"kind":"P","apiVersion":"v1","text":"<"}"#,
        r#"{"apiVersion": "v1", "kind": "P"}"#,
    ];
    for (at, parameters) in spellings.into_iter().enumerate() {
        let (claim, first, last) = (format!("c{at}"), format!("first-{at}"), format!("last-{at}"));
        cluster.claim(&claim, parameters);
        for pod in [&first, &last] {
            cluster.pod_with(pod, &json!([{"name": "c0", "resourceClaimName": claim}]), &json!({}));
        }
        cluster.allocate_with(&claim, &[&first, &last], parameters);
        let before = cluster.object("resourceclaims", &claim);
        cluster.delete(PODS, &first);
        eventually("the first consumer is removed", || async { (cluster.consumers(&claim) == 1).then_some(()) }).await;
        let after = cluster.object("resourceclaims", &claim);
        for part in ["allocation", "devices"] {
            assert_eq!(after["status"][part], before["status"][part], "{parameters}");
        }
        cluster.delete(CLAIMS, &claim);
        cluster.delete(PODS, &last);
        eventually("the claim is deleted", || async {
            cluster.server.get("resourceclaims", "default", &claim).is_none().then_some(())
        })
        .await;
    }
    replica.until_idle().await;
    let patches = |served: &podwright_stand_in::Served| {
        served.verb == Some(Verb::Patch) && served.resource.starts_with("resourceclaims")
    };
    assert!(!cluster.server.requests().iter().any(patches), "{:?}", cluster.server.requests());
}

#[tokio::test]
async fn server_without_the_protobuf_encoding_gets_patches() {
    for (verb, code) in [(Verb::Get, 406), (Verb::Get, 403), (Verb::Update, 415)] {
        let cluster = Cluster::start().await;
        for resource in ["resourceclaims", "resourceclaims/status"] {
            cluster.server.faults().inject(Rule::new().verb(verb).resource(resource), Fault::status(code));
        }
        let parameters = r#"{"kind":"P","apiVersion":"v1"}"#;
        cluster.claim("c", parameters);
        cluster.pod_with("p", &json!([{"name": "c0", "resourceClaimName": "c"}]), &json!({}));
        cluster.allocate_with("c", &["p"], parameters);
        cluster.delete(PODS, "p");
        let replica = Replica::alone(client(&cluster).await);
        eventually("the claim is free", || async {
            let claim = cluster.object("resourceclaims", "c");
            let finalizers = claim["metadata"]["finalizers"].as_array().map_or(0, Vec::len);
            (cluster.consumers("c") == 0 && claim["status"]["allocation"].is_null() && finalizers == 0).then_some(())
        })
        .await;
        replica.until_idle().await;
        for resource in ["resourceclaims", "resourceclaims/status"] {
            let is_patch = |served: &podwright_stand_in::Served| {
                served.verb == Some(Verb::Patch) && served.resource == resource && served.code == 200
            };
            assert!(cluster.server.requests().iter().any(is_patch), "{resource} for {code} of {verb:?}");
        }
    }
}

/// The decision to remove a consumer holds only for the version of the claim on which it was made.
#[tokio::test]
async fn claim_that_another_writer_has_changed_is_not_written() {
    let cluster = Cluster::start().await;
    cluster.claim("c", PARAMETERS);
    for pod in ["p", "q"] {
        cluster.pod_with(pod, &json!([{"name": "c0", "resourceClaimName": "c"}]), &json!({}));
    }
    cluster.allocate("c", &["p", "q"]);
    let replica = Replica::alone(client(&cluster).await);
    replica.until_idle().await;
    cluster.server.hold("resourceclaims");
    cluster.server.replace(&format!("{CLAIMS}/c"), |claim| claim["metadata"]["labels"] = json!({"a": "b"})).unwrap();
    cluster.delete(PODS, "p");
    let count = |verb| {
        let is_meant = |served: &&podwright_stand_in::Served| {
            served.verb == Some(verb) && served.resource.starts_with("resourceclaims")
        };
        cluster.server.requests().iter().filter(is_meant).count()
    };
    eventually("the claim is read twice", || async { (count(Verb::Get) >= 2).then_some(()) }).await;
    assert_eq!((count(Verb::Update), count(Verb::Patch)), (0, 0));
    cluster.server.release("resourceclaims");
    eventually("one consumer is left", || async { (cluster.consumers("c") == 1).then_some(()) }).await;
    assert_eq!(cluster.object("resourceclaims", "c")["metadata"]["labels"]["a"], "b");
}

/// The handler of an embedder uses the watch of the controller: it needs no request of its own, and outlives lost connections.
#[tokio::test]
async fn handlers_of_an_embedder_follow_the_watch_while_they_are_added() {
    let cluster = Cluster::start().await;
    cluster.template("one");
    cluster.pod("before", &["one"], &json!({}));
    let replica = Replica::alone(client(&cluster).await);
    replica.until_idle().await;
    cluster.has_all_claims().await;
    let controller = replica.current.borrow().clone().unwrap();
    let names = Arc::new(Mutex::new(BTreeSet::new()));
    let known = names.clone();
    let handler = controller.add_handler(move |event: &WatchEvent<Pod>| match event {
        WatchEvent::Apply(pod) | WatchEvent::InitApply(pod) => {
            known.lock().unwrap().insert(pod.metadata.name.clone().unwrap());
        }
        WatchEvent::Delete(_) | WatchEvent::Init | WatchEvent::InitDone | WatchEvent::Undecodable { .. } => {}
    });
    let knows = |name: &'static str| {
        let names = names.clone();
        eventually("the handler knows the pod", move || {
            let knows = names.lock().unwrap().contains(name);
            async move { knows.then_some(()) }
        })
    };
    knows("before").await;
    cluster.server.compact();
    cluster.server.drop_watches();
    cluster.pod("after", &["one"], &json!({}));
    knows("after").await;
    drop(handler);
    assert_eq!(Arc::strong_count(&names), 1, "the handler is dropped");
    cluster.pod("later", &["one"], &json!({}));
    cluster.has_all_claims().await;
    assert!(!names.lock().unwrap().contains("later"));
}

#[tokio::test]
async fn stopped_controller_ends_its_watches_and_calls() {
    let cluster = Cluster::start().await;
    cluster.template("one");
    let replica = Replica::alone(client(&cluster).await);
    replica.until_idle().await;
    // The calls of all workers never end.
    let creates = Rule::new().verb(Verb::Create).resource("resourceclaims").times(50);
    cluster.server.faults().inject(creates, Fault::Stall);
    for at in 0..60 {
        cluster.pod(&format!("p{at}"), &["one"], &json!({}));
    }
    eventually("the workers are busy", || async {
        let queued = replica.current.borrow().as_ref().map_or(0, |controller| controller.queued());
        (queued == 60).then_some(())
    })
    .await;
    // The stop takes at most a second, which a test of the actors measures in paused time.
    timeout(PATIENCE, replica.stop()).await.expect("the controller stops");
    cluster.server.faults().clear();
    cluster.server.forget_requests();
    cluster.pod("later", &["one"], &json!({}));
    // A second controller, which makes all claims, shows that the first one makes none.
    let second = Replica::alone(client(&cluster).await);
    cluster.has_all_claims().await;
    second.until_idle().await;
    let watches = cluster.server.requests().iter().filter(|served| served.verb == Some(Verb::Watch)).count();
    assert_eq!(watches, 3, "only the second controller watches");
}
