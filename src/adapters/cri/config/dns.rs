//! How a pod resolves names.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::PodDNSConfigOption;
use podwright_actors::pod::PodObject;

use super::facts::Facts;
use crate::adapters::cri::v1;

/// What resolvers use at most (upstream `validation.MaxDNSNameservers`, `MaxDNSSearchPaths`, `MaxDNSSearchListChars`,
/// Kubernetes 1.36), and the longest name of a domain, beyond which some of them give up.
const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_BYTES: usize = 2048;
const MAX_DOMAIN_BYTES: usize = 253;
/// Makes short names of services be looked for below the cluster's domains first (upstream `defaultDNSOptions`).
const CLUSTER_OPTIONS: &str = "ndots:5";

/// What a `resolv.conf` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resolver {
    /// Addresses of servers, in the order they are asked.
    pub(crate) servers: Vec<String>,
    /// Domains below which short names are looked for, in order.
    pub(crate) searches: Vec<String>,
    /// `NAME` or `NAME:VALUE`.
    pub(crate) options: Vec<String>,
}

impl Resolver {
    /// Reads one. Of `search` lines the last one counts, of `options` all do (resolv.conf(5)).
    pub(crate) fn parse(text: &str) -> Self {
        let mut resolver = Resolver::default();
        for line in text.lines() {
            let line = line.split(['#', ';']).next().unwrap_or_default();
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => resolver.servers.extend(words.next().map(str::to_owned)),
                Some("search") => resolver.searches = words.map(domain).collect(),
                Some("options") => resolver.options.extend(words.map(str::to_owned)),
                _ => {}
            }
        }
        resolver
    }

    fn add_servers<'a>(&mut self, more: impl Iterator<Item = &'a String>) {
        add(&mut self.servers, more.cloned());
    }
}

/// A domain without the dot at its end, so that nothing is listed twice. The root stays: alone it says that there are no
/// domains.
fn domain(text: &str) -> String {
    match text {
        "." => text.to_owned(),
        _ => text.trim_end_matches('.').to_owned(),
    }
}

/// How names of the cluster are resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClusterDns {
    /// The cluster's name servers; none if there is no cluster, or none is known.
    pub(crate) servers: Vec<IpAddr>,
    /// Its domain (`cluster.local`); empty if there is none.
    pub(crate) domain: String,
}

/// What a pod asks for and does not get. Its containers run nevertheless.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DnsWarning {
    /// Its policy prefers the cluster's name servers; an event `MissingClusterDNS`.
    #[error("the node knows no name server of the cluster and the pod resolves names as the node does")]
    NoClusterDns,
    /// There are more name servers than resolvers use; an event `DNSConfigForming`.
    #[error("only {MAX_SERVERS} name servers can be used: {}", .0.join(" "))]
    Servers(Vec<String>),
    /// There are more or longer search domains than resolvers use; an event `DNSConfigForming`.
    #[error("not all search domains can be used: {}", .0.join(" "))]
    Searches(Vec<String>),
}

/// What a pod asks for of name resolution and does not get.
pub(crate) fn dns_warnings(facts: &Facts, pod: &PodObject) -> Vec<DnsWarning> {
    of_pod(facts, pod).1
}

/// How a pod resolves names (upstream `dns.Configurer.GetPodDNS`, kubelet 1.36).
pub(super) fn of_pod(facts: &Facts, pod: &PodObject) -> (v1::DnsConfig, Vec<DnsWarning>) {
    let spec = pod.spec();
    let mut warnings = vec![];
    let wants_cluster = match spec.dns_policy.as_deref() {
        Some("None" | "Default") => false,
        Some("ClusterFirstWithHostNet") => true,
        // Who shares the node's network shares its names, unless it says otherwise.
        _ => !pod.is_host_network(),
    };
    let mut dns = match (spec.dns_policy.as_deref(), wants_cluster) {
        (Some("None"), _) => Resolver::default(),
        (_, true) if !facts.cluster_dns.servers.is_empty() => in_cluster(facts, pod),
        (_, wants_cluster) => {
            warnings.extend(wants_cluster.then_some(DnsWarning::NoClusterDns));
            facts.resolver.clone()
        }
    };
    if let Some(own) = &spec.dns_config {
        dns.add_servers(own.nameservers.iter().flatten());
        add(&mut dns.searches, own.searches.iter().flatten().map(|text| domain(text)));
        own.options.iter().flatten().for_each(|option| set_option(&mut dns.options, option));
    }
    if dns.servers.len() > MAX_SERVERS {
        dns.servers.truncate(MAX_SERVERS);
        warnings.push(DnsWarning::Servers(dns.servers.clone()));
    }
    if fit(&mut dns.searches) {
        warnings.push(DnsWarning::Searches(dns.searches.clone()));
    }
    (v1::DnsConfig { servers: dns.servers, searches: dns.searches, options: dns.options }, warnings)
}

/// The cluster's servers alone, which ask others for what is not the cluster's; the domains of the pod's namespace, of
/// services and of the cluster before the node's.
fn in_cluster(facts: &Facts, pod: &PodObject) -> Resolver {
    let ClusterDns { servers, domain } = &facts.cluster_dns;
    let mut searches = match domain.as_str() {
        "" => vec![],
        domain => {
            let namespace = pod.full_name().namespace();
            vec![format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.to_owned()]
        }
    };
    add(&mut searches, facts.resolver.searches.iter().cloned());
    Resolver {
        servers: servers.iter().map(IpAddr::to_string).collect(),
        searches,
        options: vec![CLUSTER_OPTIONS.to_owned()],
    }
}

fn add(to: &mut Vec<String>, more: impl Iterator<Item = String>) {
    for text in more {
        if !to.contains(&text) {
            to.push(text);
        }
    }
}

/// Sets an option, in the place of one of the same name.
fn set_option(options: &mut Vec<String>, option: &PodDNSConfigOption) {
    let Some(name) = option.name.as_deref().filter(|name| !name.is_empty()) else { return };
    let text = match option.value.as_deref() {
        Some(value) if !value.is_empty() => format!("{name}:{value}"),
        _ => name.to_owned(),
    };
    match options.iter_mut().find(|known| known.split(':').next() == Some(name)) {
        Some(known) => *known = text,
        None => options.push(text),
    }
}

/// Leaves as many of the first domains as resolvers use. Whether some were dropped.
fn fit(searches: &mut Vec<String>) -> bool {
    let all = searches.len();
    searches.truncate(MAX_SEARCHES);
    searches.retain(|domain| domain.len() <= MAX_DOMAIN_BYTES);
    // A space is between any two.
    let ends = searches.iter().scan(0, |end, domain| {
        *end += domain.len() + 1;
        Some(*end - 1)
    });
    let fitting = ends.take_while(|end| *end <= MAX_SEARCH_BYTES).count();
    searches.truncate(fitting);
    searches.len() < all
}
