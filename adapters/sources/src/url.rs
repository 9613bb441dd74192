//! Manifests from URLs.

use std::sync::Arc;
use std::time::Duration;

use podwright_model::text::error_chain;
use podwright_ports::{Severity, SourceInbox, SourceKind, SourceUpdate};
use reqwest::{Client, Url};
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::manifest_cache::{CachedManifest, ManifestCache};
use super::{ChangeFilter, SourceContext};
use crate::manifest::MAX_BYTES;

/// How long one request may take, with its body (upstream `NewSourceURL`, kubelet 1.36).
const TIMEOUT: Duration = Duration::from_secs(10);

/// The pods of several URLs, as one source.
#[derive(Debug)]
pub struct UrlSource {
    urls: Vec<Target>,
    cx: SourceContext,
}

#[derive(Debug)]
struct Target {
    url: Url,
    /// The URL without user and password. It is used in messages and to generate UIDs.
    what: String,
    client: Option<Client>,
}

impl UrlSource {
    /// A source of the manifests at these URLs.
    pub fn new(urls: impl IntoIterator<Item = Url>, cx: SourceContext) -> Self {
        let target = |url: Url| {
            let mut redacted = url.clone();
            // Both calls fail only for URLs without a host, which have no password either.
            let _ = redacted.set_password(None);
            let _ = redacted.set_username("");
            Target { url, what: redacted.into(), client: None }
        };
        UrlSource { urls: urls.into_iter().map(target).collect(), cx }
    }

    /// Sends updates until `stop` is cancelled or the node has stopped.
    ///
    /// The first set is sent when every URL has answered once. Before that, a pod that is missing from the set may still be
    /// desired, so the updates are [`SourceUpdate::NotYet`], with the reasons.
    pub async fn run(self, out: Arc<dyn SourceInbox>, stop: CancellationToken) {
        stop.run_until_cancelled(self.send_updates(out)).await;
    }

    async fn send_updates(mut self, out: Arc<dyn SourceInbox>) {
        let mut cache = ManifestCache::default();
        let mut filter = ChangeFilter::default();
        loop {
            let urls = std::mem::take(&mut self.urls);
            let fetched = futures_util::future::join_all(urls.into_iter().map(Target::fetch)).await;
            let cx = self.cx.clone();
            // Parsing 10 MiB takes seconds. This task shares its thread with the engine.
            let parsed = spawn_blocking(move || read_answers(cache, fetched, &cx)).await;
            let update;
            (cache, self.urls, update) = match parsed {
                Ok(parsed) => parsed,
                Err(error) => {
                    return error!(%error, "reading manifests panicked, changes of manifests are ignored from now on");
                }
            };
            if let Some(update) = filter.if_changed(update)
                && out.send(self.cx.adopt(update).await).await.is_err()
            {
                return;
            }
            tokio::time::sleep(self.cx.check_frequency).await;
        }
    }
}

type Answer = Result<Vec<u8>, FetchError>;

/// Updates the manifests from the answers of their URLs. Blocks.
fn read_answers(
    mut cache: ManifestCache,
    fetched: Vec<(Target, Answer)>,
    cx: &SourceContext,
) -> (ManifestCache, Vec<Target>, SourceUpdate) {
    let mut urls = Vec::with_capacity(fetched.len());
    for (target, answer) in fetched {
        let manifest = cache.manifests.entry(target.what.clone()).or_default();
        match answer {
            Ok(bytes) => manifest.read(bytes, SourceKind::Http, &target.what, cx),
            Err(error) => {
                let every = cx.check_frequency.as_secs();
                let stays = if manifest.was_read() { "its last pods are kept, and " } else { "" };
                manifest.fail(format!("{error}; {stays}the URL is requested again every {every} s"));
            }
        }
        urls.push(target);
    }
    let order: Vec<&str> = urls.iter().map(|target| target.what.as_str()).collect();
    let update = if cache.manifests.values().all(CachedManifest::was_read) {
        SourceUpdate::Set(cache.set(SourceKind::Http, &order, vec![], cx))
    } else {
        // A warning is no reason for a missing set.
        let faults = cache.problems(&order).into_iter().filter(|problem| problem.severity == Severity::Fault);
        SourceUpdate::NotYet { source: SourceKind::Http, problems: faults.collect() }
    };
    (cache, urls, update)
}

/// Why a manifest could not be fetched.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("no HTTP client could be created ({})", error_chain(.0))]
    Client(reqwest::Error),
    #[error("no HTTP client could be created ({})", error_chain(.0))]
    Tls(rustls::Error),
    #[error("no answer ({})", error_chain(.0))]
    Request(reqwest::Error),
    #[error("answered {0}")]
    Status(reqwest::StatusCode),
    #[error("answered with more than 10 MiB")]
    TooLong,
}

impl Target {
    async fn fetch(mut self) -> (Self, Answer) {
        let answer = self.get().await;
        (self, answer)
    }

    async fn get(&mut self) -> Result<Vec<u8>, FetchError> {
        let client = match &self.client {
            Some(client) => client,
            None => self.client.insert(client(&self.url)?),
        };
        let failed = |error: reqwest::Error| FetchError::Request(error.without_url());
        let mut response = client.get(self.url.clone()).send().await.map_err(failed)?;
        if !response.status().is_success() {
            return Err(FetchError::Status(response.status()));
        }
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > MAX_BYTES {
                return Err(FetchError::TooLong);
            }
        }
        Ok(bytes)
    }
}

/// A client for one URL. It keeps no connection, because the next request comes only after the check frequency.
fn client(url: &Url) -> Result<Client, FetchError> {
    let builder = Client::builder().timeout(TIMEOUT).pool_max_idle_per_host(0);
    let builder = if url.scheme() == "https" {
        // The client uses the process-wide crypto provider. An error means that one is installed already.
        let _ = ring::default_provider().install_default();
        builder
    } else {
        // Plain HTTP needs no root certificates, and building the client must not fail on a machine without any.
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(FetchError::Tls)?
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        builder.tls_backend_preconfigured(tls)
    };
    builder.build().map_err(FetchError::Client)
}
