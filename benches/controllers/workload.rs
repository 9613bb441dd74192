//! Pods and templates on the API server, and what the controller does with them.

use std::collections::BTreeMap;
use std::time::Duration;

use podwright_stand_in::{Fault, Rule, StandIn, Verb};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use crate::controller::{Controller, Which};

const PODS: &str = "/api/v1/namespaces/default/pods";
const TEMPLATES: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates";
/// The time between two pods of the stream.
const BETWEEN_PODS: Duration = Duration::from_millis(5);
/// How often the pods are read.
const POLL: Duration = Duration::from_millis(2);
/// The longest time of a run.
const LIMIT: Duration = Duration::from_secs(900);

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Backlog,
    Stream,
    Failures,
}

impl Kind {
    fn claims_of_pod(self) -> usize {
        match self {
            Kind::Backlog | Kind::Stream => 1,
            Kind::Failures => 2,
        }
    }
}

/// The figures of one run.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) claims: usize,
    pub(crate) seconds: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    /// The requests of the controller, without its watches.
    pub(crate) requests: usize,
    pub(crate) rss_mib: f64,
    /// How many entries of pods have no claim, or more than one.
    pub(crate) wrong: usize,
}

/// Runs a workload with `n` pods.
///
/// # Errors
/// The error text if the controller does not end, or if a claim is missing or there twice.
pub(crate) fn run(kind: Kind, n: usize) -> Result<Figures, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let figures = runtime.map_err(|error| error.to_string())?.block_on(measure(kind, n))?;
    if figures.wrong > 0 {
        return Err(format!("{} entries of pods have no claim or more than one", figures.wrong));
    }
    Ok(figures)
}

async fn measure(kind: Kind, n: usize) -> Result<Figures, String> {
    let server = StandIn::start().await.map_err(|error| error.to_string())?;
    for at in 0..n {
        let spec = json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}});
        let template = json!({"metadata": {"name": format!("t{at}")}, "spec": {"spec": spec}});
        create(&server, TEMPLATES, template)?;
    }
    if kind == Kind::Failures {
        inject_failures(&server);
    }
    let mut created = BTreeMap::new();
    if kind != Kind::Stream {
        for at in 0..n {
            create(&server, PODS, pod(at, kind))?;
        }
    }
    let started = Instant::now();
    let controller = Controller::start(&server, Which::Claims)?;
    if kind == Kind::Stream {
        controller.watches(&server).await?;
    }
    let started = if kind == Kind::Stream { Instant::now() } else { started };
    if kind != Kind::Stream {
        created.extend((0..n).map(|at| (at, started)));
    }
    let mut latencies = Vec::new();
    let mut next = if kind == Kind::Stream { 0 } else { n };
    while latencies.len() < n {
        if started.elapsed() > LIMIT {
            return Err(format!("{} of {n} pods have no claim after {} s", n - latencies.len(), LIMIT.as_secs()));
        }
        while next < n && Instant::now() >= started + BETWEEN_PODS * next as u32 {
            create(&server, PODS, pod(next, kind))?;
            created.insert(next, Instant::now());
            next += 1;
        }
        created.retain(|at, since| {
            let is_complete = server.get("pods", "default", &format!("p{at}")).is_some_and(|pod| {
                pod["status"]["resourceClaimStatuses"].as_array().map_or(0, Vec::len) == kind.claims_of_pod()
            });
            if is_complete {
                latencies.push(since.elapsed());
            }
            !is_complete
        });
        let poll = if created.len() > 100 { POLL * 10 } else { POLL };
        let until = if next < n { started + BETWEEN_PODS * next as u32 } else { Instant::now() + poll };
        sleep_until(until.min(Instant::now() + poll)).await;
    }
    let seconds = started.elapsed().as_secs_f64();
    server.faults().clear();
    let rss_mib = controller.end()?.rss_mib;
    latencies.sort_unstable();
    let quantile = |part: f64| {
        let at = ((latencies.len() as f64 * part) as usize).min(latencies.len() - 1);
        latencies[at].as_secs_f64() * 1000.0
    };
    let requests = server.requests().iter().filter(|served| served.verb != Some(Verb::Watch)).count();
    Ok(Figures {
        claims: n * kind.claims_of_pod(),
        seconds,
        p50_ms: quantile(0.5),
        p99_ms: quantile(0.99),
        requests,
        rss_mib,
        wrong: wrong(&server),
    })
}

pub(crate) fn create(server: &StandIn, collection: &str, object: Value) -> Result<(), String> {
    server.create(collection, object).map(drop).map_err(|refusal| format!("{refusal:?}"))
}

fn pod(at: usize, kind: Kind) -> Value {
    let claim = |claim: usize| json!({"name": format!("c{claim}"), "resourceClaimTemplateName": format!("t{at}")});
    let claims: Vec<_> = (0..kind.claims_of_pod()).map(claim).collect();
    json!({"metadata": {"name": format!("p{at}")},
        "spec": {"containers": [{"name": "main", "image": "img"}], "resourceClaims": claims}})
}

/// Lets 10 % of the writes fail.
fn inject_failures(server: &StandIn) {
    let faults =
        [Fault::status(500), Fault::status(409), Fault::DropBefore, Fault::DropAfter, Fault::too_many_requests(1)];
    for (verb, resource) in [(Verb::Create, "resourceclaims"), (Verb::Patch, "pods/status")] {
        for (at, fault) in faults.iter().enumerate() {
            server.faults().inject(Rule::new().verb(verb).resource(resource).skip(at * 10).percent(2), fault.clone());
        }
    }
}

/// How many entries of pods have no claim or more than one.
fn wrong(server: &StandIn) -> usize {
    let mut claims: BTreeMap<(String, String), usize> = BTreeMap::new();
    for claim in server.all("resourceclaims") {
        let owner = claim["metadata"]["ownerReferences"][0]["uid"].to_string();
        let entry = claim["metadata"]["annotations"]["resource.kubernetes.io/pod-claim-name"].to_string();
        *claims.entry((owner, entry)).or_default() += 1;
    }
    let mut wrong = claims.values().filter(|count| **count != 1).count();
    for pod in server.all("pods") {
        for entry in pod["spec"]["resourceClaims"].as_array().into_iter().flatten() {
            let key = (pod["metadata"]["uid"].to_string(), entry["name"].to_string());
            wrong += usize::from(!claims.contains_key(&key));
        }
    }
    wrong
}
