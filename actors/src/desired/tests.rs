use super::*;
use crate::ports::SourceSet;
use crate::testing::pod;

fn set(source: SourceKind, pods: Vec<Arc<PodObject>>) -> SourceUpdate {
    SourceSet { source, pods, problems: Vec::new() }.into()
}

fn apply(desired: &DesiredPods, update: SourceUpdate) -> Vec<SourceProblem> {
    let (_, _, new_problems) = desired.lock().apply(update);
    new_problems
}

#[test]
fn static_pods_do_not_wait_for_the_api_server() {
    let desired = DesiredPods::new([SourceKind::Api, SourceKind::File, SourceKind::Http]);
    let (of_file, of_api) = (pod("a").static_pod().build(), pod("b").build());
    let ready = || {
        let desired = desired.lock();
        [desired.is_ready(), desired.is_ready_for(&of_file), desired.is_ready_for(&of_api)]
    };
    assert_eq!(ready(), [false, false, false]);
    apply(&desired, set(SourceKind::File, vec![of_file.clone()]));
    assert_eq!(ready(), [false, false, false], "another source may have a static pod of the same name");
    apply(&desired, set(SourceKind::Http, vec![]));
    assert_eq!(ready(), [false, true, false]);
    apply(&desired, set(SourceKind::Api, vec![of_api.clone()]));
    assert_eq!(ready(), [true, true, true]);
}

#[test]
fn a_source_is_missing_until_its_first_set_and_never_again() {
    let desired = DesiredPods::new([SourceKind::File]);
    let problem = SourceProblem {
        what: "/manifests".to_owned(),
        message: "it cannot be read".to_owned(),
        pods: Vec::new(),
        severity: Severity::Fault,
    };
    let not_yet = || SourceUpdate::NotYet { source: SourceKind::File, problems: vec![problem.clone()] };
    let reasons = || desired.missing_sources().iter().map(MissingSource::reason).collect::<Vec<_>>();
    assert_eq!(reasons(), [""]);
    assert_eq!(apply(&desired, not_yet()), std::slice::from_ref(&problem));
    assert!(apply(&desired, not_yet()).is_empty(), "a problem is new only once");
    assert_eq!(reasons(), [" (/manifests: it cannot be read)"]);

    apply(&desired, set(SourceKind::File, vec![]));
    assert!(reasons().is_empty() && desired.problems().is_empty() && desired.is_ready());
    // A source that has delivered cannot go back.
    assert!(apply(&desired, not_yet()).is_empty());
    assert!(reasons().is_empty() && desired.problems().is_empty() && desired.is_ready());
}

#[test]
fn pods_of_an_update_that_waits_for_the_runtime_are_shown_until_it_is_applied() {
    let desired = DesiredPods::new([SourceKind::File]);
    let a = pod("a").static_pod().build();
    let held = || desired.pods_and_held().1.iter().map(|pod| pod.uid().to_string()).collect::<Vec<_>>();
    desired.lock().hold(&set(SourceKind::File, vec![a.clone()]));
    assert_eq!(held(), ["a"]);
    let reasons: Vec<String> = desired.missing_sources().iter().map(MissingSource::reason).collect();
    assert_eq!(reasons, [" (its pods wait for the container runtime)"]);

    apply(&desired, set(SourceKind::File, vec![a.clone()]));
    assert!(held().is_empty() && desired.missing_sources().is_empty());
}
