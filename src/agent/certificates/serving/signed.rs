//! A serving certificate that the cluster issues.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use kube::Client;
use tokio::time::sleep;

use super::super::blocking::blocking;
use super::super::directory::Directory;
use super::super::issue::{IssueError, issue};
use super::super::pair::CertificatePair;
use super::super::renewal::Renewal;
use super::super::request::Template;
use super::{INTERVAL, ServingCertificate, ServingNode};
use crate::adapters::kube::KubeSigningRequests;
use podwright_metrics::CertificateMetrics;
use podwright_model::text::error_chain;

/// Requests the certificate, and renews it.
pub(super) struct SignedCertificate {
    node: ServingNode,
    directory: Directory,
    client: Client,
    certificate: Arc<ServingCertificate>,
    renewal: Renewal,
    metrics: CertificateMetrics,
}

impl SignedCertificate {
    /// The certificate of a node. Requests go through a client with the rights of the node.
    pub(super) fn new(
        node: &ServingNode,
        client: Client,
        certificate: Arc<ServingCertificate>,
        metrics: CertificateMetrics,
    ) -> Self {
        SignedCertificate {
            node: node.clone(),
            directory: Directory::of(&node.directory, "serving"),
            client,
            certificate,
            renewal: Renewal::default(),
            metrics,
        }
    }

    /// Uses the certificate of an earlier agent, and requests one when that is due. Never returns.
    pub(super) async fn run(mut self) {
        let directory = self.directory.clone();
        let stored = blocking(move || directory.current()).await;
        let now = Timestamp::now();
        if let Some(stored) = stored.filter(|stored| self.fits(stored) && !stored.validity.has_ended(now)) {
            self.renewal.hold(stored.validity, None);
            self.certificate.replace(stored);
        }
        let mut pause = Duration::ZERO;
        let mut request: Option<BoxFuture<'static, Result<CertificatePair, IssueError>>> = None;
        loop {
            let issued = tokio::select! {
                () = sleep(pause) => None,
                issued = async { request.as_mut().expect("a request runs").await }, if request.is_some() => Some(issued),
            };
            let now = Timestamp::now();
            if let Some(issued) = issued {
                request = None;
                match issued {
                    Ok(pair) => self.take(pair, now).await,
                    Err(error) => self.failed(&error, now),
                }
            }
            self.metrics.server_ttl(self.renewal.ttl(now));
            if request.is_none() && self.renewal.due(now).is_some() {
                request = Some(self.request());
            }
            pause = match request {
                Some(_) => INTERVAL,
                None => self.renewal.pause(now).map_or(INTERVAL, |pause| pause.min(INTERVAL)),
            };
        }
    }

    /// The certificate for this node and its present addresses.
    fn template(&self) -> Template {
        Template::serving(&self.node.name, self.node.names())
    }

    /// Whether a certificate is for this node and its present addresses.
    fn fits(&self, pair: &CertificatePair) -> bool {
        let template = self.template();
        pair.names() == template.names && pair.common_name() == Some(template.common_name)
    }

    fn request(&self) -> BoxFuture<'static, Result<CertificatePair, IssueError>> {
        let (template, directory) = (self.template(), self.directory.clone());
        let api = KubeSigningRequests::new(self.client.clone());
        let waits = |name: &str| tracing::info!(name, "waiting until the certificate signing request is approved");
        async move { issue(&api, &template, &directory, waits).await }.boxed()
    }

    async fn take(&mut self, pair: CertificatePair, now: Timestamp) {
        let directory = self.directory.clone();
        blocking(move || directory.discard_pending()).await;
        let earlier = self.certificate.current.read().as_ref().map(|earlier| earlier.validity.not_before);
        if let Some(earlier) = earlier {
            self.metrics.server_rotated(Duration::try_from(now.duration_since(earlier)).unwrap_or_default());
        }
        tracing::info!(expires = %pair.validity.not_after, "the node API has a new certificate");
        self.renewal.hold(pair.validity, Some(now));
        self.certificate.replace(pair);
    }

    fn failed(&mut self, error: &IssueError, now: Timestamp) {
        let delay = self.renewal.failed(now);
        let error = error_chain(error).to_string();
        tracing::error!(error, retry.seconds = delay.as_secs(), "cannot get a certificate for the node API");
        self.metrics.server_request_failed();
    }
}
