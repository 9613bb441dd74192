//! Consumers of claims: those that are added for pods on nodes, and those that have ended.

use super::*;

/// A pod on a node, with the allocated claim `c` in its status.
fn running_pod() -> (Pod, ResourceClaim) {
    let p = on_node(recorded(pod("p", &[("res", "tpl")]), &[("res", Some("c"))]));
    let c = allocated(generated("c", &pod_owner(&p)));
    (p, c)
}

/// CLAIM-S21, CLAIM-S24: the pod becomes a consumer, and stays one.
#[test]
fn claim_is_reserved_for_a_pod_on_a_node() {
    let mut cluster = Cluster::new(Features::default());
    let (p, c) = running_pod();
    cluster.put(c);
    assert_eq!(cluster.put(p.clone()), ["pod:shop/p"]);
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["status c [p]"]);
    assert_eq!(cluster.claim("c").status.as_ref().unwrap().reserved_for, Some(vec![consumer(&p)]));
    for key in ["pod:shop/p", "claim:shop/c"] {
        assert_eq!(cluster.run(key), Ok(()));
        assert!(cluster.calls.is_empty(), "{:?}", cluster.calls);
    }
}

/// CLAIM-S22: a fresh pod on a node needs no second pass.
#[test]
fn fresh_pod_on_a_node_needs_no_retry() {
    let mut cluster = Cluster::new(Features::default());
    cluster.put(template("tpl"));
    cluster.put(on_node(pod("p", &[("res", "tpl")])));
    cluster.is_lagging = true;
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["create p-res-", "apply p res=p-res-00001"]);
}

/// CLAIM-S23 and KF45: no claim is reserved again for a pod that has ended.
#[test]
fn no_claim_is_reserved_for_an_ended_pod() {
    let mut cluster = Cluster::new(Features::default());
    let q = on_node(pod_with_claim("q", "c"));
    let shared = reserved(allocated(claim("c")), &[consumer(&q)]);
    cluster.put(q);
    cluster.put(shared);
    assert_eq!(cluster.put(in_phase(on_node(pod_with_claim("p", "c")), "Succeeded")), ["claim:shop/c"]);
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.run("claim:shop/c"), Ok(()));
    assert!(cluster.calls.is_empty());
    let changed = cluster.claim("c").clone();
    assert_eq!(cluster.put(changed), ["claim:shop/c"], "no later event queues the pod");
}

/// A claim that is being deleted or full is left out, and later claims are not held back.
#[test]
fn claims_that_cannot_be_reserved_are_left_out() {
    let mut cluster = Cluster::new(Features::default());
    let mut p = on_node(pod_with_claim("p", "absent"));
    let claims = p.spec.get_or_insert_default().resource_claims.get_or_insert_default();
    for name in ["deleting", "full", "free"] {
        let mut entry = claims[0].clone();
        (entry.name, entry.resource_claim_name) = (name.to_owned(), Some(name.to_owned()));
        claims.push(entry);
    }
    let mut deleting = allocated(claim("deleting"));
    deleting.metadata.deletion_timestamp = Some(Time::from_secs(1).to_api());
    let others: Vec<_> = (0..256).map(|number| consumer(&pod(&format!("q-{number}"), &[]))).collect();
    cluster.put(deleting);
    cluster.put(reserved(allocated(claim("full")), &others));
    cluster.put(allocated(claim("free")));
    cluster.put(p);
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["status free [p]"]);
    let reserved = ClaimWrite::Reserved { claim: object("free"), consumer: "pods p (p-uid)".to_owned() };
    assert_eq!(cluster.facts, [Fact::Full(object("full")), Fact::Wrote(reserved)]);
}

/// The group is the consumer of a claim that it has too.
#[test]
fn group_claim_is_reserved_for_the_group() {
    let mut cluster = Cluster::new(GROUPS);
    let g = group("g", &[("res", "tpl")]);
    let p = on_node(recorded(in_group(pod("p", &[("res", "tpl")]), "g"), &[("res", Some("c"))]));
    cluster.put(allocated(generated("c", &group_owner(&g))));
    cluster.put(g.clone());
    cluster.put(p);
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["status c [g]"]);
    let consumers = cluster.claim("c").status.as_ref().unwrap().reserved_for.clone();
    assert_eq!(consumers, Some(vec![group_owner(&g).consumer()]));
}

/// CLAIM-S25, CLAIM-S26: without a consumer, the allocation and the finalizer go.
#[test]
fn claim_of_missing_consumers_is_released() {
    let absent = [pod_owner(&pod("p", &[])).consumer(), group_owner(&group("g", &[])).consumer()];
    for (absent, look_up) in absent.into_iter().zip(["get pod p", "get group g"]) {
        let mut cluster = Cluster::new(GROUPS);
        let mut c = reserved(with_finalizer(allocated(claim("c"))), &[absent]);
        c.metadata.finalizers.get_or_insert_default().push("other".to_owned());
        cluster.put(c);
        assert_eq!(cluster.run("claim:shop/c"), Ok(()));
        assert_eq!(cluster.calls, [look_up, "status c []", "update c"]);
        let released = cluster.claim("c");
        let status = released.status.clone().unwrap();
        assert_eq!((status.allocation, status.reserved_for), (None, None));
        assert_eq!(released.metadata.finalizers, Some(vec!["other".to_owned()]));
    }
}

/// Without the feature, entries of groups stay, and so do those of kinds that nobody knows.
#[test]
fn unknown_consumers_are_kept() {
    let mut cluster = Cluster::new(Features::default());
    let mut other = consumer(&pod("p", &[]));
    (other.resource, other.uid) = ("jobs".to_owned(), "j".to_owned());
    let consumers = [group_owner(&group("g", &[])).consumer(), consumer(&pod("p", &[])), other];
    cluster.put(reserved(with_finalizer(allocated(claim("c"))), &consumers));
    assert_eq!(cluster.run("claim:shop/c"), Ok(()));
    assert_eq!(cluster.calls, ["get pod p", "status c [g p]"]);
}

/// CLAIM-S27: a consumer that runs keeps the allocation.
#[test]
fn running_consumer_keeps_the_allocation() {
    let mut cluster = Cluster::new(Features::default());
    let p = on_node(pod_with_claim("p", "c"));
    cluster.put(p.clone());
    cluster.put(reserved(allocated(claim("c")), &[consumer(&p), consumer(&pod("q", &[]))]));
    assert_eq!(cluster.run("claim:shop/c"), Ok(()));
    assert_eq!(cluster.calls, ["get pod q", "status c [p]"]);
    assert!(cluster.claim("c").status.as_ref().unwrap().allocation.is_some());
}

/// CLAIM-S28: the generated claim of a pod that has ended is deleted.
#[test]
fn generated_claim_of_an_ended_pod_is_deleted() {
    let mut cluster = Cluster::new(Features::default());
    let (p, c) = running_pod();
    cluster.put(reserved(c, &[consumer(&p)]));
    assert_eq!(cluster.put(in_phase(p, "Succeeded")), ["claim:shop/c"]);
    assert_eq!(cluster.run("claim:shop/c"), Ok(()));
    assert_eq!(cluster.calls, ["status c []", "delete c"]);
    assert!(cluster.server.claims.is_empty());
}

/// A deletion is refused for another claim of the name, and a claim that is gone already is no failure.
#[test]
fn deletion_of_a_claim_that_is_gone_succeeds() {
    let mut cluster = Cluster::new(Features::default());
    let (p, c) = running_pod();
    cluster.put(c.clone());
    cluster.put(in_phase(p, "Failed"));
    cluster.is_lagging = true;
    cluster.server.remove(&c.clone().into());
    assert_eq!(cluster.run("claim:shop/c"), Ok(()));
    assert_eq!(cluster.calls, ["delete c"]);
    let mut next = c;
    next.metadata.uid = Some("other".to_owned());
    cluster.server.put(next.into());
    assert!(cluster.run("claim:shop/c").is_err());
    assert_eq!(cluster.server.claims.len(), 1);
}

/// The claims of groups, of users, and of pods that run or are not known, are not deleted.
#[test]
fn other_claims_are_not_deleted() {
    let mut cluster = Cluster::new(GROUPS);
    let (p, c) = running_pod();
    cluster.put(c);
    assert_eq!(cluster.run("claim:shop/c"), Ok(()), "the pod may be too new for the watch");
    cluster.put(p);
    cluster.put(generated("g-c", &group_owner(&group("g", &[]))));
    cluster.put(claim("u"));
    for key in ["claim:shop/c", "claim:shop/g-c", "claim:shop/u"] {
        assert_eq!(cluster.run(key), Ok(()));
        assert!(cluster.calls.is_empty(), "{key}: {:?}", cluster.calls);
    }
}

/// The cache may have the predecessor of a pod, so a call reads the pod before its claim is changed.
#[test]
fn successor_of_a_known_pod_keeps_its_claim() {
    let mut cluster = Cluster::new(Features::default());
    cluster.put(on_node(pod("p", &[("res", "tpl")])));
    cluster.is_lagging = true;
    let mut next = on_node(recorded(pod("p", &[("res", "tpl")]), &[("res", Some("c"))]));
    next.metadata.uid = Some("next".to_owned());
    cluster.server.pods.insert(object("p"), next.clone());
    cluster.put(reserved(with_finalizer(allocated(generated("c", &pod_owner(&next)))), &[consumer(&next)]));
    assert_eq!(cluster.run("claim:shop/c"), Ok(()));
    assert_eq!(cluster.calls, ["get pod p"]);
    cluster.put(allocated(generated("c", &pod_owner(&next))));
    assert_eq!(cluster.run("claim:shop/c"), Ok(()));
    assert_eq!(cluster.calls, ["get pod p"]);
}

/// CLAIM-S29: the scheduler decides on an allocation that it has not reserved.
#[test]
fn unused_allocation_stays() {
    let mut cluster = Cluster::new(Features::default());
    cluster.put(with_finalizer(allocated(claim("c"))));
    assert_eq!(cluster.run("claim:shop/c"), Ok(()));
    assert!(cluster.calls.is_empty());
}

/// A claim that is being deleted gives its devices back, and then its finalizer goes.
#[test]
fn unused_claim_that_is_being_deleted_is_released() {
    let mut cluster = Cluster::new(Features::default());
    let mut c = with_finalizer(allocated(claim("c")));
    c.metadata.deletion_timestamp = Some(Time::from_secs(1).to_api());
    cluster.put(c);
    cluster.failing.push(("update", ApiErrorKind::Unknown));
    assert!(cluster.run("claim:shop/c").is_err());
    assert_eq!(cluster.calls, ["status c []", "update c"]);
    let deallocated = ClaimWrite::Released { claim: object("c"), consumers: String::new(), deallocated: true };
    assert_eq!(cluster.take_writes(), [deallocated], "a write without an answer may not have been performed");
    assert_eq!(cluster.run("claim:shop/c"), Ok(()));
    assert_eq!(cluster.calls, ["update c"]);
    assert!(cluster.server.claims.is_empty());
}

/// CLAIM-S30: a consumer that cannot be looked up is kept, and the others go.
#[test]
fn failed_look_up_delays_no_other_removal() {
    let mut cluster = Cluster::new(Features::default());
    let r = pod_with_claim("r", "c");
    cluster.put(r.clone());
    cluster.remove(r.clone());
    cluster.put(reserved(with_finalizer(allocated(claim("c"))), &[consumer(&pod("q", &[])), consumer(&r)]));
    cluster.failing.push(("get pod q", ApiErrorKind::Unknown));
    assert!(cluster.run("claim:shop/c").unwrap_err().contains("shop/q"));
    assert_eq!(cluster.calls, ["get pod q", "status c [q]"]);
}
