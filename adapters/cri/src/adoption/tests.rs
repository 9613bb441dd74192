//! Which pods are adopted, and under which UID they continue.

use std::sync::Arc;

use futures_util::FutureExt;
use parking_lot::Mutex;
use podwright_model::pod::PodObject;
use podwright_ports::SourceKind;
use serde_json::json;

use super::*;

/// The running pods of a kubelet.
struct Kubelet(Mutex<Vec<KubeletPod>>);

impl KubeletPods for Kubelet {
    fn kubelet_pods(&self) -> RuntimeFuture<'_, Vec<KubeletPod>> {
        async { Ok(self.0.lock().clone()) }.boxed()
    }
}

struct Node {
    root: tempfile::TempDir,
    kubelet: Arc<Kubelet>,
}

impl Node {
    fn new(running: &[(&str, &str)]) -> Self {
        let pod = |(uid, name): &(&str, &str)| KubeletPod {
            uid: PodUid::new(uid),
            full_name: FullName::new("default", name),
            is_running: true,
            created_at: Time::ZERO,
        };
        let kubelet = Arc::new(Kubelet(Mutex::new(running.iter().map(pod).collect())));
        Node { root: tempfile::tempdir().unwrap(), kubelet }
    }

    fn agent(&self, adopts_more: bool) -> Adoption {
        let pods = AdoptedPods::load(self.root.path(), adopts_more).unwrap();
        Adoption { pods: Arc::new(pods), runtime: self.kubelet.clone() }
    }
}

fn pod(uid: &str, name: &str, source: SourceKind) -> Arc<PodObject> {
    let annotations = json!({"kubernetes.io/config.source": source.as_str(), "kubernetes.io/config.hash": uid});
    let metadata = json!({"name": name, "namespace": "default", "uid": uid, "annotations": annotations});
    PodObject::new(serde_json::from_value(json!({"metadata": metadata, "spec": {"containers": []}})).unwrap()).unwrap()
}

/// The UIDs under which the pods of a set run.
async fn applied(adoption: &Adoption, source: SourceKind, pods: &[Arc<PodObject>]) -> Vec<Arc<PodObject>> {
    let set = SourceSet { source, pods: pods.to_vec(), problems: vec![] };
    let SourceUpdate::Set(set) = adoption.apply(set.into()).await else { panic!("a set stays a set") };
    set.pods
}

fn uids(pods: &[Arc<PodObject>]) -> Vec<String> {
    pods.iter().map(|pod| pod.uid().to_string()).collect()
}

#[tokio::test]
async fn a_static_pod_takes_the_uid_under_which_its_full_name_runs() {
    let node = Node::new(&[("k1", "web-n1"), ("k2", "other-n1")]);
    let agent = node.agent(true);
    let manifests = [pod("m1", "web-n1", SourceKind::File), pod("m3", "new-n1", SourceKind::File)];
    let first = applied(&agent, SourceKind::File, &manifests).await;
    assert_eq!(uids(&first), ["k1", "m3"]);
    assert_eq!(first[0].annotation(HASH_ANNOTATION), Some("k1"), "the hash of a static pod equals its UID");
    assert_eq!(*agent.pods.uids(), ["k1".into()].into(), "a pod without a manifest is left alone");
    let again = applied(&agent, SourceKind::File, &manifests).await;
    assert!(Arc::ptr_eq(&first[0], &again[0]), "an unchanged pod is the same object");
}

#[tokio::test]
async fn a_pod_of_the_api_is_adopted_by_its_uid_only() {
    let node = Node::new(&[("k1", "web"), ("k2", "db")]);
    let agent = node.agent(true);
    let pods = [pod("k1", "web", SourceKind::Api), pod("a2", "db", SourceKind::Api)];
    assert_eq!(uids(&applied(&agent, SourceKind::Api, &pods).await), ["k1", "a2"]);
    assert_eq!(*agent.pods.uids(), ["k1".into()].into());
}

#[tokio::test]
async fn nothing_is_adopted_without_the_flag() {
    let node = Node::new(&[("k1", "web-n1")]);
    let agent = node.agent(false);
    let pods = [pod("m1", "web-n1", SourceKind::File)];
    assert_eq!(uids(&applied(&agent, SourceKind::File, &pods).await), ["m1"]);
    assert!(agent.pods.uids().is_empty());
}

#[tokio::test]
async fn an_adopted_pod_keeps_its_uid_in_later_agents_until_its_manifest_changes() {
    let node = Node::new(&[("k1", "web-n1")]);
    let first = [pod("m1", "web-n1", SourceKind::File)];
    applied(&node.agent(true), SourceKind::File, &first).await;
    // The next agent needs no flag for it. Its pod must not start a second time.
    assert_eq!(uids(&applied(&node.agent(false), SourceKind::File, &first).await), ["k1"]);
    let changed = [pod("m2", "web-n1", SourceKind::File)];
    let agent = node.agent(true);
    assert_eq!(uids(&applied(&agent, SourceKind::File, &changed).await), ["m2"], "the changed pod is another pod");
    assert_eq!(*agent.pods.uids(), ["k1".into()].into(), "the agent stops the earlier pod");
    node.kubelet.0.lock().clear();
    applied(&agent, SourceKind::File, &changed).await;
    assert!(agent.pods.uids().is_empty());
}

#[tokio::test]
async fn an_adopted_pod_without_a_manifest_belongs_to_the_agent_while_it_is_there() {
    let node = Node::new(&[("k1", "web-n1")]);
    let pods = [pod("m1", "web-n1", SourceKind::File)];
    applied(&node.agent(true), SourceKind::File, &pods).await;
    let agent = node.agent(true);
    applied(&agent, SourceKind::Http, &[]).await;
    applied(&agent, SourceKind::File, &[]).await;
    assert_eq!(*agent.pods.uids(), ["k1".into()].into(), "the agent finds it and stops it");
    node.kubelet.0.lock().clear();
    applied(&agent, SourceKind::File, &[]).await;
    assert!(agent.pods.uids().is_empty());
}

#[tokio::test]
async fn a_second_pod_of_the_same_name_keeps_its_own_uid() {
    let node = Node::new(&[("k1", "web-n1")]);
    let pods = [pod("m1", "web-n1", SourceKind::File), pod("m2", "web-n1", SourceKind::File)];
    assert_eq!(uids(&applied(&node.agent(true), SourceKind::File, &pods).await), ["k1", "m2"]);
}

#[tokio::test]
async fn a_damaged_record_of_adoptions_is_an_error_with_a_remedy() {
    let node = Node::new(&[]);
    std::fs::write(node.root.path().join(FILE), "podwright 1 0\n[]").unwrap();
    let error = AdoptedPods::load(node.root.path(), true).unwrap_err();
    let text = error_chain(&error).to_string();
    assert!(text.contains("--adopt-kubelet-pods") && text.contains("adopted-pods is damaged"), "{text}");
}
