//! Rotates container logs: a full log file is moved away, the container continues in a new file, and old files are compressed
//! and removed (upstream `container_log_manager.go`, kubelet 1.36).
//!
//! No line is lost if the agent dies at any point. A container writes to the file that was moved away until it opens the new
//! one. So a file is compressed at the next rotation at the earliest. If a container's log file is missing, the agent asks
//! the runtime again to open a new one. A compressed file gets its name when it is complete, and only then is the
//! uncompressed file removed.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader};
use std::mem::{Discriminant, discriminant};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use podwright_actors::ports::RuntimeError;
use podwright_actors::text::error_chain;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use tokio::time::{Instant, MissedTickBehavior, sleep};

use super::file_names::{self, LogFile};
use super::{OpenLog, WritesLogs};

/// How often logs are checked (upstream `containerLogMonitorInterval`).
const INTERVAL: Duration = Duration::from_secs(10);
/// How long a container may take to open a new file.
const REOPENED_WITHIN: Duration = Duration::from_secs(5);
/// The interval between two checks for the new file.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// How large logs may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The size in bytes above which a file is rotated; 0 turns rotation off.
    pub max_size: u64,
    /// The maximum number of files of a run, including the file that the container writes to. At least two.
    pub max_files: usize,
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
}

/// Plans a rotation from the names of the files in the log's directory. With `now` = `None` nothing is rotated, and only the
/// remains of an interrupted rotation are removed. Two files never get the same name, and their names keep their order even
/// if the clock was set back.
pub(super) fn plan(current: &str, files: &[String], max_files: usize, now: Option<DateTime>) -> RotationPlan {
    let rotated = file_names::rotated(current, files.iter().map(String::as_str));
    let mut plan = RotationPlan::default();
    for file in files {
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
    let after = rotated.last().and_then(|last| last.at.checked_add(1.second()).ok());
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

/// Rotates the logs of a runtime's containers, one after the other.
pub struct Rotator {
    logs: Arc<dyn WritesLogs>,
    limits: Limits,
    /// The failures of the last round, each with the text that was logged for it.
    failing: HashMap<FailureKey, Option<String>>,
    /// Whether the next round is the first of this agent.
    first: bool,
}

impl Rotator {
    /// A rotator whose first round also removes the remains of interrupted rotations.
    pub fn new(logs: Arc<dyn WritesLogs>, limits: Limits) -> Self {
        Rotator { logs, limits, failing: HashMap::new(), first: true }
    }

    /// Rotates the logs every ten seconds, for ever. Returns at once if rotation is turned off.
    pub async fn run(mut self) {
        if self.limits.max_size == 0 {
            return;
        }
        let mut tick = tokio::time::interval(INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let logs = match self.logs.open_logs().await {
                Ok(logs) => logs,
                Err(error) => {
                    // The observer reports a runtime that does not answer.
                    tracing::debug!(error = %error_chain(&error), "cannot list the logs to rotate");
                    continue;
                }
            };
            let errors = self.round(&logs).await;
            for error in self.unreported(errors) {
                tracing::warn!(error, "cannot rotate a log, trying again in 10 s");
            }
        }
    }

    /// Checks each of these logs once, rotates the full ones, and returns the errors.
    pub async fn round(&mut self, logs: &[OpenLog]) -> Vec<RotateError> {
        let clean_up = std::mem::take(&mut self.first);
        let mut errors = Vec::new();
        // Most logs are not full. One blocking call finds all of those.
        let limits = self.limits;
        let paths: Vec<PathBuf> = logs.iter().map(|log| log.path.clone()).collect();
        let small = move || paths.into_iter().filter(|path| !clean_up && is_small(path, limits)).collect();
        let small: HashSet<PathBuf> = tokio::task::spawn_blocking(small).await.unwrap_or_default();
        for log in logs.iter().filter(|log| !small.contains(&log.path)) {
            let done = self.rotate(log, clean_up, &mut errors).await;
            errors.extend(done.err());
        }
        errors
    }

    /// The errors of a round that were not logged before. A container that does not open a new file may just have ended, so
    /// that error is only logged if it occurs again in the next round.
    pub(super) fn unreported(&mut self, errors: Vec<RotateError>) -> Vec<String> {
        let before = std::mem::take(&mut self.failing);
        let mut unreported = Vec::new();
        for error in errors {
            let key = (error.path().to_owned(), discriminant(&error));
            let known = before.get(&key);
            let text = match error {
                RotateError::Reopen { .. } if known.is_none() => None,
                error => Some(error_chain(&error).to_string()),
            };
            if known.and_then(Option::as_ref) != text.as_ref() {
                unreported.extend(text.clone());
            }
            self.failing.insert(key, text);
        }
        unreported
    }

    /// Rotates one log if it is full. An error with an older file does not prevent the rotation. That error is added to
    /// `errors`.
    async fn rotate(&self, log: &OpenLog, clean_up: bool, errors: &mut Vec<RotateError>) -> Result<(), RotateError> {
        let (path, limits) = (log.path.clone(), self.limits);
        let inspection = tokio::task::spawn_blocking(move || inspect(&path, limits, clean_up)).await;
        let inspection = inspection.unwrap_or_else(|error| Err(failed(&log.path)(io::Error::other(error))))?;
        let moved = match inspection {
            Inspection::Fine => return Ok(()),
            // An earlier agent died after it had moved the log away.
            Inspection::Missing => None,
            Inspection::Moved { to, failed } => {
                errors.extend(failed);
                Some(to)
            }
        };
        let Err(reopen) = self.reopen(log).await else { return Ok(()) };
        let path = log.path.clone();
        let Some(moved) = moved else { return Err(RotateError::Reopen { path, source: reopen }) };
        match renameat_with(CWD, &moved, CWD, &path, RenameFlags::NOREPLACE) {
            Ok(()) => Err(RotateError::Reopen { path, source: reopen }),
            // The container opened a new file after all, or the logs were removed with their pod.
            Err(rustix::io::Errno::EXIST | rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(RotateError::PutBack { path, moved, reopen, source: error.into() }),
        }
    }

    /// Makes the container open a new file and waits until it has.
    async fn reopen(&self, log: &OpenLog) -> Result<(), RuntimeError> {
        self.logs.reopen_log(&log.container).await?;
        let limit = Instant::now() + REOPENED_WITHIN;
        while !tokio::fs::try_exists(&log.path).await.unwrap_or(false) {
            if Instant::now() > limit {
                return Err(RuntimeError::Timeout { call: "reopening the log", after: REOPENED_WITHIN });
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}

/// The result of the inspection of a log.
enum Inspection {
    /// The log is not full.
    Fine,
    /// The log's file does not exist.
    Missing,
    /// The log was full and was moved away. `failed` has the errors with older files.
    Moved { to: PathBuf, failed: Vec<RotateError> },
}

fn failed(path: &Path) -> impl Fn(io::Error) -> RotateError {
    let path = path.to_owned();
    move |source| RotateError::Io { path: path.clone(), source }
}

fn is_small(path: &Path, limits: Limits) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.len() <= limits.max_size)
}

/// Checks a log, and moves it away if it is full. Blocks.
fn inspect(path: &Path, limits: Limits, clean_up: bool) -> Result<Inspection, RotateError> {
    let size = match fs::symlink_metadata(path) {
        Ok(meta) => meta.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Inspection::Missing),
        Err(error) => return Err(failed(path)(error)),
    };
    let full = size > limits.max_size;
    let (Some(dir), Some(current)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Ok(Inspection::Fine);
    };
    if !full && !clean_up {
        return Ok(Inspection::Fine);
    }
    let files = list(dir).map_err(failed(dir))?;
    let now = full.then(|| Timestamp::now().to_zoned(TimeZone::UTC).datetime());
    let now = now.and_then(|now| now.with().subsec_nanosecond(0).build().ok());
    let plan = plan(current, &files, limits.max_files, now);
    let mut failures = Vec::new();
    for file in plan.remove {
        let file = dir.join(file);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => failures.push(failed(&file)(error)),
            _ => {}
        }
    }
    for (file, to) in plan.compress {
        let file = dir.join(file);
        failures.extend(compress(&file, &dir.join(to)).err().map(failed(&file)));
    }
    match plan.rotate.map(|name| dir.join(name)) {
        None => failures.into_iter().next().map_or(Ok(Inspection::Fine), Err),
        Some(to) => {
            renameat_with(CWD, path, CWD, &to, RenameFlags::NOREPLACE).map_err(|error| failed(path)(error.into()))?;
            Ok(Inspection::Moved { to, failed: failures })
        }
    }
}

/// The names of the files in a directory. Names that are not UTF-8 are left out.
pub(super) fn list(dir: &Path) -> io::Result<Vec<String>> {
    let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
    names.filter_map(Result::transpose).collect()
}

/// Replaces a file by a compressed file with the same mode.
fn compress(file: &Path, to: &Path) -> io::Result<()> {
    let name = to.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let temporary = to.with_file_name(file_names::temporary(name));
    let written = write_compressed(file, &temporary);
    if let Err(error) = written {
        // The disk may be full, and the unfinished file takes space.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    fs::rename(&temporary, to)?;
    fs::remove_file(file)
}

fn write_compressed(file: &Path, temporary: &Path) -> io::Result<()> {
    let mut from = BufReader::with_capacity(64 << 10, File::open(file)?);
    let meta = from.get_ref().metadata()?;
    let mode = meta.permissions().mode() & 0o777;
    let to = OpenOptions::new().create(true).truncate(true).write(true).mode(mode).open(temporary)?;
    let mut encoder = GzEncoder::new(to, Compression::default());
    io::copy(&mut from, &mut encoder)?;
    let to = encoder.finish()?;
    // A reader with a `since` time skips the files that were last modified before that time.
    to.set_modified(meta.modified()?)?;
    // The content must be on disk before the uncompressed file is removed.
    to.sync_data()
}

#[cfg(test)]
mod tests;
