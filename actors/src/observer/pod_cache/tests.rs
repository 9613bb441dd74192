//! Reads that overlap, and the changes that they report.

use super::*;
use crate::ports::SandboxStatus;
use crate::testing::created;
use crate::time::Time;

fn status(containers: &[(&str, ContainerState)]) -> PodRuntimeStatus {
    let container = |(id, state): &(&str, ContainerState)| ContainerStatus { state: *state, ..created(id) };
    PodRuntimeStatus { sandboxes: Vec::new(), containers: containers.iter().map(container).collect() }
}

fn running() -> PodRuntimeStatus {
    status(&[("c", ContainerState::Running)])
}

fn exited() -> PodRuntimeStatus {
    status(&[("c", ContainerState::Exited)])
}

// KF34
#[test]
fn a_slow_read_does_not_overwrite_a_later_status() {
    let cache = PodCache::default();
    let uid = "u".into();
    assert_eq!(cache.store(&uid, 1, running(), Acknowledge::All).1, [RuntimeChange::Started]);
    assert_eq!(cache.store(&uid, 3, exited(), Acknowledge::All).1, [RuntimeChange::Died]);
    let (found, changes) = cache.store(&uid, 2, running(), Acknowledge::All);
    assert_eq!((&*found, changes), (&exited(), vec![]));
    assert_eq!(*cache.last(&uid).unwrap(), exited());
}

// KF33
#[test]
fn the_next_read_reports_a_death_that_was_not_acknowledged() {
    let cache = PodCache::default();
    let uid = "u".into();
    assert_eq!(cache.store(&uid, 1, running(), Acknowledge::AllButDeaths).1, [RuntimeChange::Started]);
    assert_eq!(cache.store(&uid, 3, exited(), Acknowledge::AllButDeaths).1, [RuntimeChange::Died]);
    assert_eq!(cache.store(&uid, 2, exited(), Acknowledge::All).1, [RuntimeChange::Died]);
    assert_eq!(cache.store(&uid, 4, exited(), Acknowledge::All).1, []);
    // Starts were acknowledged, so they are not reported again.
    let both = status(&[("c", ContainerState::Exited), ("d", ContainerState::Running)]);
    assert_eq!(cache.store(&uid, 5, both.clone(), Acknowledge::AllButDeaths).1, [RuntimeChange::Started]);
    assert_eq!(cache.store(&uid, 6, both, Acknowledge::All).1, []);
}

#[test]
fn a_pod_that_is_gone_is_not_brought_back_by_an_earlier_read() {
    let cache = PodCache::default();
    let uid = "u".into();
    cache.list_ended();
    let _ = cache.store(&uid, 1, running(), Acknowledge::All);
    assert_eq!(cache.observed(&uid), Observed::Running);
    let changes = cache.store(&uid, 3, status(&[]), Acknowledge::All).1;
    assert_eq!(changes, [RuntimeChange::Died, RuntimeChange::Removed]);
    let _ = cache.store(&uid, 2, running(), Acknowledge::All);
    assert_eq!((cache.last(&uid), cache.observed(&uid)), (None, Observed::Stopped));
    let _ = cache.store(&uid, 4, running(), Acknowledge::All);
    assert_eq!(cache.observed(&uid), Observed::Running);
}

#[test]
fn a_vanished_pod_is_cached_until_its_death_is_reported() {
    let cache = PodCache::default();
    let uid = "u".into();
    let _ = cache.store(&uid, 1, running(), Acknowledge::All);
    let _ = cache.store(&uid, 2, status(&[]), Acknowledge::AllButDeaths);
    assert!(cache.last(&uid).is_some());
    assert_eq!(cache.store(&uid, 3, status(&[]), Acknowledge::All).1, [RuntimeChange::Died, RuntimeChange::Removed]);
    assert!(cache.last(&uid).is_none());
}

// POD-W14
#[test]
fn a_pod_that_was_never_read_is_not_reported_as_stopped() {
    let cache = PodCache::default();
    let uid = "u".into();
    assert_eq!(cache.observed(&uid), Observed::Never);
    cache.list_ended();
    assert_eq!(cache.observed(&uid), Observed::Stopped);
    cache.read_failed(&uid);
    assert_eq!(cache.observed(&uid), Observed::Never);
}

// POD-I8
#[test]
fn a_pod_may_run_unless_all_its_containers_are_known_not_to() {
    use ContainerState::{Created, Exited, Running, Unknown};
    let cache = PodCache::default();
    let uid = "u".into();
    assert!(cache.may_run(&uid), "the pod was never read");
    cache.list_ended();
    assert!(!cache.may_run(&uid), "the runtime does not have the pod");
    let rows: [(&[ContainerState], bool); 5] =
        [(&[Exited], false), (&[Created], false), (&[Running], true), (&[Unknown], true), (&[Exited, Unknown], true)];
    for (read, (states, expected)) in (1..).zip(rows) {
        let runs: Vec<_> = ["c", "d"].into_iter().zip(states.iter().copied()).collect();
        let _ = cache.store(&uid, read, status(&runs), Acknowledge::All);
        assert_eq!(cache.may_run(&uid), expected, "{states:?}");
    }
}

// POD-S90
#[test]
fn a_sandbox_that_ended_keeps_its_addresses() {
    let cache = PodCache::default();
    let uid = "u".into();
    let sandbox = |state, ips| SandboxStatus {
        id: "s".into(),
        attempt: 0,
        state,
        created_at: Time::ZERO,
        host_network: false,
        ips,
    };
    let with = |sandbox| PodRuntimeStatus { sandboxes: vec![sandbox], containers: Vec::new() };
    let address = vec!["10.0.0.7".parse().unwrap()];
    let _ = cache.store(&uid, 1, with(sandbox(SandboxState::Ready, address.clone())), Acknowledge::All);
    let (found, _) = cache.store(&uid, 2, with(sandbox(SandboxState::NotReady, vec![])), Acknowledge::All);
    assert_eq!(found.sandboxes[0].ips, address);
}
