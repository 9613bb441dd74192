//! The file operations of a rotation. Everything here blocks.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::os::unix::fs::PermissionsExt;

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::{Limits, LogNames, RotateError, failed, plan};
use crate::log::OpenLog;
use crate::log::dir::OpenLogDir;
use crate::log::file_names;
use crate::regular;

/// The result of the inspection of a log.
pub(super) enum Inspection {
    /// The log is not full.
    Fine,
    /// The log's file does not exist.
    Missing,
    /// The log was full and was moved away. `failed` has the errors with older files.
    Moved { to: String, failed: Vec<RotateError> },
}

pub(super) fn is_small(log: &OpenLog, limits: Limits) -> bool {
    log.dir.open().and_then(|dir| dir.facts(&log.file)).is_ok_and(|facts| facts.size <= limits.max_size)
}

/// Checks a log, and moves it away if it is full. Blocks.
pub(super) fn inspect(log: &OpenLog, limits: Limits, clean_up: bool) -> Result<Inspection, RotateError> {
    let path = log.path();
    let (opened, current) = (log.dir.open(), log.file.as_str());
    let dir = match opened {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Inspection::Missing),
        opened => opened.map_err(failed(&path))?,
    };
    let size = match dir.facts(current) {
        Ok(facts) => facts.size,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Inspection::Missing),
        Err(error) => return Err(failed(&path)(error)),
    };
    let full = size > limits.max_size;
    if !full && !clean_up {
        return Ok(Inspection::Fine);
    }
    let names = log_names(&dir).map_err(failed(&log.dir.path()))?;
    let now = full.then(|| Timestamp::now().to_zoned(TimeZone::UTC).datetime());
    let now = now.and_then(|now| now.with().subsec_nanosecond(0).build().ok());
    let plan = plan(current, &names, limits.max_files, now);
    let failed_at = |name: &str| failed(&path.with_file_name(name));
    let mut failures: Vec<_> = plan.not_regular.iter().map(|name| failed_at(name)(regular::not_regular())).collect();
    for file in plan.remove {
        failures.extend(dir.remove(&file).err().map(failed_at(&file)));
    }
    for (file, to) in plan.compress {
        failures.extend(compress(&dir, &file, &to).err().map(failed_at(&file)));
    }
    match plan.rotate {
        None => failures.into_iter().next().map_or(Ok(Inspection::Fine), Err),
        Some(to) => {
            dir.rename_to_new(current, &to).map_err(failed(&path))?;
            Ok(Inspection::Moved { to, failed: failures })
        }
    }
}

/// The names in a directory, by kind of file.
fn log_names(dir: &OpenLogDir) -> io::Result<LogNames> {
    let mut names = LogNames::default();
    for name in dir.names()? {
        match dir.facts(&name) {
            Ok(_) => names.files.push(name),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(_) => names.others.push(name),
        }
    }
    Ok(names)
}

/// Replaces a file by a compressed file with the same mode.
fn compress(dir: &OpenLogDir, file: &str, to: &str) -> io::Result<()> {
    let mut random = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let temporary = file_names::temporary(to, u128::from_ne_bytes(random));
    let written = write_compressed(dir, file, &temporary).and_then(|()| dir.rename(&temporary, to));
    if let Err(error) = written {
        // The disk may be full, and the unfinished file takes space.
        let _ = dir.remove(&temporary);
        return Err(error);
    }
    dir.remove(file)
}

fn write_compressed(dir: &OpenLogDir, file: &str, temporary: &str) -> io::Result<()> {
    let from = dir.file(file)?;
    let meta = from.metadata()?;
    let to = dir.create(temporary, meta.permissions().mode() & 0o777)?;
    let mut encoder = GzEncoder::new(to, Compression::default());
    // Another program could append to the file faster than it is read.
    io::copy(&mut BufReader::with_capacity(64 << 10, from.take(meta.len())), &mut encoder)?;
    let to = encoder.finish()?;
    // A reader with a `since` time skips the files that were last modified before that time.
    to.set_modified(meta.modified()?)?;
    // The content must be on disk before the uncompressed file is removed.
    to.sync_data()
}
