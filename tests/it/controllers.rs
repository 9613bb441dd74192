//! The controllers over HTTP, on an API server in memory.

mod binary;
mod claims;
mod deployment;
mod faults;
mod groups;
mod leaders;
mod taint_binary;
mod taint_changes;
mod taint_cluster;
mod taint_commands;
mod taint_times;
mod taints;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use podwright::adapters::kube::{ClaimTerms, KubeLeases, KubeResourceClaims, connect};
use podwright_actors::ports::{SystemClock, TokioClock};
use podwright_controllers::claim_controller::{ClaimController, ClaimControllerConfig, ClaimControllerPorts};
use podwright_controllers::leader_election::{Candidate, Elector, Leadership, LeaseGuard, LeaseName, Timing};
use podwright_metrics::ControllersMetrics;
use podwright_stand_in::{StandIn, User, opaque};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::agent::harness::eventually;
use crate::support::polling::PATIENCE;

const PODS: &str = "/api/v1/namespaces/default/pods";
const TEMPLATES: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
const MERGE: &str = "application/merge-patch+json";
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";
const ENTRY: &str = "resource.kubernetes.io/pod-claim-name";
/// Parameters whose bytes no client and no server writes when it encodes the object anew.
const PARAMETERS: &str = r#"{"kind": "P", "apiVersion": "v1", "text": "<&>", "number": 1.0}"#;

/// An API server with pods, templates and claims.
struct Cluster {
    server: StandIn,
    dir: tempfile::TempDir,
}

impl Cluster {
    async fn start() -> Self {
        let cluster = Cluster { server: StandIn::start().await.unwrap(), dir: tempfile::tempdir().unwrap() };
        cluster.server.create_namespace("kube-system");
        cluster
    }

    async fn client(&self) -> Client {
        self.client_of(&User::admin()).await
    }

    async fn client_of(&self, user: &User) -> Client {
        let path = self.dir.path().join("kubeconfig");
        self.server.write_kubeconfig(&path, &self.server.token(user.clone())).unwrap();
        connect(&path).await.unwrap()
    }

    fn template(&self, name: &str) {
        let spec = claim_spec(PARAMETERS);
        let body = format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{{"spec":{spec}}}}}"#);
        self.server.request_text("POST", TEMPLATES, "application/json", &body).unwrap();
    }

    /// Creates the claim of a user.
    fn claim(&self, name: &str, parameters: &str) {
        let body = format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{}}}"#, claim_spec(parameters));
        self.server.request_text("POST", CLAIMS, "application/json", &body).unwrap();
    }

    /// Creates a pod with one claim for each template, named `c0`, `c1` and so on.
    fn pod(&self, name: &str, templates: &[&str], spec: &Value) {
        let claim =
            |(at, template): (usize, &&str)| json!({"name": format!("c{at}"), "resourceClaimTemplateName": template});
        let claims: Vec<_> = templates.iter().enumerate().map(claim).collect();
        self.pod_with(name, &json!(claims), spec);
    }

    fn pod_with(&self, name: &str, claims: &Value, spec: &Value) {
        let mut pod = json!({"metadata": {"name": name}, "spec": {
            "containers": [{"name": "main", "image": "img"}], "resourceClaims": claims}});
        for (field, value) in spec.as_object().into_iter().flatten() {
            pod["spec"][field] = value.clone();
        }
        self.server.create(PODS, pod).unwrap();
    }

    /// Creates the claim of a pod, as if the server performed late a create whose answer a replica has lost.
    fn create_late(&self, pod: &str) {
        let uid = self.object("pods", pod)["metadata"]["uid"].clone();
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid, "controller": true});
        let spec = json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}});
        let base = format!("{pod}-c0-");
        let metadata = json!({"generateName": base, "annotations": {ENTRY: "c0"}, "ownerReferences": [owner]});
        self.server.create(CLAIMS, json!({"metadata": metadata, "spec": spec})).unwrap();
    }

    fn object(&self, plural: &str, name: &str) -> Value {
        self.server.get(plural, "default", name).map(|object| Value::clone(&object)).unwrap_or_default()
    }

    fn delete(&self, collection: &str, name: &str) {
        let options = json!({"gracePeriodSeconds": 0});
        self.server.request("DELETE", &format!("{collection}/{name}"), "application/json", &options).unwrap();
    }

    fn set_phase(&self, pod: &str, phase: &str) {
        let status = json!({"status": {"phase": phase}});
        self.server.request("PATCH", &format!("{PODS}/{pod}/status"), MERGE, &status).unwrap();
    }

    /// Allocates a device to a claim as a scheduler does, with these consumers. The driver writes the status of the device.
    fn allocate(&self, claim: &str, consumers: &[&str]) {
        self.allocate_with(claim, consumers, PARAMETERS);
    }

    fn allocate_with(&self, claim: &str, consumers: &[&str], parameters: &str) {
        let path = format!("{CLAIMS}/{claim}");
        self.server.replace(&path, |claim| claim["metadata"]["finalizers"] = json!([FINALIZER])).unwrap();
        let results = json!([{"request": "r", "driver": "d", "pool": "p", "device": claim}]);
        let config = json!([{"source": "FromClass", "opaque": {"driver": "d", "parameters": opaque(parameters)}}]);
        let consumer =
            |pod: &&str| json!({"resource": "pods", "name": pod, "uid": self.object("pods", pod)["metadata"]["uid"]});
        let consumers: Vec<_> = consumers.iter().map(consumer).collect();
        let status = json!({
            "allocation": {"devices": {"results": results, "config": config}},
            "reservedFor": consumers,
            "devices": [{"driver": "d", "pool": "p", "device": claim, "data": opaque(parameters)}],
        });
        self.server.replace(&format!("{path}/status"), |claim| claim["status"] = status).unwrap();
    }

    /// The number of consumers of a claim.
    fn consumers(&self, claim: &str) -> usize {
        self.object("resourceclaims", claim)["status"]["reservedFor"].as_array().map_or(0, Vec::len)
    }

    /// The names of the claims in the status of a pod, by the names in its spec.
    fn recorded(&self, pod: &str) -> BTreeMap<String, String> {
        recorded(&self.object("pods", pod))
    }

    /// Waits until the status of each pod names all of its claims. Then each of these claims exists, and there is no other claim.
    async fn has_all_claims(&self) {
        let is_complete = |pod: &Arc<Value>| {
            let claims = pod["spec"]["resourceClaims"].as_array().map_or(0, Vec::len);
            recorded(pod).len() == claims
        };
        eventually("each pod has its claims", || async {
            self.server.all("pods").iter().all(is_complete).then_some(())
        })
        .await;
        let mut expected = BTreeMap::new();
        for pod in self.server.all("pods") {
            for (entry, claim) in recorded(&pod) {
                expected.insert(claim, (pod["metadata"]["uid"].clone(), json!(entry)));
            }
        }
        let claim = |claim: &Arc<Value>| {
            let metadata = &claim["metadata"];
            let name = metadata["name"].as_str().unwrap().to_owned();
            (name, (metadata["ownerReferences"][0]["uid"].clone(), metadata["annotations"][ENTRY].clone()))
        };
        let found: BTreeMap<_, _> = self.server.all("resourceclaims").iter().map(claim).collect();
        assert_eq!(found.len(), expected.len(), "one claim for each entry of each pod");
        assert_eq!(found, expected);
    }
}

fn claim_spec(parameters: &str) -> String {
    let requests = r#"[{"name":"r","exactly":{"deviceClassName":"c"}}]"#;
    let config = format!(r#"[{{"opaque":{{"driver":"d","parameters":{parameters}}}}}]"#);
    format!(r#"{{"devices":{{"requests":{requests},"config":{config}}}}}"#)
}

fn recorded(pod: &Value) -> BTreeMap<String, String> {
    let statuses = pod["status"]["resourceClaimStatuses"].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    statuses.iter().map(|status| (text(&status["name"]), text(&status["resourceClaimName"]))).collect()
}

/// The election of a replica with short durations. A busy machine must not end a term.
fn elector(client: &Client, lease: &str, identity: &str) -> Elector {
    let name = LeaseName { namespace: "kube-system".to_owned(), name: lease.to_owned() };
    let timing = Timing {
        lease_duration: Duration::from_secs(12),
        renew_deadline: Duration::from_secs(10),
        retry_period: Duration::from_millis(200),
    };
    let leases = Arc::new(KubeLeases::new(client.clone(), &name));
    Elector::new(leases, Candidate::new(identity, name, timing), Arc::new(SystemClock::new()))
}

/// A replica of the controller, in tasks of the test.
struct Replica {
    stop: CancellationToken,
    resign: CancellationToken,
    terms: JoinHandle<bool>,
    election: Option<JoinHandle<()>>,
    leadership: watch::Receiver<Leadership>,
    current: watch::Receiver<Option<Arc<ClaimController>>>,
    metrics: ControllersMetrics,
    /// The leadership of a replica without an election.
    term: Option<watch::Sender<Leadership>>,
}

impl Replica {
    /// A replica that leads.
    fn alone(client: Client) -> Self {
        Self::alone_with(client, ClaimControllerConfig::default())
    }

    /// A replica that leads, with these settings.
    fn alone_with(client: Client, config: ClaimControllerConfig) -> Self {
        let (term, leadership) = watch::channel(Leadership::Leading { term: 1 });
        Replica { term: Some(term), ..Self::with(client, config, leadership, LeaseGuard::without_election()) }
    }

    /// A replica that takes part in an election with short durations.
    fn elected(client: Client, identity: &str) -> Self {
        let elector = elector(&client, "resourceclaim-controller", identity);
        // The replica gives its lease back only if all creates in flight are answered. A slow machine needs time for the answers.
        let config = ClaimControllerConfig { creates_timeout: PATIENCE, ..ClaimControllerConfig::default() };
        let replica = Self::with(client, config, elector.leadership(), elector.guard());
        let election = tokio::spawn(elector.run(replica.resign.clone()));
        Replica { election: Some(election), ..replica }
    }

    fn with(
        client: Client,
        config: ClaimControllerConfig,
        leadership: watch::Receiver<Leadership>,
        lease: LeaseGuard,
    ) -> Self {
        let metrics = ControllersMetrics::new();
        let api = KubeResourceClaims::new(client.clone(), Arc::new(SystemClock::new()), metrics.events.clone());
        let clock = Arc::new(TokioClock::new());
        let ports = ClaimControllerPorts { api: Arc::new(api), clock, metrics: metrics.clone(), lease };
        let terms = ClaimTerms::new(client, config, ports);
        let (stop, current) = (CancellationToken::new(), terms.current());
        let terms = tokio::spawn(terms.run(leadership.clone(), stop.clone()));
        let resign = CancellationToken::new();
        Replica { stop, resign, terms, election: None, leadership, current, metrics, term: None }
    }

    fn leads(&self) -> bool {
        self.leadership.borrow().is_leading()
    }

    /// Whether nothing is queued, and no pass runs.
    fn is_idle(&self) -> bool {
        self.current.borrow().as_ref().is_some_and(|controller| controller.is_synced() && controller.queued() == 0)
    }

    async fn until_idle(&self) {
        eventually("the controller is idle", || async { self.is_idle().then_some(()) }).await;
    }

    /// Stops as the binary does.
    async fn stop(self) {
        self.stop.cancel();
        self.terms.await.unwrap();
        self.resign.cancel();
        if let Some(election) = self.election {
            election.await.unwrap();
        }
    }

    /// Ends at once, like a process that is killed.
    fn crash(&self) {
        self.terms.abort();
        if let Some(election) = &self.election {
            election.abort();
        }
    }
}
