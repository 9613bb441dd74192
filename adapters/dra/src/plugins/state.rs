//! Decides what to do about each registration socket. Pure.
//!
//! ```text
//!             desired, not registered                       success
//!     Idle --------------------------------> Running ------------------> Idle
//!      ^      registered, not desired,        |                           |
//!      |      or under another generation     | failure                   | neither desired nor registered
//!      |                                      v                           v
//!      `------ due, or a new generation --- Delayed                   (forgotten)
//! ```
//!
//! A path has at most one operation at a time. Operations on different paths do not wait for each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use podwright_model::time::Time;

use super::Plugin;

/// The delay after the first failure. It doubles with each further failure (upstream `initialDurationBeforeRetry`, kubelet 1.36).
const FIRST_DELAY: Duration = Duration::from_millis(500);
/// The longest delay (upstream `maxDurationBeforeRetry`, kubelet 1.36).
const LONGEST_DELAY: Duration = Duration::from_secs(122);

/// Distinguishes the sockets that have existed at one path. Upstream draws random ids. Numbers that are never reused serve as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Generation(u64);

/// What distinguishes a socket from a later one at the same path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) device: u64,
    pub(super) inode: u64,
    /// The time of its creation, if the file system records it. File systems reuse inode numbers.
    pub(super) born: Option<u128>,
}

/// The sockets that a walk found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    pub(super) sockets: BTreeMap<PathBuf, Identity>,
    /// The paths at which something was created since the last walk. They include a socket that was removed and
    /// created again between two walks.
    pub(super) created: BTreeSet<PathBuf>,
}

/// What happened.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// A walk found these sockets and no others.
    Listed(Listing),
    /// The running registration of this path has validated the plugin and is about to register it.
    Entered(PathBuf, Plugin),
    /// The running registration of this path failed after it entered the plugin.
    Left(PathBuf),
    /// The running operation of this path ended.
    Done(PathBuf, Result<(), String>),
    /// A delay may have passed.
    Due,
}

/// An operation that has to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Registers the plugin behind this socket.
    Register(PathBuf),
    /// Deregisters the plugin that was registered from this socket.
    Deregister(PathBuf, Plugin),
}

impl Operation {
    /// The path of the registration socket.
    pub(super) fn path(&self) -> &Path {
        match self {
            Operation::Register(path) | Operation::Deregister(path, _) => path,
        }
    }
}

/// All registration sockets.
#[derive(Clone, Debug, Default)]
pub(super) struct Sockets {
    sockets: BTreeMap<PathBuf, Socket>,
    last_generation: u64,
}

/// One registration socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Socket {
    /// The socket that exists at the path.
    pub(super) desired: Option<(Generation, Identity)>,
    /// The plugin that is registered, and the socket from which it was.
    pub(super) registered: Option<(Generation, Plugin)>,
    pub(super) work: Work,
}

/// The operation on a path, if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Idle,
    /// An operation runs. A registration is for `generation`; `None` is a deregistration.
    Running {
        generation: Option<Generation>,
        /// The failures before it.
        failures: u32,
    },
    /// The last operation failed.
    Delayed {
        until: Time,
        failures: u32,
        error: String,
    },
}

impl Sockets {
    /// Applies an event. Returns the operations to start, deregistrations first.
    #[must_use]
    pub(super) fn step(&mut self, event: Event, now: Time) -> Vec<Operation> {
        match event {
            Event::Listed(listing) => self.listed(listing),
            Event::Entered(path, plugin) => {
                if let Some(socket) = self.sockets.get_mut(&path)
                    && let Work::Running { generation: Some(generation), .. } = socket.work
                {
                    socket.registered = Some((generation, plugin));
                }
            }
            Event::Left(path) => {
                if let Some(socket) = self.sockets.get_mut(&path) {
                    socket.registered = None;
                }
            }
            Event::Done(path, result) => self.done(&path, result, now),
            Event::Due => {}
        }
        self.start(now)
    }

    /// When the next delay ends.
    pub(super) fn next_due(&self) -> Option<Time> {
        let due = |socket: &Socket| match socket.work {
            Work::Delayed { until, .. } => Some(until),
            Work::Idle | Work::Running { .. } => None,
        };
        self.sockets.values().filter_map(due).min()
    }

    /// Whether anything is known about a path.
    pub(super) fn contains(&self, path: &Path) -> bool {
        self.sockets.contains_key(path)
    }

    /// All paths, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Path, &Socket)> {
        self.sockets.iter().map(|(path, socket)| (&**path, socket))
    }

    fn listed(&mut self, Listing { sockets, created }: Listing) {
        for (path, socket) in &mut self.sockets {
            if !sockets.contains_key(path) {
                socket.desired = None;
            }
        }
        for (path, identity) in sockets {
            let is_new = created.contains(&path);
            let socket =
                self.sockets.entry(path).or_insert(Socket { desired: None, registered: None, work: Work::Idle });
            if !is_new && socket.desired.is_some_and(|(_, known)| known == identity) {
                continue;
            }
            self.last_generation += 1;
            socket.desired = Some((Generation(self.last_generation), identity));
            // The failures were those of an earlier socket at the path.
            match &mut socket.work {
                Work::Delayed { .. } => socket.work = Work::Idle,
                Work::Running { failures, .. } => *failures = 0,
                Work::Idle => {}
            }
        }
    }

    fn done(&mut self, path: &Path, result: Result<(), String>, now: Time) {
        let Some(socket) = self.sockets.get_mut(path) else { return };
        let Work::Running { generation, failures } = socket.work else { return };
        let is_outdated = generation.is_some() && generation != socket.desired_generation();
        match result {
            Ok(()) => socket.work = Work::Idle,
            Err(error) => {
                socket.registered = None;
                socket.work = if is_outdated {
                    Work::Idle
                } else {
                    let failures = failures.saturating_add(1);
                    Work::Delayed { until: now + delay_after(failures), failures, error }
                };
            }
        }
    }

    /// Starts the operations that are due.
    fn start(&mut self, now: Time) -> Vec<Operation> {
        self.sockets.retain(|_, socket| !socket.is_forgotten());
        let (mut deregister, mut register) = (Vec::new(), Vec::new());
        for (path, socket) in &mut self.sockets {
            let failures = match socket.work {
                Work::Idle => 0,
                Work::Delayed { until, failures, .. } if until <= now => failures,
                Work::Delayed { .. } | Work::Running { .. } => continue,
            };
            let desired = socket.desired_generation();
            match (socket.registered.take(), desired) {
                (Some(registered), Some(generation)) if registered.0 == generation => {
                    socket.registered = Some(registered);
                    socket.work = Work::Idle;
                }
                (Some((_, plugin)), _) => {
                    socket.work = Work::Running { generation: None, failures };
                    deregister.push(Operation::Deregister(path.clone(), plugin));
                }
                (None, Some(_)) => {
                    socket.work = Work::Running { generation: desired, failures };
                    register.push(Operation::Register(path.clone()));
                }
                (None, None) => {}
            }
        }
        deregister.append(&mut register);
        deregister
    }
}

impl Socket {
    fn desired_generation(&self) -> Option<Generation> {
        self.desired.map(|(generation, _)| generation)
    }

    /// Whether the path has neither a socket nor a registered plugin. A delay has no purpose then.
    fn is_forgotten(&self) -> bool {
        self.desired.is_none() && self.registered.is_none() && !matches!(self.work, Work::Running { .. })
    }
}

/// The delay after this many failures in a row.
fn delay_after(failures: u32) -> Duration {
    FIRST_DELAY.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST_DELAY)
}

#[cfg(test)]
mod tests;
