//! The laws of resizes, checked by stateright in every state that small configurations can reach.
//!
//! Allocations change at any time, also during a sync. Calls succeed, or fail with or without an effect. The file is written late.
//! Containers end. The agent is killed at any point, and the next one starts from the file. An init container exits with 0, whether it has
//! completed or was stopped. A stop that fails, or during which the agent is killed, may leave the container running.

mod moves;

use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};

use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use serde_json::json;
use stateright::{Checker, Model, Property};

use super::*;
use crate::containers::restart::STOPPED_FOR_RESIZE;
use crate::resize::decide::amount;

/// CPU in thousandths and memory in bytes, of a container with equal requests and limits.
type Amounts = (i64, i64);

/// A configuration: the allocations that a pod may get, the first one at its start, and how often events may occur.
struct World {
    pods: Vec<Arc<PodObject>>,
    allocations: u8,
    faults: u8,
    ends: u8,
    kills: u8,
    /// Whether the pod has a cgroup of its own.
    has_cgroup: bool,
    mutation: Option<Mutation>,
}

/// How the agent is broken on purpose, to check that a law then fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutation {
    /// A sync makes calls although a newer allocation has replaced its own.
    IgnoresNewerAllocation,
    /// A call does not wait for the file.
    CallsBeforeFile,
    /// A call is not recorded before it is made.
    ForgetsCalls,
    /// A container starts although the file does not have the allocation yet.
    StartsBeforeFile,
    /// A sync completes a resize that is newer than its own allocation.
    CompletesNewerAllocation,
    /// A container is stopped for a resize without a record of the stop.
    ForgetsStops,
    /// The record of a stop stays although the run was not stopped.
    KeepsStops,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    /// The container waits for the init container.
    Absent,
    Created(Amounts),
    Running(Amounts),
    /// It ended by itself. An init container has completed.
    Ended,
    /// The agent stopped it for a resize.
    Stopped,
}

/// What the file says of the stop of a run for a resize.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stop {
    None,
    Begun,
    /// A sync has found that the run was not stopped.
    Outdated,
}

#[derive(Clone, Debug)]
enum Operation {
    Stop(usize),
    Call(Step),
    Start(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The sync has read the status of the pod.
    Observed,
    /// The operation has not begun.
    Next,
    /// The operation waits for the file.
    Recorded,
    /// The call is under way.
    Calling,
}

/// A sync in progress. The first operation is the current one.
#[derive(Clone, Debug)]
struct Sync {
    pod: usize,
    /// The containers when the sync read the status of the pod.
    observed: Vec<Run>,
    operations: VecDeque<Operation>,
    phase: Phase,
}

/// What the file has: the allocation, and the resources that are in use.
#[derive(Clone, Debug)]
struct Record {
    allocated: usize,
    actuated: Option<Actuated>,
}

#[derive(Clone)]
struct State {
    allocated: usize,
    resize: PodResize,
    file: Record,
    is_written: bool,
    runs: Vec<Run>,
    stops: Vec<Stop>,
    cgroup: Bounds,
    sync: Option<Sync>,
    /// A law that the last call broke.
    broken: Option<&'static str>,
    allocations: u8,
    faults: u8,
    ends: u8,
    kills: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Allocate(usize),
    BeginSync,
    /// Records the call of the current operation, or makes the call.
    Continue,
    Write,
    Answer {
        succeeds: bool,
        is_done: bool,
    },
    End(usize),
    Kill {
        is_done: bool,
    },
}

fn amounts_of(resources: &ResourceRequirements) -> Amounts {
    let of = |name| amount(Some(resources), "limits", name).unwrap();
    (of("cpu").millis(), of("memory").units())
}

/// The init container, if any, and the other containers.
fn containers(pod: &PodObject) -> Vec<&Container> {
    pod.init_containers().iter().chain(pod.containers()).collect()
}

fn of_container(pod: &PodObject, index: usize) -> Amounts {
    amounts_of(containers(pod)[index].resources.as_ref().unwrap())
}

fn index_of(pod: &PodObject, name: &str) -> usize {
    containers(pod).iter().position(|container| container.name == name).unwrap()
}

/// The possible values of the containers and of the cgroup.
type Possible = (Vec<(usize, Vec<Amounts>)>, Vec<Bounds>);

fn possible(actuated: &Actuated) -> Possible {
    let containers = actuated.containers.iter().map(|(name, actual)| {
        (index_of(&actuated.allocated, name), actual.values().map(amounts_of).collect::<Vec<_>>())
    });
    (containers.collect(), actuated.cgroup.values().copied().collect())
}

fn bounds_key(bounds: Bounds) -> (i64, Option<i64>, Option<i64>) {
    (bounds.cpu_request, bounds.cpu_limit, bounds.memory_limit)
}

impl Record {
    /// Whether a container may have these resources, as far as a reader of the record knows.
    fn may_have(&self, world: &World, index: usize, amounts: Amounts) -> bool {
        let pod = &world.pods[self.allocated];
        let name = &containers(pod)[index].name;
        match self.actuated.as_ref().and_then(|actuated| actuated.containers.get(name)) {
            Some(actual) => actual.values().any(|value| amounts_of(value) == amounts),
            None => of_container(pod, index) == amounts,
        }
    }

    /// The limits of a cgroup are set one by one, so each limit may have its own value.
    fn cgroup_may_have(&self, world: &World, bounds: Bounds) -> bool {
        let allocated = Actual::known(Bounds::of(&world.pods[self.allocated]));
        let actual = self.actuated.as_ref().map_or(&allocated, |actuated| &actuated.cgroup);
        let (request, cpu, memory) = bounds_key(bounds);
        let may_be = |is: &dyn Fn(&Bounds) -> bool| actual.values().any(is);
        may_be(&|it| it.cpu_request == request)
            && may_be(&|it| it.cpu_limit == cpu)
            && may_be(&|it| it.memory_limit == memory)
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.key().hash(hasher);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let possible = self.resize.actuated.as_ref().map(possible);
        write!(f, "allocated {} {possible:?}, file {} {:?}", self.allocated, self.file.allocated, self.is_written)?;
        write!(f, ", runs {:?} {:?}, {:?}, broken {:?}", self.runs, self.stops, self.cgroup, self.broken)?;
        write!(f, ", sync {:?}", self.sync.as_ref().map(|sync| (sync.pod, sync.phase, &sync.operations)))
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let first = &self.pods[0];
        let waits = |index: usize| !first.init_containers().is_empty() && index >= first.init_containers().len();
        let run = |index| if waits(index) { Run::Absent } else { Run::Running(of_container(first, index)) };
        let runs = (0..containers(first).len()).map(run);
        vec![State {
            allocated: 0,
            resize: PodResize::default(),
            file: Record { allocated: 0, actuated: None },
            is_written: true,
            runs: runs.collect(),
            stops: vec![Stop::None; containers(first).len()],
            cgroup: Bounds::of(first),
            sync: None,
            broken: None,
            allocations: self.allocations,
            faults: self.faults,
            ends: self.ends,
            kills: self.kills,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        if state.allocations > 0 {
            let others = (0..self.pods.len()).filter(|index| *index != state.allocated);
            actions.extend(others.map(Action::Allocate));
        }
        if !state.is_written {
            actions.push(Action::Write);
        }
        match state.sync.as_ref().map(|sync| sync.phase) {
            None => {
                let all_run = state.runs.iter().all(|run| matches!(run, Run::Running(_)));
                if !all_run || state.resize.actuated.is_some() || state.resize.progress.is_some() {
                    actions.push(Action::BeginSync);
                }
            }
            Some(Phase::Observed | Phase::Next) => actions.push(Action::Continue),
            Some(Phase::Recorded) => actions.extend(state.is_written.then_some(Action::Continue)),
            Some(Phase::Calling) => {
                actions.push(Action::Answer { succeeds: true, is_done: true });
                if state.faults > 0 {
                    actions.extend([true, false].map(|is_done| Action::Answer { succeeds: false, is_done }));
                }
            }
        }
        if state.ends > 0 {
            let running = state.runs.iter().enumerate().filter(|(_, run)| matches!(run, Run::Running(_)));
            actions.extend(running.map(|(index, _)| Action::End(index)));
        }
        if state.kills > 0 {
            let is_calling = state.sync.as_ref().is_some_and(|sync| sync.phase == Phase::Calling);
            actions.push(Action::Kill { is_done: false });
            actions.extend(is_calling.then_some(Action::Kill { is_done: true }));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Allocate(index) => {
                state.allocations -= 1;
                state.resize.allocate(&self.pods[state.allocated], &self.pods[index]);
                state.allocated = index;
                state.record_changed();
            }
            Action::BeginSync => state.begin_sync(self),
            Action::Continue => state.proceed(self),
            Action::Write => state.write(),
            Action::Answer { succeeds, is_done } => {
                state.faults -= u8::from(!succeeds);
                state.answer(self, succeeds, is_done);
            }
            Action::End(index) => {
                state.ends -= 1;
                state.runs[index] = Run::Ended;
            }
            Action::Kill { is_done } => {
                state.kills -= 1;
                state.kill(self, is_done);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no call breaks a law", |_, state: &State| state.broken.is_none()),
            Property::always("the file has all that may be in use", |world: &World, state: &State| {
                state.file_has_what_is_in_use(world)
            }),
            Property::always("a pod that rests has what is allocated", |world: &World, state: &State| {
                let rests = state.sync.is_none() && state.resize.is_over();
                !rests || state.has_what_is_allocated(world)
            }),
            Property::always("syncs without faults complete the resize", |world: &World, state: &State| {
                state.sync.is_some() || world.mutation.is_some() || state.completes(world)
            }),
            Property::sometimes("a resize is complete", |_, state: &State| {
                state.allocated != 0 && state.resize.is_over()
            }),
        ]
    }
}

/// Two containers; the resize policy of the first one.
fn two(a: (&str, &str), b: (&str, &str), memory_policy: &str) -> Arc<PodObject> {
    let mut first = container("a", a.0, a.1);
    first["resizePolicy"] = json!([{"resourceName": "memory", "restartPolicy": memory_policy}]);
    with(json!([first, container("b", b.0, b.1)]))
}

/// An init container, which restarts for a change of its memory, before another container.
fn initializing(cpu: &str, memory: &str) -> Arc<PodObject> {
    let mut init = container("i", cpu, memory);
    init["resizePolicy"] = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    spec(json!({"initContainers": [init], "containers": [container("a", "1", "1Mi")]}))
}

fn world(pods: Vec<Arc<PodObject>>) -> World {
    World {
        pods,
        allocations: 2,
        faults: 1 + podwright_random::depth(),
        ends: 0,
        kills: 1,
        has_cgroup: true,
        mutation: None,
    }
}

fn check(world: World) -> usize {
    let checker = world.checker().threads(2).spawn_dfs().join();
    checker.assert_properties();
    eprintln!("{} states", checker.unique_state_count());
    checker.unique_state_count()
}

// Takes over 20 s: it has 213,000 states, and computes without optimization.
#[test]
fn resizes_of_one_container_keep_the_laws() {
    let pods = vec![one("1", "1Mi"), one("3", "2Mi"), one("2", "1Mi")];
    assert!(check(World { allocations: 3, ends: 1, ..world(pods) }) > 1_000);
}

#[test]
fn resizes_that_move_resources_between_containers_keep_the_laws() {
    let of = |a, b| two((a, "1Mi"), (b, "1Mi"), "NotRequired");
    assert!(check(world(vec![of("2", "1"), of("1", "2"), of("1", "3")])) > 1_000);
}

#[test]
fn resizes_with_restarts_keep_the_laws() {
    let of = |cpu, memory| two((cpu, memory), ("1", "1Mi"), "RestartContainer");
    assert!(check(World { ends: 1, ..world(vec![of("1", "1Mi"), of("1", "2Mi"), of("2", "1Mi")]) }) > 1_000);
}

#[test]
fn resizes_of_a_pod_that_initializes_keep_the_laws() {
    let pods = vec![initializing("1", "1Mi"), initializing("1", "2Mi"), initializing("2", "1Mi")];
    assert!(check(World { ends: 1, ..world(pods) }) > 1_000);
}

#[test]
fn resizes_of_a_pod_without_a_cgroup_keep_the_laws() {
    let of = |cpu, memory| two((cpu, memory), ("1", "1Mi"), "RestartContainer");
    let pods = vec![of("1", "1Mi"), of("1", "2Mi")];
    assert!(check(World { ends: 2, has_cgroup: false, ..world(pods) }) > 1_000);
}

/// An agent that ignores newer allocations, does not wait for the file, or does not record calls or stops breaks a law.
#[test]
fn broken_agents_break_a_law() {
    use Mutation::*;
    for mutation in [
        IgnoresNewerAllocation,
        CallsBeforeFile,
        ForgetsCalls,
        StartsBeforeFile,
        CompletesNewerAllocation,
        ForgetsStops,
        KeepsStops,
    ] {
        let pods = match mutation {
            ForgetsStops | KeepsStops => vec![initializing("1", "1Mi"), initializing("1", "2Mi")],
            _ => vec![one("1", "1Mi"), one("2", "1Mi")],
        };
        // With a cgroup, a resize is complete only after the cgroup has its resources. That hides these two faults.
        let has_cgroup = !matches!(mutation, StartsBeforeFile | CompletesNewerAllocation);
        let world = World { mutation: Some(mutation), has_cgroup, ends: 1, ..world(pods) };
        let checker = world.checker().spawn_dfs().join();
        let broken = checker.discoveries().keys().any(|name| *name != "a resize is complete");
        assert!(broken, "no law noticed {mutation:?}");
    }
}
