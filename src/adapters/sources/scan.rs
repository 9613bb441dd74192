//! Reading files and directories. Blocking.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use podwright_actors::ports::{SourceKind, SourceProblem, SourceSet};

use super::SourceContext;
use super::manifest_cache::ManifestCache;
use crate::adapters::manifest::MAX_BYTES;

/// The files below a number of paths and what they held when they were last read.
#[derive(Debug)]
pub(super) struct Scan {
    roots: Vec<PathBuf>,
    cache: ManifestCache,
    cx: SourceContext,
}

impl Scan {
    pub(super) fn new(roots: Vec<PathBuf>, cx: SourceContext) -> Self {
        Scan { roots, cache: ManifestCache::default(), cx }
    }

    /// Reads everything anew.
    pub(super) fn run(&mut self) -> SourceSet {
        let mut problems = Vec::new();
        let mut present: Vec<(PathBuf, bool)> = Vec::new();
        for root in &self.roots {
            match list(root) {
                Ok(files) => present.extend(files.into_iter().map(|path| (path, true))),
                Err(error) => {
                    // Nobody can say what is in there now: everything stays as it was.
                    let below = |path: &&String| Path::new(path.as_str()).starts_with(root);
                    problems.push(SourceProblem {
                        what: root.display().to_string(),
                        message: format!(
                            "cannot be listed ({}); its last pods stay: let this user read it",
                            reason(&error)
                        ),
                        pods: self.cache.names(below),
                    });
                    present.extend(self.cache.manifests.keys().filter(below).map(|path| (path.into(), false)));
                }
            }
        }
        let mut order: Vec<String> = Vec::with_capacity(present.len());
        let mut there: BTreeSet<String> = BTreeSet::new();
        for (path, listed) in present {
            let what = path.to_string_lossy().into_owned();
            // Two flags may name the same file.
            if !there.contains(&what) && (!listed || self.read(&path, &what)) {
                there.insert(what.clone());
                order.push(what);
            }
        }
        self.cache.manifests.retain(|what, _| there.contains(what));
        self.cache.set(SourceKind::File, order.iter().map(String::as_str), problems)
    }

    /// Reads one file; false if it is gone.
    fn read(&mut self, path: &Path, what: &str) -> bool {
        match contents(path) {
            Ok(bytes) => {
                let manifest = self.cache.manifests.entry(what.to_owned()).or_default();
                manifest.read(bytes, SourceKind::File, what, &self.cx);
                true
            }
            Err(error) if error.kind() == ErrorKind::NotFound && fs::symlink_metadata(path).is_err() => false,
            Err(error) => {
                let manifest = self.cache.manifests.entry(what.to_owned()).or_default();
                let stays = if manifest.was_read() { "; its last pods stay" } else { "" };
                manifest.fail(format!("cannot be read ({}){stays}: mend or remove it", reason(&error)));
                true
            }
        }
    }
}

/// The files that count: the path itself, or what a directory holds apart from subdirectories and files that are not
/// manifests by their name (hidden ones, and the backups that editors leave). A missing path has none. Blocking.
///
/// # Errors
/// As the system says.
pub fn list(root: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::metadata(root) {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => return Ok(vec![root.to_owned()]),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // A symbolic link to nothing is there, and reading it will tell what is wrong.
            return Ok(if fs::symlink_metadata(root).is_ok() { vec![root.to_owned()] } else { vec![] });
        }
        Err(error) => return Err(error),
    }
    let mut files = Vec::new();
    let entries = match fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(vec![]),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with('.') || name.ends_with('~') || (name.starts_with('#') && name.ends_with('#')) {
            continue;
        }
        let path = entry.path();
        if !fs::metadata(&path).is_ok_and(|meta| meta.is_dir()) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The text of a manifest, of which no more is read than [`manifest::read`](crate::adapters::manifest::read) takes. Blocking,
/// but never for a writer.
///
/// # Errors
/// If it is not a regular file, and as the system says.
pub fn contents(path: &Path) -> io::Result<Vec<u8>> {
    // Asked before opening, because opening a named pipe waits for a writer.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    // One byte more than is allowed, so that the reader of the manifest sees that it is too long.
    File::open(path)?.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::PermissionDenied => "permission denied".into(),
        ErrorKind::NotFound => "it is a link to nothing".into(),
        _ => error.to_string(),
    }
}
