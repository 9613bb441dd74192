//! The same containers without an agent: bare calls create each sandbox, create its container and start it. The calls use the
//! same settings as the agent, because each mount and profile costs the runtime time.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use futures_util::{StreamExt, TryStreamExt, stream};
use podwright_cri::v1;
use podwright_cri::v1::runtime_service_client::RuntimeServiceClient;
use serde::Serialize;
use tonic::transport::Channel;

use super::{Error, Instance, calls, image};

/// The numbers of concurrent calls to try. The floor is measured with the fastest one.
const IN_FLIGHT: [usize; 3] = [4, 8, 16];

/// Paths that are hidden from an unprivileged container.
const HIDDEN: [&str; 12] = [
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
/// Paths that an unprivileged container can only read.
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Starts and removes pods by bare calls to the runtime.
pub(crate) struct Floor {
    runtime: RuntimeServiceClient<Channel>,
    logs: PathBuf,
    /// The root of the cgroups of its pods, such as `/podwright-tests-0`.
    cgroups: String,
}

/// How long all pods took.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Took {
    pub(crate) in_flight: usize,
    /// From the first call to the last container's start.
    pub(crate) start_s: f64,
    /// From the first stop to the last removal.
    pub(crate) remove_s: f64,
}

impl Floor {
    /// Connects to the runtime at this socket.
    pub(crate) fn new(instance: &Instance) -> Result<Self, Error> {
        let (runtime, logs) = (calls::connect(&instance.socket())?, instance.directory().join("floor-logs"));
        Ok(Floor { runtime, logs, cgroups: instance.cgroup_root() })
    }

    pub(crate) async fn is_ready(&self) -> bool {
        calls::is_ready(&self.runtime).await
    }

    /// Returns the number of concurrent calls that starts the pods fastest.
    pub(crate) async fn best_in_flight(&self, n: usize) -> Result<usize, Error> {
        let mut best: Option<Took> = None;
        for in_flight in IN_FLIGHT {
            let took = self.run(n, in_flight).await?;
            if best.is_none_or(|best| took.start_s < best.start_s) {
                best = Some(took);
            }
        }
        Ok(best.ok_or("nothing was tried")?.in_flight)
    }

    /// Starts `n` pods and removes them.
    pub(crate) async fn run(&self, n: usize, in_flight: usize) -> Result<Took, Error> {
        let start = Instant::now();
        let all = stream::iter((0..n).map(|number| self.start(number)));
        let made: Vec<(String, String)> = all.buffer_unordered(in_flight).try_collect().await?;
        let started = start.elapsed();
        let start = Instant::now();
        let all = stream::iter(made.into_iter().map(|(sandbox, container)| self.remove(sandbox, container)));
        all.buffer_unordered(in_flight).try_collect::<Vec<()>>().await?;
        Ok(Took { in_flight, start_s: started.as_secs_f64(), remove_s: start.elapsed().as_secs_f64() })
    }

    /// Removes all containers and sandboxes of the runtime.
    pub(crate) async fn empty(&self) -> Result<(), Error> {
        Ok(calls::empty(&self.runtime).await?)
    }

    async fn start(&self, number: usize) -> Result<(String, String), Error> {
        let mut runtime = self.runtime.clone();
        let name = format!("floor-{number}");
        let logs = self.logs.join(&name);
        fs::create_dir_all(logs.join("main"))?;
        let files = [("/etc/hosts", logs.join("hosts")), ("/dev/termination-log", logs.join("message"))];
        for (_, file) in &files {
            fs::write(file, "")?;
        }
        let sandbox = sandbox(name, &logs, &self.cgroups);
        let request = v1::RunPodSandboxRequest { config: Some(sandbox.clone()), ..v1::RunPodSandboxRequest::default() };
        let pod_sandbox_id = runtime.run_pod_sandbox(request).await?.into_inner().pod_sandbox_id;
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: pod_sandbox_id.clone(),
            config: Some(container(&files)),
            sandbox_config: Some(sandbox),
        };
        let container_id = runtime.create_container(request).await?.into_inner().container_id;
        runtime.start_container(v1::StartContainerRequest { container_id: container_id.clone() }).await?;
        Ok((pod_sandbox_id, container_id))
    }

    /// Stops the container with a grace period of 0, because `sleep` as process 1 ignores SIGTERM.
    async fn remove(&self, sandbox: String, container_id: String) -> Result<(), Error> {
        let mut runtime = self.runtime.clone();
        let stop = v1::StopContainerRequest { container_id: container_id.clone(), timeout: 0 };
        runtime.stop_container(stop).await?;
        runtime.remove_container(v1::RemoveContainerRequest { container_id }).await?;
        Ok(calls::remove_sandbox(runtime, sandbox).await?)
    }
}

fn namespaces() -> v1::NamespaceOption {
    v1::NamespaceOption {
        network: v1::NamespaceMode::Node.into(),
        pid: v1::NamespaceMode::Container.into(),
        ..v1::NamespaceOption::default()
    }
}

/// A sandbox with the settings of an agent: with a seccomp profile, in a cgroup of the pod.
fn sandbox(name: String, logs: &Path, cgroups: &str) -> v1::PodSandboxConfig {
    v1::PodSandboxConfig {
        log_directory: logs.display().to_string(),
        linux: Some(v1::LinuxPodSandboxConfig {
            cgroup_parent: format!("{cgroups}/kubepods/besteffort/pod{name}"),
            security_context: Some(v1::LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces()),
                seccomp: Some(v1::SecurityProfile::default()),
                ..v1::LinuxSandboxSecurityContext::default()
            }),
            ..v1::LinuxPodSandboxConfig::default()
        }),
        metadata: Some(v1::PodSandboxMetadata { uid: name.clone(), namespace: "floor".into(), name, attempt: 0 }),
        ..v1::PodSandboxConfig::default()
    }
}

/// A container with the settings of an agent: with its files, hidden and read-only paths, and an OOM score adjustment.
fn container(files: &[(&str, PathBuf)]) -> v1::ContainerConfig {
    let mount = |(at, file): &(&str, PathBuf)| v1::Mount {
        container_path: (*at).into(),
        host_path: file.display().to_string(),
        ..v1::Mount::default()
    };
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: "main".into(), attempt: 0 }),
        image: Some(v1::ImageSpec { image: image::BUSYBOX.into(), ..v1::ImageSpec::default() }),
        command: vec!["sleep".into(), "100000".into()],
        log_path: "main/0.log".into(),
        mounts: files.iter().map(mount).collect(),
        linux: Some(v1::LinuxContainerConfig {
            resources: Some(v1::LinuxContainerResources {
                cpu_period: 100_000,
                cpu_shares: 2,
                oom_score_adj: 1000,
                ..v1::LinuxContainerResources::default()
            }),
            security_context: Some(v1::LinuxContainerSecurityContext {
                namespace_options: Some(namespaces()),
                seccomp: Some(v1::SecurityProfile {
                    profile_type: v1::security_profile::ProfileType::Unconfined.into(),
                    ..v1::SecurityProfile::default()
                }),
                masked_paths: HIDDEN.map(str::to_owned).to_vec(),
                readonly_paths: READ_ONLY.map(str::to_owned).to_vec(),
                ..v1::LinuxContainerSecurityContext::default()
            }),
        }),
        ..v1::ContainerConfig::default()
    }
}
