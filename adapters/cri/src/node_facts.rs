//! The features and resources of the node and the runtime. They are cached while the connection to the runtime lasts.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};

use parking_lot::Mutex;
use podwright_host::stats::kernel_file;
use podwright_host::step_error::StepError;
use podwright_ports::RuntimeError;
use tokio::runtime::Handle;

use super::client::Client;
use super::config::{
    CdiSupport, CgroupDriver, CgroupVersion, Cgroups, ClusterDns, NodeFacts, Resolver, cgroup_driver, limits::Bounds,
    reported_driver, shared_swap,
};
use super::endpoint::Endpoint;
use super::layout::Layout;
use super::settings::{NodeSettings, SwapBehavior};
use super::tasks::{SharedTasks, blocking};
use super::{cgroups, v1};

/// The type of a cgroup version 2 file system in `statfs(2)` (`CGROUP2_SUPER_MAGIC`, `linux/magic.h`).
const CGROUP2_MAGIC: rustix::fs::FsWord = 0x6367_7270;

/// The name of the kernel's initial cgroup namespace (`PROC_CGROUP_INIT_INO`, `linux/proc_ns.h`).
const INITIAL_CGROUP_NAMESPACE: &str = "cgroup:[4026531835]";

/// The node's resolver configuration.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The file in which systemd-resolved lists its own name servers. Its local address, 127.0.0.53, does not work inside a pod.
const RESOLVED_RESOLV_CONF: &str = "/run/systemd/resolve/resolv.conf";

/// A cache of the [`NodeFacts`].
pub(super) struct NodeFactsCache {
    client: Client,
    layout: Layout,
    seccomp_profiles: PathBuf,
    settings: NodeSettings,
    /// Warnings about missing cgroup support are logged once.
    limits_logged: Once,
    cached: Mutex<Option<Arc<NodeFacts>>>,
    reads: SharedTasks<(), Arc<NodeFacts>>,
}

impl NodeFactsCache {
    /// Creates an empty cache. Reads will run on the tokio runtime of `handle`.
    pub(super) fn new(
        client: Client,
        layout: Layout,
        seccomp_profiles: PathBuf,
        settings: NodeSettings,
        handle: Handle,
    ) -> Self {
        NodeFactsCache {
            client,
            layout,
            seccomp_profiles,
            settings,
            limits_logged: Once::new(),
            cached: Mutex::default(),
            reads: SharedTasks::new(handle),
        }
    }

    /// The directories of pods and logs.
    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The cached facts, with the node's present name servers. New pods are created from them.
    ///
    /// # Errors
    /// The errors of the runtime, and [`RuntimeError::Failed`] if the node's resolver configuration cannot be read. The caller
    /// retries, because a pod that is created without name servers has none for its whole life.
    pub(super) async fn current(self: &Arc<Self>) -> Result<Arc<NodeFacts>, RuntimeError> {
        let cached = self.cached().await?;
        let chosen = self.settings.resolv_conf.clone();
        let resolver = blocking(move || resolver(chosen.as_deref())).await?;
        Ok(Arc::new(NodeFacts { resolver, ..(*cached).clone() }))
    }

    /// The cached facts, without the node's name servers. Reads them first if the cache is empty; concurrent callers share one read.
    pub(super) async fn cached(self: &Arc<Self>) -> Result<Arc<NodeFacts>, RuntimeError> {
        let cached = self.cached.lock().clone();
        match cached {
            Some(cached) => Ok(cached),
            None => self.reads.join((), Arc::clone(self).read()).await,
        }
    }

    /// Empties the cache: the next caller reads the facts again.
    pub(super) fn forget(&self) {
        self.cached.lock().take();
    }

    async fn read(self: Arc<Self>) -> Result<Arc<NodeFacts>, RuntimeError> {
        // Another read may have ended between the caller's check and the start of this one.
        let cached = self.cached.lock().clone();
        if let Some(cached) = cached {
            return Ok(cached);
        }
        let (layout, profiles) = (self.layout.clone(), self.seccomp_profiles.clone());
        let facts = read_facts(&self.client, layout, profiles, self.settings.clone()).await?;
        self.limits_logged.call_once(|| log_missing_limits(&facts.cgroups));
        let facts = Arc::new(facts);
        *self.cached.lock() = Some(Arc::clone(&facts));
        Ok(facts)
    }
}

/// The node's name servers and search domains, in a form that works inside a pod. `chosen` is the file of `--resolv-conf`.
fn resolver(chosen: Option<&Path>) -> Result<Resolver, RuntimeError> {
    if let Some(chosen) = chosen {
        return resolver_file(chosen).map(|text| Resolver::parse(&text));
    }
    let own = resolver_file(Path::new(RESOLV_CONF))?;
    let resolved = Path::new(RESOLVED_RESOLV_CONF);
    if own.contains("nameserver 127.0.0.53") && resolved.exists() {
        return resolver_file(resolved).map(|text| Resolver::parse(&text));
    }
    Ok(Resolver::parse(&own))
}

fn resolver_file(path: &Path) -> Result<String, RuntimeError> {
    text_of(path).map_err(|error| {
        let step = format!(
            "cannot read the node's name servers, make {} readable or name another file with --resolv-conf",
            path.display()
        );
        RuntimeError::failed(StepError::new(step, error))
    })
}

/// Logs a warning if pods have no limits as a whole on this node.
fn log_missing_limits(cgroups: &Cgroups) {
    if !cgroups.shared {
        tracing::warn!(
            "the runtime's cgroups are in another cgroup namespace: containers have limits, pods as a whole have none"
        );
    }
}

/// Reads the facts from the node and the runtime.
///
/// # Errors
/// Returns the errors of the runtime. If the runtime does not implement a call, its defaults apply.
async fn read_facts(
    client: &Client,
    layout: Layout,
    seccomp_profiles: PathBuf,
    settings: NodeSettings,
) -> Result<NodeFacts, RuntimeError> {
    let status = if_supported(client.status(v1::StatusRequest { verbose: true }).await)?.unwrap_or_default();
    let verbose = status.info.get("config").map(String::as_str);
    let config = if_supported(client.runtime_config(v1::RuntimeConfigRequest {}).await)?.unwrap_or_default();
    let reported = match config.linux.map(|linux| linux.cgroup_driver()) {
        Some(v1::CgroupDriver::Systemd) => Some(CgroupDriver::Systemd),
        Some(v1::CgroupDriver::Cgroupfs) => Some(CgroupDriver::Cgroupfs),
        // containerd before 2.0 does not implement the call. Its driver is in the configuration of its CRI plugin.
        None => verbose.and_then(reported_driver),
    };
    let version = if_supported(client.version(v1::VersionRequest { version: "v1".to_owned() }).await)?;
    let version = version.unwrap_or_default();
    let cdi = CdiSupport::of(verbose, &version.runtime_name, &version.runtime_version);
    let driver = cgroup_driver(settings.cgroup_driver, reported)?;
    let shared = driver == CgroupDriver::Systemd || shares_cgroups(client.endpoint()).await;
    let handlers = |supports: fn(v1::RuntimeHandlerFeatures) -> bool| -> BTreeSet<String> {
        let able = status.runtime_handlers.iter().filter(|handler| handler.features.is_some_and(supports));
        able.map(|handler| handler.name.clone()).collect()
    };
    let recursive_read_only = handlers(|features| features.recursive_read_only_mounts);
    let user_namespaces = handlers(|features| features.user_namespaces);
    let groups_policy = status.features.is_some_and(|features| features.supplemental_groups_policy);
    blocking(move || {
        let version = cgroup_version(settings.swap_behavior);
        let meminfo = read_file("/proc/meminfo");
        let amount =
            |name| kernel_file::bytes(&meminfo, name).map_or(0, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
        let shared_swap = shared_swap(settings.swap_behavior, version, amount("SwapTotal:"))?;
        Ok(NodeFacts {
            layout,
            resolver: Resolver::default(),
            cluster_dns: ClusterDns { servers: settings.cluster_dns, domain: settings.cluster_domain },
            cgroups: Cgroups { version, driver, root: settings.cgroup_root, shared },
            all_pods: settings.allocatable.map_or_else(all_cpus, |pods| Bounds {
                cpu_request: pods.cpu_millis,
                cpu_limit: None,
                memory_limit: Some(pods.memory_bytes),
            }),
            pod_pids_limit: settings.pod_pids_limit,
            memory: amount("MemTotal:"),
            shared_swap,
            huge_pages: huge_pages(version),
            seccomp_profiles,
            seccomp_default: settings.seccomp_default,
            selinux: Path::new("/sys/fs/selinux/enforce").exists(),
            masked_paths: thermal_throttles(),
            recursive_read_only,
            user_namespaces,
            groups_policy,
            cdi,
        })
    })
    .await
}

/// The bounds of all pods on a machine that reserves nothing: the CPUs that this process may use, and no limit.
fn all_cpus() -> Bounds {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    Bounds::of_class(i64::try_from(cpus).unwrap_or(i64::MAX).saturating_mul(1000))
}

/// Whether the runtime is in the same cgroup namespace as this process (cgroup_namespaces(7)). In another namespace the runtime
/// does not find the cgroups that this process creates. If the runtime's process is not visible here, it is assumed to be in
/// the initial namespace, as the runtime of a node usually is.
async fn shares_cgroups(runtime: &Endpoint) -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/cgroup")).ok();
    // A kernel without cgroup namespaces has one tree.
    let Some(own) = namespace("self") else { return true };
    let runtime = tokio::net::UnixStream::connect(runtime.path()).await;
    let pid = runtime.and_then(|socket| socket.peer_cred()).ok().and_then(|peer| peer.pid());
    let of_runtime = pid.and_then(|pid| namespace(&pid.to_string()));
    own == of_runtime.unwrap_or_else(|| INITIAL_CGROUP_NAMESPACE.into())
}

/// The answer to a call. `None` if the runtime does not implement the call.
fn if_supported<T>(answer: Result<T, RuntimeError>) -> Result<Option<T>, RuntimeError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(RuntimeError::Unsupported(why)) => {
            tracing::debug!(%why, "the container runtime does not implement a call, so defaults apply");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The text of a file of the node. Bytes that are not UTF-8 are replaced: they can only be part of a comment.
///
/// # Errors
/// The system's error.
pub(super) fn text_of(path: &Path) -> io::Result<String> {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

fn read_file(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn cgroup_version(behavior: SwapBehavior) -> CgroupVersion {
    let root = Path::new(cgroups::ROOT);
    match rustix::fs::statfs(root).map(|stat| stat.f_type) {
        Ok(CGROUP2_MAGIC) => {
            let own = read_file("/proc/self/cgroup");
            let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
            // Without LimitedSwap, containers run without a limit until a cgroup shows that there is one. That is not worth a new cgroup.
            let by_new = || behavior == SwapBehavior::LimitedSwap && cgroups::new_cgroup_limits_swap(root);
            CgroupVersion::V2 { swap: cgroups::limits_swap(root, own).unwrap_or_else(by_new) }
        }
        _ => CgroupVersion::V1 { swap: root.join("memory/memory.memsw.limit_in_bytes").exists() },
    }
}

/// The huge page sizes in bytes, smallest first. Empty if the kernel does not limit huge pages by cgroup.
fn huge_pages(version: CgroupVersion) -> Vec<u64> {
    let has_controller = match version {
        CgroupVersion::V1 { .. } => Path::new(cgroups::ROOT).join("hugetlb").is_dir(),
        CgroupVersion::V2 { .. } => read_file(Path::new(cgroups::ROOT).join("cgroup.controllers"))
            .split_whitespace()
            .any(|name| name == "hugetlb"),
    };
    if !has_controller {
        return vec![];
    }
    let size = |name: &str| name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok();
    let mut sizes: Vec<u64> =
        file_names("/sys/kernel/mm/hugepages").iter().filter_map(|name| Some(size(name)? * 1024)).collect();
    sizes.sort_unstable();
    sizes
}

/// Files with the CPUs' thermal state. They are masked, because a container could infer from them what other containers do.
fn thermal_throttles() -> Vec<String> {
    const CPUS: &str = "/sys/devices/system/cpu";
    let is_cpu = |name: &&String| name.strip_prefix("cpu").is_some_and(|n| n.parse::<u32>().is_ok());
    let names = file_names(CPUS);
    let mut paths: Vec<String> =
        names.iter().filter(is_cpu).map(|cpu| format!("{CPUS}/{cpu}/thermal_throttle")).collect();
    paths.retain(|path| Path::new(path).exists());
    paths.sort_unstable();
    paths
}

fn file_names(dir: &str) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use podwright_model::text::error_chain;

    use super::*;

    #[test]
    fn unreadable_resolver_configuration_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("resolv.conf");
        for make in [|_: &Path| {}, |path: &Path| fs::create_dir(path).unwrap()] {
            make(&path);
            let error = error_chain(&resolver(Some(&path)).unwrap_err()).to_string();
            assert!(error.contains("resolv.conf readable") && error.contains("--resolv-conf: "), "{error}");
        }
        fs::remove_dir(&path).unwrap();
        fs::write(&path, b"# caf\xe9\nnameserver 10.0.0.1\n").unwrap();
        assert_eq!(resolver(Some(&path)).unwrap().servers, ["10.0.0.1"], "a comment need not be UTF-8");
    }

    #[test]
    fn defaults_apply_only_to_calls_that_the_runtime_does_not_implement() {
        assert_eq!(if_supported(Ok(1)), Ok(Some(1)));
        assert_eq!(if_supported::<u8>(Err(RuntimeError::unsupported("unknown method"))), Ok(None));
        let transient = RuntimeError::failed("the database is locked");
        assert_eq!(if_supported::<u8>(Err(transient.clone())), Err(transient));
    }
}
