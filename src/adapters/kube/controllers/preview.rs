//! Reads the objects of a cluster once, for the preview of a rule.

use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use kube::api::ListParams;
use kube::core::DeserializeGuard;
use kube::{Api, Client, Resource};
use podwright_actors::time::Time;
use podwright_controllers::device_taint_eviction::{Core, Settings};
use podwright_controllers::resource_claim::WatchEvent;
use podwright_kube_api::KubeError;
use serde::de::DeserializeOwned;

use super::watches::{keep_claims_of_pod, keep_results_of_claim, keep_taints_of_slice, unserved};

/// The number of objects in one page of a list (client-go's default page size, 1.36).
const PAGE_SIZE: u32 = 500;

/// The objects of a cluster that a preview of a rule needs.
#[derive(Debug)]
#[non_exhaustive]
pub struct PreviewedCluster {
    /// The objects of the cluster.
    pub core: Core,
    /// What the preview could not take into account, with the remedies.
    pub warnings: Vec<String>,
}

/// A list failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot list the {plural} of the cluster: {remedy}")]
#[non_exhaustive]
pub struct ListError {
    /// The plural of the resource.
    pub plural: String,
    /// What to do.
    pub remedy: &'static str,
    /// The error of the call.
    pub source: KubeError,
}

impl PreviewedCluster {
    /// Lists the pods, claims, slices and rules of a cluster. If the API server does not serve rules, or does not permit the user to
    /// list them, the other rules of the cluster are missing.
    ///
    /// # Errors
    /// [`ListError`] for the first list that fails.
    pub async fn read(client: &Client, settings: Settings, now: Time) -> Result<Self, ListError> {
        let mut warnings = Vec::new();
        let pods = list::<Pod>(client, keep_claims_of_pod, &mut warnings).await?;
        let claims = list::<ResourceClaim>(client, keep_results_of_claim, &mut warnings).await?;
        let slices = list::<ResourceSlice>(client, keep_taints_of_slice, &mut warnings).await?;
        let rules = match list::<DeviceTaintRule>(client, |rule| rule.metadata.managed_fields = None, &mut warnings)
            .await
        {
            Ok(rules) => rules,
            Err(error) if error.is(404) => {
                warnings
                    .push(format!("the API server does not serve DeviceTaintRules: {}", unserved("DeviceTaintRule")));
                Vec::new()
            }
            Err(error) if error.is(403) => {
                warnings.push(
                    "the other rules of the cluster are not shown: permit the verb list on devicetaintrules".to_owned(),
                );
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        let mut core = Core::new(Settings { rules: true, ..settings });
        deliver(slices, |event| core.slice_event(event, now));
        deliver(rules, |event| core.rule_event(event, now));
        deliver(claims, |event| core.claim_event(event));
        deliver(pods, |event| core.pod_event(event, now));
        Ok(PreviewedCluster { core, warnings })
    }
}

/// Lists the objects of one kind in all namespaces.
async fn list<K>(client: &Client, shrink: fn(&mut K), warnings: &mut Vec<String>) -> Result<Vec<Arc<K>>, ListError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let api = Api::<DeserializeGuard<K>>::all(client.clone());
    let mut found = Vec::new();
    let mut page = ListParams::default().limit(PAGE_SIZE);
    loop {
        let list = api.list(&page).await.map_err(|error| ListError::new::<K>(error.into()))?;
        keep(list.items, shrink, &mut found, warnings);
        match list.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => page = page.continue_token(&next),
            None => return Ok(found),
        }
    }
}

/// Adds the objects of a page. Each is shrunk before it is kept, because a cluster may have more objects than fit into memory in full.
fn keep<K: Resource<DynamicType = ()>>(
    page: Vec<DeserializeGuard<K>>,
    shrink: fn(&mut K),
    found: &mut Vec<Arc<K>>,
    warnings: &mut Vec<String>,
) {
    for guarded in page {
        match guarded.0 {
            Ok(mut object) => {
                shrink(&mut object);
                found.push(Arc::new(object));
            }
            Err(invalid) => {
                let name = invalid.metadata.name.unwrap_or_default();
                let namespace = invalid.metadata.namespace.map(|namespace| format!("{namespace}/")).unwrap_or_default();
                warnings.push(format!(
                    "{} {namespace}{name} is ignored, because it cannot be decoded: {}",
                    K::kind(&()),
                    invalid.error
                ));
            }
        }
    }
}

impl ListError {
    fn new<K: Resource<DynamicType = ()>>(source: KubeError) -> Self {
        let remedy = match source.code() {
            Some(401) => "correct the credentials of the kubeconfig",
            Some(403) => {
                "permit the verb list on pods, resourceclaims, resourceslices and devicetaintrules, or use another kubeconfig"
            }
            Some(404) => unserved(&K::kind(&())),
            Some(_) => "try again",
            None => "check the server of the kubeconfig and the network",
        };
        ListError { plural: K::plural(&()).into_owned(), remedy, source }
    }

    fn is(&self, expected: u16) -> bool {
        self.source.code() == Some(expected)
    }
}

/// Delivers objects as the list of a watch.
fn deliver<K>(objects: Vec<Arc<K>>, mut event: impl FnMut(WatchEvent<K>)) {
    event(WatchEvent::Init);
    for object in objects {
        event(WatchEvent::InitApply(object));
    }
    event(WatchEvent::InitDone);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_are_shrunk_before_they_are_kept() {
        let guarded =
            |spec| serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec})).unwrap();
        let page: Vec<DeserializeGuard<Pod>> =
            vec![guarded(json!({"nodeName": "n", "containers": [{"name": "c"}]})), guarded(json!("wrong"))];
        let (mut found, mut warnings) = (Vec::new(), Vec::new());
        keep(page, keep_claims_of_pod, &mut found, &mut warnings);
        let spec = found[0].spec.as_ref().unwrap();
        assert_eq!((found.len(), spec.node_name.as_deref(), spec.containers.len()), (1, Some("n"), 0));
        assert!(warnings[0].starts_with("Pod n/p is ignored, because it cannot be decoded"), "{warnings:?}");
    }
}
