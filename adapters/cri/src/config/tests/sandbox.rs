//! Tests of namespaces, ports and kernel parameters.

use podwright_model::pod::ContainerKind;
use serde_json::{Value, json};

use super::super::fixtures::{container, facts, lookups, pod};
use super::super::{ContainerLookups, PodAssignments, container_config, sandbox_config, target_name};
use crate::v1::{self, NamespaceMode, Protocol};

fn namespaces(spec: Value) -> Result<v1::NamespaceOption, String> {
    let config =
        sandbox_config(&facts(), &PodAssignments::default(), &pod(spec), 0).map_err(|error| error.to_string())?;
    Ok(config.linux.unwrap().security_context.unwrap().namespace_options.unwrap())
}

#[test]
fn host_and_shared_namespaces_follow_the_pod_spec() {
    use NamespaceMode::{Container, Node, Pod};
    for (mut spec, network, pid, ipc) in [
        (json!({}), Pod, Container, Pod),
        (json!({"hostNetwork": true}), Node, Container, Pod),
        (json!({"hostPID": true}), Pod, Node, Pod),
        (json!({"hostIPC": true}), Pod, Container, Node),
        (json!({"shareProcessNamespace": true}), Pod, Pod, Pod),
        (json!({"hostUsers": true}), Pod, Container, Pod),
    ] {
        spec["containers"] = json!([]);
        let options = namespaces(spec.clone()).unwrap();
        assert_eq!((options.network(), options.pid(), options.ipc()), (network, pid, ipc), "{spec}");
        assert_eq!(options.userns_options.unwrap().mode(), Node, "{spec}");
    }
    let error = namespaces(json!({"hostUsers": false, "containers": []})).unwrap_err();
    assert!(error.contains("spec.hostUsers"), "{error}");
}

#[test]
fn an_ephemeral_container_joins_the_pid_namespace_of_its_target() {
    let of = |shared: bool, target: Option<&str>| {
        let pod = pod(json!({
            "shareProcessNamespace": shared,
            "containers": [{"name": "a"}],
            "ephemeralContainers": [{"name": "e", "targetContainerName": "a"}],
        }));
        let mut request = container(&pod, "e", 0);
        request.kind = ContainerKind::Ephemeral;
        assert_eq!(target_name(&request), Some("a"));
        assert_eq!(target_name(&container(&pod, "a", 0)), None);
        let lookups = ContainerLookups { target: target.map(Into::into), ..lookups() };
        let config = container_config(&facts(), &PodAssignments::default(), &request, &lookups)
            .map_err(|error| error.to_string())?;
        let options = config.linux.unwrap().security_context.unwrap().namespace_options.unwrap();
        Ok::<_, String>((options.pid(), options.target_id))
    };
    assert_eq!(of(false, Some("id-of-a")), Ok((NamespaceMode::Target, "id-of-a".into())));
    assert_eq!(of(true, Some("id-of-a")), Ok((NamespaceMode::Pod, String::new())));
    assert_eq!(of(false, None).unwrap_err(), "unable to find target container a");
}

#[test]
fn ports_of_containers_and_sidecars_are_mapped_once() {
    let spec = |host_network: bool| {
        json!({
            "hostNetwork": host_network,
            "containers": [{"name": "a", "ports": [
                {"containerPort": 80, "hostPort": 8080},
                {"containerPort": 80, "hostPort": 8080, "protocol": "TCP"},
                {"containerPort": 53, "hostPort": 53, "protocol": "UDP", "hostIP": "127.0.0.1"},
                {"name": "x", "containerPort": 1, "protocol": "SCTP"},
                {"name": "x", "containerPort": 2},
            ]}],
            "initContainers": [
                {"name": "s", "restartPolicy": "Always", "ports": [{"containerPort": 9}]},
                {"name": "i", "ports": [{"containerPort": 10}]},
            ],
        })
    };
    let ports = sandbox_config(&facts(), &PodAssignments::default(), &pod(spec(false)), 0).unwrap().port_mappings;
    let ports: Vec<_> =
        ports.iter().map(|port| (port.protocol(), port.container_port, port.host_port, &*port.host_ip)).collect();
    assert_eq!(
        ports,
        [
            (Protocol::Tcp, 80, 8080, ""),
            (Protocol::Udp, 53, 53, "127.0.0.1"),
            (Protocol::Sctp, 1, 0, ""),
            (Protocol::Tcp, 9, 0, ""),
        ]
    );
    assert!(
        sandbox_config(&facts(), &PodAssignments::default(), &pod(spec(true)), 0).unwrap().port_mappings.is_empty()
    );
    let odd = pod(json!({"containers": [{"name": "a", "ports": [{"containerPort": 1, "protocol": "ICMP"}]}]}));
    assert!(sandbox_config(&facts(), &PodAssignments::default(), &odd, 0).unwrap_err().to_string().contains("ICMP"));
}

#[test]
fn sysctl_names_are_written_with_dots() {
    let sysctls = json!([
        {"name": "kernel.shm_rmid_forced", "value": "1"},
        {"name": "net/ipv4/conf/eno2.100/rp_filter", "value": "2"},
    ]);
    let pod = pod(json!({"securityContext": {"sysctls": sysctls}, "containers": []}));
    let found = sandbox_config(&facts(), &PodAssignments::default(), &pod, 0).unwrap().linux.unwrap().sysctls;
    let expected = [("kernel.shm_rmid_forced", "1"), ("net.ipv4.conf.eno2/100.rp_filter", "2")];
    assert_eq!(found, expected.map(|(name, value)| (name.into(), value.into())).into());
}
