//! The content of a volume that the agent writes: a set of files that is replaced atomically.
//!
//! The files of a set are in a directory that is named after the time of its creation. The link `..data` points to that
//! directory, and readers open links that lead through `..data`. A new set is written next to the old set. Then a rename
//! replaces `..data` (upstream `AtomicWriter`, kubelet 1.36). If a write is interrupted at any step, readers see the old set
//! or the new one, and the next write removes the remains.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

use jiff::Timestamp;

use super::fs_group::FsGroup;
use crate::adapters::tree;

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";
/// The prefix of the agent's own names in the volume. No file of a payload may have it.
const OWN_PREFIX: &[u8] = b"..";

/// The desired files of a volume, by path, with content and mode.
#[derive(Debug)]
pub(super) struct Payload {
    group: Option<FsGroup>,
    files: BTreeMap<PathBuf, (Vec<u8>, u32)>,
}

impl Payload {
    /// A payload without files. The files that are added belong to the group.
    pub(super) fn of(group: Option<FsGroup>) -> Self {
        Payload { group, files: BTreeMap::new() }
    }

    /// Adds a file, or replaces the file at the same path.
    ///
    /// # Errors
    /// The reason, if the path leads out of the volume or has the prefix of the agent's own names.
    pub(super) fn add(&mut self, path: &str, content: impl Into<Vec<u8>>, mode: u32) -> Result<(), String> {
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
        let mode = self.group.map_or(mode, |group| group.file_mode(mode));
        self.files.insert(file, (content.into(), mode));
        Ok(())
    }

    /// Makes the directory contain exactly these files. Writes nothing if it already does.
    pub(super) fn write(&self, dir: &Path) -> io::Result<()> {
        // A container may have removed the owner's permissions, which every user except root needs.
        tree::restore_owner_access(dir)?;
        let current = fs::read_link(dir.join(DATA)).ok();
        let set = match current {
            Some(set) if self.is_current(&dir.join(&set))? => set,
            _ => {
                let name = self.write_set(dir)?;
                match fs::remove_file(dir.join(NEW_DATA)) {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
                symlink(&name, dir.join(NEW_DATA))?;
                fs::rename(dir.join(NEW_DATA), dir.join(DATA))?;
                name
            }
        };
        self.link(dir)?;
        remove_unused(dir, &set)
    }

    /// Whether the current set has exactly these files. If a container has made the set unreadable, it has to be written
    /// again.
    fn is_current(&self, set: &Path) -> io::Result<bool> {
        match self.equals(set) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(false),
            found => found,
        }
    }

    /// Whether a set on disk has exactly these files.
    fn equals(&self, set: &Path) -> io::Result<bool> {
        let mut found = 0;
        let mut below = vec![set.to_owned()];
        while let Some(dir) = below.pop() {
            let list = match fs::read_dir(&dir) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
                other => other?,
            };
            for entry in list {
                let path = entry?.path();
                let meta = fs::symlink_metadata(&path)?;
                if meta.is_dir() {
                    below.push(path);
                    continue;
                }
                let name = path.strip_prefix(set).map_err(io::Error::other)?;
                let Some((content, mode)) = self.files.get(name) else { return Ok(false) };
                // A file whose mode does not let this process read it is written again.
                let same = meta.len() == content.len() as u64 && fs::read(&path).is_ok_and(|bytes| bytes == *content);
                let owned = self.group.is_none_or(|group| group.id() == meta.gid());
                if !same || !owned || meta.permissions().mode() & 0o7777 != *mode {
                    return Ok(false);
                }
                found += 1;
            }
        }
        Ok(found == self.files.len())
    }

    fn write_set(&self, dir: &Path) -> io::Result<PathBuf> {
        let (name, set) = create_set_dir(dir)?;
        for (path, (content, mode)) in &self.files {
            let path = set.join(path);
            if let Some(parent) = path.parent() {
                fs::DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
            }
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            file.write_all(content)?;
            if let Some(group) = self.group {
                group.give(&path)?;
            }
            file.set_permissions(Permissions::from_mode(*mode))?;
        }
        Ok(name)
    }

    /// Creates a link through `..data` for the first component of each path, and removes the links of removed files.
    fn link(&self, dir: &Path) -> io::Result<()> {
        let first: BTreeSet<_> = self.files.keys().filter_map(|path| path.components().next()).collect();
        for part in &first {
            match symlink(Path::new(DATA).join(part), dir.join(part)) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let through_data = fs::read_link(entry.path()).is_ok_and(|to| to.starts_with(DATA));
            if through_data && !first.contains(&Component::Normal(&name)) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

/// Creates a directory for a new set and returns its name and path. All users may read it; the modes of the files decide who
/// may read those.
fn create_set_dir(dir: &Path) -> io::Result<(PathBuf, PathBuf)> {
    loop {
        let name = PathBuf::from(Timestamp::now().strftime("..%Y_%m_%d_%H_%M_%S.%N").to_string());
        let path = dir.join(&name);
        match fs::create_dir(&path) {
            Ok(()) => {
                fs::set_permissions(&path, Permissions::from_mode(0o755))?;
                return Ok((name, path));
            }
            // The clock was set back, or its resolution is too coarse.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

/// Removes the agent's own entries except `..data` and the current set: earlier sets, and the remains of interrupted writes.
fn remove_unused(dir: &Path, current: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let kept = [OsStr::new(DATA), current.as_os_str()];
        if name.as_bytes().starts_with(OWN_PREFIX) && !kept.contains(&&*name) {
            tree::remove(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
