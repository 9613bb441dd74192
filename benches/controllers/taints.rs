//! Evictions because of device taints.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant as WallInstant};

use podwright_controllers::device_taint_eviction::{Core, Settings};
use podwright_controllers::resource_claim::WatchEvent;
use podwright_model::time::Time;
use podwright_stand_in::{StandIn, Verb};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::controller::{Controller, Usage, Which, peak_kib};
use crate::workload::create;

const PODS: &str = "/api/v1/namespaces/default/pods";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
const RULES: &str = "/apis/resource.k8s.io/v1beta2/devicetaintrules";
const MERGE: &str = "application/merge-patch+json";
/// How often the pods are counted.
const POLL: Duration = Duration::from_millis(20);
/// The longest time of a run.
const LIMIT: Duration = Duration::from_secs(900);
/// How often a rule is added and removed.
const ROUNDS: u32 = 5;
/// The requests for each pod: a read, a patch and a deletion.
const REQUESTS: usize = 3;
/// Lost connections may repeat one request for each so many pods, and at least one.
const PODS_FOR_A_REPEAT: usize = 100;
/// The most memory for each evicted pod. While a pod waits, it has an eviction and an item of the queue: about 1 KiB. The allocator and the
/// calls in progress need more, but less than one copy of a real pod, which must not stay for each eviction.
const MAX_KIB: f64 = 8.0;
/// The fewest pods for which memory is compared. With fewer, the buffers of the connections hide what the pods need.
const MIN_PODS_FOR_MEMORY: usize = 1_000;

/// The figures of `evictions`.
#[derive(Debug)]
pub(crate) struct Evictions {
    pub(crate) pods: usize,
    pub(crate) half_seconds: f64,
    pub(crate) all_seconds: f64,
    /// The requests for pods.
    pub(crate) requests: usize,
    pub(crate) twice: usize,
    pub(crate) usage: Usage,
    /// The largest RSS in a cluster of the same size, in which the rule taints the device of one pod.
    pub(crate) rss_of_one_mib: f64,
}

/// A rule taints the devices of `n` pods at one time. In a second cluster of `n` pods, it taints the device of one pod.
///
/// # Errors
/// The error text if the controller does not delete all pods, deletes one twice, or needs more requests or memory for each pod than its
/// targets are.
pub(crate) fn evictions(n: usize) -> Result<Evictions, String> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(|error| error.to_string())?;
    let figures = runtime.block_on(measure(n, &json!({"driver": "d"}), n))?;
    let one = runtime.block_on(measure(n, &json!({"driver": "d", "device": "p0"}), 1))?;
    let figures = Evictions { rss_of_one_mib: one.usage.rss_mib, ..figures };
    fault(&figures).map_or(Ok(figures), Err)
}

/// Which target the figures miss.
fn fault(figures: &Evictions) -> Option<String> {
    let Evictions { pods, requests, twice, usage, rss_of_one_mib, .. } = figures;
    let most = REQUESTS * pods + (pods / PODS_FOR_A_REPEAT).max(1);
    let kib = (usage.rss_mib - rss_of_one_mib) * 1024.0 / *pods as f64;
    if *twice > 0 {
        Some(format!("{twice} pods were deleted twice"))
    } else if *requests > most {
        Some(format!("{pods} pods need {requests} requests, more than {most}"))
    } else if *pods >= MIN_PODS_FOR_MEMORY && kib > MAX_KIB {
        Some(format!("each evicted pod needs {kib:.1} KiB, more than {MAX_KIB}"))
    } else {
        None
    }
}

/// A rule with this selector taints the devices of `hit` of `n` pods.
async fn measure(n: usize, selector: &Value, hit: usize) -> Result<Evictions, String> {
    let server = StandIn::start().await.map_err(|error| error.to_string())?;
    for at in 0..n {
        let name = format!("p{at}");
        create(&server, PODS, pod(&name))?;
        let uid = server.get("pods", "default", &name).map(|pod| pod["metadata"]["uid"].clone()).unwrap_or_default();
        let claim = claim(&name, &uid);
        let status = json!({"status": claim["status"]});
        create(&server, CLAIMS, claim)?;
        let path = format!("{CLAIMS}/{name}/status");
        server.request("PATCH", &path, MERGE, &status).map_err(|refusal| format!("{refusal:?}"))?;
    }
    let controller = Controller::start(&server, Which::Taints)?;
    controller.watches(&server).await?;
    server.forget_requests();
    let started = Instant::now();
    create(&server, RULES, rule(selector))?;
    let mut half = None;
    loop {
        let pods = server.all("pods");
        let present = pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).count();
        let left = present.saturating_sub(n - hit);
        let elapsed = started.elapsed();
        if left * 2 <= hit {
            half.get_or_insert(elapsed);
        }
        if left == 0 {
            break;
        }
        if elapsed > LIMIT {
            return Err(format!("{left} of {hit} pods are left after {} s", LIMIT.as_secs()));
        }
        sleep(POLL).await;
    }
    let all_seconds = started.elapsed().as_secs_f64();
    let usage = controller.end()?;
    let requests = server.requests();
    let of_pods =
        requests.iter().filter(|served| served.resource.starts_with("pods") && served.verb != Some(Verb::Watch));
    let mut deletions: BTreeMap<&str, usize> = BTreeMap::new();
    let is_deletion = |served: &&podwright_stand_in::Served| {
        served.verb == Some(Verb::Delete) && served.resource == "pods" && served.code == 200
    };
    requests.iter().filter(is_deletion).for_each(|served| *deletions.entry(&served.name).or_default() += 1);
    Ok(Evictions {
        pods: hit,
        half_seconds: half.unwrap_or_default().as_secs_f64(),
        all_seconds,
        requests: of_pods.count(),
        twice: deletions.values().filter(|count| **count > 1).count(),
        rss_of_one_mib: usage.rss_mib,
        usage,
    })
}

/// The figures of `evaluations`.
#[derive(Debug)]
pub(crate) struct Evaluations {
    pub(crate) pods_per_second: f64,
    pub(crate) rule_ms: f64,
    pub(crate) rss_mib: f64,
}

/// A rule that hits all of `n` claims is added to the core and removed.
pub(crate) fn evaluations(n: usize) -> Evaluations {
    let now = Time::from_secs(1_800_000_000);
    let mut core = Core::new(Settings::default());
    for at in 0..n {
        let name = format!("p{at}");
        let uid = json!(format!("00000000-0000-4000-8000-{at:012}"));
        let (mut pod, claim) = (pod(&name), claim(&name, &uid));
        pod["metadata"]["uid"] = uid;
        core.pod_event(WatchEvent::InitApply(object(pod)), now);
        core.claim_event(WatchEvent::InitApply(object(claim)));
    }
    core.pod_event(WatchEvent::InitDone, now);
    core.claim_event(WatchEvent::InitDone);
    core.slice_event(WatchEvent::InitDone, now);
    core.rule_event(WatchEvent::InitDone, now);
    while core.evaluate_next(now) {}
    let rule = object(rule(&json!({"driver": "d"})));
    let (mut evaluating, mut total, mut evaluated) = (Duration::ZERO, Duration::ZERO, 0_u64);
    for _ in 0..ROUNDS {
        for event in [WatchEvent::Apply(Arc::clone(&rule)), WatchEvent::Delete(Arc::clone(&rule))] {
            let started = WallInstant::now();
            core.rule_event(event, now);
            let marked = WallInstant::now();
            while core.evaluate_next(now) {
                evaluated += 1;
            }
            drop(core.take_effects());
            evaluating += marked.elapsed();
            total += started.elapsed();
        }
    }
    Evaluations {
        pods_per_second: evaluated as f64 / evaluating.as_secs_f64(),
        rule_ms: total.as_secs_f64() * 1000.0 / f64::from(ROUNDS * 2),
        rss_mib: peak_kib() as f64 / 1024.0,
    }
}

fn object<T: DeserializeOwned>(object: Value) -> Arc<T> {
    Arc::new(serde_json::from_value(object).expect("the objects of the bench are valid"))
}

/// A pod on a node, with a claim of its name.
fn pod(name: &str) -> Value {
    let claims = json!([{"name": "c", "resourceClaimName": name}]);
    json!({"metadata": {"namespace": "default", "name": name}, "spec": {"nodeName": "n1",
        "containers": [{"name": "main", "image": "img"}], "resourceClaims": claims}})
}

/// The claim of a pod, with a device of its own.
fn claim(pod: &str, uid: &Value) -> Value {
    let request = json!({"name": "r", "exactly": {"deviceClassName": "c"}});
    let result = json!({"request": "r", "driver": "d", "pool": "w", "device": pod});
    json!({"metadata": {"namespace": "default", "name": pod},
        "spec": {"devices": {"requests": [request]}},
        "status": {"allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": pod, "uid": uid}]}})
}

fn rule(selector: &Value) -> Value {
    let taint = json!({"key": "t", "value": "v", "effect": "NoExecute", "timeAdded": "2020-01-01T00:00:00Z"});
    json!({"metadata": {"name": "r"},
        "spec": {"deviceSelector": selector, "taint": taint}})
}
