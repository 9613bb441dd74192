//! What a pod's containers see as `/etc/hosts`.

use std::fmt::Write;
use std::net::IpAddr;

use podwright_actors::pod::PodObject;

use super::sandbox_config::hostname;

/// Tells tools that the file is written by the node (upstream `managedHostsHeader`, kubelet 1.36).
const HEADER: &str = "# Kubernetes-managed hosts file.\n";
const HEADER_OF_NODE: &str = "# Kubernetes-managed hosts file (host network).\n";
/// As `hosts(5)` of common systems have it.
const LOCAL: [(&str, &str); 6] = [
    ("127.0.0.1", "localhost"),
    ("::1", "localhost ip6-localhost ip6-loopback"),
    ("fe00::", "ip6-localnet"),
    ("fe00::", "ip6-mcastprefix"),
    ("fe00::1", "ip6-allnodes"),
    ("fe00::2", "ip6-allrouters"),
];

/// The file of a pod with these addresses; one that shares the node's network gets the node's own file.
pub(super) fn hosts(pod: &PodObject, ips: &[IpAddr], of_node: &str) -> String {
    let mut text = String::new();
    let mut line = |ip: &dyn std::fmt::Display, names: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{ip}\t{names}");
    };
    if !pod.is_host_network() {
        LOCAL.iter().for_each(|(ip, names)| line(ip, names));
        let name = hostname(pod);
        ips.iter().for_each(|ip| line(ip, &name));
    }
    let mut text = match pod.is_host_network() {
        true => format!("{HEADER_OF_NODE}{of_node}"),
        false => format!("{HEADER}{text}"),
    };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    for alias in pod.spec().host_aliases.iter().flatten() {
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        let _ = writeln!(text, "{}\t{names}", alias.ip);
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::adapters::cri::fixtures::pod;

    #[test]
    fn a_pod_finds_itself_its_aliases_and_on_the_nodes_network_what_the_node_finds() {
        let aliases = json!([{"ip": "10.1.2.3", "hostnames": ["foo", "bar"]}]);
        let own = pod(json!({"hostname": "me", "hostAliases": aliases, "containers": []}));
        let text = hosts(&own, &["10.0.0.9".parse().unwrap()], "10.9.9.9 other");
        assert!(text.contains("127.0.0.1\tlocalhost\n") && text.contains("10.0.0.9\tme\n"), "{text}");
        assert!(text.ends_with("10.1.2.3\tfoo\tbar\n") && !text.contains("other"), "{text}");
        let node = pod(json!({"hostNetwork": true, "hostAliases": aliases, "containers": []}));
        let text = hosts(&node, &[], "10.9.9.9 other");
        assert!(text.contains("10.9.9.9 other\n10.1.2.3\tfoo\tbar\n") && !text.contains("127.0.0.1"), "{text}");
    }
}
