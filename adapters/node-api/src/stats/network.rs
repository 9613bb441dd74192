//! The network interfaces of the node and its pods, as the kernel counts their bytes.

use std::fs;

use jiff::Timestamp;
use serde::Serialize;

use podwright_host::stats::{InterfaceUsage, PodNetwork};

/// The interfaces of the node or of a pod. The values of the default interface are repeated at the top.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct NetworkStats {
    time: String,
    #[serde(flatten)]
    default: Option<InterfaceStats>,
    interfaces: Vec<InterfaceStats>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct InterfaceStats {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    rx_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rx_errors: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tx_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tx_errors: Option<u64>,
}

impl From<InterfaceUsage> for InterfaceStats {
    fn from(InterfaceUsage { name, rx_bytes, rx_errors, tx_bytes, tx_errors }: InterfaceUsage) -> Self {
        InterfaceStats { name, rx_bytes, rx_errors, tx_bytes, tx_errors }
    }
}

/// The interfaces of a pod with a network of its own.
pub(super) fn of_pod(network: PodNetwork) -> NetworkStats {
    NetworkStats {
        time: network.at.to_timestamp().to_string(),
        default: network.default.map(InterfaceStats::from),
        interfaces: network.interfaces.into_iter().map(InterfaceStats::from).collect(),
    }
}

/// The interfaces in the network namespace of the agent. `None` if the kernel does not list them.
pub(super) fn node() -> Option<NetworkStats> {
    let interfaces = interfaces(&fs::read_to_string("/proc/self/net/dev").ok()?);
    let routes = fs::read_to_string("/proc/self/net/route").unwrap_or_default();
    Some(stats(interfaces, &routes))
}

fn stats(interfaces: Vec<InterfaceStats>, routes: &str) -> NetworkStats {
    let default = default_interface(routes);
    let default = interfaces.iter().find(|found| Some(found.name.as_str()) == default).cloned();
    NetworkStats { time: Timestamp::now().to_string(), default, interfaces }
}

/// The prefixes of interfaces that belong to no network of the node: the loopback, and the ends and bridges of containers (cAdvisor,
/// `container/libcontainer/handler.go`, `isIgnoredDevice`).
const IGNORED: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];

/// The interfaces in the text of `/proc/net/dev` (proc_net(5)).
fn interfaces(dev: &str) -> Vec<InterfaceStats> {
    let of_line = |line: &str| {
        let (name, counts) = line.split_once(':')?;
        let name = name.trim();
        let counts: Vec<u64> = counts.split_ascii_whitespace().map_while(|count| count.parse().ok()).collect();
        // Eight counts of what was received, and eight of what was sent.
        let [rx_bytes, _, rx_errors, _, _, _, _, _, tx_bytes, _, tx_errors, ..] = counts[..] else { return None };
        let is_own = !IGNORED.iter().any(|prefix| name.starts_with(prefix));
        is_own.then(|| InterfaceStats {
            name: name.to_owned(),
            rx_bytes: Some(rx_bytes),
            rx_errors: Some(rx_errors),
            tx_bytes: Some(tx_bytes),
            tx_errors: Some(tx_errors),
        })
    };
    dev.lines().filter_map(of_line).collect()
}

/// The interface of the default route with the lowest metric, in the text of `/proc/net/route`.
fn default_interface(routes: &str) -> Option<&str> {
    let routes = routes.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [name, destination, _gateway, _flags, _references, _used, metric, mask, ..] = fields[..] else {
            return None;
        };
        let is_default = destination == "00000000" && mask == "00000000";
        is_default.then(|| Some((metric.parse::<u32>().ok()?, name))).flatten()
    });
    routes.min_by_key(|(metric, _)| *metric).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const DEV: &str = "Inter-|   Receive                                                |  Transmit\n \
        face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
        lo: 9 9 9 9 0 0 0 0 9 9 9 9 0 0 0 0\n  \
        eth0: 100 2 3 0 0 0 0 0 200 4 5 0 0 0 0 0\nveth1: 1 1 1 1 0 0 0 0 1 1 1 1 0 0 0 0\n  \
        ens4:7 0 0 0 0 0 0 0 8 0 0 0 0 0 0 0\n";
    const ROUTES: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
        ens4\t00000000\t0101A8C0\t0003\t0\t0\t200\t00000000\t0\t0\t0\n\
        eth0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
        eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n";

    #[test]
    fn interfaces_of_the_node_are_counted_and_the_default_one_comes_first() {
        let mut found = serde_json::to_value(stats(interfaces(DEV), ROUTES)).unwrap();
        found.as_object_mut().unwrap().remove("time").unwrap();
        let eth0 = json!({"name": "eth0", "rxBytes": 100, "rxErrors": 3, "txBytes": 200, "txErrors": 5});
        let ens4 = json!({"name": "ens4", "rxBytes": 7, "rxErrors": 0, "txBytes": 8, "txErrors": 0});
        let mut expected = eth0.clone();
        expected["interfaces"] = json!([eth0, ens4]);
        assert_eq!(found, expected);
        let none = serde_json::to_value(stats(interfaces(DEV), "")).unwrap();
        assert!(none.get("name").is_none(), "{none}");
    }

    #[test]
    fn a_text_of_another_form_has_no_interface() {
        assert_eq!(interfaces("eth0: 1 2\neth1 3\n\n"), []);
        assert_eq!(default_interface("Iface\neth0 00000000\n"), None);
    }
}
