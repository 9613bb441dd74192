//! The cgroups of pods in the cgroup file system. Everything here blocks.
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
//! `memory`; the runtime creates the others. If the cgroup driver is systemd, the runtime lets systemd create all slices, and the
//! slices of pods have no limits.

use std::collections::HashMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use podwright_actors::ids::PodUid;
use podwright_actors::pod::PodObject;
use podwright_actors::ports::CgroupError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::config::limits::{self, CgroupSetting};
use super::config::{CgroupDriver, CgroupVersion, Cgroups};
use super::settings::CGROUP_ROOT;

/// The mount point of the cgroup file system.
pub(super) const ROOT: &str = "/sys/fs/cgroup";
/// The controllers of version 1 in which pods have limits.
const LIMITED: [&str; 2] = ["cpu", "memory"];

/// How many rounds of kills the removal of a cgroup makes, and how long it waits for each killed process to end. After the last
/// round the removal fails, because a process may be stuck in the kernel. The caller retries the removal.
const KILL_ROUNDS: u32 = 10;
const EXIT_WAIT: Duration = Duration::from_millis(200);

/// Creates and removes the cgroups of pods, if the kernel allows it.
#[derive(Debug)]
pub(super) struct CgroupTrees {
    mount: PathBuf,
    /// Whether the kernel allows the creation of cgroups. `None` until it was tried. Locked while cgroups are created.
    allowed: Mutex<Option<bool>>,
    /// The CPU requests of the burstable pods, in thousandths of a CPU.
    burstable: Mutex<HashMap<PodUid, i64>>,
}

impl Default for CgroupTrees {
    fn default() -> Self {
        CgroupTrees::at(Path::new(ROOT))
    }
}

impl CgroupTrees {
    /// The cgroups of the file system that is mounted at `mount`.
    fn at(mount: &Path) -> Self {
        CgroupTrees { mount: mount.to_owned(), allowed: Mutex::default(), burstable: Mutex::default() }
    }

    /// Whether the agent creates the cgroups of pods. If not, the runtime creates them, without limits for pods as a whole.
    fn is_managed(&self, cgroups: &Cgroups) -> bool {
        cgroups.driver == CgroupDriver::Cgroupfs && cgroups.shared && *self.allowed.lock() != Some(false)
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
    /// succeeds: pods then run without limits as a whole.
    pub(super) fn create(&self, cgroups: &Cgroups, cpu_millis: i64, pod: &PodObject) -> Result<(), CgroupError> {
        if !self.is_managed(cgroups) {
            return Ok(());
        }
        let mut allowed = self.allowed.lock();
        match self.create_with_limits(cgroups, cpu_millis, pod) {
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
        cpu_millis: i64,
        pod: &PodObject,
    ) -> Result<(), (PathBuf, io::Error)> {
        let (version, path) = (cgroups.version, cgroups.of_pod(pod));
        let all = cgroups.all_pods();
        let share = limits::share(version, cpu_millis);
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
            let own = limits::of_pod(version, pod).into_iter().map(|setting| (path.clone(), setting));
            for (at, setting) in
                parents.chain(own).filter(|(_, setting)| controller.is_none_or(|it| it == setting.controller))
            {
                set(&below(&tree, &at), &setting)?;
            }
        }
        self.burstable.lock().remove(pod.uid());
        self.add_to_class(cgroups, pod);
        Ok(())
    }

    /// Sets the CPU shares of the burstable class from the sum of its pods' CPU requests. If the cgroup of the class does not
    /// exist yet, its shares are set when the first pod creates it.
    fn update_burstable_shares(&self, cgroups: &Cgroups) {
        let millis = self.burstable.lock().values().sum();
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
        for tree in self.all(cgroups.version) {
            for path in cgroups.of_uid(&text) {
                remove_cgroup(&below(&tree, &path)).map_err(io_error)?;
            }
        }
        if self.burstable.lock().remove(uid).is_some() {
            self.update_burstable_shares(cgroups);
        }
        Ok(())
    }

    /// Removes the cgroups of a pod that have neither processes nor child cgroups. The kernel refuses to remove the others.
    pub(super) fn remove_empty(&self, cgroups: &Cgroups, uid: &str) {
        if cgroups.driver != CgroupDriver::Cgroupfs || uid.contains('/') {
            return;
        }
        for tree in self.all(cgroups.version) {
            for path in cgroups.of_uid(uid) {
                // Errors are expected: the pod has a cgroup in one QoS class only, and trees may be links to each other.
                let _ = fs::remove_dir(below(&tree, &path));
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
    let path = dir.join(setting.file);
    match fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(&path)
        .and_then(|mut file| io::Write::write_all(&mut file, setting.value.as_bytes()))
    {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            tracing::debug!(path = %path.display(), "the cgroup controller of a limit is not enabled");
            Ok(())
        }
        result => result.map_err(|error| (path, error)),
    }
}

/// Removes a cgroup and its child cgroups, and kills the processes in them.
fn remove_cgroup(dir: &Path) -> Result<(), (PathBuf, io::Error)> {
    let failed = |error| (dir.to_owned(), error);
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path())?;
        }
    }
    for _ in 0..KILL_ROUNDS {
        match fs::remove_dir(dir) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {}
            Err(error) => return Err(failed(error)),
        }
        for pid in processes(dir) {
            kill(dir, pid);
        }
    }
    let left = processes(dir).iter().take(3).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    Err(failed(io::Error::new(ErrorKind::ResourceBusy, format!("these processes did not end after SIGKILL: {left}"))))
}

/// The processes in a cgroup.
fn processes(dir: &Path) -> Vec<Pid> {
    let list = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    list.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect()
}

/// Kills a process of a cgroup and waits until it has ended. Does nothing if it has ended already.
fn kill(dir: &Path, pid: Pid) {
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    // The kernel may have given the number to another process before the descriptor was opened, but not after.
    if !processes(dir).contains(&pid) {
        return;
    }
    tracing::warn!(path = %dir.display(), %pid, "killing a process that is left in the cgroup of a removed pod");
    let _ = pidfd_send_signal(&process, Signal::KILL);
    let limit = Timespec::try_from(EXIT_WAIT).ok();
    let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], limit.as_ref());
}

#[cfg(test)]
mod tests;
