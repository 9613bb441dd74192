//! `/configz`: the configuration of the agent, with the names of the kubelet's configuration.

use std::time::Duration;

use serde_json::{Value, json};

use super::access::{ALLOWED_TTL, DENIED_TTL, TOKEN_TTL};
use crate::actors::texts::format::duration;
use crate::agent::cli::{AdmissionArgs, NodeApiArgs, RunArgs};

/// The fields of `KubeletConfiguration` (`kubelet.config.k8s.io/v1beta1`) that the agent has, with their values.
pub(crate) fn configz(args: &RunArgs) -> Value {
    let NodeApiArgs { node_api, client_ca_file } = &args.node_api;
    let address = node_api.address();
    let seconds = |seconds| duration(Duration::from_secs(seconds));
    let webhook = json!({"cacheAuthorizedTTL": duration(ALLOWED_TTL), "cacheUnauthorizedTTL": duration(DENIED_TTL)});
    let taints = AdmissionArgs::taints(&args.admission);
    let config = json!({
        "address": address.map(|address| address.ip().to_string()),
        "port": address.map(|address| address.port()),
        "readOnlyPort": 0,
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true, "cacheTTL": duration(TOKEN_TTL)},
            "x509": {"clientCAFile": client_ca_file},
        },
        "authorization": {"mode": "Webhook", "webhook": webhook},
        "enableServer": true,
        "enableDebuggingHandlers": true,
        "enableSystemLogHandler": false,
        "enableProfilingHandler": false,
        "enableDebugFlagsHandler": false,
        "maxPods": args.max_pods,
        "registerNode": args.registration.register_node,
        "registerWithTaints": taints,
        "nodeStatusUpdateFrequency": seconds(10),
        "nodeStatusReportFrequency": seconds(300),
        "nodeLeaseDurationSeconds": 40,
        "syncFrequency": seconds(60),
        "containerLogMaxSize": args.container_log_max_size.to_string(),
        "containerLogMaxFiles": args.container_log_max_files,
        "streamingConnectionIdleTimeout": seconds(4 * 60 * 60),
    });
    json!({"kubeletconfig": config})
}
