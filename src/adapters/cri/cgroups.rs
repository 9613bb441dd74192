//! The cgroups of pods in the file system of the kernel. Everything here blocks.
//!
//! ```text
//! ROOT/kubepods                    all pods; shares by the machine's processors
//! ROOT/kubepods/pod<UID>           a guaranteed pod, with its limits
//! ROOT/kubepods/burstable          shares by what its pods ask for together
//! ROOT/kubepods/burstable/pod<UID>
//! ROOT/kubepods/besteffort         gets what is left
//! ROOT/kubepods/besteffort/pod<UID>
//! ```
//!
//! In version 1 that is so in each controller's tree; only those with a limit are made here, and the runtime makes the rest.
//! Slices are systemd's to make and to remove: where it is the driver the runtime has it make them, without limits.

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

use super::config::limits::{self, Setting};
use super::config::{Cgroups, Driver, Version};
use super::settings::CGROUP_ROOT;

/// Where the node has them.
pub(super) const ROOT: &str = "/sys/fs/cgroup";
/// The controllers of version 1 in which pods have limits.
const LIMITED: [&str; 2] = ["cpu", "memory"];

/// How often processes are killed that are left in the cgroup of a pod that is over, and how long each gets to be gone. One
/// that is stuck in the kernel is left to the next try of the whole.
const KILLS: u32 = 10;
const GONE_WITHIN: Duration = Duration::from_millis(200);

/// Makes and removes them, as long as that is allowed.
#[derive(Debug)]
pub(super) struct Trees {
    mount: PathBuf,
    /// Whether the system lets us, once that was seen. Held while one is made.
    allowed: Mutex<Option<bool>>,
    /// What the pods of the burstable class ask for, in thousandths of a core.
    burstable: Mutex<HashMap<PodUid, i64>>,
}

impl Default for Trees {
    fn default() -> Self {
        Trees::at(Path::new(ROOT))
    }
}

impl Trees {
    /// Those of a file system that is mounted there.
    fn at(mount: &Path) -> Self {
        Trees { mount: mount.to_owned(), allowed: Mutex::default(), burstable: Mutex::default() }
    }

    /// Whether they are made here.
    fn is_ours(&self, cgroups: &Cgroups) -> bool {
        cgroups.driver == Driver::Cgroupfs && cgroups.shared && *self.allowed.lock() != Some(false)
    }

    /// Whether the pod has its cgroup. Also notes what it asks for, so that its class gets a share for all its pods, those of
    /// an earlier agent too.
    pub(super) fn exists(&self, cgroups: &Cgroups, pod: &PodObject) -> bool {
        if !self.is_ours(cgroups) {
            return true;
        }
        self.note(cgroups, pod);
        let path = cgroups.of_pod(pod);
        let missing = self.limited(cgroups.version).into_iter().map(|(_, tree)| below(&tree, &path));
        let missing: Vec<PathBuf> = missing.filter(|dir| !dir.is_dir()).collect();
        missing.is_empty() || !self.may_make(&missing)
    }

    /// Whether cgroups that are not there are missing: nobody who runs without does so for want of one that cannot be made.
    fn may_make(&self, dirs: &[PathBuf]) -> bool {
        let mut allowed = self.allowed.lock();
        *allowed.get_or_insert_with(|| {
            let refused = dirs.iter().find_map(|dir| tried(dir).err().filter(|(_, error)| is_refusal(error)));
            if let Some((path, error)) = &refused {
                tell_refusal(path, error);
            }
            refused.is_none()
        })
    }

    fn note(&self, cgroups: &Cgroups, pod: &PodObject) {
        if let Some(millis) = limits::adds_to_burstable(pod)
            && self.burstable.lock().insert(pod.uid().clone(), millis) != Some(millis)
        {
            self.share_of_burstable(cgroups);
        }
    }

    /// Makes the pod's cgroup and those above it, with what they are limited to. That it is not allowed is told once, and no
    /// error: pods run without.
    pub(super) fn make(&self, cgroups: &Cgroups, cpu_millis: i64, pod: &PodObject) -> Result<(), CgroupError> {
        if !self.is_ours(cgroups) {
            return Ok(());
        }
        let mut allowed = self.allowed.lock();
        match self.try_make(cgroups, cpu_millis, pod) {
            Err((path, error)) if is_refusal(&error) => {
                if allowed.replace(false) != Some(false) {
                    tell_refusal(&path, &error);
                }
                Ok(())
            }
            made => made.map_err(io_error),
        }
    }

    fn try_make(&self, cgroups: &Cgroups, cpu_millis: i64, pod: &PodObject) -> Result<(), (PathBuf, io::Error)> {
        let (version, path) = (cgroups.version, cgroups.of_pod(pod));
        let all = cgroups.all_pods();
        let share = limits::share(version, cpu_millis);
        let best_effort = limits::share(version, 0);
        let own_root = cgroups.root == CGROUP_ROOT;
        for (controller, tree) in self.limited(version) {
            let of_all = below(&tree, &all);
            let mut dir = tree.clone();
            for name in path.split('/').filter(|name| !name.is_empty()) {
                delegate(version, &dir);
                dir.push(name);
                // What is made for the pods has what they have. What was there is somebody else's to share out, but for the
                // agents' own: whoever made it may have ended before it had its share.
                let made = make_dir(&dir)?;
                if (made || own_root) && of_all.starts_with(&dir) && controller.is_none_or(|it| it == share.controller)
                {
                    set(&dir, &share)?;
                }
            }
            // A class is made with its first pod.
            let above = [(all.clone(), share.clone()), (format!("{all}/besteffort"), best_effort.clone())];
            let above = above.into_iter().filter(|(at, _)| path.starts_with(&format!("{at}/")));
            let own = limits::of_pod(version, pod).into_iter().map(|setting| (path.clone(), setting));
            for (at, setting) in
                above.chain(own).filter(|(_, setting)| controller.is_none_or(|it| it == setting.controller))
            {
                set(&below(&tree, &at), &setting)?;
            }
        }
        self.burstable.lock().remove(pod.uid());
        self.note(cgroups, pod);
        Ok(())
    }

    /// What the pods of the class ask for together is what the class gets. One that is not there yet gets it with its first
    /// pod.
    fn share_of_burstable(&self, cgroups: &Cgroups) {
        let millis = self.burstable.lock().values().sum();
        let share = limits::share(cgroups.version, millis);
        for (controller, tree) in self.limited(cgroups.version) {
            let dir = below(&tree, &format!("{}/burstable", cgroups.all_pods()));
            if controller.is_none_or(|it| it == share.controller)
                && dir.is_dir()
                && let Err((path, error)) = set(&dir, &share)
            {
                tracing::debug!(path = %path.display(), %error, "share of the burstable class was not set");
            }
        }
    }

    /// Removes the cgroups of a pod with what is left in them.
    pub(super) fn remove(&self, cgroups: &Cgroups, uid: &PodUid) -> Result<(), CgroupError> {
        let text = uid.to_string();
        if !self.is_ours(cgroups) || text.contains('/') {
            return Ok(());
        }
        for tree in self.all(cgroups.version) {
            for path in cgroups.of_uid(&text) {
                remove_cgroup(&below(&tree, &path)).map_err(io_error)?;
            }
        }
        if self.burstable.lock().remove(uid).is_some() {
            self.share_of_burstable(cgroups);
        }
        Ok(())
    }

    /// Removes what is left of a pod's cgroup if nothing is in it: the kernel removes none that has another one or a process
    /// in it.
    pub(super) fn remove_empty(&self, cgroups: &Cgroups, uid: &str) {
        if cgroups.driver != Driver::Cgroupfs || uid.contains('/') {
            return;
        }
        for tree in self.all(cgroups.version) {
            for path in cgroups.of_uid(uid) {
                // Two of the three are not there, and of trees that are one only the first try finds something.
                let _ = fs::remove_dir(below(&tree, &path));
            }
        }
    }

    /// Where limits are set: the one tree of version 2, or those of the controllers that there are.
    fn limited(&self, version: Version) -> Vec<(Option<&'static str>, PathBuf)> {
        match version {
            Version::V2 { .. } => vec![(None, self.mount.clone())],
            Version::V1 { .. } => {
                let trees = LIMITED.into_iter().map(|controller| (Some(controller), self.mount.join(controller)));
                trees.filter(|(_, tree)| tree.is_dir()).collect()
            }
        }
    }

    /// One of version 2, or one for each controller.
    fn all(&self, version: Version) -> Vec<PathBuf> {
        match version {
            Version::V2 { .. } => vec![self.mount.clone()],
            Version::V1 { .. } => {
                fs::read_dir(&self.mount).into_iter().flatten().flatten().map(|tree| tree.path()).collect()
            }
        }
    }
}

fn below(tree: &Path, path: &str) -> PathBuf {
    tree.join(path.trim_start_matches('/'))
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
}

fn tell_refusal(path: &Path, error: &io::Error) {
    tracing::warn!(path = %path.display(), %error, "may not make cgroups: pods have no limits as a whole");
}

fn io_error((path, error): (PathBuf, io::Error)) -> CgroupError {
    CgroupError::Io { path, error: error.to_string() }
}

/// Whether it was not there.
fn make_dir(path: &Path) -> Result<bool, (PathBuf, io::Error)> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        made => made.map(|()| true).map_err(|error| (path.to_owned(), error)),
    }
}

/// Tries whether a cgroup could be made: makes the first that is not there on the way to it, and removes that again.
fn tried(dir: &Path) -> Result<(), (PathBuf, io::Error)> {
    let missing = dir.ancestors().take_while(|dir| !dir.is_dir()).last();
    if let Some(missing) = missing
        && make_dir(missing)?
    {
        // Where another made one in it meanwhile it stays.
        let _ = fs::remove_dir(missing);
    }
    Ok(())
}

/// Lets the cgroups below this one have limits: in version 2 each has to be told so.
fn delegate(version: Version, dir: &Path) {
    if matches!(version, Version::V1 { .. }) {
        return;
    }
    let there = fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
    for controller in there.split_whitespace() {
        // One that cannot be had shows where its limit is set.
        let _ = fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"));
    }
}

/// Sets a limit. One for which there is no controller cannot be set, and pods run without.
fn set(dir: &Path, setting: &Setting) -> Result<(), (PathBuf, io::Error)> {
    let path = dir.join(setting.file);
    match fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(&path)
        .and_then(|mut file| io::Write::write_all(&mut file, setting.value.as_bytes()))
    {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            tracing::debug!(path = %path.display(), "no such limit here");
            Ok(())
        }
        set => set.map_err(|error| (path, error)),
    }
}

/// Removes a cgroup with those below it, and kills what runs in them.
fn remove_cgroup(dir: &Path) -> Result<(), (PathBuf, io::Error)> {
    let failed = |error| (dir.to_owned(), error);
    let below = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    for entry in below.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path())?;
        }
    }
    for _ in 0..KILLS {
        match fs::remove_dir(dir) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {}
            Err(error) => return Err(failed(error)),
        }
        for pid in processes(dir) {
            end(dir, pid);
        }
    }
    let left = processes(dir).iter().take(3).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    Err(failed(io::Error::new(ErrorKind::ResourceBusy, format!("in use by processes that do not end: {left}"))))
}

/// The processes in a cgroup.
fn processes(dir: &Path) -> Vec<Pid> {
    let list = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    list.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect()
}

/// Kills a process of a cgroup and waits until it is gone. It may have ended by itself.
fn end(dir: &Path, pid: Pid) {
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    // Only now the number is sure to be that of the process that was listed.
    if !processes(dir).contains(&pid) {
        return;
    }
    tracing::warn!(path = %dir.display(), %pid, "killing what is left in the cgroup of a pod that is over");
    let _ = pidfd_send_signal(&process, Signal::KILL);
    let limit = Timespec::try_from(GONE_WITHIN).ok();
    let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], limit.as_ref());
}

#[cfg(test)]
mod tests;
