//! The node's `resolv.conf`, and the cluster's name servers.

use std::net::IpAddr;

/// The content of a `resolv.conf`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resolver {
    /// The addresses of the name servers, in the order of the file.
    pub(crate) servers: Vec<String>,
    /// The search domains, in the order of the file.
    pub(crate) searches: Vec<String>,
    /// The options, each `NAME` or `NAME:VALUE`.
    pub(crate) options: Vec<String>,
}

impl Resolver {
    /// Parses a `resolv.conf`. The last `search` line replaces the earlier ones; all `options` lines apply (resolv.conf(5)).
    ///
    /// The root domain is left out of the search domains. systemd writes `search .` on a node whose host name has a domain, and
    /// the resolver of musl finds no name with it (upstream `parseResolvConf`, kubelet 1.36; kubernetes/kubernetes#112135).
    pub(crate) fn parse(text: &str) -> Self {
        let mut resolver = Resolver::default();
        for line in text.lines() {
            let line = line.split(['#', ';']).next().unwrap_or_default();
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => resolver.servers.extend(words.next().map(str::to_owned)),
                Some("search") => {
                    resolver.searches = words.filter(|domain| *domain != ROOT).map(without_final_dot).collect();
                }
                Some("options") => resolver.options.extend(words.map(str::to_owned)),
                _ => {}
            }
        }
        resolver
    }
}

/// The cluster's name servers and domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterDns {
    /// The addresses of the name servers. Empty if there is no cluster, or if they are not known.
    pub(crate) servers: Vec<IpAddr>,
    /// The cluster's domain, such as `cluster.local`. Empty if there is none.
    pub(crate) domain: String,
}

/// The root domain.
const ROOT: &str = ".";

/// A domain without its final dot, so that `a.example.` and `a.example` are not both listed. The root domain is kept: a pod that
/// lists it as its only search domain has no search domains.
pub(super) fn without_final_dot(domain: &str) -> String {
    match domain {
        ROOT => domain.to_owned(),
        _ => domain.trim_end_matches('.').to_owned(),
    }
}
