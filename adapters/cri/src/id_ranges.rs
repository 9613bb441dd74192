//! Ranges of the node's user and group IDs, for pods with a user namespace of their own. Everything here blocks.
//!
//! The range of a pod is recorded only in a file of the pod's directory, in the kubelet's format. A restarted agent finds the
//! range there. When the directory is removed, the range is free again. The ranges of a kubelet's pods and the subordinate IDs of the
//! machine's users are not for other pods.

mod choose;

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use podwright_host::record::{self, Durability};
use podwright_host::step_error::StepError;
use podwright_ports::RuntimeError;
use serde::{Deserialize, Serialize};

use super::config::HostIdRange;
use choose::{IdSpan, SubordinateIds, choose};

/// The file in a pod's directory (upstream `userns.mappingsFile`, kubelet 1.36).
const FILE: &str = "userns";
/// The directory with the subordinate IDs of the machine's users.
const ETC: &str = "/etc";

/// Assigns ranges to pods.
#[derive(Debug)]
pub(super) struct IdRanges {
    /// Held while a range is assigned.
    lock: Mutex<()>,
    /// The directory with the files `subuid` and `subgid`.
    etc: PathBuf,
}

/// The content of the file.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mappings {
    uid_mappings: Vec<Mapping>,
    gid_mappings: Vec<Mapping>,
}

/// The IDs of one pod. A kubelet may give a pod more than one range (`userNamespaces.idsPerPod`).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mapping {
    host_id: u32,
    container_id: u32,
    length: u32,
}

impl Mapping {
    /// The range that the agent maps to the pod.
    fn range(self) -> HostIdRange {
        HostIdRange { first: self.host_id }
    }

    fn span(self) -> IdSpan {
        IdSpan::new(self.host_id, self.length)
    }
}

impl IdRanges {
    /// Ranges of this machine.
    pub(super) fn of_machine() -> Self {
        IdRanges::new(ETC)
    }

    /// Ranges of a machine whose files of subordinate IDs are in this directory.
    fn new(etc: impl Into<PathBuf>) -> Self {
        IdRanges { lock: Mutex::new(()), etc: etc.into() }
    }

    /// The range of a pod: the recorded one, the one that a kubelet gave to the pod, or else the first free range. `pods` is the directory
    /// of the pods, and `kubelet` that of the kubelet's pods.
    pub(super) fn of_pod(&self, pods: &Path, kubelet: &Path, uid: &str) -> Result<HostIdRange, RuntimeError> {
        let _lock = self.lock.lock();
        let own = pods.join(uid).join(FILE);
        let failed = |error: io::Error| RuntimeError::failed(StepError::new(own.display().to_string(), error));
        if let Some(recorded) = read(&own).map_err(failed)? {
            return Ok(recorded.range());
        }
        let mapping = match read(&kubelet.join(uid).join(FILE)).map_err(failed)? {
            // The sandbox that the kubelet made has this range.
            Some(of_kubelet) => of_kubelet,
            None => {
                let (users, groups) = (self.subordinate("subuid")?, self.subordinate("subgid")?);
                let mut taken = taken(pods).map_err(failed)?;
                taken.extend(taken_by_kubelet(kubelet)?);
                let ids = choose(&taken, &users, &groups).ok_or_else(|| self.exhausted())?;
                Mapping { host_id: ids.first, container_id: 0, length: HostIdRange::LENGTH }
            }
        };
        write(&own, mapping).map_err(failed)?;
        Ok(mapping.range())
    }

    fn subordinate(&self, file: &str) -> Result<SubordinateIds, RuntimeError> {
        let path = self.etc.join(file);
        match fs::read(&path) {
            Ok(text) => Ok(SubordinateIds::parse(&String::from_utf8_lossy(&text))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(SubordinateIds::default()),
            Err(error) => Err(RuntimeError::failed(StepError::new(path.display().to_string(), error))),
        }
    }

    fn exhausted(&self) -> RuntimeError {
        RuntimeError::config(format!(
            "spec.hostUsers is false, and all ranges of user IDs are in use or belong to users of the machine: remove pods, or give the \
             user kubelet the same ranges in {etc}/subuid and {etc}/subgid, each a multiple of 65536",
            etc = self.etc.display()
        ))
    }
}

/// The ranges of all pods in a directory.
fn taken(pods: &Path) -> io::Result<Vec<IdSpan>> {
    let mut taken = Vec::new();
    let entries = match fs::read_dir(pods) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(taken),
        entries => entries?,
    };
    for entry in entries {
        // A file that cannot be read is an error, because its pod may have any range.
        taken.extend(read(&entry?.path().join(FILE))?.map(Mapping::span));
    }
    Ok(taken)
}

fn taken_by_kubelet(pods: &Path) -> Result<Vec<IdSpan>, RuntimeError> {
    taken(pods).map_err(|error| RuntimeError::failed(StepError::new(pods.display().to_string(), error)))
}

/// The IDs in a file.
fn read(path: &Path) -> io::Result<Option<Mapping>> {
    let text = match fs::read(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        text => text?,
    };
    let bad =
        |why: String| io::Error::new(ErrorKind::InvalidData, format!("{}: {why}: remove the file", path.display()));
    let mappings: Mappings = serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
    let is_whole = |ids: u32| ids.is_multiple_of(HostIdRange::LENGTH);
    match mappings.uid_mappings.as_slice() {
        [one] if one.container_id == 0 && is_whole(one.host_id) && one.length > 0 && is_whole(one.length) => {
            Ok(Some(*one))
        }
        _ => Err(bad("not one range of a multiple of 65536 ids".to_owned())),
    }
}

/// Writes the file atomically. The range is on disk before the runtime uses it.
fn write(path: &Path, ids: Mapping) -> io::Result<()> {
    let text = serde_json::to_vec(&Mappings { uid_mappings: vec![ids], gid_mappings: vec![ids] })?;
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    record::replace(path, &text, Durability::Disk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_keeps_its_range_of_user_ids_until_its_directory_is_removed() {
        let pods = tempfile::tempdir().unwrap();
        let absent = pods.path().join("absent");
        let new = || IdRanges::new(&absent);
        let ranges = new();
        let of = |ranges: &IdRanges, uid: &str| {
            ranges.of_pod(pods.path(), &absent, uid).map(|ids| ids.first / HostIdRange::LENGTH)
        };
        assert_eq!((of(&ranges, "a"), of(&ranges, "b"), of(&ranges, "a")), (Ok(1), Ok(2), Ok(1)));
        // The agent restarts, and a pod is removed.
        let ranges = new();
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

    #[test]
    fn ranges_of_a_kubelet_and_of_users_are_not_given_to_other_pods() {
        let root = tempfile::tempdir().unwrap();
        let dir = |name: &str| {
            let dir = root.path().join(name);
            fs::create_dir(&dir).unwrap();
            dir
        };
        let (pods, kubelet, etc) = (dir("pods"), dir("kubelet"), dir("etc"));
        let of_kubelet = |uid: &str, range: u32, ranges: u32| {
            let (host_id, length) = (range * HostIdRange::LENGTH, ranges * HostIdRange::LENGTH);
            write(&kubelet.join(uid).join(FILE), Mapping { host_id, container_id: 0, length }).unwrap();
        };
        of_kubelet("first", 1, 1);
        of_kubelet("wide", 4, 2);
        fs::create_dir(kubelet.join("without")).unwrap();
        fs::write(etc.join("subuid"), "eve:131072:65536\n").unwrap();
        let ranges = IdRanges::new(&etc);
        let of = |uid: &str| ranges.of_pod(&pods, &kubelet, uid).map(|ids| ids.first / HostIdRange::LENGTH);
        assert_eq!((of("new"), of("newer")), (Ok(3), Ok(6)));
        assert_eq!((of("first"), of("wide"), of("without")), (Ok(1), Ok(4), Ok(7)), "an adopted pod keeps its range");
        // The range stays when the directory of the kubelet's pod is removed.
        fs::remove_dir_all(&kubelet).unwrap();
        assert_eq!((of("first"), of("last")), (Ok(1), Ok(8)));

        fs::write(etc.join("subgid"), "kubelet:655360:65536\n").unwrap();
        let refused = podwright_model::text::error_chain(&of("none").unwrap_err()).to_string();
        assert!(refused.contains("etc/subuid") && refused.contains("user kubelet"), "{refused}");
        fs::write(etc.join("subuid"), "eve:131072:65536\nkubelet:655360:65536\n").unwrap();
        assert_eq!(of("none"), Ok(10));
    }
}
