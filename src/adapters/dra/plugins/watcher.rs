//! Watches the registry directory and the directories below it (inotify), and lists the sockets in them.
//!
//! Events only say when to walk the directories again, and which paths were created since the last walk. So a lost event, for
//! example after an overflow of the queue, costs nothing but time.

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

/// How often the directories are walked without an event. Nothing reports, for example, that a parent of the registry directory
/// was renamed.
pub(super) const CHECK_PERIOD: Duration = Duration::from_secs(20);
/// How often the directories are walked while they cannot be watched.
pub(super) const RETRY_PERIOD: Duration = Duration::from_secs(1);
/// The mode of the registry directory (upstream `pluginwatcher`, kubelet 1.36).
const DIR_MODE: u32 = 0o750;
/// How often a walk is repeated at most because something changed during it.
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

/// Why a file is not used. Whoever puts a socket into the registry directory gets the claims of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Distrust {
    #[error("it belongs to user {0}")]
    Owner(u32),
    #[error("other users can write to it (mode {0:04o})")]
    Mode(u32),
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
}

/// What a walk found.
#[derive(Default)]
struct Walk {
    sockets: BTreeMap<PathBuf, Identity>,
    watches: HashMap<i32, PathBuf>,
    refused: BTreeMap<PathBuf, Distrust>,
    /// The first directory that cannot be watched.
    problem: Option<WatchError>,
}

impl Watcher {
    /// A watcher that has not begun.
    pub(super) fn new(dir: PathBuf) -> Self {
        Watcher {
            // Without a slash at its end, which would make the system follow a link there.
            dir: dir.components().collect(),
            user: rustix::process::geteuid().as_raw(),
            inotify: None,
            watches: HashMap::new(),
            created: BTreeSet::new(),
            refused: BTreeMap::new(),
        }
    }

    /// Waits until something may have changed since the last listing. Pends for ever if nothing is watched. Cancel safe.
    pub(super) async fn changed(&mut self) {
        loop {
            let Some(inotify) = &self.inotify else { return std::future::pending().await };
            let Ok(mut ready) = inotify.readable().await else { return };
            // A walk reads events too, and the notification of these may come afterwards.
            if rustix::io::ioctl_fionread(inotify.get_ref()).is_ok_and(|bytes| bytes == 0) {
                ready.clear_ready();
            } else {
                return;
            }
        }
    }

    /// Walks the directories, and watches those that are not watched yet. A listing may have a problem: it is complete, but changes
    /// are not noticed. Must be called in a tokio runtime.
    pub(super) async fn list(mut self) -> (Result<(Listing, Option<WatchError>), WatchError>, Self) {
        // Registering a descriptor with tokio needs the runtime, which the thread below has not.
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

    /// Walks until nothing is created during the walk. Otherwise a socket could be listed before its event, and the event would look
    /// like a second socket at the same path.
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
                // Another process has removed it. The registry directory itself is made again by the next walk.
                Err(error) if error.kind() == io::ErrorKind::NotFound && dir != self.dir => continue,
                Err(source) => return Err(WatchError::Io { step: "list", path: dir, source }),
            };
            for entry in entries {
                let entry = entry.map_err(|source| WatchError::Io { step: "list", path: dir.clone(), source })?;
                if is_hidden(&entry.file_name()) {
                    continue;
                }
                let path = entry.path();
                // Does not follow links: a link may lead to a place that another user controls.
                let meta = match entry.metadata() {
                    Ok(meta) => meta,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(source) => return Err(WatchError::Io { step: "check", path, source }),
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
        // The queue is bounded, but others can fill it while it is read.
        for _ in 0..100_000 {
            // Any error but an empty queue is repeated by the next walk, which finds all changes itself.
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
    // The error of a link or a file at the path says less than the check below.
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

/// Why a file in the registry directory is not used: another user than root and the agent's could have put it there, or, if it is
/// a directory, could put sockets into it. Anyone may write to a socket; that only lets them connect to the plugin.
fn distrust(meta: &Metadata, user: u32) -> Option<Distrust> {
    let mode = meta.mode() & 0o7777;
    if meta.uid() != 0 && meta.uid() != user {
        Some(Distrust::Owner(meta.uid()))
    } else if meta.is_dir() && mode & 0o022 != 0 {
        Some(Distrust::Mode(mode))
    } else {
        None
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
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::os::unix::net::UnixListener;

    use super::*;

    struct Fixture {
        dir: tempfile::TempDir,
        watcher: Option<Watcher>,
    }

    impl Fixture {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let watcher = Some(Watcher::new(dir.path().join("plugins_registry/")));
            Fixture { dir, watcher }
        }

        fn root(&self) -> PathBuf {
            self.dir.path().join("plugins_registry")
        }

        fn path(&self, name: &str) -> PathBuf {
            self.root().join(name)
        }

        /// The names of all sockets, and of those that were created since the last listing.
        async fn list(&mut self) -> (Vec<String>, Vec<String>) {
            let (listing, watcher) = self.watcher.take().unwrap().list().await;
            self.watcher = Some(watcher);
            let (listing, problem) = listing.unwrap();
            assert!(problem.is_none(), "{problem:?}");
            let root = self.root();
            let name = |path: &PathBuf| path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
            (listing.sockets.keys().map(name).collect(), listing.created.iter().map(name).collect())
        }

        async fn error(&mut self) -> WatchError {
            let (listing, watcher) = self.watcher.take().unwrap().list().await;
            self.watcher = Some(watcher);
            listing.unwrap_err()
        }

        async fn changed(&mut self) {
            let changed = self.watcher.as_mut().unwrap().changed();
            tokio::time::timeout(Duration::from_secs(20), changed).await.expect("a change is noticed");
        }

        async fn is_quiet(&mut self) -> bool {
            let changed = self.watcher.as_mut().unwrap().changed();
            tokio::time::timeout(Duration::from_millis(100), changed).await.is_err()
        }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[tokio::test]
    async fn the_directory_is_created_for_the_agent_and_its_group() {
        let mut node = Fixture::new();
        assert_eq!(node.list().await, (vec![], vec![]));
        assert_eq!(fs::metadata(node.root()).unwrap().mode() & 0o7777, 0o750);
    }

    /// DRA-R2: sockets in new and nested directories are found; files, hidden names and links are not.
    #[tokio::test]
    async fn sockets_are_found_at_any_depth() {
        let mut node = Fixture::new();
        node.list().await;
        let _a = UnixListener::bind(node.path("a.sock")).unwrap();
        node.changed().await;
        assert_eq!(node.list().await, (names(&["a.sock"]), names(&["a.sock"])));
        assert!(node.is_quiet().await, "the events were read by the walk");
        fs::create_dir_all(node.path("x/y")).unwrap();
        let _b = UnixListener::bind(node.path("x/y/b.sock")).unwrap();
        node.changed().await;
        let found = node.list().await.0;
        assert_eq!(found, names(&["a.sock", "x/y/b.sock"]));
        fs::create_dir(node.path(".hidden")).unwrap();
        let _c = UnixListener::bind(node.path(".hidden/c.sock")).unwrap();
        let _d = UnixListener::bind(node.path(".d.sock")).unwrap();
        fs::write(node.path("file"), "").unwrap();
        symlink(node.path("a.sock"), node.path("link.sock")).unwrap();
        symlink(node.path(".hidden"), node.path("link")).unwrap();
        assert_eq!(node.list().await.0, found);
        let _e = UnixListener::bind(node.path("x/y/e.sock")).unwrap();
        node.changed().await;
        assert_eq!(node.list().await.1, names(&["x/y/e.sock"]), "new directories are watched");
        fs::remove_dir_all(node.path("x")).unwrap();
        node.changed().await;
        assert_eq!(node.list().await.0, names(&["a.sock"]));
    }

    #[tokio::test]
    async fn a_socket_that_was_created_again_between_two_walks_is_new() {
        let mut node = Fixture::new();
        node.list().await;
        let first = UnixListener::bind(node.path("a.sock")).unwrap();
        node.list().await;
        drop(first);
        fs::remove_file(node.path("a.sock")).unwrap();
        let _second = UnixListener::bind(node.path("a.sock")).unwrap();
        assert_eq!(node.list().await, (names(&["a.sock"]), names(&["a.sock"])));
        fs::rename(node.path("a.sock"), node.path("b.sock")).unwrap();
        node.changed().await;
        assert_eq!(node.list().await, (names(&["b.sock"]), names(&["b.sock"])));
    }

    #[tokio::test]
    async fn a_registry_directory_that_is_replaced_is_watched_again() {
        let mut node = Fixture::new();
        node.list().await;
        let _a = UnixListener::bind(node.path("a.sock")).unwrap();
        fs::rename(node.root(), node.dir.path().join("old")).unwrap();
        node.changed().await;
        assert_eq!(node.list().await.0, names(&[]));
        let _b = UnixListener::bind(node.path("b.sock")).unwrap();
        node.changed().await;
        assert_eq!(node.list().await.0, names(&["b.sock"]));
    }

    #[tokio::test]
    async fn a_registry_directory_that_cannot_be_trusted_is_not_used() {
        let mut node = Fixture::new();
        fs::write(node.root(), "").unwrap();
        assert!(matches!(node.error().await, WatchError::NotDirectory(_)));
        fs::remove_file(node.root()).unwrap();
        symlink(node.dir.path(), node.root()).unwrap();
        assert!(matches!(node.error().await, WatchError::NotDirectory(_)), "a link");
        fs::remove_file(node.root()).unwrap();
        fs::create_dir(node.root()).unwrap();
        for mode in [0o770, 0o757, 0o1777] {
            fs::set_permissions(node.root(), fs::Permissions::from_mode(mode)).unwrap();
            let error = node.error().await;
            assert!(
                matches!(error, WatchError::Untrusted { why: Distrust::Mode(found), .. } if found == mode),
                "{error}"
            );
        }
        fs::set_permissions(node.root(), fs::Permissions::from_mode(0o755)).unwrap();
        node.list().await;
    }

    #[tokio::test]
    async fn sockets_of_other_users_are_ignored() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can give files to other users");
            return;
        }
        let mut node = Fixture::new();
        node.list().await;
        let _a = UnixListener::bind(node.path("a.sock")).unwrap();
        chown(node.path("a.sock"), Some(65534), None).unwrap();
        fs::create_dir(node.path("theirs")).unwrap();
        let _b = UnixListener::bind(node.path("theirs/b.sock")).unwrap();
        chown(node.path("theirs"), Some(65534), None).unwrap();
        fs::create_dir(node.path("open")).unwrap();
        let _c = UnixListener::bind(node.path("open/c.sock")).unwrap();
        fs::set_permissions(node.path("open"), fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(node.list().await.0, names(&[]));
        chown(node.path("a.sock"), Some(0), None).unwrap();
        node.changed().await;
        assert_eq!(node.list().await.0, names(&["a.sock"]));
    }
}
