//! Statuses that the controller has written, and that the watch of pods does not show yet.

use super::*;

/// A pod whose claim `own` was made again, and whose watch shows the status with the earlier name. The watch of claims does not show the
/// new claim, and then shows that the claim `res` was deleted.
fn lagging(is_answered: bool) -> Cluster {
    let mut cluster = Cluster::new(Features::default());
    cluster.put(template("tpl"));
    cluster.put(pod("p", &[("res", "tpl"), ("own", "tpl")]));
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    cluster.server.delete_claim(&object("p-own-00002"));
    cluster.watch();
    cluster.is_lagging = true;
    if !is_answered {
        cluster.failing.push(("apply", ApiErrorKind::Unknown));
    }
    assert_eq!(cluster.run("pod:shop/p").is_ok(), is_answered);
    assert_eq!(cluster.calls, ["create p-own-", "apply p res=p-res-00001 own=p-own-00003"]);
    cluster.server.take_events();
    cluster.server.delete_claim(&object("p-res-00001"));
    cluster.watch();
    cluster.now = Time::from_secs(1_031);
    cluster
}

/// A write has the name of an earlier write, even if the claim of that name cannot be read, or the answer to that write was lost.
#[test]
fn write_does_not_bring_back_an_earlier_name() {
    for is_answered in [true, false] {
        let mut cluster = lagging(is_answered);
        cluster.failing.push(("get claim", ApiErrorKind::Unknown));
        assert!(cluster.run("pod:shop/p").is_err());
        let apply = "apply p res=p-res-00004 own=p-own-00003";
        assert_eq!(cluster.calls, ["create p-res-", "get claim p-own-00003", apply]);
    }
}

/// Without a change, nothing is written again while the watch lags.
#[test]
fn stored_write_is_not_repeated() {
    let mut cluster = Cluster::new(Features::default());
    cluster.put(template("tpl"));
    cluster.put(pod("p", &[("res", "tpl")]));
    cluster.is_lagging = true;
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, Vec::<String>::new());
    assert_eq!(cluster.core.own_writes.len(), 1);
    cluster.watch();
    assert_eq!(cluster.core.own_writes.len(), 0, "the watch has shown the write");
}

/// The watch may show the write before its answer arrives, and a later version may have other entries.
#[test]
fn write_is_forgotten_with_a_later_version_or_its_owner() {
    let mut cluster = lagging(true);
    cluster.server.take_events();
    assert_eq!(cluster.core.own_writes.len(), 1);
    cluster.put(recorded(pod("p", &[("res", "tpl"), ("own", "tpl")]), &[("own", None)]));
    assert_eq!(cluster.core.own_writes.len(), 0);
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["create p-res-", "apply p res=p-res-00004 own=none"]);

    let mut cluster = lagging(false);
    cluster.remove(pod("p", &[]));
    assert_eq!(cluster.core.own_writes.len(), 0);

    let mut cluster = Cluster::new(Features::default());
    cluster.put(template("tpl"));
    cluster.put(pod("p", &[("res", "tpl")]));
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.core.own_writes.len(), 0, "the answer came last");
}

/// A late write of an earlier leader, which did not know all claims of the pod, removes a name. The name is written again.
#[test]
fn name_that_a_late_write_removed_is_written_again() {
    let mut cluster = Cluster::new(Features::default());
    cluster.put(template("tpl"));
    let entries = [("res", "tpl"), ("own", "tpl")];
    cluster.put(pod("p", &entries));
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    cluster.put(recorded(pod("p", &entries), &[("res", Some("p-res-00001"))]));
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    assert_eq!(cluster.calls, ["apply p res=p-res-00001 own=p-own-00002"]);
}

/// A write that the server has refused is not part of the status, so a later write does not repeat its names. The write before it counts
/// again, until the watch shows it.
#[test]
fn refused_write_does_not_count() {
    let mut cluster = Cluster::new(Features::default());
    cluster.put(template("tpl"));
    cluster.put(template("gone"));
    cluster.put(pod("p", &[("res", "tpl"), ("own", "gone")]));
    assert_eq!(cluster.run("pod:shop/p"), Ok(()));
    cluster.server.delete_claim(&object("p-own-00002"));
    cluster.watch();
    cluster.failing.push(("apply", ApiErrorKind::Refused));
    assert!(cluster.run("pod:shop/p").is_err());
    assert_eq!(cluster.calls, ["create p-own-", "apply p res=p-res-00001 own=p-own-00003"]);
    assert_eq!(cluster.core.own_writes.len(), 0);
    for claim in ["p-res-00001", "p-own-00003"] {
        cluster.server.delete_claim(&object(claim));
    }
    cluster.remove(template("gone"));
    assert!(cluster.run("pod:shop/p").is_err());
    assert_eq!(cluster.calls, ["create p-res-", "apply p res=p-res-00004 own=p-own-00002"]);

    let mut cluster = lagging(true);
    cluster.failing.push(("apply", ApiErrorKind::Conflict));
    assert!(cluster.run("pod:shop/p").is_err());
    let id = pod_owner(&pod("p", &[])).id();
    let names = cluster.core.own_writes.entries(&id).iter().filter_map(|entry| entry.claim.as_deref());
    assert_eq!(names.collect::<Vec<_>>(), ["p-res-00001", "p-own-00003"]);
}
