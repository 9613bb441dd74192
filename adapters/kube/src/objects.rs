//! The API objects that the pods of this node refer to.
//!
//! A config map or a secret is watched while a registered pod refers to it, with a watch of its own: the API server lets a node read
//! only single objects that the node's pods name. An immutable object is read once. Services are watched together, because every
//! container gets their addresses. Tokens and trust bundles are requested when a pod first needs them, and then again in the background.

mod accounts;
mod bundles;
mod changes;
mod renewed;
mod services;
mod tokens;
mod watches;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Client;
use parking_lot::Mutex;
use podwright_core::objects::{ObjectRef, references};
use podwright_kube_api::KubeError;
use podwright_model::ids::PodUid;
use podwright_model::pod::PodObject;
use podwright_ports::{
    ApiObjects, Clock, Confidential, ObjectError, ObjectFuture, ObjectKind, PullSecret, PullSecretError, PullSecrets,
    ServiceAccountFacts, ServiceAccounts, ServiceAddress, TokenNeed, TrustBundleNeed,
};

use bundles::Bundles;
use changes::Changes;
use services::Services;
use tokens::Tokens;
use watches::Watches;

/// The lifetime of a token for a credential provider plugin, in seconds (the default of a `TokenRequest`).
const ACCOUNT_TOKEN_SECONDS: i64 = 3600;

/// The [`ApiObjects`] of an API server. Clones share their state.
#[derive(Clone)]
pub struct KubeObjects {
    client: Client,
    config_maps: Watches<ConfigMap>,
    secrets: Watches<Secret>,
    services: Arc<Services>,
    tokens: Arc<Tokens>,
    bundles: Arc<Bundles>,
    changes: Arc<Changes>,
    /// The registered pods that refer to objects.
    pods: Arc<Mutex<HashMap<PodUid, RegisteredPod>>>,
}

/// The objects of a registered pod.
struct RegisteredPod {
    namespace: String,
    references: BTreeSet<ObjectRef>,
}

impl KubeObjects {
    /// Starts the watch of services. Called in a tokio runtime.
    pub fn new(client: Client, clock: Arc<dyn Clock>) -> Self {
        let changes = Arc::new(Changes::default());
        KubeObjects {
            client: client.clone(),
            config_maps: Watches::new(client.clone(), changes.clone()),
            secrets: Watches::new(client.clone(), changes.clone()),
            services: Services::start(client.clone()),
            tokens: Arc::new(Tokens::new(client.clone(), clock.clone(), changes.clone())),
            bundles: Arc::new(Bundles::new(client, clock, changes.clone())),
            changes,
            pods: Arc::default(),
        }
    }

    fn follow(&self, namespace: &str, object: &ObjectRef, uid: &PodUid) {
        match object.kind {
            ObjectKind::ConfigMap => self.config_maps.follow(namespace, &object.name, uid),
            _ => self.secrets.follow(namespace, &object.name, uid),
        }
    }

    fn leave(&self, namespace: &str, object: &ObjectRef, uid: &PodUid) {
        match object.kind {
            ObjectKind::ConfigMap => self.config_maps.leave(namespace, &object.name, uid),
            _ => self.secrets.leave(namespace, &object.name, uid),
        }
    }
}

impl ApiObjects for KubeObjects {
    fn register(&self, pod: &Arc<PodObject>) {
        let (uid, namespace, found) = (pod.uid(), pod.full_name().namespace(), references(pod.spec()));
        let mut pods = self.pods.lock();
        let known = pods.get(uid);
        if known.map_or(found.is_empty(), |known| known.references == found) {
            return;
        }
        let before = known.map(|known| known.references.clone()).unwrap_or_default();
        found.difference(&before).for_each(|object| self.follow(namespace, object, uid));
        before.difference(&found).for_each(|object| self.leave(namespace, object, uid));
        pods.insert(uid.clone(), RegisteredPod { namespace: namespace.to_owned(), references: found });
    }

    fn unregister(&self, uid: &PodUid) {
        self.tokens.forget(uid);
        self.bundles.retain(&|used| used != uid);
        let Some(RegisteredPod { namespace, references }) = self.pods.lock().remove(uid) else { return };
        references.iter().for_each(|object| self.leave(&namespace, object, uid));
    }

    fn retain(&self, keep: &dyn Fn(&PodUid) -> bool) {
        self.tokens.retain(keep);
        self.bundles.retain(keep);
        let unused: Vec<_> = self.pods.lock().keys().filter(|uid| !keep(uid)).cloned().collect();
        unused.iter().for_each(|uid| self.unregister(uid));
    }

    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> ObjectFuture<'a, Arc<ConfigMap>> {
        self.config_maps.get(namespace, name).boxed()
    }

    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> ObjectFuture<'a, Arc<Secret>> {
        self.secrets.get(namespace, name).boxed()
    }

    fn token<'a>(&'a self, pod: &'a PodObject, request: &'a TokenNeed) -> ObjectFuture<'a, Confidential> {
        self.tokens.get(pod, request).boxed()
    }

    fn trust_bundle<'a>(&'a self, pod: &'a PodObject, request: &'a TrustBundleNeed) -> ObjectFuture<'a, String> {
        self.bundles.get(pod.uid(), request).boxed()
    }

    fn services<'a>(&'a self, namespace: &'a str) -> ObjectFuture<'a, Vec<Arc<ServiceAddress>>> {
        self.services.of(namespace).boxed()
    }

    fn changed(&self) -> BoxFuture<'_, Vec<PodUid>> {
        self.changes.next().boxed()
    }
}

/// The pull secrets of a pod are among its references, so they are watched while the pod is registered.
impl PullSecrets for KubeObjects {
    fn pull_secret<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<PullSecret, PullSecretError>> {
        async move {
            match self.secrets.get(namespace, name).await {
                Ok(secret) => PullSecret::of(&secret),
                Err(error) if error.is_missing() => Err(PullSecretError::NotFound),
                Err(error) => Err(PullSecretError::unavailable(error)),
            }
        }
        .boxed()
    }
}

impl ServiceAccounts for KubeObjects {
    fn service_account<'a>(&'a self, namespace: &'a str, name: &'a str) -> ObjectFuture<'a, ServiceAccountFacts> {
        accounts::read(self.client.clone(), namespace, name).boxed()
    }

    /// The token is kept and renewed like those of volumes.
    fn account_token<'a>(&'a self, pod: &'a PodObject, audience: &'a str) -> ObjectFuture<'a, Confidential> {
        let need = TokenNeed { audience: audience.to_owned(), expiration_seconds: ACCOUNT_TOKEN_SECONDS };
        async move { self.tokens.get(pod, &need).await }.boxed()
    }
}

/// Converts an error of the API server to the error of a read.
fn object_error(kind: ObjectKind, name: &str, error: KubeError) -> ObjectError {
    match error.code() {
        Some(404) => ObjectError::missing(kind, name),
        Some(403) => ObjectError::forbidden(kind, name, error),
        _ => ObjectError::unavailable(kind, name, error),
    }
}
