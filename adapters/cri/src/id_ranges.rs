//! Ranges of the node's user and group IDs, for pods with a user namespace of their own. Everything here blocks.
//!
//! The range of a pod is recorded only in a file of the pod's directory, in the kubelet's format. A restarted agent finds the
//! range there. When the directory is removed, the range is free again.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use parking_lot::Mutex;
use podwright_host::record::{self, Durability};
use podwright_host::step_error::StepError;
use podwright_ports::RuntimeError;
use serde::{Deserialize, Serialize};

use super::config::HostIdRange;

/// The file in a pod's directory (upstream `userns.mappingsFile`, kubelet 1.36).
const FILE: &str = "userns";
/// The numbers of the ranges that pods can get: all ranges of 32-bit IDs except the first, which has the node's own IDs, and the
/// last, which contains the reserved ID 4294967295.
const RANGES: std::ops::Range<u32> = 1..65_535;

/// Assigns ranges to pods. The lock is held while a range is assigned.
#[derive(Debug, Default)]
pub(super) struct IdRanges(Mutex<()>);

/// The content of the file.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mappings {
    uid_mappings: Vec<Mapping>,
    gid_mappings: Vec<Mapping>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    host_id: u32,
    container_id: u32,
    length: u32,
}

impl IdRanges {
    /// The range of a pod: the recorded one, or else the first free range. `pods` is the directory of the pods.
    pub(super) fn of_pod(&self, pods: &Path, uid: &str) -> Result<HostIdRange, RuntimeError> {
        let _lock = self.0.lock();
        let own = pods.join(uid).join(FILE);
        let failed = |error: io::Error| RuntimeError::failed(StepError::new(own.display().to_string(), error));
        if let Some(ids) = read(&own).map_err(failed)? {
            return Ok(ids);
        }
        let mut taken = BTreeSet::new();
        for entry in fs::read_dir(pods).map_err(failed)? {
            // A file that cannot be read is an error, because its pod may have any range.
            taken.extend(read(&entry.map_err(failed)?.path().join(FILE)).map_err(failed)?.map(|ids| ids.first));
        }
        let free = RANGES
            .map(|range| HostIdRange { first: range * HostIdRange::LENGTH })
            .find(|ids| !taken.contains(&ids.first));
        let ids = free.ok_or_else(|| {
            RuntimeError::config(
                "spec.hostUsers is false, and all ranges of user IDs are in use: remove pods".to_owned(),
            )
        })?;
        write(&own, ids).map_err(failed)?;
        Ok(ids)
    }
}

fn read(path: &Path) -> io::Result<Option<HostIdRange>> {
    let text = match fs::read(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        text => text?,
    };
    let bad =
        |why: String| io::Error::new(ErrorKind::InvalidData, format!("{}: {why}: remove the file", path.display()));
    let mappings: Mappings = serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
    match mappings.uid_mappings.as_slice() {
        [one]
            if one.container_id == 0 && one.length == HostIdRange::LENGTH && one.host_id % HostIdRange::LENGTH == 0 =>
        {
            Ok(Some(HostIdRange { first: one.host_id }))
        }
        _ => Err(bad("not one range of 65536 ids".to_owned())),
    }
}

/// Writes the file atomically. The range is on disk before the runtime uses it.
fn write(path: &Path, ids: HostIdRange) -> io::Result<()> {
    let mapping = || vec![Mapping { host_id: ids.first, container_id: 0, length: HostIdRange::LENGTH }];
    let text = serde_json::to_vec(&Mappings { uid_mappings: mapping(), gid_mappings: mapping() })?;
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    record::replace(path, &text, Durability::Disk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_keeps_its_range_of_user_ids_until_its_directory_is_removed() {
        let pods = tempfile::tempdir().unwrap();
        let ranges = IdRanges::default();
        let of =
            |ranges: &IdRanges, uid: &str| ranges.of_pod(pods.path(), uid).map(|ids| ids.first / HostIdRange::LENGTH);
        assert_eq!((of(&ranges, "a"), of(&ranges, "b"), of(&ranges, "a")), (Ok(1), Ok(2), Ok(1)));
        // The agent restarts, and a pod is removed.
        let ranges = IdRanges::default();
        assert_eq!(of(&ranges, "b"), Ok(2));
        fs::remove_dir_all(pods.path().join("a")).unwrap();
        assert_eq!((of(&ranges, "c"), of(&ranges, "d")), (Ok(1), Ok(3)));

        // A link of another program at the temporary name is not followed.
        let other = pods.path().join("other");
        fs::write(&other, "other").unwrap();
        fs::create_dir(pods.path().join("f")).unwrap();
        for name in ["userns.new", ".userns.tmp"] {
            std::os::unix::fs::symlink(&other, pods.path().join("f").join(name)).unwrap();
        }
        assert_eq!(of(&ranges, "f"), Ok(4));
        assert_eq!(fs::read_to_string(&other).unwrap(), "other");

        fs::write(pods.path().join("c").join(FILE), "{}").unwrap();
        let refused = podwright_model::text::error_chain(&of(&ranges, "e").unwrap_err()).to_string();
        assert!(refused.contains("c/userns") && refused.contains("remove the file"), "{refused}");
    }
}
