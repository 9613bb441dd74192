//! The credentials of clients, and the kubeconfig files that contain them.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use super::StandIn;
use crate::access::{Grant, User};
use crate::authority::ClientCertificate;
use crate::kubeconfig::{self, Credential, UserEntry};

/// The token of the administrator.
pub(super) const ADMIN_TOKEN: &str = "admin";

impl StandIn {
    /// The address with TLS, as in `https://127.0.0.1:6443`.
    ///
    /// # Panics
    ///
    /// If the server has no port.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.address())
    }

    /// The address without TLS. It is the same port.
    ///
    /// # Panics
    ///
    /// If the server has no port.
    #[must_use]
    pub fn plain_url(&self) -> String {
        format!("http://{}", self.address())
    }

    fn address(&self) -> SocketAddr {
        self.listener.as_ref().expect("a server without a port has no address").address
    }

    /// The certificate of the cluster's authority in PEM. It signed the certificate of the server.
    #[must_use]
    pub fn ca_certificate(&self) -> String {
        self.shared.store.lock().authority.pem()
    }

    /// The bearer token of the administrator.
    #[must_use]
    pub fn admin_token(&self) -> String {
        ADMIN_TOKEN.to_owned()
    }

    /// A bearer token for a user.
    #[must_use]
    pub fn token(&self, user: User) -> String {
        let token = format!("token-of-{}", user.name.replace(':', "-"));
        self.shared.store.lock().tokens.insert(token.clone(), user);
        token
    }

    /// A bearer token with the rights of a node.
    #[must_use]
    pub fn node_token(&self, node: &str) -> String {
        self.token(User::node(node))
    }

    /// A client certificate for a user. It is valid from [`User::issued`], or from now. It expires at [`User::expires`], or after a year.
    ///
    /// # Panics
    ///
    /// If the user has more than one group besides `system:authenticated`: such a user needs a token.
    #[must_use]
    pub fn client_certificate(&self, user: &User) -> ClientCertificate {
        let now = (self.shared.clock)();
        self.shared.store.lock().authority.client_certificate(user, now)
    }

    /// Adds a permission of a user or a group.
    pub fn grant(&self, grant: Grant) {
        self.shared.store.lock().grant(grant);
    }

    /// The text of a kubeconfig file: for a user with a new client certificate, or for a bearer token.
    ///
    /// # Panics
    ///
    /// If the credential is a certificate of a user with more than one group besides `system:authenticated`, or if the server has no
    /// port.
    #[must_use]
    pub fn kubeconfig(&self, credential: impl Into<Credential>) -> String {
        let entry = match credential.into() {
            Credential::Nothing => UserEntry::Nothing,
            Credential::Token(token) => UserEntry::Token(token),
            Credential::Certificate(user) => UserEntry::Certificate(self.client_certificate(&user)),
        };
        kubeconfig::text(&self.url(), &self.ca_certificate(), &entry)
    }

    /// A client with the settings of [`Self::kubeconfig`].
    ///
    /// # Panics
    ///
    /// As [`Self::kubeconfig`] does.
    pub async fn client(&self, credential: impl Into<Credential>) -> Client {
        let kubeconfig = Kubeconfig::from_yaml(&self.kubeconfig(credential)).expect("the text is YAML");
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        let config = config.expect("the context names the cluster and the user");
        Client::try_from(config).expect("the stand-in issued the certificates")
    }

    /// Writes a kubeconfig file that only its owner can read.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    ///
    /// # Panics
    ///
    /// As [`Self::kubeconfig`] does.
    pub fn write_kubeconfig(&self, path: &Path, credential: impl Into<Credential>) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        file.write_all(self.kubeconfig(credential).as_bytes())
    }
}
