//! Reads manifests from files and directories. All functions here block.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use podwright_host::trusted_file::{self, UntrustedFile};
use podwright_ports::{Severity, SourceKind, SourceProblem, SourceSet};
use rustix::fs::OFlags;

use super::SourceContext;
use super::manifest_cache::{CachedManifest, ManifestCache};
use super::settle::{LATE, QUIET, STEPS, Settling, Stamp};
use super::watch::FileEvents;
use crate::manifest::MAX_BYTES;

/// The files at some paths, with the content that was read last.
#[derive(Debug)]
pub(super) struct Scan {
    roots: Vec<PathBuf>,
    cache: ManifestCache,
    /// The paths that have a file, or had one a moment ago.
    files: BTreeMap<PathBuf, Settling>,
    /// The latest time of the first set, which then lacks the files that are not whole. `None` after the first set.
    first_set_by: Option<Instant>,
    /// When every file is read again, even if no change of it was noticed.
    read_all_at: Instant,
    cx: SourceContext,
}

/// The result of one scan.
#[derive(Debug)]
pub(super) struct Scanned {
    /// The pods. `None` if the first set waits for files to become whole: their pods may be desired.
    pub(super) set: Option<SourceSet>,
    /// When the next file may be read.
    pub(super) next: Option<Instant>,
}

/// Which files one scan reads, and when.
#[derive(Clone, Copy)]
struct ReadScope {
    now: Instant,
    /// Whether it also reads files of which no change was noticed.
    reads_all: bool,
}

/// What is known of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    Listed,
    Missing,
    /// The path is in a directory that cannot be listed.
    Unknown,
}

/// How a path was handled.
enum Visit {
    /// The content of the file is current, or the file has a problem.
    Read,
    /// The file is not whole.
    Waits(Instant),
    Gone,
}

impl Scan {
    pub(super) fn new(roots: Vec<PathBuf>, cx: SourceContext, now: Instant) -> Self {
        Scan {
            roots,
            cache: ManifestCache::default(),
            files: BTreeMap::new(),
            first_set_by: Some(now + LATE),
            read_all_at: now,
            cx,
        }
    }

    /// When every file is read again.
    pub(super) fn read_all_at(&self) -> Instant {
        self.read_all_at
    }

    /// Reads the files that have changed and are whole. The others keep their last content.
    pub(super) fn run(&mut self, events: &FileEvents, now: Instant) -> Scanned {
        let reads_all = now >= self.read_all_at;
        if reads_all {
            self.read_all_at = now + self.cx.check_frequency;
        }
        let (paths, problems) = self.paths();
        let mut order: Vec<String> = Vec::with_capacity(paths.len());
        let mut existing: BTreeSet<String> = BTreeSet::new();
        let mut next: Option<Instant> = None;
        for (path, presence) in paths {
            let what = path.to_string_lossy().into_owned();
            // Two paths may lead to the same file.
            if existing.contains(&what) {
                continue;
            }
            let visit = match presence {
                Presence::Unknown => Visit::Read,
                Presence::Listed | Presence::Missing => {
                    let is_listed = presence == Presence::Listed;
                    self.visit(&path, &what, is_listed, events, ReadScope { now, reads_all })
                }
            };
            match visit {
                Visit::Read => {}
                Visit::Waits(until) => {
                    next = Some(next.map_or(until, |next| next.min(until)));
                    if !self.cache.manifests.contains_key(&what) {
                        continue;
                    }
                }
                Visit::Gone => {
                    self.files.remove(&path);
                    continue;
                }
            }
            existing.insert(what.clone());
            order.push(what);
        }
        self.cache.manifests.retain(|what, _| existing.contains(what));
        if let (Some(first_set_by), Some(until)) = (self.first_set_by, next)
            && now < first_set_by
        {
            return Scanned { set: None, next: Some(until.min(first_set_by)) };
        }
        self.first_set_by = None;
        let order: Vec<&str> = order.iter().map(String::as_str).collect();
        Scanned { set: Some(self.cache.set(SourceKind::File, &order, problems, &self.cx)), next }
    }

    /// The paths that have a file, or had one in the last scan, and the problems of the roots.
    fn paths(&self) -> (Vec<(PathBuf, Presence)>, Vec<SourceProblem>) {
        let mut problems = Vec::new();
        let mut paths: Vec<(PathBuf, Presence)> = Vec::new();
        for root in &self.roots {
            match trusted_list(root) {
                Ok(files) => paths.extend(files.into_iter().map(|path| (path, Presence::Listed))),
                Err(message) => {
                    // The current content is unknown, so the files of the last successful listing are kept.
                    let below = |path: &&String| Path::new(path.as_str()).starts_with(root);
                    problems.push(SourceProblem {
                        what: root.display().to_string(),
                        message,
                        pods: self.cache.names(below),
                        severity: Severity::Fault,
                    });
                    let kept = self.cache.manifests.keys().filter(below);
                    paths.extend(kept.map(|path| (path.into(), Presence::Unknown)));
                }
            }
        }
        let present: BTreeSet<&PathBuf> = paths.iter().map(|(path, _)| path).collect();
        let missing = self.files.keys().filter(|path| !present.contains(path));
        let missing: Vec<_> = missing.map(|path| (path.clone(), Presence::Missing)).collect();
        paths.extend(missing);
        (paths, problems)
    }

    /// Reads one file if it has changed and is whole.
    fn visit(&mut self, path: &Path, what: &str, is_listed: bool, events: &FileEvents, scope: ReadScope) -> Visit {
        let ReadScope { now, reads_all } = scope;
        let found = is_listed.then(|| fs::metadata(path).ok()).flatten();
        let stamp = found.as_ref().map(Stamp::of);
        let event = events.last(path);
        let file = self.files.entry(path.to_owned()).or_insert_with(|| {
            // A manifest that nobody wrote to lately does not delay the first set.
            let modified = found.filter(|_| self.first_set_by.is_some()).and_then(|meta| meta.modified().ok());
            let age = modified.and_then(|modified| modified.elapsed().ok()).unwrap_or_default();
            Settling::new(stamp, now.checked_sub(age.min(QUIET)).unwrap_or(now))
        });
        file.observe(stamp, event, now);
        if file.settles_at() > now {
            if file.is_late(now) {
                let manifest = self.cache.manifests.entry(what.to_owned()).or_default();
                manifest.fail(format!(
                    "is still being written and was not read{}: write it elsewhere and move it here when it is finished",
                    kept(manifest)
                ));
            }
            return Visit::Waits(file.settles_at());
        }
        if !is_listed {
            return Visit::Gone;
        }
        // A file that is written all the time causes many scans. They do not read the other files again.
        if file.is_current() && !reads_all {
            return Visit::Read;
        }
        let trusted = trusted_file::check_itself(path).map_err(io::Error::other);
        let content = trusted.and_then(|()| contents(path));
        let is_same = || fs::metadata(path).ok().as_ref().map(Stamp::of) == stamp && events.last(path) == event;
        match content {
            // The file changed while it was read.
            Ok(_) if !is_same() => Visit::Waits(now + STEPS),
            Ok(bytes) => {
                file.was_read(now);
                let manifest = self.cache.manifests.entry(what.to_owned()).or_default();
                manifest.read(bytes, SourceKind::File, what, &self.cx);
                Visit::Read
            }
            Err(error) if error.kind() == ErrorKind::NotFound && fs::symlink_metadata(path).is_err() => {
                Visit::Waits(now + STEPS)
            }
            Err(error) => {
                // The next change is a new one. Until then, the file is tried again with the files of which no change was noticed.
                file.was_read(now);
                let manifest = self.cache.manifests.entry(what.to_owned()).or_default();
                let kept = kept(manifest);
                manifest.fail(format!("cannot be read ({}){kept}: correct or remove it", reason(&error)));
                Visit::Read
            }
        }
    }
}

/// The files of a root that no other user can add files to. Otherwise the message of the problem.
fn trusted_list(root: &Path) -> Result<Vec<PathBuf>, String> {
    check_root(root).map_err(|untrusted| format!("is not read; its last pods are kept: {untrusted}"))?;
    list(root).map_err(|error| {
        format!("cannot be listed ({}); its last pods are kept: make it readable for the agent's user", reason(&error))
    })
}

/// Checks that no other user can define pods at a path that a flag names. Blocks.
///
/// # Errors
/// [`UntrustedFile`] if another user can change the file, or add files to the directory.
pub fn check_root(root: &Path) -> Result<(), UntrustedFile> {
    if root.is_dir() { trusted_file::check_itself(root) } else { trusted_file::check(root) }
}

/// What happens to the pods of a manifest that has no new content.
fn kept(manifest: &CachedManifest) -> &'static str {
    if manifest.was_read() { "; its last pods are kept" } else { "" }
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

/// The bytes of a manifest file, at most one more than [`manifest::read`](crate::manifest::read) accepts. Blocks,
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

#[cfg(test)]
mod tests;
