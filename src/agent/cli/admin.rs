//! The flags for the admin endpoints of an agent, and for the commands that use them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use crate::agent::client::{Agent, AgentAddress, loopback_or_other};
use crate::agent::program::Program;
use crate::agent::root::{DefaultDirectories, RootError};

/// The flags of `run` and `controllers` for the admin endpoints.
#[derive(Args, Debug)]
pub(crate) struct AdminArgs {
    /// The address that serves /healthz, /readyz and /metrics, and the page of `podwright run` at /, or `off` for no admin
    /// endpoints at all. The other endpoints are on the socket admin.sock in the root directory, for the commands of this user.
    /// An address that other machines can reach needs a certificate and a token.
    #[arg(long, value_name = "ADDR:PORT|off", default_value_t)]
    pub(crate) admin: AdminAddress,
    /// The certificate (PEM, with its chain) for the admin address. All admin endpoints are then served there with TLS, to
    /// clients with the token.
    #[arg(long, value_name = "FILE", requires_all = ["admin_tls_key", "admin_token_file"])]
    pub(crate) admin_tls_cert: Option<PathBuf>,
    /// The private key (PEM) of the certificate. Other users must not be able to read it.
    #[arg(long, value_name = "FILE", requires_all = ["admin_tls_cert", "admin_token_file"])]
    pub(crate) admin_tls_key: Option<PathBuf>,
    /// The file with the token that clients of the admin address send (Authorization: Bearer TOKEN). Other users must not be
    /// able to read it.
    #[arg(long, value_name = "FILE", requires_all = ["admin_tls_cert", "admin_tls_key"])]
    pub(crate) admin_token_file: Option<PathBuf>,
}

impl AdminArgs {
    /// The error text if the address needs a certificate and a token and has none.
    pub(super) fn fault(&self) -> Option<String> {
        match self.admin {
            AdminAddress::Listen(address) if !address.ip().is_loopback() && self.admin_tls_cert.is_none() => {
                Some(format!(
                    "--admin {address}: {} is reachable from other machines, which needs TLS and a token: give \
                     --admin-tls-cert FILE, --admin-tls-key FILE and --admin-token-file FILE, or use an address of \
                     127.0.0.0/8 or [::1]",
                    describe(address.ip())
                ))
            }
            AdminAddress::Off if self.admin_tls_cert.is_some() => Some(
                "--admin-tls-cert has no effect with --admin off: name an address, or leave out the file".to_owned(),
            ),
            AdminAddress::Listen(_) | AdminAddress::Off => None,
        }
    }
}

fn describe(ip: IpAddr) -> String {
    if ip.is_unspecified() { format!("{ip} means all addresses and") } else { ip.to_string() }
}

/// Whether and where the agent serves its admin endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminAddress {
    /// Neither a port nor a socket.
    Off,
    /// The socket in the root directory, and this address.
    Listen(SocketAddr),
}

impl Default for AdminAddress {
    fn default() -> Self {
        AdminAddress::Listen(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 10255))
    }
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdminAddress::Off => f.write_str("off"),
            AdminAddress::Listen(address) => address.fmt(f),
        }
    }
}

impl FromStr for AdminAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "off" {
            return Ok(AdminAddress::Off);
        }
        loopback_or_other(text).map(AdminAddress::Listen).map_err(|error| format!("{error}, or off"))
    }
}

/// The flags of the commands that query a running agent.
#[derive(Args, Debug)]
pub(crate) struct AgentArgs {
    /// The root directory of the agent or of the controllers, which contains the socket [default: the one of `podwright run`
    /// for this user; for `explain claim`, `pod` and `rule`, the one of `podwright controllers`].
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// Another address of the agent: ADDR:PORT on this machine, https://NODE:PORT, or unix:///PATH of a socket.
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) admin: Option<AgentAddress>,
    /// The file with the token for --admin [default: the token of the agent's page, if its root directory is known].
    #[arg(long, value_name = "FILE", requires = "admin")]
    pub(crate) admin_token_file: Option<PathBuf>,
    /// The file with the certificates (PEM) that sign the certificate of --admin https://NODE:PORT [default: the system's].
    #[arg(long, value_name = "FILE", requires = "admin")]
    pub(crate) admin_ca: Option<PathBuf>,
}

impl AgentArgs {
    /// The agent that the flags name. Without flags, it is the one with this user's default root directory.
    ///
    /// # Errors
    /// [`RootError::NoDefault`] if the agent is not named and this user has no default root directory.
    pub(crate) fn agent(&self) -> Result<Agent, RootError> {
        self.at(Program::Agent, DefaultDirectories::of_process().root())
    }

    /// The controllers that the flags name. Without flags, they are the ones with this user's default directory.
    ///
    /// # Errors
    /// As for [`AgentArgs::agent`].
    pub(crate) fn controllers(&self) -> Result<Agent, RootError> {
        self.at(Program::Controllers, DefaultDirectories::of_process().root_of_controllers())
    }

    fn at(&self, program: Program, default: Result<PathBuf, RootError>) -> Result<Agent, RootError> {
        let root = match &self.root {
            Some(root) => Ok(root.clone()),
            None => default,
        };
        let (token_file, authority) = (self.admin_token_file.clone(), self.admin_ca.clone());
        match &self.admin {
            Some(address) => Ok(Agent { address: address.clone(), program, root: root.ok(), token_file, authority }),
            None => Ok(Agent { address: AgentAddress::of_root(&root?), program, root: None, token_file, authority }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_other_machines_needs_a_certificate_and_a_token() {
        let args = |address: &str, file: Option<&str>| AdminArgs {
            admin: address.parse().unwrap(),
            admin_tls_cert: file.map(PathBuf::from),
            admin_tls_key: file.map(PathBuf::from),
            admin_token_file: file.map(PathBuf::from),
        };
        for good in ["127.0.0.1:1", "127.9.9.9:80", "[::1]:80", "localhost:80", "off"] {
            assert_eq!(args(good, None).fault(), None, "{good}");
        }
        for open in ["0.0.0.0:80", "10.0.0.1:80", "[::]:80", "[2001:db8::1]:80"] {
            let fault = args(open, None).fault().unwrap();
            for flag in ["TLS and a token", "--admin-tls-cert", "--admin-tls-key", "--admin-token-file"] {
                assert!(fault.contains(flag), "{open}: {fault}");
            }
            assert_eq!(args(open, Some("/f")).fault(), None);
        }
        assert!(args("off", Some("/f")).fault().is_some());
        for bad in ["127.0.0.1", "localhost:", ":80", "on"] {
            assert!(bad.parse::<AdminAddress>().unwrap_err().contains("with a port"), "{bad}");
        }
    }
}
