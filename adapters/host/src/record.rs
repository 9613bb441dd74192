//! Record files with a checksum, which are replaced atomically.
//!
//! A record file has a header line, `podwright 1 <checksum in hex>`, and its content as JSON. The checksum detects a torn or
//! edited file. It does not protect against an attacker; the mode of the directory does. In a file that grows, each line has
//! its own checksum.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use podwright_model::text::plain;
use rustix::fs::OFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::regular;

/// Why a record could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The record at this path does not exist.
    #[error("{path}: not found", path = .0.display())]
    Missing(PathBuf),
    /// The file cannot be read, or must not be trusted.
    #[error("{path}: {error}", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why it cannot be read.
        error: io::Error,
    },
    /// The file does not have the bytes of a record.
    #[error("{path} is damaged ({what})", path = .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// How it is damaged.
        what: Damage,
    },
}

/// How the bytes of a record are damaged.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// The header is missing or of an unknown version.
    #[error("the header is missing or of an unknown version")]
    Header,
    /// The file ends in the header.
    #[error("the file ends in the header")]
    Short,
    /// The checksum does not match the content.
    #[error("the checksum does not match")]
    Checksum,
    /// The content is not that of the record.
    #[error("{}", plain(&.0.to_string(), 300))]
    Content(serde_json::Error),
}

impl ReadError {
    /// Whether the record does not exist. False if it exists but cannot be read.
    pub fn is_missing(&self) -> bool {
        matches!(self, ReadError::Missing(_))
    }
}

/// Whether a record must survive a loss of power, or only the end of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The record is void after a reboot.
    Boot,
    /// The record is valid after a reboot.
    Disk,
}

/// Replaces a record atomically.
pub fn write<T: Serialize>(path: &Path, record: &T, durability: Durability) -> io::Result<()> {
    replace(path, &encode(record)?, durability)
}

/// Replaces a file atomically by these bytes.
pub fn replace(path: &Path, bytes: &[u8], durability: Durability) -> io::Result<()> {
    let temp = temporary(path);
    let written = || {
        // Whatever has the name is removed, not opened: the remains of an earlier write, or a link of another program.
        match std::fs::remove_file(&temp) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&temp)?;
        file.write_all(bytes)?;
        if durability == Durability::Disk {
            file.sync_data()?;
        }
        std::fs::rename(&temp, path)
    };
    written().inspect_err(|_| {
        // The disk may be full, and the unfinished file takes space.
        let _ = std::fs::remove_file(&temp);
    })?;
    if durability == Durability::Disk { sync_parent(path) } else { Ok(()) }
}

/// The temporary file beside a file. Its name begins with a dot, so that readers of the directory ignore it.
fn temporary(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".tmp");
    path.with_file_name(name)
}

/// Reads a record.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<T, ReadError> {
    decode(&bytes(path)?).map_err(|what| ReadError::Damaged { path: path.into(), what })
}

/// Reads the bytes of a regular file of this process's user.
///
/// # Errors
/// [`ReadError::Io`] also if the file belongs to another user, who may have put it there: a record says what is run.
pub fn bytes(path: &Path) -> Result<Vec<u8>, ReadError> {
    bytes_up_to(path, u64::MAX)
}

/// Reads the bytes of a regular file of this process's user, which has at most `limit` bytes.
///
/// # Errors
/// As [`bytes`], and [`ReadError::Io`] if the file is larger.
pub fn bytes_up_to(path: &Path, limit: u64) -> Result<Vec<u8>, ReadError> {
    let read = || {
        // A FIFO does not block, and a link is not followed: another user may have put it there.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)?;
        let (meta, user) = (file.metadata()?, rustix::process::geteuid().as_raw());
        // The read below reports a directory.
        if !meta.is_file() && !meta.is_dir() {
            return Err(regular::not_regular());
        }
        if meta.uid() != user {
            let text = format!(
                "it belongs to user {} and not to user {user}, so its content must not be trusted: move it away",
                meta.uid()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        if meta.len() > limit {
            let text = format!("it has {} bytes, and at most {limit} are read", meta.len());
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or_default());
        file.take(limit).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => ReadError::Missing(path.into()),
        _ => ReadError::Io { path: path.into(), error },
    })
}

/// The bytes of a record's file.
pub fn encode<T: Serialize>(record: &T) -> serde_json::Result<Vec<u8>> {
    Ok(seal(&serde_json::to_vec(record)?))
}

/// Decodes the bytes of a record's file.
///
/// # Errors
/// How the bytes are damaged.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Damage> {
    serde_json::from_slice(unseal(bytes)?).map_err(Damage::Content)
}

/// Puts the header before the content of a record.
pub fn seal(json: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{MAGIC}{}\n", checksum(json)).into_bytes();
    bytes.extend_from_slice(json);
    bytes
}

fn unseal(bytes: &[u8]) -> Result<&[u8], Damage> {
    let rest = bytes.strip_prefix(MAGIC.as_bytes()).ok_or(Damage::Header)?;
    let line = rest.iter().position(|b| *b == b'\n').ok_or(Damage::Short)?;
    let (sum, json) = (&rest[..line], &rest[line + 1..]);
    if sum != checksum(json).as_bytes() {
        return Err(Damage::Checksum);
    }
    Ok(json)
}

/// A line with a checksum before its text. The text must have no line break.
pub fn seal_line(text: &str) -> String {
    format!("{} {text}\n", checksum(text.as_bytes()))
}

/// The text of a line with a checksum, given without its newline. `None` if the line is damaged.
pub fn unseal_line(line: &[u8]) -> Option<&str> {
    let (sum, text) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    (sum == checksum(text.as_bytes())).then_some(text)
}

/// Syncs the directory of a file to disk, so that the file's name survives a loss of power.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(dir) => File::open(dir)?.sync_data(),
        None => Ok(()),
    }
}

const MAGIC: &str = "podwright 1 ";

/// 64-bit FNV-1a in hex.
fn checksum(bytes: &[u8]) -> String {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, serde::Deserialize)]
    struct Sample {
        pid: i32,
        started_at: u64,
    }

    fn sample() -> Sample {
        Sample { pid: 12, started_at: 34 }
    }

    #[test]
    fn record_is_read_back_as_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("started");
        write(&path, &sample(), Durability::Disk).unwrap();
        assert_eq!(read::<Sample>(&path).unwrap(), sample());
    }

    #[test]
    fn replacing_a_record_writes_through_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("started"), dir.path().join("other"));
        std::fs::write(&other, "other").unwrap();
        std::os::unix::fs::symlink(&other, dir.path().join(".started.tmp")).unwrap();
        write(&path, &sample(), Durability::Boot).unwrap();
        assert_eq!(read::<Sample>(&path).unwrap(), sample());
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "other");
        assert!(!path.is_symlink());
    }

    /// The rest of a write that was cut off has a hidden name, which readers of the directory ignore.
    #[test]
    fn temporary_file_is_hidden() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("started");
        // A directory at the temporary name is in the way of a write.
        std::fs::create_dir(dir.path().join(".started.tmp")).unwrap();
        write(&path, &sample(), Durability::Disk).unwrap_err();
        std::fs::remove_dir(dir.path().join(".started.tmp")).unwrap();
        // A directory cannot be replaced by a file, so this write fails at its end.
        std::fs::create_dir_all(path.join("x")).unwrap();
        write(&path, &sample(), Durability::Disk).unwrap_err();
        let names = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["started"], "nothing is left");
    }

    #[test]
    fn record_with_a_changed_or_missing_byte_is_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("started");
        write(&path, &sample(), Durability::Boot).unwrap();
        let good = std::fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&path, &bad).unwrap();
            assert!(matches!(read::<Sample>(&path), Err(ReadError::Damaged { .. })), "changed at {at}");
            std::fs::write(&path, &good[..at]).unwrap();
            assert!(matches!(read::<Sample>(&path), Err(ReadError::Damaged { .. })), "cut at {at}");
        }
        assert!(read::<Sample>(&dir.path().join("none")).unwrap_err().is_missing());
    }
}
