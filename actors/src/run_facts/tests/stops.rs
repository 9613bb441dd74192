//! Runs that stop, and their grace periods.

use super::*;
use crate::ids::FullName;
use crate::ports::RuntimePodContainer;

fn listed(runs: &[(&str, ContainerState)], grace: Option<u32>) -> RuntimePod {
    let containers = runs.iter().map(|(name, state)| RuntimePodContainer {
        id: (*name).into(),
        sandbox: "s".into(),
        name: (*name).into(),
        state: *state,
        attempt: 0,
        created_at: Time::ZERO,
    });
    RuntimePod {
        uid: uid(),
        full_name: FullName::new("ns", "p"),
        is_static: true,
        grace: grace.map(|seconds| Grace::from_seconds(seconds.into())),
        sandboxes: Vec::new(),
        containers: containers.collect(),
    }
}

#[tokio::test(start_paused = true)]
async fn pod_without_a_spec_has_the_rest_of_its_stop_or_else_its_own_grace_period() {
    use ContainerState::{Exited, Running, Unknown};
    let at = |millis: u64| Time::from_secs(1000) + Duration::from_millis(millis);
    let disk = Disk::default();
    let first = disk.agent();
    let limit = Duration::from_secs(30);
    first.stops(&uid(), &"a".into(), at(9_500), limit);
    first.stops(&uid(), &"b".into(), at(4_000), limit);
    // The clock was a year ahead, and is set back when the next agent reads it.
    first.stops(&uid(), &"ahead".into(), at(365 * 24 * 3600 * 1000 + 20_000), limit);
    first.stops(&uid(), &"failed".into(), at(9_500), limit);
    first.stop_ended(&uid(), &"failed".into());
    first.starts(&uid(), &"last".into()).await;
    let next = disk.agent();
    for (runs, own, expected) in [
        (&[("a", Running), ("b", Running)][..], Some(60), 10),
        (&[("b", Unknown)], None, 4),
        (&[("ahead", Running)], Some(60), 30),
        // This container was not asked to stop.
        (&[("a", Running), ("c", Running)], Some(60), 60),
        (&[("failed", Running)], Some(60), 60),
        // Neither the runtime nor an earlier agent says how long.
        (&[("c", Running)], None, 1),
        (&[("c", Exited)], Some(60), 1),
    ] {
        let grace = next.grace_of(&listed(runs, own), at(0));
        assert_eq!(grace.seconds(), expected, "{runs:?} {own:?}");
    }
    assert_eq!(next.grace_of(&listed(&[("a", Running)], Some(60)), at(60_000)), Grace::MIN, "the time is over");
    next.runs(&uid());
    assert_eq!(next.grace_of(&listed(&[("a", Running)], Some(60)), at(0)).seconds(), 60, "the pod runs again");
}

#[tokio::test(start_paused = true)]
async fn stop_that_is_called_again_writes_nothing() {
    let facts = RunFacts::in_memory();
    let at = |millis: u64| Time::from_secs(1000) + Duration::from_millis(millis);
    facts.stops(&uid(), &"a".into(), at(30_000), Duration::from_secs(30));
    let version = facts.kept.lock().lines.version();
    facts.stops(&uid(), &"a".into(), at(30_001), Duration::from_secs(29));
    assert_eq!(facts.kept.lock().lines.version(), version);
    // A shorter grace period.
    facts.stops(&uid(), &"a".into(), at(5_000), Duration::from_secs(5));
    assert_eq!(facts.rest_of_stop(&uid(), &"a".into(), at(0)), Some(Duration::from_secs(5)));
}
