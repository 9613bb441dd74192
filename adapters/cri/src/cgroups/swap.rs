//! Whether the kernel limits swap space in cgroups of version 2.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::write;

/// The file of each cgroup in which the memory controller is enabled.
const MEMORY_LIMIT: &str = "memory.max";
/// The file that such a cgroup has too, if the kernel limits swap space.
const SWAP_LIMIT: &str = "memory.swap.max";

/// Whether cgroups have a limit of swap space. `None` if no cgroup shows it, because none of them has the memory controller. `own` is the
/// path of the agent's cgroup in the tree that is mounted at `mount`.
///
/// The root of the tree never has limits, and the agent may run there, or in a cgroup without the memory controller. So the first cgroup
/// with this controller is inspected: the agent's, one above it, or one directly below the root.
pub(crate) fn limits_swap(mount: &Path, own: &str) -> Option<bool> {
    let own = Path::new(own).ancestors().map(|path| mount.join(path));
    let below_root = fs::read_dir(mount).into_iter().flatten().flatten().map(|entry| entry.path());
    let has_memory = |dir: &PathBuf| dir.join(MEMORY_LIMIT).exists();
    own.chain(below_root).find(has_memory).map(|dir| dir.join(SWAP_LIMIT).exists())
}

/// Whether a new cgroup directly below the root of the tree has a limit of swap space. Enables the memory controller for it, as it is
/// enabled for the cgroups of pods, and removes it. False if the kernel does not allow that.
pub(crate) fn new_cgroup_limits_swap(mount: &Path) -> bool {
    // An error is ignored here: without the controller, the file is missing.
    let _ = write(&mount.join("cgroup.subtree_control"), "+memory");
    let dir = mount.join(format!("podwright-swap-check-{}", std::process::id()));
    let is_limited = match fs::create_dir(&dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => false,
        // An agent that was killed may have left the cgroup.
        Ok(()) | Err(_) => dir.join(SWAP_LIMIT).exists(),
    };
    // The cgroup is empty, so a later check can remove it too.
    let _ = fs::remove_dir(&dir);
    is_limited
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_with_the_memory_controller_shows_whether_swap_space_is_limited() {
        let mount = tempfile::tempdir().unwrap();
        let mount = mount.path();
        let has = |cgroup: &str, file: &str| {
            fs::create_dir_all(mount.join(cgroup)).unwrap();
            fs::write(mount.join(cgroup).join(file), "max").unwrap();
        };
        has("user.slice/agent.scope", "cgroup.procs");
        has(".", "cgroup.procs");
        for own in ["", "user.slice/agent.scope", "../outside"] {
            assert_eq!(limits_swap(mount, own), None, "{own}: no cgroup has the controller");
        }
        // The agent runs in the root of the tree, or outside its cgroup namespace.
        has("init.scope", "memory.max");
        assert_eq!(limits_swap(mount, ""), Some(false));
        has("init.scope", "memory.swap.max");
        for own in ["", "user.slice/agent.scope", "../outside"] {
            assert_eq!(limits_swap(mount, own), Some(true), "{own}");
        }
        // The controller is enabled above the agent's cgroup.
        has("user.slice", "memory.max");
        assert_eq!(limits_swap(mount, "user.slice/agent.scope"), Some(false));
    }

    #[test]
    fn a_new_cgroup_has_the_memory_controller_and_is_removed() {
        let mount = tempfile::tempdir().unwrap();
        let control = mount.path().join("cgroup.subtree_control");
        fs::write(&control, "").unwrap();
        assert!(!new_cgroup_limits_swap(mount.path()), "a directory gets no file of the kernel");
        assert_eq!(fs::read_to_string(&control).unwrap(), "+memory");
        assert_eq!(fs::read_dir(mount.path()).unwrap().count(), 1);
        assert!(!new_cgroup_limits_swap(&mount.path().join("missing")));
    }
}
