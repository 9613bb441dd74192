//! The fields and flags on which nothing here depends, with the values that cause no notice, and the reason for any other value.
//!
//! The values without a notice are the defaults of a kubelet, and what the agent does. failCgroupV1 has a notice with any value, because a
//! kubelet may refuse to start with it, and the agent never does.

use super::Kind::{Any, Bool, Duration, Fraction, Number, Text};
use super::{Field, Kind, unused};

const FIXED_TIME: &str = "the agent has a fixed time for it";
const NO_PROFILES: &str = "the node API serves no profiles";
const NO_NODE_LOGS: &str = "the node API serves no logs of the node";
const NO_RATES: &str = "the agent limits requests by their number at a time and not by a rate";
const NO_PULL_RATES: &str = "the agent limits pulls by their number at a time: set maxParallelImagePulls";
const NO_IPTABLES: &str = "the agent writes no rules of iptables";
const LOG_LEVEL: &str = "the environment variable RUST_LOG sets the log level, such as RUST_LOG=debug";
const ONE_STREAM: &str = "all log lines are on standard output";
const LOCK: &str = "the agent locks its root directory";
const DEAD: &str = "dead containers are removed when their pods end or when the disk is full";
const NO_CADVISOR: &str =
    "it is a flag of cAdvisor, which is not a part of the agent: containers are measured when they are queried";

/// The fields of `KubeletConfiguration`.
pub(super) static FIELDS: &[Field] = &[
    unused(
        "authentication.webhook.cacheTTL",
        "authentication-token-webhook-cache-ttl",
        Duration,
        &["0s", "2m0s"],
        FIXED_TIME,
    ),
    unused(
        "authorization.webhook.cacheAuthorizedTTL",
        "authorization-webhook-cache-authorized-ttl",
        Duration,
        &["0s", "5m0s"],
        FIXED_TIME,
    ),
    unused(
        "authorization.webhook.cacheUnauthorizedTTL",
        "authorization-webhook-cache-unauthorized-ttl",
        Duration,
        &["0s", "30s"],
        FIXED_TIME,
    ),
    unused(
        "configMapAndSecretChangeDetectionStrategy",
        "",
        Text,
        &["", "Watch"],
        "config maps and secrets are always watched",
    ),
    unused("containerLogMaxWorkers", "", Number, &["1"], "one worker rotates the logs"),
    unused("containerLogMonitorInterval", "", Duration, &["10s"], FIXED_TIME),
    unused(
        "contentType",
        "kube-api-content-type",
        Text,
        &["", "application/vnd.kubernetes.protobuf"],
        "the agent chooses the content type of each request",
    ),
    unused(
        "cpuManagerReconcilePeriod",
        "cpu-manager-reconcile-period",
        Duration,
        &["0s", "10s"],
        "there is no CPU manager",
    ),
    unused("draManagerReconcilePeriod", "", Duration, &["0s", "1m0s"], FIXED_TIME),
    unused("enableContentionProfiling", "contention-profiling", Bool, &["false"], NO_PROFILES),
    unused("enableDebugFlagsHandler", "", Bool, &["true", "false"], "the node API does not change the log level"),
    unused("enableProfilingHandler", "", Bool, &["true", "false"], NO_PROFILES),
    unused("enableSystemLogHandler", "", Bool, &["true", "false"], NO_NODE_LOGS),
    unused("failCgroupV1", "", Bool, &[], "the agent runs with cgroup v1 too, whatever this says"),
    unused(
        "fileCheckFrequency",
        "file-check-frequency",
        Duration,
        &["0s", "20s"],
        "changes of manifests are noticed at once, and all are read every 20 s",
    ),
    unused(
        "hairpinMode",
        "hairpin-mode",
        Text,
        &["", "promiscuous-bridge"],
        "the container runtime sets up the network of pods",
    ),
    unused("httpCheckFrequency", "http-check-frequency", Duration, &["0s", "20s"], FIXED_TIME),
    unused("iptablesDropBit", "iptables-drop-bit", Number, &["15"], NO_IPTABLES),
    unused("iptablesMasqueradeBit", "iptables-masquerade-bit", Number, &["14"], NO_IPTABLES),
    unused("kernelMemcgNotification", "kernel-memcg-notification", Bool, &["false"], "memory is measured every 10 s"),
    unused("kubeAPIBurst", "kube-api-burst", Number, &["0", "100"], NO_RATES),
    unused("kubeAPIQPS", "kube-api-qps", Number, &["50"], NO_RATES),
    unused("kubeletCgroups", "kubelet-cgroups", Text, &[""], "the service manager puts the agent into its cgroup"),
    unused(
        "logging.flushFrequency",
        "log-flush-frequency",
        Any,
        &["", "0", "0s", "5s", "5000000000"],
        "each log line is written at once",
    ),
    unused(
        "logging.options.json.infoBufferSize",
        "log-json-info-buffer-size",
        Any,
        &["", "0"],
        "each log line is written at once",
    ),
    unused("logging.options.json.splitStream", "log-json-split-stream", Bool, &["false"], ONE_STREAM),
    unused(
        "logging.options.text.infoBufferSize",
        "log-text-info-buffer-size",
        Any,
        &["", "0"],
        "each log line is written at once",
    ),
    unused("logging.options.text.splitStream", "log-text-split-stream", Bool, &["false"], ONE_STREAM),
    unused("logging.verbosity", "v", Number, &["0", "1", "2", "3"], LOG_LEVEL),
    unused("logging.vmodule", "vmodule", Any, &[""], LOG_LEVEL),
    unused("makeIPTablesUtilChains", "make-iptables-util-chains", Bool, &["true"], NO_IPTABLES),
    unused(
        "maxOpenFiles",
        "max-open-files",
        Number,
        &["0", "1000000"],
        "the agent uses the limit of its process: set LimitNOFILE= of its unit",
    ),
    unused("memoryThrottlingFactor", "", Fraction, &["0.9"], "the memory of containers is not throttled"),
    unused(
        "nodeStatusMaxImages",
        "node-status-max-images",
        Number,
        &["50"],
        "the status of the node has up to 50 images",
    ),
    unused(
        "nodeStatusReportFrequency",
        "",
        Duration,
        &["0s", "5m0s"],
        "an unchanged status is written every five minutes",
    ),
    unused(
        "nodeStatusUpdateFrequency",
        "node-status-update-frequency",
        Duration,
        &["0s", "10s"],
        "the status of the node is computed every 10 s",
    ),
    unused(
        "oomScoreAdj",
        "oom-score-adj",
        Number,
        &["-999"],
        "the service manager sets it: OOMScoreAdjust= of the unit",
    ),
    unused("podCIDR", "pod-cidr", Text, &[""], "the container runtime sets up the network of pods"),
    unused("registryBurst", "registry-burst", Number, &["0", "10"], NO_PULL_RATES),
    unused("registryPullQPS", "registry-qps", Number, &["5"], NO_PULL_RATES),
    unused("runtimeRequestTimeout", "runtime-request-timeout", Duration, &["0s", "2m0s"], FIXED_TIME),
    unused("showHiddenMetricsForVersion", "show-hidden-metrics-for-version", Text, &[""], "no metric is hidden"),
    unused(
        "streamingConnectionIdleTimeout",
        "streaming-connection-idle-timeout",
        Duration,
        &["0s", "4h0m0s"],
        "a stream that is idle for four hours is closed",
    ),
    unused(
        "syncFrequency",
        "sync-frequency",
        Duration,
        &["0s", "1m0s"],
        "a pod is synced when something changes, and every minute",
    ),
    unused("topologyManagerScope", "topology-manager-scope", Text, &["", "container"], "there is no topology manager"),
    unused("tracing.samplingRatePerMillion", "", Number, &["0"], "the agent sends no traces"),
    unused(
        "volumePluginDir",
        "volume-plugin-dir",
        Text,
        &["", "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"],
        "there are no volume plugins",
    ),
    unused("volumeStatsAggPeriod", "volume-stats-agg-period", Duration, &["0s", "1m0s"], FIXED_TIME),
];

/// The flags of a kubelet that no field replaces.
pub(super) static FLAGS: &[Field] = &[
    of_cadvisor("application-metrics-count-limit", Number),
    of_cadvisor("boot-id-file", Text),
    unused("", "cloud-config", Text, &[""], "no cloud provider is part of the agent"),
    of_cadvisor("container-hints", Text),
    unused("", "containerd", Text, &[""], "statistics come from the container runtime"),
    of_cadvisor("containerd-namespace", Text),
    of_cadvisor("enable-load-reader", Bool),
    of_cadvisor("event-storage-age-limit", Text),
    of_cadvisor("event-storage-event-limit", Text),
    unused("", "exit-on-lock-contention", Bool, &["false"], LOCK),
    of_cadvisor("global-housekeeping-interval", Duration),
    of_cadvisor("housekeeping-interval", Duration),
    unused("", "lock-file", Text, &[""], LOCK),
    of_cadvisor("log-cadvisor-usage", Bool),
    of_cadvisor("machine-id-file", Text),
    unused("", "maximum-dead-containers", Number, &["-1"], DEAD),
    unused("", "maximum-dead-containers-per-container", Number, &["1"], DEAD),
    unused("", "minimum-container-ttl-duration", Duration, &["0s"], DEAD),
    unused(
        "",
        "pod-infra-container-image",
        Text,
        &[],
        "it is deprecated: the container runtime has the image of sandboxes in its configuration",
    ),
    unused("", "runtime-cgroups", Text, &[""], "the service manager puts the container runtime into its cgroup"),
    of_cadvisor("storage-driver-buffer-duration", Duration),
    of_cadvisor("storage-driver-db", Text),
    of_cadvisor("storage-driver-host", Text),
    of_cadvisor("storage-driver-password", Text),
    of_cadvisor("storage-driver-secure", Bool),
    of_cadvisor("storage-driver-table", Text),
    of_cadvisor("storage-driver-user", Text),
];

/// A flag that a kubelet has because it contains cAdvisor. Each value has a notice.
const fn of_cadvisor(flag: &'static str, kind: Kind) -> Field {
    unused("", flag, kind, &[], NO_CADVISOR)
}
