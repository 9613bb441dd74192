//! The configurations whose states are explored.

use stateright::{Checker, Model};

use super::{Mutation, World};
use crate::claims::record::NeededClaim;
use crate::claims::tests::{allocated, needed};

/// Two pods share a claim of two drivers, and one of them has a claim of its own.
fn shared() -> Vec<Vec<NeededClaim>> {
    let cam = needed("cam", "c-1", &["a", "b"]);
    vec![vec![cam.clone(), needed("own", "c-2", &["a"])], vec![cam]]
}

/// The claim of the second pod has replaced that of the first one, under the same name.
fn replaced() -> Vec<Vec<NeededClaim>> {
    vec![vec![needed("cam", "c-1", &["a"])], vec![needed("cam", "c-9", &["a", "b"])]]
}

/// The second pod waits for the claim of the first one, while the third pod overtakes it.
fn overtaken() -> Vec<Vec<NeededClaim>> {
    let (cam, mic) = (needed("cam", "c-1", &["a"]), needed("mic", "c-2", &["a"]));
    vec![vec![cam.clone()], vec![cam, mic.clone()], vec![mic]]
}

/// The control plane has allocated another device to the claim after the first pod was deleted by force.
fn reallocated() -> Vec<Vec<NeededClaim>> {
    ["g0", "g1"].map(|device| vec![allocated("cam", "c-1", &["a"], device)]).into()
}

fn check(pods: Vec<Vec<NeededClaim>>, faults: u8, crashes: u8, give_ups: u8) -> usize {
    explore(World { pods, faults: faults + podwright_random::depth(), crashes, give_ups, losses: 0, mutation: None })
}

fn explore(world: World) -> usize {
    let checker = world.checker().threads(2).spawn_dfs().join();
    checker.assert_properties();
    checker.unique_state_count()
}

#[test]
fn shared_claims_keep_the_invariants() {
    let states = check(shared(), 1, 0, 0);
    eprintln!("{states} states");
    assert!(states > 1_000);
}

#[test]
fn replaced_claims_keep_the_invariants() {
    let states = check(replaced(), 1, 1, 0);
    eprintln!("{states} states");
    assert!(states > 1_000);
}

// Takes over 20 s: the calls of three pods with two claims come in any order, and the model computes without optimization.
#[test]
fn overtaken_prepares_keep_the_invariants() {
    let states = check(overtaken(), 0, 0, 0);
    eprintln!("{states} states");
    assert!(states > 1_000);
}

#[test]
fn reallocated_claims_keep_the_invariants() {
    let states = check(reallocated(), 1, 1, 0);
    eprintln!("{states} states");
    assert!(states > 1_000);
}

#[test]
fn claims_keep_the_invariants_over_a_crash() {
    let states = check(vec![vec![needed("cam", "c-1", &["a"])]; 2], 1, 1, 0);
    eprintln!("{states} states");
    assert!(states > 1_000);
}

/// An operator gives a driver up at any time, and the driver answers at any time after that.
// Takes over 20 s: it explores five configurations, and computes without optimization.
#[test]
fn given_up_drivers_keep_the_invariants() {
    for (pods, faults, crashes) in [
        (vec![vec![needed("cam", "c-1", &["a"])]; 2], 1, 0),
        (vec![vec![needed("cam", "c-1", &["a"])]; 2], 0, 1),
        (vec![vec![needed("cam", "c-1", &["a", "b"])]; 2], 0, 0),
        (replaced(), 0, 0),
        (reallocated(), 0, 0),
    ] {
        let states = check(pods, faults, crashes, 1);
        eprintln!("{states} states");
        assert!(states > 1_000);
    }
}

#[test]
fn lost_devices_keep_the_invariants() {
    let cam = vec![vec![needed("cam", "c-1", &["a"])]; 2];
    for (pods, faults, crashes) in [(cam.clone(), 1, 0), (cam, 0, 1), (shared(), 0, 0), (reallocated(), 1, 0)] {
        let states = explore(World { pods, faults, crashes, give_ups: 0, losses: 1, mutation: None });
        eprintln!("{states} states");
        assert!(states > 100);
    }
}

/// A step that calls a driver before the file is written, forgets a claim or a call too early, or does not notice that devices are lost,
/// breaks an invariant.
#[test]
fn broken_steps_break_an_invariant() {
    let broken = [
        (Mutation::CallsBeforeFile, 1, (1, 1, 0, 0)),
        (Mutation::ForgetsBeforeAnswer, 1, (1, 1, 0, 0)),
        (Mutation::ForgetsAbandonedCalls, 2, (0, 0, 1, 0)),
        (Mutation::IgnoresLostDevices, 1, (0, 0, 0, 1)),
    ];
    for (mutation, pods, (faults, crashes, give_ups, losses)) in broken {
        let pods = vec![vec![needed("cam", "c-1", &["a"])]; pods];
        let world = World { pods, faults, crashes, give_ups, losses, mutation: Some(mutation) };
        let checker = world.checker().spawn_dfs().join();
        let broken = checker.discoveries().keys().any(|name| *name != "all pods are gone");
        assert!(broken, "no invariant noticed the broken step");
    }
}
