//! Keeping logs small: a full one is moved away, its container goes on in a new one, and old ones are compressed and removed
//! (upstream `container_log_manager.go`, kubelet 1.36).
//!
//! No line is lost whenever the agent goes down. What was moved away is still written to until its container went on: it is
//! compressed with the next rotation at the earliest, and a container whose log is not there is told again to go on. A
//! compressed file takes its name once it is whole, and only then the other one goes.

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
use rustix::fs::{CWD, RenameFlags, renameat_with};
use tokio::time::{Instant, MissedTickBehavior, sleep};

use super::file_names::{self, LogFile};
use super::{OpenLog, WritesLogs};

/// How often logs are inspection at (upstream `containerLogMonitorInterval`).
const INTERVAL: Duration = Duration::from_secs(10);
/// How long a container may take to go on in a new file.
const REOPENED_WITHIN: Duration = Duration::from_secs(5);
/// How often to look whether it has.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// How large logs may grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a file from which on it is moved away; 0 for never.
    pub max_size: u64,
    /// Files of one run, the one that is written to included; two at the least.
    pub max_files: usize,
}

/// What to do with the files of one log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RotationPlan {
    /// Files to remove.
    pub(super) remove: Vec<String>,
    /// Files to compress, and what they are called then.
    pub(super) compress: Vec<(String, String)>,
    /// What the file is to be called that is written to; none if it stays.
    pub(super) rotate: Option<String>,
}

/// Decides by the names of the files in a directory. Without a time nothing is rotated, and only what an earlier agent did not
/// finish is removed. Two files never get the same name, and a clock that went back does not change their order.
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
    // One more comes, and the one that is written to counts.
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

/// A log could not be rotated.
#[derive(Debug, thiserror::Error)]
pub enum RotateError {
    /// The file system refused.
    #[error("{path}: {error}", path = .path.display())]
    Io {
        /// Which file or directory.
        path: PathBuf,
        /// What it said.
        error: io::Error,
    },
    /// The container does not go on in a new file, and the old one is where it was.
    #[error("{path}: its container does not begin a new file: {error}", path = .path.display())]
    Reopen {
        /// The log.
        path: PathBuf,
        /// Why not.
        error: RuntimeError,
    },
    /// The same, and the old one could not be moved back.
    #[error(
        "{path}: its container does not begin a new file ({reopen}), and what it writes to cannot be moved back from \
         {moved}: {error}", path = .path.display(), moved = .moved.display()
    )]
    PutBack {
        /// The log.
        path: PathBuf,
        /// Where it is.
        moved: PathBuf,
        /// Why the container does not go on.
        reopen: RuntimeError,
        /// Why it cannot be moved back.
        error: io::Error,
    },
}

impl RotateError {
    /// Which file or directory it is about.
    fn path(&self) -> &Path {
        match self {
            RotateError::Io { path, .. } | RotateError::Reopen { path, .. } | RotateError::PutBack { path, .. } => path,
        }
    }
}

/// Which file, and in what way.
type FailureKey = (PathBuf, Discriminant<RotateError>);

/// Rotates the logs of a runtime's containers, one after the other.
pub struct Rotator {
    logs: Arc<dyn WritesLogs>,
    limits: Limits,
    /// What went wrong in the last round, and what was told of it.
    failing: HashMap<FailureKey, Option<String>>,
    /// The next round is the first of this agent.
    first: bool,
}

impl Rotator {
    /// None was inspection at yet.
    pub fn new(logs: Arc<dyn WritesLogs>, limits: Limits) -> Self {
        Rotator { logs, limits, failing: HashMap::new(), first: true }
    }

    /// Rotates for ever; ends at once if nothing is to be rotated.
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
                    // Whoever lists pods tells of a runtime that is away.
                    tracing::debug!(%error, "logs were not inspection at");
                    continue;
                }
            };
            let errors = self.round(&logs).await;
            for error in self.unreported(errors) {
                tracing::warn!(error, "log was not rotated; it is tried again");
            }
        }
    }

    /// Looks at each of these logs once. Answers with what went wrong.
    pub async fn round(&mut self, logs: &[OpenLog]) -> Vec<RotateError> {
        let tidy = std::mem::take(&mut self.first);
        let mut errors = Vec::new();
        // Hardly ever is there anything to do, and that is found out of all at once.
        let limits = self.limits;
        let paths: Vec<PathBuf> = logs.iter().map(|log| log.path.clone()).collect();
        let small = move || paths.into_iter().filter(|path| !tidy && is_small(path, limits)).collect();
        let small: HashSet<PathBuf> = tokio::task::spawn_blocking(small).await.unwrap_or_default();
        for log in logs.iter().filter(|log| !small.contains(&log.path)) {
            let done = self.one(log, tidy, &mut errors).await;
            errors.extend(done.err());
        }
        errors
    }

    /// What of a round's errors to tell, once. A container that does not go on may have ended in that very moment: that
    /// is worth a word if it is still there in the next round.
    pub(super) fn unreported(&mut self, errors: Vec<RotateError>) -> Vec<String> {
        let before = std::mem::take(&mut self.failing);
        let mut news = Vec::new();
        for error in errors {
            let failing = (error.path().to_owned(), discriminant(&error));
            let known = before.get(&failing);
            let told = match error {
                RotateError::Reopen { .. } if known.is_none() => None,
                error => Some(error.to_string()),
            };
            if known.and_then(Option::as_ref) != told.as_ref() {
                news.extend(told.clone());
            }
            self.failing.insert(failing, told);
        }
        news
    }

    /// What goes wrong with older files stands in nobody's way; it goes to `errors`.
    async fn one(&self, log: &OpenLog, tidy: bool, errors: &mut Vec<RotateError>) -> Result<(), RotateError> {
        let (path, limits) = (log.path.clone(), self.limits);
        let inspection = tokio::task::spawn_blocking(move || inspect(&path, limits, tidy)).await;
        let inspection = inspection.unwrap_or_else(|error| Err(failed(&log.path)(io::Error::other(error))))?;
        let moved = match inspection {
            Inspection::Fine => return Ok(()),
            // An earlier agent went down after it had moved the log away.
            Inspection::Missing => None,
            Inspection::Moved { to, failed } => {
                errors.extend(failed);
                Some(to)
            }
        };
        let Err(reopen) = self.reopen(log).await else { return Ok(()) };
        let path = log.path.clone();
        let Some(moved) = moved else { return Err(RotateError::Reopen { path, error: reopen }) };
        match renameat_with(CWD, &moved, CWD, &path, RenameFlags::NOREPLACE) {
            Ok(()) => Err(RotateError::Reopen { path, error: reopen }),
            // It went on after all, or its pod is gone and its logs with it.
            Err(rustix::io::Errno::EXIST | rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(RotateError::PutBack { path, moved, reopen, error: error.into() }),
        }
    }

    /// Has the container go on, and waits until it has.
    async fn reopen(&self, log: &OpenLog) -> Result<(), RuntimeError> {
        self.logs.reopen_log(&log.container).await?;
        let limit = Instant::now() + REOPENED_WITHIN;
        while !tokio::fs::try_exists(&log.path).await.unwrap_or(false) {
            if Instant::now() > limit {
                return Err(RuntimeError::Timeout { call: "reopening the log", after: REOPENED_WITHIN });
            }
            sleep(LOOK_AGAIN).await;
        }
        Ok(())
    }
}

/// What a look at a log came to.
enum Inspection {
    /// Nothing is to be done.
    Fine,
    /// It is not there.
    Missing,
    /// It was full. What went wrong with older ones stands beside.
    Moved { to: PathBuf, failed: Vec<RotateError> },
}

fn failed(path: &Path) -> impl Fn(io::Error) -> RotateError {
    let path = path.to_owned();
    move |error| RotateError::Io { path: path.clone(), error }
}

fn is_small(path: &Path, limits: Limits) -> bool {
    fs::symlink_metadata(path).is_ok_and(|meta| meta.len() <= limits.max_size)
}

/// Looks at a log, and moves it away if it is full. Blocks.
fn inspect(path: &Path, limits: Limits, tidy: bool) -> Result<Inspection, RotateError> {
    let size = match fs::symlink_metadata(path) {
        Ok(meta) => meta.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Inspection::Missing),
        Err(error) => return Err(failed(path)(error)),
    };
    let full = size > limits.max_size;
    let (Some(dir), Some(current)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Ok(Inspection::Fine);
    };
    if !full && !tidy {
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

/// The names of the files in a directory.
pub(super) fn list(dir: &Path) -> io::Result<Vec<String>> {
    let names = fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
    names.filter_map(Result::transpose).collect()
}

/// Writes what a file holds compressed, for whom could read the file, and removes it.
fn compress(file: &Path, to: &Path) -> io::Result<()> {
    let name = to.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let temporary = to.with_file_name(file_names::temporary(name));
    let written = write_compressed(file, &temporary);
    if let Err(error) = written {
        // It would only take the room that is missing.
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
    // When it was written last says what it tells of.
    to.set_modified(meta.modified()?)?;
    // Before it takes the place of the other one.
    to.sync_data()
}

#[cfg(test)]
mod tests;
