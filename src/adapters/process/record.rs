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

use podwright_actors::text::plain;
use podwright_actors::time::Time;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What a sandbox is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxRecord {
    pub id: String,
    pub uid: String,
    pub name: String,
    pub namespace: String,
    pub attempt: u32,
    pub created_at: u64,
    /// A sandbox does not outlive a boot.
    pub boot_id: String,
    pub stopped: bool,
    /// What the pod asked for: here it is told apart only so that nobody takes the sandbox for one of another mode.
    pub host_network: bool,
    /// The node's addresses when the sandbox was made.
    pub ips: Vec<IpAddr>,
}

/// What a container is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerRecord {
    pub id: String,
    pub sandbox: String,
    pub uid: String,
    pub name: String,
    pub namespace: String,
    pub container: String,
    pub restart_count: u32,
    pub created_at: u64,
    pub spec_hash: u64,
    pub image: String,
    pub image_id: String,
}

/// What a shim runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRecord {
    pub id: String,
    /// Program, leading arguments.
    pub shim: Vec<String>,
    pub command: Vec<String>,
    pub env: Vec<(String, String)>,
    /// The directory that stands for the container's root.
    pub rootfs: PathBuf,
    pub cwd: PathBuf,
    /// What becomes the termination message, relative to `rootfs`.
    pub termination_log: PathBuf,
    pub user: Option<User>,
    pub log: PathBuf,
    pub stop_signal: i32,
    pub cgroup: Option<Cgroup>,
    /// Whether a failed container without a termination message gets the end of its log.
    pub message_from_log: bool,
}

/// Who a container runs as, where that is not the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// A container's cgroup and the limits to set where the controllers are there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    pub path: PathBuf,
    /// Bytes.
    pub memory: Option<u64>,
    /// Thousandths of a processor.
    pub cpu: Option<u64>,
}

/// Who watches over a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShimRecord {
    pub pid: i32,
    pub boot_id: String,
}

/// That a container's command was executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedRecord {
    pub pid: i32,
    pub started_at: u64,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    pub exit_code: i32,
    pub signal: Option<i32>,
    pub reason: String,
    pub message: String,
    pub finished_at: u64,
}

impl ExitRecord {
    /// The exit of a container of which nobody saw the end (upstream's reason and code, kubelet 1.36).
    pub fn unknown(message: String) -> Self {
        ExitRecord {
            exit_code: 137,
            signal: None,
            reason: "ContainerStatusUnknown".into(),
            message,
            finished_at: now().as_nanos(),
        }
    }

    /// The exit of a container whose command could not be executed (code and reason as containerd reports them).
    pub fn start_error(message: String) -> Self {
        ExitRecord { exit_code: 128, signal: None, reason: "StartError".into(), message, finished_at: now().as_nanos() }
    }
}

/// A record could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("{path}: not found", path = .0.display())]
    Missing(PathBuf),
    #[error("{path}: {error}", path = .path.display())]
    Io { path: PathBuf, error: io::Error },
    #[error("{path} is damaged ({what})", path = .path.display())]
    Damaged { path: PathBuf, what: Damage },
}

/// What is wrong with the bytes of a record.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    #[error("no header of a known version")]
    Header,
    #[error("it ends in the header")]
    Short,
    #[error("the checksum does not match")]
    Checksum,
    #[error("{}", plain(&.0.to_string(), 300))]
    Content(serde_json::Error),
}

impl ReadError {
    /// No such record, as opposed to one that cannot be used.
    pub fn is_missing(&self) -> bool {
        matches!(self, ReadError::Missing(_))
    }
}

/// Whether a record must survive a loss of power, or only a loss of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// What it says is void after a reboot.
    Boot,
    /// It still counts.
    Disk,
}

/// Replaces a record atomically.
pub fn write<T: Serialize>(path: &Path, record: &T, durability: Durability) -> io::Result<()> {
    let bytes = encode(record)?;
    let temp = path.with_extension("tmp");
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&temp)?;
    file.write_all(&bytes)?;
    if durability == Durability::Disk {
        file.sync_data()?;
    }
    std::fs::rename(&temp, path)?;
    if durability == Durability::Disk { sync_parent(path) } else { Ok(()) }
}

/// Reads a record.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<T, ReadError> {
    let bytes = std::fs::read(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => ReadError::Missing(path.into()),
        _ => ReadError::Io { path: path.into(), error },
    })?;
    decode(&bytes).map_err(|what| ReadError::Damaged { path: path.into(), what })
}

/// A record as it is on disk.
pub fn encode<T: Serialize>(record: &T) -> serde_json::Result<Vec<u8>> {
    Ok(seal(&serde_json::to_vec(record)?))
}

/// The record that bytes hold, or what is wrong with them.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Damage> {
    serde_json::from_slice(unseal(bytes)?).map_err(Damage::Content)
}

/// Puts the header before the JSON of a record.
pub fn seal(json: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{MAGIC}{:016x}\n", checksum(json)).into_bytes();
    bytes.extend_from_slice(json);
    bytes
}

fn unseal(bytes: &[u8]) -> Result<&[u8], Damage> {
    let rest = bytes.strip_prefix(MAGIC.as_bytes()).ok_or(Damage::Header)?;
    let line = rest.iter().position(|b| *b == b'\n').ok_or(Damage::Short)?;
    let (sum, json) = (&rest[..line], &rest[line + 1..]);
    if sum != format!("{:016x}", checksum(json)).as_bytes() {
        return Err(Damage::Checksum);
    }
    Ok(json)
}

/// Makes the entry of a file in its directory survive a loss of power.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(dir) => File::open(dir)?.sync_data(),
        None => Ok(()),
    }
}

/// The wall clock. Records are compared over restarts and with what shims wrote, so no other clock will do.
pub fn now() -> Time {
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
