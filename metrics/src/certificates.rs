//! Metrics of the certificates of the node.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::histogram::{CERTIFICATE_LIFE, Histogram};
use crate::register::kubelet;

/// A series without labels. Unlike a metric without labels, the series does not exist before it is set.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NoLabels {}

/// The certificates that the node shows to the API server and to the clients of its own API.
#[derive(Clone, Debug)]
pub struct CertificateMetrics {
    client_ttl: Family<NoLabels, Gauge<f64, AtomicU64>>,
    server_ttl: Family<NoLabels, Gauge<f64, AtomicU64>>,
    client_errors: Counter,
    server_errors: Counter,
    server_rotation: Histogram,
}

impl CertificateMetrics {
    /// Registers the families.
    pub fn register(registry: &mut Registry) -> Self {
        CertificateMetrics {
            client_ttl: kubelet(
                registry,
                "kubelet_certificate_manager_client_ttl_seconds",
                "Seconds until the client certificate expires; negative after its expiry; infinite while there is none",
                Family::default(),
            ),
            server_ttl: kubelet(
                registry,
                "kubelet_certificate_manager_server_ttl_seconds",
                "Seconds until the serving certificate expires; negative after its expiry; infinite while there is none",
                Family::default(),
            ),
            client_errors: kubelet(
                registry,
                "kubelet_certificate_manager_client_expiration_renew_errors",
                "Failed requests for a client certificate",
                Counter::default(),
            ),
            server_errors: kubelet(
                registry,
                "kubelet_server_expiration_renew_errors",
                "Failed requests for a serving certificate",
                Counter::default(),
            ),
            server_rotation: kubelet(
                registry,
                "kubelet_certificate_manager_server_rotation_seconds",
                "Seconds for which the previous serving certificate was in use when it was replaced",
                Histogram::new(CERTIFICATE_LIFE),
            ),
        }
    }

    /// Sets the seconds until the client certificate expires: negative after its expiry, infinite while there is none.
    pub fn client_ttl(&self, seconds: f64) {
        self.client_ttl.get_or_create(&NoLabels {}).set(seconds);
    }

    /// Sets the seconds until the serving certificate expires: negative after its expiry, infinite while there is none.
    pub fn server_ttl(&self, seconds: f64) {
        self.server_ttl.get_or_create(&NoLabels {}).set(seconds);
    }

    /// Counts a failed request for a client certificate.
    pub fn client_request_failed(&self) {
        self.client_errors.inc();
    }

    /// Counts a failed request for a serving certificate.
    pub fn server_request_failed(&self) {
        self.server_errors.inc();
    }

    /// Records that a serving certificate was replaced that was in use for this time.
    pub fn server_rotated(&self, used: Duration) {
        self.server_rotation.observe(used);
    }
}
