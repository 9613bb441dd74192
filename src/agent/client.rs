//! Asking a running agent.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::actors::text::plain;
use reqwest::Url;
use reqwest::header::ACCEPT;
use reqwest::redirect::Policy;
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
pub(crate) fn ask(address: SocketAddr, path: &str, accept: &'static str) -> Result<String, AskError> {
    let setup = |error: std::io::Error| AskError::Setup(error.into());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(setup)?;
    runtime.block_on(get(address, path, accept))
}

async fn get(address: SocketAddr, path: &str, accept: &'static str) -> Result<String, AskError> {
    let failed = |source: reqwest::Error| match source.is_connect() {
        true => AskError::NoAgent(address),
        false => AskError::Failed { address, source: source.without_url() },
    };
    let mut url = Url::parse(&format!("http://{address}")).expect("an address and a port make a URL");
    // Escapes what would not be of the path: whoever asks may have mistyped a name.
    url.set_path(path);
    let request = client()?.get(url).header(ACCEPT, accept);
    let response = request.send().await.map_err(failed)?;
    let status = response.status();
    let body = response.text().await.map_err(failed)?;
    if status.is_success() { Ok(body) } else { Err(AskError::Refused(lines(&body))) }
}

/// An answer for people, line by line. What answers may be anything.
pub(crate) fn lines(body: &str) -> String {
    body.trim_end().lines().map(|line| plain(line, LONGEST)).collect::<Vec<_>>().join("\n")
}

/// A client that never speaks TLS; the library wants to know how all the same.
fn client() -> Result<reqwest::Client, AskError> {
    let setup = |error: Box<dyn std::error::Error + Send + Sync>| AskError::Setup(error);
    let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| setup(error.into()))?
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .no_proxy()
        .redirect(Policy::none())
        .timeout(TIMEOUT)
        .build()
        .map_err(|error| setup(error.into()))
}
