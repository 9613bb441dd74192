//! The host name of a pod, and the content of its `/etc/hosts`.

use std::fmt::Write;
use std::net::IpAddr;

use podwright_model::pod::PodObject;

use super::error::ConfigError;
use super::inputs::NodeFacts;

/// The longest host name, in bytes (`HOST_NAME_MAX` of Linux).
const MAX_HOSTNAME: usize = 64;
/// The length to which the name of a pod is cut (upstream `truncatePodHostnameIfNeeded`, kubelet 1.36).
const CUT_HOSTNAME: usize = MAX_HOSTNAME - 1;

/// The header of a file that the node writes (upstream `managedHostsHeader`, kubelet 1.36).
const HEADER: &str = "# Kubernetes-managed hosts file.\n";
const HEADER_OF_ALIASES: &str = "\n# Entries added by HostAliases.\n";
const HEADER_OF_NODE: &str = "# Kubernetes-managed hosts file (host network).\n";
/// The fixed entries (upstream `managedHostsFileContent`, kubelet 1.36).
const LOCAL: &str = "127.0.0.1\tlocalhost\n\
                     ::1\tlocalhost ip6-localhost ip6-loopback\n\
                     fe00::0\tip6-localnet\n\
                     fe00::0\tip6-mcastprefix\n\
                     fe00::1\tip6-allnodes\n\
                     fe00::2\tip6-allrouters\n";

/// The host name of a pod, and its domain.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PodHostname {
    host: String,
    /// `None` if the pod has no `spec.subdomain`.
    domain: Option<String>,
}

impl PodHostname {
    fn of(facts: &NodeFacts, pod: &PodObject) -> Result<Self, ConfigError> {
        let spec = pod.spec();
        let set = |text: &'_ Option<String>| text.clone().filter(|text| !text.is_empty());
        // `hostnameOverride` is the whole name; other fields do not apply (KEP-4762).
        if let Some(host) = set(&spec.hostname_override) {
            if host.len() > MAX_HOSTNAME {
                return Err(ConfigError::LongName { name: host, limit: MAX_HOSTNAME, field: "spec.hostnameOverride" });
            }
            return Ok(PodHostname { host, domain: None });
        }
        let host = set(&spec.hostname).unwrap_or_else(|| pod.full_name().name().to_owned());
        let host = match host.len() {
            0..=CUT_HOSTNAME => host,
            _ => host[..host.floor_char_boundary(CUT_HOSTNAME)].trim_end_matches(['-', '.']).to_owned(),
        };
        let domain = set(&spec.subdomain).map(|subdomain| {
            let mut domain = format!("{subdomain}.{}.svc", pod.full_name().namespace());
            if !facts.cluster_dns.domain.is_empty() {
                let _ = write!(domain, ".{}", facts.cluster_dns.domain);
            }
            domain
        });
        Ok(PodHostname { host, domain })
    }
}

/// The host name that the kernel reports to the pod's containers. Empty for a pod on the node's network, which has the node's
/// host name.
pub(super) fn hostname(facts: &NodeFacts, pod: &PodObject) -> Result<String, ConfigError> {
    if pod.is_host_network() {
        return Ok(String::new());
    }
    let PodHostname { host, domain } = PodHostname::of(facts, pod)?;
    let Some(domain) = domain.filter(|_| pod.spec().set_hostname_as_fqdn == Some(true)) else { return Ok(host) };
    let name = format!("{host}.{domain}");
    if name.len() > MAX_HOSTNAME {
        let field = "spec.hostname or spec.subdomain, or remove spec.setHostnameAsFQDN";
        return Err(ConfigError::LongName { name, limit: MAX_HOSTNAME, field });
    }
    Ok(name)
}

/// The content of `/etc/hosts` for a pod with these IP addresses. `of_node` is the node's own file; a pod on the node's network
/// gets a copy of it.
///
/// # Errors
/// [`ConfigError::LongName`] if the host name is longer than 64 bytes.
pub(crate) fn hosts(facts: &NodeFacts, pod: &PodObject, ips: &[IpAddr], of_node: &str) -> Result<String, ConfigError> {
    let mut text = if pod.is_host_network() {
        format!("{HEADER_OF_NODE}{of_node}")
    } else {
        let PodHostname { host, domain } = PodHostname::of(facts, pod)?;
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
