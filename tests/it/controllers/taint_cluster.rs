//! A cluster with tainted devices, and the device taint eviction controller in tasks of the test.

use podwright::adapters::kube::{DeviceTaintTerms, KubeDeviceTaints};
use podwright_actors::ports::Clock;
use podwright_controllers::device_taint_controller::{
    DeviceTaintController, DeviceTaintControllerConfig, DeviceTaintControllerPorts,
};
use podwright_controllers::device_taint_eviction::Settings;
use podwright_stand_in::{Served, Verb};

use super::*;

pub(super) const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
pub(super) const RULES: &str = "/apis/resource.k8s.io/v1beta2/devicetaintrules";
pub(super) const LONG_AGO: &str = "2020-01-01T00:00:00Z";

/// The lease of the controller.
pub(super) const LEASE: &str = "device-taint-eviction-controller";

/// A replica of the controller, in tasks of the test.
pub(super) struct TaintReplica {
    stop: CancellationToken,
    terms: JoinHandle<()>,
    pub(super) current: watch::Receiver<Option<Arc<DeviceTaintController>>>,
    pub(super) metrics: ControllersMetrics,
    resign: CancellationToken,
    election: Option<JoinHandle<()>>,
    /// The leadership of a replica without an election.
    term: Option<watch::Sender<Leadership>>,
}

impl TaintReplica {
    /// A replica that leads.
    pub(super) fn start(client: Client, settings: Settings) -> Self {
        Self::start_with(client, settings, Arc::new(SystemClock::new()))
    }

    /// A replica that leads, with this wall clock.
    pub(super) fn start_with(client: Client, settings: Settings, clock: Arc<dyn Clock>) -> Self {
        let (term, leadership) = watch::channel(Leadership::Leading { term: 1 });
        let lease = LeaseGuard::without_election();
        TaintReplica { term: Some(term), ..Self::with(client, settings, clock, leadership, lease) }
    }

    /// A replica that takes part in an election with short durations.
    pub(super) fn elected(client: Client, settings: Settings, identity: &str) -> Self {
        let elector = elector(&client, LEASE, identity);
        let clock = Arc::new(SystemClock::new());
        let replica = Self::with(client, settings, clock, elector.leadership(), elector.guard());
        let election = tokio::spawn(elector.run(replica.resign.clone()));
        TaintReplica { election: Some(election), ..replica }
    }

    fn with(
        client: Client,
        settings: Settings,
        clock: Arc<dyn Clock>,
        leadership: watch::Receiver<Leadership>,
        lease: LeaseGuard,
    ) -> Self {
        let metrics = ControllersMetrics::new();
        let api = Arc::new(KubeDeviceTaints::new(client.clone(), clock.clone(), metrics.events.clone()));
        let ports = DeviceTaintControllerPorts { api, clock, metrics: metrics.clone(), lease };
        let config = DeviceTaintControllerConfig { settings, ..DeviceTaintControllerConfig::default() };
        let terms = DeviceTaintTerms::new(client, config, ports);
        let (stop, current) = (CancellationToken::new(), terms.current());
        let terms = tokio::spawn(terms.run(leadership, stop.clone()));
        let resign = CancellationToken::new();
        TaintReplica { stop, resign, terms, election: None, current, metrics, term: None }
    }

    /// Ends at once, like a process that is killed.
    pub(super) fn crash(&self) {
        self.terms.abort();
        if let Some(election) = &self.election {
            election.abort();
        }
    }

    /// Waits until this number of pods is pending.
    pub(super) async fn until_pending(&self, pods: usize) {
        eventually("the pods are pending", || async {
            let controller = self.current.borrow().clone()?;
            (controller.is_synced() && controller.pending_pods() == pods).then_some(())
        })
        .await;
    }

    pub(super) async fn stop(self) {
        self.stop.cancel();
        self.terms.await.unwrap();
        self.resign.cancel();
        if let Some(election) = self.election {
            election.await.unwrap();
        }
        drop(self.term);
    }
}

/// Tolerations of all taints for many years.
pub(super) fn forever() -> Value {
    json!([{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2_000_000_000}])
}

impl Cluster {
    /// Pods on a node, each with a claim of a device of its own.
    pub(super) fn users(&self, number: usize, tolerations: &Value) {
        (0..number).for_each(|at| self.user(at, tolerations));
    }

    /// Pod `pN` on a node, with claim `cN` of device `iN`.
    pub(super) fn user(&self, at: usize, tolerations: &Value) {
        let (pod, claim) = (format!("p{at}"), format!("c{at}"));
        self.claim_of_device(&claim, &format!("i{at}"), tolerations);
        self.pod_with(&pod, &json!([{"name": "c0", "resourceClaimName": claim}]), &json!({"nodeName": "n1"}));
        self.reserve(&claim, &json!([self.consumer(&pod)]));
    }

    /// A claim with an allocated device.
    pub(super) fn claim_of_device(&self, claim: &str, device: &str, tolerations: &Value) {
        let spec = json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}});
        self.server.create(CLAIMS, json!({"metadata": {"name": claim}, "spec": spec})).unwrap();
        let result = json!({"request": "r", "driver": "d", "pool": "w", "device": device, "tolerations": tolerations});
        let status = json!({"status": {"allocation": {"devices": {"results": [result]}}}});
        self.server.request("PATCH", &format!("{CLAIMS}/{claim}/status"), MERGE, &status).unwrap();
    }

    /// Replaces the consumers of a claim.
    pub(super) fn reserve(&self, claim: &str, consumers: &Value) {
        let status = json!({"status": {"reservedFor": consumers}});
        self.server.request("PATCH", &format!("{CLAIMS}/{claim}/status"), MERGE, &status).unwrap();
    }

    /// The entry of a pod in the consumers of a claim.
    pub(super) fn consumer(&self, pod: &str) -> Value {
        json!({"resource": "pods", "name": pod, "uid": self.object("pods", pod)["metadata"]["uid"]})
    }

    /// A slice whose device `i0` is tainted.
    pub(super) fn tainted_slice(&self) {
        self.slice_with_tainted(&["i0"]);
    }

    /// A slice whose devices are tainted.
    pub(super) fn slice_with_tainted(&self, devices: &[&str]) {
        let taint = json!({"key": "t", "value": "v", "effect": "NoExecute", "timeAdded": LONG_AGO});
        let devices: Vec<_> = devices.iter().map(|name| json!({"name": name, "taints": [taint]})).collect();
        let spec = json!({"driver": "d", "nodeName": "n1", "devices": devices,
            "pool": {"name": "w", "generation": 1, "resourceSliceCount": 1}});
        self.server.create(SLICES, json!({"metadata": {"name": "s"}, "spec": spec})).unwrap();
    }

    /// Replaces the taints of device `i0` of the slice.
    pub(super) fn set_taints(&self, taints: &Value) {
        let spec = json!({"spec": {"devices": [{"name": "i0", "taints": taints}]}});
        self.server.request("PATCH", &format!("{SLICES}/s"), MERGE, &spec).unwrap();
    }

    /// A rule for all devices of the driver.
    pub(super) fn rule(&self) {
        self.rule_for(&json!({"driver": "d"}));
    }

    /// A rule for these devices.
    pub(super) fn rule_for(&self, selector: &Value) {
        self.rule_since(selector, LONG_AGO);
    }

    /// A rule for these devices, whose taint has this time.
    pub(super) fn rule_since(&self, selector: &Value, time_added: &str) {
        let taint = json!({"key": "t", "value": "v", "effect": "NoExecute", "timeAdded": time_added});
        let spec = json!({"deviceSelector": selector, "taint": taint});
        self.server.create(RULES, json!({"metadata": {"name": "r"}, "spec": spec})).unwrap();
    }

    pub(super) fn is_deleted(&self, pod: &str) -> bool {
        let pod = self.object("pods", pod);
        pod.is_null() || !pod["metadata"]["deletionTimestamp"].is_null()
    }

    /// The condition of the rule: its status and reason.
    pub(super) fn progress(&self) -> Option<(Value, Value)> {
        let rule = self.server.get("devicetaintrules", "", "r")?;
        let conditions = rule["status"]["conditions"].as_array()?.clone();
        let condition = conditions.into_iter().find(|condition| condition["type"] == "EvictionInProgress")?;
        Some((condition["status"].clone(), condition["reason"].clone()))
    }

    pub(super) fn calls(&self, verb: Verb, resource: &str) -> Vec<Served> {
        let is_asked = |served: &Served| served.verb == Some(verb) && served.resource == resource;
        self.server.requests().into_iter().filter(is_asked).collect()
    }
}
