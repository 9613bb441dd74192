//! Rotates container logs: a full log file is moved away, the container continues in a new file, and old files are compressed
//! and removed (upstream `container_log_manager.go`, kubelet 1.36).
//!
//! No line is lost if the agent dies at any point. A container writes to the file that was moved away until it opens the new
//! one. So a file is compressed at the next rotation at the earliest. If a container's log file is missing, the agent asks
//! the runtime again to open a new one. A compressed file gets its name when it is complete, and only then is the
//! uncompressed file removed.
//!
//! Containers and log collectors may be able to change the log directory. So each file is opened below the log root, without
//! following links, and only if it is a regular file. Anything else with the name of a log file is reported and left alone.

mod files;
mod slots;
mod sort;

use std::collections::{HashMap, HashSet};
use std::io::{self, ErrorKind};
use std::mem::{Discriminant, discriminant};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::ToSpan;
use jiff::civil::DateTime;
use podwright_model::text::error_chain;
use podwright_ports::RuntimeError;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, sleep, timeout};

use self::files::{Inspection, inspect, is_small};
use self::slots::Slots;
use self::sort::Sorter;
use super::file_names::{self, LogFile};
use super::{OpenLog, WritesLogs};

/// How often logs are checked (upstream `containerLogMonitorInterval`).
const INTERVAL: Duration = Duration::from_secs(10);
/// How long a container may take to open a new file.
const REOPENED_WITHIN: Duration = Duration::from_secs(5);
/// The interval between two checks for the new file, if the directory cannot be watched.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// How large logs may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The size in bytes above which a file is rotated; 0 turns rotation off.
    pub max_size: u64,
    /// The maximum number of files of a run, including the file that the container writes to. At least two.
    pub max_files: usize,
}

/// The names in the directory of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LogNames {
    /// The names of regular files.
    pub(super) files: Vec<String>,
    /// The names of links, FIFOs, devices and directories. Rotation leaves them alone.
    pub(super) others: Vec<String>,
}

/// The changes that rotation makes to the files of one log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RotationPlan {
    /// The files to remove.
    pub(super) remove: Vec<String>,
    /// The files to compress, each with its new name.
    pub(super) compress: Vec<(String, String)>,
    /// The new name of the file that is written to; `None` if it is not rotated.
    pub(super) rotate: Option<String>,
    /// The names of the log's files that are not regular files.
    pub(super) not_regular: Vec<String>,
}

/// Plans a rotation from the names in the log's directory. With `now` = `None` nothing is rotated, and only the remains of an
/// interrupted rotation are removed. Two files never get the same name, and their names keep their order even if the clock was
/// set back.
pub(super) fn plan(current: &str, names: &LogNames, max_files: usize, now: Option<DateTime>) -> RotationPlan {
    let rotated = file_names::rotated(current, names.files.iter().map(String::as_str));
    let is_of_log = |name: &&String| file_names::log_file(current, name).is_some();
    let mut plan = RotationPlan {
        not_regular: names.others.iter().filter(is_of_log).cloned().collect(),
        ..RotationPlan::default()
    };
    for file in &names.files {
        let leftover = match file_names::log_file(current, file) {
            Some(LogFile::Temporary) => true,
            Some(LogFile::Rotated(found)) => !rotated.contains(&found),
            Some(LogFile::Current) | None => false,
        };
        if leftover {
            plan.remove.push(file.clone());
        }
    }
    let Some(now) = now else { return plan };
    // Two more files count: the file that is rotated now and the new file.
    let excess = rotated.len().saturating_sub(max_files.saturating_sub(2));
    let (old, kept) = rotated.split_at(excess);
    plan.remove.extend(old.iter().map(|rotated| rotated.name(current)));
    for rotated in kept.iter().filter(|rotated| !rotated.compressed) {
        let compressed = file_names::RotatedFile { compressed: true, ..rotated.clone() };
        plan.compress.push((rotated.name(current), compressed.name(current)));
    }
    // The new name must not be the name of anything else either.
    let others = file_names::rotated(current, names.others.iter().map(String::as_str));
    let last = rotated.last().into_iter().chain(others.last()).map(|last| last.at).max();
    let after = last.and_then(|last| last.checked_add(1.second()).ok());
    let at = after.map_or(now, |after| after.max(now));
    plan.rotate = Some(file_names::RotatedFile { at, compressed: false }.name(current));
    plan
}

/// Why a log could not be rotated.
#[derive(Debug, thiserror::Error)]
pub enum RotateError {
    /// The file system refused an operation.
    #[error("{path}", path = .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The container did not open a new file. The old file was moved back.
    #[error("{path}: the container did not open a new log file", path = .path.display())]
    Reopen {
        /// The log.
        path: PathBuf,
        /// The error of the runtime.
        source: RuntimeError,
    },
    /// The container did not open a new file, and the old file could not be moved back.
    #[error(
        "{path}: the container did not open a new log file ({}), and its old file cannot be moved back from {moved}",
        error_chain(.reopen), path = .path.display(), moved = .moved.display()
    )]
    PutBack {
        /// The log.
        path: PathBuf,
        /// The path of the old file.
        moved: PathBuf,
        /// The error of the runtime.
        reopen: RuntimeError,
        /// Why the old file could not be moved back.
        source: io::Error,
    },
}

impl RotateError {
    /// The file or directory that the error is about.
    fn path(&self) -> &Path {
        match self {
            RotateError::Io { path, .. } | RotateError::Reopen { path, .. } | RotateError::PutBack { path, .. } => path,
        }
    }
}

/// A path and the kind of its failure.
type FailureKey = (PathBuf, Discriminant<RotateError>);

/// The errors of one log's rotation.
#[derive(Debug)]
pub struct Rotation {
    log: PathBuf,
    /// The errors, oldest first. Empty if nothing failed.
    pub errors: Vec<RotateError>,
}

/// Rotates the logs of a runtime's containers. The logs do not wait for one another: a container that does not open its new
/// file delays only its own log, and so does a disk that hangs.
pub struct Rotator {
    logs: Arc<dyn WritesLogs>,
    limits: Limits,
    /// The rotations that have not ended.
    rotations: JoinSet<Rotation>,
    /// The logs of those rotations.
    under_way: HashMap<tokio::task::Id, PathBuf>,
    sorter: Sorter,
    /// Bounds how many files are compressed at once.
    slots: Slots,
    /// The failures of each log's last rotation, each with the text that was logged for it.
    failing: HashMap<PathBuf, HashMap<FailureKey, Option<String>>>,
    /// Whether the next round is the first of this agent.
    first: bool,
}

impl Rotator {
    /// A rotator whose first round also removes the remains of interrupted rotations.
    pub fn new(logs: Arc<dyn WritesLogs>, limits: Limits) -> Self {
        Rotator {
            logs,
            limits,
            rotations: JoinSet::new(),
            under_way: HashMap::new(),
            sorter: Sorter::default(),
            slots: Slots::default(),
            failing: HashMap::new(),
            first: true,
        }
    }

    /// Rotates the logs every ten seconds, for ever. Returns at once if rotation is turned off.
    pub async fn run(mut self) {
        if self.limits.max_size == 0 {
            return;
        }
        let mut tick = tokio::time::interval(INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => match self.logs.open_logs().await {
                    Ok(logs) => self.begin(&logs).await,
                    // The observer reports a runtime that does not answer.
                    Err(error) => tracing::debug!(error = %error_chain(&error), "cannot list the logs to rotate"),
                },
                Some(rotation) = self.next() => {
                    for error in self.unreported(rotation) {
                        tracing::warn!(error, "cannot rotate a log, trying again in 10 s");
                    }
                }
            }
        }
    }

    /// Checks each of these logs once and rotates the full ones. Waits for all of them.
    pub async fn round(&mut self, logs: &[OpenLog]) -> Vec<Rotation> {
        self.begin(logs).await;
        let mut ended = Vec::new();
        while let Some(rotation) = self.next().await {
            ended.push(rotation);
        }
        ended
    }

    /// Begins to rotate the full logs, except for those whose last rotation has not ended.
    async fn begin(&mut self, logs: &[OpenLog]) {
        let clean_up = std::mem::take(&mut self.first);
        let limits = self.limits;
        let idle: Vec<OpenLog> = {
            let busy: HashSet<&PathBuf> = self.under_way.values().collect();
            logs.iter().filter(|log| !busy.contains(&log.path())).cloned().collect()
        };
        let listed: HashSet<PathBuf> = logs.iter().map(OpenLog::path).collect();
        self.failing.retain(|path, _| listed.contains(path));
        // Most logs are not full.
        let sorted = self.sorter.sort(idle, move |log| clean_up || !is_small(log, limits)).await;
        for log in sorted.hanging {
            tracing::warn!(path = %log.display(), "a log is not rotated until its disk answers");
        }
        for log in sorted.small {
            self.failing.remove(&log.path());
        }
        for log in sorted.full {
            let path = log.path();
            let rotation = rotate(Arc::clone(&self.logs), self.limits, self.slots.clone(), log, clean_up);
            self.under_way.insert(self.rotations.spawn(rotation).id(), path);
        }
    }

    /// Waits for the end of one rotation; `None` if none is under way. Cancel safe.
    async fn next(&mut self) -> Option<Rotation> {
        let (id, errors) = match self.rotations.join_next_with_id().await? {
            Ok((id, rotation)) => (id, rotation.errors),
            Err(error) => (error.id(), vec![]),
        };
        let log = self.under_way.remove(&id)?;
        Some(Rotation { log, errors })
    }

    /// The errors of a rotation that were not logged before. A container that does not open a new file may just have ended, so
    /// that error is only logged if it occurs again in the next round.
    pub(super) fn unreported(&mut self, rotation: Rotation) -> Vec<String> {
        let before = self.failing.remove(&rotation.log).unwrap_or_default();
        let mut failing = HashMap::new();
        let mut unreported = Vec::new();
        for error in rotation.errors {
            let key = (error.path().to_owned(), discriminant(&error));
            let known = before.get(&key);
            let text = match error {
                RotateError::Reopen { .. } if known.is_none() => None,
                error => Some(error_chain(&error).to_string()),
            };
            if known.and_then(Option::as_ref) != text.as_ref() {
                unreported.extend(text.clone());
            }
            failing.insert(key, text);
        }
        if !failing.is_empty() {
            self.failing.insert(rotation.log, failing);
        }
        unreported
    }
}

/// Rotates one log if it is full. An error with an older file does not prevent the rotation.
async fn rotate(logs: Arc<dyn WritesLogs>, limits: Limits, slots: Slots, log: OpenLog, clean_up: bool) -> Rotation {
    let path = log.path();
    let mut errors = Vec::new();
    let inspection = {
        let log = log.clone();
        let inspection = slots.work(move || inspect(&log, limits, clean_up)).await;
        inspection.unwrap_or_else(|error| Err(failed(&path)(error)))
    };
    let done = match inspection {
        Ok(Inspection::Fine) => Ok(()),
        // An earlier agent died after it had moved the log away.
        Ok(Inspection::Missing) => {
            reopen(&*logs, &log).await.map_err(|source| RotateError::Reopen { path: path.clone(), source })
        }
        Ok(Inspection::Moved { to, failed }) => {
            errors.extend(failed);
            match reopen(&*logs, &log).await {
                Ok(()) => Ok(()),
                Err(error) => put_back(log, to, error).await,
            }
        }
        Err(error) => Err(error),
    };
    errors.extend(done.err());
    Rotation { log: path, errors }
}

/// Makes the container open a new file and waits until it has.
async fn reopen(logs: &dyn WritesLogs, log: &OpenLog) -> Result<(), RuntimeError> {
    let (dir, runtime) = (log.dir.clone(), Handle::current());
    let watch = move || {
        let _runtime = runtime.enter();
        dir.open()?.watch()
    };
    let watch = tokio::task::spawn_blocking(watch).await.unwrap_or_else(|error| Err(io::Error::other(error)));
    logs.reopen_log(&log.container).await?;
    let appears = async {
        let path = log.path();
        while !tokio::fs::try_exists(&path).await.unwrap_or(false) {
            match &watch {
                Ok(watch) if watch.changed().await.is_ok() => {}
                _ => sleep(CHECK_INTERVAL).await,
            }
        }
    };
    let appeared = timeout(REOPENED_WITHIN, appears).await;
    appeared.map_err(|_| RuntimeError::Timeout { call: "reopening the log", after: REOPENED_WITHIN })
}

/// Moves a log back that its container did not open again.
async fn put_back(log: OpenLog, moved: String, reopen: RuntimeError) -> Result<(), RotateError> {
    let path = log.path();
    let old = path.with_file_name(&moved);
    let back = move || log.dir.open()?.rename_to_new(&moved, &log.file);
    match tokio::task::spawn_blocking(back).await.unwrap_or_else(|error| Err(io::Error::other(error))) {
        Ok(()) => Err(RotateError::Reopen { path, source: reopen }),
        // The container opened a new file after all, or the logs were removed with their pod.
        Err(error) if matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) => Ok(()),
        Err(source) => Err(RotateError::PutBack { path, moved: old, reopen, source }),
    }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> RotateError + use<> {
    let path = path.to_owned();
    move |source| RotateError::Io { path: path.clone(), source }
}

#[cfg(test)]
mod tests;
