//! Claims from templates, and their names in the status of pods and groups.

use super::super::unanswered::SETTLES_AFTER;
use super::*;
use crate::resource_claim::table::WatchEvent;

/// CLAIM-S1, CLAIM-S7: one claim, recorded, and nothing to do after that.
#[test]
fn pod_gets_its_claim() {
    let mut cluster = Cluster::new(Features::default());
    let p = pod("p", &[("res", "tpl")]);
    cluster.put(template("tpl"));
    cluster.put(p.clone());
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["create p-res-", "apply p res=p-res-00001"]);
    let made = cluster.claim("p-res-00001");
    assert_eq!(made.metadata.annotations.as_ref().unwrap()[POD_CLAIM_NAME_ANNOTATION], "res");
    assert_eq!(made.metadata.owner_references, Some(vec![pod_owner(&p).owner_reference()]));
    assert_eq!(cluster.creates(), [(true, false)]);
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert!(cluster.calls.is_empty(), "a claim that is recorded needs no write");
}

/// Labels and annotations come from the template, and the template stays as it is.
#[test]
fn claim_has_the_metadata_of_its_template() {
    let mut cluster = Cluster::new(Features::default());
    let mut tpl = template("tpl");
    let inner = tpl.spec.metadata.get_or_insert_default();
    inner.labels = Some([("a".to_owned(), "b".to_owned())].into_iter().collect());
    inner.annotations = Some([(POD_CLAIM_NAME_ANNOTATION.to_owned(), "other".to_owned())].into_iter().collect());
    cluster.put(tpl.clone());
    cluster.put(pod("p", &[("res", "tpl")]));
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    let made = cluster.claim("p-res-00001");
    assert_eq!(made.metadata.labels, tpl.spec.metadata.as_ref().unwrap().labels);
    assert_eq!(made.metadata.annotations.as_ref().unwrap()[POD_CLAIM_NAME_ANNOTATION], "res");
    let known = cluster.core.templates.get(&object("tpl")).unwrap();
    assert_eq!(known.spec, tpl.spec);
}

/// CLAIM-S2, CLAIM-S3, CLAIM-S4: what a feature gate turns off is refused before the call.
#[test]
fn templates_follow_the_feature_gates() {
    let off = |features: fn(&mut Features)| {
        let mut all = Features::default();
        features(&mut all);
        all
    };
    let run = |features: Features, devices: DeviceClaim| {
        let mut cluster = Cluster::new(features);
        let mut tpl = template("tpl");
        tpl.spec.spec.devices = Some(devices);
        cluster.put(tpl);
        cluster.put(pod("p", &[("res", "tpl")]));
        let result = cluster.run("pod:shop/p");
        (result, cluster)
    };
    let (result, cluster) = run(Features::default(), requests(Some(true)));
    assert_eq!((result, cluster.creates()), (Ok(()), vec![(true, true)]));
    assert_eq!(cluster.claim("p-res-00001").spec.devices, Some(requests(Some(true))));
    for (features, devices, word) in [
        (off(|all| all.admin_access = false), requests(Some(true)), "DRAAdminAccess"),
        (off(|all| all.prioritized_list = false), prioritized(), "DRAPrioritizedList"),
    ] {
        let (result, cluster) = run(features, devices);
        assert!(result.unwrap_err().contains(word));
        assert!(cluster.calls.is_empty() && cluster.creates().is_empty());
        assert_eq!(cluster.messages().len(), 1);
        assert!(cluster.messages()[0].starts_with("PodResourceClaim res: "), "{:?}", cluster.messages());
    }
}

/// CLAIM-S5, CLAIM-S6, CLAIM-S7: the group gets a claim, and its pod records the same one.
#[test]
fn group_gets_its_claim_and_its_pod_records_it() {
    let mut cluster = Cluster::new(GROUPS);
    let g = group("g", &[("res", "tpl")]);
    cluster.put(template("tpl"));
    cluster.put(g.clone());
    cluster.put(in_group(pod("p", &[("res", "tpl")]), "g"));
    assert_eq!(cluster.run("pod:shop/p"), Ok(()), "the pass of the group makes the claim");
    assert!(cluster.calls.is_empty());
    assert_eq!(cluster.run("podgroup:shop/g"), Ok(()));
    assert_eq!(cluster.calls, ["create g-res-", "apply g res=g-res-00001"]);
    let owners = &cluster.claim("g-res-00001").metadata.owner_references;
    assert_eq!(*owners, Some(vec![group_owner(&g).owner_reference()]));
    assert_eq!(owners.as_ref().unwrap()[0].api_version, "scheduling.k8s.io/v1alpha2");
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["apply p res=g-res-00001"]);
    assert_eq!(cluster.creates(), [(true, false)]);
    for key in ["podgroup:shop/g", "pod:shop/p"] {
        assert_eq!(cluster.run(key), Ok(()));
        assert!(cluster.calls.is_empty());
    }
}

/// CLAIM-S8: a claim that was deleted by accident is made again.
#[test]
fn recorded_claim_that_does_not_exist_is_made_again() {
    let mut cluster = Cluster::new(GROUPS);
    cluster.put(template("tpl"));
    cluster.put(recorded(pod("p", &[("res", "tpl")]), &[("res", Some("lost"))]));
    cluster.put(group_recorded(group("g", &[("res", "tpl")]), "res", "lost"));
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["create p-res-", "apply p res=p-res-00001"]);
    assert_eq!(cluster.run("podgroup:shop/g"), Ok(()));
    assert_eq!(cluster.calls, ["create g-res-", "apply g res=g-res-00002"]);
}

/// CLAIM-S9, CLAIM-S15: without a template nothing is made, and a claim of nobody is not adopted.
#[test]
fn missing_template_is_an_error() {
    let mut cluster = Cluster::new(GROUPS);
    cluster.put(claim("p-res"));
    cluster.put(claim("g-res"));
    cluster.put(pod("p", &[("res", "tpl")]));
    cluster.put(group("g", &[("res", "tpl")]));
    for key in ["pod:shop/p", "podgroup:shop/g"] {
        assert!(cluster.run(key).unwrap_err().contains("ResourceClaimTemplate shop/tpl was not found"));
        assert!(cluster.calls.is_empty());
    }
    let prefixes = ["PodResourceClaim res: ", "PodGroupResourceClaim res: "];
    assert!(cluster.messages().iter().zip(prefixes).all(|(message, prefix)| message.starts_with(prefix)));
    assert_eq!(cluster.messages().len(), 2);
}

/// CLAIM-S10: owner and annotation are enough, also without the template.
#[test]
fn claim_of_an_earlier_process_is_adopted() {
    let mut cluster = Cluster::new(GROUPS);
    let (p, g) = (pod("p", &[("res", "tpl")]), group("g", &[("res", "tpl")]));
    cluster.put(generated("some", &pod_owner(&p)));
    cluster.put(generated("other", &group_owner(&g)));
    cluster.put(p);
    cluster.put(g);
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["apply p res=some"]);
    assert_eq!(cluster.run("podgroup:shop/g"), Ok(()));
    assert_eq!(cluster.calls, ["apply g res=other"]);
    assert!(cluster.creates().is_empty());
}

/// CLAIM-S11, CLAIM-S12, CLAIM-S13: what is gone, is being deleted, has ended, or has no claims needs no call.
#[test]
fn objects_without_work_cause_no_call() {
    let mut cluster = Cluster::new(GROUPS);
    cluster.put(template("tpl"));
    let deleted = Some(Time::from_secs(1).to_api());
    let mut p = pod("p", &[("res", "tpl")]);
    p.metadata.deletion_timestamp = deleted.clone();
    let mut g = group("g", &[("res", "tpl")]);
    g.metadata.deletion_timestamp = deleted;
    cluster.put(p);
    cluster.put(g);
    cluster.put(pod("empty", &[]));
    cluster.put(in_phase(pod("ended", &[("res", "tpl")]), "Failed"));
    let keys = ["pod:shop/no", "podgroup:shop/no", "claim:shop/no", "pod:shop/p", "podgroup:shop/g", "pod:shop/empty"];
    for key in keys.into_iter().chain(["pod:shop/ended"]) {
        assert_eq!(cluster.run(key), Ok(()), "{key}");
        assert!(cluster.calls.is_empty(), "{key}: {:?}", cluster.calls);
    }
}

/// CLAIM-S51: a pod that is being deleted on a node keeps the names of its claims, and gets no new claim.
#[test]
fn erased_names_of_a_pod_that_is_being_deleted_are_recorded_again() {
    let mut cluster = Cluster::new(Features::default());
    cluster.put(template("tpl"));
    let p = on_node(pod("p", &[("res", "tpl"), ("own", "tpl")]));
    cluster.put(p.clone());
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.server.claims.len(), 2);
    cluster.server.delete_claim(&object("p-own-00002"));
    let res = allocated(cluster.claim("p-res-00001").clone());
    cluster.put(res);
    let named = [("res", Some("p-res-00001")), ("own", Some("p-own-00002"))];
    assert!(cluster.put(recorded(deleting(p.clone()), &named)).is_empty(), "no name is missing");
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, Vec::<String>::new());

    assert_eq!(cluster.put(without_names(deleting(p.clone()))), ["pod:shop/p"]);
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["apply p res=p-res-00001"], "nothing is created or reserved");
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, Vec::<String>::new());
    assert!(cluster.messages().is_empty());

    let ended = [in_phase(deleting(p.clone()), "Failed"), deleting(pod("p", &[("res", "tpl")]))];
    for pod in ended {
        assert_eq!(cluster.put(pod), ["claim:shop/p-res-00001"]);
        assert_eq!(cluster.run("pod:shop/p"), Ok(()));
        assert_eq!(cluster.calls, Vec::<String>::new());
    }
}

/// The claim of a create without an answer may appear after the deletion of its pod has begun. The pod may outlive its group.
#[test]
fn claim_that_appears_during_the_deletion_of_its_pod_is_recorded() {
    let mut cluster = Cluster::new(GROUPS);
    let (p, g) = (deleting(on_node(pod("p", &[("res", "tpl")]))), group("g", &[("res", "tpl")]));
    cluster.put(p.clone());
    cluster.put(g.clone());
    assert_eq!(cluster.put(generated("late", &pod_owner(&p))), ["claim:shop/late", "pod:shop/p"]);
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["apply p res=late"]);

    cluster.put(generated("shared", &group_owner(&g)));
    let member = in_group(deleting(on_node(pod("r", &[("res", "tpl")]))), "g");
    assert_eq!(cluster.put(member.clone()), ["pod:shop/r"]);
    assert_eq!(cluster.run("pod:shop/r"), Ok(()));
    assert_eq!(cluster.calls, ["apply r res=shared"]);
    cluster.remove(g);
    cluster.put(without_names(member));
    assert_eq!(cluster.run("pod:shop/r"), Ok(()));
    assert_eq!(cluster.calls, Vec::<String>::new());
}

/// CLAIM-S14: a claim of another namespace is not taken.
#[test]
fn claim_of_another_namespace_is_not_adopted() {
    let mut cluster = Cluster::new(GROUPS);
    let (p, g) = (pod("p", &[("res", "tpl")]), group("g", &[("res", "tpl")]));
    for (name, owner) in [("p-res", pod_owner(&p)), ("g-res", group_owner(&g))] {
        let mut other = generated(name, &owner);
        other.metadata.namespace = Some("other".to_owned());
        cluster.put(other);
    }
    cluster.put(template("tpl"));
    cluster.put(p);
    cluster.put(g);
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls[0], "create p-res-");
    assert_eq!(cluster.run("podgroup:shop/g"), Ok(()));
    assert_eq!(cluster.calls[0], "create g-res-");
}

/// CLAIM-S16: a refused create is counted, and nothing is recorded.
#[test]
fn refused_create_is_a_failure() {
    let mut cluster = Cluster::new(GROUPS);
    cluster.put(template("tpl"));
    cluster.put(pod("p", &[("res", "tpl")]));
    cluster.put(group("g", &[("res", "tpl")]));
    for (key, call) in [("pod:shop/p", "create p-res-"), ("podgroup:shop/g", "create g-res-")] {
        cluster.failing.push(("create", ApiErrorKind::Conflict));
        assert!(cluster.run(key).unwrap_err().contains("conflict"));
        assert_eq!(cluster.calls, [call]);
    }
    assert_eq!(cluster.creates(), [(false, false), (false, false)]);
}

/// CLAIM-S17: a claim that no watch has shown is found by the retry.
#[test]
fn retry_records_the_claim_of_the_first_pass() {
    let mut cluster = Cluster::new(Features::default());
    cluster.put(template("tpl"));
    cluster.put(pod("p", &[("res", "tpl")]));
    cluster.is_lagging = true;
    cluster.failing.push(("apply", ApiErrorKind::Unknown));
    assert!(cluster.run("pod:shop/p").is_err());
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["apply p res=p-res-00001"]);
    assert_eq!(cluster.creates(), [(true, false)]);
    cluster.watch();
    assert_eq!(cluster.core.pending.len(), 0, "the watch has shown the claim");
}

/// A claim that no watch has shown for 30 seconds is confirmed. A claim that is gone is made again.
#[test]
fn old_claim_is_confirmed() {
    let mut cluster = Cluster::new(Features::default());
    cluster.put(template("tpl"));
    cluster.put(pod("p", &[("res", "tpl")]));
    cluster.is_lagging = true;
    cluster.failing.push(("apply", ApiErrorKind::Unknown));
    assert!(cluster.run("pod:shop/p").is_err());
    cluster.now = Time::from_secs(1_031);
    cluster.failing.push(("apply", ApiErrorKind::Unknown));
    assert!(cluster.run("pod:shop/p").is_err());
    assert_eq!(cluster.calls, ["get claim p-res-00001", "apply p res=p-res-00001"]);
    cluster.server.delete_claim(&object("p-res-00001"));
    cluster.now = Time::from_secs(1_062);
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["get claim p-res-00001", "create p-res-", "apply p res=p-res-00002"]);
}

/// A create without an answer was performed, and its claim was deleted before the claims were listed. The watch shows that claim later.
#[test]
fn claim_that_the_watch_shows_late_is_not_recorded() {
    let mut cluster = Cluster::new(Features::default());
    cluster.put(template("tpl"));
    cluster.put(pod("p", &[("res", "tpl")]));
    cluster.is_lagging = true;
    let mut pass = cluster.core.begin(&Key::Pod(object("p")));
    let Step::Call(request) = pass.step(&mut cluster.core, None, cluster.now) else { panic!("no call") };
    cluster.server.perform(&request).unwrap();
    drop(pass);
    let create = cluster.server.take_events();
    cluster.server.delete_claim(&object("p-res-00001"));
    assert!(cluster.run("pod:shop/p").is_err());
    cluster.now = cluster.now + SETTLES_AFTER;
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["list shop", "create p-res-", "apply p res=p-res-00002"]);
    create.into_iter().for_each(|event| drop(event.show(&mut cluster.core, cluster.now)));
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, Vec::<String>::new());
}

/// A list that does not show a new claim may be older than the claim, or the claim is gone and no event will report that.
#[test]
fn claim_that_a_list_does_not_show_is_confirmed() {
    let mut cluster = Cluster::new(Features::default());
    cluster.put(template("tpl"));
    cluster.put(pod("p", &[("res", "tpl")]));
    cluster.is_lagging = true;
    cluster.failing.push(("apply", ApiErrorKind::Unknown));
    assert!(cluster.run("pod:shop/p").is_err());
    cluster.server.delete_claim(&object("p-res-00001"));
    cluster.server.take_events();
    assert!(cluster.core.claim_event(WatchEvent::Init, cluster.now).is_empty());
    assert_eq!(cluster.core.claim_event(WatchEvent::InitDone, cluster.now), [Key::Pod(object("p"))]);
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["get claim p-res-00001", "create p-res-", "apply p res=p-res-00002"]);
}

/// CLAIM-S18: one claim that fails does not hold the other back.
#[test]
fn missing_template_delays_no_other_claim() {
    let mut cluster = Cluster::new(Features::default());
    cluster.put(template("tpl"));
    cluster.put(pod("p", &[("res", "tpl"), ("late", "tpl-2")]));
    assert!(cluster.run("pod:shop/p").unwrap_err().contains("tpl-2"));
    assert_eq!(cluster.calls, ["create p-res-", "apply p res=p-res-00001"]);
    assert!(cluster.messages()[0].starts_with("PodResourceClaim late: "));
    cluster.put(template("tpl-2"));
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["create p-late-", "apply p res=p-res-00001 late=p-late-00002"]);
}

/// CLAIM-S19, CLAIM-S20: a write has all entries of the claims, also those without a name.
#[test]
fn write_of_the_status_keeps_other_entries() {
    let mut cluster = Cluster::new(Features::default());
    cluster.put(template("tpl"));
    let p = pod("p", &[("res", "tpl"), ("kept", "tpl"), ("unneeded", "tpl")]);
    cluster.put(generated("k", &pod_owner(&p)));
    let entries = [("res", Some("lost")), ("kept", Some("k")), ("unneeded", None)];
    let mut k = generated("k", &pod_owner(&p));
    k.metadata.annotations = Some([(POD_CLAIM_NAME_ANNOTATION.to_owned(), "kept".to_owned())].into_iter().collect());
    cluster.put(k);
    cluster.put(recorded(p, &entries));
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["create p-res-", "apply p res=p-res-00001 kept=k unneeded=none"]);
}

/// The name of another object's claim in the status is replaced.
#[test]
fn claim_of_another_pod_is_not_used() {
    let mut cluster = Cluster::new(Features::default());
    cluster.put(template("tpl"));
    cluster.put(generated("foreign", &pod_owner(&pod("q", &[]))));
    cluster.put(recorded(pod("p", &[("res", "tpl")]), &[("res", Some("foreign"))]));
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["create p-res-", "apply p res=p-res-00001"]);
    assert!(cluster.facts.iter().any(|fact| matches!(fact, Fact::Foreign(_))));
}

/// A pod of a group that is not known waits.
#[test]
fn unknown_group_is_an_error() {
    let mut cluster = Cluster::new(GROUPS);
    cluster.put(template("tpl"));
    cluster.put(in_group(pod("p", &[("res", "tpl")]), "g"));
    assert_eq!(cluster.run("pod:shop/p"), Err("PodGroup shop/g of the pod was not found: create it".to_owned()));
    assert!(cluster.calls.is_empty());
}
