//! Reads that overlap, and what is told of them.

use super::*;
use crate::ids::SandboxId;
use crate::ports::{ContainerState, ContainerStatus, SandboxStatus};
use crate::time::Time;

fn status(containers: &[(&str, ContainerState)]) -> PodRuntimeStatus {
    let container = |(id, state): &(&str, ContainerState)| ContainerStatus {
        id: (*id).into(),
        sandbox: SandboxId::from("s"),
        name: (*id).into(),
        restart_count: 0,
        state: *state,
        created_at: Time::ZERO,
        started_at: None,
        finished_at: None,
        exit_code: 0,
        signal: None,
        reason: String::new(),
        message: String::new(),
        spec_hash: 0,
        image: String::new(),
        image_id: String::new(),
    };
    PodRuntimeStatus { sandboxes: Vec::new(), containers: containers.iter().map(container).collect() }
}

fn running() -> PodRuntimeStatus {
    status(&[("c", ContainerState::Running)])
}

fn exited() -> PodRuntimeStatus {
    status(&[("c", ContainerState::Exited)])
}

#[test]
fn a_slow_read_does_not_overwrite_what_a_later_one_found() {
    let board = Board::default();
    let uid = "u".into();
    assert_eq!(board.keep(&uid, 1, running(), PassOn::All).1, [RuntimeChange::Started]);
    assert_eq!(board.keep(&uid, 3, exited(), PassOn::All).1, [RuntimeChange::Died]);
    let (found, changes) = board.keep(&uid, 2, running(), PassOn::All);
    assert_eq!((&*found, changes), (&exited(), vec![]));
    assert_eq!(*board.last(&uid).unwrap(), exited());
}

#[test]
fn a_death_that_the_caller_does_not_act_on_is_told_by_the_next_look_even_if_that_began_earlier() {
    let board = Board::default();
    let uid = "u".into();
    assert_eq!(board.keep(&uid, 1, running(), PassOn::NoDeaths).1, [RuntimeChange::Started]);
    assert_eq!(board.keep(&uid, 3, exited(), PassOn::NoDeaths).1, [RuntimeChange::Died]);
    assert_eq!(board.keep(&uid, 2, exited(), PassOn::All).1, [RuntimeChange::Died]);
    assert_eq!(board.keep(&uid, 4, exited(), PassOn::All).1, []);
    // Starts were passed on: nobody has to be told again.
    let both = status(&[("c", ContainerState::Exited), ("d", ContainerState::Running)]);
    assert_eq!(board.keep(&uid, 5, both.clone(), PassOn::NoDeaths).1, [RuntimeChange::Started]);
    assert_eq!(board.keep(&uid, 6, both, PassOn::All).1, []);
}

#[test]
fn a_pod_that_is_gone_is_not_brought_back_by_an_earlier_read() {
    let board = Board::default();
    let uid = "u".into();
    board.list_ended();
    let _ = board.keep(&uid, 1, running(), PassOn::All);
    assert_eq!(board.observed(&uid), Observed::Running);
    let gone = board.keep(&uid, 3, status(&[]), PassOn::All).1;
    assert_eq!(gone, [RuntimeChange::Died, RuntimeChange::Removed]);
    let _ = board.keep(&uid, 2, running(), PassOn::All);
    assert_eq!((board.last(&uid), board.observed(&uid)), (None, Observed::Stopped));
    let _ = board.keep(&uid, 4, running(), PassOn::All);
    assert_eq!(board.observed(&uid), Observed::Running);
}

#[test]
fn a_pod_that_vanished_unexpectedly_is_kept_until_that_was_told() {
    let board = Board::default();
    let uid = "u".into();
    let _ = board.keep(&uid, 1, running(), PassOn::All);
    let _ = board.keep(&uid, 2, status(&[]), PassOn::NoDeaths);
    assert!(board.last(&uid).is_some());
    assert_eq!(board.keep(&uid, 3, status(&[]), PassOn::All).1, [RuntimeChange::Died, RuntimeChange::Removed]);
    assert!(board.last(&uid).is_none());
}

// W14
#[test]
fn not_looked_yet_and_nothing_runs_are_different_answers() {
    let board = Board::default();
    let uid = "u".into();
    assert_eq!(board.observed(&uid), Observed::Never);
    board.list_ended();
    assert_eq!(board.observed(&uid), Observed::Stopped);
    board.failed(&uid);
    assert_eq!(board.observed(&uid), Observed::Never);
}

// S90
#[test]
fn a_sandbox_that_ended_keeps_its_addresses() {
    let board = Board::default();
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
    let _ = board.keep(&uid, 1, with(sandbox(SandboxState::Ready, address.clone())), PassOn::All);
    let (found, _) = board.keep(&uid, 2, with(sandbox(SandboxState::NotReady, vec![])), PassOn::All);
    assert_eq!(found.sandboxes[0].ips, address);
}
