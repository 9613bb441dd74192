//! Reads all config maps and secrets that a pod refers to at once, so that an object that the API server does not report delays no other
//! object.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};

use crate::objects::ObjectRef;
use crate::ports::{ApiObjects, ObjectError, ObjectKind};

/// Objects of one kind by name, each as the node read it.
type ObjectsByName<K> = BTreeMap<String, Result<Arc<K>, ObjectError>>;

pub(crate) async fn read_objects(
    api: &dyn ApiObjects,
    namespace: &str,
    objects: BTreeSet<ObjectRef>,
) -> (ObjectsByName<ConfigMap>, ObjectsByName<Secret>) {
    let (config_maps, secrets): (Vec<_>, Vec<_>) =
        objects.into_iter().partition(|object| object.kind == ObjectKind::ConfigMap);
    let config_maps = config_maps.into_iter().map(|ObjectRef { name, .. }| async move {
        let found = api.config_map(namespace, &name).await;
        (name, found)
    });
    let secrets = secrets.into_iter().map(|ObjectRef { name, .. }| async move {
        let found = api.secret(namespace, &name).await;
        (name, found)
    });
    let (config_maps, secrets) = tokio::join!(join_all(config_maps), join_all(secrets));
    (config_maps.into_iter().collect(), secrets.into_iter().collect())
}
