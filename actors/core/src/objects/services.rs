//! The variables that describe services.

use std::collections::BTreeMap;

use crate::ports::ServiceAddress;

/// The namespace and the name of the service of the API server.
const API_SERVER: (&str, &str) = ("default", "kubernetes");

/// The variables of the services that a pod sees: all services of its namespace if it has service links, and always the API server's.
/// A service of the pod's own namespace with the name `kubernetes` replaces the one of the API server if the pod has service links
/// (upstream `getServiceEnvVarMap`, `pkg/kubelet/kubelet_pods.go`; `FromServices`, `pkg/kubelet/envvars/envvars.go`, 1.36).
pub(crate) fn service_variables<'a>(
    namespace: &str,
    links: bool,
    services: impl IntoIterator<Item = &'a ServiceAddress>,
) -> BTreeMap<String, String> {
    let mut seen: BTreeMap<&str, &ServiceAddress> = BTreeMap::new();
    for service in services {
        let is_of_pod = links && service.namespace == namespace;
        if is_of_pod || (service.namespace.as_str(), service.name.as_str()) == API_SERVER {
            let known = seen.get(service.name.as_str());
            if is_of_pod || known.is_none() {
                seen.insert(&service.name, service);
            }
        }
    }
    let mut variables = BTreeMap::new();
    seen.into_values().for_each(|service| add(service, &mut variables));
    variables
}

fn add(service: &ServiceAddress, variables: &mut BTreeMap<String, String>) {
    let Some(first) = service.ports.first() else { return };
    let (prefix, ip) = (name(&service.name), &service.cluster_ip);
    let mut set = |name: String, value: String| drop(variables.insert(name, value));
    set(format!("{prefix}_SERVICE_HOST"), ip.clone());
    set(format!("{prefix}_SERVICE_PORT"), first.port.to_string());
    for port in service.ports.iter().filter(|port| !port.name.is_empty()) {
        set(format!("{prefix}_SERVICE_PORT_{}", name(&port.name)), port.port.to_string());
    }
    for (index, port) in service.ports.iter().enumerate() {
        let protocol = if port.protocol.is_empty() { "TCP" } else { &port.protocol };
        let address = if ip.contains(':') { format!("[{ip}]:{}", port.port) } else { format!("{ip}:{}", port.port) };
        let url = format!("{}://{address}", protocol.to_lowercase());
        if index == 0 {
            set(format!("{prefix}_PORT"), url.clone());
        }
        let of_port = format!("{prefix}_PORT_{}_{}", port.port, protocol.to_uppercase());
        set(format!("{of_port}_PROTO"), protocol.to_lowercase());
        set(format!("{of_port}_PORT"), port.port.to_string());
        set(format!("{of_port}_ADDR"), ip.clone());
        set(of_port, url);
    }
}

/// A name as a part of the name of a variable.
fn name(text: &str) -> String {
    text.replace('-', "_").to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::ServiceAddressPort;

    fn service(namespace: &str, name: &str, ip: &str, ports: &[(&str, i32, &str)]) -> ServiceAddress {
        let port = |(name, port, protocol): &(&str, i32, &str)| ServiceAddressPort {
            name: (*name).to_owned(),
            port: *port,
            protocol: (*protocol).to_owned(),
        };
        ServiceAddress {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            cluster_ip: ip.to_owned(),
            ports: ports.iter().map(port).collect(),
        }
    }

    #[test]
    fn service_has_the_variables_of_its_address_and_ports() {
        let db = service("shop", "my-db", "10.0.0.5", &[("sql-main", 5432, "TCP"), ("", 53, "UDP")]);
        let variables = service_variables("shop", true, [&db]);
        let expected = [
            ("MY_DB_PORT", "tcp://10.0.0.5:5432"),
            ("MY_DB_PORT_53_UDP", "udp://10.0.0.5:53"),
            ("MY_DB_PORT_53_UDP_ADDR", "10.0.0.5"),
            ("MY_DB_PORT_53_UDP_PORT", "53"),
            ("MY_DB_PORT_53_UDP_PROTO", "udp"),
            ("MY_DB_PORT_5432_TCP", "tcp://10.0.0.5:5432"),
            ("MY_DB_PORT_5432_TCP_ADDR", "10.0.0.5"),
            ("MY_DB_PORT_5432_TCP_PORT", "5432"),
            ("MY_DB_PORT_5432_TCP_PROTO", "tcp"),
            ("MY_DB_SERVICE_HOST", "10.0.0.5"),
            ("MY_DB_SERVICE_PORT", "5432"),
            ("MY_DB_SERVICE_PORT_SQL_MAIN", "5432"),
        ];
        assert_eq!(variables, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        let six = service("shop", "six", "fd00::5", &[("", 80, "")]);
        assert_eq!(service_variables("shop", true, [&six])["SIX_PORT"], "tcp://[fd00::5]:80");
    }

    #[test]
    fn pod_without_links_sees_only_the_api_server() {
        let api = service("default", "kubernetes", "10.0.0.1", &[("https", 443, "TCP")]);
        let own = service("shop", "kubernetes", "10.0.0.9", &[("https", 6443, "TCP")]);
        let (db, other) =
            (service("shop", "db", "10.0.0.5", &[("", 1, "")]), service("other", "x", "10.0.0.6", &[("", 2, "")]));
        let host = |links, services: [&ServiceAddress; 4]| {
            let variables = service_variables("shop", links, services);
            assert!(!variables.contains_key("X_SERVICE_HOST"));
            assert_eq!(variables.contains_key("DB_SERVICE_HOST"), links);
            variables["KUBERNETES_SERVICE_HOST"].clone()
        };
        assert_eq!(host(false, [&api, &own, &db, &other]), "10.0.0.1");
        assert_eq!(host(true, [&api, &own, &db, &other]), "10.0.0.9");
        assert_eq!(host(true, [&own, &api, &db, &other]), "10.0.0.9");
    }
}
