//! Knowing early that a path changed.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;
use tracing::warn;

/// Watches paths that may come, go and be replaced. What it misses, the next regular check finds.
#[derive(Debug)]
pub(super) struct Watch {
    /// `None` where the system has no watches left.
    watcher: Option<RecommendedWatcher>,
    roots: Arc<[PathBuf]>,
    /// Directories under watch, by what they were when the watch was set.
    watched: HashMap<PathBuf, (u64, u64)>,
}

impl Watch {
    /// Tells `changed` of changes at or directly below `roots`, which must be absolute.
    pub(super) fn new(roots: &[PathBuf], changed: Arc<Notify>) -> Self {
        let roots: Arc<[PathBuf]> = roots.into();
        let of_interest = roots.clone();
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            // An error may hide an event.
            if event.as_ref().map_or(true, |event| concerns(event, &of_interest)) {
                changed.notify_one();
            }
        });
        let watcher = watcher.inspect_err(|error| warn!(%error, "no file watch, manifests are only checked regularly"));
        Watch { watcher: watcher.ok(), roots, watched: HashMap::new() }
    }

    /// Sets the watches that are missing or were on something that has been replaced. To be called before each scan, so
    /// that nothing happens unseen between the two.
    pub(super) fn refresh(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        let mut wanted: HashMap<PathBuf, (u64, u64)> = HashMap::new();
        for root in &*self.roots {
            // A directory shows what is in it, its parent shows the coming and going of itself; a file is replaced by
            // renaming, which only its directory shows. The nearest ancestor that exists shows the next one coming.
            let mut ancestors = root.ancestors().skip(1);
            let parent = ancestors.find_map(|path| identity(path).map(|id| (path.to_owned(), id)));
            wanted.extend(identity(root).map(|id| (root.clone(), id)));
            wanted.extend(parent);
        }
        self.watched.retain(|path, id| {
            let keep = wanted.get(path) == Some(id);
            if !keep {
                // Nothing to do about an error: the watch ended with its directory.
                let _ = watcher.unwatch(path);
            }
            keep
        });
        for (path, id) in wanted {
            if self.watched.contains_key(&path) {
                continue;
            }
            match watcher.watch(&path, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    self.watched.insert(path, id);
                }
                Err(error) => warn!(%error, path = %path.display(), "cannot watch, the path is only checked regularly"),
            }
        }
    }
}

/// Device and inode of a directory.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().filter(std::fs::Metadata::is_dir).map(|meta| (meta.dev(), meta.ino()))
}

fn concerns(event: &Event, roots: &[PathBuf]) -> bool {
    // Reading a manifest is an event too, and must not lead to reading it again.
    let read = match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => false,
        EventKind::Access(_) => true,
        _ => false,
    };
    // Events without a path tell that some were lost.
    !read && (event.paths.is_empty() || event.paths.iter().any(|path| near(path, roots)))
}

/// At a root, in it, or above it.
fn near(path: &Path, roots: &[PathBuf]) -> bool {
    roots.iter().any(|root| root.starts_with(path) || path.parent() == Some(root))
}

#[cfg(test)]
mod tests {
    use notify::event::{CreateKind, DataChange, Flag, ModifyKind};

    use super::*;

    // A source that woke itself by reading would never be quiet again.
    #[test]
    fn reading_is_no_change_and_neither_is_what_lies_elsewhere() {
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
            assert_eq!(concerns(&Event::new(kind).add_path(path.into()), &roots), expected, "{kind:?} {path}");
        }
        assert!(concerns(&Event::new(EventKind::Other).set_flag(Flag::Rescan), &roots));
    }
}
