//! What the translation has to know of the node, read from the machine and asked of the runtime. Reading blocks.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use podwright_actors::ports::RuntimeError;

use super::client::Client;
use super::config::{Cgroups, ClusterDns, Driver, Facts, Layout, Resolver, Version};
use super::inner::blocking;
use super::{Endpoint, NodeSettings, cgroups, v1};

/// What `statfs(2)` says of the one tree of version 2 (`linux/magic.h`).
const CGROUP2_MAGIC: rustix::fs::FsWord = 0x6367_7270;

/// What the kernel calls the namespace of cgroups that it begins with (`PROC_CGROUP_INIT_INO`, `linux/proc_ns.h`).
const FIRST_CGROUP_NAMESPACE: &str = "cgroup:[4026531835]";

/// Where a node keeps how it resolves names.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// Where systemd-resolved tells the servers that it asks itself: its own address does not lead anywhere from a pod.
const RESOLVED_RESOLV_CONF: &str = "/run/systemd/resolve/resolv.conf";

/// How the node resolves names, as far as a pod can do the same.
pub(super) fn resolver(settings: &NodeSettings) -> Resolver {
    if let Some(chosen) = &settings.resolv_conf {
        return Resolver::parse(&read(chosen));
    }
    let own = read(RESOLV_CONF);
    let text = match own.contains("nameserver 127.0.0.53") {
        true => fs::read_to_string(RESOLVED_RESOLV_CONF).unwrap_or(own),
        false => own,
    };
    Resolver::parse(&text)
}

/// Tells what cgroups do not do here.
pub(super) fn tell_limits(cgroups: &Cgroups) {
    if cgroups.driver == Driver::Systemd {
        tracing::warn!(
            "slices are made by systemd, without limits: those of containers count, pods have none as a whole"
        );
    } else if !cgroups.shared {
        tracing::warn!("the runtime has a tree of cgroups that is not seen here: pods have no limits as a whole");
    }
}

/// The node as it is now, with what the runtime that answers can do.
///
/// # Errors
/// Those of the runtime. One that does not know a question has the defaults.
pub(super) async fn read_facts(
    client: &Client,
    layout: Layout,
    seccomp_profiles: PathBuf,
    settings: NodeSettings,
) -> Result<Facts, RuntimeError> {
    let status = known(client.status(v1::StatusRequest { verbose: false }).await)?.unwrap_or_default();
    let config = known(client.runtime_config(v1::RuntimeConfigRequest {}).await)?.unwrap_or_default();
    // Who cannot be asked (containerd before 2.0) does as it was told, and whoever told it tells us.
    let driver = match config.linux.map(|linux| linux.cgroup_driver()) {
        Some(v1::CgroupDriver::Systemd) => Driver::Systemd,
        Some(v1::CgroupDriver::Cgroupfs) => Driver::Cgroupfs,
        None => settings.cgroup_driver.into(),
    };
    let shared = driver == Driver::Systemd || shares_cgroups(client.endpoint()).await;
    let deep =
        |handler: &v1::RuntimeHandler| handler.features.is_some_and(|features| features.recursive_read_only_mounts);
    let own_users = |handler: &v1::RuntimeHandler| handler.features.is_some_and(|features| features.user_namespaces);
    let handlers = |able: &dyn Fn(&v1::RuntimeHandler) -> bool| -> BTreeSet<String> {
        status.runtime_handlers.iter().filter(|handler| able(handler)).map(|handler| handler.name.clone()).collect()
    };
    let (recursive_read_only, user_namespaces) = (handlers(&deep), handlers(&own_users));
    let groups_policy = status.features.is_some_and(|features| features.supplemental_groups_policy);
    blocking(move || {
        let version = cgroup_version();
        Ok(Facts {
            layout,
            resolver: resolver(&settings),
            cluster_dns: ClusterDns { servers: settings.cluster_dns, domain: settings.cluster_domain },
            cgroups: Cgroups { version, driver, root: settings.cgroup_root, shared },
            cpu_millis: std::thread::available_parallelism()
                .map_or(1000, |cores| i64::try_from(cores.get()).unwrap_or(i64::MAX / 1000) * 1000),
            memory: memory(&read("/proc/meminfo")),
            huge_pages: huge_pages(version),
            seccomp_profiles,
            selinux: Path::new("/sys/fs/selinux/enforce").exists(),
            masked_paths: thermal_throttles(),
            recursive_read_only,
            user_namespaces,
            groups_policy,
        })
    })
    .await
}

/// Whether the runtime has the same tree of cgroups as this process. A namespace of cgroups (cgroup_namespaces(7)) has one of
/// its own, and one that is made in it is not where the runtime looks. A runtime whose process is not seen is taken to be in the
/// first namespace, as a node's is.
async fn shares_cgroups(runtime: &Endpoint) -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/cgroup")).ok();
    // Kernels without namespaces have one tree.
    let Some(own) = namespace("self") else { return true };
    let runtime = tokio::net::UnixStream::connect(runtime.path()).await;
    let pid = runtime.and_then(|socket| socket.peer_cred()).ok().and_then(|peer| peer.pid());
    let of_runtime = pid.and_then(|pid| namespace(&pid.to_string()));
    own == of_runtime.unwrap_or_else(|| FIRST_CGROUP_NAMESPACE.into())
}

/// An answer, or `None` of a runtime that does not know the question.
fn known<T>(answer: Result<T, RuntimeError>) -> Result<Option<T>, RuntimeError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(RuntimeError::Unsupported(why)) => {
            tracing::debug!(why, "runtime does not tell what it can do");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn read(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn cgroup_version() -> Version {
    match rustix::fs::statfs(cgroups::ROOT).map(|stat| stat.f_type) {
        Ok(CGROUP2_MAGIC) => {
            // The root of the tree has no limits, so the kernel's choice shows in the agent's own cgroup.
            let own = read("/proc/self/cgroup");
            let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
            Version::V2 { swap: Path::new(cgroups::ROOT).join(own).join("memory.swap.max").exists() }
        }
        _ => Version::V1 { swap: Path::new(cgroups::ROOT).join("memory/memory.memsw.limit_in_bytes").exists() },
    }
}

/// Memory of the machine in bytes, of what `/proc/meminfo` says in units of 1024.
fn memory(meminfo: &str) -> i64 {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kibibytes = total.and_then(|rest| rest.split_whitespace().next()?.parse::<i64>().ok());
    kibibytes.unwrap_or(0).saturating_mul(1024)
}

/// Sizes of huge pages in bytes that the kernel can give out and count, smallest first.
fn huge_pages(version: Version) -> Vec<u64> {
    let counted = match version {
        Version::V1 { .. } => Path::new(cgroups::ROOT).join("hugetlb").is_dir(),
        Version::V2 { .. } => {
            read(Path::new(cgroups::ROOT).join("cgroup.controllers")).split_whitespace().any(|name| name == "hugetlb")
        }
    };
    if !counted {
        return vec![];
    }
    let size = |name: &str| name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok();
    let mut sizes: Vec<u64> =
        names("/sys/kernel/mm/hugepages").iter().filter_map(|name| Some(size(name)? * 1024)).collect();
    sizes.sort_unstable();
    sizes
}

/// Files that tell of the machine's heat, by which containers could tell what others do.
fn thermal_throttles() -> Vec<String> {
    const CPUS: &str = "/sys/devices/system/cpu";
    let is_cpu = |name: &&String| name.strip_prefix("cpu").is_some_and(|n| n.parse::<u32>().is_ok());
    let names = names(CPUS);
    let mut paths: Vec<String> =
        names.iter().filter(is_cpu).map(|cpu| format!("{CPUS}/{cpu}/thermal_throttle")).collect();
    paths.retain(|path| Path::new(path).exists());
    paths.sort_unstable();
    paths
}

fn names(dir: &str) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_question_that_is_not_known_has_no_answer() {
        assert_eq!(known(Ok(1)), Ok(Some(1)));
        assert_eq!(known::<u8>(Err(RuntimeError::Unsupported("unknown method".into()))), Ok(None));
        let passing = RuntimeError::Failed("its database is locked".into());
        assert_eq!(known::<u8>(Err(passing.clone())), Err(passing));
    }
}
