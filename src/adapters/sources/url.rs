//! Manifests from URLs.

use std::sync::Arc;
use std::time::Duration;

use podwright_actors::ports::{SourceKind, SourceUpdate};
use reqwest::{Client, Url};
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::manifest_cache::ManifestCache;
use super::{ChangeFilter, SourceContext};
use crate::adapters::manifest::MAX_BYTES;

/// How long one request may take, body included (upstream `NewSourceURL`, 1.36).
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
    /// The URL without its password: what messages say, and what a generated UID follows.
    what: String,
    client: Option<Client>,
}

impl UrlSource {
    /// A source of these URLs.
    pub fn new(urls: impl IntoIterator<Item = Url>, cx: SourceContext) -> Self {
        let target = |url: Url| {
            let mut shown = url.clone();
            // Both fail only for URLs without a host, which have no password either.
            let _ = shown.set_password(None);
            let _ = shown.set_username("");
            Target { url, what: shown.into(), client: None }
        };
        UrlSource { urls: urls.into_iter().map(target).collect(), cx }
    }

    /// Sends sets until it is stopped or nobody takes them.
    ///
    /// The first set waits until every URL has answered once: before that nobody can say that a pod is not wanted. Why one
    /// has not is told.
    pub async fn run(self, out: mpsc::Sender<SourceUpdate>, stop: CancellationToken) {
        stop.run_until_cancelled(self.deliver(out)).await;
    }

    async fn deliver(mut self, out: mpsc::Sender<SourceUpdate>) {
        let mut cache = ManifestCache::default();
        let mut filter = ChangeFilter::default();
        loop {
            let urls = std::mem::take(&mut self.urls);
            let fetched = futures_util::future::join_all(urls.into_iter().map(Target::fetch)).await;
            for (target, answer) in fetched {
                let manifest = cache.manifests.entry(target.what.clone()).or_default();
                match answer {
                    Ok(bytes) => manifest.read(bytes, SourceKind::Http, &target.what, &self.cx),
                    Err(error) => {
                        let every = self.cx.check_frequency.as_secs();
                        let stays = if manifest.was_read() { "its last pods stay, and " } else { "" };
                        manifest.fail(format!("{error}; {stays}it is asked again every {every} s"));
                    }
                }
                self.urls.push(target);
            }
            let order = self.urls.iter().map(|target| target.what.as_str());
            let set = cache.set(SourceKind::Http, order, vec![]);
            let said = match cache.manifests.values().all(super::manifest_cache::CachedManifest::was_read) {
                true => SourceUpdate::Set(set),
                false => SourceUpdate::NotYet { source: set.source, problems: set.problems },
            };
            if let Some(news) = filter.if_changed(said)
                && out.send(news).await.is_err()
            {
                return;
            }
            tokio::time::sleep(self.cx.check_frequency).await;
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("no HTTP client could be made ({0})")]
    Client(String),
    #[error("no answer ({0})")]
    Request(String),
    #[error("answered {0}")]
    Status(reqwest::StatusCode),
    #[error("answered more than 10 MiB")]
    TooLong,
}

impl Target {
    async fn fetch(mut self) -> (Self, Result<Vec<u8>, FetchError>) {
        let answer = self.get().await;
        (self, answer)
    }

    async fn get(&mut self) -> Result<Vec<u8>, FetchError> {
        let client = match &self.client {
            Some(client) => client,
            None => self.client.insert(client(&self.url).map_err(FetchError::Client)?),
        };
        let failed = |error: reqwest::Error| FetchError::Request(chain(&error.without_url()));
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

/// A client for one URL. Connections are not kept: the next request is far away.
fn client(url: &Url) -> Result<Client, String> {
    let builder = Client::builder().timeout(TIMEOUT).pool_max_idle_per_host(0);
    let builder = if url.scheme() == "https" {
        // The client takes the process's provider; one that is installed already will do as well.
        let _ = ring::default_provider().install_default();
        builder
    } else {
        // Certificates are not looked for on a machine that may have none; nothing is trusted instead.
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        builder.tls_backend_preconfigured(tls)
    };
    builder.build().map_err(|error| chain(&error))
}

/// An error with its causes: the outermost alone says little.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
