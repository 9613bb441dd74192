//! Watches the registry directory and the directories below it (inotify), and lists the sockets in them.
//!
//! Events only say when to walk the directories again, and which paths were created since the last walk. So an event that is lost,
//! for example because the queue overflowed, only delays the next walk.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, Metadata};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::io::{Interest, unix::AsyncFd};
use tokio::task::spawn_blocking;
use tracing::warn;

use super::state::{Identity, Listing};
use crate::trust::{Distrust, distrust};

/// How often the directories are walked without an event. For example, no event reports that a parent of the registry
/// directory was renamed.
pub(super) const CHECK_PERIOD: Duration = Duration::from_secs(20);
/// How often the directories are walked while they cannot be watched.
pub(super) const RETRY_PERIOD: Duration = Duration::from_secs(1);
/// The mode of the registry directory (upstream `pluginwatcher`, kubelet 1.36).
const DIR_MODE: u32 = 0o750;
/// How many walks a listing takes at most, if something changes during each of them.
const MAX_WALKS: usize = 5;

/// Why the registry directory is not watched.
#[derive(Debug, thiserror::Error)]
pub(super) enum WatchError {
    #[error("cannot {step} {path}", path = .path.display())]
    Io { step: &'static str, path: PathBuf, source: io::Error },
    #[error("{path} is not a directory: move it away", path = .0.display())]
    NotDirectory(PathBuf),
    #[error("{path} cannot be trusted, because {why}: make its owner root or the user of the agent, and let no other user write \
        to it (chmod go-w)", path = .path.display())]
    Untrusted { path: PathBuf, why: Distrust },
    #[error("listing the registry directory panicked")]
    Panicked,
}

/// Lists the sockets below a directory, and reports when that list may have changed.
#[derive(Debug)]
pub(super) struct Watcher {
    dir: PathBuf,
    /// The user of this process.
    user: u32,
    /// `None` until inotify works.
    inotify: Option<AsyncFd<OwnedFd>>,
    /// The watched directories, by their descriptors.
    watches: HashMap<i32, PathBuf>,
    /// What was created since the last walk.
    created: BTreeSet<PathBuf>,
    /// The files that are not used, so that each is logged once.
    refused: BTreeMap<PathBuf, Distrust>,
    /// What could not be read, so that each is logged once.
    unreadable: BTreeMap<PathBuf, io::ErrorKind>,
    /// The sockets of the last walk.
    known: BTreeMap<PathBuf, Identity>,
}

/// What a walk found.
#[derive(Default)]
struct Walk {
    sockets: BTreeMap<PathBuf, Identity>,
    watches: HashMap<i32, PathBuf>,
    refused: BTreeMap<PathBuf, Distrust>,
    unreadable: BTreeMap<PathBuf, io::ErrorKind>,
    /// The first directory that cannot be watched.
    problem: Option<WatchError>,
}

impl Watcher {
    /// A watcher that has not begun.
    pub(super) fn new(dir: PathBuf) -> Self {
        Watcher {
            // Without a trailing slash, which would make the system follow a symbolic link.
            dir: dir.components().collect(),
            user: rustix::process::geteuid().as_raw(),
            inotify: None,
            watches: HashMap::new(),
            created: BTreeSet::new(),
            refused: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            known: BTreeMap::new(),
        }
    }

    /// Waits until something may have changed since the last listing. Never completes if nothing is watched. Cancel safe.
    pub(super) async fn changed(&mut self) {
        loop {
            let Some(inotify) = &self.inotify else { return std::future::pending().await };
            let Ok(mut ready) = inotify.readable().await else { return };
            // A walk also reads events, so the notification may be for events that a walk has already read.
            if rustix::io::ioctl_fionread(inotify.get_ref()).is_ok_and(|bytes| bytes == 0) {
                ready.clear_ready();
            } else {
                return;
            }
        }
    }

    /// Walks the directories, and watches those that are not watched yet. If the listing comes with a problem, it is complete, but
    /// later changes cause no event. Must be called in a tokio runtime.
    pub(super) async fn list(mut self) -> (Result<(Listing, Option<WatchError>), WatchError>, Self) {
        // Registering a descriptor with tokio needs the runtime, which the thread below is not part of.
        let started = if self.inotify.is_none() { self.begin() } else { Ok(()) };
        let (dir, user) = (self.dir.clone(), self.user);
        let walked = spawn_blocking(move || {
            let listing = self.walk_until_quiet();
            (listing, self)
        });
        match walked.await {
            Ok((listing, watcher)) => {
                let problem = started.err();
                (listing.map(|(listing, found)| (listing, problem.or(found))), watcher)
            }
            Err(_) => (Err(WatchError::Panicked), Watcher { user, ..Watcher::new(dir) }),
        }
    }

    fn begin(&mut self) -> Result<(), WatchError> {
        let failed = |source| WatchError::Io { step: "begin to watch", path: self.dir.clone(), source };
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        #[expect(
            deprecated,
            reason = "the replacement is `unsafe` because a descriptor could close while it is registered; here the \
                      registration owns the descriptor"
        )]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE).map_err(failed)?;
        self.inotify = Some(fd);
        Ok(())
    }

    /// Walks until nothing is created during a walk. Otherwise a walk could list a socket before its event is read, and the event
    /// would look like a second socket at the same path.
    fn walk_until_quiet(&mut self) -> Result<(Listing, Option<WatchError>), WatchError> {
        ensure_dir(&self.dir)?;
        let mut walks = 0;
        let walk = loop {
            walks += 1;
            let walk = self.walk()?;
            if !self.read_events() || walks == MAX_WALKS {
                break walk;
            }
        };
        let newly_refused = walk.refused.iter().filter(|(path, why)| self.refused.get(*path) != Some(*why));
        for (path, why) in newly_refused {
            warn!(path = %path.display(), %why, "ignoring a file in the registry directory of plugins");
        }
        self.refused = walk.refused;
        let newly_unreadable = walk.unreadable.iter().filter(|(path, kind)| self.unreadable.get(*path) != Some(*kind));
        for (path, kind) in newly_unreadable {
            warn!(path = %path.display(), error = %kind, "cannot read a part of the registry directory of plugins: \
                nothing registers from there, and what is registered stays");
        }
        self.unreadable = walk.unreadable;
        self.known.clone_from(&walk.sockets);
        let listing = Listing { sockets: walk.sockets, created: std::mem::take(&mut self.created) };
        Ok((listing, walk.problem))
    }

    fn walk(&mut self) -> Result<Walk, WatchError> {
        let mut walk = Walk::default();
        let mut open = vec![self.dir.clone()];
        while let Some(dir) = open.pop() {
            // The watch comes first, so that nothing is created unseen between the two.
            self.watch(&dir, &mut walk);
            let entries = match fs::read_dir(&dir) {
                Ok(entries) => entries,
                // Another process has removed the directory. The next walk creates the registry directory itself again.
                Err(error) if error.kind() == io::ErrorKind::NotFound && dir != self.dir => continue,
                // A part that cannot be read must not stop the plugins of the other parts.
                Err(error) if dir != self.dir => {
                    self.keep_known(&mut walk, dir, &error);
                    continue;
                }
                Err(source) => return Err(WatchError::Io { step: "list", path: dir, source }),
            };
            for entry in entries {
                let entry = match entry {
                    Ok(entry) => entry,
                    Err(error) if dir != self.dir => {
                        self.keep_known(&mut walk, dir.clone(), &error);
                        break;
                    }
                    Err(source) => return Err(WatchError::Io { step: "list", path: dir, source }),
                };
                if is_hidden(&entry.file_name()) {
                    continue;
                }
                let path = entry.path();
                // Does not follow symbolic links: a link may lead to a directory that another user controls.
                let meta = match entry.metadata() {
                    Ok(meta) => meta,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => {
                        self.keep_known(&mut walk, path, &error);
                        continue;
                    }
                };
                let is_socket = meta.file_type().is_socket();
                if !is_socket && !meta.is_dir() {
                    continue;
                }
                match distrust(&meta, self.user) {
                    Some(why) => {
                        walk.refused.insert(path, why);
                    }
                    None if is_socket => {
                        walk.sockets.insert(path, identity(&meta));
                    }
                    None => open.push(path),
                }
            }
        }
        self.keep(&walk);
        Ok(walk)
    }

    /// Keeps the sockets that were known at or below a path that cannot be read now.
    fn keep_known(&self, walk: &mut Walk, path: PathBuf, error: &io::Error) {
        let known = self.known.iter().filter(|(socket, _)| socket.starts_with(&path));
        walk.sockets.extend(known.map(|(socket, identity)| (socket.clone(), *identity)));
        walk.unreadable.insert(path, error.kind());
    }

    /// Watches a directory. A directory that is watched already keeps its descriptor.
    fn watch(&mut self, dir: &Path, walk: &mut Walk) {
        let Some(inotify) = &self.inotify else { return };
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR
            | WatchFlags::DONT_FOLLOW;
        match inotify::add_watch(inotify.get_ref(), dir, flags) {
            Ok(descriptor) => {
                walk.watches.insert(descriptor, dir.to_owned());
                // Events that are read before the end of the walk need the path.
                self.watches.insert(descriptor, dir.to_owned());
            }
            Err(Errno::NOENT | Errno::NOTDIR) if dir != self.dir => {}
            // The walk reports it. The directory is walked again without an event.
            Err(Errno::ACCESS | Errno::NAMETOOLONG) if dir != self.dir => {}
            Err(error) => {
                let source = error.into();
                walk.problem.get_or_insert(WatchError::Io { step: "watch", path: dir.to_owned(), source });
            }
        }
    }

    /// Ends the watches of directories that the walk did not find.
    fn keep(&mut self, walk: &Walk) {
        let Some(inotify) = &self.inotify else { return };
        self.watches.retain(|descriptor, _| {
            let keep = walk.watches.contains_key(descriptor);
            if !keep {
                // An error means that the watch ended with its directory.
                let _ = inotify::remove_watch(inotify.get_ref(), *descriptor);
            }
            keep
        });
    }

    /// Reads all events. Returns whether there were any.
    fn read_events(&mut self) -> bool {
        let Some(inotify) = &self.inotify else { return false };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(inotify.get_ref(), &mut buffer);
        let mut is_changed = false;
        // The queue is bounded, but other processes can fill it while it is read.
        for _ in 0..100_000 {
            // On an error other than an empty queue, nothing is lost: the next walk finds all changes itself.
            let Ok(event) = reader.next() else { break };
            // The end of a watch that `keep` removed is no change.
            is_changed |= event.events() != ReadFlags::IGNORED;
            let is_new = event.events().intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO);
            if let (true, Some(dir), Some(name)) = (is_new, self.watches.get(&event.wd()), event.file_name()) {
                self.created.insert(dir.join(OsStr::from_bytes(name.to_bytes())));
            }
        }
        is_changed
    }
}

/// Creates the registry directory if it is missing, and checks it.
fn ensure_dir(dir: &Path) -> Result<(), WatchError> {
    let created = DirBuilder::new().mode(DIR_MODE).recursive(true).create(dir);
    // For a link or a file at the path, the check below gives a clearer error.
    let meta = match (fs::symlink_metadata(dir), created) {
        (Ok(meta), _) => meta,
        (Err(_), Err(source)) => return Err(WatchError::Io { step: "create", path: dir.to_owned(), source }),
        (Err(source), Ok(())) => return Err(WatchError::Io { step: "check", path: dir.to_owned(), source }),
    };
    if !meta.is_dir() {
        return Err(WatchError::NotDirectory(dir.to_owned()));
    }
    match distrust(&meta, rustix::process::geteuid().as_raw()) {
        None => Ok(()),
        Some(why) => Err(WatchError::Untrusted { path: dir.to_owned(), why }),
    }
}

fn identity(meta: &Metadata) -> Identity {
    let born = meta.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
    Identity { device: meta.dev(), inode: meta.ino(), born: born.map(|born| born.as_nanos()) }
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".")
}

#[cfg(test)]
mod tests;
