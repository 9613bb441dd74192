//! The parts of a scenario that are drawn last, so that the steps of a seed before them stay the same: claims, watches, resizes and
//! restarts.

use std::time::Duration;

use super::when;
use crate::devices::Absence;
use crate::rng::Rng;
use crate::scenario::{
    ClaimPlan, Fault, Moment, Op, PodIndex, PodPlan, ResizePlan, Resources, Source, Step, StepAction, Window,
};

/// Draws faults of watches, and jumps of the clock.
pub(super) fn watches(rng: &mut Rng, pods: &[PodPlan], steps: &mut Vec<Step>) {
    for _ in 0..rng.pick(&[0, 0, 1, 1, 2, 4]) {
        let which = rng.below(pods.len());
        let lasts = rng.pick(&[200, 1_000, 5_000, 60_000]);
        let what = StepAction::LoseChanges(which, rng.millis(1, lasts));
        // A loss shortly before a change of the pod, which is then lost.
        let changes: Vec<Duration> = steps.iter().filter(|step| step.what.changes(which)).map(|step| step.at).collect();
        let before = rng.millis(0, 300);
        let at =
            if changes.is_empty() || rng.percent(20) { when(rng) } else { rng.pick(&changes).saturating_sub(before) };
        steps.push(Step { at, what });
    }
    for (which, _) in pods.iter().enumerate().filter(|(_, pod)| pod.source == Source::File) {
        if rng.percent(30) {
            steps.push(Step { at: when(rng), what: StepAction::DeleteMirror(which) });
        }
    }
    for _ in 0..rng.pick(&[0, 0, 1, 2]) {
        let op = rng.pick(&[Op::PatchStatus, Op::PatchStatus, Op::DeletePod, Op::CreatePod, Op::NodeApi]);
        let long = rng.pick(&[100, 3_000, 15_000, 60_000]);
        let time = rng.millis(1, long);
        let fault = match rng.below(8) {
            0 | 1 => Fault::Error,
            2 | 3 => Fault::ErrorAfter,
            4 => Fault::Slow(time),
            5 => Fault::Late(time),
            6 => Fault::Panic,
            _ => Fault::PanicAfter,
        };
        let (lasts, percent) = (rng.millis(500, 90_000), rng.pick(&[20, 50, 100]));
        let window = Window { lasts, op: Some(op), pod: None, fault, percent };
        steps.push(Step { at: when(rng), what: StepAction::Fault(window) });
    }
    if rng.percent(20) {
        let (mut at, source) = (when(rng), rng.pick(&[Source::File, Source::Api, Source::Api]));
        for _ in 0..=rng.below(12) {
            steps.push(Step { at, what: StepAction::Relist(source) });
            at += rng.millis(0, 1_500);
        }
    }
    if rng.percent(15) {
        let by = rng.pick(&[2, 30, 3_600, 30 * 86_400]);
        steps.push(Step { at: when(rng), what: StepAction::ClockJump(Duration::from_secs(by)) });
    }
}

/// Makes pods of the API server resizable in a third of the scenarios, and draws their resizes.
pub(super) fn resizes(rng: &mut Rng, pods: &mut [PodPlan], steps: &mut Vec<Step>) {
    if !rng.percent(35) {
        return;
    }
    for (which, pod) in pods.iter_mut().enumerate() {
        if pod.source != Source::Api || rng.percent(20) {
            continue;
        }
        let first = resources(rng);
        pod.resize = Some(ResizePlan {
            first,
            cpu_restarts: rng.percent(25),
            memory_restarts: rng.percent(25),
            is_whole: false,
            has_init: false,
        });
        for _ in 0..rng.pick(&[1, 1, 2, 3, 6]) {
            steps.push(Step { at: when(rng), what: StepAction::Resize(which, resources(rng)) });
        }
    }
    for _ in 0..rng.pick(&[0, 0, 1, 2, 3]) {
        let long = rng.pick(&[100, 3_000, 15_000, 60_000]);
        let time = rng.millis(1, long);
        let fault = match rng.below(8) {
            0 | 1 => Fault::Error,
            2 => Fault::ErrorAfter,
            3 => Fault::Slow(time),
            4 => Fault::Late(time),
            5 => Fault::Refuses,
            6 => Fault::Panic,
            _ => Fault::PanicAfter,
        };
        let (lasts, percent) = (rng.millis(500, 90_000), rng.pick(&[20, 50, 100]));
        let window = Window { lasts, op: Some(Op::UpdateContainer), pod: None, fault, percent };
        steps.push(Step { at: when(rng), what: StepAction::Fault(window) });
    }
    for _ in 0..rng.pick(&[0, 0, 1, 2]) {
        let op = rng.pick(&[Op::UpdateContainer, Op::SaveAllocations]);
        let moment = rng.pick(&[Moment::Begin, Moment::End]);
        let down = rng.pick(&[Duration::ZERO, Duration::from_secs(1), Duration::from_secs(20)]);
        steps.push(Step { at: when(rng), what: StepAction::CrashIn { op, moment, down } });
    }
}

/// Gives resources of the pod as a whole to some of the pods that can be resized.
pub(super) fn whole_pods(rng: &mut Rng, pods: &mut [PodPlan]) {
    for resize in pods.iter_mut().filter_map(|pod| pod.resize.as_mut()) {
        resize.is_whole = rng.percent(40);
    }
}

/// Gives resources to the init containers of some of the pods that can be resized.
pub(super) fn init_resources(rng: &mut Rng, pods: &mut [PodPlan]) {
    for resize in pods.iter_mut().filter_map(|pod| pod.resize.as_mut()) {
        resize.has_init = rng.percent(40);
    }
}

/// Draws kills of the agent in the calls that the next agent has to continue.
pub(super) fn restarts(rng: &mut Rng, steps: &mut Vec<Step>) {
    if !rng.percent(30) {
        return;
    }
    for _ in 0..rng.pick(&[1, 1, 2, 3]) {
        let op = rng.pick(&[Op::Start, Op::Start, Op::Exec, Op::Stop, Op::SaveRunFacts]);
        let moment = rng.pick(&[Moment::Begin, Moment::Begin, Moment::End]);
        let down = rng.pick(&[Duration::ZERO, Duration::from_secs(1), Duration::from_secs(20)]);
        let at = if rng.percent(30) { Duration::ZERO } else { when(rng) };
        steps.push(Step { at, what: StepAction::CrashIn { op, moment, down } });
    }
}

/// A part of each time by which the clock is set back. Two agents that read the same time to the nanosecond would give two events one name.
const FRACTION: Duration = Duration::from_nanos(123_457);

/// Draws kills of the agent after which the clock of the machine is set back.
pub(super) fn set_backs(rng: &mut Rng, steps: &mut Vec<Step>) {
    if !rng.percent(10) {
        return;
    }
    for _ in 0..rng.pick(&[1, 1, 2]) {
        let by = Duration::from_secs(rng.pick(&[2, 30, 90, 3_600])) + FRACTION;
        let down = rng.pick(&[Duration::ZERO, Duration::from_secs(1), Duration::from_secs(20)]);
        steps.push(Step { at: when(rng), what: StepAction::SetBack { by, down } });
    }
}

fn resources(rng: &mut Rng) -> Resources {
    Resources { cpu: rng.pick(&[100, 300, 1_000, 2_000, 3_500]), memory: rng.pick(&[16, 64, 256, 700]) }
}

/// The number of DRA drivers.
const DRIVERS: usize = 2;

/// Gives claims to the pods of the API server in half of the scenarios, and draws the faults of their drivers.
pub(super) fn claims(rng: &mut Rng, pods: &mut [PodPlan], steps: &mut Vec<Step>) -> Vec<ClaimPlan> {
    let mut claims = Vec::new();
    if rng.percent(50) {
        return claims;
    }
    let users: Vec<PodIndex> = (0..pods.len()).filter(|which| pods[*which].source == Source::Api).collect();
    for n in 0..=rng.below(3) {
        let drivers: &[usize] = rng.pick(&[&[0], &[1], &[0, 1]]);
        let is_own = rng.percent(30);
        let owner = if is_own && !users.is_empty() { Some(rng.pick(&users)) } else { None };
        for which in &users {
            if owner == Some(*which) || (owner.is_none() && rng.percent(70)) {
                pods[*which].claims.push(n);
            }
        }
        claims.push(ClaimPlan { name: format!("k{n}"), drivers: drivers.to_vec(), owner });
    }
    for _ in 0..rng.pick(&[0, 0, 1, 2, 3]) {
        let (driver, lasts) = (rng.below(DRIVERS), rng.millis(500, 60_000));
        let absence = rng.pick(&[Absence::Deregistered, Absence::Unreachable]);
        steps.push(Step { at: when(rng), what: StepAction::DriverLeaves { driver, lasts, absence } });
    }
    for _ in 0..rng.pick(&[0, 1, 2, 4]) {
        let window = claim_window(rng);
        steps.push(Step { at: when(rng), what: StepAction::Fault(window) });
    }
    for _ in 0..rng.pick(&[0, 0, 1, 2, 3]) {
        let op = rng.pick(&[Op::Prepare, Op::Unprepare, Op::AppendClaims, Op::AppendClaims]);
        let moment = match op {
            Op::AppendClaims => rng.pick(&[Moment::Begin, Moment::Middle, Moment::End]),
            _ => rng.pick(&[Moment::Begin, Moment::End]),
        };
        let down = rng.pick(&[Duration::ZERO, Duration::from_secs(1), Duration::from_secs(20)]);
        let at = if rng.percent(50) { Duration::ZERO } else { when(rng) };
        steps.push(Step { at, what: StepAction::CrashIn { op, moment, down } });
    }
    claims
}

fn claim_window(rng: &mut Rng) -> Window {
    let op = rng.pick(&[Op::ReadClaim, Op::Prepare, Op::Prepare, Op::Unprepare, Op::Unprepare, Op::AppendClaims]);
    let long = rng.pick(&[100, 3_000, 15_000, 60_000]);
    let time = rng.millis(1, long);
    let fault = match (op, rng.below(10)) {
        (_, 0 | 1) => Fault::Error,
        (_, 2) => Fault::ErrorAfter,
        (_, 3) => Fault::Slow(time),
        (_, 4) => Fault::Late(time),
        (_, 5) => rng.pick(&[Fault::Panic, Fault::PanicAfter]),
        (Op::Prepare | Op::Unprepare, 6) => Fault::Omits,
        (Op::Prepare | Op::Unprepare, 7) => Fault::OtherClaim,
        (Op::Prepare, 8) => Fault::OtherDevices,
        _ => Fault::Refuses,
    };
    let percent = rng.pick(&[20, 50, 100]);
    Window { lasts: rng.millis(500, 90_000), op: Some(op), pod: None, fault, percent }
}
