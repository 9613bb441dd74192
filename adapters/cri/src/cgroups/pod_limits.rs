//! The limits of a pod as a whole that are in trees of their own in cgroup version 1: huge pages, and processes.

use std::io::{self, ErrorKind};
use std::num::NonZeroU64;
use std::path::PathBuf;

use podwright_host::step_error::StepError;
use podwright_model::pod::PodObject;
use podwright_ports::CgroupError;

use super::{CgroupTrees, create_dir, enable_controllers, io_error, is_denied, set, write};
use crate::config::{CgroupDriver, CgroupVersion, Cgroups, limits};

/// The controller of version 1 that limits huge pages. The kernel may lack it.
const HUGE_PAGES: &str = "hugetlb";
/// The controller of version 1 that limits processes.
const PROCESSES: &str = "pids";

impl CgroupTrees {
    /// Sets the limits of huge pages in the pod's cgroup, for all page sizes in bytes that the kernel limits. systemd has no
    /// property for them, so their files are written with both drivers (as libcontainer does for the kubelet).
    pub(crate) fn limit_huge_pages(
        &self,
        cgroups: &Cgroups,
        sizes: &[u64],
        pod: &PodObject,
    ) -> Result<(), CgroupError> {
        if sizes.is_empty() || !self.is_managed(cgroups) {
            return Ok(());
        }
        // Without the cgroup, the runtime creates it, without a limit of the pod as a whole.
        let Some(dir) = self.make_dir(cgroups, HUGE_PAGES, pod)? else { return Ok(()) };
        let settings = limits::huge_pages(cgroups.version, sizes, pod);
        settings.iter().try_for_each(|setting| set(&dir, setting)).map_err(io_error)
    }

    /// Sets the limit of processes and threads of the pod's cgroup.
    ///
    /// # Errors
    /// [`CgroupError`] if the kernel cannot limit them: the operator relies on the limit, so the pod does not start without it.
    pub(crate) fn limit_processes(
        &self,
        cgroups: &Cgroups,
        most: NonZeroU64,
        pod: &PodObject,
    ) -> Result<(), CgroupError> {
        if !self.is_managed(cgroups) {
            return Ok(());
        }
        if cgroups.driver == CgroupDriver::Systemd {
            return self.limit_processes_of_slice(cgroups, most, pod);
        }
        let tree = self.tree_of(cgroups.version, PROCESSES);
        if !tree.is_dir() {
            return Err(not_limited(tree, ErrorKind::NotFound.into()));
        }
        let Some(dir) = self.make_dir(cgroups, PROCESSES, pod)? else { return Ok(()) };
        let setting = limits::processes(most);
        let path = dir.join(&*setting.file);
        write(&path, &setting.value).map_err(|error| not_limited(path, error))
    }

    /// Creates the pod's cgroup in the tree of a controller, or finds it. `None` if the kernel does not allow it.
    fn make_dir(&self, cgroups: &Cgroups, controller: &str, pod: &PodObject) -> Result<Option<PathBuf>, CgroupError> {
        let path = cgroups.of_pod(pod);
        let mut dir = self.tree_of(cgroups.version, controller);
        // While this lock is held, no other task removes an empty parent of the new cgroup.
        let _creation = self.allowed.lock();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            enable_controllers(cgroups.version, &dir);
            dir.push(name);
            match create_dir(&dir) {
                Err((_, error)) if is_denied(&error) => return Ok(None),
                created => created.map_err(io_error)?,
            };
        }
        Ok(Some(dir))
    }

    /// The tree of a controller: a tree of its own in version 1, and the one tree in version 2.
    fn tree_of(&self, version: CgroupVersion, controller: &str) -> PathBuf {
        match version {
            CgroupVersion::V1 { .. } => self.mount.join(controller),
            CgroupVersion::V2 { .. } => self.mount.clone(),
        }
    }
}

fn not_limited(path: PathBuf, error: io::Error) -> CgroupError {
    let step = "cannot limit the processes of the pod, enable the cgroup controller pids of the kernel or remove --pod-max-pids";
    CgroupError::io(path, StepError::new(step, error))
}
