//! Manifests from URLs.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use podwright_model::text::error_chain;
use podwright_ports::{Severity, SourceInbox, SourceKind, SourceUpdate};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Url, redirect};
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::manifest_cache::{CachedManifest, ManifestCache};
use super::{ChangeFilter, SourceContext, blocking};
use crate::manifest::MAX_BYTES;

/// How long one request may take, with its body (upstream `NewSourceURL`, kubelet 1.36).
const TIMEOUT: Duration = Duration::from_secs(10);
/// How many redirects are followed (Go's `http.Client`, which a kubelet uses).
const MAX_REDIRECTS: usize = 10;

/// The pods of several URLs, as one source. Clones share what they have read: if a run panics, the run of a clone keeps the last good
/// content of each URL.
#[derive(Clone, Debug)]
pub struct UrlSource {
    urls: Vec<Target>,
    cx: SourceContext,
    cache: Arc<Mutex<ManifestCache>>,
}

#[derive(Clone)]
struct Target {
    url: Url,
    /// The URL without user and password. It is used in messages and to generate UIDs.
    what: String,
    headers: HeaderMap,
    client: Option<Client>,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("what", &self.what).finish_non_exhaustive()
    }
}

/// The URL without user name and password, as it may be shown.
pub fn redacted(url: &Url) -> Url {
    let mut redacted = url.clone();
    // Both calls fail only for URLs without a host, which have no password either.
    let _ = redacted.set_password(None);
    let _ = redacted.set_username("");
    redacted
}

/// Why a text has no headers for the requests of manifests. The error does not contain the header, which may be a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is not a header: write NAME: VALUE, as in Authorization: Bearer TOKEN")]
pub struct HeaderFileError {
    /// The line, from 1.
    pub line: usize,
}

/// The headers in a text, one in each line as `NAME: VALUE`. Empty lines and lines that begin with `#` are ignored. `Debug` does not
/// print the values.
///
/// # Errors
/// [`HeaderFileError`] for the first line that is not a header.
pub fn headers(text: &str) -> Result<HeaderMap, HeaderFileError> {
    let mut headers = HeaderMap::new();
    let lines = text.lines().map(str::trim).enumerate();
    for (index, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        let (name, mut value) = header(line).ok_or(HeaderFileError { line: index + 1 })?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

fn header(line: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = line.split_once(':')?;
    Some((name.trim().parse().ok()?, value.trim().parse().ok()?))
}

impl UrlSource {
    /// A source of the manifests at these URLs.
    pub fn new(urls: impl IntoIterator<Item = Url>, cx: SourceContext) -> Self {
        let target = |url: Url| {
            let what = redacted(&url).into();
            Target { url, what, headers: HeaderMap::new(), client: None }
        };
        UrlSource { urls: urls.into_iter().map(target).collect(), cx, cache: Arc::default() }
    }

    /// Sends these headers with each request. A redirect to another host then fails, because the headers may be credentials.
    #[must_use]
    pub fn headers(mut self, headers: &HeaderMap) -> Self {
        for target in &mut self.urls {
            target.headers = headers.clone();
        }
        self
    }

    /// Sends updates until `stop` is cancelled or the node has stopped.
    ///
    /// The first set is sent when every URL has answered once. Before that, a pod that is missing from the set may still be
    /// desired, so the updates are [`SourceUpdate::NotYet`], with the reasons. Only one clone may run at a time.
    ///
    /// # Panics
    /// If reading a manifest panics.
    pub async fn run(self, out: Arc<dyn SourceInbox>, stop: CancellationToken) {
        stop.run_until_cancelled(self.send_updates(out)).await;
    }

    async fn send_updates(mut self, out: Arc<dyn SourceInbox>) {
        for target in self.urls.iter().filter(|target| is_unprotected(&target.url)) {
            warn!(
                url = target.what,
                "whoever controls the network can replace the manifests of a plain http URL: use https"
            );
        }
        let mut filter = ChangeFilter::default();
        loop {
            let urls = std::mem::take(&mut self.urls);
            let fetched = futures_util::future::join_all(urls.into_iter().map(Target::fetch)).await;
            let (cache, cx) = (self.cache.clone(), self.cx.clone());
            // Parsing 10 MiB takes seconds. This task shares its thread with the engine.
            let parsed = blocking(move || read_answers(&mut cache.lock(), fetched, &cx)).await;
            let Some((urls, update)) = parsed else { return };
            self.urls = urls;
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
    cache: &mut ManifestCache,
    fetched: Vec<(Target, Answer)>,
    cx: &SourceContext,
) -> (Vec<Target>, SourceUpdate) {
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
    (urls, update)
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
            None => self.client.insert(client(&self.url, &self.headers)?),
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
fn client(url: &Url, headers: &HeaderMap) -> Result<Client, FetchError> {
    let has_headers = !headers.is_empty();
    let builder = Client::builder()
        .timeout(TIMEOUT)
        .pool_max_idle_per_host(0)
        .default_headers(headers.clone())
        .redirect(redirect::Policy::custom(move |attempt| follow(attempt, has_headers)));
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

fn follow(attempt: redirect::Attempt<'_>, has_headers: bool) -> redirect::Action {
    match refusal(attempt.previous(), attempt.url(), has_headers) {
        Some(why) => attempt.error(why),
        None => attempt.follow(),
    }
}

/// Why a redirect is not followed. Whoever can change a manifest runs programs on this node, so a redirect must not be weaker than the URL
/// of the operator.
fn refusal(previous: &[Url], next: &Url, has_headers: bool) -> Option<String> {
    let place = |url: &Url| (url.host_str().map(str::to_owned), url.port_or_known_default());
    let is_other = |url: &Url| place(url) != place(next);
    if next.scheme() != "https" && previous.iter().any(|url| url.scheme() == "https") {
        Some(format!("the server redirects from https to {}, which is not followed", redacted(next)))
    } else if has_headers && previous.iter().any(is_other) {
        Some(format!(
            "the server redirects to {}, which must not get the headers of --manifest-url-header-file",
            redacted(next)
        ))
    } else if previous.len() > MAX_REDIRECTS {
        Some(format!("more than {MAX_REDIRECTS} redirects"))
    } else {
        None
    }
}

/// Whether others in the network can change the answers of a URL.
fn is_unprotected(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_local = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|host| host.is_loopback());
    url.scheme() == "http" && !is_local
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(texts: &[&str]) -> Vec<Url> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_redirect_is_not_weaker_than_the_url() {
        for (previous, next, with_headers, without) in [
            (&["https://a/pods"][..], "https://a/new", true, true),
            (&["https://a/pods"], "https://a:443/new", true, true),
            (&["https://a/pods"], "https://b/pods", false, true),
            (&["https://a/pods", "https://b/pods"], "https://a/pods", false, true),
            (&["https://a/pods"], "http://a/pods", false, false),
            (&["http://a/pods", "https://a/pods"], "http://a/pods", false, false),
            (&["http://a/pods"], "http://a/new", true, true),
            (&["http://a/pods"], "https://a/new", false, true),
            (&["https://a"; MAX_REDIRECTS + 1], "https://a", false, false),
        ] {
            let next: Url = next.parse().unwrap();
            for (has_headers, is_followed) in [(true, with_headers), (false, without)] {
                let refused = refusal(&urls(previous), &next, has_headers);
                assert_eq!(refused.is_none(), is_followed, "{previous:?} -> {next} {has_headers}: {refused:?}");
            }
        }
        let login: Url = "http://user:hunter2@a/pods".parse().unwrap();
        let why = refusal(&urls(&["https://a/pods"]), &login, false).unwrap();
        assert!(!why.contains("hunter2"), "{why}");
    }

    #[test]
    fn plain_http_is_protected_on_this_machine_only() {
        for (url, expected) in [
            ("http://10.0.0.1/pods", true),
            ("http://manifests.example:8080", true),
            ("http://localhost.example", true),
            ("http://localhost:8080", false),
            ("http://127.0.0.1", false),
            ("http://[::1]:80", false),
            ("https://10.0.0.1", false),
        ] {
            assert_eq!(is_unprotected(&url.parse().unwrap()), expected, "{url}");
        }
    }

    #[test]
    fn headers_of_a_file_are_read_and_not_shown() {
        let found = headers("# for the mirror\nAuthorization: Bearer hunter2:x\n\nX-A:1\nX-A: 2\n").unwrap();
        assert_eq!(found["authorization"], "Bearer hunter2:x");
        assert_eq!(found.get_all("x-a").iter().collect::<Vec<_>>(), ["1", "2"]);
        assert!(!format!("{found:?}").contains("hunter2"), "{found:?}");
        for bad in ["X-A: 1\nhunter2", "X-A: 1\nno spaces: hunter2", "X-A: 1\nX: hunter2\u{7f}"] {
            let error = headers(bad).unwrap_err();
            assert_eq!(error.line, 2, "{bad}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
