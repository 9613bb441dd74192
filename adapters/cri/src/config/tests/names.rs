//! Tests of labels, annotations, log files, host names and `/etc/hosts`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use podwright_model::pod::ContainerKind;
use podwright_ports::Device;
use serde_json::{Value, json};

use super::super::error::ConfigError;
use super::super::fixtures::{container, facts, lookups, pod, pod_with};
use super::super::{ClusterDns, NodeFacts, PodAssignments, container_config, hosts, labels, sandbox_config};

#[test]
fn sandbox_labels_have_the_pods_labels_and_identity() {
    let pod = pod_with(
        json!({"labels": {"app": "a", labels::POD_UID: "forged"}, "annotations": {"note": "n"}}),
        json!({"containers": []}),
    );
    let config = sandbox_config(&facts(), &PodAssignments::default(), &pod, 3).unwrap();
    let metadata = config.metadata.unwrap();
    assert_eq!((&*metadata.name, &*metadata.namespace, &*metadata.uid), ("web", "shop", "u-1"));
    assert_eq!(metadata.attempt, 3);
    assert_eq!(config.log_directory, "/var/log/pods/shop_web_u-1");
    let expected = [
        ("app", "a"),
        ("io.kubernetes.pod.name", "web"),
        ("io.kubernetes.pod.namespace", "shop"),
        ("io.kubernetes.pod.uid", "u-1"),
        ("podwright.io/root", "/r"),
    ];
    assert_eq!(config.labels, expected.map(|(k, v)| (k.into(), v.into())).into());
    assert_eq!(config.annotations, [("note".into(), "n".into())].into());
}

#[test]
fn container_labels_and_annotations_have_identity_and_stop_data() {
    let pod = pod_with(
        json!({"labels": {"app": "a"}, "annotations": {"note": "n"}, "deletionGracePeriodSeconds": 5}),
        json!({"terminationGracePeriodSeconds": 30, "containers": [{
            "name": "a", "image": "busybox", "workingDir": "/w", "tty": true, "stdin": true,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "lifecycle": {"preStop": {"exec": {"command": ["x"]}}},
            "ports": [{"containerPort": 80}],
        }]}),
    );
    let mut request = container(&pod, "a", 2);
    request.env = vec![("K".into(), "v".into())];
    request.command = vec!["run".into()];
    let config = container_config(&facts(), &PodAssignments::default(), &request, &lookups()).unwrap();
    assert_eq!(config.metadata.unwrap().attempt, 2);
    assert_eq!(config.log_path, "a/2.log");
    assert_eq!((&*config.working_dir, config.tty, config.stdin, config.stdin_once), ("/w", true, true, false));
    assert_eq!((&*config.envs[0].key, &*config.envs[0].value), ("K", "v"));
    assert_eq!(config.command, ["run"]);
    let image = config.image.unwrap();
    assert_eq!((&*image.image, &*image.user_specified_image), ("sha256:1", "busybox"));
    let sorted = |map: std::collections::HashMap<String, String>| map.into_iter().collect::<BTreeMap<_, _>>();
    let expected = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
    assert_eq!(
        sorted(config.labels),
        expected(&[
            ("io.kubernetes.container.name", "a"),
            ("io.kubernetes.pod.name", "web"),
            ("io.kubernetes.pod.namespace", "shop"),
            ("io.kubernetes.pod.uid", "u-1"),
            ("podwright.io/root", "/r"),
        ])
    );
    assert_eq!(
        sorted(config.annotations),
        expected(&[
            ("io.kubernetes.container.hash", "2a"),
            ("io.kubernetes.container.ports", r#"[{"containerPort":80}]"#),
            ("io.kubernetes.container.preStopHandler", r#"{"exec":{"command":["x"]}}"#),
            ("io.kubernetes.container.restartCount", "2"),
            ("io.kubernetes.container.terminationMessagePath", "/dev/termination-log"),
            ("io.kubernetes.container.terminationMessagePolicy", "FallbackToLogsOnError"),
            ("io.kubernetes.pod.deletionGracePeriod", "5"),
            ("io.kubernetes.pod.terminationGracePeriod", "30"),
        ])
    );
}

#[test]
fn containers_are_found_by_kind_and_name() {
    let pod = pod(json!({
        "containers": [{"name": "a", "image": "of-regular"}],
        "initContainers": [{"name": "i", "image": "of-init"}],
        "ephemeralContainers": [{"name": "e", "image": "of-ephemeral", "workingDir": "/e"}],
    }));
    let image = |name: &str, kind| {
        let mut request = container(&pod, name, 0);
        request.kind = kind;
        Ok::<_, ConfigError>(
            container_config(&facts(), &PodAssignments::default(), &request, &lookups())?
                .image
                .unwrap()
                .user_specified_image,
        )
    };
    assert_eq!(image("a", ContainerKind::Regular).unwrap(), "of-regular");
    assert_eq!(image("i", ContainerKind::Init).unwrap(), "of-init");
    assert_eq!(image("e", ContainerKind::Ephemeral).unwrap(), "of-ephemeral");
    assert_eq!(image("a", ContainerKind::Init), Err(ConfigError::NoContainer("a".into())));
}

fn in_cluster() -> NodeFacts {
    NodeFacts { cluster_dns: ClusterDns { servers: vec![], domain: "cluster.local".into() }, ..facts() }
}

#[test]
fn hostname_comes_from_the_pod_spec() {
    let long = "a".repeat(62);
    let cases = [
        (json!({}), Ok("web".to_owned())),
        (json!({"hostname": "me"}), Ok("me".to_owned())),
        (json!({"hostname": "me", "subdomain": "sub"}), Ok("me".to_owned())),
        (
            json!({"hostname": "me", "subdomain": "sub", "setHostnameAsFQDN": true}),
            Ok("me.sub.shop.svc.cluster.local".to_owned()),
        ),
        (json!({"setHostnameAsFQDN": true}), Ok("web".to_owned())),
        (json!({"hostname": format!("{long}-b")}), Ok(long.clone())),
        (json!({"hostname": "me", "subdomain": "sub", "hostnameOverride": "x.example"}), Ok("x.example".to_owned())),
        (json!({"hostNetwork": true, "hostname": "me"}), Ok(String::new())),
        (json!({"hostname": "m".repeat(41), "subdomain": "s", "setHostnameAsFQDN": true}), Err("setHostnameAsFQDN")),
        (json!({"hostnameOverride": "x".repeat(65)}), Err("spec.hostnameOverride")),
    ];
    for (mut spec, expected) in cases {
        spec["containers"] = json!([]);
        let hostname = sandbox_config(&in_cluster(), &PodAssignments::default(), &pod(spec.clone()), 0)
            .map(|config| config.hostname);
        match expected {
            Ok(name) => assert_eq!(hostname.as_deref(), Ok(&*name), "{spec}"),
            Err(field) => assert!(hostname.unwrap_err().to_string().contains(field), "{spec}"),
        }
    }
    // A name of exactly the longest length.
    let fits = pod(json!({"hostname": "m".repeat(39), "subdomain": "s", "setHostnameAsFQDN": true, "containers": []}));
    assert_eq!(sandbox_config(&in_cluster(), &PodAssignments::default(), &fits, 0).unwrap().hostname.len(), 64);
}

#[test]
fn hosts_file_has_pod_addresses_and_host_aliases() {
    let ips: [IpAddr; 2] = ["10.0.0.9".parse().unwrap(), "fd00::9".parse().unwrap()];
    let aliases = json!([{"ip": "10.1.2.3", "hostnames": ["foo", "bar"]}]);
    let own = pod(json!({"hostname": "me", "subdomain": "sub", "hostAliases": aliases, "containers": []}));
    let text = hosts(&in_cluster(), &own, &ips, "10.9.9.9 other").unwrap();
    assert_eq!(
        text.lines().filter(|line| !line.starts_with("fe00::")).collect::<Vec<_>>(),
        [
            "# Kubernetes-managed hosts file.",
            "127.0.0.1\tlocalhost",
            "::1\tlocalhost ip6-localhost ip6-loopback",
            "10.0.0.9\tme.sub.shop.svc.cluster.local\tme",
            "fd00::9\tme.sub.shop.svc.cluster.local\tme",
            "",
            "# Entries added by HostAliases.",
            "10.1.2.3\tfoo\tbar",
        ]
    );
    let plain = hosts(&in_cluster(), &pod(json!({"containers": []})), &ips[..1], "").unwrap();
    assert!(plain.ends_with("\n10.0.0.9\tweb\n"), "{plain}");

    let of_node = pod(json!({"hostNetwork": true, "hostAliases": aliases, "containers": []}));
    let text = hosts(&in_cluster(), &of_node, &ips, "10.9.9.9 other").unwrap();
    assert_eq!(
        text,
        "# Kubernetes-managed hosts file (host network).\n10.9.9.9 other\n\n# Entries added by HostAliases.\n\
         10.1.2.3\tfoo\tbar\n"
    );
}

#[test]
fn the_stop_signal_of_a_container_is_passed_to_the_runtime() {
    let of = |signal: Value| {
        let lifecycle = json!({"stopSignal": signal});
        let pod = pod(json!({"containers": [{"name": "a", "lifecycle": lifecycle}]}));
        container_config(&facts(), &PodAssignments::default(), &container(&pod, "a", 0), &lookups())
            .map(|config| config.stop_signal)
            .map_err(|error| error.to_string())
    };
    // The numbers are those of the CRI (KEP-4960), not those of the kernel.
    for (signal, number) in [
        (json!(null), 0),
        (json!(""), 0),
        (json!("SIGABRT"), 1),
        (json!("SIGTERM"), 23),
        (json!("SIGUSR1"), 29),
        (json!("SIGRTMIN"), 35),
        (json!("SIGRTMIN+15"), 50),
        (json!("SIGRTMAX-14"), 51),
        (json!("SIGRTMAX"), 65),
    ] {
        assert_eq!(of(signal.clone()), Ok(number), "{signal}");
    }
    for signal in ["TERM", "SIGNONE", "RUNTIME_DEFAULT", "9"] {
        assert!(of(json!(signal)).unwrap_err().contains("lifecycle.stopSignal"), "{signal}");
    }
}

#[test]
fn devices_are_passed_to_the_runtime() {
    let pod = pod(json!({"containers": [{"name": "a"}]}));
    let mut request = container(&pod, "a", 0);
    request.devices =
        vec![Device { host_path: "/dev/x0".into(), container_path: "/dev/x".into(), permissions: "rw".into() }];
    request.cdi_devices = vec!["example.com/gpu=0".into()];
    let config = container_config(&facts(), &PodAssignments::default(), &request, &lookups()).unwrap();
    let device = &config.devices[0];
    assert_eq!((&*device.host_path, &*device.container_path, &*device.permissions), ("/dev/x0", "/dev/x", "rw"));
    assert_eq!(config.cdi_devices[0].name, "example.com/gpu=0");
}

#[test]
fn grace_period_is_read_from_container_annotations() {
    let of = |more: Value, grace: Value| {
        let pod = pod_with(more, json!({"terminationGracePeriodSeconds": grace, "containers": [{"name": "a"}]}));
        let config =
            container_config(&facts(), &PodAssignments::default(), &container(&pod, "a", 0), &lookups()).unwrap();
        labels::grace(|name| config.annotations.get(name).map(String::as_str))
    };
    let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 5});
    assert_eq!(of(json!({}), json!(60)), Some(60));
    assert_eq!(of(deleted, json!(60)), Some(5));
    assert_eq!(of(json!({}), json!(null)), None);
}
