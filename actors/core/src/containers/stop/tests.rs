use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Probe};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::*;
use crate::pod::PodObject;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn pod(spec_grace: Option<i64>, deletion_grace: Option<i64>, init: Vec<Container>) -> std::sync::Arc<PodObject> {
    PodObject::new(Pod {
        metadata: ObjectMeta {
            name: Some("p".into()),
            namespace: Some("n".into()),
            uid: Some("u".into()),
            deletion_grace_period_seconds: deletion_grace,
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            termination_grace_period_seconds: spec_grace,
            init_containers: Some(init),
            containers: vec![named("main"), named("other")],
            ..PodSpec::default()
        }),
        status: None,
    })
    .unwrap()
}

fn named(name: &str) -> Container {
    Container { name: name.into(), ..Container::default() }
}

fn sidecar(name: &str) -> Container {
    Container { restart_policy: Some("Always".into()), ..named(name) }
}

// POD-S68
#[test]
fn grace_period_precedence_is_forced_deletion_probe_spec() {
    use KillReason::*;
    let probe = |seconds| Some(Probe { termination_grace_period_seconds: seconds, ..Probe::default() });
    //   (spec, deletion, override, reason, liveness grace, startup grace) -> grace
    let table = [
        ((None, None, None, PodStops, None, None), 2),
        ((Some(60), None, None, PodStops, None, None), 60),
        ((Some(60), None, None, LivenessFailed, Some(10), None), 10),
        ((Some(10), None, None, LivenessFailed, Some(60), None), 60),
        ((Some(10), None, None, StartupFailed, Some(60), Some(7)), 7),
        ((Some(10), None, None, LivenessFailed, None, Some(7)), 10),
        ((Some(10), None, None, PodStops, Some(60), Some(60)), 10),
        ((Some(10), None, None, HashChanged, Some(60), Some(60)), 10),
        ((None, None, None, LivenessFailed, Some(60), None), 2),
        ((Some(60), Some(5), None, LivenessFailed, Some(10), None), 5),
        ((Some(60), Some(5), Some(1), LivenessFailed, Some(10), None), 1),
        ((Some(60), Some(0), None, PodStops, None, None), 0),
        ((Some(60), Some(-3), None, PodStops, None, None), 0),
    ];
    for ((spec, deletion, over, reason, liveness, startup), expected) in table {
        let pod = pod(spec, deletion, Vec::new());
        let container = Container { liveness_probe: probe(liveness), startup_probe: probe(startup), ..named("main") };
        let definition = Definition::Regular(&container);
        let got = grace(Some(&pod), Some(&definition), reason, over.map(secs));
        assert_eq!(got, secs(expected), "{spec:?} {deletion:?} {over:?} {reason:?} {liveness:?} {startup:?}");
    }
    assert_eq!(grace(None, None, PodStops, None), SHORTEST_STOP);
}

// POD-S70
#[test]
fn sidecars_wait_for_regular_containers_and_for_later_sidecars() {
    let pod = pod(Some(30), None, vec![sidecar("one"), named("setup"), sidecar("two"), sidecar("three")]);
    assert_eq!(waits_for(&pod, "three"), ["main", "other"]);
    assert_eq!(waits_for(&pod, "two"), ["main", "other", "three"]);
    assert_eq!(waits_for(&pod, "one"), ["main", "other", "two", "three"]);
    for name in ["main", "other", "setup", "absent"] {
        assert!(waits_for(&pod, name).is_empty(), "{name}");
    }
}
