//! The fields and flags that are settings of `podwright run`.

use super::Form::{After, Present, Priorities, Seconds, Taints};
use super::Kind::{Bool, BoolMap, Duration, Number, Objects, Text, TextMap, Texts};
use super::{Field, combined, flag, setting};
use crate::agent::kubelet_config::Needs;

/// The fields of `KubeletConfiguration`.
pub(super) static FIELDS: &[Field] = &[
    combined("address", "address", Text),
    setting("allowedUnsafeSysctls", "allowed-unsafe-sysctls", Texts, flag("allowed-unsafe-sysctls", &[""])),
    combined("authentication.x509.clientCAFile", "client-ca-file", Text),
    setting("cgroupDriver", "cgroup-driver", Text, flag("cgroup-driver", &[""]).needs(Needs::ContainerRuntime)),
    setting("cgroupRoot", "cgroup-root", Text, flag("cgroup-root", &[""]).needs(Needs::ContainerRuntime)),
    setting("clusterDNS", "cluster-dns", Texts, flag("cluster-dns", &[""]).needs(Needs::ContainerRuntime)),
    setting("clusterDomain", "cluster-domain", Text, flag("cluster-domain", &[""]).needs(Needs::ContainerRuntime)),
    setting("containerLogMaxFiles", "container-log-max-files", Number, flag("container-log-max-files", &[])),
    setting("containerLogMaxSize", "container-log-max-size", Text, flag("container-log-max-size", &[""])),
    setting("containerRuntimeEndpoint", "container-runtime-endpoint", Text, flag("runtime", &[""]).form(After("cri="))),
    combined("enableServer", "enable-server", Bool),
    combined("evictionHard", "eviction-hard", TextMap('<')),
    setting(
        "evictionMaxPodGracePeriod",
        "eviction-max-pod-grace-period",
        Number,
        flag("eviction-max-pod-grace-period", &["0"]),
    ),
    setting(
        "evictionMinimumReclaim",
        "eviction-minimum-reclaim",
        TextMap('='),
        flag("eviction-minimum-reclaim", &[""]),
    ),
    setting(
        "evictionPressureTransitionPeriod",
        "eviction-pressure-transition-period",
        Duration,
        flag("eviction-pressure-transition-period", &["0s"]),
    ),
    setting("evictionSoft", "eviction-soft", TextMap('<'), flag("eviction-soft", &[""])),
    setting(
        "evictionSoftGracePeriod",
        "eviction-soft-grace-period",
        TextMap('='),
        flag("eviction-soft-grace-period", &[""]),
    ),
    combined("featureGates", "feature-gates", BoolMap),
    combined("healthzBindAddress", "healthz-bind-address", Text),
    combined("healthzPort", "healthz-port", Number),
    setting(
        "imageGCHighThresholdPercent",
        "image-gc-high-threshold",
        Number,
        flag("image-gc-high-threshold", &[]).needs(Needs::ContainerRuntime),
    ),
    setting(
        "imageGCLowThresholdPercent",
        "image-gc-low-threshold",
        Number,
        flag("image-gc-low-threshold", &[]).needs(Needs::ContainerRuntime),
    ),
    setting(
        "imageMaximumGCAge",
        "",
        Duration,
        flag("image-maximum-gc-age", &["0s"]).form(Seconds).needs(Needs::ContainerRuntime),
    ),
    setting(
        "imageMinimumGCAge",
        "minimum-image-ttl-duration",
        Duration,
        flag("image-minimum-gc-age", &["0s"]).form(Seconds).needs(Needs::ContainerRuntime),
    ),
    combined("imageServiceEndpoint", "image-service-endpoint", Text),
    setting("kubeReserved", "kube-reserved", TextMap('='), flag("kube-reserved", &[""])),
    setting("logging.format", "logging-format", Text, flag("log-format", &[""])),
    combined("maxParallelImagePulls", "", Number),
    setting("maxPods", "max-pods", Number, flag("max-pods", &["0"])),
    combined("mergeDefaultEvictionSettings", "", Bool),
    combined("port", "port", Number),
    setting("registerNode", "register-node", Bool, flag("register-node", &[]).needs(Needs::Cluster)),
    setting(
        "registerWithTaints",
        "register-with-taints",
        Objects(&[("effect", Text), ("key", Text), ("timeAdded", Text), ("value", Text)]),
        flag("register-with-taints", &[""]).form(Taints),
    ),
    setting("resolvConf", "resolv-conf", Text, flag("resolv-conf", &[]).needs(Needs::ContainerRuntime)),
    combined("rotateCertificates", "rotate-certificates", Bool),
    combined("serializeImagePulls", "serialize-image-pulls", Bool),
    setting(
        "serverTLSBootstrap",
        "rotate-server-certificates",
        Bool,
        flag("rotate-server-certificates", &[]).form(Present).needs(Needs::Cluster),
    ),
    setting("shutdownGracePeriod", "", Duration, flag("shutdown-grace-period", &["0s"])),
    setting(
        "shutdownGracePeriodByPodPriority",
        "",
        Objects(&[("priority", Number), ("shutdownGracePeriodSeconds", Number)]),
        flag("shutdown-grace-period-by-pod-priority", &[""]).form(Priorities),
    ),
    setting("shutdownGracePeriodCriticalPods", "", Duration, flag("shutdown-grace-period-critical-pods", &["0s"])),
    setting("staticPodPath", "pod-manifest-path", Text, flag("manifests", &[""])),
    setting("staticPodURL", "manifest-url", Text, flag("manifests", &[""])),
    setting("systemReserved", "system-reserved", TextMap('='), flag("system-reserved", &[""])),
    setting("tlsCertFile", "tls-cert-file", Text, flag("tls-cert-file", &[""]).needs(Needs::Cluster)),
    setting(
        "tlsPrivateKeyFile",
        "tls-private-key-file",
        Text,
        flag("tls-private-key-file", &[""]).needs(Needs::Cluster),
    ),
];

/// The flags of a kubelet that no field replaces.
pub(super) static FLAGS: &[Field] = &[
    setting("", "bootstrap-kubeconfig", Text, flag("bootstrap-kubeconfig", &[""]).needs(Needs::Cluster)),
    setting("", "cert-dir", Text, flag("cert-dir", &[""]).needs(Needs::Cluster)),
    combined("", "hostname-override", Text),
    setting("", "kubeconfig", Text, flag("kubeconfig", &[""])),
    setting("", "node-ip", Text, flag("node-ip", &[""]).needs(Needs::Cluster)),
    setting("", "node-labels", Texts, flag("node-labels", &[""])),
    setting("", "register-schedulable", Bool, flag("register-schedulable", &[]).needs(Needs::Cluster)),
    setting("", "root-dir", Text, flag("root", &[""])),
];
