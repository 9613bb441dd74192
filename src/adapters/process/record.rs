//! What is on disk: records with a checksum, replaced atomically.
//!
//! A record is one line of header, `podwright 1 <checksum in hex>`, and JSON. The checksum tells a torn or edited file
//! from a good one; it is no protection against malice, which the directory's mode is for.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use podwright_actors::time::Time;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What a sandbox is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SandboxRecord {
    pub(super) id: String,
    pub(super) uid: String,
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) attempt: u32,
    pub(super) created_at: u64,
    /// A sandbox does not outlive a boot.
    pub(super) boot_id: String,
    pub(super) stopped: bool,
    /// What the pod asked for: here it is told apart only so that nobody takes the sandbox for one of another mode.
    pub(super) host_network: bool,
    /// The node's addresses when the sandbox was made.
    pub(super) ips: Vec<IpAddr>,
}

/// What a container is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ContainerRecord {
    pub(super) id: String,
    pub(super) sandbox: String,
    pub(super) uid: String,
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) container: String,
    pub(super) restart_count: u32,
    pub(super) created_at: u64,
    pub(super) spec_hash: u64,
    pub(super) image: String,
    pub(super) image_id: String,
}

/// What a shim runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RunRecord {
    pub(super) id: String,
    /// Program, leading arguments.
    pub(super) shim: Vec<String>,
    pub(super) command: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    /// The directory that stands for the container's root.
    pub(super) rootfs: PathBuf,
    pub(super) cwd: PathBuf,
    /// What becomes the termination message, relative to `rootfs`.
    pub(super) termination_log: PathBuf,
    pub(super) user: Option<User>,
    pub(super) log: PathBuf,
    pub(super) stop_signal: i32,
    pub(super) cgroup: Option<Cgroup>,
    /// Whether a failed container without a termination message gets the end of its log.
    pub(super) message_from_log: bool,
}

/// Who a container runs as, where that is not the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: Vec<u32>,
}

/// A container's cgroup and the limits to set where the controllers are there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cgroup {
    pub(super) path: PathBuf,
    /// Bytes.
    pub(super) memory: Option<u64>,
    /// Thousandths of a processor.
    pub(super) cpu: Option<u64>,
}

/// Who watches over a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ShimRecord {
    pub(super) pid: i32,
    pub(super) boot_id: String,
}

/// That a container's command was executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StartedRecord {
    pub(super) pid: i32,
    pub(super) started_at: u64,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ExitRecord {
    pub(super) exit_code: i32,
    pub(super) signal: Option<i32>,
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) finished_at: u64,
}

impl ExitRecord {
    /// The exit of a container of which nobody saw the end (upstream's reason and code, kubelet 1.36).
    pub(super) fn unknown(message: String) -> Self {
        ExitRecord {
            exit_code: 137,
            signal: None,
            reason: "ContainerStatusUnknown".into(),
            message,
            finished_at: now().as_nanos(),
        }
    }

    /// The exit of a container whose command could not be executed (code and reason as containerd reports them).
    pub(super) fn start_error(message: String) -> Self {
        ExitRecord { exit_code: 128, signal: None, reason: "StartError".into(), message, finished_at: now().as_nanos() }
    }
}

/// A record could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("{path}: not found", path = .0.display())]
    Missing(PathBuf),
    #[error("{path}: {error}", path = .path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{path} is damaged ({what})", path = .path.display())]
    Damaged { path: PathBuf, what: String },
}

impl ReadError {
    /// No such record, as opposed to one that cannot be used.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self, ReadError::Missing(_))
    }
}

/// Whether a record must survive a loss of power, or only a loss of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durability {
    /// What it says is void after a reboot.
    Boot,
    /// It still counts.
    Disk,
}

/// Replaces a record atomically.
pub(super) fn write<T: Serialize>(path: &Path, record: &T, durability: Durability) -> io::Result<()> {
    let json = serde_json::to_vec(record)?;
    let temp = path.with_extension("tmp");
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&temp)?;
    let mut bytes = format!("{MAGIC}{:016x}\n", checksum(&json)).into_bytes();
    bytes.extend_from_slice(&json);
    file.write_all(&bytes)?;
    if durability == Durability::Disk {
        file.sync_data()?;
    }
    std::fs::rename(&temp, path)?;
    if durability == Durability::Disk { sync_parent(path) } else { Ok(()) }
}

/// Reads a record.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<T, ReadError> {
    let damaged = |what: &str| ReadError::Damaged { path: path.into(), what: what.into() };
    let bytes = std::fs::read(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => ReadError::Missing(path.into()),
        _ => ReadError::Io { path: path.into(), error },
    })?;
    let rest = bytes.strip_prefix(MAGIC.as_bytes()).ok_or_else(|| damaged("no header of a known version"))?;
    let line = rest.iter().position(|b| *b == b'\n').ok_or_else(|| damaged("it ends in the header"))?;
    let (sum, json) = (&rest[..line], &rest[line + 1..]);
    if sum != format!("{:016x}", checksum(json)).as_bytes() {
        return Err(damaged("the checksum does not match"));
    }
    serde_json::from_slice(json).map_err(|error| damaged(&error.to_string()))
}

/// Makes the entry of a file in its directory survive a loss of power.
pub(super) fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(dir) => File::open(dir)?.sync_data(),
        None => Ok(()),
    }
}

/// The wall clock. Records are compared over restarts and with what shims wrote, so no other clock will do.
pub(super) fn now() -> Time {
    Time::ZERO + SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

const MAGIC: &str = "podwright 1 ";

/// 64-bit FNV-1a.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> StartedRecord {
        StartedRecord { pid: 12, started_at: 34 }
    }

    #[test]
    fn a_record_comes_back_as_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("started");
        write(&path, &sample(), Durability::Disk).unwrap();
        assert_eq!(read::<StartedRecord>(&path).unwrap(), sample());
    }

    #[test]
    fn any_changed_or_missing_byte_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("started");
        write(&path, &sample(), Durability::Boot).unwrap();
        let good = std::fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            std::fs::write(&path, &bad).unwrap();
            assert!(matches!(read::<StartedRecord>(&path), Err(ReadError::Damaged { .. })), "changed at {at}");
            std::fs::write(&path, &good[..at]).unwrap();
            assert!(matches!(read::<StartedRecord>(&path), Err(ReadError::Damaged { .. })), "cut at {at}");
        }
        assert!(read::<StartedRecord>(&dir.path().join("none")).unwrap_err().is_missing());
    }
}
