//! Plans are made again from their recorded inputs.

use crate::containers::plan::{Plan, plan};
use crate::ids::{ContainerId, SandboxId};
use crate::ports::{ContainerState, ContainerStatus, PodRuntimeStatus, SandboxState, SandboxStatus};
use crate::probes::{ContainerProbes, ProbeResult, ProbeSnapshot};
use crate::recorder::Recorder;
use crate::replay::{Pick, replay};
use crate::testing::{created, pod};
use crate::time::Time;

fn exited(code: i32) -> PodRuntimeStatus {
    let at = Time::from_secs(900);
    let sandbox = SandboxStatus {
        id: SandboxId::from("s"),
        attempt: 0,
        state: SandboxState::Ready,
        created_at: at,
        host_network: false,
        ips: vec!["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
    };
    let run = ContainerStatus {
        id: ContainerId::from("c0"),
        state: ContainerState::Exited,
        created_at: at,
        started_at: Some(at),
        finished_at: Some(Time::from_secs(950)),
        exit_code: code,
        signal: Some(9),
        reason: "Error".to_owned(),
        spec_hash: 7,
        image: "i".to_owned(),
        image_id: "i".to_owned(),
        ..created("main")
    };
    PodRuntimeStatus { sandboxes: vec![sandbox], containers: vec![run] }
}

#[test]
fn a_plan_is_made_again_with_its_reason() {
    let recorder = Recorder::new(Recorder::SMALLEST);
    let object = pod("a").build();
    let said = ContainerProbes { liveness: Some(ProbeResult::Failure), ..ContainerProbes::default() };
    let probes = ProbeSnapshot::from([(ContainerId::from("c0"), said)]);
    let nothing = (PodRuntimeStatus::default(), ProbeSnapshot::new());
    for (second, (seen, probes)) in [nothing.clone(), nothing, (exited(3), probes)].into_iter().enumerate() {
        let at = Time::from_secs(1_000 + second as u64);
        recorder.planned(at, &object, &seen, &probes, &plan(&object, &seen, &probes));
    }
    let run = replay(&recorder.save(Time::from_secs(2_000)), &Pick::Uid("a".into())).unwrap();
    assert_eq!(run.difference, None);
    let events: Vec<_> = run.timeline.iter().map(|line| line.event.as_str()).collect();
    let expected = [
        "plan: create the first sandbox; start container main",
        "plan: start container main, attempt 2, because it exited with 3",
    ];
    assert_eq!(events, expected, "an equal plan is recorded once");
}

#[test]
fn a_replay_reports_a_plan_that_differs() {
    let recorder = Recorder::new(Recorder::SMALLEST);
    let object = pod("a").build();
    let seen = exited(3);
    recorder.planned(Time::from_secs(1), &object, &seen, &ProbeSnapshot::new(), &Plan::StopPod { kills: Vec::new() });
    let found = replay(&recorder.save(Time::from_secs(2)), &Pick::None).unwrap().difference.unwrap();
    assert_eq!(found.expected, "stop-pod kill=[]");
    assert_eq!(found.got, "keep sandbox=s kill=[] ephemeral=[] init=[] regular=[0]");
}

#[test]
fn a_recorded_plan_keeps_its_pod_after_older_segments_are_dropped() {
    let recorder = Recorder::new(Recorder::SMALLEST);
    let object = pod("a").build();
    for code in 0..2_000 {
        let seen = exited(code);
        let made = plan(&object, &seen, &ProbeSnapshot::new());
        recorder.planned(Time::from_secs(code as u64), &object, &seen, &ProbeSnapshot::new(), &made);
    }
    let run = replay(&recorder.save(Time::from_secs(3_000)), &Pick::None).unwrap();
    assert_eq!(run.difference, None);
    assert!(run.dropped > 1_500 && run.plans > 50, "{} {}", run.dropped, run.plans);
    assert_eq!(run.plans + run.dropped, 2_000);
}
