//! What the readers of a pod observe of its runs: the ends of starts, and the results of probes.

use k8s_openapi::api::core::v1::{Container, Lifecycle, LifecycleHandler};
use podwright_fixtures::containers::{named, pod};

use super::*;
use crate::probes::{ContainerProbes, ProbeResult};

#[tokio::test(start_paused = true)]
async fn container_with_a_post_start_hook_is_observed_as_running_once_its_start_has_ended() {
    let post_start = Some(LifecycleHandler::default());
    let lifecycle = Lifecycle { post_start, ..Lifecycle::default() };
    let hooked = |name: &str| Container { lifecycle: Some(lifecycle.clone()), ..named(name) };
    let pod = pod("Always", Vec::new(), vec![hooked("a"), hooked("b"), hooked("c"), named("plain")]);
    let facts = RunFacts::in_memory();
    let runs = status(&[("a", Is::Running), ("b", Is::Running), ("c", Is::Exited(0)), ("plain", Is::Running)]);
    for name in ["a", "c", "plain"] {
        facts.starts(pod.uid(), &name.into()).await;
    }
    let states = || facts.observable(&pod, &runs).containers.iter().map(|run| run.state).collect::<Vec<_>>();
    use ContainerState::{Created, Exited, Running};
    assert_eq!(states(), [Created, Running, Exited, Running]);
    facts.start_ended(pod.uid(), &"a".into());
    assert_eq!(states(), [Running, Running, Exited, Running]);
}

#[tokio::test(start_paused = true)]
async fn results_of_probes_are_those_of_the_same_run_while_it_runs() {
    use ProbeResult::{Failure, Success};
    let disk = Disk::default();
    let first = disk.agent();
    for (name, kind, passed) in [
        ("a", ProbeKind::Startup, true),
        ("a", ProbeKind::Readiness, true),
        ("b", ProbeKind::Readiness, true),
        ("b", ProbeKind::Readiness, false),
        ("ended", ProbeKind::Readiness, true),
        ("alive", ProbeKind::Liveness, true),
    ] {
        first.probed(&uid(), &name.into(), kind, passed);
    }
    first.starts(&uid(), &"last".into()).await;
    let next = disk.agent();
    let names = ["a", "b", "alive", "new"];
    let runs = status(&[
        ("a", Is::Running),
        ("b", Is::Running),
        ("alive", Is::Running),
        ("new", Is::Running),
        ("ended", Is::Exited(1)),
    ]);
    next.observe(&uid(), Arc::new(runs.clone()), Time::ZERO);
    let results = |mut probes: ProbeSnapshot| {
        next.complete(&uid(), &runs, &mut probes);
        names.map(|name| probes.get(&ContainerId::from(name)).map(|of| (of.startup, of.readiness)))
    };
    let none = ProbeSnapshot::new();
    assert_eq!(results(none), [Some((Some(Success), Some(Success))), Some((None, Some(Failure))), None, None]);
    let later = ContainerProbes { readiness: Some(Failure), ..ContainerProbes::default() };
    assert_eq!(results([("a".into(), later)].into())[0], Some((Some(Success), Some(Failure))), "a later result counts");
    let restarted = of(vec![run("ended", Is::Running)]);
    let mut probes = ProbeSnapshot::new();
    next.complete(&uid(), &restarted, &mut probes);
    assert!(probes.is_empty(), "the fact of an exited run is gone");
}
