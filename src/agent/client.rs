//! Asking a running agent.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::actors::text::plain;
use reqwest::header::ACCEPT;
use reqwest::redirect::Policy;
use reqwest::{ClientBuilder, RequestBuilder, Response, Url};
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The most bytes of a line of it.
const LONGEST: usize = 16 << 10;

/// No answer that is of use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    #[error("no agent answers at {0}: start one with `podwright run`, or name it with --admin")]
    NoAgent(SocketAddr),
    #[error("what answers at {address} is no podwright agent of this version: name one with --admin")]
    Stranger { address: SocketAddr },
    #[error("the agent at {address} did not answer")]
    Failed { address: SocketAddr, source: reqwest::Error },
    /// What the agent says itself.
    #[error("{0}")]
    Refused(String),
    #[error("cannot ask anybody")]
    Setup(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Asks for a path; `accept` says in which form.
///
/// # Errors
/// [`AskError`].
pub(crate) fn ask(
    address: SocketAddr,
    path: &str,
    query: &[(&str, String)],
    accept: &'static str,
) -> Result<String, AskError> {
    runtime()?.block_on(get(url(address, path, query), address, accept))
}

async fn get(url: Url, address: SocketAddr, accept: &'static str) -> Result<String, AskError> {
    let request = client()?.timeout(TIMEOUT).build().map_err(|error| AskError::Setup(error.into()))?;
    let request = request.get(url).header(ACCEPT, accept);
    answer(address, request).await?.text().await.map_err(failed(address))
}

/// Asks for a path of which the answer may go on for ever, and hands on each part of it as it comes, until that says that it
/// is enough.
///
/// # Errors
/// [`AskError`].
pub(crate) fn follow(
    address: SocketAddr,
    path: &str,
    query: &[(&str, String)],
    take: impl FnMut(&[u8]) -> bool,
) -> Result<(), AskError> {
    runtime()?.block_on(stream(address, path, query, take))
}

async fn stream(
    address: SocketAddr,
    path: &str,
    query: &[(&str, String)],
    mut take: impl FnMut(&[u8]) -> bool,
) -> Result<(), AskError> {
    let client = client()?.build().map_err(|error| AskError::Setup(error.into()))?;
    let mut response = answer(address, client.get(url(address, path, query))).await?;
    while let Some(part) = response.chunk().await.map_err(failed(address))? {
        if !take(&part) {
            break;
        }
    }
    Ok(())
}

fn failed(address: SocketAddr) -> impl Fn(reqwest::Error) -> AskError {
    move |source| match source.is_connect() {
        true => AskError::NoAgent(address),
        false => AskError::Failed { address, source: source.without_url() },
    }
}

fn url(address: SocketAddr, path: &str, query: &[(&str, String)]) -> Url {
    let mut url = Url::parse(&format!("http://{address}")).expect("an address and a port make a URL");
    // Escapes what would not be of the path: whoever asks may have mistyped a name.
    url.set_path(path);
    if !query.is_empty() {
        url.query_pairs_mut().extend_pairs(query);
    }
    url
}

/// The answer, if it is one to what was asked.
async fn answer(address: SocketAddr, request: RequestBuilder) -> Result<Response, AskError> {
    let response = request.send().await.map_err(failed(address))?;
    if response.status().is_success() {
        return Ok(response);
    }
    let body = response.text().await.map_err(failed(address))?;
    Err(AskError::Refused(lines(&body)))
}

fn runtime() -> Result<tokio::runtime::Runtime, AskError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| AskError::Setup(error.into()))
}

/// An answer for people, line by line. What answers may be anything.
pub(crate) fn lines(body: &str) -> String {
    body.trim_end().lines().map(|line| plain(line, LONGEST)).collect::<Vec<_>>().join("\n")
}

/// A client that never speaks TLS; the library wants to know how all the same.
fn client() -> Result<ClientBuilder, AskError> {
    let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| AskError::Setup(error.into()))?
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    Ok(reqwest::Client::builder().tls_backend_preconfigured(tls).no_proxy().redirect(Policy::none()))
}
