//! The configuration of the plugins: `CredentialProviderConfig` of `kubelet.config.k8s.io` (kubelet 1.36). Pure.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::SignedDuration;
use podwright_model::names::is_qualified;
use podwright_model::text::plain;
use serde::Deserialize;

/// The versions of the configuration. They have the same fields.
const CONFIG_VERSIONS: [&str; 3] =
    ["kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1"];
const CONFIG_KIND: &str = "CredentialProviderConfig";

/// One plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Provider {
    /// The name of the plugin, and of its file in the directory of plugins.
    pub(crate) name: String,
    /// The scopes of the images for which the plugin is called.
    pub(crate) match_images: Vec<String>,
    /// How long an answer is kept that does not say it.
    pub(crate) default_cache_duration: Duration,
    pub(crate) version: ProtocolVersion,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    /// Present if the plugin gets the tokens of service accounts.
    pub(crate) token: Option<TokenSettings>,
}

/// The version of the messages of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtocolVersion {
    V1,
    V1Beta1,
    V1Alpha1,
}

impl ProtocolVersion {
    const ALL: [ProtocolVersion; 3] = [ProtocolVersion::V1, ProtocolVersion::V1Beta1, ProtocolVersion::V1Alpha1];

    /// The `apiVersion` of the messages.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            ProtocolVersion::V1 => "credentialprovider.kubelet.k8s.io/v1",
            ProtocolVersion::V1Beta1 => "credentialprovider.kubelet.k8s.io/v1beta1",
            ProtocolVersion::V1Alpha1 => "credentialprovider.kubelet.k8s.io/v1alpha1",
        }
    }
}

/// How a plugin uses the service accounts of pods (KEP-4412).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenSettings {
    pub(crate) audience: String,
    pub(crate) cache_type: TokenCacheType,
    /// Whether the plugin is called only for pods with a service account.
    pub(crate) requires_account: bool,
    /// The annotations that an account must have for the plugin to be called.
    pub(crate) required_annotations: Vec<String>,
    /// The annotations that the plugin gets if the account has them.
    pub(crate) optional_annotations: Vec<String>,
}

/// Which pods share an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum TokenCacheType {
    /// The pods of one service account.
    ServiceAccount,
    /// No two pods: the answer is valid as long as the token.
    Token,
}

/// A fault of the configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file is not a configuration in YAML or JSON, or has an unknown or doubled field.
    #[error("{0}")]
    Syntax(String),
    /// The file has another kind or version.
    #[error("it is {kind:?} of {version:?}: write CredentialProviderConfig of kubelet.config.k8s.io/v1")]
    Kind {
        /// Its kind.
        kind: String,
        /// Its `apiVersion`.
        version: String,
    },
    /// No plugin is configured.
    #[error("providers: there is none: add one, or leave out --image-credential-provider-config")]
    NoProviders,
    /// Two plugins have one name.
    #[error("providers: {0:?} is there twice: remove one of them")]
    Twice(String),
    /// A field of a plugin is not valid.
    #[error("provider {provider:?}: {field}: {what}")]
    Field {
        /// The name of the plugin.
        provider: String,
        /// The field.
        field: &'static str,
        /// What is wrong, with the remedy.
        what: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ConfigFile {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    providers: Option<Vec<ProviderFile>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ProviderFile {
    #[serde(default)]
    name: String,
    #[serde(default)]
    match_images: Option<Vec<String>>,
    #[serde(default)]
    default_cache_duration: Option<String>,
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    args: Option<Vec<String>>,
    #[serde(default)]
    env: Option<Vec<EnvFile>>,
    #[serde(default)]
    token_attributes: Option<TokenFile>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct EnvFile {
    name: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TokenFile {
    #[serde(default)]
    service_account_token_audience: String,
    #[serde(default)]
    cache_type: Option<TokenCacheType>,
    #[serde(default)]
    require_service_account: Option<bool>,
    #[serde(default)]
    required_service_account_annotation_keys: Option<Vec<String>>,
    #[serde(default)]
    optional_service_account_annotation_keys: Option<Vec<String>>,
}

/// Parses one file. A file may have no plugin, because a directory may have several files.
///
/// # Errors
/// [`ConfigError`] for the first fault.
pub(crate) fn parse(bytes: &[u8]) -> Result<Vec<Provider>, ConfigError> {
    let file = decode(bytes)?;
    if file.kind != CONFIG_KIND || !CONFIG_VERSIONS.contains(&file.api_version.as_str()) {
        return Err(ConfigError::Kind { kind: file.kind, version: file.api_version });
    }
    file.providers.unwrap_or_default().into_iter().map(provider).collect()
}

/// Joins the plugins of several files.
///
/// # Errors
/// [`ConfigError`] if there is no plugin, or if two have one name.
pub(crate) fn join(files: impl IntoIterator<Item = Vec<Provider>>) -> Result<Vec<Provider>, ConfigError> {
    let providers: Vec<Provider> = files.into_iter().flatten().collect();
    let mut names = BTreeSet::new();
    if let Some(twice) = providers.iter().find(|provider| !names.insert(provider.name.as_str())) {
        return Err(ConfigError::Twice(twice.name.clone()));
    }
    if providers.is_empty() { Err(ConfigError::NoProviders) } else { Ok(providers) }
}

fn decode(bytes: &[u8]) -> Result<ConfigFile, ConfigError> {
    // The text of an error may quote the file. Only its author reads it.
    let syntax = |text: String| ConfigError::Syntax(plain(&text, 500).into_owned());
    let text = std::str::from_utf8(bytes).map_err(|error| syntax(error.to_string()))?;
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(text).map_err(|error| syntax(error.to_string()));
    }
    let options = serde_saphyr::options! {
        with_snippet: false,
        // Parsing is recursive. A configuration has a depth of about 6.
        budget: serde_saphyr::budget! { max_depth: 32 },
        // Limits the work that nested aliases can cause.
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 10_000 },
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| match error.without_snippet() {
        serde_saphyr::Error::DuplicateMappingKey { key, .. } => {
            syntax(format!("field {:?} is set twice: keep one", key.as_deref().unwrap_or_default()))
        }
        error => syntax(error.to_string()),
    })
}

fn provider(file: ProviderFile) -> Result<Provider, ConfigError> {
    let name = file.name.clone();
    let fault =
        |field: &'static str, what: &str| ConfigError::Field { provider: name.clone(), field, what: what.to_owned() };
    if name.is_empty() || name == "." || name == ".." || name.contains(['/', ' ', '\0']) {
        return Err(fault("name", "not the name of a file: write the name of the plugin's file, without / and spaces"));
    }
    let version = ProtocolVersion::ALL.into_iter().find(|version| version.as_str() == file.api_version);
    let version = version.ok_or_else(|| {
        fault("apiVersion", "not known: write credentialprovider.kubelet.k8s.io/v1, v1beta1 or v1alpha1")
    })?;
    let match_images = file.match_images.unwrap_or_default();
    if match_images.is_empty() {
        return Err(fault("matchImages", "empty: name at least one image, such as *.registry.example"));
    }
    if let Some(scope) = match_images.iter().find(|scope| !is_scope(scope)) {
        let what = format!(
            "{scope:?} matches no image: write HOST[:PORT][/PATH] without a scheme, such as *.registry.example"
        );
        return Err(fault("matchImages", &what));
    }
    let duration =
        file.default_cache_duration.ok_or_else(|| fault("defaultCacheDuration", "missing: write one such as 12h"))?;
    let default_cache_duration = cache_duration(&duration)
        .ok_or_else(|| fault("defaultCacheDuration", "not a time span from 0: write one such as 12h or 30m"))?;
    let env: Vec<_> =
        file.env.unwrap_or_default().into_iter().map(|variable| (variable.name, variable.value)).collect();
    if env.iter().any(|(name, value)| name.is_empty() || name.contains(['=', '\0']) || value.contains('\0')) {
        return Err(fault("env", "a name is empty or has a =, or a text has a NUL: correct it"));
    }
    let args = file.args.unwrap_or_default();
    if args.iter().any(|arg| arg.contains('\0')) {
        return Err(fault("args", "a text has a NUL: remove it"));
    }
    let token = file.token_attributes.map(|token| token_settings(token, version, &fault)).transpose()?;
    Ok(Provider { name: file.name, match_images, default_cache_duration, version, args, env, token })
}

fn token_settings(
    file: TokenFile,
    version: ProtocolVersion,
    fault: &dyn Fn(&'static str, &str) -> ConfigError,
) -> Result<TokenSettings, ConfigError> {
    if version != ProtocolVersion::V1 {
        let what = "only with apiVersion credentialprovider.kubelet.k8s.io/v1: change the apiVersion, or leave it out";
        return Err(fault("tokenAttributes", what));
    }
    let audience = file.service_account_token_audience;
    if audience.is_empty() {
        return Err(fault("tokenAttributes.serviceAccountTokenAudience", "missing: name the audience of the tokens"));
    }
    let cache_type =
        file.cache_type.ok_or_else(|| fault("tokenAttributes.cacheType", "missing: write ServiceAccount or Token"))?;
    let requires_account = file
        .require_service_account
        .ok_or_else(|| fault("tokenAttributes.requireServiceAccount", "missing: write true or false"))?;
    let required_annotations = file.required_service_account_annotation_keys.unwrap_or_default();
    let optional_annotations = file.optional_service_account_annotation_keys.unwrap_or_default();
    if !requires_account && !required_annotations.is_empty() {
        let what = "needs requireServiceAccount: true: set it, or make the annotations optional";
        return Err(fault("tokenAttributes.requiredServiceAccountAnnotationKeys", what));
    }
    let mut keys = BTreeSet::new();
    for (field, list) in [
        ("tokenAttributes.requiredServiceAccountAnnotationKeys", &required_annotations),
        ("tokenAttributes.optionalServiceAccountAnnotationKeys", &optional_annotations),
    ] {
        for key in list {
            // The case of the letters has no meaning for the form of a key.
            if !is_qualified(&key.to_lowercase()) {
                return Err(fault(field, &format!("{key:?} is not a key of an annotation: write [DOMAIN/]NAME")));
            }
            if !keys.insert(key) {
                return Err(fault(field, &format!("{key:?} is there twice: remove one of them")));
            }
        }
    }
    Ok(TokenSettings { audience, cache_type, requires_account, required_annotations, optional_annotations })
}

/// Whether a text can match an image.
fn is_scope(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('/')
        && !text.contains("://")
        && !text.contains(|c: char| c.is_whitespace() || c.is_control())
}

/// Parses a time span in the form of Go, such as `1h30m`. `None` if it is not valid or negative.
pub(crate) fn cache_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    text.parse::<SignedDuration>().ok().and_then(|span| Duration::try_from(span).ok())
}

#[cfg(test)]
mod tests;
