//! Pod cgroups as slices of systemd.
//!
//! ```text
//! podwright.slice                                       the cgroup root; CPU weight for all CPUs
//! podwright-kubepods.slice                              all pods; the node's allocatable memory
//! podwright-kubepods-pod<UID>.slice                     a guaranteed pod, with its limits
//! podwright-kubepods-burstable.slice                    CPU weight for the sum of its pods' CPU requests
//! podwright-kubepods-burstable-pod<UID>.slice
//! podwright-kubepods-besteffort.slice                   the minimum of CPU weight
//! podwright-kubepods-besteffort-pod<UID>.slice
//! ```
//!
//! The runtime creates a scope for each container in the slice of its pod. If it creates the scope of a container whose slice
//! does not exist, systemd creates the slice without limits.

use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use podwright_model::ids::PodUid;
use podwright_model::pod::PodObject;
use podwright_model::text::error_chain;
use podwright_ports::CgroupError;

use super::leftovers::{children, kill_processes, remove_cgroup};
use super::systemd::SliceError;
use super::{CgroupTrees, below, io_error};
use crate::config::limits::{Bounds, processes_of_slice, slice_properties};
use crate::config::{CgroupVersion, Cgroups};
use crate::settings::CGROUP_ROOT;

/// The tree of cgroup version 1 in which systemd has a cgroup for each unit.
const SYSTEMD_TREE: &str = "systemd";

impl CgroupTrees {
    /// Whether the slice of this path exists. True if the agent cannot use systemd.
    pub(super) fn slice_exists(&self, cgroups: &Cgroups, path: &str) -> bool {
        if self.slice_dir(cgroups.version, path).is_dir() {
            return true;
        }
        let mut allowed = self.allowed.lock();
        if let (None, Err(error @ SliceError::Denied(_))) = (*allowed, self.slices.connect()) {
            log_denied(&error);
            *allowed = Some(false);
        }
        *allowed == Some(false)
    }

    /// Creates the pod's slice and its parents, and sets their limits. If the agent may not use systemd, logs a warning once
    /// and succeeds.
    pub(super) fn create_slices(&self, cgroups: &Cgroups, all: Bounds, pod: &PodObject) -> Result<(), CgroupError> {
        let mut allowed = self.allowed.lock();
        match self.create_slices_with_limits(cgroups, all, pod) {
            Err(error @ SliceError::Denied(_)) => {
                log_denied(&error);
                *allowed = Some(false);
                Ok(())
            }
            result => Ok(result?),
        }
    }

    fn create_slices_with_limits(&self, cgroups: &Cgroups, all: Bounds, pod: &PodObject) -> Result<(), SliceError> {
        let (path, of_all) = (cgroups.of_pod(pod), cgroups.all_pods());
        let own_root = cgroups.root == CGROUP_ROOT;
        for (at, name) in slices(&path) {
            let exists = self.slice_dir(cgroups.version, at).is_dir();
            let bounds = if at == path {
                Bounds::of_pod(pod)
            } else if at == of_all {
                all
            } else if at.ends_with("-besteffort.slice") {
                Bounds::of_class(0)
            } else if at.ends_with("-burstable.slice") {
                Bounds::of_class(self.burstable.lock().values().sum())
            } else if exists && !own_root {
                // The weight of a parent that exists belongs to its owner.
                continue;
            } else {
                Bounds::of_class(all.cpu_request)
            };
            let properties = slice_properties(cgroups.version, bounds);
            if exists {
                self.slices.change(name, &properties)?;
            } else {
                self.slices.start(name, &properties)?;
            }
        }
        Ok(())
    }

    /// Sets the limit of processes and threads of the pod's slice.
    pub(super) fn limit_processes_of_slice(
        &self,
        cgroups: &Cgroups,
        most: NonZeroU64,
        pod: &PodObject,
    ) -> Result<(), CgroupError> {
        let path = cgroups.of_pod(pod);
        let name = path.rsplit('/').next().unwrap_or_default();
        Ok(self.slices.change(name, &[processes_of_slice(most)])?)
    }

    /// Sets the CPU weight of the burstable slice, if the slice exists.
    pub(super) fn update_burstable_slice(&self, cgroups: &Cgroups, millis: i64) {
        let path = cgroups.of_class("burstable");
        if !self.slice_dir(cgroups.version, &path).is_dir() {
            return;
        }
        let properties = slice_properties(cgroups.version, Bounds::of_class(millis));
        if let Some((_, name)) = slices(&path).last()
            && let Err(error) = self.slices.change(name, &properties)
        {
            tracing::debug!(slice = name, error = %error_chain(&error), "cannot set the CPU weight of the burstable class");
        }
    }

    /// Kills the processes that are left in the slices of a pod, stops the slices, and removes their cgroups.
    pub(super) fn remove_slices(&self, cgroups: &Cgroups, uid: &PodUid) -> Result<(), CgroupError> {
        for path in cgroups.of_uid(&uid.to_string()) {
            let dirs: Vec<PathBuf> = self.all(cgroups.version).iter().map(|tree| below(tree, &path)).collect();
            if !dirs.iter().any(|dir| dir.is_dir()) {
                continue;
            }
            // systemd would end the processes with SIGTERM and wait for each scope for up to 90 seconds.
            dirs.iter().try_for_each(|dir| kill_processes(dir)).map_err(io_error)?;
            let _creation = self.allowed.lock();
            self.stop_slice(&path)?;
            // systemd does not know the controllers in which only the runtime created cgroups.
            dirs.iter().try_for_each(|dir| remove_cgroup(dir)).map_err(io_error)?;
        }
        Ok(())
    }

    fn stop_slice(&self, path: &str) -> Result<(), CgroupError> {
        match slices(path).last().map(|(_, name)| self.slices.stop(name)) {
            Some(Err(SliceError::Denied(_)) | Ok(())) | None => Ok(()),
            Some(Err(error)) => Err(error.into()),
        }
    }

    /// Stops a slice that has neither processes nor child cgroups, and removes its cgroups.
    pub(super) fn stop_empty_slice(&self, cgroups: &Cgroups, path: &str) {
        let dir = self.slice_dir(cgroups.version, path);
        let is_empty = |dir: &Path| {
            children(dir).is_empty() && std::fs::read_to_string(dir.join("cgroup.procs")).is_ok_and(|it| it.is_empty())
        };
        if is_empty(&dir)
            && let Err(error) = self.stop_slice(path)
        {
            tracing::debug!(path, error = %error_chain(&error), "cannot stop an empty slice");
        }
        if matches!(cgroups.version, CgroupVersion::V1 { .. }) && !dir.is_dir() {
            // systemd removes only the cgroups that it created. The runtime created cgroups for other controllers too.
            for tree in self.all(cgroups.version) {
                // Errors are expected: the cgroup may not exist, and trees may be links to each other.
                let _ = std::fs::remove_dir(below(&tree, path));
            }
        }
    }

    fn slice_dir(&self, version: CgroupVersion, path: &str) -> PathBuf {
        match version {
            CgroupVersion::V1 { .. } => below(&self.mount.join(SYSTEMD_TREE), path),
            CgroupVersion::V2 { .. } => below(&self.mount, path),
        }
    }
}

/// The slices on a path, outermost first: the path of each, and its name.
fn slices(path: &str) -> impl Iterator<Item = (&str, &str)> {
    let ends = path.match_indices('/').map(|(at, _)| at).skip(1).chain([path.len()]);
    ends.map(|end| (&path[..end], path[..end].rsplit('/').next().unwrap_or_default()))
}

fn log_denied(error: &SliceError) {
    tracing::warn!(error = %error_chain(error), "not allowed to create slices: pods have no limits as a whole");
}
