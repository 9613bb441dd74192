//! From a container of a pod to the one that the runtime is asked for. Pure.

use podwright_actors::ports::ContainerConfig;

use super::facts::{Facts, Layout};
use super::labels::{self, Said};
use super::sandbox_config::namespaces;
use super::v1;

/// What a container sees as `/etc/hosts` unless it mounts something there itself.
const HOSTS: &str = "/etc/hosts";

/// Parts of `/proc` and `/sys` that tell of or act on the node, hidden unless a container asks otherwise (upstream
/// `securitycontext.ConvertToRuntimeMaskedPaths`, kubelet 1.36).
const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
/// Those that can be looked at only.
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// A run of a container.
pub(super) fn container_config(facts: &Facts, config: &ContainerConfig) -> v1::ContainerConfig {
    let (pod, name) = (&*config.pod, config.name.as_str());
    let said = Said::of(pod, config.kind, name);
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: name.to_owned(), attempt: config.restart_count }),
        image: Some(v1::ImageSpec {
            image: config.image_id.clone(),
            user_specified_image: said.image.unwrap_or_default().to_owned(),
            runtime_handler: String::new(),
            annotations: Default::default(),
        }),
        command: config.command.clone(),
        args: config.args.clone(),
        working_dir: said.working_dir.unwrap_or_default().to_owned(),
        envs: config.env.iter().map(|(key, value)| v1::KeyValue { key: key.clone(), value: value.clone() }).collect(),
        mounts: mounts(facts, config, said.message_path()),
        labels: labels::of_container(pod, name),
        annotations: labels::annotations_of_container(config),
        log_path: Layout::log_path(name, config.restart_count),
        stdin: said.stdin,
        stdin_once: said.stdin_once,
        tty: said.tty,
        linux: Some(v1::LinuxContainerConfig {
            security_context: Some(v1::LinuxContainerSecurityContext {
                namespace_options: Some(namespaces(pod)),
                masked_paths: MASKED.map(str::to_owned).to_vec(),
                readonly_paths: READ_ONLY.map(str::to_owned).to_vec(),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// What the spec mounts, and where it leaves room the pod's `/etc/hosts` and the file for the termination message.
fn mounts(facts: &Facts, config: &ContainerConfig, message_path: &str) -> Vec<v1::Mount> {
    let uid = config.pod.uid().to_string();
    let absolute = |path: &str| if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let mut mounts: Vec<v1::Mount> = config
        .mounts
        .iter()
        .map(|mount| v1::Mount {
            container_path: absolute(&mount.container_path),
            host_path: mount.host_path.display().to_string(),
            readonly: mount.read_only,
            ..Default::default()
        })
        .collect();
    let ours = [
        (HOSTS, facts.layout.hosts(&uid)),
        (message_path, facts.layout.message(&uid, config.name.as_str(), config.restart_count)),
    ];
    for (container_path, host_path) in ours {
        if mounts.iter().all(|mount| mount.container_path.trim_end_matches('/') != container_path) {
            mounts.push(v1::Mount {
                container_path: container_path.to_owned(),
                host_path: host_path.display().to_string(),
                ..Default::default()
            });
        }
    }
    mounts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::adapters::cri::fixtures::{container, facts, pod};

    #[test]
    fn a_container_is_what_its_definition_says_under_the_names_that_tools_know() {
        let pod = pod(json!({"containers": [{
            "name": "a", "image": "busybox", "workingDir": "/w", "tty": true,
            "lifecycle": {"preStop": {"exec": {"command": ["x"]}}},
            "ports": [{"containerPort": 80}],
        }]}));
        let config = container_config(&facts(), &container(&pod, "a", 2));
        assert_eq!(config.metadata.unwrap().attempt, 2);
        assert_eq!(config.log_path, "a/2.log");
        assert_eq!((config.working_dir.as_str(), config.tty), ("/w", true));
        assert_eq!(config.image.unwrap().user_specified_image, "busybox");
        assert_eq!(config.labels[labels::CONTAINER_NAME], "a");
        for (key, value) in [
            ("io.kubernetes.container.hash", "2a"),
            ("io.kubernetes.container.restartCount", "2"),
            ("io.kubernetes.container.terminationMessagePath", "/dev/termination-log"),
            ("io.kubernetes.container.terminationMessagePolicy", "File"),
            ("io.kubernetes.container.preStopHandler", r#"{"exec":{"command":["x"]}}"#),
            ("io.kubernetes.container.ports", r#"[{"containerPort":80}]"#),
        ] {
            assert_eq!(config.annotations[key], value, "{key}");
        }
    }

    #[test]
    fn what_a_container_mounts_itself_is_not_covered() {
        let pod = pod(json!({"containers": [{"name": "a"}]}));
        let paths = |mounted: &[&str]| {
            let mut config = container(&pod, "a", 0);
            config.mounts = mounted.iter().map(|path| crate::adapters::cri::fixtures::mount(path)).collect();
            let mounts = container_config(&facts(), &config).mounts;
            mounts.into_iter().map(|mount| mount.container_path).collect::<Vec<_>>()
        };
        assert_eq!(paths(&["data"]), ["/data", "/etc/hosts", "/dev/termination-log"]);
        assert_eq!(paths(&["/etc/hosts/", "/dev/termination-log"]), ["/etc/hosts/", "/dev/termination-log"]);
    }
}
