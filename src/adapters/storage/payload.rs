//! A set of files that readers see change all at once.
//!
//! The files are in a directory of their own that `..data` points to; what readers open are links through `..data`. A new
//! set is written beside the old one, then `..data` is replaced by renaming.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";

#[derive(Debug, Default)]
pub(super) struct Payload {
    files: BTreeMap<PathBuf, (String, u32)>,
}

impl Payload {
    /// One file more; the reason if its path would leave the volume.
    pub(super) fn add(&mut self, path: &str, text: String, mode: u32) -> Result<(), String> {
        let parts = Path::new(path).components().filter(|part| *part != Component::CurDir);
        let inside = parts.clone().all(|part| matches!(part, Component::Normal(_)));
        let file: PathBuf = parts.collect();
        if file.as_os_str().is_empty() || !inside || path.starts_with("..") {
            return Err(format!("path {path:?} leaves the volume: use a relative path without '..'"));
        }
        self.files.insert(file, (text, mode));
        Ok(())
    }

    /// Makes the directory show exactly these files.
    pub(super) fn write(&self, dir: &Path) -> io::Result<()> {
        let current = fs::read_link(dir.join(DATA)).ok();
        let stale = match &current {
            Some(set) if self.is_in(&dir.join(set))? => None,
            _ => {
                let name = self.write_set(dir)?;
                match fs::remove_file(dir.join(NEW_DATA)) {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
                symlink(&name, dir.join(NEW_DATA))?;
                fs::rename(dir.join(NEW_DATA), dir.join(DATA))?;
                Some(name)
            }
        };
        self.link(dir)?;
        if let Some(new) = stale {
            sweep(dir, &new)?;
        }
        Ok(())
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
                let Some((text, mode)) = self.files.get(name) else { return Ok(false) };
                // A file that its own mode keeps from being read here is written anew.
                let same = fs::read(&path).is_ok_and(|bytes| bytes == text.as_bytes());
                if !same || meta.permissions().mode() & 0o7777 != *mode {
                    return Ok(false);
                }
                found += 1;
            }
        }
        Ok(found == self.files.len())
    }

    fn write_set(&self, dir: &Path) -> io::Result<PathBuf> {
        let (name, set) = fresh_dir(dir)?;
        for (path, (text, mode)) in &self.files {
            let path = set.join(path);
            if let Some(parent) = path.parent() {
                fs::DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
            }
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            file.write_all(text.as_bytes())?;
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
    for number in 0u64.. {
        let name = PathBuf::from(format!("..set_{number}"));
        match fs::create_dir(dir.join(&name)) {
            Ok(()) => {
                let path = dir.join(&name);
                fs::set_permissions(&path, Permissions::from_mode(0o755))?;
                return Ok((name, path));
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("no name is left"))
}

/// Removes the sets that are no longer shown, those of a write that did not end among them.
fn sweep(dir: &Path, shown: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let set = entry.file_name().to_string_lossy().starts_with("..set_");
        if set && Path::new(&entry.file_name()) != shown {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}
