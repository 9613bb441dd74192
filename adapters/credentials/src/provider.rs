//! One plugin: for which pods and images it is called, and what its answers are worth.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use podwright_metrics::ImageCredentialMetrics;
use podwright_model::image_scope::covers;
use podwright_model::pod::PodObject;
use podwright_ports::{Clock, ErrorSource, ObjectError, ServiceAccountIdentity, ServiceAccounts};
use ring::digest::{SHA256, digest};
use tokio::runtime::Handle;
use tokio::time::Instant;

use super::cache::{Cache, Caller, Credentials};
use super::call::{CallError, Program, call};
use super::config::{self, TokenCacheType, TokenSettings};
use super::protocol::{Answer, AnswerError, Request};
use super::trust;

/// A plugin with its answers. Clones share them.
#[derive(Clone)]
pub(crate) struct Provider(Arc<ProviderInner>);

struct ProviderInner {
    config: config::Provider,
    /// The name, as the label of metrics.
    name: Arc<str>,
    path: PathBuf,
    accounts: Option<Arc<dyn ServiceAccounts>>,
    clock: Arc<dyn Clock>,
    metrics: ImageCredentialMetrics,
    /// Calls run here, so that they continue when their callers do not wait any more.
    handle: Handle,
    state: Mutex<State>,
}

struct State {
    cache: Cache,
    /// The running calls. Callers with the same question share one.
    running: HashMap<Question, SharedCall>,
}

type SharedCall = Shared<BoxFuture<'static, Result<Credentials, ProviderError>>>;

/// What a plugin is asked.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Question {
    repository: String,
    caller: Option<Caller>,
    /// The hash of the token, because the answer may depend on it.
    token: Option<String>,
}

/// The service account of a pod, as the plugin gets it.
struct Account {
    caller: Caller,
    token: String,
}

/// The credentials of a plugin, and the service account that they were given for.
pub(crate) type Provided = (Credentials, Option<ServiceAccountIdentity>);

/// Why a plugin gives no credentials.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum ProviderError {
    #[error("it cannot be trusted")]
    Untrusted(#[source] ErrorSource),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("its answer cannot be used")]
    Answer(#[from] AnswerError),
    #[error("it answered with the token of the service account, which needs cacheType: Token")]
    Echo,
    #[error("the service account of the pod cannot be used")]
    Account(#[from] ObjectError),
    #[error("the pod has a service account, but the agent has no API server: start it with --kubeconfig")]
    NoServer,
    #[error("its call ended without a result")]
    Lost,
}

impl ProviderError {
    /// Whether the log of the agent has more about the failure than the error says.
    pub(crate) fn is_of_plugin(&self) -> bool {
        matches!(self, ProviderError::Call(_))
    }
}

impl Provider {
    pub(crate) fn new(
        config: config::Provider,
        path: PathBuf,
        accounts: Option<Arc<dyn ServiceAccounts>>,
        clock: Arc<dyn Clock>,
        metrics: ImageCredentialMetrics,
        handle: Handle,
    ) -> Self {
        let name = config.name.as_str().into();
        let state = Mutex::new(State { cache: Cache::new(clock.now()), running: HashMap::new() });
        Provider(Arc::new(ProviderInner { config, name, path, accounts, clock, metrics, handle, state }))
    }

    /// The name of the plugin.
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// The credentials for a pod and a repository. `None` if the plugin is not for them.
    pub(crate) async fn provide(&self, pod: &PodObject, repository: &str) -> Result<Option<Provided>, ProviderError> {
        if !self.0.config.match_images.iter().any(|scope| covers(scope, repository)) {
            return Ok(None);
        }
        let account = match &self.0.config.token {
            None => None,
            Some(settings) => match pod.spec().service_account_name.as_deref().filter(|name| !name.is_empty()) {
                None if settings.requires_account => return Ok(None),
                None => None,
                Some(name) => match self.account(settings, pod, name).await? {
                    None => return Ok(None),
                    account => account,
                },
            },
        };
        let identity = account.as_ref().map(|account| account.caller.account.clone());
        let credentials = self.ask(repository, account).await?;
        Ok(Some((credentials, identity)))
    }

    /// The service account of a pod with its token. `None` if the account lacks an annotation that the plugin requires.
    async fn account(
        &self,
        settings: &TokenSettings,
        pod: &PodObject,
        name: &str,
    ) -> Result<Option<Account>, ProviderError> {
        let accounts = self.0.accounts.as_ref().ok_or(ProviderError::NoServer)?;
        let namespace = pod.full_name().namespace();
        let facts = accounts.service_account(namespace, name).await?;
        if let Some(missing) = settings.required_annotations.iter().find(|key| !facts.annotations.contains_key(*key)) {
            tracing::debug!(
                plugin = self.name(),
                namespace,
                account = name,
                annotation = missing,
                "a credential provider plugin is not called, because the service account has no such annotation"
            );
            return Ok(None);
        }
        let keys = settings.required_annotations.iter().chain(&settings.optional_annotations);
        let annotations = keys.filter_map(|key| Some((key.clone(), facts.annotations.get(key)?.clone())));
        let annotations: BTreeMap<String, String> = annotations.collect();
        let token = accounts.account_token(pod, &settings.audience).await?;
        let token = String::from_utf8_lossy(token.expose()).into_owned();
        let of_token = match settings.cache_type {
            TokenCacheType::ServiceAccount => None,
            TokenCacheType::Token => Some((pod.uid().clone(), hash(&token))),
        };
        let account = ServiceAccountIdentity { namespace: namespace.to_owned(), name: name.to_owned(), uid: facts.uid };
        Ok(Some(Account { caller: Caller { account, annotations, token: of_token }, token }))
    }

    /// The kept answer, or that of a call.
    async fn ask(&self, repository: &str, account: Option<Account>) -> Result<Credentials, ProviderError> {
        let (caller, token) = account.map(|Account { caller, token }| (caller, token)).unzip();
        let question = Question { repository: repository.to_owned(), token: token.as_deref().map(hash), caller };
        let call = {
            let mut state = self.0.state.lock();
            if let Some(credentials) = state.cache.get(repository, question.caller.as_ref(), self.0.clock.now()) {
                return Ok(credentials);
            }
            match state.running.get(&question) {
                Some(call) => call.clone(),
                None => {
                    let (provider, asked) = (self.clone(), question.clone());
                    let task = self.0.handle.spawn(async move {
                        // The guard is made in the task, because a runtime that ends drops a new task at once, with the lock held.
                        let ended = EndOfCall { provider, question: asked };
                        let provider = &ended.provider;
                        provider.0.answer(&ended.question, token.as_deref().unwrap_or_default()).await
                    });
                    let call = task.map(|ended| ended.unwrap_or(Err(ProviderError::Lost))).boxed().shared();
                    state.running.insert(question, call.clone());
                    call
                }
            }
        };
        call.await
    }
}

impl ProviderInner {
    /// Calls the plugin, and keeps its answer.
    async fn answer(&self, question: &Question, token: &str) -> Result<Credentials, ProviderError> {
        let none = BTreeMap::new();
        let annotations = question.caller.as_ref().map_or(&none, |caller| &caller.annotations);
        let request = Request { image: &question.repository, token, annotations }.encode(self.config.version);
        let started = Instant::now();
        let output = self.call(&request, token).await;
        self.metrics.plugin_called(&self.name, started.elapsed(), output.is_ok());
        let answer = Answer::decode(&output?, self.config.version)?;
        let may_echo = self.config.token.as_ref().is_some_and(|token| token.cache_type == TokenCacheType::Token);
        // The token of one pod must not be kept for the other pods of its account.
        if !token.is_empty() && !may_echo && answer.auth.values().any(|auth| auth.password == token) {
            return Err(ProviderError::Echo);
        }
        let duration = answer.cache_duration.unwrap_or(self.config.default_cache_duration);
        let credentials: Credentials = Arc::new(answer.auth);
        let images = (question.repository.as_str(), answer.cache_key);
        let kept = (self.clock.now(), duration);
        self.state.lock().cache.insert(images, question.caller.as_ref(), Arc::clone(&credentials), kept);
        Ok(credentials)
    }

    async fn call(&self, request: &[u8], token: &str) -> Result<Vec<u8>, ProviderError> {
        let path = self.path.clone();
        // Somebody may have replaced the plugin since the start of the agent.
        let checked = tokio::task::spawn_blocking(move || trust::check_plugin(&path)).await;
        checked.map_err(|_| ProviderError::Lost)?.map_err(|error| {
            ProviderError::Untrusted(Box::<dyn std::error::Error + Send + Sync>::from(error).into())
        })?;
        let program = Program { path: &self.path, args: &self.config.args, env: &self.config.env };
        Ok(call(program, request, token).await?)
    }
}

/// Removes a call from the running ones when it ends, even after a panic.
struct EndOfCall {
    provider: Provider,
    question: Question,
}

impl Drop for EndOfCall {
    fn drop(&mut self) {
        self.provider.0.state.lock().running.remove(&self.question);
    }
}

/// The SHA-256 hash in hexadecimal digits.
fn hash(text: &str) -> String {
    digest(&SHA256, text.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
