//! Reads manifests from files and directories. All functions here block.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use podwright_actors::ports::{Severity, SourceKind, SourceProblem, SourceSet};
use rustix::fs::OFlags;

use super::SourceContext;
use super::manifest_cache::ManifestCache;
use crate::adapters::manifest::MAX_BYTES;

/// The files at some paths, with the content that was read last.
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

    /// Reads all files again.
    pub(super) fn run(&mut self) -> SourceSet {
        let mut problems = Vec::new();
        let mut present: Vec<(PathBuf, bool)> = Vec::new();
        for root in &self.roots {
            match list(root) {
                Ok(files) => present.extend(files.into_iter().map(|path| (path, true))),
                Err(error) => {
                    // The current content is unknown, so the files of the last successful listing are kept.
                    let below = |path: &&String| Path::new(path.as_str()).starts_with(root);
                    problems.push(SourceProblem {
                        what: root.display().to_string(),
                        message: format!(
                            "cannot be listed ({}); its last pods are kept: make it readable for the agent's user",
                            reason(&error)
                        ),
                        pods: self.cache.names(below),
                        severity: Severity::Fault,
                    });
                    present.extend(self.cache.manifests.keys().filter(below).map(|path| (path.into(), false)));
                }
            }
        }
        let mut order: Vec<String> = Vec::with_capacity(present.len());
        let mut existing: BTreeSet<String> = BTreeSet::new();
        for (path, listed) in present {
            let what = path.to_string_lossy().into_owned();
            // Two paths may lead to the same file.
            if !existing.contains(&what) && (!listed || self.read(&path, &what)) {
                existing.insert(what.clone());
                order.push(what);
            }
        }
        self.cache.manifests.retain(|what, _| existing.contains(what));
        let order: Vec<&str> = order.iter().map(String::as_str).collect();
        self.cache.set(SourceKind::File, &order, problems, &self.cx)
    }

    /// Reads one file. Returns false if the file does not exist.
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
                let stays = if manifest.was_read() { "; its last pods are kept" } else { "" };
                manifest.fail(format!("cannot be read ({}){stays}: correct or remove it", reason(&error)));
                true
            }
        }
    }
}

/// The manifest files at a path: the path itself if it is a file, or the files in it if it is a directory. Subdirectories,
/// hidden files and editor backups are skipped. A path that does not exist has no files. Blocks.
///
/// # Errors
/// The system's error.
pub fn list(root: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::metadata(root) {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => return Ok(vec![root.to_owned()]),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // A broken symbolic link counts as a file, so that the error of reading it is reported.
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

/// The bytes of a manifest file, at most one more than [`manifest::read`](crate::adapters::manifest::read) accepts. Blocks,
/// but does not wait for the writer of a named pipe.
///
/// # Errors
/// If the path is not a regular file; otherwise the system's error.
pub fn contents(path: &Path) -> io::Result<Vec<u8>> {
    // Opening a named pipe or a device may block or have effects, so the type is checked first. It is checked again, because
    // the path may have been replaced in between.
    let not_regular = || io::Error::other("not a regular file");
    if !fs::metadata(path)?.is_file() {
        return Err(not_regular());
    }
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).expect("the flag is one low bit");
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(not_regular());
    }
    let mut bytes = Vec::new();
    // One byte more than the limit, so that `manifest::read` refuses a longer file.
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::PermissionDenied => "permission denied".into(),
        ErrorKind::NotFound => "it is a broken symbolic link".into(),
        _ => error.to_string(),
    }
}
