//! The agent in the place of a kubelet: with the files that kubeadm writes, and with the arguments of kubeadm's unit.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use podwright_stand_in::{StandIn, User};
use serde_json::{Value, json};

use super::cluster_node_api::https::https;
use super::harness::{AgentHome, eventually, podwright, text};

/// An address of this process only. On it, the fixed ports of a kubelet collide with no other test.
fn own_address() -> Ipv4Addr {
    let [_, a, b, c] = std::process::id().to_be_bytes();
    // The first two addresses of the network are in use on most machines.
    Ipv4Addr::new(127, 64 + a % 128, b, c.max(2))
}

/// The fields of `/var/lib/kubelet/config.yaml` as kubeadm 1.36 writes them: all fields without `omitempty`, most of them empty, and
/// those that kubeadm sets. The patch of `instance-config.yaml` adds the endpoint of the container runtime.
fn config_of_kubeadm(home: &Path, address: Ipv4Addr, endpoint: &str) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"cacheTTL": "0s", "enabled": true},
            "x509": {"clientCAFile": home.join("ca.crt")},
        },
        "authorization": {
            "mode": "Webhook",
            "webhook": {"cacheAuthorizedTTL": "0s", "cacheUnauthorizedTTL": "0s"},
        },
        "cgroupDriver": "systemd",
        "clusterDNS": ["10.96.0.10"],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": endpoint,
        "cpuManagerReconcilePeriod": "0s",
        "crashLoopBackOff": {},
        "evictionPressureTransitionPeriod": "0s",
        "fileCheckFrequency": "0s",
        // kubeadm writes 127.0.0.1.
        "healthzBindAddress": address.to_string(),
        "healthzPort": 10248,
        "httpCheckFrequency": "0s",
        "imageMaximumGCAge": "0s",
        "imageMinimumGCAge": "0s",
        "logging": {
            "flushFrequency": 0,
            "options": {"json": {"infoBufferSize": "0"}, "text": {"infoBufferSize": "0"}},
            "verbosity": 0,
        },
        "memorySwap": {},
        "nodeStatusReportFrequency": "0s",
        "nodeStatusUpdateFrequency": "0s",
        "resolvConf": home.join("resolv.conf"),
        "rotateCertificates": true,
        "runtimeRequestTimeout": "0s",
        "shutdownGracePeriod": "0s",
        "shutdownGracePeriodCriticalPods": "0s",
        "staticPodPath": home.join("manifests"),
        "streamingConnectionIdleTimeout": "0s",
        "syncFrequency": "0s",
        "volumeStatsAggPeriod": "0s",
    })
}

#[tokio::test]
async fn files_and_arguments_of_kubeadm_start_a_node() {
    let server = StandIn::start().await.unwrap();
    let home = AgentHome::new();
    let (address, path) = (own_address(), |name: &str| home.root().join(name));
    // No container runtime is needed to register the node.
    let endpoint = format!("unix://{}", path("containerd.sock").display());
    let token = server.token(User::bootstrap("abcdef"));
    fs::write(path("bootstrap-kubelet.conf"), server.kubeconfig(&token)).unwrap();
    fs::write(path("ca.crt"), server.ca_certificate()).unwrap();
    fs::write(path("resolv.conf"), "nameserver 192.0.2.53\n").unwrap();
    let config = config_of_kubeadm(home.root(), address, &endpoint);
    fs::write(path("config.yaml"), serde_json::to_string(&config).unwrap()).unwrap();
    // Not a file of kubeadm: the address of this test, a machine that may have swap space, and a value that a flag replaces.
    fs::create_dir(path("kubelet.conf.d")).unwrap();
    let drop_in = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\naddress: {address}\nmaxPods: 30\noomScoreAdj: -500\n\
         failSwapOn: false\npodPidsLimit: 4096\neventRecordQPS: 20\n"
    );
    fs::write(path("kubelet.conf.d/10-test.conf"), drop_in).unwrap();

    // KUBELET_KUBECONFIG_ARGS, KUBELET_CONFIG_ARGS, KUBELET_KUBEADM_ARGS and KUBELET_EXTRA_ARGS of the unit.
    let words = [
        format!("--bootstrap-kubeconfig={}", path("bootstrap-kubelet.conf").display()),
        format!("--kubeconfig={}", path("kubelet.conf").display()),
        format!("--config={}", path("config.yaml").display()),
        "--register-with-taints=node-role.kubernetes.io/control-plane:NoSchedule".to_owned(),
        "--hostname-override=n1".to_owned(),
        format!("--config-dir={}", path("kubelet.conf.d").display()),
        format!("--root-dir={}", home.root().display()),
        "--max-pods=40".to_owned(),
        "--v=2".to_owned(),
    ];
    let agent = home.start_kubelet(&words.each_ref().map(String::as_str)).await;
    assert_eq!(agent.admin().to_string(), format!("{address}:10248"));
    assert_eq!(agent.get_from_port("/healthz", ""), (200, "ok\n".to_owned()));
    for (field, why) in [("maxPods", "the flag --max-pods applies"), ("oomScoreAdj", "OOMScoreAdjust=")] {
        let line = agent.wait_for_line(&format!("field=\"{field}\"")).await;
        assert!(line.contains("10-test.conf") && line.contains(why), "{line}");
    }

    // The node has a certificate of the cluster, and is registered with its taint.
    agent.wait_for_line("the node is registered").await;
    let node = server.get("nodes", "", "n1").unwrap();
    assert_eq!(node["spec"]["taints"][0]["key"], "node-role.kubernetes.io/control-plane", "{node}");
    assert!(path("kubelet.conf").exists() && path("pki/client-current.pem").exists());

    // The result of flags, drop-in files and the main file.
    let administrator = User::new("kube-apiserver-kubelet-client", &["system:masters"]);
    let client = https(Some(server.client_certificate(&administrator)));
    let url = format!("https://{address}:10250/configz");
    let answer = eventually("the node API answers", || async {
        let answer = client.get(&url).send().await.ok()?;
        answer.status().is_success().then_some(answer)
    })
    .await;
    let answer: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    let config = &answer["kubeletconfig"];
    for (field, value) in [
        ("maxPods", json!(40)),
        ("address", json!(address.to_string())),
        ("port", json!(10250)),
        ("healthzPort", json!(10248)),
        ("cgroupRoot", json!("/")),
        ("cgroupDriver", json!("systemd")),
        ("clusterDNS", json!(["10.96.0.10"])),
        ("clusterDomain", json!("cluster.local")),
        ("containerRuntimeEndpoint", json!(endpoint)),
        ("staticPodPath", json!(path("manifests"))),
        ("resolvConf", json!(path("resolv.conf"))),
        ("rotateCertificates", json!(true)),
        ("failSwapOn", json!(false)),
        ("podPidsLimit", json!(4096)),
        ("eventRecordQPS", json!(20)),
        ("evictionPressureTransitionPeriod", json!("5m0s")),
    ] {
        assert_eq!(config[field], value, "{field}: {config}");
    }
    assert_eq!(config["authentication"]["x509"]["clientCAFile"], json!(path("ca.crt")), "{config}");
}

#[tokio::test]
async fn unusable_configuration_ends_the_agent_with_its_line_and_field() {
    let home = AgentHome::new();
    let file = home.root().join("config.yaml");
    let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    for command in ["run", "kubelet"] {
        for (fields, says) in [
            ("maxPod: 5\n", "line 3, column 1: maxPod: unknown field; did you mean \"maxPods\"?"),
            ("readOnlyPort: 10255\n", "line 3, column 1: readOnlyPort: \"10255\" is not supported here"),
            ("maxPods: 5\nmaxPods: 6\n", "is set twice"),
        ] {
            fs::write(&file, format!("{head}{fields}")).unwrap();
            let output = podwright(&[command, "--config", file.to_str().unwrap()]).await;
            let error = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{error}");
            assert!(error.contains(says) && error.contains("config.yaml"), "{command}: {error}");
        }
    }
}
