//! Compares the statuses and events that the agent writes for 22 pods with those that a kubelet of Kubernetes 1.36 wrote for the same pods.
//!
//! `comparison/kubelet.json` has, for each pod: its manifest, what happens to it, and the facts of a recording of the kubelet: the
//! phases in their order, the status at the end, and every text of events, conditions and container states.
//! `PODWRIGHT_KUBECONFIG` names the kubeconfig of an administrator of a real cluster, which the test uses in place of the stand-in.

mod observed;
mod pacing;

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Pod, Secret};
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, EvictParams, ListParams, Patch, PatchParams, PostParams, WatchEvent,
    WatchParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use podwright_stand_in::{StandIn, User};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use self::observed::{Expected, Observed};
use super::containerd::Containerd;
use super::image;
use crate::agent::harness::AgentHome;

const NAMESPACE: &str = "diff";
/// How long the pods may take to reach the statuses of the kubelet's pods. The kubelet took 40 s. The limit guards only against hanging.
const LIMIT: Duration = Duration::from_secs(600);

/// How long a pod runs at least before the action on it. The pods of the recording ran as long.
const RUNS_FOR: Duration = Duration::from_secs(5);

/// The action on a pod that runs.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Action {
    Delete,
    DeleteAtOnce,
    Evict,
    /// Sets the deadline of the pod to that of the recording, which has passed when the action happens.
    Expire,
}

// Takes over 25 s: pods restart in the backoff of a kubelet, which is 10 s after the second failure.
#[tokio::test]
async fn twenty_two_pods_have_the_statuses_and_events_that_a_kubelet_writes() {
    let Some(containerd) = Containerd::turn().await else { return };
    let home = AgentHome::new();
    let real = std::env::var("PODWRIGHT_KUBECONFIG").ok();
    let server = StandIn::start().await.unwrap();
    let (admin, node) = match &real {
        Some(path) => (std::fs::read_to_string(path).unwrap(), path.clone()),
        None => {
            std::fs::write(home.kubeconfig(), server.kubeconfig(&server.node_token("n1"))).unwrap();
            (server.kubeconfig(server.token(User::admin()).as_str()), home.kubeconfig())
        }
    };
    let client = client(&admin).await;
    let agent = containerd.agent_with(&home, &["--kubeconfig", &node, "--cluster-dns", "10.0.0.10"]).await;
    prepare(&client).await;

    let text = include_str!("comparison/kubelet.json").replace("docker.io/library/busybox:test", image::BUSYBOX);
    let expected: BTreeMap<String, Expected> = serde_json::from_str(&text).unwrap();
    let differences = run(&containerd, &client, &expected).await;
    assert!(differences.is_empty(), "{}\n{}", differences.join("\n"), agent.logged());
    remove(&client).await;
}

async fn client(kubeconfig: &str) -> Client {
    let config = Kubeconfig::from_yaml(kubeconfig).unwrap();
    Client::try_from(Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap()).unwrap()
}

/// Creates the namespace and the objects that the pods name.
async fn prepare(client: &Client) {
    remove(client).await;
    let namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}})).unwrap();
    // The namespace of an earlier run may exist.
    let _ = Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await;
    let map = serde_json::from_value(json!({"metadata": {"name": "cm"}, "data": {"k": "v"}})).unwrap();
    let _ = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE).create(&PostParams::default(), &map).await;
    let secret = serde_json::from_value(json!({"metadata": {"name": "sec"}, "stringData": {"p": "s3"}})).unwrap();
    let _ = Api::<Secret>::namespaced(client.clone(), NAMESPACE).create(&PostParams::default(), &secret).await;
}

/// Deletes all pods and waits until they are gone.
async fn remove(client: &Client) {
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    let _ = pods.delete_collection(&DeleteParams::default().grace_period(1), &ListParams::default()).await;
    crate::agent::harness::eventually("all pods are gone", || async {
        pods.list(&ListParams::default()).await.is_ok_and(|list| list.items.is_empty()).then_some(())
    })
    .await;
}

/// The changes of pods after a resource version. The API server ends each watch after some minutes.
async fn watch(
    pods: &Api<DynamicObject>,
    version: &str,
) -> BoxStream<'static, Result<WatchEvent<DynamicObject>, kube::Error>> {
    pods.watch(&WatchParams::default(), version).await.unwrap().boxed()
}

/// Creates the pods, follows them until each did what the kubelet's pod did, and returns the differences.
async fn run(containerd: &Containerd, client: &Client, expected: &BTreeMap<String, Expected>) -> Vec<String> {
    let resource = ApiResource::erase::<Pod>(&());
    let pods = Api::<DynamicObject>::namespaced_with(client.clone(), NAMESPACE, &resource);
    let mut version = pods.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let mut changes = watch(&pods, &version).await;
    let mut observed: BTreeMap<&str, Observed> =
        expected.keys().map(|name| (name.as_str(), Observed::default())).collect();
    for pod in expected.values().map(|expected| &expected.pod) {
        let mut pod = pacing::paced(pod);
        pod["spec"]["nodeName"] = "n1".into();
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    }
    let deadline = Instant::now() + LIMIT;
    loop {
        // The later life of a pod is not compared, because a failing container gets longer and longer backoffs.
        for (name, observed_pod) in &mut observed {
            observed_pod.done = observed_pod.done || expected[*name].missing(observed_pod).is_empty();
        }
        if observed.values().all(|observed_pod| observed_pod.done) {
            break;
        }
        for (name, observed_pod) in &mut observed {
            let Some(action) = expected[*name].action.filter(|_| !observed_pod.acted) else { continue };
            let has_run = observed_pod.runs_since.is_some_and(|since| since.elapsed() >= RUNS_FOR);
            if has_run && pacing::handles_stop(containerd, &observed_pod.container) {
                observed_pod.acted = true;
                act(client, &expected[*name].pod, action).await;
            }
        }
        // Events follow the change of a status, so they are read once a second also if nothing changes.
        let tick = deadline.min(Instant::now() + Duration::from_secs(1));
        let change = timeout_at(tick, changes.next()).await;
        match change {
            Ok(Some(Ok(WatchEvent::Added(pod) | WatchEvent::Modified(pod)))) => {
                version = pod.metadata.resource_version.clone().unwrap();
                let name = pod.metadata.name.clone().unwrap();
                let Some(observed_pod) = observed.get_mut(name.as_str()).filter(|observed_pod| !observed_pod.done)
                else {
                    continue;
                };
                let value = serde_json::to_value(&pod).unwrap();
                observed_pod.status(&value, &expected[&name].end);
                pacing::permit(containerd, &value);
            }
            Ok(Some(Ok(WatchEvent::Deleted(pod)))) => {
                version = pod.metadata.resource_version.clone().unwrap();
                if let Some(observed_pod) = observed.get_mut(pod.metadata.name.as_deref().unwrap()) {
                    observed_pod.removed = true;
                }
            }
            Ok(Some(Ok(WatchEvent::Bookmark(bookmark)))) => version = bookmark.metadata.resource_version,
            Ok(Some(Ok(WatchEvent::Error(error)))) => panic!("the watch failed: {error:?}"),
            Ok(Some(Err(error))) => panic!("the watch failed: {error}"),
            Ok(None) => changes = watch(&pods, &version).await,
            Err(_) => {
                read_events(client, &mut observed).await;
                if Instant::now() >= deadline {
                    break;
                }
            }
        }
    }
    observed
        .iter()
        .flat_map(|(name, observed_pod)| {
            let expected = &expected[*name];
            let all = expected.missing(observed_pod).into_iter().chain(expected.unexpected(observed_pod));
            all.map(move |difference| format!("{name}: {difference}"))
        })
        .collect()
}

/// Performs the action on a pod of the recording.
async fn act(client: &Client, pod: &Value, action: Action) {
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    let name = pod["metadata"]["name"].as_str().unwrap();
    match action {
        Action::Delete => drop(pods.delete(name, &DeleteParams::default()).await.unwrap()),
        Action::DeleteAtOnce => drop(pods.delete(name, &DeleteParams::default().grace_period(0)).await.unwrap()),
        Action::Evict => drop(pods.evict(name, &EvictParams::default()).await.unwrap()),
        Action::Expire => {
            let spec = json!({"spec": {"activeDeadlineSeconds": pod["spec"]["activeDeadlineSeconds"]}});
            drop(pods.patch(name, &PatchParams::default(), &Patch::Merge(spec)).await.unwrap());
        }
    }
}

async fn read_events(client: &Client, observed: &mut BTreeMap<&str, Observed>) {
    let events = Api::<Event>::namespaced(client.clone(), NAMESPACE);
    for event in events.list(&ListParams::default()).await.unwrap() {
        if let Some(observed_pod) = event.involved_object.name.as_deref().and_then(|name| observed.get_mut(name)) {
            observed_pod.event(&event);
        }
    }
}

/// Replaces the values of a text that differ from machine to machine, and from pod to pod.
fn normalized(text: &Value, uid: &str) -> Value {
    let Some(text) = text.as_str() else { return text.clone() };
    // The text that follows is written by runc, and differs from version to version.
    if let Some((before, _)) = text.split_once("OCI runtime create failed") {
        return before.into();
    }
    // CPU that other pods use, and the CPU of the machine.
    if let Some((before, _)) = text.split_once(", used: ") {
        return before.into();
    }
    let text = if uid.is_empty() { text.to_owned() } else { text.replace(uid, "<uid>") };
    text.into()
}
