//! Watches manifest paths, so that a change is noticed before the next periodic check.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;
use tracing::warn;

/// Watches paths that may be created, removed and replaced. The next periodic check finds a change that the watch misses.
#[derive(Debug)]
pub(super) struct Watch {
    /// `None` if the system has no watches left.
    watcher: Option<RecommendedWatcher>,
    roots: Arc<[PathBuf]>,
    /// The watched directories, with the identity that each had when its watch was set.
    watched: HashMap<PathBuf, (u64, u64)>,
}

impl Watch {
    /// Notifies `changed` of changes at `roots` and directly below them. The roots must be absolute paths.
    pub(super) fn new(roots: &[PathBuf], changed: Arc<Notify>) -> Self {
        let roots: Arc<[PathBuf]> = roots.into();
        let watched_roots = roots.clone();
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // After an error an event may be missing.
            if event.as_ref().map_or(true, |event| may_change_a_manifest(event, &watched_roots)) {
                changed.notify_one();
            }
        });
        let watcher =
            watcher.inspect_err(|error| warn!(%error, "cannot watch files, manifests are only checked periodically"));
        Watch { watcher: watcher.ok(), roots, watched: HashMap::new() }
    }

    /// Sets the missing watches, and those whose directory was replaced. Must be called before each scan, so that a change
    /// during the scan is noticed.
    pub(super) fn refresh(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        let mut desired: HashMap<PathBuf, (u64, u64)> = HashMap::new();
        for root in &*self.roots {
            // The watch of a directory reports changes in it, and the watch of its parent reports that the directory itself
            // is created or removed. A file is often replaced by a rename, which only the watch of its parent reports. If the
            // parent does not exist, the watch of the nearest existing ancestor reports when the next directory is created.
            let mut ancestors = root.ancestors().skip(1);
            let parent = ancestors.find_map(|path| identity(path).map(|id| (path.to_owned(), id)));
            desired.extend(identity(root).map(|id| (root.clone(), id)));
            desired.extend(parent);
        }
        self.watched.retain(|path, id| {
            let keep = desired.get(path) == Some(id);
            if !keep {
                // An error means that the watch ended with its directory.
                let _ = watcher.unwatch(path);
            }
            keep
        });
        for (path, id) in desired {
            if self.watched.contains_key(&path) {
                continue;
            }
            match watcher.watch(&path, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.watched.insert(path, id);
                }
                Err(error) => {
                    warn!(%error, path = %path.display(), "cannot watch a directory, it is only checked periodically")
                }
            }
        }
    }
}

/// The device and inode of a directory; `None` if the path is not a directory.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().filter(std::fs::Metadata::is_dir).map(|meta| (meta.dev(), meta.ino()))
}

/// Whether an event may mean that a manifest changed.
fn may_change_a_manifest(event: &Event, roots: &[PathBuf]) -> bool {
    // Reading a manifest causes an event too, and that event must not cause another reading.
    let read = match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => false,
        EventKind::Access(_) => true,
        _ => false,
    };
    // An event without a path means that events were lost.
    !read && (event.paths.is_empty() || event.paths.iter().any(|path| affects_a_root(path, roots)))
}

/// Whether a path is a root, directly in one, or above one.
fn affects_a_root(path: &Path, roots: &[PathBuf]) -> bool {
    roots.iter().any(|root| root.starts_with(path) || path.parent() == Some(root))
}

#[cfg(test)]
mod tests {
    use notify::event::{CreateKind, DataChange, Flag, ModifyKind};

    use super::*;

    // A source that is notified of its own reading would read for ever.
    #[test]
    fn watch_ignores_reads_and_other_paths() {
        let write = EventKind::Access(AccessKind::Close(AccessMode::Write));
        let cases = [
            (EventKind::Create(CreateKind::File), "/pods/a.yaml", true),
            (EventKind::Modify(ModifyKind::Data(DataChange::Any)), "/pods/a.yaml", true),
            (write, "/pods/a.yaml", true),
            (EventKind::Access(AccessKind::Open(AccessMode::Any)), "/pods/a.yaml", false),
            (EventKind::Access(AccessKind::Close(AccessMode::Read)), "/pods/a.yaml", false),
            (write, "/single.yaml", true),
            (write, "/other.yaml", false),
            (EventKind::Create(CreateKind::Folder), "/pods", true),
            (EventKind::Create(CreateKind::Folder), "/", true),
            (write, "/pods/sub/a.yaml", false),
        ];
        let roots = ["/pods".into(), "/single.yaml".into()];
        for (kind, path, expected) in cases {
            assert_eq!(
                may_change_a_manifest(&Event::new(kind).add_path(path.into()), &roots),
                expected,
                "{kind:?} {path}"
            );
        }
        assert!(may_change_a_manifest(&Event::new(EventKind::Other).set_flag(Flag::Rescan), &roots));
    }
}
