//! The API objects of a node, in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use parking_lot::Mutex;
use podwright_model::ids::PodUid;
use podwright_model::pod::PodObject;
use podwright_ports::{
    ApiObjects, Confidential, ObjectError, ObjectFuture, ObjectKind, ServiceAddress, TokenNeed, TrustBundleNeed,
};
use serde_json::{Value, json};
use tokio::sync::Notify;

/// Objects that a test creates and removes. Each change notifies all registered pods.
#[derive(Default)]
pub(crate) struct FakeObjects {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    config_maps: BTreeMap<String, Arc<ConfigMap>>,
    secrets: BTreeMap<String, Arc<Secret>>,
    registered: BTreeSet<PodUid>,
    changed: Vec<PodUid>,
    /// Whether the next report of changes panics.
    panics: bool,
    /// How long the read of an object takes.
    slow: Duration,
}

impl FakeObjects {
    pub(crate) fn put_config_map(&self, name: &str, data: &Value) {
        let object = serde_json::from_value(json!({"data": data})).unwrap();
        self.change(|state| drop(state.config_maps.insert(name.to_owned(), Arc::new(object))));
    }

    pub(crate) fn remove_config_map(&self, name: &str) {
        self.change(|state| drop(state.config_maps.remove(name)));
    }

    /// Creates a secret. The values of `data` are base64.
    pub(crate) fn put_secret(&self, name: &str, data: &Value) {
        let object = serde_json::from_value(json!({"data": data})).unwrap();
        self.change(|state| drop(state.secrets.insert(name.to_owned(), Arc::new(object))));
    }

    /// Makes the read of each object take this long.
    pub(crate) fn slow(&self, by: Duration) {
        self.state.lock().slow = by;
    }

    /// Makes the report of changes panic once, now.
    pub(crate) fn panic_in_changed(&self) {
        self.state.lock().panics = true;
        self.changed.notify_one();
    }

    /// The answer to a read.
    fn answer<T: Send + 'static>(&self, found: Result<T, ObjectError>) -> ObjectFuture<'static, T> {
        let slow = self.state.lock().slow;
        async move {
            if !slow.is_zero() {
                tokio::time::sleep(slow).await;
            }
            found
        }
        .boxed()
    }

    pub(crate) fn is_registered(&self, uid: &str) -> bool {
        self.state.lock().registered.contains(&uid.into())
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        change(&mut state);
        state.changed = state.registered.iter().cloned().collect();
        self.changed.notify_one();
    }
}

impl ApiObjects for FakeObjects {
    fn register(&self, pod: &Arc<PodObject>) {
        self.state.lock().registered.insert(pod.uid().clone());
    }

    fn unregister(&self, uid: &PodUid) {
        self.state.lock().registered.remove(uid);
    }

    fn retain(&self, keep: &dyn Fn(&PodUid) -> bool) {
        self.state.lock().registered.retain(|uid| keep(uid));
    }

    fn config_map<'a>(&'a self, _: &'a str, name: &'a str) -> ObjectFuture<'a, Arc<ConfigMap>> {
        let found = self.state.lock().config_maps.get(name).cloned();
        self.answer(found.ok_or_else(|| ObjectError::missing(ObjectKind::ConfigMap, name)))
    }

    fn secret<'a>(&'a self, _: &'a str, name: &'a str) -> ObjectFuture<'a, Arc<Secret>> {
        let found = self.state.lock().secrets.get(name).cloned();
        self.answer(found.ok_or_else(|| ObjectError::missing(ObjectKind::Secret, name)))
    }

    fn token<'a>(&'a self, _: &'a PodObject, _: &'a TokenNeed) -> ObjectFuture<'a, Confidential> {
        self.answer(Ok(Confidential::from(b"token".to_vec())))
    }

    fn trust_bundle<'a>(&'a self, _: &'a PodObject, _: &'a TrustBundleNeed) -> ObjectFuture<'a, String> {
        self.answer(Ok(String::new()))
    }

    fn services<'a>(&'a self, _: &'a str) -> ObjectFuture<'a, Vec<Arc<ServiceAddress>>> {
        self.answer(Ok(Vec::new()))
    }

    fn changed(&self) -> BoxFuture<'_, Vec<PodUid>> {
        async {
            self.changed.notified().await;
            let mut state = self.state.lock();
            assert!(!std::mem::take(&mut state.panics), "a fault of the objects");
            std::mem::take(&mut state.changed)
        }
        .boxed()
    }
}
