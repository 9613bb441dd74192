//! Creates whose results are not known.

use std::time::Duration;

use super::super::api::Request;
use super::super::unanswered::{SETTLES_AFTER, UnansweredCreates};
use super::*;
use crate::resource_claim::table::WatchEvent;

/// A pass of pod `p` that was dropped during the create of its claim, and that create.
fn dropped_pass(cluster: &mut Cluster) -> Request {
    cluster.put(template("tpl"));
    cluster.put(pod("p", &[("res", "tpl")]));
    let mut pass = cluster.core.begin(&Key::Pod(object("p")));
    let Step::Call(request) = pass.step(&mut cluster.core, None, cluster.now) else { panic!("no call") };
    request
}

/// The cluster after a new term has listed all objects.
fn next_term(cluster: &mut Cluster, unanswered: UnansweredCreates) {
    cluster.core = Core::new(Features::default()).with_unanswered(unanswered);
    cluster.put(template("tpl"));
    cluster.put(pod("p", &[("res", "tpl")]));
}

/// The answer to a create was lost: the next pass lists the claims, and makes a second one only if there is none.
#[test]
fn create_without_an_answer_makes_no_second_claim() {
    for is_performed in [true, false] {
        let mut cluster = Cluster::new(Features::default());
        let request = dropped_pass(&mut cluster);
        cluster.is_lagging = true;
        if is_performed {
            cluster.server.perform(&request).unwrap();
        }
        if is_performed {
            assert_eq!(cluster.run("pod:shop/p"), Ok(()));
            assert_eq!(cluster.calls, ["list shop", "apply p res=p-res-00001"]);
        } else {
            assert!(cluster.run("pod:shop/p").is_err());
            assert_eq!(cluster.calls, ["list shop"], "the server may still perform the create");
            cluster.now = cluster.now + SETTLES_AFTER;
            assert_eq!(cluster.run("pod:shop/p"), Ok(()));
            assert_eq!(cluster.calls, ["list shop", "create p-res-", "apply p res=p-res-00001"]);
        }
        assert_eq!(cluster.server.claims.len(), 1);
    }
}

/// A server under load performs a create after a list that does not have the claim. A list settles the create only 10 seconds after its
/// answer was lost. Until then, the pass costs no further call and no further event, and delays no other claim.
#[test]
fn create_that_is_performed_late_makes_no_second_claim() {
    for is_performed in [true, false] {
        let mut cluster = Cluster::new(Features::default());
        cluster.put(template("tpl"));
        cluster.put(pod("p", &[("res", "tpl"), ("own", "tpl")]));
        cluster.is_lagging = true;
        cluster.failing.push(("create p-res-", ApiErrorKind::Unknown));
        assert!(cluster.run("pod:shop/p").is_err());
        assert_eq!(cluster.calls, ["create p-res-", "create p-own-", "apply p own=p-own-00001"]);
        assert_eq!(cluster.messages().len(), 1);
        assert!(cluster.run("pod:shop/p").unwrap_err().contains("is not known"));
        assert_eq!(cluster.calls, ["list shop"]);
        let mut pass = cluster.core.begin(&Key::Pod(object("p")));
        let Step::Done(report) = pass.step(&mut cluster.core, None, cluster.now) else { panic!("a call") };
        assert_eq!(report.result.unwrap_err().only_waits(), Some(SETTLES_AFTER), "the next try waits");
        assert_eq!(cluster.messages().len(), 1, "the lost answer was reported once");
        if is_performed {
            let mut late = generated("late", &pod_owner(&pod("p", &[])));
            late.metadata.uid = Some("late-uid".to_owned());
            cluster.server.put(late.into());
        }
        cluster.now = cluster.now + SETTLES_AFTER;
        assert_eq!(cluster.run("pod:shop/p"), Ok(()));
        if is_performed {
            assert_eq!(cluster.calls, ["list shop", "apply p res=late own=p-own-00001"]);
        } else {
            assert_eq!(cluster.calls, ["list shop", "create p-res-", "apply p res=p-res-00002 own=p-own-00001"]);
        }
        assert_eq!(cluster.server.claims.len(), 2);
        assert!(cluster.core.unanswered_creates(cluster.now).is_empty());
    }
}

/// A replica loses its lease while it creates a claim, and leads again. The server performs the create after the first list of the new
/// term.
#[test]
fn next_term_does_not_repeat_a_create_whose_result_is_not_known() {
    let mut cluster = Cluster::new(Features::default());
    let request = dropped_pass(&mut cluster);
    let unanswered = cluster.core.unanswered_creates(cluster.now);
    assert_eq!(unanswered.len(), 1);
    next_term(&mut cluster, unanswered);
    assert!(cluster.run("pod:shop/p").unwrap_err().contains("is not known"));
    assert_eq!(cluster.calls, Vec::<String>::new());
    cluster.server.perform(&request).unwrap();
    cluster.watch();
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["get claim p-res-00001", "apply p res=p-res-00001"]);
    assert_eq!(cluster.server.claims.len(), 1);
}

/// A create that is in flight at the end of a term may still be performed 10 seconds after that end.
#[test]
fn create_in_flight_settles_after_the_end_of_its_term() {
    let mut cluster = Cluster::new(Features::default());
    dropped_pass(&mut cluster);
    cluster.now = cluster.now + SETTLES_AFTER;
    let unanswered = cluster.core.unanswered_creates(cluster.now);
    next_term(&mut cluster, unanswered);
    assert!(cluster.run("pod:shop/p").unwrap_err().contains("is not known"));
    assert_eq!(cluster.calls, Vec::<String>::new());
    cluster.now = cluster.now + SETTLES_AFTER;
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["list shop", "create p-res-", "apply p res=p-res-00001"]);
}

/// A replica that follows for a long time between two terms forgets what it did not know.
#[test]
fn unanswered_create_is_forgotten_after_an_hour() {
    let mut cluster = Cluster::new(Features::default());
    dropped_pass(&mut cluster);
    let first = cluster.core.unanswered_creates(cluster.now);
    for (waited, left) in [(3600, 1), (3601, 0)] {
        let term = Core::new(Features::default()).with_unanswered(first.clone());
        assert_eq!(term.unanswered_creates(cluster.now + Duration::from_secs(waited)).len(), left, "{waited} s");
    }
}

#[test]
fn deletion_of_the_owner_forgets_its_unanswered_creates() {
    let mut cluster = Cluster::new(Features::default());
    dropped_pass(&mut cluster);
    assert_eq!(cluster.core.unanswered_creates(cluster.now).len(), 1);
    cluster.remove(pod("p", &[("res", "tpl")]));
    assert!(cluster.core.unanswered_creates(cluster.now).is_empty());
}

/// Only the wait for the result of a create is known in advance. Another failure is tried again sooner.
#[test]
fn failure_beside_an_unanswered_create_is_tried_again_sooner() {
    let mut cluster = Cluster::new(Features::default());
    cluster.put(template("tpl"));
    cluster.put(pod("p", &[("res", "tpl"), ("other", "none")]));
    cluster.failing.push(("create p-res-", ApiErrorKind::Unknown));
    for _ in 0..2 {
        assert!(cluster.run("pod:shop/p").is_err());
    }
    let mut pass = cluster.core.begin(&Key::Pod(object("p")));
    let Step::Done(report) = pass.step(&mut cluster.core, None, cluster.now) else { panic!("a call") };
    let error = report.result.unwrap_err();
    assert_eq!((error.0.len(), error.only_waits(), error.delay_at_least()), (2, None, Duration::ZERO));
}

/// The watch lists the claims anew, with a request that it sends at this time.
fn relist(cluster: &mut Cluster, sent: Time) -> Vec<Key> {
    let now = cluster.now;
    let mut keys = cluster.core.claim_event(WatchEvent::Init, sent);
    for claim in cluster.server.claims.values() {
        keys.extend(cluster.core.claim_event(WatchEvent::InitApply(Arc::new(claim.clone())), now));
    }
    keys.extend(cluster.core.claim_event(WatchEvent::InitDone, now));
    keys
}

/// A pod whose create has lost its answer, 20 s ago.
fn lost_create() -> (Cluster, Time) {
    let mut cluster = Cluster::new(Features::default());
    cluster.put(template("tpl"));
    cluster.put(pod("p", &[("res", "tpl")]));
    cluster.failing.push(("create", ApiErrorKind::Unknown));
    assert!(cluster.run("pod:shop/p").is_err());
    let lost = cluster.now;
    cluster.now = lost + Duration::from_secs(20);
    (cluster, lost)
}

/// A list of the watch counts as of the moment at which it was sent. If that was 10 s after the answer was lost, the create was not
/// performed.
#[test]
fn list_of_the_watch_settles_creates() {
    let (mut cluster, lost) = lost_create();
    assert_eq!(relist(&mut cluster, lost + SETTLES_AFTER), [Key::Pod(object("p"))]);
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["create p-res-", "apply p res=p-res-00001"]);

    let (mut cluster, lost) = lost_create();
    assert_eq!(relist(&mut cluster, lost + Duration::from_secs(9)), [Key::Pod(object("p"))]);
    cluster.now = lost + Duration::from_secs(9);
    assert!(cluster.run("pod:shop/p").unwrap_err().contains("is not known"));
    assert_eq!(cluster.calls, Vec::<String>::new(), "the pass needs no list before the 10 s are over");
    cluster.now = lost + SETTLES_AFTER;
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["list shop", "create p-res-", "apply p res=p-res-00001"]);

    let (mut cluster, lost) = lost_create();
    cluster.server.put(generated("made", &pod_owner(&pod("p", &[]))).into());
    cluster.server.take_events();
    assert!(relist(&mut cluster, lost + SETTLES_AFTER).contains(&Key::Pod(object("p"))));
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["apply p res=made"]);
}

/// The list says nothing about a create whose answer was lost after the list was sent, nor about one that may still be in flight.
#[test]
fn list_of_the_watch_does_not_settle_later_creates() {
    let (mut cluster, lost) = lost_create();
    assert!(relist(&mut cluster, Time::from_nanos(lost.as_nanos() - 1)).is_empty());
    assert_eq!(cluster.core.unanswered_creates(cluster.now).len(), 1);
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["list shop", "create p-res-", "apply p res=p-res-00001"]);

    let mut cluster = Cluster::new(Features::default());
    dropped_pass(&mut cluster);
    cluster.now = cluster.now + SETTLES_AFTER;
    let now = cluster.now;
    assert!(relist(&mut cluster, now).is_empty());
    assert_eq!(cluster.core.unanswered_creates(cluster.now).len(), 1);
}

/// It is not known when the pass was dropped. So the wait begins with the first list.
#[test]
fn create_of_a_dropped_pass_settles_after_the_next_pass() {
    let mut cluster = Cluster::new(Features::default());
    dropped_pass(&mut cluster);
    for _ in 0..2 {
        cluster.now = cluster.now + Duration::from_secs(9);
        assert!(cluster.run("pod:shop/p").unwrap_err().contains("is not known"));
    }
    cluster.now = cluster.now + Duration::from_secs(1);
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["list shop", "create p-res-", "apply p res=p-res-00001"]);
}

/// The first create was performed without an answer, and its claim was deleted before a list. The watch shows that claim while the result of
/// the second create is not known.
#[test]
fn claim_that_the_watch_shows_is_read_before_it_settles_a_create() {
    let mut cluster = Cluster::new(Features::default());
    let request = dropped_pass(&mut cluster);
    cluster.is_lagging = true;
    cluster.server.perform(&request).unwrap();
    let shown = cluster.server.take_events();
    cluster.server.delete_claim(&object("p-res-00001"));
    assert!(cluster.run("pod:shop/p").unwrap_err().contains("is not known"));
    cluster.now = cluster.now + SETTLES_AFTER;
    cluster.failing.push(("create", ApiErrorKind::Unknown));
    assert!(cluster.run("pod:shop/p").is_err());
    assert_eq!(cluster.calls, ["list shop", "create p-res-"]);
    shown.into_iter().for_each(|event| drop(event.show(&mut cluster.core, cluster.now)));
    assert!(cluster.run("pod:shop/p").unwrap_err().contains("is not known"));
    assert_eq!(cluster.calls, ["get claim p-res-00001", "list shop"]);
    cluster.now = cluster.now + SETTLES_AFTER;
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["list shop", "create p-res-", "apply p res=p-res-00002"]);
}

/// The claim of a create without an answer appears after the deletion of its pod has begun.
#[test]
fn claim_of_a_pod_that_is_being_deleted_is_read_before_its_name_is_recorded() {
    let (mut cluster, _) = lost_create();
    let p = deleting(on_node(pod("p", &[("res", "tpl")])));
    cluster.put(p.clone());
    cluster.put(generated("late", &pod_owner(&p)));
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["get claim late", "apply p res=late"]);
    assert!(cluster.core.unanswered_creates(cluster.now).is_empty());
}

/// The answers to the creates of many pods were lost. A list counts for all pods of its namespace.
#[test]
fn list_of_one_pass_settles_the_creates_of_its_namespace() {
    const PODS: usize = 200;
    for (is_performed, expected) in [(true, (1, 0, PODS)), (false, (2, PODS, PODS))] {
        let mut cluster = Cluster::new(Features::default());
        cluster.put(template("tpl"));
        for at in 0..PODS {
            cluster.put(pod(&format!("p{at}"), &[("res", "tpl")]));
            cluster.failing.push(("create", ApiErrorKind::Unknown));
            assert!(cluster.run(&format!("pod:shop/p{at}")).is_err());
        }
        cluster.is_lagging = true;
        for at in (0..PODS).filter(|_| is_performed) {
            let owner = pod_owner(&pod(&format!("p{at}"), &[]));
            cluster.server.put(generated(&format!("made-{at}"), &owner).into());
        }
        let mut calls = Vec::new();
        for _ in 0..2 {
            for at in 0..PODS {
                let _ = cluster.run(&format!("pod:shop/p{at}"));
                calls.append(&mut cluster.calls);
            }
            cluster.now = cluster.now + SETTLES_AFTER;
        }
        let count = |call: &str| calls.iter().filter(|made| made.starts_with(call)).count();
        assert_eq!((count("list"), count("create"), count("apply")), expected, "{is_performed}");
        assert_eq!(count("get"), 0, "the list has shown the claims");
        assert_eq!(cluster.server.claims.len(), PODS);
        assert!(cluster.core.unanswered_creates(cluster.now).is_empty());
    }
}

/// The list says nothing about a create whose answer was lost after the list was requested, nor about another namespace.
#[test]
fn list_of_one_pass_does_not_settle_other_creates() {
    let (mut cluster, _) = lost_create();
    let (mut elsewhere, mut its_template) = (pod("q", &[("res", "tpl")]), template("tpl"));
    elsewhere.metadata.namespace = Some("other".to_owned());
    its_template.metadata.namespace = Some("other".to_owned());
    cluster.put(its_template);
    cluster.put(elsewhere);
    cluster.failing.push(("create", ApiErrorKind::Unknown));
    assert!(cluster.run("pod:other/q").is_err());
    let mut pass = cluster.core.begin(&Key::Pod(object("p")));
    let Step::Call(list) = pass.step(&mut cluster.core, None, cluster.now) else { panic!("no call") };
    cluster.now = cluster.now + Duration::from_secs(1);
    cluster.put(pod("later", &[("res", "tpl")]));
    cluster.failing.push(("create", ApiErrorKind::Unknown));
    assert!(cluster.run("pod:shop/later").is_err());
    let answer = cluster.server.perform(&list);
    let _ = pass.step(&mut cluster.core, Some(answer), cluster.now);
    for (key, call) in [("pod:shop/later", "list shop"), ("pod:other/q", "list other")] {
        assert!(cluster.run(key).unwrap_err().contains("is not known"));
        assert_eq!(cluster.calls, [call]);
    }
}
