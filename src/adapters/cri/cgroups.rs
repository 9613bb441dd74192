//! The cgroups of pods: the runtime makes them with the first container below, and removes those of containers alone.

use std::fs;
use std::path::{Path, PathBuf};

use super::config::{Cgroups, Driver, Version};

/// Where the node has them.
pub(super) const ROOT: &str = "/sys/fs/cgroup";

/// Removes what is left of a pod's cgroup once nothing is in it. What is still used stays: the kernel removes no cgroup
/// that has another one or a process in it. Slices are systemd's to remove. Blocks.
pub(super) fn remove(cgroups: &Cgroups, uid: &str) {
    if cgroups.driver != Driver::Cgroupfs || uid.contains('/') {
        return;
    }
    for tree in trees(cgroups.version) {
        for path in cgroups.of_uid(uid) {
            // Two of the three are not there, and of trees that are one only the first try finds something.
            let _ = fs::remove_dir(tree.join(path.trim_start_matches('/')));
        }
    }
}

/// One of version 2, or one for each controller.
fn trees(version: Version) -> Vec<PathBuf> {
    match version {
        Version::V2 { .. } => vec![Path::new(ROOT).to_owned()],
        Version::V1 { .. } => fs::read_dir(ROOT).into_iter().flatten().flatten().map(|tree| tree.path()).collect(),
    }
}
