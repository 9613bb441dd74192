//! How a pod resolves names.

use podwright_actors::pod::PodObject;

use super::v1;

/// More than these are not used by resolvers, or make them fail (upstream `validation.MaxDNSNameservers`,
/// `MaxDNSSearchPaths`, Kubernetes 1.36).
const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;

/// What a `resolv.conf` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Resolver {
    pub(super) servers: Vec<String>,
    pub(super) searches: Vec<String>,
    pub(super) options: Vec<String>,
}

impl Resolver {
    /// Reads one. Of `search` lines the last one counts, of `options` all do (resolv.conf(5)).
    pub(super) fn parse(text: &str) -> Self {
        let mut resolver = Resolver::default();
        for line in text.lines() {
            let line = line.split(['#', ';']).next().unwrap_or_default();
            let mut words = line.split_whitespace().map(str::to_owned);
            match words.next().as_deref() {
                Some("nameserver") => resolver.servers.extend(words.next()),
                // The root alone resolves nothing and only makes resolvers ask once more.
                Some("search") => resolver.searches = words.filter(|domain| domain != ".").collect(),
                Some("options") => resolver.options.extend(words),
                _ => {}
            }
        }
        resolver
    }

    /// What a pod gets. No cluster's name server is known here, so the policies that would prefer one mean `Default`, as on
    /// a kubelet without `clusterDNS`.
    pub(super) fn of_pod(&self, pod: &PodObject) -> v1::DnsConfig {
        let spec = pod.spec();
        let mut dns = if spec.dns_policy.as_deref() == Some("None") { Resolver::default() } else { self.clone() };
        if let Some(own) = &spec.dns_config {
            dns.servers.extend(own.nameservers.iter().flatten().cloned());
            dns.searches.extend(own.searches.iter().flatten().cloned());
            for option in own.options.iter().flatten() {
                let Some(name) = option.name.as_deref().filter(|name| !name.is_empty()) else { continue };
                dns.options.retain(|known| known.split(':').next() != Some(name));
                dns.options.push(match option.value.as_deref() {
                    Some(value) if !value.is_empty() => format!("{name}:{value}"),
                    _ => name.to_owned(),
                });
            }
        }
        v1::DnsConfig {
            servers: unique(dns.servers, MAX_SERVERS),
            searches: unique(dns.searches, MAX_SEARCHES),
            options: dns.options,
        }
    }
}

fn unique(texts: Vec<String>, max: usize) -> Vec<String> {
    let mut seen = Vec::with_capacity(texts.len().min(max));
    for text in texts {
        if seen.len() < max && !seen.contains(&text) {
            seen.push(text);
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::adapters::cri::fixtures::pod;

    fn node() -> Resolver {
        Resolver::parse("# c\nsearch old\nsearch a.example . b.example\nnameserver 10.0.0.1\noptions ndots:1 edns0\n")
    }

    #[test]
    fn the_nodes_resolver_serves_pods_that_name_no_other() {
        let dns = node().of_pod(&pod(json!({"dnsPolicy": "ClusterFirst", "containers": []})));
        assert_eq!(dns.servers, ["10.0.0.1"]);
        assert_eq!(dns.searches, ["a.example", "b.example"]);
        assert_eq!(dns.options, ["ndots:1", "edns0"]);
    }

    #[test]
    fn a_pods_own_settings_are_added_and_replace_options_of_the_same_name() {
        let own = json!({"nameservers": ["10.0.0.1", "1.1.1.1"], "searches": ["c.example"],
            "options": [{"name": "ndots", "value": "5"}, {"name": "rotate"}]});
        let added = node().of_pod(&pod(json!({"dnsConfig": own, "containers": []})));
        assert_eq!(added.servers, ["10.0.0.1", "1.1.1.1"]);
        assert_eq!(added.options, ["edns0", "ndots:5", "rotate"]);
        let alone = node().of_pod(&pod(json!({"dnsPolicy": "None", "dnsConfig": own, "containers": []})));
        assert_eq!(alone.searches, ["c.example"]);
        assert_eq!(alone.options, ["ndots:5", "rotate"]);
    }
}
