//! Lost watches, lost answers, conflicts, refusals and relists: each entry of each pod has exactly one claim in the end.

use podwright_stand_in::{Fault, Refusal, Rule, Served, Verb};
use serde_json::json;

use super::*;

/// Lets this percentage of the writes fail in all ways.
fn inject_failures(server: &StandIn, percent: u8) {
    let writes =
        [(Verb::Create, "resourceclaims"), (Verb::Patch, "pods/status"), (Verb::Update, "resourceclaims/status")];
    let faults =
        [Fault::status(500), Fault::status(409), Fault::DropBefore, Fault::DropAfter, Fault::too_many_requests(1)];
    for (verb, resource) in writes {
        for (at, fault) in faults.iter().enumerate() {
            let rule = Rule::new().verb(verb).resource(resource).skip(at * 7).percent(percent / 5);
            server.faults().inject(rule, fault.clone());
        }
    }
}

// Takes over 20 s: ten failed calls in a second are retried, as in upstream, and a tenth of all calls fail.
#[tokio::test]
async fn failed_writes_and_lost_watches_leave_exactly_one_claim_for_each_entry() {
    let cluster = Cluster::start().await;
    cluster.template("one");
    cluster.template("two");
    inject_failures(&cluster.server, 10);
    let replica = Replica::alone(client(&cluster).await);
    for at in 0..120 {
        cluster.pod(&format!("p{at}"), &["one", "two"], &json!({}));
        match at % 30 {
            10 => cluster.server.drop_watches(),
            20 => {
                // The next watch is answered with 410, and a list follows.
                cluster.server.compact();
                cluster.server.drop_watches();
            }
            _ => {}
        }
        tokio::task::yield_now().await;
    }
    cluster.has_all_claims().await;
    cluster.server.faults().clear();
    replica.until_idle().await;
    cluster.has_all_claims().await;
}

/// A server that performed a create may still answer 504, because its storage was slow. The client must not repeat the call.
#[tokio::test]
async fn create_that_is_performed_and_answered_with_504_makes_one_claim() {
    let cluster = Cluster::start().await;
    cluster.template("one");
    let replica = Replica::alone(client(&cluster).await);
    replica.until_idle().await;
    let creates = Rule::new().verb(Verb::Create).resource("resourceclaims").times(5);
    let slow = Fault::RefuseAfter(Refusal::plain(504, "Timeout", "the storage did not answer in time"));
    cluster.server.faults().inject(creates, slow);
    for at in 0..5 {
        cluster.pod(&format!("p{at}"), &["one"], &json!({}));
    }
    cluster.has_all_claims().await;
    replica.until_idle().await;
    cluster.has_all_claims().await;
}

// KF45. The cache of the controller shows none of its own claims, the answers to creates are lost, and the writes of the statuses fail.
#[tokio::test]
async fn claims_that_no_watch_shows_are_not_generated_again() {
    let cluster = Cluster::start().await;
    cluster.template("one");
    let replica = Replica::alone(client(&cluster).await);
    replica.until_idle().await;
    cluster.server.hold("resourceclaims");
    let creates = Rule::new().verb(Verb::Create).resource("resourceclaims").times(10);
    cluster.server.faults().inject(creates, Fault::DropAfter);
    let writes = Rule::new().verb(Verb::Patch).resource("pods/status").times(60);
    cluster.server.faults().inject(writes, Fault::DropBefore);
    for at in 0..20 {
        cluster.pod(&format!("p{at}"), &["one"], &json!({}));
    }
    cluster.has_all_claims().await;
    cluster.server.release("resourceclaims");
    replica.until_idle().await;
    cluster.has_all_claims().await;
}

/// The lists of claims that the controller has requested in the namespace of the pods. The lists of watches are of all namespaces.
fn lists(cluster: &Cluster) -> usize {
    let is_list = |served: &&Served| {
        served.verb == Some(Verb::List) && served.resource == "resourceclaims" && served.namespace == "default"
    };
    cluster.server.requests().iter().filter(is_list).count()
}

/// The number of passes that have begun.
fn passes(replica: &Replica) -> usize {
    let metrics = replica.metrics.encode(podwright_metrics::Format::Classic);
    let series = "workqueue_queue_duration_seconds_count{name=\"resource_claim\"} ";
    metrics.lines().find_map(|line| line.strip_prefix(series)?.parse().ok()).unwrap_or_default()
}

/// Each create needs a list that is sent after its answer was lost. One list is enough for all creates that wait for it.
#[tokio::test]
async fn lost_answers_of_many_creates_cost_two_lists() {
    const PODS: usize = 40;
    let cluster = Cluster::start().await;
    cluster.template("one");
    let replica = Replica::alone(client(&cluster).await);
    replica.until_idle().await;
    // No watch shows that the creates are performed.
    cluster.server.hold("resourceclaims");
    let creates = Rule::new().verb(Verb::Create).resource("resourceclaims").times(PODS);
    cluster.server.faults().inject(creates, Fault::DropAfter);
    let list = Rule::new().verb(Verb::List).resource("resourceclaims").times(1);
    cluster.server.faults().inject(list, Fault::Stall);
    for at in 0..PODS {
        cluster.pod(&format!("p{at}"), &["one"], &json!({}));
    }
    eventually("each pod is in its second pass", || async { (passes(&replica) == 2 * PODS).then_some(()) }).await;
    cluster.server.faults().release();
    cluster.has_all_claims().await;
    assert_eq!(lists(&cluster), 2);
    cluster.server.release("resourceclaims");
    replica.until_idle().await;
    cluster.has_all_claims().await;
}

/// The lists show only metadata, so a claim of a later version of the API keeps no pod from its claim.
#[tokio::test]
async fn claim_that_cannot_be_decoded_keeps_no_pod_from_its_claim() {
    let cluster = Cluster::start().await;
    cluster.template("one");
    cluster.claim("odd", PARAMETERS);
    cluster.server.edit_unchecked("resourceclaims", "default", "odd", |claim| claim["spec"] = json!("odd"));
    let replica = Replica::alone(client(&cluster).await);
    replica.until_idle().await;
    cluster.server.hold("resourceclaims");
    let creates = Rule::new().verb(Verb::Create).resource("resourceclaims").times(1);
    cluster.server.faults().inject(creates, Fault::DropAfter);
    cluster.pod("p", &["one"], &json!({}));
    let claim = eventually("the pod has its claim", || async { cluster.recorded("p").get("c0").cloned() }).await;
    assert_eq!(lists(&cluster), 1);
    let names: Vec<_> = cluster.server.all("resourceclaims").iter().map(|c| c["metadata"]["name"].clone()).collect();
    assert_eq!(names, [json!("odd"), json!(claim)]);
}

// Takes 13 s: the controller waits 10 s for a create whose answer was lost.
#[tokio::test]
async fn new_list_of_the_watch_settles_a_create() {
    let cluster = Cluster::start().await;
    cluster.template("one");
    let replica = Replica::alone(client(&cluster).await);
    replica.until_idle().await;
    let creates = Rule::new().verb(Verb::Create).resource("resourceclaims").times(1);
    cluster.server.faults().inject(creates, Fault::DropBefore);
    cluster.server.faults().on(|request| {
        let is_of_pass = request.verb == Some(Verb::List) && request.namespace == "default";
        is_of_pass.then(|| Fault::status(503))
    });
    cluster.pod("p", &["one"], &json!({}));
    // The pass is tried again 5 ms after the create has failed, and then after twice the time.
    eventually("the pass was tried for 10 s", || async { (lists(&cluster) >= 11).then_some(()) }).await;
    cluster.template("another");
    cluster.server.compact();
    cluster.server.drop_watches();
    cluster.has_all_claims().await;
    replica.until_idle().await;
    cluster.has_all_claims().await;
}

#[tokio::test]
async fn deletions_during_an_outage_are_found_by_the_next_list() {
    let cluster = Cluster::start().await;
    let replica = Replica::alone(client(&cluster).await);
    for name in ["a", "b"] {
        cluster.claim(name, PARAMETERS);
        cluster.pod_with(&format!("pod-{name}"), &json!([{"name": "c0", "resourceClaimName": name}]), &json!({}));
        cluster.allocate(name, &[&format!("pod-{name}")]);
    }
    replica.until_idle().await;
    cluster.server.stop().await;
    cluster.delete(PODS, "pod-a");
    cluster.server.compact();
    cluster.server.resume().await.unwrap();
    eventually("the claim of the deleted pod is free", || async { (cluster.consumers("a") == 0).then_some(()) }).await;
    assert_eq!(cluster.consumers("b"), 1);
}

/// KF45.
#[tokio::test]
async fn claim_whose_pod_was_deleted_before_the_start_is_released() {
    let cluster = Cluster::start().await;
    cluster.claim("a", PARAMETERS);
    cluster.pod_with("p", &json!([{"name": "c0", "resourceClaimName": "a"}]), &json!({}));
    cluster.allocate("a", &["p"]);
    cluster.delete(PODS, "p");
    let replica = Replica::alone(client(&cluster).await);
    eventually("the claim is free", || async { (cluster.consumers("a") == 0).then_some(()) }).await;
    replica.stop().await;
}

/// An object that is deleted before the end of the first list is gone for the controller too.
#[tokio::test]
async fn claim_that_is_deleted_during_the_first_list_is_generated_again() {
    let cluster = Cluster::start().await;
    cluster.template("one");
    cluster.pod("p", &["one"], &json!({}));
    let first = Replica::alone(client(&cluster).await);
    cluster.has_all_claims().await;
    first.stop().await;
    let claim = cluster.recorded("p")["c0"].clone();
    cluster.server.faults().hold_list_ends("resourceclaims");
    cluster.server.forget_requests();
    let replica = Replica::alone(client(&cluster).await);
    eventually("the claims are read", || async {
        cluster.server.requests().iter().any(|served| served.resource == "resourceclaims").then_some(())
    })
    .await;
    cluster.delete(CLAIMS, &claim);
    cluster.server.faults().end_lists();
    cluster.template("another");
    eventually("the status names another claim", || async { (cluster.recorded("p")["c0"] != claim).then_some(()) })
        .await;
    cluster.has_all_claims().await;
    replica.until_idle().await;
}

/// A server under load performs a create after its connection was closed, and after the controller has listed the claims.
#[tokio::test]
async fn create_that_is_performed_after_a_list_makes_one_claim() {
    let cluster = Cluster::start().await;
    cluster.template("one");
    let replica = Replica::alone(client(&cluster).await);
    replica.until_idle().await;
    let creates = Rule::new().verb(Verb::Create).resource("resourceclaims").times(1);
    cluster.server.faults().inject(creates, Fault::DropBefore);
    cluster.pod("p", &["one"], &json!({}));
    eventually("the claims are listed", || async { (lists(&cluster) > 0).then_some(()) }).await;
    cluster.create_late("p");
    cluster.has_all_claims().await;
    replica.until_idle().await;
    cluster.has_all_claims().await;
}

#[tokio::test]
async fn deleted_claim_is_generated_again() {
    let cluster = Cluster::start().await;
    cluster.template("one");
    cluster.pod("p", &["one"], &json!({}));
    let _replica = Replica::alone(client(&cluster).await);
    cluster.has_all_claims().await;
    let first = cluster.recorded("p")["c0"].clone();
    cluster.delete(CLAIMS, &first);
    eventually("the status names another claim", || async { (cluster.recorded("p")["c0"] != first).then_some(()) })
        .await;
    cluster.has_all_claims().await;
}
