//! From the events of watches to keys.

use k8s_openapi::Metadata;

use super::*;
use crate::resource_claim::explain::ReasonKind;
use crate::resource_claim::table::WatchEvent;

/// CLAIM-S31: a pod that a new list does not have counts as deleted.
#[test]
fn relist_without_a_pod_frees_its_claim() {
    let mut cluster = Cluster::new(Features::default());
    let p = pod_with_claim("p", "c");
    cluster.put(p.clone());
    cluster.put(reserved(allocated(claim("c")), &[consumer(&p)]));
    cluster.server.remove(&p.into());
    cluster.server.take_events();
    assert!(!cluster.core.is_synced());
    assert!(cluster.core.pod_event(WatchEvent::Init).is_empty());
    assert!(cluster.core.pods.get(&object("p")).is_some(), "what is known stays known during the list");
    assert_eq!(cluster.core.pod_event(WatchEvent::InitDone), [Key::Claim(object("c"))]);
    assert_eq!(cluster.run("claim:shop/c"), Ok(()));
    assert_eq!(cluster.calls, ["status c []"]);
}

/// A pod that was replaced under its name between two events counts as deleted too.
#[test]
fn replaced_pod_frees_its_claim() {
    let mut cluster = Cluster::new(Features::default());
    let old = pod_with_claim("p", "c");
    let mut new = old.clone();
    new.metadata.uid = Some("new".to_owned());
    cluster.put(old.clone());
    cluster.put(reserved(allocated(claim("c")), &[consumer(&old), consumer(&new)]));
    assert_eq!(cluster.put(new.clone()), ["claim:shop/c"]);
    assert_eq!(cluster.run("claim:shop/c"), Ok(()));
    assert_eq!(cluster.claim("c").status.as_ref().unwrap().reserved_for, Some(vec![consumer(&new)]));
}

/// A pod that a stale list did not have was not deleted.
#[test]
fn pod_that_appears_again_is_not_remembered_as_deleted() {
    let mut cluster = Cluster::new(Features::default());
    let p = pod_with_claim("p", "c");
    cluster.put(p.clone());
    let _ = cluster.core.pod_event(WatchEvent::Init);
    let _ = cluster.core.pod_event(WatchEvent::InitDone);
    cluster.put(p.clone());
    cluster.put(reserved(allocated(claim("c")), &[consumer(&p)]));
    assert_eq!(cluster.run("claim:shop/c"), Ok(()));
    assert!(cluster.calls.is_empty());
}

fn undecodable<T: Metadata<Ty = ObjectMeta> + Default>(object: &T, is_deleted: bool) -> WatchEvent<T> {
    let mut only = T::default();
    *only.metadata_mut() = object.metadata().clone();
    WatchEvent::Undecodable { object: Arc::new(only), is_deleted }
}

/// A pod without a usable template waits: a claim that is made of nothing would give it no devices.
#[test]
fn no_claim_is_made_of_a_template_that_cannot_be_decoded() {
    let mut cluster = Cluster::new(Features::default());
    let _ = cluster.core.template_event(undecodable(&template("tpl"), false));
    cluster.put(pod("p", &[("res", "tpl")]));
    assert!(cluster.run("pod:shop/p").unwrap_err().contains("tpl was not found"));
    assert!(cluster.calls.iter().all(|call| !call.starts_with("create")), "{:?}", cluster.calls);
}

/// The end of a pod frees its claims, whatever its last state contains, and a list that has it in such a state does not end it.
#[test]
fn end_of_a_pod_that_cannot_be_decoded_frees_its_claim() {
    let mut cluster = Cluster::new(Features::default());
    let p = pod_with_claim("p", "c");
    cluster.put(p.clone());
    cluster.put(reserved(allocated(claim("c")), &[consumer(&p)]));
    for event in [WatchEvent::Init, undecodable(&p, false), WatchEvent::InitDone] {
        assert!(cluster.core.pod_event(event).is_empty());
    }
    cluster.server.remove(&p.clone().into());
    cluster.server.take_events();
    assert_eq!(cluster.core.pod_event(undecodable(&p, true)), [Key::Claim(object("c"))]);
    assert_eq!(cluster.run("claim:shop/c"), Ok(()));
    assert_eq!(cluster.calls, ["status c []"]);
}

/// A claim that cannot be decoded keeps its consumers, and its pod gets no second one.
#[test]
fn claim_that_cannot_be_decoded_is_kept() {
    let mut cluster = Cluster::new(Features::default());
    cluster.put(template("tpl"));
    let p = pod("p", &[("res", "tpl")]);
    cluster.put(p.clone());
    let made = generated("made", &pod_owner(&p));
    let _ = cluster.core.claim_event(undecodable(&made, false), cluster.now);
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert!(cluster.calls.iter().all(|call| !call.starts_with("create")), "{:?}", cluster.calls);
    cluster.put(reserved(allocated(claim("c")), &[consumer(&p)]));
    let _ = cluster.core.claim_event(undecodable(&claim("c"), false), cluster.now);
    let known = cluster.core.claims.get(&object("c")).and_then(|claim| claim.status.clone());
    assert_eq!(known.unwrap().reserved_for, Some(vec![consumer(&p)]));
}

/// The consumers of a claim that cannot be decoded are not known. It is neither released nor deleted until it can be decoded again.
#[test]
fn claim_that_cannot_be_decoded_is_not_released() {
    let mut cluster = Cluster::new(Features::default());
    let p = in_phase(pod("p", &[("res", "tpl")]), "Succeeded");
    let (made, c) = (generated("made", &pod_owner(&p)), reserved(allocated(claim("c")), &[consumer(&p)]));
    cluster.put(c.clone());
    cluster.put(p);
    cluster.server.put(made.clone().into());
    cluster.server.take_events();
    for claim in [&made, &c] {
        let _ = cluster.core.claim_event(undecodable(claim, false), cluster.now);
    }
    for key in ["claim:shop/made", "claim:shop/c"] {
        assert_eq!(cluster.run(key), Ok(()));
        assert_eq!(cluster.calls, Vec::<String>::new(), "{key}");
    }
    let explanation = cluster.core.explain(&object("made"), cluster.now);
    assert!(explanation.reasons.iter().any(|reason| reason.what == ReasonKind::Undecodable), "{explanation}");
    cluster.put(c);
    assert_eq!(cluster.run("claim:shop/c"), Ok(()));
    assert_eq!(cluster.calls, ["status c []"]);
    let mut next = made.clone();
    next.metadata.uid = Some("next".to_owned());
    let _ = cluster.core.claim_event(undecodable(&next, false), cluster.now);
    assert_eq!(cluster.run("claim:shop/made"), Ok(()));
    assert_eq!(cluster.calls, Vec::<String>::new(), "another claim of the name cannot be decoded either");
    cluster.put(made);
    assert_eq!(cluster.run("claim:shop/made"), Ok(()));
    assert_eq!(cluster.calls, ["delete made"]);
}

/// The controller knows only an earlier state of the claim, and reserves it for no pod until it can be decoded again.
#[test]
fn claim_that_cannot_be_decoded_is_not_reserved() {
    let mut cluster = Cluster::new(Features::default());
    let (p, c) = (on_node(pod_with_claim("p", "c")), allocated(claim("c")));
    cluster.put(c.clone());
    let _ = cluster.core.claim_event(undecodable(&c, false), cluster.now);
    assert!(cluster.put(p).is_empty());
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, Vec::<String>::new());
    assert_eq!(cluster.put(c), ["claim:shop/c", "pod:shop/p"]);
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["status c [p]"]);
}

/// CLAIM-S32: a template queues the pods of its namespace only.
#[test]
fn template_queues_the_pods_of_its_namespace() {
    let mut cluster = Cluster::new(Features::default());
    let other = |mut metadata: ObjectMeta| {
        metadata.namespace = Some("other".to_owned());
        metadata
    };
    let mut p = pod("p", &[("res", "tpl")]);
    assert_eq!(cluster.put(p.clone()), ["pod:shop/p"]);
    p.metadata = other(p.metadata);
    assert_eq!(cluster.put(p), ["pod:other/p"]);
    let mut tpl = template("tpl");
    assert_eq!(cluster.put(tpl.clone()), ["pod:shop/p"]);
    tpl.metadata = other(tpl.metadata);
    assert_eq!(cluster.put(tpl.clone()), ["pod:other/p"]);
    assert!(cluster.remove(tpl).is_empty());
}

/// CLAIM-S33, CLAIM-S34: a claim queues itself, and nothing after its deletion.
#[test]
fn claim_queues_itself() {
    let mut cluster = Cluster::new(Features::default());
    assert!(cluster.core.all_keys().is_empty());
    assert_eq!(cluster.put(claim("c")), ["claim:shop/c"]);
    assert_eq!(cluster.put(allocated(claim("c"))), ["claim:shop/c"]);
    assert_eq!(cluster.core.all_keys(), [Key::Claim(object("c"))]);
    assert!(cluster.remove(claim("c")).is_empty());
}

/// A deleted claim of a pod queues the pod, which gets a new one.
#[test]
fn deleted_claim_queues_its_pod() {
    let mut cluster = Cluster::new(Features::default());
    cluster.put(template("tpl"));
    cluster.put(pod("p", &[("res", "tpl")]));
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    let made = cluster.claim("p-res-00001").clone();
    assert_eq!(cluster.remove(made), ["pod:shop/p"]);
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["create p-res-", "apply p res=p-res-00002"]);
}

/// CLAIM-S35, CLAIM-S36, CLAIM-S37, CLAIM-S38: groups queue themselves and their pods, with the feature only.
#[test]
fn groups_queue_themselves_and_their_pods() {
    let g = || group_recorded(group("g", &[("res", "tpl")]), "res", "c");
    let mut off = Cluster::new(Features::default());
    assert!(off.put(g()).is_empty());
    off.put(claim("c"));
    off.put(recorded(in_group(pod("p", &[("res", "tpl")]), "g"), &[("res", Some("c"))]));
    assert!(off.put(group("g", &[("res", "tpl")])).is_empty());

    let mut on = Cluster::new(GROUPS);
    assert_eq!(on.put(g()), ["podgroup:shop/g"]);
    assert_eq!(on.put(template("tpl")), ["podgroup:shop/g"]);
    assert_eq!(on.put(generated("c", &group_owner(&g()))), ["claim:shop/c"]);
    assert_eq!(on.put(in_group(pod("p", &[("res", "tpl")]), "g")), ["pod:shop/p"]);
    assert_eq!(on.put(g()), ["pod:shop/p"], "the pod learns the name of its claim from the group");
    assert_eq!(on.remove(g()), ["claim:shop/c", "pod:shop/p"]);
    assert_eq!(on.put(in_group(pod("q", &[("own", "tpl")]), "h")), ["pod:shop/q"]);
    assert_eq!(on.put(group("h", &[])), ["pod:shop/q"], "a group without claims lets its pods go on");
}

/// Somebody restores the claim of a group whose template is gone. The group needs nothing, and its pods record the claim.
#[test]
fn restored_claim_of_a_group_queues_the_pods_of_the_group() {
    let mut cluster = Cluster::new(GROUPS);
    let g = group_recorded(group("g", &[("res", "tpl")]), "res", "c");
    cluster.put(g.clone());
    cluster.put(in_group(pod("p", &[("res", "tpl")]), "g"));
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert!(cluster.calls.is_empty(), "there is no claim: {:?}", cluster.calls);
    assert_eq!(cluster.put(generated("c", &group_owner(&g))), ["claim:shop/c", "pod:shop/p"]);
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["apply p res=c"]);
}

/// CLAIM-S39, CLAIM-S40: pods without claims, or whose claims have no names, queue no claim.
#[test]
fn pods_without_known_claims_queue_no_claim() {
    let mut cluster = Cluster::new(Features::default());
    assert!(cluster.put(pod("p", &[])).is_empty());
    assert!(cluster.put(in_phase(pod("p", &[]), "Failed")).is_empty());
    assert!(cluster.put(in_phase(pod("q", &[("res", "tpl")]), "Failed")).is_empty());
    assert!(cluster.remove(pod("q", &[])).is_empty());
}

/// CLAIM-S41: the claim for extended resources is queued when its pod has ended.
#[test]
fn claim_for_extended_resources_is_queued_at_the_end_of_its_pod() {
    let p = || with_extended_claim(on_node(pod("p", &[])), "x");
    let mut cluster = Cluster::new(Features::default());
    assert!(cluster.put(in_phase(p(), "Running")).is_empty());
    assert_eq!(cluster.put(in_phase(p(), "Succeeded")), ["claim:shop/x"]);
    assert_eq!(cluster.put(in_phase(p(), "Failed")), ["claim:shop/x"]);
    assert_eq!(cluster.remove(p()), ["claim:shop/x"]);
}

/// A pod that is being deleted is done when it has no node.
#[test]
fn deleted_pod_is_done_without_a_node() {
    let mut cluster = Cluster::new(Features::default());
    let mut p = pod_with_claim("p", "c");
    p.metadata.deletion_timestamp = Some(Time::from_secs(1).to_api());
    assert_eq!(cluster.put(p.clone()), ["claim:shop/c"]);
    assert!(cluster.put(on_node(p)).is_empty());
}
