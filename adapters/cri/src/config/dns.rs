//! The DNS settings of a pod.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::PodDNSConfigOption;
use podwright_model::pod::PodObject;

use super::inputs::NodeFacts;
use super::resolver::{ClusterDns, Resolver, without_final_dot};
use crate::v1;

/// The most name servers and search domains that a resolver uses (upstream `validation.MaxDNSNameservers`,
/// `MaxDNSSearchPaths`, `MaxDNSSearchListChars`, Kubernetes 1.36).
const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_BYTES: usize = 2048;
/// The longest domain name, in bytes (RFC 1035). Some resolvers ignore the whole list if one domain is longer.
const MAX_DOMAIN_BYTES: usize = 253;
/// With this option a name with fewer than five dots is tried with the search domains first (upstream `defaultDNSOptions`,
/// kubelet 1.36).
const CLUSTER_OPTIONS: &str = "ndots:5";

/// A DNS setting that the pod requests and does not get. The pod's containers run nevertheless.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DnsWarning {
    /// The pod's policy prefers the cluster's name servers, and the node knows none. Published as an event
    /// `MissingClusterDNS`.
    NoClusterDns,
    /// There are more name servers than resolvers use. Published as an event `DNSConfigForming`.
    Servers(Vec<String>),
    /// There are more search domains, or longer ones, than resolvers use. Published as an event `DNSConfigForming`.
    Searches(Vec<String>),
}

/// The DNS settings that a pod requests and does not get.
pub(crate) fn dns_warnings(facts: &NodeFacts, pod: &PodObject) -> Vec<DnsWarning> {
    of_pod(facts, pod).1
}

/// The DNS settings of a pod (upstream `dns.Configurer.GetPodDNS`, kubelet 1.36).
pub(super) fn of_pod(facts: &NodeFacts, pod: &PodObject) -> (v1::DnsConfig, Vec<DnsWarning>) {
    let spec = pod.spec();
    let mut warnings = vec![];
    let uses_cluster_dns = match spec.dns_policy.as_deref() {
        Some("None" | "Default") => false,
        Some("ClusterFirstWithHostNet") => true,
        // `ClusterFirst` on the node's network means `Default`.
        _ => !pod.is_host_network(),
    };
    let mut dns = match (spec.dns_policy.as_deref(), uses_cluster_dns) {
        (Some("None"), _) => Resolver::default(),
        (_, true) if !facts.cluster_dns.servers.is_empty() => in_cluster(facts, pod),
        (_, uses_cluster_dns) => {
            warnings.extend(uses_cluster_dns.then_some(DnsWarning::NoClusterDns));
            facts.resolver.clone()
        }
    };
    if let Some(own) = &spec.dns_config {
        add_missing(&mut dns.servers, own.nameservers.iter().flatten().cloned());
        add_missing(&mut dns.searches, own.searches.iter().flatten().map(|domain| without_final_dot(domain)));
        own.options.iter().flatten().for_each(|option| set_option(&mut dns.options, option));
    }
    if dns.servers.len() > MAX_SERVERS {
        dns.servers.truncate(MAX_SERVERS);
        warnings.push(DnsWarning::Servers(dns.servers.clone()));
    }
    if drop_unusable(&mut dns.searches) {
        warnings.push(DnsWarning::Searches(dns.searches.clone()));
    }
    (v1::DnsConfig { servers: dns.servers, searches: dns.searches, options: dns.options }, warnings)
}

/// The settings of a pod that uses the cluster's name servers. These forward queries for other names, so the node's servers
/// are not listed. The domains of the pod's namespace, of services and of the cluster come before the node's search domains.
fn in_cluster(facts: &NodeFacts, pod: &PodObject) -> Resolver {
    let ClusterDns { servers, domain } = &facts.cluster_dns;
    let mut searches = match domain.as_str() {
        "" => vec![],
        domain => {
            let namespace = pod.full_name().namespace();
            vec![format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.to_owned()]
        }
    };
    add_missing(&mut searches, facts.resolver.searches.iter().cloned());
    Resolver {
        servers: servers.iter().map(IpAddr::to_string).collect(),
        searches,
        options: vec![CLUSTER_OPTIONS.to_owned()],
    }
}

fn add_missing(list: &mut Vec<String>, more: impl Iterator<Item = String>) {
    for text in more {
        if !list.contains(&text) {
            list.push(text);
        }
    }
}

/// Adds an option, or replaces the option of the same name.
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

/// Drops the search domains that resolvers would ignore. Returns whether it dropped any.
fn drop_unusable(searches: &mut Vec<String>) -> bool {
    let all = searches.len();
    searches.truncate(MAX_SEARCHES);
    searches.retain(|domain| domain.len() <= MAX_DOMAIN_BYTES);
    // The limit counts one space between two domains.
    let ends = searches.iter().scan(0, |end, domain| {
        *end += domain.len() + 1;
        Some(*end - 1)
    });
    let fitting = ends.take_while(|end| *end <= MAX_SEARCH_BYTES).count();
    searches.truncate(fitting);
    searches.len() < all
}
