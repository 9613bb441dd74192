//! What always has to hold, as functions of what is seen at one instant.

mod rest;
mod samples;
mod starts;
mod stops;

use std::collections::BTreeMap;

use podwright_actors::engine::PodSnapshot;
use podwright_actors::ids::PodUid;
use podwright_actors::pod_worker::Lifecycle;
use podwright_actors::ports::PodRuntimeStatus;
use podwright_actors::time::Time;

use super::runs::Run;
use super::scenario::{Kind, Op, PodPlan};
use super::world::{About, Flight, Look};

pub(super) use rest::{drained, kept, settled};
pub(super) use samples::{Samples, noticed};

/// A violation, in words; `Ok` if there is none.
pub(super) type Verdict = Result<(), String>;

/// What is known when a call begins.
pub(super) struct TurnClock<'a> {
    pub(super) now: Time,
    pub(super) life: u32,
    pub(super) uid: &'a PodUid,
    pub(super) op: Op,
    pub(super) about: &'a About,
    /// How the pod stands for the engine.
    pub(super) look: Option<&'a Look>,
    /// What the runtime has of it in truth.
    pub(super) status: &'a PodRuntimeStatus,
    /// Its runs so far.
    pub(super) runs: &'a [Run],
    /// All calls under way.
    pub(super) flights: &'a BTreeMap<u64, Flight>,
    pub(super) plan: Option<&'a PodPlan>,
    /// For a container that is made: all pods that the engine knows.
    pub(super) rivals: &'a [PodSnapshot],
}

/// Calls that only a pod's hook makes, one after the other.
const OF_HOOKS: [Op; 6] = [Op::RunSandbox, Op::Pull, Op::Create, Op::Start, Op::SetUp, Op::TearDown];
const STOPS: [Op; 2] = [Op::Stop, Op::StopSandbox];

/// Whether calls of this kind are judged.
pub(super) fn is_judged(op: Op) -> bool {
    OF_HOOKS.contains(&op) || STOPS.contains(&op) || op == Op::Exec
}

/// Whether nothing of the pod runs for the engine.
pub(super) fn is_over(snapshot: &PodSnapshot) -> bool {
    snapshot.lifecycle >= Lifecycle::Terminated
}

/// Judges a call that begins.
pub(super) fn call(moment: &TurnClock<'_>) -> Verdict {
    alone(moment)?;
    match moment.op {
        Op::RunSandbox | Op::Pull | Op::Create | Op::Start => starts::start(moment),
        Op::Stop => stops::stop(moment),
        Op::StopSandbox => stops::sandbox(moment),
        Op::Exec => stops::command(moment),
        _ => Ok(()),
    }
}

/// POD-I3: what the hooks of one pod do never overlaps.
fn alone(moment: &TurnClock<'_>) -> Verdict {
    let stray = moment.look.is_none_or(|look| is_over(&look.snapshot));
    let stops = STOPS.contains(&moment.op);
    if !OF_HOOKS.contains(&moment.op) && (!stops || stray) {
        return Ok(());
    }
    let others = moment.flights.values().filter(|flight| flight.uid == *moment.uid);
    for other in others {
        let in_the_way = OF_HOOKS.contains(&other.op) || (!stops && STOPS.contains(&other.op) && !other.stray);
        if in_the_way {
            return Err(format!("while {:?}{} is under way", other.op, other.about));
        }
    }
    Ok(())
}

impl TurnClock<'_> {
    fn kind_of(&self, name: &str) -> Option<Kind> {
        self.plan?.containers.iter().find(|container| container.name == name).map(|container| container.kind)
    }

    /// The runs that the present record of the pod made in this life of the agent.
    fn own_runs(&self) -> impl DoubleEndedIterator<Item = &Run> {
        let record = self.look.map(|look| look.snapshot.synced_at);
        self.runs.iter().filter(move |run| run.life == self.life && run.record == record)
    }
}
