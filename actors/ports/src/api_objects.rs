//! The API objects that the pods of this node refer to.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use podwright_model::ids::PodUid;
use podwright_model::pod::PodObject;
use podwright_model::texts::objects as texts;

use super::{Confidential, ErrorSource, is_same};

/// The result of reading an object.
pub type ObjectFuture<'a, T> = BoxFuture<'a, Result<T, ObjectError>>;

/// Reads the objects that pods refer to. An implementation watches an object while a registered pod refers to it, so a read answers
/// from memory. A read that comes before the first answer of the API server waits for that answer for a short time.
///
/// Every read is cancel safe.
pub trait ApiObjects: Send + Sync + 'static {
    /// Starts to follow the objects that the pod refers to. Called before each read of such an object. Idempotent. A newer version of
    /// a pod replaces the older one.
    fn register(&self, pod: &Arc<PodObject>);

    /// Ends what [`register`](ApiObjects::register) started for this pod. Idempotent.
    fn unregister(&self, uid: &PodUid);

    /// Unregisters the pods that `keep` rejects.
    fn retain(&self, keep: &dyn Fn(&PodUid) -> bool);

    /// Reads a `ConfigMap`.
    ///
    /// # Errors
    /// [`ObjectError`]
    fn config_map<'a>(&'a self, namespace: &'a str, name: &'a str) -> ObjectFuture<'a, Arc<ConfigMap>>;

    /// Reads a `Secret`.
    ///
    /// # Errors
    /// [`ObjectError`]
    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> ObjectFuture<'a, Arc<Secret>>;

    /// Returns a token of the pod's service account that is bound to the pod. The call waits for the API server only if there is no valid
    /// token. If a token is about to expire, the call returns it and starts its renewal in the background. [`changed`](ApiObjects::changed)
    /// returns the pod when there is a new token.
    ///
    /// # Errors
    /// [`ObjectError`] if there is no valid token.
    fn token<'a>(&'a self, pod: &'a PodObject, request: &'a TokenNeed) -> ObjectFuture<'a, Confidential>;

    /// Returns the certificates of `ClusterTrustBundle` objects as PEM blocks, each certificate once. The call waits for the API server
    /// only if no bundle is known. A later call starts a new read of an old bundle in the background. [`changed`](ApiObjects::changed)
    /// returns the pod when the certificates have changed.
    ///
    /// # Errors
    /// [`ObjectError`]
    fn trust_bundle<'a>(&'a self, pod: &'a PodObject, request: &'a TrustBundleNeed) -> ObjectFuture<'a, String>;

    /// Returns the services of a namespace that have a cluster IP, and the service `kubernetes` of the namespace `default`.
    ///
    /// # Errors
    /// [`ObjectError`]
    fn services<'a>(&'a self, namespace: &'a str) -> ObjectFuture<'a, Vec<Arc<ServiceAddress>>>;

    /// Waits until objects have changed, and returns the pods that use them. A pod is returned once for all changes
    /// since the last call. Only one caller waits at a time.
    fn changed(&self) -> BoxFuture<'_, Vec<PodUid>>;
}

/// A token that a pod needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenNeed {
    /// The audience; empty for the API server.
    pub audience: String,
    /// The lifetime to request, in seconds.
    pub expiration_seconds: i64,
}

/// The trust bundles that a pod needs.
#[derive(Clone, Debug, PartialEq)]
pub enum TrustBundleNeed {
    /// The bundle of this name.
    Name(String),
    /// The bundles of a signer.
    Signer {
        /// The name of the signer.
        signer: String,
        /// The labels of the bundles. `None` selects no bundle, and an empty selector selects all.
        labels: Option<LabelSelector>,
    },
}

/// The address of a service, as environment variables show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAddress {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The cluster IP.
    pub cluster_ip: String,
    /// The ports, in spec order.
    pub ports: Vec<ServiceAddressPort>,
}

/// A port of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAddressPort {
    /// The name; empty if the port has none.
    pub name: String,
    /// The number.
    pub port: i32,
    /// The protocol, such as `TCP`.
    pub protocol: String,
}

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKind {
    /// A `ConfigMap`.
    ConfigMap,
    /// A `Secret`.
    Secret,
    /// A `Service`.
    Service,
    /// A `ServiceAccount`.
    ServiceAccount,
    /// A token of a `ServiceAccount`.
    Token,
    /// A `ClusterTrustBundle`.
    TrustBundle,
}

impl ObjectKind {
    /// The resource, as the error of a missing object names it.
    pub const fn resource(self) -> &'static str {
        match self {
            ObjectKind::ConfigMap => "configmap",
            ObjectKind::Secret => "secret",
            ObjectKind::Service => "service",
            ObjectKind::ServiceAccount | ObjectKind::Token => "serviceaccounts",
            ObjectKind::TrustBundle => "clustertrustbundles.certificates.k8s.io",
        }
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ObjectKind::ServiceAccount => "the service account",
            ObjectKind::Token => "a token of the service account",
            ObjectKind::TrustBundle => "the trust bundle",
            kind => kind.resource(),
        })
    }
}

/// An object cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The object does not exist.
    #[error("{}", texts::not_found(.kind.resource(), .name))]
    Missing {
        /// The kind of the object.
        kind: ObjectKind,
        /// The name of the object.
        name: String,
    },
    /// The API server has not answered yet.
    #[error("{}", texts::not_synced(.0.resource()))]
    NotYet(ObjectKind),
    /// The API server does not permit the node to read the object. It permits a node the objects that the node's pods refer to.
    #[error("the node may not read {kind} {name:?}")]
    Forbidden {
        /// The kind of the object.
        kind: ObjectKind,
        /// The name of the object.
        name: String,
        /// The API server's error.
        source: ErrorSource,
    },
    /// The API server cannot be reached, or cannot answer now.
    #[error("cannot read {kind} {name:?}")]
    Unavailable {
        /// The kind of the object.
        kind: ObjectKind,
        /// The name of the object.
        name: String,
        /// What the server or the connection reported.
        source: ErrorSource,
    },
}

impl ObjectError {
    /// A missing object.
    pub fn missing(kind: ObjectKind, name: impl Into<String>) -> Self {
        ObjectError::Missing { kind, name: name.into() }
    }

    /// An object that the node may not read, because of `source`.
    pub fn forbidden(
        kind: ObjectKind,
        name: impl Into<String>,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        ObjectError::Forbidden { kind, name: name.into(), source: source.into().into() }
    }

    /// An object that cannot be read now, because of `source`.
    pub fn unavailable(
        kind: ObjectKind,
        name: impl Into<String>,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        ObjectError::Unavailable { kind, name: name.into(), source: source.into().into() }
    }

    /// Whether the object does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, ObjectError::Missing { .. })
    }
}

/// Two errors are equal if they have the same variant and the same text, sources included.
impl PartialEq for ObjectError {
    fn eq(&self, other: &Self) -> bool {
        is_same(self, other)
    }
}
