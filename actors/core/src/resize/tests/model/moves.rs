//! The moves of the agent, the runtime and the file in the model of resizes.

use super::*;

fn run_key(run: &Run) -> (u8, Amounts) {
    match run {
        Run::Created(amounts) => (0, *amounts),
        Run::Running(amounts) => (1, *amounts),
        Run::Ended => (2, (0, 0)),
        Run::Absent => (3, (0, 0)),
        Run::Stopped => (4, (0, 0)),
    }
}

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
            let observed: Vec<_> = sync.observed.iter().map(run_key).collect();
            (sync.pod, sync.phase as u8, observed, sync.operations.iter().map(operation).collect::<Vec<_>>())
        });
        let actuated = |actuated: &Option<Actuated>| {
            actuated.as_ref().map(|actuated| {
                let (containers, cgroup) = possible(actuated);
                (containers, cgroup.into_iter().map(bounds_key).collect::<Vec<_>>())
            })
        };
        let runs: Vec<_> = self.runs.iter().map(run_key).collect();
        let PodResize { progress, unsaved, .. } = &self.resize;
        let node = (self.allocated, actuated(&self.resize.actuated), progress.is_some(), unsaved.is_some());
        let file = (self.file.allocated, actuated(&self.file.actuated), self.is_written);
        let runs = (runs, self.stops.clone());
        let left = (self.broken, self.allocations, self.faults, self.ends, self.kills);
        (node, file, runs, bounds_key(self.cgroup), sync, left)
    }

    fn runtime_status(&self, world: &World, runs: &[Run]) -> PodRuntimeStatus {
        let inits = world.pods[0].init_containers().len();
        let is = |(index, run): (usize, &Run)| match run {
            Run::Absent => None,
            Run::Created(_) => Some(Is::Created),
            Run::Running(_) => Some(Is::Running),
            Run::Ended => Some(Is::Exited(i32::from(index >= inits))),
            Run::Stopped => Some(Is::Exited(0)),
        };
        let names = containers(&world.pods[0]).into_iter().map(|container| container.name.as_str());
        let known: Vec<_> =
            names.zip(runs.iter().enumerate().map(is)).filter_map(|(name, is)| Some((name, is?))).collect();
        let mut status = status(&known);
        let is_for_resize = |name: &str| {
            let index = index_of(&world.pods[0], name);
            matches!(runs[index], Run::Ended | Run::Stopped) && self.stops[index] != Stop::None
        };
        for run in status.containers.iter_mut().filter(|run| is_for_resize(run.name.as_str())) {
            run.reason = STOPPED_FOR_RESIZE.to_owned();
        }
        status
    }

    pub(super) fn record_changed(&mut self) {
        self.is_written = false;
        // Each write has the newest state, so one version is enough.
        self.resize.unsaved = Some(1);
    }

    /// Settles the resize in a sync of a pod that has seen these runs.
    fn settle(&mut self, world: &World, pod: usize, runs: &[Run]) {
        let had = self.resize.actuated.is_some();
        let pod = if world.mutation == Some(Mutation::CompletesNewerAllocation) { self.allocated } else { pod };
        let status = self.runtime_status(world, runs);
        let _ = self.resize.settle(&world.pods[pod], &status, world.has_cgroup);
        if had && self.resize.actuated.is_none() {
            self.record_changed();
        }
    }

    pub(super) fn begin_sync(&mut self, world: &World) {
        let (pod, observed) = (self.allocated, self.runs.clone());
        let outdated = if world.mutation == Some(Mutation::KeepsStops) { Stop::Outdated } else { Stop::None };
        for (stop, run) in self.stops.iter_mut().zip(&observed) {
            if *stop == Stop::Begun && matches!(run, Run::Running(_)) {
                *stop = outdated;
            }
        }
        self.sync = Some(Sync { pod, observed, operations: VecDeque::new(), phase: Phase::Observed });
    }

    /// Decides on the operations of a sync that has read the status.
    fn plan_sync(&mut self, world: &World, pod: usize, observed: &[Run]) {
        self.settle(world, pod, observed);
        let (allocated, runs) = (&world.pods[pod], self.runtime_status(world, observed));
        let Plan::Keep(others) = plan(allocated, &runs, &ProbeSnapshot::new()) else { panic!("the sandbox is ready") };
        let changes = self.resize.actuated.as_ref();
        let planned = Plan::Keep(others.clone());
        let changes =
            changes.and_then(|used| ResizeChanges::plan(used, allocated, &runs, &planned)).unwrap_or_default();
        let restarts: Vec<_> = changes.restart.iter().map(|it| index_of(allocated, it.kill.name.as_str())).collect();
        let stops = restarts.iter().copied().map(Operation::Stop);
        let calls = changes.steps().into_iter().filter(|step| world.has_cgroup || !matches!(step, Step::Cgroup(_)));
        let regular = others.regular.iter().map(|index| index + allocated.init_containers().len());
        let mut starts: Vec<_> = others.init.iter().copied().chain(regular).chain(restarts.iter().copied()).collect();
        starts.sort_unstable();
        let starts = starts.into_iter().map(Operation::Start);
        let operations = stops.chain(calls.map(Operation::Call)).chain(starts).collect();
        self.sync = Some(Sync { pod, observed: Vec::new(), operations, phase: Phase::Next });
        self.end_if_done(world);
    }

    fn end_if_done(&mut self, world: &World) {
        if let Some(sync) = self.sync.take_if(|sync| sync.operations.is_empty()) {
            self.settle(world, sync.pod, &self.runs.clone());
        }
    }

    /// Records the call of the current operation. Returns whether the call waits for the file. Fails if a newer allocation has replaced
    /// that of the sync.
    fn record(&mut self, world: &World) -> Result<bool, Superseded> {
        let Some(sync) = &self.sync else { return Ok(false) };
        let pod = &world.pods[sync.pod];
        let (is_applied, operation) = (self.resize.actuated.is_none(), sync.operations[0].clone());
        let changes = match &operation {
            Operation::Call(_) if world.mutation == Some(Mutation::ForgetsCalls) => Ok(false),
            Operation::Call(step) => self.resize.begin(pod, step),
            // A run that was created before starts with its own resources.
            Operation::Start(index) if !matches!(self.runs[*index], Run::Created(_)) => {
                self.resize.starts(pod, &containers(pod)[*index].name)
            }
            Operation::Start(_) | Operation::Stop(_) => return Ok(false),
        };
        if changes == Ok(true) {
            self.record_changed();
        }
        let is_early = world.mutation == Some(Mutation::StartsBeforeFile) && is_applied;
        let waits = match &operation {
            Operation::Call(_) => true,
            Operation::Start(_) | Operation::Stop(_) => self.resize.unsaved.is_some() && !is_early,
        };
        match changes {
            Err(Superseded) if world.mutation == Some(Mutation::IgnoresNewerAllocation) => Ok(waits),
            changes => changes.map(|_| waits),
        }
    }

    pub(super) fn proceed(&mut self, world: &World) {
        let Some(Sync { pod, observed, phase, .. }) = self.sync.clone() else { return };
        if phase == Phase::Observed {
            self.plan_sync(world, pod, &observed);
            return;
        }
        let Ok(waits) = self.record(world) else {
            self.sync = None;
            return;
        };
        let waits = waits && phase == Phase::Next && world.mutation != Some(Mutation::CallsBeforeFile);
        if !waits {
            self.check_call(world);
            self.record_stop(world);
        }
        self.sync.iter_mut().for_each(|sync| sync.phase = if waits { Phase::Recorded } else { Phase::Calling });
    }

    /// Records the stop that is made now.
    fn record_stop(&mut self, world: &World) {
        let operation = self.sync.as_ref().and_then(|sync| sync.operations.front());
        if let Some(Operation::Stop(index)) = operation
            && world.mutation != Some(Mutation::ForgetsStops)
        {
            self.stops[*index] = Stop::Begun;
        }
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
        let inits = world.pods[pod].init_containers().len();
        if matches!(operations[0], Operation::Start(index) if index >= inits)
            && self.runs[..inits].iter().any(|run| *run != Run::Ended)
        {
            self.broken = Some("no container starts before the init container has completed");
        }
        if matches!(operations[0], Operation::Start(index) if index < inits
            && self.runs[index] == Run::Ended && self.stops[index] != Stop::Begun)
        {
            self.broken = Some("an init container that has completed does not run again");
        }
        let mut after = self.clone();
        after.perform(world, &operations[0], true);
        let is_known = after.file_has_what_is_in_use(world);
        if !is_known {
            self.broken = Some("a call is in the file before it is made");
        }
        if world.has_cgroup && matches!(operations[0], Operation::Call(_)) && self.fits() && !after.fits() {
            self.broken = Some("the pod has at least what its containers have");
        }
    }

    pub(super) fn file_has_what_is_in_use(&self, world: &World) -> bool {
        let has = |(index, run): (usize, &Run)| match run {
            Run::Created(amounts) | Run::Running(amounts) => self.file.may_have(world, index, *amounts),
            Run::Absent | Run::Ended | Run::Stopped => true,
        };
        let has_cgroup = || !world.has_cgroup || self.file.cgroup_may_have(world, self.cgroup);
        self.runs.iter().enumerate().all(has) && has_cgroup()
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
            Operation::Stop(index) => self.runs[*index] = Run::Stopped,
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
                    Run::Absent | Run::Ended | Run::Stopped => of_container(&world.pods[pod], *index),
                };
                self.stops[*index] = Stop::None;
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
                self.record_changed();
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
        self.resize.saved(1);
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
                    Phase::Observed | Phase::Next | Phase::Recorded => state.proceed(world),
                }
            }
        }
        state.write();
        state.resize.is_over() && state.has_what_is_allocated(world)
    }

    pub(super) fn has_what_is_allocated(&self, world: &World) -> bool {
        let pod = &world.pods[self.allocated];
        let has = |(index, run): (usize, &Run)| match run {
            Run::Created(amounts) | Run::Running(amounts) => *amounts == of_container(pod, index),
            Run::Absent | Run::Ended | Run::Stopped => true,
        };
        self.runs.iter().enumerate().all(has) && (!world.has_cgroup || self.cgroup == Bounds::of(pod))
    }
}
