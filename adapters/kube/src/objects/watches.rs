//! One watch for each config map or secret that pods refer to.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client, Resource, ResourceExt};
use parking_lot::Mutex;
use podwright_kube_api::KubeError;
use podwright_model::ids::PodUid;
use podwright_ports::{ObjectError, ObjectKind};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::changes::Changes;
use super::object_error;
use crate::listing;
use crate::node_authorizer::EarlyRefusals;

/// How long a read waits for the first answer of the API server. Upstream waits for 1 s (`watchBasedManager`, 1.36). This wait is longer,
/// because the last repetition of a request that the Node authorizer has refused too early is sent after 1,050 ms.
const FIRST_ANSWER: Duration = Duration::from_millis(1_500);

/// An object that pods refer to by name.
pub(super) trait WatchedObject:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
    const KIND: ObjectKind;

    /// Whether the object never changes.
    fn is_immutable(&self) -> bool;
}

impl WatchedObject for ConfigMap {
    const KIND: ObjectKind = ObjectKind::ConfigMap;

    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
}

impl WatchedObject for Secret {
    const KIND: ObjectKind = ObjectKind::Secret;

    fn is_immutable(&self) -> bool {
        self.immutable == Some(true)
    }
}

/// Watches by the namespaces and the names of their objects.
type WatchesByName<K> = HashMap<(String, String), Arc<ObjectWatch<K>>>;

/// The watches of one kind. Clones share them.
#[derive(Clone)]
pub(super) struct Watches<K> {
    client: Client,
    changes: Arc<Changes>,
    watches: Arc<Mutex<WatchesByName<K>>>,
}

/// The watch of one object. The watch ends when this value is dropped.
struct ObjectWatch<K> {
    /// The registered pods that refer to the object.
    pods: Arc<Mutex<BTreeSet<PodUid>>>,
    reported: watch::Receiver<ReportedObject<K>>,
    /// A read did not get the first answer, so its pod has to be notified of that answer.
    was_late: Arc<AtomicBool>,
    _stop: DropGuard,
}

/// An object as the API server has reported it last.
#[derive(Clone)]
enum ReportedObject<K> {
    NotYet,
    Found(Arc<K>),
    Missing,
    Failed(ObjectError),
}

impl<K: WatchedObject> Watches<K> {
    pub(super) fn new(client: Client, changes: Arc<Changes>) -> Self {
        Watches { client, changes, watches: Arc::default() }
    }

    /// Adds a pod to those that refer to an object. The first one starts the watch.
    pub(super) fn follow(&self, namespace: &str, name: &str, uid: &PodUid) {
        let mut watches = self.watches.lock();
        let key = (namespace.to_owned(), name.to_owned());
        let watch = watches.entry(key).or_insert_with(|| Arc::new(self.start(namespace, name)));
        watch.pods.lock().insert(uid.clone());
    }

    /// Removes a pod from those that refer to an object. The last one ends the watch.
    pub(super) fn leave(&self, namespace: &str, name: &str, uid: &PodUid) {
        let mut watches = self.watches.lock();
        let key = (namespace.to_owned(), name.to_owned());
        let Some(watch) = watches.get(&key) else { return };
        let mut pods = watch.pods.lock();
        pods.remove(uid);
        let is_unused = pods.is_empty();
        drop(pods);
        if is_unused {
            watches.remove(&key);
        }
    }

    /// Reads an object. Waits a short time if the API server has not answered, or does not know yet that a pod of this node refers to the
    /// object. Cancel safe.
    pub(super) async fn get(&self, namespace: &str, name: &str) -> Result<Arc<K>, ObjectError> {
        let watch = self.watches.lock().get(&(namespace.to_owned(), name.to_owned())).cloned();
        let Some(watch) = watch else {
            let text = format!("object {namespace:?}/{name:?} not registered");
            return Err(ObjectError::unavailable(K::KIND, name, text));
        };
        let mut reported = watch.reported.clone();
        let is_answer = |reported: &ReportedObject<K>| {
            !matches!(reported, ReportedObject::NotYet | ReportedObject::Failed(ObjectError::Forbidden { .. }))
        };
        let in_time = timeout(FIRST_ANSWER, reported.wait_for(is_answer)).await.is_ok();
        if !in_time {
            watch.was_late.store(true, Ordering::SeqCst);
        }
        let reported = watch.reported.borrow();
        match &*reported {
            ReportedObject::Found(object) => Ok(object.clone()),
            ReportedObject::Missing => Err(ObjectError::missing(K::KIND, name)),
            ReportedObject::Failed(error) => Err(error.clone()),
            ReportedObject::NotYet => Err(ObjectError::NotYet(K::KIND)),
        }
    }

    fn start(&self, namespace: &str, name: &str) -> ObjectWatch<K> {
        let (reported, receiver) = watch::channel(ReportedObject::NotYet);
        let (pods, was_late, stop) = (Arc::default(), Arc::default(), CancellationToken::new());
        let task = WatchTask {
            api: Api::namespaced(self.client.clone(), namespace),
            name: name.to_owned(),
            reported,
            pods: Arc::clone(&pods),
            was_late: Arc::clone(&was_late),
            changes: self.changes.clone(),
        };
        tokio::spawn(stop.clone().run_until_cancelled_owned(task.run()));
        ObjectWatch { pods, reported: receiver, was_late, _stop: stop.drop_guard() }
    }
}

/// Follows one object.
struct WatchTask<K> {
    api: Api<K>,
    name: String,
    reported: watch::Sender<ReportedObject<K>>,
    pods: Arc<Mutex<BTreeSet<PodUid>>>,
    was_late: Arc<AtomicBool>,
    changes: Arc<Changes>,
}

impl<K: WatchedObject> WatchTask<K> {
    async fn run(self) {
        let (mut events, mut refusals) = (self.events(), EarlyRefusals::new());
        while let Some(event) = events.next().await {
            match event {
                Ok(Some(mut object)) => {
                    object.managed_fields_mut().clear();
                    let (is_immutable, object) = (object.is_immutable(), Arc::new(object));
                    self.publish(ReportedObject::Found(object));
                    if is_immutable {
                        return;
                    }
                }
                Ok(None) => self.publish(ReportedObject::Missing),
                Err(error) => {
                    let pause = error.status().and_then(|status| refusals.next_pause(status));
                    self.failed(error);
                    if let Some(pause) = pause {
                        sleep(pause).await;
                        // A new stream, because the backoff of the old one is longer than the pause.
                        events = self.events();
                    }
                }
            }
        }
    }

    fn events(&self) -> BoxStream<'static, Result<Option<K>, KubeError>> {
        listing::watch_object(self.api.clone(), &self.name).boxed()
    }

    /// Keeps the last object, if there is one. The stream tries again after its backoff.
    fn failed(&self, error: KubeError) {
        let namespace = self.api.namespace();
        tracing::debug!(kind = %K::KIND, namespace, name = self.name, %error, "cannot watch an object");
        if matches!(*self.reported.borrow(), ReportedObject::Found(_) | ReportedObject::Missing) {
            return;
        }
        self.reported.send_replace(ReportedObject::Failed(object_error(K::KIND, &self.name, error)));
    }

    /// Publishes the object as the API server reported it. Notifies the pods of a change, and of a first answer that came late.
    fn publish(&self, reported: ReportedObject<K>) {
        let version = |reported: &ReportedObject<K>| match reported {
            ReportedObject::Found(object) => object.resource_version(),
            _ => None,
        };
        let before = self.reported.send_replace(reported);
        let is_change = match (&before, &*self.reported.borrow()) {
            (ReportedObject::NotYet, _) => false,
            (ReportedObject::Found(_), now @ ReportedObject::Found(_)) => version(&before) != version(now),
            (ReportedObject::Missing, ReportedObject::Missing) => false,
            _ => true,
        };
        if self.was_late.swap(false, Ordering::SeqCst) || is_change {
            let pods = self.pods.lock().clone();
            self.changes.add(pods);
        }
    }
}
