//! What a pod is called, and what its containers see as `/etc/hosts`.

use std::fmt::Write;
use std::net::IpAddr;

use podwright_actors::pod::PodObject;

use super::error::ConfigError;
use super::facts::Facts;

/// The longest name of a host (`HOST_NAME_MAX` of Linux), and where a pod's own name is cut, one byte earlier (upstream
/// `truncatePodHostnameIfNeeded`, kubelet 1.36).
const LONGEST: usize = 64;
const CUT: usize = LONGEST - 1;

/// Tells tools that the file is the node's work (upstream `managedHostsHeader`, kubelet 1.36).
const HEADER: &str = "# Kubernetes-managed hosts file.\n";
const HEADER_OF_ALIASES: &str = "\n# Entries added by HostAliases.\n";
const HEADER_OF_NODE: &str = "# Kubernetes-managed hosts file (host network).\n";
/// What every pod finds, as kubelets write it.
const LOCAL: &str = "127.0.0.1\tlocalhost\n\
                     ::1\tlocalhost ip6-localhost ip6-loopback\n\
                     fe00::0\tip6-localnet\n\
                     fe00::0\tip6-mcastprefix\n\
                     fe00::1\tip6-allnodes\n\
                     fe00::2\tip6-allrouters\n";

/// A pod's name on the network.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    host: String,
    /// Only pods with a subdomain have one.
    domain: Option<String>,
}

impl Name {
    fn of(facts: &Facts, pod: &PodObject) -> Result<Self, ConfigError> {
        let spec = pod.spec();
        let set = |text: &'_ Option<String>| text.clone().filter(|text| !text.is_empty());
        // It stands for the whole name, whatever else is set (KEP-4762).
        if let Some(host) = set(&spec.hostname_override) {
            if host.len() > LONGEST {
                return Err(ConfigError::LongName { name: host, limit: LONGEST, field: "spec.hostnameOverride" });
            }
            return Ok(Name { host, domain: None });
        }
        let host = set(&spec.hostname).unwrap_or_else(|| pod.full_name().name().to_owned());
        let host = match host.len() {
            0..=CUT => host,
            _ => host[..host.floor_char_boundary(CUT)].trim_end_matches(['-', '.']).to_owned(),
        };
        let domain = set(&spec.subdomain).map(|subdomain| {
            let mut domain = format!("{subdomain}.{}.svc", pod.full_name().namespace());
            if !facts.cluster_dns.domain.is_empty() {
                let _ = write!(domain, ".{}", facts.cluster_dns.domain);
            }
            domain
        });
        Ok(Name { host, domain })
    }
}

/// What the kernel tells containers their host is called; empty on the node's network, where they have the node's name.
pub(super) fn hostname(facts: &Facts, pod: &PodObject) -> Result<String, ConfigError> {
    if pod.is_host_network() {
        return Ok(String::new());
    }
    let Name { host, domain } = Name::of(facts, pod)?;
    let Some(domain) = domain.filter(|_| pod.spec().set_hostname_as_fqdn == Some(true)) else { return Ok(host) };
    let name = format!("{host}.{domain}");
    if name.len() > LONGEST {
        let field = "spec.hostname or spec.subdomain, or remove spec.setHostnameAsFQDN";
        return Err(ConfigError::LongName { name, limit: LONGEST, field });
    }
    Ok(name)
}

/// The content of `/etc/hosts` of a pod with these addresses. One that shares the node's network gets the node's own file,
/// `of_node`.
///
/// # Errors
/// [`ConfigError::LongName`].
pub(crate) fn hosts(facts: &Facts, pod: &PodObject, ips: &[IpAddr], of_node: &str) -> Result<String, ConfigError> {
    let mut text = if pod.is_host_network() {
        format!("{HEADER_OF_NODE}{of_node}")
    } else {
        let Name { host, domain } = Name::of(facts, pod)?;
        let names = domain.map_or_else(|| host.clone(), |domain| format!("{host}.{domain}\t{host}"));
        let own: String = ips.iter().map(|ip| format!("{ip}\t{names}\n")).collect();
        format!("{HEADER}{LOCAL}{own}")
    };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let aliases = pod.spec().host_aliases.as_deref().unwrap_or_default();
    if !aliases.is_empty() {
        text.push_str(HEADER_OF_ALIASES);
    }
    for alias in aliases {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}\t{}", alias.ip, alias.hostnames.as_deref().unwrap_or_default().join("\t"));
    }
    Ok(text)
}
