//! The trust bundles of the cluster.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::core::Selector;
use kube::{Api, Client};
use parking_lot::Mutex;
use podwright_actors::ports::{Clock, ObjectError, ObjectKind, TrustBundleNeed};
use podwright_actors::time::Time;
use tokio::time::timeout;

use super::object_error;

/// How long one request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an answer is used.
const FRESH: Duration = Duration::from_secs(60);
/// The begin of a certificate in PEM. Text before it is a comment.
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
/// The end of a certificate in PEM.
const END: &str = "-----END CERTIFICATE-----";

/// Reads trust bundles, and keeps each answer for a short time.
pub(super) struct Bundles {
    bundles: Api<DynamicObject>,
    clock: Arc<dyn Clock>,
    /// The last answers, with the times at which they were requested.
    read: Mutex<Vec<(TrustBundleNeed, Time, String)>>,
}

impl Bundles {
    pub(super) fn new(client: Client, clock: Arc<dyn Clock>) -> Self {
        let kind = GroupVersionKind::gvk("certificates.k8s.io", "v1beta1", "ClusterTrustBundle");
        let bundles = Api::all_with(client, &ApiResource::from_gvk(&kind));
        Bundles { bundles, clock, read: Mutex::default() }
    }

    /// The certificates of the bundles. An API server that does not serve trust bundles has none.
    pub(super) async fn get(&self, need: &TrustBundleNeed) -> Result<String, ObjectError> {
        let now = self.clock.now();
        let is_fresh = |at: &Time| now.since(*at) < FRESH;
        {
            let mut read = self.read.lock();
            read.retain(|(_, at, _)| is_fresh(at));
            if let Some((_, _, bundle)) = read.iter().find(|(of, _, _)| of == need) {
                return Ok(bundle.clone());
            }
        }
        let name = match need {
            TrustBundleNeed::Name(name) => name,
            TrustBundleNeed::Signer { signer, .. } => signer,
        };
        let bundles = match timeout(REQUEST_TIMEOUT, self.request(need, name)).await {
            Ok(bundles) => bundles?,
            Err(elapsed) => return Err(ObjectError::unavailable(ObjectKind::TrustBundle, name, elapsed)),
        };
        if bundles.is_empty() {
            return Err(ObjectError::missing(ObjectKind::TrustBundle, name));
        }
        let bundle = join(bundles.iter().filter_map(|bundle| bundle.data["spec"]["trustBundle"].as_str()));
        self.read.lock().push((need.clone(), now, bundle.clone()));
        Ok(bundle)
    }

    async fn request(&self, need: &TrustBundleNeed, name: &str) -> Result<Vec<DynamicObject>, ObjectError> {
        let bundles = match need {
            TrustBundleNeed::Name(name) => self.bundles.get(name).await.map(|bundle| vec![bundle]),
            TrustBundleNeed::Signer { labels: None, .. } => return Ok(Vec::new()),
            TrustBundleNeed::Signer { signer, labels: Some(labels) } => {
                let labels = selector(labels, name)?;
                let params = ListParams::default().fields(&format!("spec.signerName={signer}")).labels_from(&labels);
                self.bundles.list(&params).await.map(|bundles| bundles.items)
            }
        };
        bundles.map_err(|error| object_error(ObjectKind::TrustBundle, name, error.into()))
    }
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
