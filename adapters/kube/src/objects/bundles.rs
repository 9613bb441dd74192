//! The trust bundles of the cluster.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::core::Selector;
use kube::{Api, Client};
use parking_lot::Mutex;
use podwright_core::objects::RenewalTimes;
use podwright_model::ids::PodUid;
use podwright_ports::{Clock, ObjectError, ObjectKind, TrustBundleNeed};
use tokio::time::timeout;

use super::changes::Changes;
use super::object_error;
use super::renewed::{Answer, Renewed};

/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long bundles are used before they are read again.
const FRESH: Duration = Duration::from_secs(60);
/// The begin of a certificate in PEM. Text before it is a comment.
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
/// The end of a certificate in PEM.
const END: &str = "-----END CERTIFICATE-----";

/// Reads trust bundles, and reads them again while pods use them.
pub(super) struct Bundles {
    api: Api<DynamicObject>,
    clock: Arc<dyn Clock>,
    changes: Arc<Changes>,
    bundles: Mutex<Vec<Arc<Bundle>>>,
}

/// The trust bundles of one need.
struct Bundle {
    need: TrustBundleNeed,
    pods: Mutex<BTreeSet<PodUid>>,
    /// The certificates; `None` if no bundle exists.
    certificates: Arc<Renewed<Option<String>>>,
}

impl Bundles {
    pub(super) fn new(client: Client, clock: Arc<dyn Clock>, changes: Arc<Changes>) -> Self {
        let kind = GroupVersionKind::gvk("certificates.k8s.io", "v1beta1", "ClusterTrustBundle");
        let api = Api::all_with(client, &ApiResource::from_gvk(&kind));
        Bundles { api, clock, changes, bundles: Mutex::default() }
    }

    /// The certificates of the bundles, for a pod. An API server that does not serve trust bundles has none.
    pub(super) async fn get(&self, uid: &PodUid, need: &TrustBundleNeed) -> Result<String, ObjectError> {
        let bundle = self.bundle(uid, need);
        let (changes, of_changed) = (self.changes.clone(), bundle.clone());
        let changed = move || changes.add(of_changed.pods.lock().clone());
        let request = || request(self.api.clone(), self.clock.clone(), need.clone());
        let found = bundle.certificates.get(uid, request, changed).await?;
        found.ok_or_else(|| ObjectError::missing(ObjectKind::TrustBundle, name(need)))
    }

    /// The bundles of a need, which the pod uses from now on.
    fn bundle(&self, uid: &PodUid, need: &TrustBundleNeed) -> Arc<Bundle> {
        let mut bundles = self.bundles.lock();
        let known = bundles.iter().find(|bundle| bundle.need == *need).cloned();
        let bundle = known.unwrap_or_else(|| {
            let certificates = Arc::new(Renewed::new(ObjectKind::TrustBundle, self.clock.clone()));
            let new = Arc::new(Bundle { need: need.clone(), pods: Mutex::default(), certificates });
            bundles.push(new.clone());
            new
        });
        bundle.pods.lock().insert(uid.clone());
        bundle
    }

    /// Forgets the pods that `keep` rejects, and the bundles that no other pod uses.
    pub(super) fn retain(&self, keep: &dyn Fn(&PodUid) -> bool) {
        self.bundles.lock().retain(|bundle| {
            let mut pods = bundle.pods.lock();
            pods.retain(|uid| keep(uid));
            !pods.is_empty()
        });
    }
}

fn name(need: &TrustBundleNeed) -> &str {
    match need {
        TrustBundleNeed::Name(name) => name,
        TrustBundleNeed::Signer { signer, .. } => signer,
    }
}

/// Reads the bundles of a need. A missing bundle is requested by each read, because its pods wait for it.
async fn request(api: Api<DynamicObject>, clock: Arc<dyn Clock>, need: TrustBundleNeed) -> Answer<Option<String>> {
    let name = name(&need);
    let now = clock.now();
    let bundles = match timeout(REQUEST_TIMEOUT, list(&api, &need, name)).await {
        Ok(Ok(bundles)) => bundles,
        Ok(Err(error)) if error.is_missing() => Vec::new(),
        Ok(Err(error)) => return Err(error),
        Err(elapsed) => return Err(ObjectError::unavailable(ObjectKind::TrustBundle, name, elapsed)),
    };
    if bundles.is_empty() {
        return Ok((None, RenewalTimes { renew_from: now, expires: Some(now) }));
    }
    let certificates = join(bundles.iter().filter_map(|bundle| bundle.data["spec"]["trustBundle"].as_str()));
    Ok((Some(certificates), RenewalTimes { renew_from: now + FRESH, expires: None }))
}

async fn list(api: &Api<DynamicObject>, need: &TrustBundleNeed, name: &str) -> Result<Vec<DynamicObject>, ObjectError> {
    let bundles = match need {
        TrustBundleNeed::Name(name) => api.get(name).await.map(|bundle| vec![bundle]),
        TrustBundleNeed::Signer { labels: None, .. } => return Ok(Vec::new()),
        TrustBundleNeed::Signer { signer, labels: Some(labels) } => {
            let labels = selector(labels, name)?;
            let params = ListParams::default().fields(&format!("spec.signerName={signer}")).labels_from(&labels);
            api.list(&params).await.map(|bundles| bundles.items)
        }
    };
    bundles.map_err(|error| object_error(ObjectKind::TrustBundle, name, error.into()))
}

/// Fails if the agent does not know an operator of the selector. An empty selector would trust all bundles of the signer.
fn selector(labels: &LabelSelector, name: &str) -> Result<Selector, ObjectError> {
    Selector::try_from(labels.clone()).map_err(|error| ObjectError::unavailable(ObjectKind::TrustBundle, name, error))
}

/// The certificates of all bundles, each once.
fn join<'a>(bundles: impl Iterator<Item = &'a str>) -> String {
    let mut certificates: Vec<&str> = bundles
        .flat_map(|bundle| bundle.split_inclusive(END).filter(|part| part.ends_with(END)))
        .filter_map(|part| part.find(BEGIN).map(|begin| &part[begin..]))
        .collect();
    certificates.sort_unstable();
    certificates.dedup();
    certificates.into_iter().map(|certificate| format!("{certificate}\n")).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;

    use super::*;

    #[test]
    fn selector_with_an_unknown_operator_selects_no_bundle() {
        let labels = |operator: &str| LabelSelector {
            match_expressions: Some(vec![LabelSelectorRequirement {
                key: "team".into(),
                operator: operator.into(),
                values: Some(vec!["a".into()]),
            }]),
            ..LabelSelector::default()
        };
        assert_eq!(selector(&labels("In"), "signer").unwrap().to_string(), "team in (a)");
        let error = selector(&labels("Near"), "signer").unwrap_err();
        assert!(matches!(error, ObjectError::Unavailable { .. }), "{error:?}");
    }

    #[test]
    fn bundles_are_joined_and_have_each_certificate_once() {
        let certificate = |text: &str| format!("{BEGIN}\n{text}\n{END}\n");
        let (a, b) = (certificate("a"), certificate("b"));
        let bundles = [format!("{b}{a}"), format!("# a comment\n{a}"), b.clone()];
        assert_eq!(join(bundles.iter().map(String::as_str)), format!("{a}{b}"));
    }
}
