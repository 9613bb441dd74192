//! Converts the answers of the runtime to the types of the port. Pure.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use podwright_host::log::OpenLog;
use podwright_model::ids::{FullName, PodUid, SandboxId};
use podwright_model::time::{Grace, Time};
use podwright_ports::{
    AppliedSettings, ContainerState, ContainerStatus, LinuxUser, PodRuntimeStatus, RuntimePod, RuntimePodContainer,
    RuntimePodSandbox, SandboxState, SandboxStatus,
};

use super::config::labels;
use super::layout::Layout;
use super::v1;

/// The exit code of a process that SIGKILL ended.
const KILLED: i32 = 137;
/// The smallest number of CPU shares that the kernel accepts.
const MIN_CPU_SHARES: i64 = 2;
/// How long after the end of a container its reason may still change.
const REASON_WINDOW: Duration = Duration::from_secs(1);

/// Groups sandboxes and containers by pod. Those without a pod UID are left out: they belong to other users of the runtime.
pub(super) fn pods(sandboxes: Vec<v1::PodSandbox>, containers: Vec<v1::Container>) -> Vec<RuntimePod> {
    let mut pods = BTreeMap::new();
    for sandbox in sandboxes {
        let Some(pod) = pod_of(&mut pods, &sandbox.labels) else { continue };
        let (state, created_at) = (sandbox_state(sandbox.state()), time(sandbox.created_at));
        let attempt = sandbox.metadata.map_or(0, |metadata| metadata.attempt);
        pod.is_static |= labels::is_static(&sandbox.annotations);
        pod.sandboxes.push(RuntimePodSandbox { id: sandbox.id.into(), state, attempt, created_at });
    }
    for container in containers {
        let Some(pod) = pod_of(&mut pods, &container.labels) else { continue };
        let label = v1::value(&container.labels, labels::CONTAINER_NAME);
        let name = name(label, container.metadata.as_ref());
        let (state, created_at) = (container_state(container.state()), time(container.created_at));
        let grace = labels::grace(|name| v1::value(&container.annotations, name));
        pod.grace = pod.grace.max(grace.map(|seconds| Grace::from_seconds(seconds.try_into().unwrap_or(i64::MAX))));
        pod.containers.push(RuntimePodContainer {
            id: container.id.into(),
            sandbox: container.pod_sandbox_id.into(),
            name: name.into(),
            state,
            attempt: container.metadata.map_or(0, |metadata| metadata.attempt),
            created_at,
        });
    }
    pods.into_values().collect()
}

fn pod_of<'a>(pods: &'a mut BTreeMap<PodUid, RuntimePod>, labels: &[v1::LabelEntry]) -> Option<&'a mut RuntimePod> {
    let label = |name: &str| v1::value(labels, name).filter(|text| !text.is_empty());
    let uid = PodUid::new(label(labels::POD_UID)?);
    let (namespace, name) = (label(labels::POD_NAMESPACE)?, label(labels::POD_NAME)?);
    Some(pods.entry(uid.clone()).or_insert_with(|| RuntimePod {
        uid,
        full_name: FullName::new(namespace, name),
        is_static: false,
        grace: None,
        sandboxes: vec![],
        containers: vec![],
    }))
}

/// The log of a running container. `None` if the container does not run, or belongs to no pod.
pub(super) fn open_log(layout: &Layout, container: &v1::Container) -> Option<OpenLog> {
    if container.state() != v1::ContainerState::ContainerRunning {
        return None;
    }
    let label = |name: &str| v1::value(&container.labels, name).filter(|text| is_component(text));
    let dir = Layout::log_dir_name(label(labels::POD_NAMESPACE)?, label(labels::POD_NAME)?, label(labels::POD_UID)?);
    let run = v1::value(&container.annotations, labels::RESTART_COUNT)?.parse().ok()?;
    let log = Path::new(&dir).join(Layout::log_path(label(labels::CONTAINER_NAME)?, run));
    let logs = if labels::owner(&container.labels).is_some() { &layout.logs } else { &layout.kubelet.logs };
    let (dir, file) = layout.log_at(&logs.join(log))?;
    Some(OpenLog { container: container.id.as_str().into(), dir, file })
}

fn is_component(text: &str) -> bool {
    !text.is_empty() && !text.contains('/') && !matches!(text, "." | "..")
}

/// The status of one pod. Its sandboxes and the runs of each container are sorted, the newest first.
pub(super) fn status(mut sandboxes: Vec<SandboxStatus>, mut containers: Vec<ContainerStatus>) -> PodRuntimeStatus {
    // The numbers grow with each sandbox and each run. Times may decrease, because the clock may have been set back.
    sandboxes.sort_by_key(|sandbox| Reverse((sandbox.attempt, sandbox.created_at)));
    containers.sort_by_key(|container| Reverse((container.restart_count, container.created_at)));
    PodRuntimeStatus { sandboxes, containers }
}

/// The status of one sandbox.
pub(super) fn sandbox(status: &v1::PodSandboxStatus) -> SandboxStatus {
    let options = status.linux.as_ref().and_then(|linux| linux.namespaces.as_ref()?.options.as_ref());
    let host_network = options.is_some_and(|options| options.network() == v1::NamespaceMode::Node);
    let ips = status.network.iter().flat_map(|network| {
        let more = network.additional_ips.iter().map(|more| more.ip.as_str());
        std::iter::once(network.ip.as_str()).chain(more)
    });
    SandboxStatus {
        id: status.id.as_str().into(),
        attempt: status.metadata.as_ref().map_or(0, |metadata| metadata.attempt),
        state: sandbox_state(status.state()),
        created_at: time(status.created_at),
        host_network,
        // A sandbox on the node's network has no addresses of its own. Some runtimes report some nevertheless.
        ips: ips.filter(|_| !host_network).filter_map(|ip| ip.parse().ok()).collect(),
    }
}

/// Whether the runtime may still change the reason of a killed container to `OOMKilled`. The kernel reports the end of a
/// process and the lack of memory separately, and containerd may receive the end first.
pub(super) fn may_gain_reason(status: &v1::ContainerStatus, now: Time) -> bool {
    status.state() == v1::ContainerState::ContainerExited
        && (status.exit_code, &*status.reason) == (KILLED, "Error")
        && time(status.finished_at) <= now
        && now.since(time(status.finished_at)) < REASON_WINDOW
}

/// The status of one run of a container in `sandbox`.
pub(super) fn container(status: &v1::ContainerStatus, sandbox: SandboxId) -> ContainerStatus {
    let annotation = |name: &str| status.annotations.get(name).map(String::as_str);
    let label = status.labels.get(labels::CONTAINER_NAME).map(String::as_str);
    let attempt = status.metadata.as_ref().map_or(0, |metadata| metadata.attempt);
    let at = |nanos: i64| (nanos > 0).then(|| time(nanos));
    ContainerStatus {
        id: status.id.as_str().into(),
        sandbox,
        name: name(label, status.metadata.as_ref()).into(),
        restart_count: annotation(labels::RESTART_COUNT).and_then(|count| count.parse().ok()).unwrap_or(attempt),
        state: container_state(status.state()),
        created_at: time(status.created_at),
        started_at: at(status.started_at),
        finished_at: at(status.finished_at),
        exit_code: status.exit_code,
        signal: None,
        reason: status.reason.clone(),
        message: status.message.clone(),
        // An annotation that cannot be parsed becomes 0, which matches no definition, so the container is replaced.
        spec_hash: annotation(labels::HASH).and_then(|hash| u64::from_str_radix(hash, 16).ok()).unwrap_or(0),
        image: status.image.as_ref().map(|image| image.image.clone()).unwrap_or_default(),
        image_id: status.image_ref.clone(),
        applied: applied(status).map(Box::new),
    }
}

/// The user and the resources of a container. `None` if the runtime reports neither, as containerd 1.6.
fn applied(status: &v1::ContainerStatus) -> Option<AppliedSettings> {
    let user = status.user.as_ref().and_then(|user| user.linux.as_ref()).map(|user| LinuxUser {
        uid: user.uid,
        gid: user.gid,
        groups: user.supplemental_groups.clone(),
    });
    let linux = status.resources.as_ref().and_then(|resources| resources.linux.as_ref());
    if user.is_none() && linux.is_none() {
        return None;
    }
    let limits = linux.map(applied_limits).unwrap_or_default();
    Some(AppliedSettings { user, ..limits })
}

/// The limits as the kubelet reads them (`toKubeContainerResources`, kubelet 1.36). A zero, or a negative quota, means that there is
/// none. The CPU request is the shares divided by 1024, the shares of one CPU, rounded up.
fn applied_limits(linux: &v1::LinuxContainerResources) -> AppliedSettings {
    let positive = |number: i64| (number > 0).then_some(number);
    let limit = linux.cpu_quota.checked_mul(1000).and_then(|quota| quota.checked_div(linux.cpu_period));
    let shares = (linux.cpu_shares >= MIN_CPU_SHARES).then(|| linux.cpu_shares.saturating_mul(1000));
    AppliedSettings {
        user: None,
        cpu_request: shares.map(|shares| (shares as u64).div_ceil(1024) as i64),
        cpu_limit: limit.and_then(positive),
        memory_limit: positive(linux.memory_limit_in_bytes),
    }
}

fn name<'a>(label: Option<&'a str>, metadata: Option<&'a v1::ContainerMetadata>) -> &'a str {
    label.or_else(|| Some(metadata?.name.as_str())).unwrap_or_default()
}

fn time(nanos: i64) -> Time {
    Time::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

fn sandbox_state(state: v1::PodSandboxState) -> SandboxState {
    match state {
        v1::PodSandboxState::SandboxReady => SandboxState::Ready,
        v1::PodSandboxState::SandboxNotready => SandboxState::NotReady,
    }
}

fn container_state(state: v1::ContainerState) -> ContainerState {
    match state {
        v1::ContainerState::ContainerCreated => ContainerState::Created,
        v1::ContainerState::ContainerRunning => ContainerState::Running,
        v1::ContainerState::ContainerExited => ContainerState::Exited,
        v1::ContainerState::ContainerUnknown => ContainerState::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::fixtures::{self, facts, lookups};
    use crate::config::{PodAssignments, container_config, sandbox_config};

    #[test]
    fn only_sandboxes_and_containers_with_pod_labels_are_listed() {
        let pod = fixtures::pod(serde_json::json!({"containers": [{"name": "a"}]}));
        let labels = sandbox_config(&facts(), &PodAssignments::default(), &pod, 0).unwrap().labels;
        let own = v1::PodSandbox { id: "s".into(), labels: v1::entries(labels), state: 1, ..Default::default() };
        let other = v1::PodSandbox { id: "x".into(), ..Default::default() };
        let of = fixtures::container(&pod, "a", 0);
        let container = v1::Container {
            id: "c".into(),
            pod_sandbox_id: "s".into(),
            labels: v1::entries(
                container_config(&facts(), &PodAssignments::default(), &of, &lookups()).unwrap().labels,
            ),
            state: 1,
            created_at: 5,
            ..Default::default()
        };
        let [pod] = &pods(vec![other, own], vec![container])[..] else { panic!("one pod") };
        assert_eq!((pod.uid.to_string().as_str(), pod.full_name.as_str()), ("u-1", "web_shop"));
        assert_eq!(pod.sandboxes[0].state, SandboxState::NotReady);
        assert_eq!((pod.containers[0].name.as_str(), pod.containers[0].state), ("a", ContainerState::Running));
    }

    // After its manifest is gone, a pod still stops with its own grace period.
    #[test]
    fn listed_pod_has_its_source_and_its_grace_period() {
        for (source, is_static) in [(Some("file"), true), (Some("http"), true), (Some("api"), false), (None, false)] {
            let annotations = source.map(|source| json!({"kubernetes.io/config.source": source}));
            let pod = fixtures::pod_with(
                json!({"annotations": annotations}),
                json!({"terminationGracePeriodSeconds": 60, "containers": [{"name": "a"}]}),
            );
            let config = sandbox_config(&facts(), &PodAssignments::default(), &pod, 0).unwrap();
            let (labels, annotations) = (v1::entries(config.labels), v1::entries(config.annotations));
            let sandbox = v1::PodSandbox { labels, annotations, ..Default::default() };
            let of = fixtures::container(&pod, "a", 0);
            let config = container_config(&facts(), &PodAssignments::default(), &of, &lookups()).unwrap();
            let (labels, annotations) = (v1::entries(config.labels), v1::entries(config.annotations));
            let container = v1::Container { labels, annotations, ..Default::default() };
            let [pod] = &pods(vec![sandbox], vec![container])[..] else { panic!("one pod") };
            assert_eq!((pod.is_static, pod.grace), (is_static, Some(Grace::from_seconds(60))), "{source:?}");
        }
    }

    #[test]
    fn the_reason_of_a_kill_may_change_for_a_second_unless_it_is_oom() {
        let end = |state: v1::ContainerState, exit_code, reason: &str, finished_at| v1::ContainerStatus {
            state: state.into(),
            exit_code,
            reason: reason.into(),
            finished_at,
            ..Default::default()
        };
        let exited = v1::ContainerState::ContainerExited;
        let now = Time::from_secs(100);
        let at = 99_500_000_000;
        for (status, may) in [
            (end(exited, 137, "Error", at), true),
            (end(exited, 137, "OOMKilled", at), false),
            (end(exited, 1, "Error", at), false),
            (end(exited, 137, "Error", 98_000_000_000), false),
            // The clock was set back after the end.
            (end(exited, 137, "Error", 4_000_000_000_000), false),
            (end(v1::ContainerState::ContainerRunning, 137, "Error", at), false),
        ] {
            assert_eq!(may_gain_reason(&status, now), may, "{status:?}");
        }
    }

    /// Since CRI 1.33 runtimes report the stop signal of a container (field 19 of `ContainerStatus`). The runtimes of the tests
    /// do not.
    #[test]
    fn a_container_status_of_a_newer_runtime_is_decoded() {
        let wire = [0x0a, 1, b'c', 0x92, 0x01, 4, 0x0a, 2, 0x08, 5, 0x98, 0x01, 8];
        let status = <v1::ContainerStatus as prost::Message>::decode(&wire[..]).unwrap();
        assert_eq!(status.id, "c");
        assert_eq!(applied(&status).and_then(|applied| applied.user).map(|user| user.uid), Some(5));
        assert_eq!(status.stop_signal, 8);
    }

    #[test]
    fn applied_resources_are_read_as_a_kubelet_does() {
        let applied_of = |quota, shares, memory| {
            let linux = v1::LinuxContainerResources {
                cpu_period: 100_000,
                cpu_quota: quota,
                cpu_shares: shares,
                memory_limit_in_bytes: memory,
                ..Default::default()
            };
            let resources = Some(v1::ContainerResources { linux: Some(linux) });
            let applied = applied(&v1::ContainerStatus { resources, ..Default::default() }).unwrap();
            (applied.cpu_limit, applied.cpu_request, applied.memory_limit)
        };
        assert_eq!(applied_of(50_000, 102, 64 << 20), (Some(500), Some(100), Some(64 << 20)));
        assert_eq!(applied_of(-1, 2, 0), (None, Some(2), None), "2 shares are the least");
        assert_eq!(applied_of(0, 0, -1), (None, None, None));
        assert_eq!(applied(&v1::ContainerStatus::default()), None, "an older runtime reports nothing");
    }

    #[test]
    fn restart_count_and_hash_are_read_from_container_annotations() {
        let pod = fixtures::pod(serde_json::json!({"containers": [{"name": "a"}]}));
        let config =
            container_config(&facts(), &PodAssignments::default(), &fixtures::container(&pod, "a", 7), &lookups())
                .unwrap();
        let status = v1::ContainerStatus {
            id: "c".into(),
            labels: config.labels,
            annotations: config.annotations,
            started_at: 0,
            finished_at: 9,
            ..Default::default()
        };
        let run = container(&status, "s".into());
        assert_eq!((run.restart_count, run.spec_hash, run.name.as_str()), (7, 42, "a"));
        assert_eq!((run.started_at, run.finished_at), (None, Some(Time::from_nanos(9))));
    }

    #[test]
    fn newest_sandbox_and_run_come_first_even_if_the_clock_was_set_back() {
        let pod = fixtures::pod(serde_json::json!({"containers": [{"name": "a"}]}));
        let run = |count: u32, created_at| {
            let of = fixtures::container(&pod, "a", count);
            let config = container_config(&facts(), &PodAssignments::default(), &of, &lookups()).unwrap();
            let status = v1::ContainerStatus {
                id: format!("c{count}"),
                labels: config.labels,
                annotations: config.annotations,
                created_at,
                ..Default::default()
            };
            container(&status, "s".into())
        };
        let sandbox = |attempt, created_at| {
            let metadata = Some(v1::PodSandboxMetadata { attempt, ..Default::default() });
            sandbox(&v1::PodSandboxStatus { metadata, created_at, ..Default::default() })
        };
        let status = status(vec![sandbox(0, 900), sandbox(1, 100)], vec![run(0, 900), run(2, 100), run(1, 950)]);
        assert_eq!(status.sandboxes[0].attempt, 1);
        assert_eq!(status.runs("a").map(|run| run.restart_count).collect::<Vec<_>>(), [2, 1, 0]);
    }

    #[test]
    fn a_sandbox_on_the_node_network_has_no_ip_addresses() {
        let network = v1::PodSandboxNetworkStatus {
            ip: "10.0.0.1".into(),
            additional_ips: vec![v1::PodIp { ip: "fd00::1".into() }, v1::PodIp { ip: "".into() }],
        };
        let mut status = v1::PodSandboxStatus { network: Some(network), ..Default::default() };
        assert_eq!(sandbox(&status).ips.len(), 2);
        let options = v1::NamespaceOption { network: v1::NamespaceMode::Node.into(), ..Default::default() };
        status.linux = Some(v1::LinuxPodSandboxStatus { namespaces: Some(v1::Namespace { options: Some(options) }) });
        assert!(sandbox(&status).host_network && sandbox(&status).ips.is_empty());
    }
}
