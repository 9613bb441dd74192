//! The ports of the host that pods use.

use crate::ids::FullName;
use crate::pod::{PodObject, is_sidecar};

/// The address that stands for all addresses of the host.
const ALL: &str = "0.0.0.0";

/// A port of the host: address, protocol and number.
type HostPort<'a> = (&'a str, &'a str, i32);

/// Whether one of the pod's host ports is in use.
pub(super) fn conflict<'a>(pod: &PodObject, others: impl Iterator<Item = &'a PodObject>) -> bool {
    let own: Vec<HostPort<'_>> = host_ports(pod).collect();
    !own.is_empty() && others.flat_map(host_ports).any(|used| own.iter().any(|own| overlap(*own, used)))
}

/// The pod's host ports that other pods use, such as `80 (TCP)`, each with one pod that uses it.
pub fn users_of_host_ports<'a>(
    pod: &PodObject,
    others: impl Iterator<Item = &'a PodObject> + Clone,
) -> Vec<(String, FullName)> {
    let user = |own| others.clone().find(|other| host_ports(other).any(|used| overlap(own, used)));
    let used = host_ports(pod).filter_map(|own| Some((own, user(own)?)));
    used.map(|((_, protocol, port), user)| (format!("{port} ({protocol})"), user.full_name().clone())).collect()
}

/// Whether these ports exclude each other. An address conflicts with itself and with all addresses together (upstream
/// `HostPortInfo.CheckConflict`, kube-scheduler 1.36).
fn overlap((ip, protocol, port): HostPort<'_>, (other_ip, other_protocol, other_port): HostPort<'_>) -> bool {
    (protocol, port) == (other_protocol, other_port) && (ip == other_ip || ip == ALL || other_ip == ALL)
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
            let own_pod = using(own.clone());
            assert_eq!(conflict(&own_pod, others.iter().map(|it| &**it)), expected, "{used} {own}");
            let users = users_of_host_ports(&own_pod, others.iter().map(|it| &**it));
            assert_eq!(!users.is_empty(), expected, "{used} {own}");
        }
    }

    #[test]
    fn used_ports_are_named_with_their_users() {
        let ports = |name: &str, numbers: &[i32]| {
            let ports: Vec<_> = numbers.iter().map(|port| json!({"containerPort": 1, "hostPort": port})).collect();
            let spec = json!({"containers": [{"name": "a", "ports": ports}]});
            pod(name).spec(|own| *own = serde_json::from_value(spec).unwrap()).build()
        };
        let others = [ports("a", &[70]), ports("b", &[80, 81])];
        let users = users_of_host_ports(&ports("p", &[79, 80, 70]), others.iter().map(|it| &**it));
        let users: Vec<_> = users.iter().map(|(port, user)| (port.as_str(), user.name())).collect();
        assert_eq!(users, [("80 (TCP)", "b"), ("70 (TCP)", "a")]);
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
