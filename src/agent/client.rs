//! An HTTP client for the admin endpoints of a running agent.

mod address;

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use podwright_model::text::plain;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{ClientBuilder, RequestBuilder, Response, StatusCode, Url};
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};

pub(crate) use address::{
    AgentAddress, LINK_FILE, SOCKET_FILE, is_page_host, loopback_or_other, other_page_address, page_link,
};

use super::program::Program;
use address::token_of_link;
use podwright_http_server::{ShortPath, TlsError, Token, TokenError, certificates, read_private};

/// How long a whole answer may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit of a request that changes something. Such a request waits for the current calls to a driver, which take up to 45 s.
const POST_TIMEOUT: Duration = Duration::from_secs(120);
/// The maximum length of a printed line in bytes.
const MAX_LINE_BYTES: usize = 16 << 10;

/// Why a request to the agent has no usable answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    #[error(
        "no agent listens at {0}: start one with `podwright run`, or name a running one with --root DIR or --admin ADDRESS"
    )]
    NoAgent(AgentAddress),
    #[error(
        "no controllers listen at {0}: start them with `podwright controllers`, or name running ones with --root DIR or --admin ADDRESS"
    )]
    NoControllers(AgentAddress),
    #[error(
        "no agent and no controllers listen at {0}: start `podwright run` or `podwright controllers`, or name running ones with \
         --root DIR or --admin ADDRESS"
    )]
    NoProgram(AgentAddress),
    #[error("the program at {0} runs as another user: run this command as that user or as root, for example with sudo")]
    OtherUser(AgentAddress),
    #[error(
        "the server at {address} is not podwright of this version: name an agent or controllers with --root DIR or --admin ADDRESS"
    )]
    NotPodwright { address: AgentAddress },
    #[error("the request to {address} failed: check that the agent or the controllers still run, and try again")]
    Failed { address: AgentAddress, source: reqwest::Error },
    /// The agent's own error text.
    #[error("{0}")]
    Refused(String),
    /// The agent's own error text for an object that it does not have.
    #[error("{0}")]
    NotFound(String),
    #[error(transparent)]
    Token(#[from] TokenError),
    #[error(transparent)]
    Authority(#[from] TlsError),
    #[error("the agent at {0} serves no page: restart it without --admin=off, and see its log")]
    NoLink(AgentAddress),
    #[error("cannot set up the HTTP client")]
    Setup(#[source] Box<dyn Error + Send + Sync>),
}

impl RequestError {
    /// The error of a command that may be for an agent or for controllers.
    pub(crate) fn of_any_program(self) -> Self {
        match self {
            RequestError::NoAgent(address) => RequestError::NoProgram(address),
            error => error,
        }
    }
}

/// A running agent, and how to reach it.
#[derive(Clone, Debug)]
pub(crate) struct Agent {
    pub(crate) address: AgentAddress,
    /// The program that the command is for.
    pub(crate) program: Program,
    /// The root directory of the agent, if the caller knows it.
    pub(crate) root: Option<PathBuf>,
    /// The file with the token for an address other than a socket.
    pub(crate) token_file: Option<PathBuf>,
    /// The file with the certificates that sign the agent's certificate. Without it, the system's authorities count.
    pub(crate) authority: Option<PathBuf>,
}

impl Agent {
    /// Fetches a path; `accept` is the media type of the answer.
    ///
    /// # Errors
    /// [`RequestError`] if there is no answer with a success status within 30 s.
    pub(crate) fn fetch(
        &self,
        path: &str,
        query: &[(&str, String)],
        accept: &'static str,
    ) -> Result<String, RequestError> {
        runtime()?.block_on(async {
            let client = self.client(|client| client.timeout(TIMEOUT))?;
            let request = client.get(self.url(path, query)).header(ACCEPT, accept);
            self.answer(request).await?.text().await.map_err(|error| self.failed(error))
        })
    }

    /// Fetches a path again and again, and passes each answer to `take`. It stops once `take` returns `false`.
    ///
    /// # Errors
    /// [`RequestError`] if there is no answer with a success status within 30 s, or the error of `take`.
    pub(crate) fn poll<E: From<RequestError>>(
        &self,
        path: &str,
        accept: &'static str,
        period: Duration,
        mut take: impl FnMut(&str) -> Result<bool, E>,
    ) -> Result<(), E> {
        runtime()?.block_on(async {
            let client = self.client(|client| client.timeout(TIMEOUT))?;
            loop {
                let request = client.get(self.url(path, &[])).header(ACCEPT, accept);
                let body = self.answer(request).await?.text().await.map_err(|error| self.failed(error))?;
                if !take(&body)? {
                    return Ok(());
                }
                tokio::time::sleep(period).await;
            }
        })
    }

    /// Posts an empty body to a path.
    ///
    /// # Errors
    /// [`RequestError`] if there is no answer with a success status within 2 minutes.
    pub(crate) fn post(&self, path: &str, query: &[(&str, String)]) -> Result<String, RequestError> {
        runtime()?.block_on(async {
            let client = self.client(|client| client.timeout(POST_TIMEOUT))?;
            let request = client.post(self.url(path, query));
            self.answer(request).await?.text().await.map_err(|error| self.failed(error))
        })
    }

    /// Fetches a path whose answer may have no end, and passes each part to `take` as it arrives. It stops once `take` returns
    /// `false`.
    ///
    /// # Errors
    /// [`RequestError`] if there is no answer with a success status, or if the connection breaks.
    pub(crate) fn follow(
        &self,
        path: &str,
        query: &[(&str, String)],
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), RequestError> {
        runtime()?.block_on(async {
            let client = self.client(|client| client)?;
            let mut response = self.answer(client.get(self.url(path, query))).await?;
            while let Some(part) = response.chunk().await.map_err(|error| self.failed(error))? {
                if !take(&part) {
                    break;
                }
            }
            Ok(())
        })
    }

    /// The link to the page of the agent with this root directory.
    ///
    /// # Errors
    /// [`RequestError`] if no agent runs there, or if it serves no page.
    pub(crate) fn link(root: &Path) -> Result<String, RequestError> {
        let address = AgentAddress::of_root(root);
        let agent = Agent { address, program: Program::Agent, root: None, token_file: None, authority: None };
        // The file of an agent that was killed remains. So the command asks whether an agent runs.
        match agent.fetch("/healthz", &[], "text/plain") {
            // An agent whose housekeeping is late answers with an error, and serves its page.
            Ok(_) | Err(RequestError::Refused(_)) => {}
            Err(error) => return Err(error),
        }
        let link = read_private(&root.join(LINK_FILE)).map_err(|_| RequestError::NoLink(agent.address))?;
        Ok(escape_lines(&link))
    }

    /// The error for an answer that no agent of this version gives.
    pub(crate) fn not_podwright(&self) -> RequestError {
        RequestError::NotPodwright { address: self.address.clone() }
    }

    fn url(&self, path: &str, query: &[(&str, String)]) -> Url {
        let mut url = self.address.url();
        // `set_path` escapes characters that are not part of a path. A mistyped name may contain any character.
        url.set_path(path);
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        url
    }

    /// Sends a request, and turns an error status into [`RequestError::Refused`] or [`RequestError::NotFound`].
    async fn answer(&self, request: RequestBuilder) -> Result<Response, RequestError> {
        let response = request.send().await.map_err(|error| self.failed(error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let why = escape_lines(&response.text().await.map_err(|error| self.failed(error))?);
        Err(if status == StatusCode::NOT_FOUND { RequestError::NotFound(why) } else { RequestError::Refused(why) })
    }

    fn absent(&self) -> RequestError {
        match self.program {
            Program::Agent => RequestError::NoAgent(self.address.clone()),
            Program::Controllers => RequestError::NoControllers(self.address.clone()),
        }
    }

    fn failed(&self, source: reqwest::Error) -> RequestError {
        let address = self.address.clone();
        match io_cause(&source) {
            Some(io::ErrorKind::PermissionDenied) => RequestError::OtherUser(address),
            Some(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => self.absent(),
            // A failed handshake is a failure to connect too, and its cause is worth reading.
            _ => RequestError::Failed { address, source: source.without_url() },
        }
    }

    /// The token for this agent's address. A token is never sent to a loopback port other than the one of the link, because
    /// any program may listen there.
    fn token(&self) -> Result<Option<String>, RequestError> {
        if let Some(file) = &self.token_file {
            return Ok(Some(Token::read(file)?.secret().to_owned()));
        }
        let (AgentAddress::Loopback(address), Some(root)) = (&self.address, &self.root) else { return Ok(None) };
        // Without a link, the agent answers what is missing.
        let link = read_private(&root.join(LINK_FILE)).unwrap_or_default();
        Ok(token_of_link(&link, *address).map(str::to_owned))
    }

    /// A client without proxies and redirects.
    fn client(&self, settings: impl FnOnce(ClientBuilder) -> ClientBuilder) -> Result<Client, RequestError> {
        let setup = |error: Box<dyn Error + Send + Sync>| RequestError::Setup(error);
        let mut builder = reqwest::Client::builder().no_proxy().redirect(Policy::none());
        let mut socket = None;
        match (&self.address, &self.authority) {
            (AgentAddress::Https(_), None) => {
                // Only the first call in a process can set the provider, and each call sets the same one.
                let _already_set = ring::default_provider().install_default();
            }
            (AgentAddress::Https(_), Some(file)) => builder = builder.tls_backend_preconfigured(self.tls(Some(file))?),
            // The library demands a TLS configuration, although there is no TLS.
            (AgentAddress::Loopback(_), _) => builder = builder.tls_backend_preconfigured(self.tls(None)?),
            (AgentAddress::Socket(path), _) => {
                let short = ShortPath::new(path).map_err(|error| match error.kind() {
                    io::ErrorKind::PermissionDenied => RequestError::OtherUser(self.address.clone()),
                    _ => self.absent(),
                })?;
                builder = builder.tls_backend_preconfigured(self.tls(None)?).unix_socket(short.path());
                socket = Some(short);
            }
        }
        let token = match self.token()? {
            None => None,
            Some(token) => {
                let mut value =
                    HeaderValue::from_str(&format!("Bearer {token}")).map_err(|error| setup(error.into()))?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        let client = settings(builder).build().map_err(|error| setup(error.into()))?;
        Ok(Client { client, token, _socket: socket })
    }

    fn tls(&self, authority: Option<&Path>) -> Result<ClientConfig, RequestError> {
        let mut roots = RootCertStore::empty();
        if let Some(file) = authority {
            let (added, _ignored) = roots.add_parsable_certificates(certificates(file)?);
            if added == 0 {
                return Err(TlsError::NoCertificate(file.to_owned()).into());
            }
        }
        let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| RequestError::Setup(error.into()))?;
        Ok(tls.with_root_certificates(roots).with_no_client_auth())
    }
}

/// A client for one agent.
struct Client {
    client: reqwest::Client,
    token: Option<HeaderValue>,
    _socket: Option<ShortPath>,
}

impl Client {
    fn get(&self, url: Url) -> RequestBuilder {
        self.with_token(self.client.get(url))
    }

    fn post(&self, url: Url) -> RequestBuilder {
        self.with_token(self.client.post(url))
    }

    fn with_token(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.token {
            Some(token) => request.header(AUTHORIZATION, token),
            None => request,
        }
    }
}

/// The kind of the system error behind an error.
fn io_cause(error: &reqwest::Error) -> Option<io::ErrorKind> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Some(error.kind());
        }
        cause = error.source();
    }
    None
}

fn runtime() -> Result<tokio::runtime::Runtime, RequestError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| RequestError::Setup(error.into()))
}

/// Escapes each line of an answer for a terminal, because any program may listen at the address.
pub(crate) fn escape_lines(body: &str) -> String {
    body.trim_end().lines().map(|line| plain(line, MAX_LINE_BYTES)).collect::<Vec<_>>().join("\n")
}
