//! The queries, in every lifecycle state of a pod.

use super::*;
use crate::ports::Observed;
use crate::testing::{Gate, pod};

/// The answers of the seven queries by UID.
fn answers(engine: &Engine, uid: &PodUid) -> [bool; 7] {
    [
        engine.is_pod_known_terminated(uid),
        engine.could_have_running_containers(uid),
        engine.should_pod_be_finished(uid),
        engine.is_pod_termination_requested(uid),
        engine.should_pod_containers_be_terminating(uid),
        engine.should_pod_runtime_be_removed(uid),
        engine.should_pod_content_be_removed(uid),
    ]
}

fn yes(rows: &str) -> [bool; 7] {
    let mut out = [false; 7];
    for (answer, mark) in out.iter_mut().zip(rows.chars()) {
        *answer = mark == 'y';
    }
    out
}

// KF5
#[actix::test]
async fn queries_depend_only_on_the_lifecycle_state() {
    let rig = rig();
    let unknown = PodUid::new("unknown");
    assert_eq!(answers(&rig.engine, &unknown), yes("ny.....".replace('.', "n").as_str()), "A: unknown, not synced");
    rig.known(&[]);
    assert_eq!(answers(&rig.engine, &unknown), yes("nnynyyy"), "B: unknown, synced");

    for (evict, deleted, terminating, terminated) in
        [(false, false, 'n', 'n'), (false, true, 'n', 'y'), (true, false, 'y', 'y')]
    {
        let a = pod(&format!("evict {evict}, deleted {deleted}")).build();
        let uid = a.uid();
        let gate = rig.hooks.waits(uid, Hook::Terminating);
        rig.hooks.fails(uid, Hook::Terminated, 1);
        rig.engine.update_pod(Update::create(a.clone()));
        assert_eq!(answers(&rig.engine, uid), yes("nynnnnn"), "C: waiting");
        rig.settled().await;
        assert_eq!(answers(&rig.engine, uid), yes("nynnnnn"), "C: sync");

        let hold = rig.engine.hold(uid).unwrap();
        let name = uid.to_string();
        let last = if deleted { pod(&name).deleting(9).build() } else { a.clone() };
        let options = KillOptions { evict, ..KillOptions::default() };
        rig.engine.update_pod(Update::kill(last).with_options(options));
        assert_eq!(answers(&rig.engine, uid), yes(&format!("nynynn{terminating}")), "D: requested");
        drop(hold);
        let_workers_run().await;
        assert_eq!(answers(&rig.engine, uid), yes(&format!("nynyyn{terminating}")), "E: terminating");
        gate.open();
        rig.settled().await;
        assert_eq!(answers(&rig.engine, uid), yes(&format!("ynnyyy{terminated}")), "F: terminated");
        pass_secs(20).await;
        assert_eq!(answers(&rig.engine, uid), yes(&format!("ynyyyy{terminated}")), "G: finished");
    }
}

// KF5, POD-S32, POD-S33
#[actix::test]
async fn unknown_pods_count_as_finished_only_after_the_first_sync_known_pods() {
    let rig = rig();
    let name = |n: usize| format!("pod {n}");
    for n in 0..20 {
        rig.engine.update_pod(Update::create(pod(&name(n)).build()));
    }
    rig.settled().await;
    for n in 2..20 {
        let doomed = if n % 2 == 0 { pod(&name(n)).deleting(1) } else { pod(&name(n)) };
        rig.engine.update_pod(Update::kill(doomed.build()));
    }
    rig.settled().await;
    for n in 0..20 {
        let uid = PodUid::new(&name(n));
        assert_eq!(rig.engine.could_have_running_containers(&uid), n < 2);
        assert_eq!(rig.engine.should_pod_content_be_removed(&uid), n >= 2 && n % 2 == 0);
    }
    let abc = PodUid::new("abc");
    assert!(rig.engine.could_have_running_containers(&abc));
    assert!(!rig.engine.should_pod_runtime_be_removed(&abc));

    assert_eq!(rig.known_uids(&["pod 0", "pod 1"]), ["pod 0", "pod 1"]);
    assert_eq!(rig.engine.known_pods(), 2);
    assert!(!rig.engine.could_have_running_containers(&abc));
    assert!(rig.engine.should_pod_containers_be_terminating(&abc));
    assert!(rig.engine.should_pod_be_finished(&abc) && rig.engine.should_pod_content_be_removed(&abc));
    assert!(rig.engine.should_pod_content_be_removed(&name(5).as_str().into()), "the pod is unknown now");
}

// A mirror pod stays until its static pod has stopped.
#[actix::test]
async fn mirror_pod_is_kept_while_its_static_pod_is_terminating() {
    let rig = rig();
    let target = pod("web").uid("1").static_pod().build();
    let name = target.full_name();
    let terminating = || rig.engine.is_pod_for_mirror_terminating(name);
    assert!(!terminating());
    rig.run(&target).await;
    rig.run(&pod("web").uid("2").static_pod().build()).await;
    assert!(!terminating());
    let gate: Gate = rig.hooks.waits(target.uid(), Hook::Terminating);
    rig.hooks.fails(target.uid(), Hook::Terminated, 1);
    rig.engine.update_pod(Update::kill(target.clone()));
    assert!(terminating());
    let_workers_run().await;
    assert!(terminating());
    gate.open();
    rig.settled().await;
    assert!(!terminating());
    pass_secs(20).await;
    assert!(!terminating());
}

#[actix::test]
async fn unterminated_pods_are_those_that_started_and_have_not_stopped() {
    let rig = rig();
    let names = |rig: &Rig| {
        let mut names: Vec<_> = rig.engine.unterminated_pods().iter().map(|pod| pod.uid().to_string()).collect();
        names.sort();
        names
    };
    rig.view.shows(&"ended".into(), Observed::Stopped);
    let pods = [
        pod("api").build(),
        pod("web").uid("1").static_pod().build(),
        pod("web").uid("2").static_pod().build(),
        pod("ended").phase("Failed").build(),
    ];
    for pod in &pods {
        rig.run(pod).await;
    }
    assert_eq!(names(&rig), ["1", "api"]);
    let gate = rig.hooks.waits(&"api".into(), Hook::Terminating);
    rig.engine.update_pod(Update::kill(pods[0].clone()));
    let_workers_run().await;
    assert_eq!(names(&rig), ["1", "api"], "an orphan occupies the node too (POD-W1)");
    gate.open();
    rig.settled().await;
    assert_eq!(names(&rig), ["1"]);
}
