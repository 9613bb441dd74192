//! The objects of `resource.k8s.io` in the newest version that an API server serves: `v1` (Kubernetes 1.34 and later), `v1beta2` or
//! `v1beta1` (Kubernetes 1.32 and later). The callers see only `v1`.

mod convert;
mod version;

use std::sync::Arc;

use futures_util::future::BoxFuture;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::core::{DynamicObject, Resource};
use kube::discovery::ApiResource;
use kube::{Api, Client};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use version::{ServedVersion, Version, is_not_served};

/// Reads claims from an API server.
#[derive(Clone)]
pub struct Claims {
    client: Client,
    version: Arc<ServedVersion>,
}

impl Claims {
    /// The first call finds the version that the server serves, and later calls use it.
    pub fn new(client: Client) -> Self {
        Claims { client, version: Arc::default() }
    }

    /// Reads a claim. The caller limits the time.
    ///
    /// # Errors
    /// The error of the API server, or of the connection to it.
    pub async fn get(&self, namespace: &str, name: &str) -> kube::Result<ResourceClaim> {
        let get = |version| -> BoxFuture<'_, kube::Result<ResourceClaim>> {
            let kind = resource::<ResourceClaim>(version);
            let api = Api::<DynamicObject>::namespaced_with(self.client.clone(), namespace, &kind);
            Box::pin(async move { to_v1(version, &api.get(name).await?) })
        };
        self.version.call(get).await
    }
}

/// The kind `K` of `resource.k8s.io` in a version.
pub fn resource<K: Resource<DynamicType = ()>>(version: Version) -> ApiResource {
    let v1 = ApiResource::erase::<K>(&());
    ApiResource { version: version.as_str().to_owned(), api_version: version.api_version(), ..v1 }
}

/// Converts an object of this version to `v1`.
///
/// # Errors
/// [`kube::Error::SerdeError`] if the object does not have the form of its version.
pub fn to_v1<K: DeserializeOwned>(version: Version, object: &DynamicObject) -> kube::Result<K> {
    let mut object = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
    convert::to_v1(version, &mut object);
    serde_json::from_value(object).map_err(kube::Error::SerdeError)
}

/// Converts a `v1` object to this version.
///
/// # Errors
/// [`kube::Error::SerdeError`].
pub fn from_v1<K: Serialize>(version: Version, object: &K) -> kube::Result<DynamicObject> {
    let mut object = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
    convert::from_v1(version, &mut object);
    serde_json::from_value(object).map_err(kube::Error::SerdeError)
}
