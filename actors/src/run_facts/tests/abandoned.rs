//! Runs whose start an earlier agent requested, and that never started.

use super::*;

#[tokio::test(start_paused = true)]
async fn run_that_never_started_is_abandoned_only_if_an_earlier_agent_was_starting_it() {
    let disk = Disk::default();
    let first = disk.agent();
    for name in ["a", "b", "c"] {
        first.starts(&uid(), &name.into()).await;
    }
    first.starts(&uid(), &"hooked".into()).await;
    first.hook_failed(&uid(), &"hooked".into());
    first.start_ended(&uid(), &"b".into());
    // The file has every change before this one.
    first.starts(&uid(), &"d".into()).await;
    let (c, hooked) = (run("c", Is::Exited(128)), never_started("hooked"));
    let all = of(vec![never_started("a"), never_started("b"), c, hooked, never_started("e")]);
    let next = disk.agent();
    assert_eq!(next.start_of(&uid(), &"a".into()), Some(StartFact::Requested));
    assert_eq!(next.start_of(&uid(), &"hooked".into()), Some(StartFact::HookFailed));
    assert_eq!(observe(&next, "u", &all), (names(&["b", "c", "hooked", "e"]), names(&["a"])));
    assert_eq!(observe(&next, "another", &all), (names(&["a", "b", "c", "hooked", "e"]), names(&[])));

    // Its own start failed.
    assert_eq!(observe(&first, "u", &all), (names(&["a", "b", "c", "hooked", "e"]), names(&[])));
}

#[tokio::test(start_paused = true)]
async fn run_with_a_successor_is_not_abandoned() {
    let disk = Disk::default();
    disk.agent().starts(&uid(), &"a".into()).await;
    let newer = ContainerStatus { name: "a".into(), ..run("a2", Is::Running) };
    let status = of(vec![newer, never_started("a")]);
    assert_eq!(observe(&disk.agent(), "u", &status), (names(&["a2", "a"]), names(&[])));
}

#[tokio::test(start_paused = true)]
async fn abandoned_start_that_is_repeated_stays_abandoned_until_it_ends() {
    let disk = Disk::default();
    disk.agent().starts(&uid(), &"a".into()).await;
    let next = disk.agent();
    // The start of the dead agent may still be under way when the next agent starts the run.
    next.starts(&uid(), &"a".into()).await;
    let ended = of(vec![never_started("a")]);
    assert_eq!(observe(&next, "u", &ended), (names(&[]), names(&["a"])));
    next.start_ended(&uid(), &"a".into());
    assert_eq!(observe(&next, "u", &ended), (names(&["a"]), names(&[])));
}
