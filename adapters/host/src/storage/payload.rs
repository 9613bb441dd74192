//! The content of a volume that the agent writes: a set of files that is replaced atomically.
//!
//! The files of a set are in a directory that is named after the time of its creation. The link `..data` points to that
//! directory, and readers open links that lead through `..data`. A new set is written next to the old set. Then a rename
//! replaces `..data` (upstream `AtomicWriter`, kubelet 1.36). If a write is interrupted at any step, readers see the old set
//! or the new one, and the next write removes the remains.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use jiff::Timestamp;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Uid, fchmod, fchown, fstat, mkdirat, openat, readlinkat, renameat,
    statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::fs_group::FsGroup;
use crate::{regular, tree};

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";
/// The prefix of the agent's own names in the volume. No file of a payload may have it.
const OWN_PREFIX: &[u8] = b"..";

/// The desired files of a volume, by path.
#[derive(Debug)]
pub(super) struct Payload {
    group: Option<FsGroup>,
    files: BTreeMap<PathBuf, PayloadFile>,
}

#[derive(Debug)]
struct PayloadFile {
    content: Vec<u8>,
    mode: u32,
    /// The owner, if it is not the agent's user.
    owner: Option<Uid>,
}

impl Payload {
    /// A payload without files. The files that are added belong to the group.
    pub(super) fn of(group: Option<FsGroup>) -> Self {
        Payload { group, files: BTreeMap::new() }
    }

    /// Adds a file, or replaces the file at the same path. The file belongs to `owner`, or to the agent's user if there is no owner, or if
    /// the agent is not root: then containers run as the agent's user.
    ///
    /// # Errors
    /// The reason, if the path leads out of the volume or has the prefix of the agent's own names.
    pub(super) fn add(
        &mut self,
        path: &str,
        content: impl Into<Vec<u8>>,
        mode: u32,
        owner: Option<u32>,
    ) -> Result<(), String> {
        let parts = Path::new(path).components().filter(|part| *part != Component::CurDir);
        let inside = parts.clone().all(|part| matches!(part, Component::Normal(_)));
        let file: PathBuf = parts.collect();
        if file.as_os_str().is_empty()
            || !inside
            || file.as_os_str().as_bytes().starts_with(OWN_PREFIX)
            || path.contains('\0')
        {
            return Err(format!("path {path:?} leaves the volume: use a relative path without '..'"));
        }
        // Containers only read the volume.
        let mode = self.group.map_or(mode, |group| group.file_mode(mode)) & !0o022;
        let owner = owner.filter(|_| rustix::process::geteuid().is_root()).map(Uid::from_raw);
        self.files.insert(file, PayloadFile { content: content.into(), mode, owner });
        Ok(())
    }

    /// Makes the directory contain exactly these files. Writes nothing if it already does. Only this process's user may write to
    /// the directory afterwards.
    ///
    /// Every step goes from an open directory to a name in it, and follows no link. Containers of an agent that is not root run as
    /// the agent's user, and those of an earlier version could write to the directory: they may have put anything there.
    pub(super) fn write(&self, dir: &Path) -> io::Result<()> {
        // A container may have removed the owner's permissions, which every user except root needs.
        tree::restore_owner_access(dir)?;
        let volume = open_volume(dir)?;
        if let Some(group) = self.group {
            fchown(&volume, None, Some(group.gid()))?;
        }
        set_mode(&volume, self.group.map_or(OPEN_MODE, |_| GROUP_MODE))?;
        let current = link_target(&volume, DATA.as_ref()).filter(|set| is_set_name(set));
        let set = match current {
            Some(set) if self.is_current(&volume, &set)? => set,
            _ => {
                let name = self.write_set(&volume)?;
                tree::remove(&dir.join(NEW_DATA))?;
                symlinkat(&name, &volume, NEW_DATA)?;
                if let Err(error) = renameat(&volume, NEW_DATA, &volume, DATA) {
                    if error != Errno::ISDIR {
                        return Err(error.into());
                    }
                    tree::remove(&dir.join(DATA))?;
                    renameat(&volume, NEW_DATA, &volume, DATA)?;
                }
                name
            }
        };
        self.link(&volume, dir)?;
        remove_unused(&volume, dir, &set)
    }

    /// Whether the current set has exactly these files. If a container has made the set unreadable, it has to be written
    /// again.
    fn is_current(&self, volume: &OwnedFd, set: &Path) -> io::Result<bool> {
        let mut found = 0;
        let same = regular::dir_beneath(volume, set).and_then(|set| self.equals(&set, Path::new(""), &mut found));
        match same {
            Ok(same) => Ok(same && found == self.files.len()),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NOENT | Errno::ACCESS | Errno::PERM | Errno::LOOP | Errno::NOTDIR | Errno::XDEV) => {
                    Ok(false)
                }
                _ => Err(error),
            },
        }
    }

    /// Whether a directory of a set has only files of the payload, with their content, mode and owners. Counts them.
    fn equals(&self, dir: &OwnedFd, below: &Path, found: &mut usize) -> io::Result<bool> {
        let stat = fstat(dir)?;
        let user = rustix::process::geteuid().as_raw();
        if stat.st_uid != user || stat.st_mode & 0o022 != 0 {
            return Ok(false);
        }
        for name in names(dir)? {
            let path = below.join(&name);
            let stat = statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    if !self.equals(&regular::dir_beneath(dir, Path::new(&name))?, &path, found)? {
                        return Ok(false);
                    }
                }
                FileType::RegularFile => {
                    let Some(PayloadFile { content, mode, owner }) = self.files.get(&path) else { return Ok(false) };
                    let owner = owner.map_or(user, Uid::as_raw);
                    let owned = stat.st_uid == owner && self.group.is_none_or(|group| group.id() == stat.st_gid);
                    if !owned
                        || stat.st_mode & 0o7777 != *mode
                        || u64::try_from(stat.st_size) != Ok(content.len() as u64)
                    {
                        return Ok(false);
                    }
                    // A file whose mode does not let this process read it is written again.
                    let Ok(file) = regular::open(dir, Path::new(&name)) else { return Ok(false) };
                    let mut bytes = Vec::with_capacity(content.len());
                    file.take(content.len() as u64 + 1).read_to_end(&mut bytes)?;
                    if bytes != *content {
                        return Ok(false);
                    }
                    *found += 1;
                }
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    fn write_set(&self, volume: &OwnedFd) -> io::Result<PathBuf> {
        let (name, set) = create_set_dir(volume)?;
        for (path, PayloadFile { content, mode, owner }) in &self.files {
            let mut dir = set.try_clone()?;
            for part in path.parent().into_iter().flat_map(Path::components) {
                match mkdirat(&dir, part.as_os_str(), Mode::from_raw_mode(0o700)) {
                    Err(Errno::EXIST) => {}
                    made => made?,
                }
                dir = regular::dir_beneath(&dir, part.as_ref())?;
                set_mode(&dir, OPEN_MODE)?;
            }
            let mut file = regular::create(&dir, path.file_name().unwrap_or_default().as_ref(), 0o600)?;
            file.write_all(content)?;
            if owner.is_some() || self.group.is_some() {
                fchown(&file, *owner, self.group.map(FsGroup::gid))?;
            }
            fchmod(&file, Mode::from_raw_mode(*mode))?;
        }
        Ok(name)
    }

    /// Creates a link through `..data` for the first component of each path, and removes the links of removed files. Anything else
    /// with the name of such a link is replaced.
    fn link(&self, volume: &OwnedFd, dir: &Path) -> io::Result<()> {
        let first: BTreeSet<_> = self.files.keys().filter_map(|path| path.components().next()).collect();
        for part in &first {
            let target = Path::new(DATA).join(part);
            match symlinkat(&target, volume, part.as_os_str()) {
                Err(Errno::EXIST) if link_target(volume, part.as_os_str()).as_ref() == Some(&target) => {}
                Err(Errno::EXIST) => {
                    tree::remove(&dir.join(part))?;
                    symlinkat(&target, volume, part.as_os_str())?;
                }
                made => made?,
            }
        }
        for name in names(volume)? {
            let through_data = link_target(volume, &name).is_some_and(|to| to.starts_with(DATA));
            if through_data && !first.contains(&Component::Normal(&name)) {
                unlinkat(volume, &name, AtFlags::empty())?;
            }
        }
        Ok(())
    }
}

/// Whether a payload was written to this volume.
pub(super) fn is_filled(dir: &Path) -> bool {
    open_volume(dir).is_ok_and(|volume| link_target(&volume, DATA.as_ref()).is_some())
}

/// The mode of the directories: all users may read them, and the modes of the files decide who may read those.
const OPEN_MODE: u32 = 0o755;
/// The mode of a volume that belongs to the group of its pod.
const GROUP_MODE: u32 = 0o750;

fn open_volume(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(CWD, dir, flags, Mode::empty())?)
}

fn set_mode(dir: &OwnedFd, mode: u32) -> io::Result<()> {
    if fstat(dir)?.st_mode & 0o7777 != mode {
        fchmod(dir, Mode::from_raw_mode(mode))?;
    }
    Ok(())
}

/// The target of a link; `None` if the name is not a link.
fn link_target(dir: &OwnedFd, name: &OsStr) -> Option<PathBuf> {
    Some(OsString::from_vec(readlinkat(dir, name, Vec::new()).ok()?.into_bytes()).into())
}

/// Whether the target of `..data` can be the directory of a set: one name with the agent's prefix.
fn is_set_name(target: &Path) -> bool {
    let name = target.as_os_str().as_bytes();
    name.starts_with(OWN_PREFIX) && name.len() > OWN_PREFIX.len() && !name.contains(&b'/')
}

/// The names of the entries of a directory.
fn names(dir: &OwnedFd) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = OsString::from_vec(entry?.file_name().to_bytes().to_vec());
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// Creates a directory for a new set, and returns its name and the open directory.
fn create_set_dir(volume: &OwnedFd) -> io::Result<(PathBuf, OwnedFd)> {
    loop {
        let name = PathBuf::from(Timestamp::now().strftime("..%Y_%m_%d_%H_%M_%S.%N").to_string());
        match mkdirat(volume, &name, Mode::from_raw_mode(0o700)) {
            Ok(()) => {
                let set = regular::dir_beneath(volume, &name)?;
                set_mode(&set, OPEN_MODE)?;
                return Ok((name, set));
            }
            // The clock was set back, or its resolution is too coarse.
            Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Removes the agent's own entries except `..data` and the current set: earlier sets, and the remains of interrupted writes.
fn remove_unused(volume: &OwnedFd, dir: &Path, current: &Path) -> io::Result<()> {
    for name in names(volume)? {
        let kept = [OsStr::new(DATA), current.as_os_str()];
        if name.as_bytes().starts_with(OWN_PREFIX) && !kept.contains(&&*name) {
            tree::remove(&dir.join(&name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
