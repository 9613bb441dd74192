//! The network targets of probes and lifecycle hooks.

use k8s_openapi::api::core::v1::{ContainerPort, GRPCAction, HTTPGetAction, TCPSocketAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::ports::{GrpcTarget, HttpTarget, TcpTarget};
use crate::texts::probes as texts;

/// The user agent of probes; access logs filter by it.
pub const PROBE_USER_AGENT: &str = "kube-probe/1.36";
/// The user agent of lifecycle hooks.
pub const HOOK_USER_AGENT: &str = "kube-lifecycle/1.36";

/// The target of a GET. `default_host`, the pod's address, is used if the action names no host.
///
/// The headers of the action come first, in order. `User-Agent` and `Accept` are added if the action has none. A header
/// with an empty value is omitted (the kubelet's `httpprobe.NewRequestForHTTPGetAction`, 1.36).
///
/// # Errors
/// A message for people if the port cannot be resolved.
pub fn http_target(
    action: &HTTPGetAction,
    ports: &[ContainerPort],
    default_host: &str,
    user_agent: &str,
) -> Result<HttpTarget, String> {
    let path = action.path.as_deref().unwrap_or_default();
    Ok(HttpTarget {
        https: action.scheme.as_deref().is_some_and(|scheme| scheme.eq_ignore_ascii_case("https")),
        host: host(action.host.as_deref(), default_host),
        port: port_number(&action.port, ports)?,
        path: if path.starts_with('/') { path.to_owned() } else { format!("/{path}") },
        headers: headers(action, user_agent),
    })
}

/// The target of a TCP connection; see [`http_target`].
///
/// # Errors
/// A message for people if the port cannot be resolved.
pub fn tcp_target(action: &TCPSocketAction, ports: &[ContainerPort], default_host: &str) -> Result<TcpTarget, String> {
    Ok(TcpTarget { host: host(action.host.as_deref(), default_host), port: port_number(&action.port, ports)? })
}

/// The target of a gRPC health check. The action has only a port number and no host.
///
/// # Errors
/// A message for people if the port is not valid.
pub fn grpc_target(action: &GRPCAction, default_host: &str) -> Result<GrpcTarget, String> {
    Ok(GrpcTarget {
        host: default_host.to_owned(),
        port: port_number(&IntOrString::Int(action.port), &[])?,
        service: action.service.clone().unwrap_or_default(),
    })
}

/// Resolves a port that is given as a number, as the name of a container port, or as a number in text.
///
/// # Errors
/// A message for people if the port cannot be resolved.
fn port_number(port: &IntOrString, ports: &[ContainerPort]) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => match ports.iter().find(|port| port.name.as_deref() == Some(name)) {
            Some(port) => port.container_port,
            None => name.parse().map_err(|_| texts::unknown_port(name))?,
        },
    };
    u16::try_from(number).ok().filter(|number| *number != 0).ok_or_else(|| texts::invalid_port(number))
}

fn host(own: Option<&str>, default_host: &str) -> String {
    own.filter(|host| !host.is_empty()).unwrap_or(default_host).to_owned()
}

fn headers(action: &HTTPGetAction, user_agent: &str) -> Vec<(String, String)> {
    let own = action.http_headers.as_deref().unwrap_or_default();
    let mut headers: Vec<_> = own.iter().map(|header| (header.name.clone(), header.value.clone())).collect();
    for (name, value) in [("User-Agent", user_agent), ("Accept", "*/*")] {
        if headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(name)) {
            headers.retain(|(own, value)| !own.eq_ignore_ascii_case(name) || !value.is_empty());
        } else {
            headers.push((name.to_owned(), value.to_owned()));
        }
    }
    headers
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::HTTPHeader;

    use super::*;

    fn port(name: &str, number: i32) -> ContainerPort {
        ContainerPort { name: Some(name.into()), container_port: number, ..ContainerPort::default() }
    }

    #[test]
    fn a_probe_port_is_a_number_a_name_or_a_number_in_text() {
        let ports = [port("web", 8080), port("81", 9000)];
        let name = |name: &str| IntOrString::String(name.into());
        let cases = [
            (IntOrString::Int(80), Some(80)),
            (IntOrString::Int(0), None),
            (IntOrString::Int(65_536), None),
            (IntOrString::Int(-1), None),
            (name("web"), Some(8080)),
            (name("80"), Some(80)),
            (name("81"), Some(9000)),
            (name("admin"), None),
            (name(""), None),
            (name("70000"), None),
        ];
        for (port, number) in cases {
            assert_eq!(port_number(&port, &ports).ok(), number, "{port:?}");
        }
        assert_eq!(port_number(&name("admin"), &ports).unwrap_err(), "strconv.Atoi: parsing \"admin\": invalid syntax");
    }

    #[test]
    fn an_http_target_is_completed_from_the_pod() {
        let action = HTTPGetAction { port: IntOrString::String("web".into()), ..HTTPGetAction::default() };
        let target = http_target(&action, &[port("web", 8080)], "10.0.0.7", PROBE_USER_AGENT).unwrap();
        let expected = HttpTarget {
            https: false,
            host: "10.0.0.7".into(),
            port: 8080,
            path: "/".into(),
            headers: vec![("User-Agent".into(), "kube-probe/1.36".into()), ("Accept".into(), "*/*".into())],
        };
        assert_eq!(target, expected);

        let action = HTTPGetAction {
            host: Some("example.test".into()),
            path: Some("ready?deep=1".into()),
            scheme: Some("HTTPS".into()),
            port: IntOrString::Int(443),
            ..HTTPGetAction::default()
        };
        let target = http_target(&action, &[], "10.0.0.7", HOOK_USER_AGENT).unwrap();
        assert!(target.https);
        assert_eq!((target.host.as_str(), target.path.as_str()), ("example.test", "/ready?deep=1"));
        assert_eq!(target.headers[0].1, "kube-lifecycle/1.36");
    }

    #[test]
    fn headers_of_the_action_replace_the_added_ones() {
        let headers = |own: &[(&str, &str)]| {
            let own = own.iter().map(|(name, value)| HTTPHeader { name: (*name).into(), value: (*value).into() });
            let action = HTTPGetAction { http_headers: Some(own.collect()), ..HTTPGetAction::default() };
            let headers = super::headers(&action, "agent");
            headers.into_iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>()
        };
        assert_eq!(headers(&[("user-agent", "mine")]), ["user-agent: mine", "Accept: */*"]);
        assert_eq!(headers(&[("Accept", ""), ("User-Agent", "")]), [""; 0]);
        assert_eq!(
            headers(&[("X-A", "1"), ("X-A", "2"), ("Host", "h"), ("X-Empty", "")]),
            ["X-A: 1", "X-A: 2", "Host: h", "X-Empty: ", "User-Agent: agent", "Accept: */*"],
        );
    }

    #[test]
    fn tcp_and_grpc_targets_use_the_pods_address() {
        let action = TCPSocketAction { port: IntOrString::Int(53), ..TCPSocketAction::default() };
        assert_eq!(tcp_target(&action, &[], "::1").unwrap(), TcpTarget { host: "::1".into(), port: 53 });
        let action = GRPCAction { port: 50_051, service: Some("shop".into()) };
        let target = grpc_target(&action, "10.0.0.7").unwrap();
        assert_eq!((target.host.as_str(), target.port, target.service.as_str()), ("10.0.0.7", 50_051, "shop"));
        assert!(grpc_target(&GRPCAction { port: 0, service: None }, "h").is_err());
    }
}
