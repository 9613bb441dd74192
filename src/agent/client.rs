//! An HTTP client for the admin endpoints of a running agent.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::actors::text::plain;
use reqwest::header::ACCEPT;
use reqwest::redirect::Policy;
use reqwest::{ClientBuilder, RequestBuilder, Response, Url};
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};

/// How long a whole answer may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum length of a printed line in bytes.
const MAX_LINE_BYTES: usize = 16 << 10;

/// Why a request to the agent has no usable answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    #[error(
        "no agent listens at {0}: start one with `podwright run`, or give the address of a running one with --admin"
    )]
    NoAgent(SocketAddr),
    #[error("the server at {address} is not a podwright agent of this version: give the address of one with --admin")]
    NotPodwright { address: SocketAddr },
    #[error("the request to the agent at {address} failed: check that it still runs, and try again")]
    Failed { address: SocketAddr, source: reqwest::Error },
    /// The agent's own error text.
    #[error("{0}")]
    Refused(String),
    #[error("cannot set up the HTTP client")]
    Setup(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Fetches a path; `accept` is the media type of the answer.
///
/// # Errors
/// [`RequestError`] if there is no answer with a success status within 30 s.
pub(crate) fn fetch(
    address: SocketAddr,
    path: &str,
    query: &[(&str, String)],
    accept: &'static str,
) -> Result<String, RequestError> {
    runtime()?.block_on(get(url(address, path, query), address, accept))
}

async fn get(url: Url, address: SocketAddr, accept: &'static str) -> Result<String, RequestError> {
    let request = client()?.timeout(TIMEOUT).build().map_err(|error| RequestError::Setup(error.into()))?;
    let request = request.get(url).header(ACCEPT, accept);
    answer(address, request).await?.text().await.map_err(failed(address))
}

/// Fetches a path whose answer may have no end, and passes each part to `take` as it arrives. It stops once `take` returns
/// `false`.
///
/// # Errors
/// [`RequestError`] if there is no answer with a success status, or if the connection breaks.
pub(crate) fn follow(
    address: SocketAddr,
    path: &str,
    query: &[(&str, String)],
    take: impl FnMut(&[u8]) -> bool,
) -> Result<(), RequestError> {
    runtime()?.block_on(stream(address, path, query, take))
}

async fn stream(
    address: SocketAddr,
    path: &str,
    query: &[(&str, String)],
    mut take: impl FnMut(&[u8]) -> bool,
) -> Result<(), RequestError> {
    let client = client()?.build().map_err(|error| RequestError::Setup(error.into()))?;
    let mut response = answer(address, client.get(url(address, path, query))).await?;
    while let Some(part) = response.chunk().await.map_err(failed(address))? {
        if !take(&part) {
            break;
        }
    }
    Ok(())
}

fn failed(address: SocketAddr) -> impl Fn(reqwest::Error) -> RequestError {
    move |source| {
        if source.is_connect() {
            RequestError::NoAgent(address)
        } else {
            RequestError::Failed { address, source: source.without_url() }
        }
    }
}

fn url(address: SocketAddr, path: &str, query: &[(&str, String)]) -> Url {
    let mut url = Url::parse(&format!("http://{address}")).expect("an address and a port make a URL");
    // `set_path` escapes characters that are not part of a path. A mistyped name may contain any character.
    url.set_path(path);
    if !query.is_empty() {
        url.query_pairs_mut().extend_pairs(query);
    }
    url
}

/// Sends a request, and turns an error status into [`RequestError::Refused`].
async fn answer(address: SocketAddr, request: RequestBuilder) -> Result<Response, RequestError> {
    let response = request.send().await.map_err(failed(address))?;
    if response.status().is_success() {
        return Ok(response);
    }
    let body = response.text().await.map_err(failed(address))?;
    Err(RequestError::Refused(escape_lines(&body)))
}

fn runtime() -> Result<tokio::runtime::Runtime, RequestError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| RequestError::Setup(error.into()))
}

/// Escapes each line of an answer for a terminal, because any program may listen at the address.
pub(crate) fn escape_lines(body: &str) -> String {
    body.trim_end().lines().map(|line| plain(line, MAX_LINE_BYTES)).collect::<Vec<_>>().join("\n")
}

/// A client without proxies and redirects. It never uses TLS, but the library demands a TLS configuration.
fn client() -> Result<ClientBuilder, RequestError> {
    let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| RequestError::Setup(error.into()))?
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    Ok(reqwest::Client::builder().tls_backend_preconfigured(tls).no_proxy().redirect(Policy::none()))
}
