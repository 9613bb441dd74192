//! A set of files that readers see change all at once: what volumes hold whose content is told to the node.
//!
//! The files are in a directory of their own, named for the time it was made, that `..data` points to; what readers open are
//! links through `..data`. A new set is written beside the old one, then `..data` is replaced by renaming (upstream
//! `AtomicWriter`, kubelet 1.36). A write that ends at any step leaves the old set or the new one, and what it leaves beside
//! is removed by the next.

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
/// What the files of the node begin with, and those of a payload do not.
const OURS: &[u8] = b"..";

/// The files that a volume is to show.
#[derive(Debug)]
pub(super) struct Payload {
    group: Option<FsGroup>,
    files: BTreeMap<PathBuf, (Vec<u8>, u32)>,
}

impl Payload {
    /// No files; those that are added will belong to that group.
    pub(super) fn of(group: Option<FsGroup>) -> Self {
        Payload { group, files: BTreeMap::new() }
    }

    /// One file more, in place of one that was added at the same path; the reason if its path would leave the volume or hide
    /// what the node keeps there.
    pub(super) fn add(&mut self, path: &str, content: impl Into<Vec<u8>>, mode: u32) -> Result<(), String> {
        let parts = Path::new(path).components().filter(|part| *part != Component::CurDir);
        let inside = parts.clone().all(|part| matches!(part, Component::Normal(_)));
        let file: PathBuf = parts.collect();
        if file.as_os_str().is_empty()
            || !inside
            || file.as_os_str().as_bytes().starts_with(OURS)
            || path.contains('\0')
        {
            return Err(format!("path {path:?} leaves the volume: use a relative path without '..'"));
        }
        let mode = self.group.map_or(mode, |group| group.file_mode(mode));
        self.files.insert(file, (content.into(), mode));
        Ok(())
    }

    /// Makes the directory show exactly these files. Nothing is written if it does already.
    pub(super) fn write(&self, dir: &Path) -> io::Result<()> {
        // A container may have locked it, and only root needs no leave.
        tree::unlock(dir)?;
        let shown = fs::read_link(dir.join(DATA)).ok();
        let set = match shown {
            Some(set) if self.is_shown(&dir.join(&set))? => set,
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
        sweep(dir, &set)
    }

    /// Whether a set that was written before is whole. One that a container locked is written anew.
    fn is_shown(&self, set: &Path) -> io::Result<bool> {
        match self.is_in(set) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(false),
            found => found,
        }
    }

    /// Whether a set that was written before holds the same files.
    fn is_in(&self, set: &Path) -> io::Result<bool> {
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
                // A file that its own mode keeps from being read here is written anew.
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
        let (name, set) = fresh_dir(dir)?;
        for (path, (content, mode)) in &self.files {
            let path = set.join(path);
            if let Some(parent) = path.parent() {
                fs::DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
            }
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            file.write_all(content)?;
            if let Some(group) = self.group {
                group.own(&path)?;
            }
            file.set_permissions(Permissions::from_mode(*mode))?;
        }
        Ok(name)
    }

    /// Links the first parts of the paths through `..data`, and removes links that lead nowhere now.
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

/// A directory that did not exist, readable by all: the modes of the files decide.
fn fresh_dir(dir: &Path) -> io::Result<(PathBuf, PathBuf)> {
    loop {
        let name = PathBuf::from(Timestamp::now().strftime("..%Y_%m_%d_%H_%M_%S.%N").to_string());
        let path = dir.join(&name);
        match fs::create_dir(&path) {
            Ok(()) => {
                fs::set_permissions(&path, Permissions::from_mode(0o755))?;
                return Ok((name, path));
            }
            // The clock was set back, or is a coarse one.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

/// Removes what the node made there and does not show: earlier sets, and what a write left that did not end.
fn sweep(dir: &Path, shown: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let kept = [OsStr::new(DATA), shown.as_os_str()];
        if name.as_bytes().starts_with(OURS) && !kept.contains(&&*name) {
            tree::remove(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
