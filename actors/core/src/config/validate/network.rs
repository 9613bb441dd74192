//! Validates host names, DNS settings and entries of the hosts file.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{PodDNSConfig, PodSpec};

use super::report::Report;
use crate::names;

/// The most name servers and search domains that a resolver uses (upstream `MaxDNSNameservers`, `MaxDNSSearchPaths`,
/// `MaxDNSSearchListChars`, Kubernetes 1.36).
const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_BYTES: usize = 2048;
/// The longest host name that the kernel allows, in bytes.
const MAX_HOSTNAME: usize = 64;

pub(super) fn check(spec: &PodSpec, report: &mut Report) {
    for (name, value) in [("hostname", &spec.hostname), ("subdomain", &spec.subdomain)] {
        if let Some(text) = value.as_deref().filter(|text| !text.is_empty()) {
            report.label(format!("spec.{name}"), text);
        }
    }
    hostname_override(spec, report);
    let policies = ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"];
    report.one_of("spec.dnsPolicy", spec.dns_policy.as_deref(), &policies);
    let none = PodDNSConfig::default();
    let config = spec.dns_config.as_ref().unwrap_or(&none);
    let servers = config.nameservers.as_deref().unwrap_or_default();
    if spec.dns_policy.as_deref() == Some("None") && servers.is_empty() {
        let remedy = "add the address of a name server, because dnsPolicy is None";
        report.add("spec.dnsConfig.nameservers", "is empty", remedy);
    }
    dns_config(config, servers, report);
    for (i, alias) in spec.host_aliases.iter().flatten().enumerate() {
        ip(format!("spec.hostAliases[{i}].ip"), &alias.ip, report);
        for (j, name) in alias.hostnames.iter().flatten().enumerate() {
            report.subdomain(format!("spec.hostAliases[{i}].hostnames[{j}]"), name);
        }
    }
}

fn hostname_override(spec: &PodSpec, report: &mut Report) {
    let Some(name) = spec.hostname_override.as_deref() else { return };
    let path = "spec.hostnameOverride";
    for (other, set) in [("setHostnameAsFQDN", spec.set_hostname_as_fqdn), ("hostNetwork", spec.host_network)] {
        if set == Some(true) {
            report.add(path, format!("is set beside {other}"), "remove one of the two");
        }
    }
    if name.len() > MAX_HOSTNAME {
        report.add(path, format!("has {} bytes", name.len()), format!("use at most {MAX_HOSTNAME}"));
    }
    report.subdomain(path, name);
}

fn dns_config(config: &PodDNSConfig, servers: &[String], report: &mut Report) {
    let path = |name: &str| format!("spec.dnsConfig.{name}");
    if servers.len() > MAX_SERVERS {
        report.add(
            path("nameservers"),
            format!("has {} addresses", servers.len()),
            format!("use at most {MAX_SERVERS}"),
        );
    }
    for (i, server) in servers.iter().enumerate() {
        ip(path(&format!("nameservers[{i}]")), server, report);
    }
    let searches = config.searches.as_deref().unwrap_or_default();
    if searches.len() > MAX_SEARCHES {
        report.add(path("searches"), format!("has {} domains", searches.len()), format!("use at most {MAX_SEARCHES}"));
    }
    // The limit counts one space between two domains.
    let bytes = searches.iter().map(|domain| domain.len() + 1).sum::<usize>().saturating_sub(1);
    if bytes > MAX_SEARCH_BYTES {
        report.add(path("searches"), format!("has {bytes} bytes"), format!("use at most {MAX_SEARCH_BYTES}"));
    }
    for (i, domain) in searches.iter().enumerate() {
        // The root domain means that there are no search domains.
        if domain != "." && !names::is_search_domain(domain.strip_suffix('.').unwrap_or(domain)) {
            report.add(
                path(&format!("searches[{i}]")),
                format!("{domain:?} is not a domain"),
                "use at most 253 lower-case letters, digits, '-', '_' and '.', with a letter, digit or '_' at each end",
            );
        }
    }
    for (i, option) in config.options.iter().flatten().enumerate() {
        if option.name.as_deref().is_none_or(str::is_empty) {
            report.add(path(&format!("options[{i}].name")), "is missing", "name the option, such as ndots");
        }
    }
}

fn ip(path: String, text: &str, report: &mut Report) {
    if text.parse::<IpAddr>().is_err() {
        report.add(path, format!("{text:?} is not an IP address"), "use an address such as 10.0.0.10 or fd00::10");
    }
}
