//! The flags for the node API.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use podwright_node_api::{StreamVerb, TlsCipherSuite, TlsPolicy, TlsVersion};

/// Where the node API is served, and to whom.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Options for the node API (--kubeconfig FILE)")]
pub(crate) struct NodeApiArgs {
    /// The address that serves the node API to the API server and to metrics collectors with TLS, or `off`. Without it, kubectl
    /// logs, exec, attach, cp and port-forward do not work with the pods of this node.
    #[arg(long, value_name = "ADDR:PORT|off", default_value_t, requires = "kubeconfig")]
    pub(crate) node_api: NodeApiAddress,
    /// The certificate (PEM) of the authority that signs the certificates of clients of the node API, such as
    /// /etc/kubernetes/pki/ca.crt. The agent reads the file again every minute. Other clients need a token.
    #[arg(long, value_name = "FILE", requires = "kubeconfig")]
    pub(crate) client_ca_file: Option<PathBuf>,
    /// The verb on nodes/proxy that a client needs to run commands, attach to containers and forward ports over WebSocket.
    #[arg(long, value_name = "VERB", value_enum, default_value_t, requires = "kubeconfig")]
    pub(crate) websocket_verb: WebSocketVerb,
    /// The lowest version of TLS that the node API offers: VersionTLS12 or VersionTLS13 [default: VersionTLS12].
    #[arg(long, value_name = "VERSION", requires = "kubeconfig")]
    tls_min_version: Option<TlsVersion>,
    /// The cipher suites that the node API offers, such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256. If the list has no suite of TLS 1.3,
    /// all suites of TLS 1.3 are offered too [default: all of the TLS library].
    #[arg(long, value_name = "SUITE,...", value_delimiter = ',', requires = "kubeconfig")]
    tls_cipher_suites: Vec<TlsCipherSuite>,
}

/// The verb that a client of a WebSocket needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum WebSocketVerb {
    /// As over SPDY. A client that may only read cannot run commands
    #[default]
    Create,
    /// As with a kubelet
    Get,
}

impl From<WebSocketVerb> for StreamVerb {
    fn from(verb: WebSocketVerb) -> Self {
        match verb {
            WebSocketVerb::Create => StreamVerb::Create,
            WebSocketVerb::Get => StreamVerb::OfMethod,
        }
    }
}

impl NodeApiArgs {
    /// The versions and the cipher suites of TLS.
    pub(crate) fn tls(&self) -> TlsPolicy {
        TlsPolicy {
            min_version: self.tls_min_version.unwrap_or_default(),
            cipher_suites: self.tls_cipher_suites.clone(),
        }
    }

    /// The error text if the flags have no effect together.
    pub(super) fn fault(&self) -> Option<String> {
        if self.node_api != NodeApiAddress::Off {
            return None;
        }
        let flags = [
            ("--client-ca-file", self.client_ca_file.is_some()),
            ("--tls-min-version", self.tls_min_version.is_some()),
            ("--tls-cipher-suites", !self.tls_cipher_suites.is_empty()),
        ];
        let (flag, _) = flags.into_iter().find(|(_, is_given)| *is_given)?;
        Some(format!("{flag} has no effect with --node-api off: name an address, or leave out {flag}"))
    }
}

/// Whether and where the agent serves the node API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeApiAddress {
    /// Nowhere.
    Off,
    Listen(SocketAddr),
}

impl NodeApiAddress {
    /// The address; `None` if the node API is off.
    pub(crate) fn address(self) -> Option<SocketAddr> {
        match self {
            NodeApiAddress::Off => None,
            NodeApiAddress::Listen(address) => Some(address),
        }
    }
}

impl Default for NodeApiAddress {
    fn default() -> Self {
        NodeApiAddress::Listen((Ipv4Addr::UNSPECIFIED, 10250).into())
    }
}

impl fmt::Display for NodeApiAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeApiAddress::Off => f.write_str("off"),
            NodeApiAddress::Listen(address) => address.fmt(f),
        }
    }
}

impl FromStr for NodeApiAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "off" {
            return Ok(NodeApiAddress::Off);
        }
        let address = text
            .parse()
            .map_err(|_| "not an address with a port: write it like 0.0.0.0:10250 or [::]:10250, or off".to_owned())?;
        Ok(NodeApiAddress::Listen(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::cli::{self, Command};

    fn parse(flags: &[&str]) -> Result<NodeApiArgs, String> {
        match cli::parse(["podwright", "run"].iter().chain(flags)).map(|cli| cli.command) {
            Ok(Command::Run(args)) => Ok(args.node_api.clone()),
            Ok(_) => panic!("run is parsed"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn node_api_listens_on_the_port_of_a_kubelet_unless_a_flag_says_otherwise() {
        let address = |flags: &[&str]| parse(flags).unwrap().node_api.to_string();
        assert_eq!(address(&[]), "0.0.0.0:10250");
        assert_eq!(address(&["--kubeconfig=k", "--node-api=[::]:1"]), "[::]:1");
        assert_eq!(address(&["--kubeconfig=k", "--node-api=off"]), "off");
        let verb = |flags: &[&str]| StreamVerb::from(parse(flags).unwrap().websocket_verb);
        assert_eq!(verb(&[]), StreamVerb::Create);
        assert_eq!(verb(&["--kubeconfig=k", "--websocket-verb=get"]), StreamVerb::OfMethod);
        assert_eq!(parse(&[]).unwrap().tls(), TlsPolicy::default());
        let suites = "--tls-cipher-suites=TLS_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
        let tls = parse(&["--kubeconfig=k", "--tls-min-version=VersionTLS13", suites]).unwrap().tls();
        assert_eq!((tls.min_version, tls.cipher_suites.len()), (TlsVersion::V13, 2));
        for (flags, says) in [
            (&["--node-api=off"][..], "--kubeconfig"),
            (&["--client-ca-file=f"], "--kubeconfig"),
            (&["--websocket-verb=get"], "--kubeconfig"),
            (&["--kubeconfig=k", "--node-api=10250"], "write it like 0.0.0.0:10250"),
            (&["--kubeconfig=k", "--node-api=off", "--client-ca-file=f"], "has no effect with --node-api off"),
            (&["--kubeconfig=k", "--node-api=off", "--tls-min-version=VersionTLS13"], "leave out --tls-min-version"),
            (&["--kubeconfig=k", "--tls-min-version=VersionTLS10"], "use VersionTLS12 or VersionTLS13"),
            (
                &["--kubeconfig=k", "--tls-cipher-suites=TLS_RSA_WITH_RC4_128_SHA"],
                "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            ),
            (&["--tls-cipher-suites=TLS_AES_128_GCM_SHA256"], "--kubeconfig"),
        ] {
            let error = parse(flags).unwrap_err();
            assert!(error.contains(says), "{flags:?}: {error}");
        }
    }
}
