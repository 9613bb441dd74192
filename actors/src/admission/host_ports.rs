//! The ports of the host that pods use.

use std::collections::HashSet;

use crate::pod::{PodObject, is_sidecar};

/// The address that stands for all addresses of the host.
const ALL: &str = "0.0.0.0";

/// A port of the host: address, protocol and number.
type HostPort<'a> = (&'a str, &'a str, i32);

/// Whether one of the pod's host ports is in use. An address conflicts with itself and with all addresses together (upstream
/// `HostPortInfo.CheckConflict`, kube-scheduler 1.36).
pub(super) fn conflict<'a>(pod: &PodObject, others: impl Iterator<Item = &'a PodObject>) -> bool {
    let own: Vec<HostPort<'_>> = host_ports(pod).collect();
    if own.is_empty() {
        return false;
    }
    let used: HashSet<HostPort<'_>> = others.flat_map(host_ports).collect();
    let any_address: HashSet<_> = used.iter().map(|(_, protocol, port)| (*protocol, *port)).collect();
    own.into_iter().any(|(ip, protocol, port)| match ip {
        ALL => any_address.contains(&(protocol, port)),
        ip => used.contains(&(ip, protocol, port)) || used.contains(&(ALL, protocol, port)),
    })
}

/// The host ports of the containers that run for the whole life of the pod. A container port of a pod on the host's network has a
/// host port too: the API server sets it, and so do the defaults of static pods.
fn host_ports(pod: &PodObject) -> impl Iterator<Item = HostPort<'_>> {
    let sidecars = pod.init_containers().iter().filter(|container| is_sidecar(container));
    let ports = sidecars.chain(pod.containers()).flat_map(|container| container.ports.iter().flatten());
    let set = |text: &'_ Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    ports.filter(|port| port.host_port.unwrap_or(0) > 0).map(move |port| {
        let ip = if set(&port.host_ip) { port.host_ip.as_deref().unwrap_or(ALL) } else { ALL };
        let protocol = if set(&port.protocol) { port.protocol.as_deref().unwrap_or("TCP") } else { "TCP" };
        (ip, protocol, port.host_port.unwrap_or(0))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::testing::pod;

    fn with(spec: Value) -> Arc<PodObject> {
        pod("p").spec(|own| *own = serde_json::from_value(spec).unwrap()).build()
    }

    fn using(port: Value) -> Arc<PodObject> {
        with(json!({"containers": [{"name": "a", "ports": [port]}]}))
    }

    #[test]
    fn ports_conflict_by_number_protocol_and_address() {
        let port = |number: i32| json!({"containerPort": 1, "hostPort": number});
        let with = |port: Value, more: Value| {
            let mut port = port;
            port.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            port
        };
        for (used, own, expected) in [
            (port(80), port(80), true),
            (port(80), port(81), false),
            (port(0), port(0), false),
            (port(80), with(port(80), json!({"protocol": "UDP"})), false),
            (port(80), with(port(80), json!({"protocol": "TCP"})), true),
            (port(80), with(port(80), json!({"hostIP": "127.0.0.1"})), true),
            (with(port(80), json!({"hostIP": "127.0.0.1"})), port(80), true),
            (with(port(80), json!({"hostIP": "127.0.0.1"})), with(port(80), json!({"hostIP": "127.0.0.2"})), false),
            (with(port(80), json!({"hostIP": "127.0.0.1"})), with(port(80), json!({"hostIP": "127.0.0.1"})), true),
            (with(port(80), json!({"hostIP": ""})), with(port(80), json!({"hostIP": "0.0.0.0"})), true),
        ] {
            let others = [using(used.clone())];
            assert_eq!(conflict(&using(own.clone()), others.iter().map(|it| &**it)), expected, "{used} {own}");
        }
    }

    #[test]
    fn only_regular_containers_and_sidecars_use_ports() {
        let init = |policy: Option<&str>| {
            let container =
                json!({"name": "i", "restartPolicy": policy, "ports": [{"containerPort": 1, "hostPort": 80}]});
            with(json!({"initContainers": [container], "containers": [{"name": "a"}]}))
        };
        let own = using(json!({"containerPort": 1, "hostPort": 80}));
        let in_use = |other: Arc<PodObject>| conflict(&own, [other].iter().map(|it| &**it));
        assert!(!in_use(init(None)));
        assert!(in_use(init(Some("Always"))));
    }
}
