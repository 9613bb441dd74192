//! The faults that only a simulation of the adapters has.

use std::time::Duration;

use super::when;
use crate::rng::Rng;
use crate::scenario::{Fault, Moment, Op, Source, Step, StepAction, Window};

/// Draws faults of the requests to the API server.
pub(super) fn requests(rng: &mut Rng, steps: &mut Vec<Step>) {
    use Op::{CreatePod, DeletePod, NodeApi, PatchStatus, ReadPods, WriteEvent};
    for _ in 0..rng.pick(&[0, 1, 2, 3, 5]) {
        let op = rng.pick(&[PatchStatus, PatchStatus, DeletePod, CreatePod, NodeApi, ReadPods, ReadPods, WriteEvent]);
        let long = rng.pick(&[100, 3_000, 15_000, 60_000]);
        let time = rng.millis(1, long);
        let fault = match rng.below(8) {
            0 => Fault::Error,
            1 | 2 => Fault::ErrorAfter,
            3 => Fault::Slow(time),
            4 => Fault::Late(time),
            5 => Fault::Panic,
            6 => Fault::PanicAfter,
            _ => Fault::Refuses,
        };
        let (lasts, percent) = (rng.millis(500, 90_000), rng.pick(&[20, 50, 100]));
        let window = Window { lasts, op: Some(op), pod: None, fault, percent };
        steps.push(Step { at: when(rng), what: StepAction::Fault(window) });
    }
}

/// Draws faults of the watch of pods, and absences of the API server. Several of them may overlap.
pub(super) fn watches(rng: &mut Rng, steps: &mut Vec<Step>) {
    for _ in 0..rng.pick(&[0, 1, 2, 4, 8]) {
        let what = match rng.below(6) {
            0 | 1 => StepAction::Relist(Source::Api),
            2 => StepAction::Repeat(Source::Api),
            3 => StepAction::Mute(Source::Api, rng.millis(1_000, 60_000)),
            4 => StepAction::Empty(Source::Api, rng.millis(1_000, 45_000)),
            _ => StepAction::Away(rng.millis(100, 45_000)),
        };
        steps.push(Step { at: when(rng), what });
    }
}

/// Draws requests during which the agent is killed.
pub(super) fn crashes(rng: &mut Rng, steps: &mut Vec<Step>) {
    for _ in 0..rng.pick(&[0, 0, 1, 2]) {
        let op = rng.pick(&[Op::PatchStatus, Op::PatchStatus, Op::DeletePod, Op::CreatePod, Op::NodeApi, Op::ReadPods]);
        let moment = rng.pick(&[Moment::Begin, Moment::End]);
        let down = rng.pick(&[Duration::ZERO, Duration::from_secs(1), Duration::from_secs(20)]);
        steps.push(Step { at: when(rng), what: StepAction::CrashIn { op, moment, down } });
    }
}
