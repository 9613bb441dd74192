//! Credentials of image pulls: the checks of images that are present, and the credential provider plugins.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::histogram::Histogram;
use crate::labels::label_values;
use crate::register::kubelet;

label_values! {
    /// Whether a pod may use an image that is present (`pullmanager/metrics.go`, Kubernetes 1.36).
    pub enum PullCheck {
        /// The policy demands no verification.
        PolicyAllowed = "credentialPolicyAllowed",
        /// An earlier pull shows that the pod may use the image.
        RecordFound = "credentialRecordFound",
        /// The image must be pulled again.
        MustAuthenticate = "mustAuthenticate",
        /// The records cannot be read, so the image must be pulled again.
        Error = "error",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CheckLabel {
    result: PullCheck,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PluginLabel {
    plugin_name: Arc<str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HashLabel {
    hash: Arc<str>,
}

/// Credentials of image pulls.
#[derive(Clone, Debug)]
pub struct ImageCredentialMetrics {
    checks: Family<CheckLabel, Counter>,
    plugin_errors: Family<PluginLabel, Counter>,
    plugin_duration: Family<PluginLabel, Histogram>,
    configuration: Family<HashLabel, Gauge>,
}

impl ImageCredentialMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        ImageCredentialMetrics {
            checks: kubelet(
                registry,
                "kubelet_imagemanager_image_mustpull_checks_total",
                "Checks whether a pod may use an image that is present",
                Family::default(),
            ),
            plugin_errors: kubelet(
                registry,
                "kubelet_credential_provider_plugin_errors_total",
                "Calls of credential provider plugins that failed",
                Family::default(),
            ),
            plugin_duration: kubelet(
                registry,
                "kubelet_credential_provider_plugin_duration",
                "Seconds that calls of credential provider plugins took",
                Family::new_with_constructor(Histogram::request),
            ),
            configuration: kubelet(
                registry,
                "kubelet_credential_provider_config_info",
                "The hash of the configuration of credential provider plugins, as a label; always 1",
                Family::default(),
            ),
        }
    }

    /// Counts a check of an image that is present.
    pub fn checked(&self, result: PullCheck) {
        self.checks.get_or_create(&CheckLabel { result }).inc();
    }

    /// Records a call of a plugin.
    pub fn plugin_called(&self, plugin: &Arc<str>, took: Duration, ok: bool) {
        let label = PluginLabel { plugin_name: Arc::clone(plugin) };
        if !ok {
            self.plugin_errors.get_or_create(&label).inc();
        }
        self.plugin_duration.get_or_create(&label).observe(took);
    }

    /// Sets the hash of the configuration of plugins.
    pub fn configured(&self, hash: &str) {
        self.configuration.clear();
        self.configuration.get_or_create(&HashLabel { hash: hash.into() }).set(1);
    }
}
