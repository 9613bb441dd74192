//! One simulation, from the first agent's start to the empty node at the end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use podwright_actors::admission::{AdmissionHandler, NodeCapacity};
use podwright_actors::container_manager::ContainersConfig;
use podwright_actors::engine::{EngineConfig, KillNow, Threads};
use podwright_actors::ids::PodUid;
use podwright_actors::image_gc::ImageGcPolicy;
use podwright_actors::node::{Node, NodeConfig, NodePorts};
use podwright_actors::pod::PodObject;
use podwright_actors::ports::{Clock, ContainerRuntime, EventRecorder, PodEvent, SandboxState, SourceKind};
use podwright_actors::recorder::Recorder;
use podwright_actors::replay::{Pick, replay};
use podwright_actors::shutdown::{ShutdownConfig, ShutdownGate, groups, pods, stop_all};
use podwright_actors::status::NodeFacts;
use podwright_actors::time::Time;
use podwright_metrics::Metrics;
use tokio::time::sleep;

use super::checks::{self, Samples};
use super::disk::Disk;
use super::faulty::{Faulty, FaultyNetwork};
use super::outside::Outside;
use super::plan::EVENTFUL;
use super::scenario::{Scenario, Source, What};
use super::trace::KEPT;
use super::world::{Agent, BEGIN, World};

/// How often everything is looked at.
const SAMPLE: Duration = Duration::from_secs(1);
/// When everything has to have come to rest, and the latest that it may be seen so: a container that ends over and over
/// may just have ended.
const SETTLED: Duration = Duration::from_secs(EVENTFUL.as_secs() + 180);
const SETTLED_LATEST: Duration = Duration::from_secs(SETTLED.as_secs() + 20);
/// A recorder in which old events make room for new ones, and one that keeps all of a life.
const RECORDERS: [usize; 2] = [Recorder::SMALLEST, 2 << 20];
/// How long the end of everything may take: the longest grace, and what is retried once.
const DRAINED_WITHIN: Duration = Duration::from_secs(120);

/// What became of a simulation.
#[derive(Debug)]
pub(super) struct Report {
    /// What was not as it has to be.
    pub(super) violation: Option<String>,
    pub(super) trace: String,
    pub(super) hash: u64,
    /// How many things were noted.
    pub(super) length: usize,
}

/// Runs a scenario to its end or to the first violation, and keeps so much of its trace.
pub(super) fn run(scenario: &Arc<Scenario>, kept: usize) -> Report {
    let world = Arc::new(World::new(scenario.clone(), kept));
    let mut course = Course {
        disk: Arc::new(Disk::new(world.clone())),
        outside: Outside::new(scenario.clone()),
        world: world.clone(),
        next: 0,
        returns: Vec::new(),
        stage: Stage::Eventful,
    };
    loop {
        let runtime =
            || tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let system = actix::System::with_tokio_rt(runtime);
        let end = system.block_on(course.live());
        world.died();
        drop(system);
        match end {
            End::Over => break,
            End::Down(time) => world.clock.skip(time),
        }
    }
    let (hash, length) = world.trace_hash();
    let violation = world.broken();
    let trace = if violation.is_some() || kept > KEPT { world.trace() } else { String::new() };
    Report { violation, trace, hash, length }
}

struct Course {
    world: Arc<World>,
    disk: Arc<Disk>,
    outside: Outside,
    /// The step that is next.
    next: usize,
    /// Pods that come back, and when.
    returns: Vec<(Time, usize)>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Eventful,
    /// Faults are over.
    Settling,
    /// Nothing is wanted any more, since then.
    Draining(Time),
}

/// How a life of the agent ends.
enum End {
    Over,
    /// Another one begins so long after.
    Down(Duration),
}

struct Events(Arc<World>);

impl EventRecorder for Events {
    fn record(&self, pod: &Arc<PodObject>, event: PodEvent) {
        self.0.told(pod.uid(), &event);
    }
}

/// One life of the agent.
struct Life {
    node: Node,
    agent: Agent,
    gate: Arc<ShutdownGate>,
    metrics: Metrics,
    samples: Samples,
    born: Time,
}

impl Course {
    async fn live(&mut self) -> End {
        self.world.clock.run();
        let mut life = self.start();
        self.world.born(life.agent.clone());
        self.world.note("an agent starts".into());
        self.outside.agent_is_new();
        let end = self.go(&mut life).await;
        self.look_back(&life);
        self.world.clock.stand();
        end
    }

    fn start(&self) -> Life {
        let world = &self.world;
        let (gate, metrics) = (Arc::new(ShutdownGate::default()), Metrics::new());
        let capacity = NodeCapacity { cpu_millis: 4000, memory_bytes: 1 << 30, pods: 500 };
        let admission: Vec<Arc<dyn AdmissionHandler>> = vec![gate.clone(), Arc::new(capacity)];
        let seed = world.scenario.seed ^ u64::from(world.life());
        let config = NodeConfig {
            engine: EngineConfig { threads: Threads::Current, seed: Some(seed), ..EngineConfig::default() },
            containers: ContainersConfig::default(),
            facts: NodeFacts {
                name: "node1".into(),
                host_ips: vec!["192.0.2.1".parse().unwrap()],
                runtime_name: "simulated".into(),
            },
            allocatable: Default::default(),
            sources: vec![SourceKind::File, SourceKind::Api],
            explain_event_after: Duration::from_secs(300),
            image_gc: ImageGcPolicy::default(),
        };
        let ports = NodePorts {
            cgroups: None,
            images: None,
            runtime: Arc::new(Faulty::new(world.clone())),
            network: Arc::new(FaultyNetwork::new(world.clone())),
            storage: self.disk.clone(),
            final_statuses: self.disk.clone(),
            events: Arc::new(Events(world.clone())),
            clock: world.clock.clone(),
            admission,
            metrics: metrics.clone(),
            recorder: Some(Arc::new(Recorder::new(RECORDERS[usize::from(world.scenario.seed % 2 == 1)]))),
        };
        let node = Node::start(config, ports).unwrap();
        let agent = Agent::of(&node);
        Life { node, agent, gate, metrics, samples: Samples::default(), born: world.clock.now() }
    }

    async fn go(&mut self, life: &mut Life) -> End {
        loop {
            let now = self.world.clock.now();
            for source in Source::ALL {
                self.deliver(life, source, now);
            }
            let next = self.next_instant(now);
            sleep(next.since(now)).await;
            while let Some(step) = self.due_step() {
                if let Some(end) = self.perform(life, step).await {
                    return end;
                }
            }
            for config in self.world.take_late() {
                let world = self.world.clone();
                world.note(format!("{} gets a sandbox late", config.pod.uid()));
                // One more that fails is nobody's concern.
                actix::spawn(async move { world.runtime.run_sandbox(config).await.is_ok() });
            }
            let now = self.world.clock.now();
            let due = self.returns.extract_if(.., |(at, _)| *at <= now).collect::<Vec<_>>();
            due.into_iter().for_each(|(_, which)| self.outside.add(which));
            if now.since(BEGIN).subsec_nanos() == 0 {
                let seen = life.samples.look(&life.agent, &self.outside.doomed);
                let seen = seen.and_then(|()| checks::noticed(&self.world, &life.agent, life.born));
                let seen = seen.and_then(|()| checks::kept(&life.agent, &self.outside.present(), &self.disk));
                if let Err(what) = seen.and_then(|()| self.outside.write(&self.world, &life.agent)) {
                    self.world.violated(what);
                }
                if self.is_over(life, now) {
                    return End::Over;
                }
            }
            if self.world.broken().is_some() {
                return End::Over;
            }
        }
    }

    /// What an agent recorded leads to the states in which it was, and it can say where each of its pods stands.
    fn look_back(&self, life: &Life) {
        let recording = life.node.engine.recording().expect("a simulated agent has a recorder");
        match replay(&recording, &Pick::Nobody) {
            Ok(run) => {
                if let Some(difference) = run.difference {
                    self.world.violated(format!("its recording leads elsewhere: {difference:?}"));
                }
            }
            Err(error) => self.world.violated(format!("its recording cannot be replayed: {error}")),
        }
        if catch_unwind(AssertUnwindSafe(|| life.node.explainer.lines())).is_err() {
            self.world.violated("telling where the pods stand panics".into());
        }
    }

    fn deliver(&mut self, life: &Life, source: Source, now: Time) {
        // A full channel: the agent does not read, and what is newest then is told later.
        if life.node.sets.capacity() == 0 {
            return;
        }
        if let Some(set) = self.outside.speak(source, now) {
            let uids: Vec<String> = set.pods.iter().map(|pod| pod.uid().to_string()).collect();
            self.world.note(format!("{source:?} wants {uids:?}"));
            life.node.sets.try_send(set.into()).unwrap();
        }
    }

    /// When something happens next, at the latest with the next sample.
    fn next_instant(&self, now: Time) -> Time {
        let sample = BEGIN + Duration::from_secs(now.since(BEGIN).as_secs() + SAMPLE.as_secs());
        let step = self.world.scenario.steps.get(self.next).map(|step| BEGIN + step.at);
        let others = [step, self.outside.next(now)].into_iter().flatten();
        others.chain(self.returns.iter().map(|(at, _)| *at)).fold(sample, Time::min)
    }

    fn due_step(&mut self) -> Option<What> {
        let step = self.world.scenario.steps.get(self.next)?;
        if step.at > self.world.elapsed() {
            return None;
        }
        self.next += 1;
        Some(step.what.clone())
    }

    async fn perform(&mut self, life: &Life, what: What) -> Option<End> {
        let now = self.world.clock.now();
        self.world.note(format!("{what:?}"));
        let outside = &mut self.outside;
        match what {
            What::Add(which) => outside.add(which),
            What::Remove(which) => outside.remove(which),
            What::Return(which, after) => {
                let uid = outside.uid(which);
                if outside.present().into_iter().any(|wanted| Some(wanted.uid) == uid) {
                    outside.remove(which);
                    self.deliver(life, self.world.scenario.pods[which].source, now);
                    self.returns.push((now + after, which));
                }
            }
            What::Delete(which, grace) => outside.delete(which, grace),
            What::Image(which) => outside.image(which),
            What::Label(which) => outside.label(which),
            What::Replace(which) => outside.replace(which),
            What::Kill { pod, evict, grace } => {
                let pod = outside.kill(pod)?;
                let engine = life.agent.engine.clone();
                actix::spawn(async move {
                    let how = KillNow { evict, grace_seconds: grace, status_fn: None };
                    // Whether it came in time is judged by what runs.
                    let _late = engine.kill_pod_now(&pod, how).await;
                });
            }
            What::SandboxEnds(which) => self.end_sandbox(which),
            What::Empty(source, time) => outside.empty(source, now + time),
            What::Mute(source, time) => outside.mute(source, now + time),
            What::Repeat(source) => outside.repeat(source),
            What::Problem(source) => outside.problem(source),
            What::Fault(window) => self.world.go_wrong(window),
            What::Crash(down) => return Some(End::Down(down)),
            What::Shutdown { critical, total, down } => {
                self.shut_down(life, critical, total).await;
                return Some(End::Down(down));
            }
        }
        None
    }

    fn end_sandbox(&self, which: usize) {
        let Some(uid) = self.outside.uid(which) else { return };
        let status = self.world.truth(&uid);
        if let Some(sandbox) = status.sandboxes.iter().find(|sandbox| sandbox.state == SandboxState::Ready) {
            self.world.runtime.stop_sandbox(&sandbox.id).now_or_never().unwrap().unwrap();
        }
    }

    async fn shut_down(&mut self, life: &Life, critical: u64, total: u64) {
        life.gate.close(true);
        let config = ShutdownConfig { total: Duration::from_secs(total), critical: Duration::from_secs(critical) };
        let engine = &life.agent.engine;
        let pods = pods(engine, &life.agent.desired);
        let all: Vec<PodUid> = pods.iter().map(|pod| pod.uid().clone()).collect();
        all.iter().for_each(|uid| self.outside.doom(uid));
        let Some(groups) = groups(config, pods) else { return };
        let late = stop_all(engine, &*self.world.clock, &life.metrics.shutdown, &life.node.shutdown, &groups).await;
        for uid in all.iter().filter(|uid| !late.iter().any(|pod| pod.uid() == *uid)) {
            if self.world.truth(uid).has_running_container() {
                self.world.violated(format!("{uid}: runs after a shutdown that says it stopped"));
            }
        }
    }

    /// Goes from stage to stage; true at the end.
    fn is_over(&mut self, life: &Life, now: Time) -> bool {
        let elapsed = now.since(BEGIN);
        match self.stage {
            Stage::Eventful if elapsed >= EVENTFUL && self.next == self.world.scenario.steps.len() => {
                self.world.heal();
                self.outside.heal();
                self.world.note("faults are over".into());
                self.stage = Stage::Settling;
            }
            Stage::Settling if elapsed >= SETTLED => {
                match checks::settled(&self.world, &life.agent, &self.outside.present(), &self.disk) {
                    Err(what) if elapsed >= SETTLED_LATEST => self.world.violated(what),
                    Err(_) => {}
                    Ok(()) => {
                        self.outside.clear();
                        self.world.note("nothing is wanted any more".into());
                        self.stage = Stage::Draining(now);
                    }
                }
            }
            Stage::Draining(since) => {
                let seen = checks::drained(&self.world, &life.node, &life.metrics, &self.disk, &self.outside.ever());
                match seen {
                    Ok(()) => return true,
                    Err(what) if now.since(since) > DRAINED_WITHIN => self.world.violated(what),
                    Err(_) => {}
                }
            }
            Stage::Eventful | Stage::Settling => {}
        }
        false
    }
}
