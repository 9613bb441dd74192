//! Reads the objects of a cluster once, for the preview of a rule.

use std::fmt::Debug;
use std::sync::Arc;

use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use kube::api::ListParams;
use kube::core::DeserializeGuard;
use kube::{Api, Client, Resource};
use podwright_controllers::device_taint_eviction::{Core, Settings};
use podwright_controllers::resource_claim::WatchEvent;
use podwright_kube_api::KubeError;
use podwright_model::time::Time;
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
    /// Lists the slices, rules, claims and pods of a cluster. If the API server does not serve rules, or does not permit the user to
    /// list them, the other rules of the cluster are missing.
    ///
    /// # Errors
    /// [`ListError`] for the first list that fails.
    pub async fn read(client: &Client, settings: Settings, now: Time) -> Result<Self, ListError> {
        let mut warnings = Vec::new();
        let mut core = Core::new(Settings { rules: true, ..settings });
        // Each rule and each slice would compute the evictions of all claims that are known before it.
        list(client, keep_taints_of_slice, &mut warnings, |event| core.slice_event(event, now)).await?;
        let keep_rule = |rule: &mut DeviceTaintRule| rule.metadata.managed_fields = None;
        match list(client, keep_rule, &mut warnings, |event| core.rule_event(event, now)).await {
            Ok(()) => {}
            Err(error) if error.is(404) => {
                warnings
                    .push(format!("the API server does not serve DeviceTaintRules: {}", unserved("DeviceTaintRule")));
            }
            Err(error) if error.is(403) => {
                warnings.push(
                    "the other rules of the cluster are not shown: permit the verb list on devicetaintrules".to_owned(),
                );
            }
            Err(error) => return Err(error),
        }
        list(client, keep_results_of_claim, &mut warnings, |event| core.claim_event(event)).await?;
        list(client, keep_claims_of_pod, &mut warnings, |event| core.pod_event(event, now)).await?;
        Ok(PreviewedCluster { core, warnings })
    }
}

/// Lists the objects of one kind in all namespaces. Each page is delivered before the next one is read, because a cluster may have more
/// pods than fit into memory, and the core keeps only those that use claims. The objects are delivered as changes: of a list, the core would
/// keep the names of all objects.
async fn list<K>(
    client: &Client,
    shrink: fn(&mut K),
    warnings: &mut Vec<String>,
    mut deliver: impl FnMut(WatchEvent<K>),
) -> Result<(), ListError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let api = Api::<DeserializeGuard<K>>::all(client.clone());
    let mut page = ListParams::default().limit(PAGE_SIZE);
    loop {
        let list = api.list(&page).await.map_err(|error| ListError::new::<K>(error.into()))?;
        deliver_page(list.items, shrink, warnings, &mut deliver);
        match list.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => page = page.continue_token(&next),
            None => return Ok(()),
        }
    }
}

/// Delivers the objects of a page. Each is shrunk before, because the core keeps it as it is.
fn deliver_page<K: Resource<DynamicType = ()>>(
    page: Vec<DeserializeGuard<K>>,
    shrink: fn(&mut K),
    warnings: &mut Vec<String>,
    mut deliver: impl FnMut(WatchEvent<K>),
) {
    for guarded in page {
        match guarded.0 {
            Ok(mut object) => {
                shrink(&mut object);
                deliver(WatchEvent::Apply(Arc::new(object)));
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::ready;

    use http::{Request, Response};
    use k8s_openapi::api::core::v1::Pod;
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn each_page_is_delivered_before_the_next_one_is_read() {
        // The pods that were delivered, and their numbers at each request.
        let delivered = Arc::new(Mutex::new((Vec::new(), Vec::new())));
        let at_server = delivered.clone();
        let server = tower::service_fn(move |request: Request<Body>| {
            let (pods, numbers) = &mut *at_server.lock();
            numbers.push(pods.len());
            let is_first = !request.uri().query().unwrap().contains("continue=next");
            let (name, next) = if is_first { ("p0", "next") } else { ("p1", "") };
            let page = json!({
                "apiVersion": "v1", "kind": "PodList", "metadata": { "continue": next },
                "items": [{ "metadata": { "name": name, "namespace": "n" } }],
            });
            ready(Ok::<_, Infallible>(Response::new(Body::from(page.to_string().into_bytes()))))
        });
        let client = Client::new(server, "default");
        let deliver = |event: WatchEvent<Pod>| {
            let WatchEvent::Apply(pod) = event else { panic!("{event:?}") };
            delivered.lock().0.push(pod.metadata.name.clone().unwrap());
        };
        list(&client, keep_claims_of_pod, &mut Vec::new(), deliver).await.unwrap();
        let (pods, numbers) = &*delivered.lock();
        assert_eq!((&pods[..], &numbers[..]), (&["p0".to_owned(), "p1".to_owned()][..], &[0, 1][..]));
    }

    #[tokio::test]
    async fn taints_are_read_before_the_claims_whose_evictions_follow_from_them() {
        let listed = Arc::new(Mutex::new(Vec::new()));
        let at_server = listed.clone();
        let server = tower::service_fn(move |request: Request<Body>| {
            at_server.lock().push(request.uri().path().rsplit('/').next().unwrap().to_owned());
            let list = json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": [] });
            ready(Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes()))))
        });
        let client = Client::new(server, "default");
        let cluster = PreviewedCluster::read(&client, Settings::default(), Time::from_secs(0)).await.unwrap();
        assert!(cluster.warnings.is_empty(), "{:?}", cluster.warnings);
        assert_eq!(*listed.lock(), ["resourceslices", "devicetaintrules", "resourceclaims", "pods"]);
    }

    #[test]
    fn objects_are_shrunk_before_they_are_kept() {
        let guarded =
            |spec| serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec})).unwrap();
        let page: Vec<DeserializeGuard<Pod>> =
            vec![guarded(json!({"nodeName": "n", "containers": [{"name": "c"}]})), guarded(json!("wrong"))];
        let (mut found, mut warnings) = (Vec::new(), Vec::new());
        deliver_page(page, keep_claims_of_pod, &mut warnings, |event| found.extend(event.object().cloned()));
        let spec = found[0].spec.as_ref().unwrap();
        assert_eq!((found.len(), spec.node_name.as_deref(), spec.containers.len()), (1, Some("n"), 0));
        assert!(warnings[0].starts_with("Pod n/p is ignored, because it cannot be decoded"), "{warnings:?}");
    }
}
