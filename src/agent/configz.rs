//! `/configz`: the configuration of the agent, in the form of the kubelet's configuration.
//!
//! It has each field of `KubeletConfiguration` (`kubelet.config.k8s.io/v1beta1`, 1.36) for which the agent has a flag or a fixed rule,
//! with its value. Fields without a meaning for the agent, and fields without a value, are absent.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::agent::cli::{AdminAddress, LogFormat, NodeApiArgs, RunArgs};
use crate::agent::runtime::Runtime;
use podwright_model::texts::format::duration;
use podwright_node_api::{ALLOWED_TTL, DENIED_TTL, IDLE_LIMIT, TOKEN_TTL};
use podwright_sources::{CHECK_FREQUENCY, Origin, redacted};

/// The answer of `/configz`.
pub(crate) fn configz(args: &RunArgs) -> Value {
    let parts = [
        json!({"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1"}),
        server(&args.node_api),
        args.certificates.configuration(),
        sources(args),
        node(args),
        pods(args),
        args.admission.configuration(),
        args.eviction.configuration(),
        args.shutdown.configuration(),
        args.events.configuration(),
        args.machine.configuration(),
        runtime(args),
    ];
    let fields = parts.into_iter().filter_map(|part| match part {
        Value::Object(fields) => Some(fields),
        _ => None,
    });
    let config: Map<String, Value> = fields.flatten().filter(|(_, value)| !value.is_null()).collect();
    json!({"kubeletconfig": config})
}

fn server(args: &NodeApiArgs) -> Value {
    let (address, tls) = (args.node_api.address(), args.tls());
    let suites: Vec<String> = tls.cipher_suites.iter().map(ToString::to_string).collect();
    let webhook = json!({"cacheAuthorizedTTL": duration(ALLOWED_TTL), "cacheUnauthorizedTTL": duration(DENIED_TTL)});
    let x509 = args.client_ca_file.as_ref().map_or_else(|| json!({}), |file| json!({"clientCAFile": file}));
    json!({
        "enableServer": address.is_some(),
        "address": address.map(|address| address.ip().to_string()),
        "port": address.map(|address| address.port()),
        "readOnlyPort": 0,
        "tlsMinVersion": tls.min_version.to_string(),
        "tlsCipherSuites": (!suites.is_empty()).then_some(suites),
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true, "cacheTTL": duration(TOKEN_TTL)},
            "x509": x509,
        },
        "authorization": {"mode": "Webhook", "webhook": webhook},
        "enableDebuggingHandlers": true,
        "enableSystemLogHandler": false,
        "enableProfilingHandler": false,
        "enableDebugFlagsHandler": false,
        "streamingConnectionIdleTimeout": duration(IDLE_LIMIT),
    })
}

/// The manifests. A kubelet has one path and one URL, so a second one is left out.
fn sources(args: &RunArgs) -> Value {
    let path = args.manifests.iter().find_map(|origin| match origin {
        Origin::Path(path) => Some(path),
        Origin::Url(_) => None,
    });
    let url = args.manifests.iter().find_map(|origin| match origin {
        Origin::Url(url) => Some(redacted(url).to_string()),
        Origin::Path(_) => None,
    });
    json!({
        "staticPodPath": path,
        "staticPodURL": url,
        "fileCheckFrequency": duration(CHECK_FREQUENCY),
        "httpCheckFrequency": duration(CHECK_FREQUENCY),
        "configMapAndSecretChangeDetectionStrategy": "Watch",
    })
}

fn node(args: &RunArgs) -> Value {
    let (health, port) = match args.admin.admin {
        AdminAddress::Listen(address) => (Some(address.ip().to_string()), address.port()),
        AdminAddress::Off => (None, 0),
    };
    json!({
        "healthzBindAddress": health,
        "healthzPort": port,
        "registerNode": args.registration.register_node,
        "providerID": args.registration.provider_id,
        "nodeStatusUpdateFrequency": duration(Duration::from_secs(10)),
        "nodeStatusReportFrequency": duration(Duration::from_secs(300)),
        "nodeLeaseDurationSeconds": 40,
        "nodeStatusMaxImages": 50,
        "enableControllerAttachDetach": true,
        "cpuManagerPolicy": "none",
        "memoryManagerPolicy": "None",
        "topologyManagerPolicy": "none",
        "logging": {"format": match args.log_format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        }},
    })
}

fn pods(args: &RunArgs) -> Value {
    json!({
        "maxPods": args.max_pods,
        "podsPerCore": args.pods_per_core,
        "syncFrequency": duration(Duration::from_secs(60)),
        "crashLoopBackOff": {"maxContainerRestartPeriod": duration(Duration::from_secs(300))},
        "localStorageCapacityIsolation": true,
        "containerLogMaxSize": args.container_log_max_size.to_string(),
        "containerLogMaxFiles": args.container_log_max_files,
        "containerLogMonitorInterval": duration(Duration::from_secs(10)),
    })
}

/// The settings of a container runtime. Other runtimes have none of them.
fn runtime(args: &RunArgs) -> Value {
    match args.runtime {
        Runtime::Cri(ref endpoint) => {
            let mut fields = json!({"containerRuntimeEndpoint": endpoint.to_string()});
            for part in [args.images.configuration(), args.node_settings.configuration()] {
                if let (Some(fields), Value::Object(part)) = (fields.as_object_mut(), part) {
                    fields.extend(part);
                }
            }
            fields
        }
        Runtime::Process | Runtime::Simulated => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::cli::{self, Command};

    fn config(flags: &[&str]) -> Value {
        match cli::parse(["podwright", "run", "--kubeconfig=k"].iter().chain(flags)).map(|cli| cli.command) {
            Ok(Command::Run(args)) => configz(&args)["kubeletconfig"].take(),
            _ => panic!("{flags:?} are not parsed"),
        }
    }

    #[test]
    fn configuration_has_the_value_of_each_flag() {
        let found = config(&[
            "--node-api=[::]:1",
            "--client-ca-file=ca",
            "--tls-min-version=VersionTLS13",
            "--tls-cipher-suites=TLS_AES_128_GCM_SHA256",
            "--tls-cert-file=cert",
            "--tls-private-key-file=key",
            "--bootstrap-kubeconfig=b",
            "--register-node=false",
            "--provider-id=cloud:///1",
            "--event-qps=5",
            "--event-burst=7",
            "--register-with-taints=a=b:NoExecute",
            "--manifests=http://user:hunter2@host/pods",
            "--manifests=/pods",
            "--max-pods=7",
            "--pods-per-core=3",
            "--log-format=json",
            "--protect-kernel-defaults",
            "--fail-swap-on",
            "--container-log-max-size=1Mi",
            "--allowed-unsafe-sysctls=kernel.msg*",
            "--system-reserved=cpu=0.5,memory=1Gi",
            "--kube-reserved=ephemeral-storage=2Gi",
            "--eviction-hard=memory.available<1Gi,nodefs.available<5%",
            "--eviction-soft=memory.available<2Gi",
            "--eviction-soft-grace-period=memory.available=90s",
            "--eviction-minimum-reclaim=nodefs.available=1Gi",
            "--eviction-max-pod-grace-period=9",
            "--eviction-pressure-transition-period=1m",
            "--shutdown-grace-period=30",
            "--shutdown-grace-period-critical-pods=10",
        ]);
        for (field, value) in [
            ("kind", json!("KubeletConfiguration")),
            ("apiVersion", json!("kubelet.config.k8s.io/v1beta1")),
            ("address", json!("::")),
            ("port", json!(1)),
            ("tlsCertFile", json!("cert")),
            ("tlsMinVersion", json!("VersionTLS13")),
            ("tlsCipherSuites", json!(["TLS_AES_128_GCM_SHA256"])),
            ("tlsPrivateKeyFile", json!("key")),
            ("rotateCertificates", json!(true)),
            ("serverTLSBootstrap", json!(false)),
            ("healthzBindAddress", json!("127.0.0.1")),
            ("healthzPort", json!(10255)),
            ("registerNode", json!(false)),
            ("providerID", json!("cloud:///1")),
            ("eventRecordQPS", json!(5)),
            ("eventBurst", json!(7)),
            ("registerWithTaints", json!([{"key": "a", "value": "b", "effect": "NoExecute"}])),
            ("staticPodPath", json!("/pods")),
            ("staticPodURL", json!("http://host/pods")),
            ("maxPods", json!(7)),
            ("podsPerCore", json!(3)),
            ("logging", json!({"format": "json"})),
            ("protectKernelDefaults", json!(true)),
            ("failSwapOn", json!(true)),
            ("containerLogMaxSize", json!("1Mi")),
            ("allowedUnsafeSysctls", json!(["kernel.msg*"])),
            ("systemReserved", json!({"cpu": "500m", "memory": "1073741824"})),
            ("kubeReserved", json!({"ephemeral-storage": "2147483648"})),
            ("evictionHard", json!({"memory.available": "1Gi", "nodefs.available": "5%"})),
            ("evictionSoft", json!({"memory.available": "2Gi"})),
            ("evictionSoftGracePeriod", json!({"memory.available": "1m30s"})),
            ("evictionMinimumReclaim", json!({"nodefs.available": "1Gi"})),
            ("evictionMaxPodGracePeriod", json!(9)),
            ("evictionPressureTransitionPeriod", json!("1m0s")),
            ("shutdownGracePeriod", json!("30s")),
            ("shutdownGracePeriodCriticalPods", json!("10s")),
        ] {
            assert_eq!(found[field], value, "{field}");
        }
        assert_eq!(found["authentication"]["x509"], json!({"clientCAFile": "ca"}));
        assert!(found.as_object().unwrap().values().all(|value| !value.is_null()), "{found}");
        assert!(found.get("imageGCHighThresholdPercent").is_none(), "processes have no images");
        let by_priority = config(&["--shutdown-grace-period-by-pod-priority=0=20,1000=5", "--node-api=off"]);
        let groups = json!([
            {"priority": 0, "shutdownGracePeriodSeconds": 20},
            {"priority": 1000, "shutdownGracePeriodSeconds": 5},
        ]);
        assert_eq!(by_priority["shutdownGracePeriodByPodPriority"], groups);
        assert_eq!((by_priority["enableServer"].as_bool(), by_priority.get("port")), (Some(false), None));
    }

    #[test]
    fn configuration_of_a_container_runtime_has_its_settings() {
        let found = config(&[
            "--runtime=cri=unix:///run/c.sock",
            "--cluster-dns=10.0.0.10",
            "--cluster-domain=cluster.local",
            "--cgroup-root=/agent",
            "--cgroup-driver=systemd",
            "--seccomp-default",
            "--pod-max-pids=1024",
            "--swap-behavior=LimitedSwap",
            "--max-parallel-image-pulls=3",
            "--image-gc-high-threshold=70",
            "--image-gc-low-threshold=60",
            "--image-minimum-gc-age=60",
            "--image-maximum-gc-age=3600",
        ]);
        for (field, value) in [
            ("containerRuntimeEndpoint", json!("unix:///run/c.sock")),
            ("clusterDNS", json!(["10.0.0.10"])),
            ("clusterDomain", json!("cluster.local")),
            ("cgroupRoot", json!("/agent")),
            ("cgroupDriver", json!("systemd")),
            ("seccompDefault", json!(true)),
            ("podPidsLimit", json!(1024)),
            ("memorySwap", json!({"swapBehavior": "LimitedSwap"})),
            ("serializeImagePulls", json!(false)),
            ("maxParallelImagePulls", json!(3)),
            ("imageGCHighThresholdPercent", json!(70)),
            ("imageGCLowThresholdPercent", json!(60)),
            ("imageMinimumGCAge", json!("1m0s")),
            ("imageMaximumGCAge", json!("1h0m0s")),
        ] {
            assert_eq!(found[field], value, "{field}");
        }
    }
}
