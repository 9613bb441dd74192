//! The network interfaces of the node and its pods, as the kernel counts their bytes.

use std::fs;

use jiff::Timestamp;
use serde::Serialize;

use podwright_host::stats::{InterfaceUsage, PodNetwork, net_dev};

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
    fn from(InterfaceUsage { name, rx_bytes, rx_errors, tx_bytes, tx_errors, .. }: InterfaceUsage) -> Self {
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
    let interfaces = net_dev::of_agent()?.into_iter().map(InterfaceStats::from).collect();
    let routes = fs::read_to_string("/proc/self/net/route").unwrap_or_default();
    Some(stats(interfaces, &routes))
}

fn stats(interfaces: Vec<InterfaceStats>, routes: &str) -> NetworkStats {
    let default = default_interface(routes);
    let default = interfaces.iter().find(|found| Some(found.name.as_str()) == default).cloned();
    NetworkStats { time: Timestamp::now().to_string(), default, interfaces }
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

    const ROUTES: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
        ens4\t00000000\t0101A8C0\t0003\t0\t0\t200\t00000000\t0\t0\t0\n\
        eth0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
        eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n";

    #[test]
    fn default_interface_of_the_node_is_repeated_at_the_top() {
        let interface = |name: &str, rx_bytes, tx_bytes| InterfaceStats {
            name: name.to_owned(),
            rx_bytes: Some(rx_bytes),
            rx_errors: Some(3),
            tx_bytes: Some(tx_bytes),
            tx_errors: Some(5),
        };
        let interfaces = vec![interface("eth0", 100, 200), interface("ens4", 7, 8)];
        let mut found = serde_json::to_value(stats(interfaces.clone(), ROUTES)).unwrap();
        found.as_object_mut().unwrap().remove("time").unwrap();
        let eth0 = json!({"name": "eth0", "rxBytes": 100, "rxErrors": 3, "txBytes": 200, "txErrors": 5});
        let ens4 = json!({"name": "ens4", "rxBytes": 7, "rxErrors": 3, "txBytes": 8, "txErrors": 5});
        let mut expected = eth0.clone();
        expected["interfaces"] = json!([eth0, ens4]);
        assert_eq!(found, expected);
        let none = serde_json::to_value(stats(interfaces, "")).unwrap();
        assert!(none.get("name").is_none(), "{none}");
    }

    #[test]
    fn a_text_of_another_form_has_no_default_interface() {
        assert_eq!(default_interface("Iface\neth0 00000000\n"), None);
    }
}
