//! Registry credentials from credential provider plugins (KEP-2133, KEP-4412, kubelet 1.36).
//!
//! ```text
//!   pull of an image ──CredentialProviders──> CredentialPlugins ──> Provider ──stdin, stdout──> plugin
//!                                                                      │
//!                                                            answers, until they expire
//! ```
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use podwright_credentials::{CredentialPlugins, PluginsConfig};
//! use podwright_metrics::Metrics;
//! use podwright_ports::SystemClock;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let plugins = CredentialPlugins::open(PluginsConfig {
//!     configuration: "/etc/kubernetes/credential-provider.yaml".into(),
//!     directory: "/usr/local/lib/credential-providers".into(),
//!     accounts: None,
//!     clock: Arc::new(SystemClock::new()),
//!     metrics: Metrics::new().image_credentials,
//! })
//! .await?;
//! # drop(plugins);
//! # Ok(())
//! # }
//! ```
//!
//! # Parts
//!
//! | part | what it does |
//! |---|---|
//! | [`CredentialPlugins`] | implements the port with all plugins |
//! | `config` (pure), `files` | the configuration, and the files that have it |
//! | `provider` | for which pods and images a plugin is called |
//! | `protocol` (pure) | the messages of plugins |
//! | `cache` (pure) | keeps answers |
//! | `call` | the process of one call |
//! | `trust` | only root and the user of the agent may be able to change plugins and their configuration |
//!
//! No event, error or log line at the default level has a part of a credential or a token. At the level debug, the log has what plugins
//! write to their standard error.
//!
//! # Arrows
//!
//! The crate uses `podwright-ports`, `podwright-model`, `podwright-metrics` and `podwright-host`, and no other adapter. The agent and
//! embedders use the crate.

mod cache;
mod call;
mod config;
mod files;
mod protocol;
mod provider;
#[cfg(test)]
mod tests;
mod trust;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use podwright_metrics::ImageCredentialMetrics;
use podwright_model::pod::PodObject;
use podwright_model::text::{error_chain, plain};
use podwright_ports::{Clock, CredentialProviders, ProvidedCredential, ProvidedCredentials, ServiceAccounts};
use tokio::runtime::Handle;

pub use config::ConfigError;
pub use files::ReadConfigError;
pub use trust::UntrustedFile;

use provider::{Provided, Provider};

/// The longest text about a failed plugin in an event.
const MAX_PROBLEM: usize = 500;

/// Settings of [`CredentialPlugins`], and the ports that it calls.
#[derive(Clone)]
pub struct PluginsConfig {
    /// The configuration: a file, or a directory with files that end with `.json`, `.yaml` or `.yml`.
    pub configuration: PathBuf,
    /// The directory of the plugins.
    pub directory: PathBuf,
    /// The service accounts. `None` without an API server.
    pub accounts: Option<Arc<dyn ServiceAccounts>>,
    /// The time by which answers expire.
    pub clock: Arc<dyn Clock>,
    /// Counts calls.
    pub metrics: ImageCredentialMetrics,
}

/// Why the plugins cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenPluginsError {
    /// The configuration cannot be used.
    #[error("cannot use the configuration of credential provider plugins")]
    Config(#[from] ReadConfigError),
    /// A plugin cannot be used.
    #[error("cannot use the credential provider plugin {name:?}")]
    Plugin {
        /// The name of the plugin.
        name: String,
        /// Why.
        source: UntrustedFile,
    },
    /// The task that reads the files was lost.
    #[error("a task of the agent ended without a result")]
    Lost,
}

/// The credential provider plugins of the node.
pub struct CredentialPlugins {
    providers: Vec<Provider>,
}

impl CredentialPlugins {
    /// Reads the configuration, and checks that all of its plugins exist and can be trusted. Calls run on the tokio runtime of the
    /// caller, which must have I/O and time enabled. The configuration is not read again.
    ///
    /// # Errors
    /// [`OpenPluginsError`]
    pub async fn open(config: PluginsConfig) -> Result<Self, OpenPluginsError> {
        let PluginsConfig { configuration, directory, accounts, clock, metrics } = config;
        let read = tokio::task::spawn_blocking(move || read(&configuration, &directory));
        let (hash, plugins) = read.await.map_err(|_| OpenPluginsError::Lost)??;
        metrics.configured(&hash);
        let provider = |(config, path)| {
            Provider::new(config, path, accounts.clone(), clock.clone(), metrics.clone(), Handle::current())
        };
        Ok(CredentialPlugins { providers: plugins.into_iter().map(provider).collect() })
    }
}

/// The hash of the configuration, and the plugins with their files.
fn read(
    configuration: &Path,
    directory: &Path,
) -> Result<(String, Vec<(config::Provider, PathBuf)>), OpenPluginsError> {
    let files::Configuration { providers, hash } = files::read(configuration)?;
    let with_path = |provider: config::Provider| {
        let path = directory.join(&provider.name);
        match trust::check_plugin(&path) {
            Ok(()) => Ok((provider, path)),
            Err(source) => Err(OpenPluginsError::Plugin { name: provider.name, source }),
        }
    };
    let plugins: Result<Vec<_>, _> = providers.into_iter().map(with_path).collect();
    Ok((hash, plugins?))
}

impl CredentialProviders for CredentialPlugins {
    fn credentials<'a>(&'a self, pod: &'a PodObject, repository: &'a str) -> BoxFuture<'a, ProvidedCredentials> {
        async move {
            let mut found = ProvidedCredentials::default();
            let calls = self.providers.iter().map(|provider| provider.provide(pod, repository));
            for (provider, answer) in self.providers.iter().zip(join_all(calls).await) {
                match answer {
                    Ok(None) => {}
                    Ok(Some(provided)) => found.credentials.extend(credentials(provided)),
                    Err(error) => {
                        let text = plain(&error_chain(&error).to_string(), MAX_PROBLEM).into_owned();
                        let plugin = provider.name();
                        tracing::warn!(
                            plugin, image = repository, pod.uid = %pod.uid(), error = text,
                            "a credential provider plugin gave no credentials"
                        );
                        let remedy = if error.is_of_plugin() {
                            ": see what it wrote in the agent's log at the level debug"
                        } else {
                            ""
                        };
                        found.problems.push(format!("credential provider {plugin}: {text}{remedy}"));
                    }
                }
            }
            found
        }
        .boxed()
    }
}

fn credentials((credentials, account): Provided) -> impl Iterator<Item = ProvidedCredential> {
    let credential = move |(scope, auth): (&String, &protocol::Auth)| ProvidedCredential {
        scope: scope.clone(),
        username: auth.username.clone(),
        password: auth.password.clone().into_bytes().into(),
        account: account.clone(),
    };
    credentials.iter().map(credential).collect::<Vec<_>>().into_iter()
}
