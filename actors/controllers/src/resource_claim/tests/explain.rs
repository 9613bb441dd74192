//! The explanations of claims.

use super::*;
use crate::resource_claim::explain::{ClaimState, ReasonKind};
use crate::resource_claim::names::generate_name;
use crate::resource_claim::table::WatchEvent;

/// A controller whose first lists are complete.
fn synced() -> Cluster {
    let mut cluster = Cluster::new(GROUPS);
    assert!(cluster.core.pod_event(WatchEvent::Init).is_empty());
    assert!(cluster.core.pod_event(WatchEvent::InitDone).is_empty());
    assert!(cluster.core.claim_event(WatchEvent::Init, cluster.now).is_empty());
    assert!(cluster.core.claim_event(WatchEvent::InitDone, cluster.now).is_empty());
    assert!(cluster.core.template_event(WatchEvent::Init).is_empty());
    assert!(cluster.core.template_event(WatchEvent::InitDone).is_empty());
    assert!(cluster.core.pod_group_event(WatchEvent::Init).is_empty());
    assert!(cluster.core.pod_group_event(WatchEvent::InitDone).is_empty());
    cluster
}

/// The state, and the kinds of the reasons.
fn explained(cluster: &Cluster, name: &str) -> (ClaimState, Vec<ReasonKind>, String) {
    let explanation = cluster.core.explain(&object(name), cluster.now);
    let reasons = explanation.reasons.iter().map(|reason| reason.what).collect();
    (explanation.state, reasons, explanation.to_string())
}

#[track_caller]
fn assert_absent(cluster: &Cluster, name: &str, reason: ReasonKind, text: &str) {
    let (state, reasons, explanation) = explained(cluster, name);
    assert_eq!((state, reasons), (ClaimState::Absent, vec![reason]), "{explanation}");
    assert!(explanation.contains(text), "{explanation}");
}

#[test]
fn absent_claim_has_a_reason() {
    let mut cluster = Cluster::new(GROUPS);
    cluster.put(pod("p", &[("res", "tpl")]));
    for name in ["c", "p-res"] {
        let (state, reasons, text) = explained(&cluster, name);
        assert_eq!((state, &reasons[..]), (ClaimState::Unknown, &[ReasonKind::NotSynced][..]), "{text}");
    }

    let mut cluster = synced();
    assert_absent(&cluster, "c", ReasonKind::NotUsed, "No known pod uses a claim of this name.");
    cluster.put(pod_with_claim("user", "c"));
    assert_absent(&cluster, "c", ReasonKind::NotCreatedByUser, "Pod shop/user uses the claim by its name");

    cluster.put(pod("p", &[("res", "tpl")]));
    for name in ["p-res", "p-res-x7f2k"] {
        assert_absent(&cluster, name, ReasonKind::NotGenerated, "ResourceClaimTemplate shop/tpl was not found");
    }
    cluster.put(template("tpl"));
    assert_absent(&cluster, "p-res", ReasonKind::PassDue, "The next pass of Pod shop/p generates the claim.");
    cluster.is_lagging = true;
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_absent(&cluster, "p-res-00001", ReasonKind::NotShown, "the watch does not show it yet");
    let keys = cluster.core.explain(&object("p-res-00001"), cluster.now).keys;
    assert_eq!(keys, [Key::Claim(object("p-res-00001")), Key::Pod(object("p"))]);

    // The watch shows the claim: the names that a user may guess lead to it.
    cluster.watch();
    for name in ["p-res", "p"] {
        assert_absent(
            &cluster,
            name,
            ReasonKind::OtherName,
            "The claim \"res\" of Pod shop/p is ResourceClaim shop/p-res-00001.",
        );
    }
    cluster.is_lagging = false;

    // The generated name has only the beginnings of both names.
    let long = "p".repeat(253);
    cluster.put(pod(&long, &[("res", "tpl")]));
    let base = generate_name(&long, "res");
    for name in [&*format!("{long}-res"), base.strip_suffix('-').unwrap()] {
        assert_absent(&cluster, name, ReasonKind::PassDue, "generates the claim");
    }

    cluster.put(pod("lost", &[("res", "tpl")]));
    cluster.failing.push(("create", ApiErrorKind::Unknown));
    assert!(cluster.run("pod:shop/lost").is_err());
    assert_absent(&cluster, "lost-res", ReasonKind::Unanswered, "is not known: the controller creates the claim again");

    cluster.put(in_phase(pod("ended", &[("res", "tpl")]), "Failed"));
    assert_absent(&cluster, "ended-res", ReasonKind::OwnerEnded, "Pod shop/ended has ended");
    cluster.put(recorded(pod("none", &[("res", "tpl")]), &[("res", None)]));
    assert_absent(&cluster, "none-res", ReasonKind::NotNeeded, "is not needed");
    cluster.put(in_group(pod("member", &[("res", "tpl-2")]), "g"));
    assert_absent(&cluster, "member-res", ReasonKind::NotGenerated, "PodGroup shop/g of the pod was not found");
    cluster.put(group("g", &[("res", "tpl-2")]));
    assert_absent(&cluster, "g-res", ReasonKind::NotGenerated, "ResourceClaimTemplate shop/tpl-2 was not found");
}

#[test]
fn claim_without_devices_waits_for_the_scheduler() {
    let mut cluster = synced();
    cluster.put(claim("c"));
    assert_eq!(explained(&cluster, "c").1, [ReasonKind::NotUsed]);
    cluster.put(pod_with_claim("p", "c"));
    let (state, reasons, text) = explained(&cluster, "c");
    assert_eq!((state, &reasons[..]), (ClaimState::NotAllocated, &[ReasonKind::NotScheduled][..]));
    assert!(text.contains("The scheduler has not allocated devices for Pod shop/p."), "{text}");
    cluster.put(on_node(pod_with_claim("p", "c")));
    let (_, reasons, text) = explained(&cluster, "c");
    assert_eq!(reasons, [ReasonKind::PodOnNode]);
    assert!(text.contains("Pod shop/p is on node n7 already"), "{text}");
}

#[test]
fn consumers_are_listed_with_their_states() {
    let mut cluster = synced();
    let running = on_node(in_phase(pod("running", &[("res", "tpl")]), "Running"));
    let mut stopping = on_node(pod("stopping", &[("res", "tpl")]));
    stopping.metadata.deletion_timestamp = Some(Time::from_secs(1).to_api());
    let ended = in_phase(pod("ended", &[("res", "tpl")]), "Succeeded");
    let unknown = pod("unknown", &[]);
    let all = [&running, &stopping, &ended, &unknown].map(consumer);
    cluster.put(reserved(allocated(claim("c")), &all));
    [running, stopping, ended].into_iter().for_each(|pod| drop(cluster.put(pod)));
    let explanation = cluster.core.explain(&object("c"), cluster.now);
    assert_eq!(explanation.state, ClaimState::Reserved);
    let holds: Vec<_> = explanation.consumers.iter().map(|consumer| consumer.holds).collect();
    assert_eq!(holds, [true, true, false, true]);
    let text = explanation.to_string();
    for expected in [
        "3 consumers hold the claim.",
        "Pod shop/running is on node n7 in phase Running.",
        "Its containers on node n7 may still use the devices.",
        "Pod shop/ended has ended.",
        "Pod shop/unknown with this UID is not known.",
    ] {
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn claim_that_is_not_released_has_a_reason() {
    let mut cluster = synced();
    cluster.put(allocated(claim("unused")));
    assert_eq!(explained(&cluster, "unused").1, [ReasonKind::AllocationKept]);

    let mut deleting = with_finalizer(allocated(claim("deleting")));
    deleting.metadata.deletion_timestamp = Some(Time::from_secs(1).to_api());
    deleting.metadata.finalizers.get_or_insert_default().push("example.com/keep".to_owned());
    cluster.put(deleting);
    let (state, reasons, text) = explained(&cluster, "deleting");
    assert_eq!((state, &reasons[..]), (ClaimState::Deleting, &[ReasonKind::Finalizers][..]));
    assert!(text.contains("example.com/keep"), "{text}");

    let full: Vec<_> = (0..256).map(|number| consumer(&pod(&format!("p{number}"), &[]))).collect();
    cluster.put(reserved(allocated(claim("full")), &full));
    assert_eq!(explained(&cluster, "full").1, [ReasonKind::InUse, ReasonKind::Full]);

    let ended = in_phase(pod("ended", &[("res", "tpl")]), "Succeeded");
    cluster.put(reserved(allocated(claim("old")), &[consumer(&ended)]));
    cluster.put(ended);
    assert_eq!(explained(&cluster, "old").1, [ReasonKind::PassDue]);
}
