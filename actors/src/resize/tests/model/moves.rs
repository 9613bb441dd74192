//! The moves of the agent, the runtime and the file in the model of resizes.

use super::*;

impl State {
    /// What distinguishes two states.
    pub(super) fn key(&self) -> impl Hash + PartialEq + use<> {
        let sync = self.sync.as_ref().map(|sync| {
            let operation = |operation: &Operation| match operation {
                Operation::Stop(index) => (0, *index as i64, 0),
                Operation::Start(index) => (1, *index as i64, 0),
                Operation::Call(Step::Container { name, resources, .. }) => {
                    let (cpu, memory) = amounts_of(resources);
                    (2, i64::from(name.as_str().as_bytes()[0]) << 32 | cpu, memory)
                }
                Operation::Call(Step::Cgroup(limits)) => {
                    let request = limits.cpu_request.unwrap_or(0) << 32;
                    (3, request | limits.cpu_limit.unwrap_or(0), limits.memory_limit.unwrap_or(0))
                }
            };
            (sync.pod, sync.phase as u8, sync.operations.iter().map(operation).collect::<Vec<_>>())
        });
        let actuated = |actuated: &Option<Actuated>| {
            actuated.as_ref().map(|actuated| {
                let (containers, cgroup) = possible(actuated);
                (containers, cgroup.into_iter().map(bounds_key).collect::<Vec<_>>())
            })
        };
        let run = |run: &Run| match run {
            Run::Created(amounts) => (0, *amounts),
            Run::Running(amounts) => (1, *amounts),
            Run::Ended => (2, (0, 0)),
        };
        let runs: Vec<_> = self.runs.iter().map(run).collect();
        let node = (self.allocated, actuated(&self.resize.actuated), self.resize.progress.is_some());
        let file = (self.file.allocated, actuated(&self.file.actuated), self.is_written);
        let left = (self.broken, self.allocations, self.faults, self.ends, self.kills);
        (node, file, runs, bounds_key(self.cgroup), sync, left)
    }

    fn runtime_status(&self, world: &World) -> PodRuntimeStatus {
        let names = world.pods[0].containers().iter().map(|container| container.name.as_str());
        let is = |run: &Run| match run {
            Run::Created(_) => Is::Created,
            Run::Running(_) => Is::Running,
            Run::Ended => Is::Exited(1),
        };
        status(&names.zip(self.runs.iter().map(is)).collect::<Vec<_>>())
    }

    fn settle(&mut self, world: &World) {
        let had = self.resize.actuated.is_some();
        let _ = self.resize.settle(&self.runtime_status(world), true);
        self.is_written &= !had || self.resize.actuated.is_some();
    }

    pub(super) fn begin_sync(&mut self, world: &World) {
        self.settle(world);
        let (pod, runs) = (&world.pods[self.allocated], self.runtime_status(world));
        let Plan::Keep(others) = plan(pod, &runs, &ProbeSnapshot::new()) else { panic!("the sandbox is ready") };
        let changes = self.resize.actuated.as_ref();
        let planned = Plan::Keep(others.clone());
        let changes = changes.and_then(|used| ResizeChanges::plan(used, pod, &runs, &planned)).unwrap_or_default();
        let restarts: Vec<_> = changes.restart.iter().map(|it| index_of(pod, it.kill.name.as_str())).collect();
        let stops = restarts.iter().copied().map(Operation::Stop);
        let calls = changes.steps().into_iter().map(Operation::Call);
        let starts = others.regular.iter().chain(&restarts).copied().map(Operation::Start);
        let operations = stops.chain(calls).chain(starts).collect();
        self.sync = Some(Sync { pod: self.allocated, operations, phase: Phase::Next });
        self.end_if_done(world);
    }

    fn end_if_done(&mut self, world: &World) {
        if self.sync.as_ref().is_some_and(|sync| sync.operations.is_empty()) {
            self.sync = None;
            self.settle(world);
        }
    }

    /// Records the call of the current operation. Fails if a newer allocation has replaced that of the sync.
    fn record(&mut self, world: &World) -> Result<(), Superseded> {
        let Some(sync) = &self.sync else { return Ok(()) };
        let pod = &world.pods[sync.pod];
        let begun = match &sync.operations[0] {
            Operation::Call(_) if world.mutation == Some(Mutation::ForgetsCalls) => Ok(false),
            Operation::Call(step) => self.resize.begin(pod, step),
            // A run that was created before starts with its own resources.
            Operation::Start(index) if !matches!(self.runs[*index], Run::Created(_)) => {
                self.resize.starts(pod, &pod.containers()[*index].name)
            }
            Operation::Start(_) | Operation::Stop(_) => Ok(false),
        };
        self.is_written &= begun != Ok(true);
        match begun {
            Err(Superseded) if world.mutation == Some(Mutation::IgnoresNewerAllocation) => Ok(()),
            begun => begun.map(drop),
        }
    }

    pub(super) fn proceed(&mut self, world: &World) {
        if self.record(world).is_err() {
            self.sync = None;
            return;
        }
        let phase = self.sync.as_ref().map(|sync| sync.phase);
        let waits = phase == Some(Phase::Next) && world.mutation != Some(Mutation::CallsBeforeFile);
        if !waits {
            self.check_call(world);
        }
        self.sync.iter_mut().for_each(|sync| sync.phase = if waits { Phase::Recorded } else { Phase::Calling });
    }

    /// Notes a law that the call that is made now breaks.
    fn check_call(&mut self, world: &World) {
        let Some(Sync { pod, operations, .. }) = self.sync.clone() else { return };
        let is_change = match &operations[0] {
            Operation::Stop(_) => false,
            Operation::Start(index) => !matches!(self.runs[*index], Run::Created(_)),
            Operation::Call(_) => true,
        };
        if is_change && (pod != self.allocated || pod != self.file.allocated) {
            self.broken = Some("the runtime gets the newest allocation, and it is in the file");
        }
        let mut after = self.clone();
        after.perform(world, &operations[0], true);
        let is_known = after.file_has_what_is_in_use(world);
        if !is_known {
            self.broken = Some("a call is in the file before it is made");
        }
        if matches!(operations[0], Operation::Call(_)) && self.fits() && !after.fits() {
            self.broken = Some("the pod has at least what its containers have");
        }
    }

    pub(super) fn file_has_what_is_in_use(&self, world: &World) -> bool {
        let has = |(index, run): (usize, &Run)| match run {
            Run::Created(amounts) | Run::Running(amounts) => self.file.may_have(world, index, *amounts),
            Run::Ended => true,
        };
        self.runs.iter().enumerate().all(has) && self.file.cgroup_may_have(world, self.cgroup)
    }

    /// Whether the cgroup has at least the sum of the running containers.
    fn fits(&self) -> bool {
        let running = self.runs.iter().filter_map(|run| if let Run::Running(it) = run { Some(*it) } else { None });
        let (cpu, memory) = running.fold((0, 0), |(cpu, memory), it| (cpu + it.0, memory + it.1));
        self.cgroup.cpu_limit >= Some(cpu) && self.cgroup.memory_limit >= Some(memory)
    }

    /// The effect of a call.
    fn perform(&mut self, world: &World, operation: &Operation, succeeds: bool) {
        let pod = self.sync.as_ref().map_or(self.allocated, |sync| sync.pod);
        match operation {
            Operation::Stop(index) => self.runs[*index] = Run::Ended,
            Operation::Call(Step::Cgroup(limits)) => self.cgroup = self.cgroup.with(*limits),
            Operation::Call(Step::Container { name, resources, .. }) => {
                let run = &mut self.runs[index_of(&world.pods[0], name.as_str())];
                if matches!(run, Run::Running(_)) {
                    *run = Run::Running(amounts_of(resources));
                }
            }
            Operation::Start(index) => {
                let amounts = match self.runs[*index] {
                    Run::Created(amounts) | Run::Running(amounts) => amounts,
                    Run::Ended => of_container(&world.pods[pod], *index),
                };
                // A start that fails may leave a created run.
                self.runs[*index] = if succeeds { Run::Running(amounts) } else { Run::Created(amounts) };
            }
        }
    }

    pub(super) fn answer(&mut self, world: &World, succeeds: bool, is_done: bool) {
        let Some(operation) = self.sync.as_mut().and_then(|sync| sync.operations.pop_front()) else { return };
        if is_done {
            self.perform(world, &operation, succeeds);
        }
        match (&operation, succeeds) {
            (Operation::Call(step), true) => {
                self.resize.done(step);
                self.is_written = false;
            }
            // The containers start although the resize failed.
            (Operation::Call(_), false) => self.sync.iter_mut().for_each(|sync| {
                sync.operations.retain(|it| matches!(it, Operation::Start(_)));
            }),
            (Operation::Stop(_), false) => self.sync = None,
            (Operation::Stop(_), true) | (Operation::Start(_), _) => {}
        }
        self.sync.iter_mut().for_each(|sync| sync.phase = Phase::Next);
        self.end_if_done(world);
    }

    pub(super) fn write(&mut self) {
        self.file = Record { allocated: self.allocated, actuated: self.resize.actuated.clone() };
        self.is_written = true;
    }

    pub(super) fn kill(&mut self, world: &World, is_done: bool) {
        if let Some(Sync { operations, phase: Phase::Calling, .. }) = self.sync.clone().filter(|_| is_done) {
            self.perform(world, &operations[0], false);
        }
        self.sync = None;
        self.allocated = self.file.allocated;
        self.resize = PodResize { actuated: self.file.actuated.clone(), ..PodResize::default() };
        self.is_written = true;
    }

    /// Whether syncs without faults give the containers and the cgroup what is allocated.
    pub(super) fn completes(&self, world: &World) -> bool {
        let mut state = self.clone();
        for _ in 0..3 {
            state.begin_sync(world);
            while let Some(sync) = &state.sync {
                match sync.phase {
                    Phase::Calling => state.answer(world, true, true),
                    Phase::Recorded if !state.is_written => state.write(),
                    Phase::Next | Phase::Recorded => state.proceed(world),
                }
            }
        }
        state.resize.is_over() && state.has_what_is_allocated(world)
    }

    pub(super) fn has_what_is_allocated(&self, world: &World) -> bool {
        let pod = &world.pods[self.allocated];
        let has = |(index, run): (usize, &Run)| match run {
            Run::Created(amounts) | Run::Running(amounts) => *amounts == of_container(pod, index),
            Run::Ended => true,
        };
        self.runs.iter().enumerate().all(has) && self.cgroup == Bounds::of(pod)
    }
}
