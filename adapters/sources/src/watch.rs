//! Watches manifest paths, so that a change is noticed before the next periodic check.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use notify::event::{AccessKind, AccessMode, ModifyKind, RenameMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tracing::warn;

use super::settle::{FileEvent, FileEventKind};

/// The last event of each file that says whether the file is whole. Without watches there are none.
#[derive(Debug, Default)]
pub(super) struct FileEvents(Mutex<HashMap<PathBuf, FileEvent>>);

impl FileEvents {
    /// The last event of a path; `None` if it is unknown whether its file has a writer.
    pub(super) fn last(&self, path: &Path) -> Option<FileEvent> {
        self.0.lock().get(path).copied()
    }

    /// Takes an event of a manifest's path.
    pub(super) fn note(&self, event: &Event, at: Instant) {
        let kind = match event.kind {
            EventKind::Modify(ModifyKind::Data(_)) => Some(FileEventKind::Written),
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => Some(FileEventKind::Closed),
            EventKind::Modify(ModifyKind::Name(RenameMode::To)) => Some(FileEventKind::MovedIn),
            // Another file may be at the path from now on.
            EventKind::Create(_) | EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(RenameMode::From)) => None,
            _ => return,
        };
        let mut events = self.0.lock();
        for path in &event.paths {
            match kind {
                Some(kind) => events.insert(path.clone(), FileEvent { kind, at }),
                None => events.remove(path),
            };
        }
    }

    /// Forgets all events, because some may be missing.
    fn clear(&self) {
        self.0.lock().clear();
    }
}

/// Watches paths that may be created, removed and replaced. The next periodic check finds a change that the watch misses.
#[derive(Debug)]
pub(super) struct Watch {
    /// `None` if the system has no watches left.
    watcher: Option<RecommendedWatcher>,
    roots: Arc<[PathBuf]>,
    /// The watched directories, with the identity that each had when its watch was set.
    watched: HashMap<PathBuf, (u64, u64)>,
    events: Arc<FileEvents>,
}

impl Watch {
    /// Notifies `changed` of changes at `roots` and directly below them. The roots must be absolute paths.
    pub(super) fn new(roots: &[PathBuf], changed: Arc<Notify>) -> Self {
        let roots: Arc<[PathBuf]> = roots.into();
        let events = Arc::new(FileEvents::default());
        let (watched_roots, noted) = (roots.clone(), events.clone());
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            match event {
                Ok(event) if !may_change_a_manifest(&event, &watched_roots) => return,
                Ok(event) if !event.paths.is_empty() => noted.note(&event, Instant::now()),
                // An event may be missing.
                Ok(_) | Err(_) => noted.clear(),
            }
            changed.notify_one();
        });
        let watcher =
            watcher.inspect_err(|error| warn!(%error, "cannot watch files, manifests are only checked periodically"));
        Watch { watcher: watcher.ok(), roots, watched: HashMap::new(), events }
    }

    pub(super) fn events(&self) -> &FileEvents {
        &self.events
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
        let events = &self.events;
        self.watched.retain(|path, id| {
            let keep = desired.get(path) == Some(id);
            if !keep {
                // Other files may be at the paths below.
                events.clear();
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
    use notify::event::{CreateKind, DataChange, Flag, MetadataKind};

    use super::*;

    #[test]
    fn last_event_of_a_file_says_whether_it_has_a_writer() {
        let (events, now) = (FileEvents::default(), Instant::now());
        let path = Path::new("/pods/a.yaml");
        let written = EventKind::Modify(ModifyKind::Data(DataChange::Any));
        let renamed = |mode| EventKind::Modify(ModifyKind::Name(mode));
        for (kind, expected) in [
            (EventKind::Create(CreateKind::File), None),
            (written, Some(FileEventKind::Written)),
            (EventKind::Access(AccessKind::Close(AccessMode::Write)), Some(FileEventKind::Closed)),
            (EventKind::Modify(ModifyKind::Metadata(MetadataKind::Any)), Some(FileEventKind::Closed)),
            (renamed(RenameMode::From), None),
            (renamed(RenameMode::To), Some(FileEventKind::MovedIn)),
            (written, Some(FileEventKind::Written)),
            (EventKind::Create(CreateKind::File), None),
        ] {
            events.note(&Event::new(kind).add_path(path.into()), now);
            assert_eq!(events.last(path).map(|event| event.kind), expected, "{kind:?}");
        }
    }

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
