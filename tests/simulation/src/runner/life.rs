//! One life of the agent, and its start.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, LocalBoxFuture};
use podwright::adapters::kube::{KubeEvents, KubeNodeApi, KubePodApi};
use podwright_actors::NodeRegistration;
use podwright_actors::node::{Node, NodeHandle, NodePorts};
use podwright_engine::recorder::Recorder;
use podwright_engine::{EngineConfig, Threads};
use podwright_metrics::Metrics;
use podwright_model::ids::PodUid;
use podwright_model::pod::PodObject;
use podwright_model::time::Time;
use podwright_ports::{EventRecorder, PodEvent, SourceKind};
use tokio_util::sync::CancellationToken;

use super::api_source::ApiSource;
use super::{ApiServer, Simulation};
use crate::admission::CheckedCapacity;
use crate::checks::{CheckResult, Samples};
use crate::cluster::NODE_NAME;
use crate::drivers::open_claims;
use crate::faulty_ports::{FaultyNetwork, FaultyRuntime};
use crate::machine::{Agent, Machine};
use crate::scenario::Source;
use crate::usage::Usage;

/// A recorder that drops old events, and one that keeps all events of one agent.
const RECORDERS: [usize; 2] = [Recorder::SMALLEST, 2 << 20];
/// Less than the time without a list after which a runtime is unhealthy.
const LISTED_WITHIN: Duration = Duration::from_secs(150);

struct SimEvents {
    machine: Arc<Machine>,
    capacity: Arc<CheckedCapacity>,
    /// Writes the events to the API server, if the adapters are simulated.
    adapter: Option<KubeEvents>,
}

impl EventRecorder for SimEvents {
    fn record(&self, pod: &Arc<PodObject>, event: PodEvent) {
        self.machine.event_recorded(pod.uid(), &event);
        self.capacity.event_recorded(pod.uid(), &event.reason);
        if let Some(adapter) = &self.adapter {
            adapter.record(pod, event);
        }
    }

    fn record_of_node(&self, event: PodEvent) {
        if let Some(adapter) = &self.adapter {
            adapter.record_of_node(event);
        }
    }

    fn close(&self, limit: Duration) -> BoxFuture<'_, usize> {
        match &self.adapter {
            Some(adapter) => adapter.close(limit),
            None => Box::pin(async { 0 }),
        }
    }
}

/// One life of the agent.
pub(crate) struct AgentLife {
    pub(crate) node: NodeHandle,
    pub(crate) agent: Agent,
    /// The source of the pods of the API server, if the adapters are simulated.
    pub(super) api_source: Option<ApiSource>,
    /// The updates that the agent has not accepted yet. A source sends its next one after that.
    pub(super) sending: BTreeMap<Source, LocalBoxFuture<'static, ()>>,
    pub(super) usage: Arc<Usage>,
    pub(crate) metrics: Metrics,
    pub(super) samples: Samples,
    /// When the agent started, without the jumps of the clock.
    pub(super) started: Time,
    /// The pods that had a running container or a ready sandbox when this agent started.
    pub(super) adopted: BTreeSet<PodUid>,
    /// The sources that have delivered to this agent, in the order of their first sets.
    pub(super) delivered: Vec<Source>,
    /// The pods that were delivered to this agent.
    pub(super) sent: BTreeSet<PodUid>,
    /// The pods that this agent may have admitted when the second source delivered for the first time, and those of earlier agents that
    /// have run since then. Also the pods that an earlier agent started and did not record before it was killed: this agent admits what they
    /// request now.
    pub(super) early: BTreeSet<PodUid>,
    /// The static pods that a shutdown stopped which was cancelled since. They run again without admission.
    pub(super) reruns: BTreeSet<PodUid>,
    /// Whether the agent has found the runtime healthy.
    was_healthy: bool,
}

impl AgentLife {
    /// The pods that the agent admitted before it knew what other running pods use.
    pub(super) fn unaware(&self) -> UnawareAdmission<'_> {
        let AgentLife { adopted, early, reruns, .. } = self;
        UnawareAdmission { adopted, early, reruns, source: self.delivered.get(1).copied() }
    }

    /// The agent may have admitted all pods that were delivered so far, of one source.
    pub(super) fn admits_early(&mut self) {
        let admitted = self.sent.iter().filter(|uid| !self.adopted.contains(*uid));
        self.early.extend(admitted.cloned());
    }

    /// A runtime that the agent lists stays healthy.
    pub(super) fn health_follows_lists(&mut self, machine: &Machine) -> CheckResult {
        let is_healthy = *self.node.healthy().borrow();
        let has_changed = std::mem::replace(&mut self.was_healthy, is_healthy) && !is_healthy;
        if has_changed && machine.was_listed_within(LISTED_WITHIN) {
            return Err("the runtime is unhealthy, although the agent lists its pods".into());
        }
        Ok(())
    }
}

/// No source waits for another one. So an agent admits pods of the source that delivers first without knowing the pods that an earlier
/// agent left running and that the second source delivers. A pod that runs again after a cancelled shutdown is not admitted at all, so it
/// counts as early and as late.
pub(crate) struct UnawareAdmission<'a> {
    adopted: &'a BTreeSet<PodUid>,
    early: &'a BTreeSet<PodUid>,
    reruns: &'a BTreeSet<PodUid>,
    source: Option<Source>,
}

impl UnawareAdmission<'_> {
    /// Whether a pod ran already and was delivered by the second source.
    pub(crate) fn is_late(&self, pod: &PodObject) -> bool {
        let is_late = self.source == Some(Source::of(pod)) && self.adopted.contains(pod.uid());
        is_late || self.reruns.contains(pod.uid())
    }

    /// Whether a pod was admitted before the second source delivered, or without a record of what it had.
    pub(crate) fn is_early(&self, pod: &PodObject) -> bool {
        self.early.contains(pod.uid()) || self.reruns.contains(pod.uid())
    }
}

impl Simulation {
    pub(super) fn start(&self) -> AgentLife {
        let machine = &self.machine;
        let facts = self.disk.facts();
        machine.cancel_starts(|run| facts.get(run.as_str()).is_some_and(|facts| facts["starting"] == true));
        machine.inherit(&facts);
        let mut adopted: BTreeSet<PodUid> = self.sources.lock().all_uids().into_iter().collect();
        adopted.retain(|uid| machine.runtime_status(uid).is_running());
        let mut early: BTreeSet<PodUid> = self.early.intersection(&adopted).cloned().collect();
        let reruns = self.reruns.intersection(&adopted).cloned().collect();
        let recorded = self.disk.allocations().records();
        let is_recorded = |uid: &PodUid| recorded.iter().any(|record| record.contains(&format!("\"{uid}\"")));
        let unrecorded = self.sources.lock().desired_pods().into_iter().filter(|desired| !desired.pod.is_static());
        early.extend(unrecorded.map(|desired| desired.uid).filter(|uid| adopted.contains(uid) && !is_recorded(uid)));
        let metrics = Metrics::new();
        let capacity = Arc::new(CheckedCapacity::new(machine.clone(), self.disk.clone()));
        let seed = machine.scenario.seed ^ u64::from(machine.life());
        let engine = EngineConfig::default().threads(Threads::Current).seed(seed);
        let recording_size = RECORDERS[usize::from(machine.scenario.seed % 2 == 1)];
        let usage = Arc::new(Usage::default());
        let ports = NodePorts::new(
            Arc::new(FaultyRuntime::new(machine.clone())),
            Arc::new(FaultyNetwork::new(machine.clone())),
            self.disk.clone(),
        )
        .final_statuses(self.disk.clone())
        .allocations(self.disk.allocations().clone())
        .run_facts(self.disk.run_facts().clone())
        .disks(usage.clone())
        .clock(machine.clock.clone())
        .admission(capacity.clone())
        .metrics(metrics.clone())
        .recorder(Arc::new(Recorder::new(recording_size)));
        let (ports, adapter, api_source) = match &self.api {
            ApiServer::Ports(api) => (ports.pod_api(api.clone()).node_api(api.clone()), None, None),
            ApiServer::Adapters(cluster) => {
                let (client, clock) = (cluster.client(), machine.clock.clone());
                let pod_api = Arc::new(KubePodApi::new(client.clone()));
                let node_api = Arc::new(KubeNodeApi::new(client.clone(), NODE_NAME));
                let events = KubeEvents::start(client.clone(), NODE_NAME, clock.clone(), metrics.events.clone(), None);
                (ports.pod_api(pod_api).node_api(node_api), Some(events), Some(ApiSource::new(client, clock)))
            }
        };
        let ports = ports.events(Arc::new(SimEvents { machine: machine.clone(), capacity, adapter }));
        let (claims, claim_tasks) = open_claims(machine, &self.disk, &metrics);
        // The tasks end when the agent is killed.
        actix::spawn(claim_tasks.run(CancellationToken::new()));
        let node = Node::builder(ports.resources(claims.clone()))
            .name(NODE_NAME)
            .host_ips(vec!["192.0.2.1".parse().unwrap()])
            .runtime_name("simulated")
            .sources([SourceKind::File, SourceKind::Api])
            .registration(NodeRegistration::new("the-agent"))
            .engine(engine)
            .start()
            .unwrap();
        let agent = Agent::of(&node, claims);
        AgentLife {
            node,
            agent,
            api_source,
            sending: BTreeMap::new(),
            usage,
            metrics,
            samples: Samples::default(),
            started: machine.clock.steady(),
            adopted,
            delivered: Vec::new(),
            sent: BTreeSet::new(),
            early,
            reruns,
            was_healthy: false,
        }
    }
}
