//! Tests of the DNS settings.

use serde_json::{Value, json};

use super::super::fixtures::{facts, pod};
use super::super::{ClusterDns, DnsWarning, NodeFacts, PodAssignments, Resolver, dns_warnings, sandbox_config};
use crate::v1;

fn node() -> NodeFacts {
    let text = "# c\nsearch old\nsearch a.example. b.example\nnameserver 10.0.0.1\noptions ndots:1 edns0\n";
    let cluster_dns = ClusterDns { servers: vec!["10.96.0.10".parse().unwrap()], domain: "cluster.local".into() };
    NodeFacts { resolver: Resolver::parse(text), cluster_dns, ..facts() }
}

fn dns(facts: &NodeFacts, mut spec: Value) -> (v1::DnsConfig, Vec<DnsWarning>) {
    spec["containers"] = json!([]);
    let pod = pod(spec);
    (sandbox_config(facts, &PodAssignments::default(), &pod, 0).unwrap().dns_config.unwrap(), dns_warnings(facts, &pod))
}

#[test]
fn dns_policy_selects_the_name_servers() {
    let cluster = ["shop.svc.cluster.local", "svc.cluster.local", "cluster.local", "a.example", "b.example"];
    let of_node = ["a.example", "b.example"];
    type Case<'a> = (Value, &'a [&'a str], &'a [&'a str], &'a [&'a str]);
    let cases: [Case<'_>; 7] = [
        (json!({}), &["10.96.0.10"], &cluster, &["ndots:5"]),
        (json!({"dnsPolicy": "ClusterFirst"}), &["10.96.0.10"], &cluster, &["ndots:5"]),
        (json!({"dnsPolicy": "Default"}), &["10.0.0.1"], &of_node, &["ndots:1", "edns0"]),
        (json!({"dnsPolicy": "ClusterFirst", "hostNetwork": true}), &["10.0.0.1"], &of_node, &["ndots:1", "edns0"]),
        (json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true}), &["10.96.0.10"], &cluster, &["ndots:5"]),
        (json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1"]}}), &["1.1.1.1"], &[], &[]),
        (
            json!({"dnsPolicy": "Default", "dnsConfig": {
                "nameservers": ["10.0.0.1", "1.1.1.1"], "searches": ["b.example.", "c.example"],
                "options": [{"name": "ndots", "value": "5"}, {"name": "rotate"}],
            }}),
            &["10.0.0.1", "1.1.1.1"],
            &["a.example", "b.example", "c.example"],
            &["ndots:5", "edns0", "rotate"],
        ),
    ];
    for (spec, servers, searches, options) in cases {
        let (config, warnings) = dns(&node(), spec.clone());
        assert_eq!(config.servers, servers, "{spec}");
        assert_eq!(config.searches, searches, "{spec}");
        assert_eq!(config.options, options, "{spec}");
        assert_eq!(warnings, [], "{spec}");
    }
}

#[test]
fn without_cluster_dns_the_node_servers_are_used_with_a_warning() {
    let node = NodeFacts { cluster_dns: ClusterDns::default(), ..node() };
    let (config, warnings) = dns(&node, json!({"dnsPolicy": "ClusterFirst"}));
    assert_eq!((config.servers, warnings), (vec!["10.0.0.1".into()], vec![DnsWarning::NoClusterDns]));
    assert_eq!(dns(&node, json!({"dnsPolicy": "Default"})).1, []);
}

#[test]
fn dns_settings_beyond_resolver_limits_are_dropped_with_a_warning() {
    let (config, warnings) = dns(
        &node(),
        json!({"dnsPolicy": "None", "dnsConfig": {
            "nameservers": ["1.1.1.1", "1.1.1.2", "1.1.1.3", "1.1.1.4"],
        }}),
    );
    assert_eq!(config.servers, ["1.1.1.1", "1.1.1.2", "1.1.1.3"]);
    assert!(matches!(&*warnings, [DnsWarning::Servers(_)]), "{warnings:?}");

    let searches = |searches: Vec<String>| {
        let (config, warnings) = dns(&node(), json!({"dnsPolicy": "None", "dnsConfig": {"searches": searches}}));
        (config.searches.len(), warnings.len())
    };
    let domains = |count: usize, bytes: usize| (0..count).map(|i| format!("{i:0>bytes$}")).collect::<Vec<_>>();
    assert_eq!(searches(domains(32, 63)), (32, 0), "32 of 63 bytes and 31 spaces are 2047 bytes");
    assert_eq!(searches(domains(33, 63)), (32, 1));
    assert_eq!(searches(domains(32, 64)), (31, 1), "32 of 64 bytes and 31 spaces are 2079 bytes");
    assert_eq!(searches([domains(1, 253), domains(1, 254)].concat()), (1, 1));
}

#[test]
fn root_domain_of_the_node_is_no_search_domain() {
    let searches = |text: &str| Resolver::parse(text).searches;
    assert_eq!(searches("search .\n"), [""; 0]);
    assert_eq!(searches("search a.example. .\n"), ["a.example"]);
    assert_eq!(searches("search a.example\nsearch .\n"), [""; 0], "the last line applies");
    let facts = NodeFacts { resolver: Resolver::parse("search .\nnameserver 10.0.0.1\n"), ..facts() };
    assert_eq!(dns(&facts, json!({"dnsPolicy": "Default"})).0.searches, [""; 0]);
    let own = json!({"dnsPolicy": "None", "dnsConfig": {"searches": ["."]}});
    assert_eq!(dns(&facts, own).0.searches, ["."], "a pod may request it");
}

#[test]
fn resolv_conf_options_of_all_lines_apply() {
    assert_eq!(Resolver::parse("nameserver\noptions a ; b\n; nameserver 1.1.1.1\noptions c").options, ["a", "c"]);
}
