//! One run of an agent with an API server: create pods that are bound to its node, wait until they are ready, measure the idle agent,
//! scrape its metrics, delete the pods. The API server is the one of the tests and runs in this process.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use podwright_stand_in::{Grant, Served, StandIn, User};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::agent::{Agent, Idle};
use super::https::https;
use super::{Error, Instance, PATIENCE, at, image, wait};

const PODS: &str = "/api/v1/namespaces/default/pods";
/// How often the objects of the API server are read. A figure is late by at most this.
const STEP: Duration = Duration::from_millis(10);
/// How many scrapes are measured. Together they take longer than the 10 ms in which the kernel counts CPU time.
const SCRAPES: u32 = 20;
/// The time between two scrapes. The agent answers those within half a second with one measurement.
const SCRAPE_EVERY: Duration = Duration::from_millis(600);

/// The figures of one run of the agent.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figures {
    /// Seconds from the creation of a pod until its status has the condition `Ready`. All pods are created at once.
    pub(crate) ready_p50_s: f64,
    pub(crate) ready_p99_s: f64,
    pub(crate) ready_all_s: f64,
    /// CPU time of the agent in seconds, from its start until all pods are ready.
    pub(crate) cpu_s: f64,
    pub(crate) rss_mib: f64,
    pub(crate) idle_millicores: f64,
    /// CPU time of the agent for one scrape of `/metrics/cadvisor` while all pods run, in milliseconds.
    pub(crate) scrape_ms: f64,
    /// Seconds from the first deletion until the API server has no pod.
    pub(crate) gone_all_s: f64,
    /// The agent's requests for each pod from its creation until it is gone, by verb and resource.
    pub(crate) requests_per_pod: BTreeMap<String, f64>,
}

pub(crate) fn run(tokio: &Runtime, instance: &Instance, n: usize, rest: Duration) -> Result<Figures, Error> {
    let server = tokio.block_on(StandIn::start())?;
    let directory = Agent::directory(instance)?;
    let kubeconfig = directory.join("kubeconfig");
    fs::write(&kubeconfig, server.kubeconfig(&server.node_token("bench")))?;
    let manifests = directory.join("manifests");
    fs::create_dir_all(&manifests)?;
    let flags = [
        "--manifests".as_ref(),
        manifests.as_os_str(),
        "--node-api=127.0.0.1:0".as_ref(),
        "--kubeconfig".as_ref(),
        kubeconfig.as_os_str(),
    ];
    let agent = Agent::start(instance, directory, &flags)?;
    wait("the node is ready", || Ok(server.get("nodes", "", "bench").filter(is_ready).map(drop)))?;
    server.forget_requests();
    let begin = Instant::now();
    for number in 0..n {
        server.create(PODS, pod(number)).map_err(|refusal| refusal.message)?;
    }
    let ready = until_ready(&server, n, begin)?;
    let cpu_s = agent.cpu()?.as_secs_f64();
    let mut served = pod_requests(&server);
    let idle = agent.idle(rest)?;
    let scrapes = if rest.is_zero() { 1 } else { SCRAPES };
    let scrape_ms = scrape(tokio, &server, &agent, &idle, scrapes)?;
    server.forget_requests();
    let begin = Instant::now();
    for number in 0..n {
        server
            .request("DELETE", &format!("{PODS}/bench-{number}"), "", &Value::Null)
            .map_err(|refusal| refusal.message)?;
    }
    wait("the pods are gone", || Ok(server.all("pods").is_empty().then_some(())))?;
    let gone_all_s = begin.elapsed().as_secs_f64();
    served.extend(pod_requests(&server));
    let mut requests_per_pod = BTreeMap::new();
    for request in &served {
        let verb = request.verb.map_or_else(|| "?".to_owned(), |verb| format!("{verb:?}").to_lowercase());
        *requests_per_pod.entry(format!("{verb} {}", request.resource)).or_insert(0.0) += 1.0 / n as f64;
    }
    Ok(Figures {
        ready_p50_s: at(&ready, 0.5),
        ready_p99_s: at(&ready, 0.99),
        ready_all_s: at(&ready, 1.0),
        cpu_s,
        rss_mib: idle.rss_mib,
        idle_millicores: idle.millicores,
        scrape_ms,
        gone_all_s,
        requests_per_pod,
    })
}

/// The CPU time for one scrape of `/metrics/cadvisor`, in milliseconds, without that of an idle agent.
fn scrape(tokio: &Runtime, server: &StandIn, agent: &Agent, idle: &Idle, scrapes: u32) -> Result<f64, Error> {
    let node = server.get("nodes", "", "bench").ok_or("the node is gone")?;
    let port = &node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"];
    let (client, url) = (https(None), format!("https://127.0.0.1:{port}/metrics/cadvisor"));
    server.grant(Grant::new("prometheus", "get", "nodes/metrics"));
    let token = server.token(User::new("prometheus", &[]));
    let request = || -> Result<(), Error> {
        let text = tokio
            .block_on(async { client.get(&url).bearer_auth(&token).send().await?.error_for_status()?.text().await })?;
        sleep(SCRAPE_EVERY);
        text.contains("container=\"main\"").then_some(()).ok_or_else(|| format!("no container in\n{text}").into())
    };
    // The first request opens the connection, and asks the API server for the permissions.
    request()?;
    let (before, begin) = (agent.cpu()?, Instant::now());
    (0..scrapes).try_for_each(|_| request())?;
    let cpu_ms = (agent.cpu()? - before).as_secs_f64() * 1000.0;
    Ok((cpu_ms - idle.millicores * begin.elapsed().as_secs_f64()) / f64::from(scrapes))
}

/// The pod of the manifests of this bench, bound to the node.
fn pod(number: usize) -> Value {
    json!({
        "metadata": {"name": format!("bench-{number}")},
        "spec": {
            "nodeName": "bench",
            "hostNetwork": true,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "main", "image": image::BUSYBOX, "imagePullPolicy": "IfNotPresent", "command": ["sleep", "100000"],
            }],
        },
    })
}

fn is_ready(object: &Arc<Value>) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Returns for each pod the seconds from `begin` until it was ready, the shortest first.
fn until_ready(server: &StandIn, n: usize, begin: Instant) -> Result<Vec<f64>, Error> {
    let mut ready: HashMap<String, f64> = HashMap::new();
    while ready.len() < n {
        if begin.elapsed() > PATIENCE {
            return Err(format!("{} of {n} pods are ready after {PATIENCE:?}", ready.len()).into());
        }
        for pod in server.all("pods").iter().filter(|pod| is_ready(pod)) {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            ready.entry(name.to_owned()).or_insert_with(|| begin.elapsed().as_secs_f64());
        }
        sleep(STEP);
    }
    let mut seconds: Vec<f64> = ready.into_values().collect();
    seconds.sort_by(f64::total_cmp);
    Ok(seconds)
}

/// The agent's requests that concern pods. Node statuses and leases depend on the time and not on pods.
fn pod_requests(server: &StandIn) -> Vec<Served> {
    let mut served = server.requests();
    served.retain(|request| !request.resource.starts_with("nodes") && request.resource != "leases");
    served
}
