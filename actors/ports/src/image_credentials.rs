//! Registry credentials that plugins of the node provide, and the service accounts for which they provide them.

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;
use podwright_model::pod::PodObject;

use super::{Confidential, ObjectFuture};

/// Asks the credential provider plugins of the node for registry credentials.
pub trait CredentialProviders: Send + Sync + 'static {
    /// Returns the credentials for the images of a repository, which is `HOST/PATH` in its normal form, without tag and digest. A plugin
    /// that fails is a problem in the answer, and the credentials of the others are returned.
    ///
    /// Cancel safe: the calls of plugins continue, and the next caller gets their answers.
    fn credentials<'a>(&'a self, pod: &'a PodObject, repository: &'a str) -> BoxFuture<'a, ProvidedCredentials>;
}

/// Provides no credentials, for nodes without plugins.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCredentialProviders;

impl CredentialProviders for NoCredentialProviders {
    fn credentials<'a>(&'a self, _: &'a PodObject, _: &'a str) -> BoxFuture<'a, ProvidedCredentials> {
        Box::pin(async { ProvidedCredentials::default() })
    }
}

/// The answers of the plugins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProvidedCredentials {
    /// The credentials, in the order of the plugins.
    pub credentials: Vec<ProvidedCredential>,
    /// Why some credentials may be missing, for the users of the cluster. Contains no part of a credential.
    pub problems: Vec<String>,
}

/// A registry credential of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProvidedCredential {
    /// The images that the credential is for: a [scope](podwright_model::image_scope) of the plugin.
    pub scope: String,
    /// The name of the user.
    pub username: String,
    /// The password or token, in UTF-8.
    pub password: Confidential,
    /// The service account that the credential was given for. `None` if every pod of the node may use it.
    pub account: Option<ServiceAccountIdentity>,
}

/// Identifies a service account.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceAccountIdentity {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The UID. Another account of the same name has another one.
    pub uid: String,
}

/// What credential provider plugins read of a service account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAccountFacts {
    /// The UID.
    pub uid: String,
    /// The annotations.
    pub annotations: BTreeMap<String, String>,
}

/// Reads service accounts and requests their tokens.
pub trait ServiceAccounts: Send + Sync + 'static {
    /// Reads a service account.
    ///
    /// # Errors
    /// [`ObjectError`](super::ObjectError)
    fn service_account<'a>(&'a self, namespace: &'a str, name: &'a str) -> ObjectFuture<'a, ServiceAccountFacts>;

    /// Returns a token of the pod's service account for an audience. It is bound to the pod.
    ///
    /// # Errors
    /// [`ObjectError`](super::ObjectError) if there is no valid token.
    fn account_token<'a>(&'a self, pod: &'a PodObject, audience: &'a str) -> ObjectFuture<'a, Confidential>;
}
