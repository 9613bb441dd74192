//! Service accounts, as credential provider plugins need them. They are read for each pull of an image, as a kubelet does.

use std::time::Duration;

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, Client};
use podwright_ports::{ObjectError, ObjectKind, ServiceAccountFacts};
use tokio::time::timeout;

use super::object_error;
use crate::node_authorizer::until_related;

/// How long one request may take, with its repetitions.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads a service account.
pub(super) async fn read(client: Client, namespace: &str, name: &str) -> Result<ServiceAccountFacts, ObjectError> {
    let api = Api::<ServiceAccount>::namespaced(client, namespace);
    let get = || api.get(name);
    let account = match timeout(REQUEST_TIMEOUT, until_related(get)).await {
        Ok(answer) => answer.map_err(|error| object_error(ObjectKind::ServiceAccount, name, error.into()))?,
        Err(elapsed) => return Err(ObjectError::unavailable(ObjectKind::ServiceAccount, name, elapsed)),
    };
    let uid = account.metadata.uid.unwrap_or_default();
    Ok(ServiceAccountFacts { uid, annotations: account.metadata.annotations.unwrap_or_default() })
}
