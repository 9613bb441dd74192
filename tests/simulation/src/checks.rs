//! Invariants: functions that check the state of the simulation at one time.

mod claims;
mod containers;
mod end_states;
mod generation;
mod resources;
mod restarts;
mod samples;
mod starts;
mod statuses;
mod stops;
mod writes;

use std::collections::BTreeMap;

use podwright_core::pod_worker::Lifecycle;
use podwright_engine::PodSnapshot;
use podwright_model::ids::PodUid;
use podwright_model::time::Time;
use podwright_ports::PodRuntimeStatus;

use super::clock::SimClock;
use super::container_resources::Amounts;
use super::container_runs::ContainerRun;
use super::machine::{ActiveCall, CallDetail, PodView};
use super::scenario::{Kind, Op, PodPlan};

pub(super) use claims::{claims, claims_are_released};
pub(super) use containers::containers_are_shown;
pub(super) use end_states::{drained, final_statuses_are_stored, settled};
pub(super) use generation::generation_is_decided;
pub(super) use resources::{LACKS, fits_later, fits_the_machine};
pub(super) use restarts::{
    cancelled_starts_are_no_runs, post_start_hooks_have_run, ready_containers_stay_ready,
    succeeded_pods_have_completed_their_work,
};
pub(super) use samples::{Samples, exits_are_noticed};
pub(super) use statuses::is_written;
pub(super) use writes::{ended_pod_is_not_ready, readiness_is_of_one_state, times_have_passed, transition_times_stay};

/// `Err` describes the violation.
pub(super) type CheckResult = Result<(), String>;

/// What is known when a call begins.
pub(super) struct CallContext<'a> {
    pub(super) now: Time,
    pub(super) life: u32,
    pub(super) uid: &'a PodUid,
    pub(super) op: Op,
    pub(super) about: &'a CallDetail,
    /// The pod as the engine sees it.
    pub(super) view: Option<&'a PodView>,
    /// The pod as the runtime really has it.
    pub(super) status: &'a PodRuntimeStatus,
    /// The pod's container runs so far.
    pub(super) runs: &'a [ContainerRun],
    /// All calls that have begun and not ended.
    pub(super) active_calls: &'a BTreeMap<u64, ActiveCall>,
    pub(super) plan: Option<&'a PodPlan>,
    /// All pods that the engine knows. Filled only for the creation of a container.
    pub(super) rivals: &'a [PodSnapshot],
    /// The resources that the runtime has applied to the container of the call.
    pub(super) applied: Option<Amounts>,
    pub(super) clock: &'a SimClock,
}

/// Calls that only the hooks of a pod make, one after the other.
const OF_HOOKS: [Op; 6] = [Op::RunSandbox, Op::Pull, Op::Create, Op::Start, Op::SetUp, Op::TearDown];
const STOPS: [Op; 2] = [Op::Stop, Op::StopSandbox];

/// Whether calls of this kind are checked.
pub(super) fn is_checked(op: Op) -> bool {
    OF_HOOKS.contains(&op) || STOPS.contains(&op) || op == Op::Exec
}

/// Whether no container of the pod runs, as the engine sees it.
pub(super) fn is_terminated(snapshot: &PodSnapshot) -> bool {
    snapshot.lifecycle >= Lifecycle::Terminated
}

/// Checks a call that begins.
pub(super) fn call_begin(call: &CallContext<'_>) -> CheckResult {
    does_not_overlap(call)?;
    match call.op {
        Op::RunSandbox | Op::Pull | Op::Create | Op::Start => starts::start(call),
        Op::Stop => stops::stop(call),
        Op::StopSandbox => stops::sandbox(call),
        Op::Exec => stops::command(call),
        _ => Ok(()),
    }
}

/// The hooks of one pod never overlap (POD-I3).
fn does_not_overlap(call: &CallContext<'_>) -> CheckResult {
    let zombie_stop = call.view.is_none_or(|view| is_terminated(&view.snapshot));
    let stops = STOPS.contains(&call.op);
    if !OF_HOOKS.contains(&call.op) && (!stops || zombie_stop) {
        return Ok(());
    }
    let others = call.active_calls.values().filter(|flight| flight.uid == *call.uid);
    for other in others {
        let overlaps = OF_HOOKS.contains(&other.op) || (!stops && STOPS.contains(&other.op) && !other.zombie_stop);
        if overlaps {
            return Err(format!("while {:?}{} has not ended", other.op, other.about));
        }
    }
    Ok(())
}

impl CallContext<'_> {
    fn kind_of(&self, name: &str) -> Option<Kind> {
        self.plan?.containers.iter().find(|container| container.name == name).map(|container| container.kind)
    }

    /// The container runs that the pod's present record created in this life of the agent.
    fn own_runs(&self) -> impl DoubleEndedIterator<Item = &ContainerRun> {
        let record = self.view.map(|view| view.snapshot.synced_at);
        self.runs.iter().filter(move |run| run.life == self.life && run.record == record)
    }
}
