//! Ids of the node for pods that have users of their own. Everything here blocks.
//!
//! Which range a pod has stands in a file of its directory, as a kubelet writes it, and nowhere else: the range is free when the
//! directory is removed, and an agent that comes later finds it.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use parking_lot::Mutex;
use podwright_actors::ports::RuntimeError;
use serde::{Deserialize, Serialize};

use super::config::HostIds;

/// The file in a pod's directory (upstream `userns.mappingsFile`, kubelet 1.36).
const FILE: &str = "userns";
/// How many ranges there are: all 32-bit ids but those of the node itself, which are the first, and the last, in which is what
/// stands for "nobody".
const RANGES: std::ops::Range<u32> = 1..65_535;

/// Hands out the ranges.
#[derive(Debug, Default)]
pub(super) struct Users(Mutex<()>);

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

impl Users {
    /// The range of a pod: the one that it has, or the first that no other pod has.
    pub(super) fn of_pod(&self, pods: &Path, uid: &str) -> Result<HostIds, RuntimeError> {
        let _one_at_a_time = self.0.lock();
        let own = pods.join(uid).join(FILE);
        let failed = |error: io::Error| RuntimeError::Failed(format!("{}: {error}", own.display()));
        if let Some(ids) = read(&own).map_err(failed)? {
            return Ok(ids);
        }
        let mut taken = BTreeSet::new();
        for entry in fs::read_dir(pods).map_err(failed)? {
            // One that cannot be read might be anything.
            taken.extend(read(&entry.map_err(failed)?.path().join(FILE)).map_err(failed)?.map(|ids| ids.first));
        }
        let free =
            RANGES.map(|range| HostIds { first: range * HostIds::LENGTH }).find(|ids| !taken.contains(&ids.first));
        let ids = free.ok_or_else(|| {
            RuntimeError::Config("spec.hostUsers is false, and every range of users is taken: remove pods".to_owned())
        })?;
        write(&own, ids).map_err(failed)?;
        Ok(ids)
    }
}

fn read(path: &Path) -> io::Result<Option<HostIds>> {
    let text = match fs::read(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        text => text?,
    };
    let bad =
        |why: String| io::Error::new(ErrorKind::InvalidData, format!("{}: {why}: remove the file", path.display()));
    let mappings: Mappings = serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
    match mappings.uid_mappings.as_slice() {
        [one] if one.container_id == 0 && one.length == HostIds::LENGTH && one.host_id % HostIds::LENGTH == 0 => {
            Ok(Some(HostIds { first: one.host_id }))
        }
        _ => Err(bad("not one range of 65536 ids".to_owned())),
    }
}

/// On disk before it is used (the runtime is told next), and whole.
fn write(path: &Path, ids: HostIds) -> io::Result<()> {
    let mapping = || vec![Mapping { host_id: ids.first, container_id: 0, length: HostIds::LENGTH }];
    let text = serde_json::to_vec(&Mappings { uid_mappings: mapping(), gid_mappings: mapping() })?;
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    let new = path.with_extension("new");
    let mut file = fs::File::create(&new)?;
    file.write_all(&text)?;
    file.sync_all()?;
    fs::rename(new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pod_has_a_range_of_its_own_until_its_directory_is_gone() {
        let pods = tempfile::tempdir().unwrap();
        let users = Users::default();
        let of = |users: &Users, uid: &str| users.of_pod(pods.path(), uid).map(|ids| ids.first / HostIds::LENGTH);
        assert_eq!((of(&users, "a"), of(&users, "b"), of(&users, "a")), (Ok(1), Ok(2), Ok(1)));
        // Another life of the agent, and a pod that is gone.
        let users = Users::default();
        assert_eq!(of(&users, "b"), Ok(2));
        fs::remove_dir_all(pods.path().join("a")).unwrap();
        assert_eq!((of(&users, "c"), of(&users, "d")), (Ok(1), Ok(3)));

        fs::write(pods.path().join("c").join(FILE), "{}").unwrap();
        let refused = of(&users, "e").unwrap_err().to_string();
        assert!(refused.contains("c/userns") && refused.contains("remove the file"), "{refused}");
    }
}
