//! The cgroups of pods. Everything here blocks.
//!
//! With the cgroup driver cgroupfs they are directories of the cgroup file system. [`slices`] describes them with the driver
//! systemd.
//!
//! ```text
//! ROOT/kubepods                    all pods; CPU shares for all CPUs of the machine
//! ROOT/kubepods/pod<UID>           a guaranteed pod, with its limits
//! ROOT/kubepods/burstable          CPU shares for the sum of its pods' CPU requests
//! ROOT/kubepods/burstable/pod<UID>
//! ROOT/kubepods/besteffort         the minimum of CPU shares
//! ROOT/kubepods/besteffort/pod<UID>
//! ```
//!
//! Cgroup version 1 has this tree once for each controller. The adapter creates the cgroups of the controllers `cpu` and
//! `memory`; the runtime creates the others. When the last pod in a cgroup is removed, the cgroup of its class, `kubepods` and the
//! agent's default root are removed too.

mod leftovers;
mod pod_limits;
mod resize;
mod slices;
mod swap;
mod systemd;

use std::collections::HashMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use podwright_host::stats::CgroupTree;
use podwright_model::ids::PodUid;
use podwright_model::pod::PodObject;
use podwright_ports::CgroupError;

use self::leftovers::remove_cgroup;
pub(super) use self::swap::{limits_swap, new_cgroup_limits_swap};
use self::systemd::{Slices, Systemd};
use super::config::limits::{self, Bounds, CgroupSetting};
use super::config::{CgroupDriver, CgroupVersion, Cgroups};
use super::settings::CGROUP_ROOT;

/// The mount point of the cgroup file system.
pub(super) const ROOT: &str = "/sys/fs/cgroup";
/// The controllers of version 1 in which pods have limits.
const LIMITED: [&str; 2] = ["cpu", "memory"];

/// Creates and removes the cgroups of pods, if the kernel allows it.
#[derive(Debug)]
pub(super) struct CgroupTrees {
    mount: PathBuf,
    /// Whether the kernel allows the creation of cgroups. `None` until it was tried. Locked while cgroups are created.
    allowed: Mutex<Option<bool>>,
    /// The CPU requests of the burstable pods, in thousandths of a CPU.
    burstable: Mutex<HashMap<PodUid, i64>>,
    slices: Box<dyn Slices>,
}

impl Default for CgroupTrees {
    fn default() -> Self {
        CgroupTrees::at(Path::new(ROOT))
    }
}

impl CgroupTrees {
    /// The cgroups of the file system that is mounted at `mount`.
    fn at(mount: &Path) -> Self {
        CgroupTrees {
            mount: mount.to_owned(),
            allowed: Mutex::default(),
            burstable: Mutex::default(),
            slices: Box::new(Systemd::default()),
        }
    }

    /// The cgroups of the machine.
    pub(super) fn tree(&self) -> CgroupTree {
        CgroupTree::at(&self.mount)
    }

    /// Whether the agent creates the cgroups of pods. If not, the runtime creates them, without limits for pods as a whole.
    fn is_managed(&self, cgroups: &Cgroups) -> bool {
        cgroups.shared && *self.allowed.lock() != Some(false)
    }

    /// Whether the pod has its cgroup. True if the agent cannot create cgroups, so that no pod is stopped because its cgroup is
    /// missing. Also adds the pod to the CPU shares of its class. The shares thus include pods that an earlier agent process
    /// started.
    pub(super) fn exists(&self, cgroups: &Cgroups, pod: &PodObject) -> bool {
        if !self.is_managed(cgroups) {
            return true;
        }
        self.add_to_class(cgroups, pod);
        let path = cgroups.of_pod(pod);
        if cgroups.driver == CgroupDriver::Systemd {
            return self.slice_exists(cgroups, &path);
        }
        let missing = self.limited(cgroups.version).into_iter().map(|(_, tree)| below(&tree, &path));
        let missing: Vec<PathBuf> = missing.filter(|dir| !dir.is_dir()).collect();
        missing.is_empty() || !self.may_create(&missing)
    }

    /// Whether the kernel allows the creation of these cgroups.
    fn may_create(&self, dirs: &[PathBuf]) -> bool {
        let mut allowed = self.allowed.lock();
        *allowed.get_or_insert_with(|| {
            let denied = dirs.iter().find_map(|dir| try_create(dir).err().filter(|(_, error)| is_denied(error)));
            if let Some((path, error)) = &denied {
                log_denied(path, error);
            }
            denied.is_none()
        })
    }

    fn add_to_class(&self, cgroups: &Cgroups, pod: &PodObject) {
        if let Some(millis) = limits::burstable_request(pod)
            && self.burstable.lock().insert(pod.uid().clone(), millis) != Some(millis)
        {
            self.update_burstable_shares(cgroups);
        }
    }

    /// Creates the pod's cgroup and its parents, and sets their limits. If the kernel does not allow it, logs a warning once and
    /// succeeds: pods then run without limits as a whole. `all` are the bounds of all pods.
    pub(super) fn create(&self, cgroups: &Cgroups, all: Bounds, pod: &PodObject) -> Result<(), CgroupError> {
        if !self.is_managed(cgroups) {
            return Ok(());
        }
        if cgroups.driver == CgroupDriver::Systemd {
            self.create_slices(cgroups, all, pod)?;
            self.burstable.lock().remove(pod.uid());
            self.add_to_class(cgroups, pod);
            return Ok(());
        }
        let mut allowed = self.allowed.lock();
        match self.create_with_limits(cgroups, all, pod) {
            Err((path, error)) if is_denied(&error) => {
                if allowed.replace(false) != Some(false) {
                    log_denied(&path, &error);
                }
                Ok(())
            }
            result => result.map_err(io_error),
        }
    }

    fn create_with_limits(
        &self,
        cgroups: &Cgroups,
        bounds: Bounds,
        pod: &PodObject,
    ) -> Result<(), (PathBuf, io::Error)> {
        let (version, path) = (cgroups.version, cgroups.of_pod(pod));
        let all = cgroups.all_pods();
        let share = limits::share(version, bounds.cpu_request);
        let best_effort = limits::share(version, 0);
        let own_root = cgroups.root == CGROUP_ROOT;
        for (controller, tree) in self.limited(version) {
            let of_all = below(&tree, &all);
            let mut dir = tree.clone();
            for name in path.split('/').filter(|name| !name.is_empty()) {
                enable_controllers(version, &dir);
                dir.push(name);
                // The shares of the pods also apply to the parents of `kubepods` that are created here. The shares of a parent
                // that exists belong to its owner. An exception is the agent's own root: an agent that was killed may have
                // created it without setting its shares.
                let created = create_dir(&dir)?;
                if (created || own_root)
                    && of_all.starts_with(&dir)
                    && controller.is_none_or(|it| it == share.controller)
                {
                    set(&dir, &share)?;
                }
            }
            // The cgroup of a QoS class is created with the first pod of the class.
            let parents = [(all.clone(), share.clone()), (format!("{all}/besteffort"), best_effort.clone())];
            let parents = parents.into_iter().filter(|(at, _)| path.starts_with(&format!("{at}/")));
            let own = limits::settings(version, Bounds::of_pod(pod)).into_iter().map(|setting| (path.clone(), setting));
            for (at, setting) in
                parents.chain(own).filter(|(_, setting)| controller.is_none_or(|it| it == setting.controller))
            {
                set(&below(&tree, &at), &setting)?;
            }
        }
        self.limit_all_pods(cgroups, bounds);
        self.burstable.lock().remove(pod.uid());
        self.add_to_class(cgroups, pod);
        Ok(())
    }

    /// Sets the limits of all pods together. A failure is logged and does not stop the pod: the kernel refuses a limit of version
    /// 1 below what the pods use at the time.
    fn limit_all_pods(&self, cgroups: &Cgroups, bounds: Bounds) {
        for (controller, tree) in self.limited(cgroups.version) {
            let dir = below(&tree, &cgroups.all_pods());
            for setting in limits::settings(cgroups.version, bounds) {
                if controller.is_none_or(|it| it == setting.controller)
                    && let Err((path, error)) = set(&dir, &setting)
                {
                    tracing::warn!(path = %path.display(), %error, "cannot enforce the node's allocatable resources on its pods");
                }
            }
        }
    }

    /// Sets the CPU shares of the burstable class from the sum of its pods' CPU requests. If the cgroup of the class does not
    /// exist yet, its shares are set when the first pod creates it.
    fn update_burstable_shares(&self, cgroups: &Cgroups) {
        let millis = self.burstable.lock().values().sum();
        if cgroups.driver == CgroupDriver::Systemd {
            return self.update_burstable_slice(cgroups, millis);
        }
        let share = limits::share(cgroups.version, millis);
        for (controller, tree) in self.limited(cgroups.version) {
            let dir = below(&tree, &format!("{}/burstable", cgroups.all_pods()));
            if controller.is_none_or(|it| it == share.controller)
                && dir.is_dir()
                && let Err((path, error)) = set(&dir, &share)
            {
                tracing::debug!(path = %path.display(), %error, "cannot set the CPU shares of the burstable class");
            }
        }
    }

    /// Removes the cgroups of a pod, and kills the processes that are left in them.
    pub(super) fn remove(&self, cgroups: &Cgroups, uid: &PodUid) -> Result<(), CgroupError> {
        let text = uid.to_string();
        if !self.is_managed(cgroups) || text.contains('/') {
            return Ok(());
        }
        if cgroups.driver == CgroupDriver::Systemd {
            self.remove_slices(cgroups, uid)?;
        } else {
            for tree in self.all(cgroups.version) {
                for path in cgroups.of_uid(&text) {
                    remove_cgroup(&below(&tree, &path)).map_err(io_error)?;
                }
            }
        }
        self.remove_empty_parents(cgroups);
        if self.burstable.lock().remove(uid).is_some() {
            self.update_burstable_shares(cgroups);
        }
        Ok(())
    }

    /// Removes the cgroups of a pod that have neither processes nor child cgroups. The kernel refuses to remove the others.
    pub(super) fn remove_empty(&self, cgroups: &Cgroups, uid: &str) {
        if !self.is_managed(cgroups) || uid.contains('/') {
            return;
        }
        for path in cgroups.of_uid(uid) {
            self.remove_if_empty(cgroups, &path);
        }
        self.remove_empty_parents(cgroups);
    }

    /// Removes the cgroups of the QoS classes, `kubepods` and the agent's default root, if no pod has a cgroup in them.
    fn remove_empty_parents(&self, cgroups: &Cgroups) {
        // A creation must not lose the parents that it has just found.
        let _creation = self.allowed.lock();
        let classes = ["burstable", "besteffort"].map(|class| cgroups.of_class(class));
        for path in classes.into_iter().chain([cgroups.all_pods()]) {
            self.remove_if_empty(cgroups, &path);
        }
        // Another root may be the operator's.
        if cgroups.root == CGROUP_ROOT {
            self.remove_if_empty(cgroups, &cgroups.of_root());
        }
    }

    /// Removes a cgroup that has neither processes nor child cgroups.
    fn remove_if_empty(&self, cgroups: &Cgroups, path: &str) {
        if cgroups.driver == CgroupDriver::Systemd {
            return self.stop_empty_slice(cgroups, path);
        }
        // A pod that is being created has its cgroup in these trees first. The runtime may not have created those in the others.
        let is_removed = |(_, tree): (_, PathBuf)| match fs::remove_dir(below(&tree, path)) {
            Ok(()) => true,
            Err(error) => error.kind() == ErrorKind::NotFound,
        };
        if self.limited(cgroups.version).into_iter().all(is_removed) {
            for tree in self.all(cgroups.version) {
                // Errors are expected: the cgroup may not exist, and trees may be links to each other.
                let _ = fs::remove_dir(below(&tree, path));
            }
        }
    }

    /// The trees in which limits are set, with the controller in version 1: the one tree of version 2, or the trees of the
    /// controllers in [`LIMITED`] that exist.
    fn limited(&self, version: CgroupVersion) -> Vec<(Option<&'static str>, PathBuf)> {
        match version {
            CgroupVersion::V2 { .. } => vec![(None, self.mount.clone())],
            CgroupVersion::V1 { .. } => {
                let trees = LIMITED.into_iter().map(|controller| (Some(controller), self.mount.join(controller)));
                trees.filter(|(_, tree)| tree.is_dir()).collect()
            }
        }
    }

    /// All trees: the one tree of version 2, or one for each controller.
    fn all(&self, version: CgroupVersion) -> Vec<PathBuf> {
        match version {
            CgroupVersion::V2 { .. } => vec![self.mount.clone()],
            CgroupVersion::V1 { .. } => {
                fs::read_dir(&self.mount).into_iter().flatten().flatten().map(|tree| tree.path()).collect()
            }
        }
    }
}

fn below(tree: &Path, path: &str) -> PathBuf {
    tree.join(path.trim_start_matches('/'))
}

fn is_denied(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
}

fn log_denied(path: &Path, error: &io::Error) {
    tracing::warn!(path = %path.display(), %error, "not allowed to create cgroups: pods have no limits as a whole");
}

fn io_error((path, error): (PathBuf, io::Error)) -> CgroupError {
    CgroupError::io(path, error)
}

/// Creates a directory. Returns false if it exists already.
fn create_dir(path: &Path) -> Result<bool, (PathBuf, io::Error)> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        result => result.map(|()| true).map_err(|error| (path.to_owned(), error)),
    }
}

/// Checks whether a cgroup can be created: creates its topmost missing parent, or the cgroup itself, and removes it again.
fn try_create(dir: &Path) -> Result<(), (PathBuf, io::Error)> {
    let missing = dir.ancestors().take_while(|dir| !dir.is_dir()).last();
    if let Some(missing) = missing
        && create_dir(missing)?
    {
        // The removal fails if another process has created a cgroup in it, which is then kept.
        let _ = fs::remove_dir(missing);
    }
    Ok(())
}

/// Enables the controllers for the child cgroups of `dir`. Only version 2 needs this.
fn enable_controllers(version: CgroupVersion, dir: &Path) {
    if matches!(version, CgroupVersion::V1 { .. }) {
        return;
    }
    let available = fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
    for controller in available.split_whitespace() {
        // An error is ignored here: if the controller is needed, its limit file is missing, which `set` logs.
        let _ = fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"));
    }
}

/// Writes a limit. If the controller is not enabled, the file does not exist and pods run without this limit.
fn set(dir: &Path, setting: &CgroupSetting) -> Result<(), (PathBuf, io::Error)> {
    let path = dir.join(&*setting.file);
    match write(&path, &setting.value) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            tracing::debug!(path = %path.display(), "the cgroup controller of a limit is not enabled");
            Ok(())
        }
        result => result.map_err(|error| (path, error)),
    }
}

/// Writes a file of the kernel. A file that does not exist is not created.
fn write(path: &Path, value: &str) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).truncate(true).open(path)?;
    io::Write::write_all(&mut file, value.as_bytes())
}

#[cfg(test)]
mod tests;
