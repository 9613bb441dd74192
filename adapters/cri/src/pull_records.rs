//! Records of the images that the agent pulled, and of the secrets that it used. The records survive a restart of the agent.
//! Everything here blocks.
//!
//! ```text
//! ROOT/image_manager/pulling/HASH   normal name of the image that is pulled   written before the pull starts
//! ROOT/image_manager/pulled/HASH    a PulledImage                             written before the file in pulling/ is removed
//! ```
//!
//! If the agent is killed during a pull, the file in `pulling/` stays, and no pod may use the image until a pod has pulled it
//! again.

use std::collections::{HashMap, HashSet};
use std::fs::{self, DirBuilder, DirEntry};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use podwright_host::record::{self, Durability};
use ring::digest::{SHA256, digest};

use super::access::{Access, AccessDecision, PulledImage, SecretIdentity};
use super::image_name::ImageName;

/// How far the modification time of a file may lag behind the clock: the kernel updates file times once per tick.
const FILE_TIME_LAG: Duration = Duration::from_secs(1);
/// How long the runtime may continue a pull that the agent cancelled.
const CANCELLED_PULL: Duration = Duration::from_secs(3600);

/// The records. Clones share them.
#[derive(Clone)]
pub(super) struct PullRecords(Arc<RecordStore>);

struct RecordStore {
    pulling: PathBuf,
    pulled: PathBuf,
    /// The number of running pulls of each image. Locked while files are read or written.
    running: Mutex<HashMap<String, usize>>,
}

/// The record of a running pull.
pub(super) struct PullIntent {
    records: PullRecords,
    image: String,
}

impl PullRecords {
    /// The records in the agent's root directory. The first pull creates the directories.
    pub(super) fn new(root: &Path) -> Self {
        let dir = root.join("image_manager");
        let (pulling, pulled) = (dir.join("pulling"), dir.join("pulled"));
        PullRecords(Arc::new(RecordStore { pulling, pulled, running: Mutex::default() }))
    }

    /// Records that a pull of an image is about to start.
    ///
    /// # Errors
    /// The error of the file system. The pull must not start then.
    pub(super) fn intend(&self, image: &ImageName) -> io::Result<PullIntent> {
        let image = image.normal();
        let mut running = self.0.running.lock();
        write(&self.0.pulling, &image, image.as_bytes())?;
        *running.entry(image.clone()).or_default() += 1;
        Ok(PullIntent { records: self.clone(), image })
    }

    /// Records which pods may use an image that the agent pulled. With `None` it records only that the agent pulled the image.
    ///
    /// # Errors
    /// The error of the file system. The next pod then pulls the image again.
    pub(super) fn grant(&self, image_id: &str, repository: &str, access: Option<Access>) -> io::Result<()> {
        let _lock = self.0.running.lock();
        let recorded = self.read(image_id)?;
        let is_new = recorded.is_none();
        let mut image = recorded.unwrap_or_else(|| PulledImage::new(image_id));
        let changed = access.is_some_and(|access| image.grant(repository, access));
        if is_new || changed {
            write(&self.0.pulled, image_id, &serde_json::to_vec(&image)?)?;
        }
        Ok(())
    }

    /// Whether a pod that presents these secrets may use an image that is present, without another pull. False if the record
    /// cannot be read.
    pub(super) fn may_use(&self, image: &ImageName, image_id: &str, presented: &[SecretIdentity]) -> bool {
        let (name, repository) = (image.normal(), image.repository());
        let decision = {
            let _lock = self.0.running.lock();
            match self.read(image_id) {
                Ok(Some(pulled)) => pulled.decide(&repository, presented),
                Ok(None) => match fs::symlink_metadata(record_path(&self.0.pulling, &name)) {
                    Err(error) if error.kind() == ErrorKind::NotFound => AccessDecision::Allow,
                    _ => AccessDecision::AskRegistry,
                },
                Err(error) => {
                    tracing::warn!(image = name, %error, "cannot read the pull record of the image, so it is pulled again");
                    AccessDecision::AskRegistry
                }
            }
        };
        match decision {
            AccessDecision::Allow => true,
            AccessDecision::AskRegistry => false,
            AccessDecision::AllowAndRecord(secret) => {
                if let Err(error) = self.grant(image_id, &repository, Some(Access::Secrets(vec![secret]))) {
                    tracing::warn!(image = name, %error, "cannot record a secret for the image");
                }
                true
            }
        }
    }

    /// Removes the records of images that no longer exist, and of pulls that brought no image. `ids` and `names` are those of
    /// the images that the runtime listed at the time `at`.
    pub(super) fn retain(&self, ids: &HashSet<String>, names: &HashSet<String>, at: SystemTime) {
        let running = self.0.running.lock();
        for path in files_before(&self.0.pulled, at - FILE_TIME_LAG) {
            // A record that cannot be read is kept: without it every pod could use the image.
            if read_record(&path).is_ok_and(|image| image.is_some_and(|image| !ids.contains(&image.image))) {
                remove(&path);
            }
        }
        for path in files_before(&self.0.pulling, at - CANCELLED_PULL) {
            let is_obsolete = |name: String| !running.contains_key(&name) && !names.contains(&name);
            if fs::read_to_string(&path).is_ok_and(is_obsolete) {
                remove(&path);
            }
        }
    }

    fn read(&self, image_id: &str) -> io::Result<Option<PulledImage>> {
        read_record(&record_path(&self.0.pulled, image_id))
    }
}

impl PullIntent {
    /// Removes the file in `pulling/`, unless another pull of the image is running. Called after the runtime has answered and the
    /// result is recorded. An intent that is dropped instead leaves its file, because the runtime may continue the pull.
    pub(super) fn end(self) {
        let running = self.records.0.running.lock();
        if running.get(&self.image).is_none_or(|count| *count <= 1) {
            remove(&record_path(&self.records.0.pulling, &self.image));
        }
    }
}

impl Drop for PullIntent {
    fn drop(&mut self) {
        let mut running = self.records.0.running.lock();
        if let Some(count) = running.get_mut(&self.image) {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.image);
            }
        }
    }
}

/// The SHA-256 hash in hexadecimal digits.
pub(super) fn hash(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The file of a record. Its name is a hash, because an image name may contain any character.
fn record_path(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("sha256-{}", hash(name.as_bytes())))
}

fn read_record(path: &Path) -> io::Result<Option<PulledImage>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a file atomically, readable by the agent only.
fn write(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    record::replace(&record_path(dir, name), bytes, Durability::Disk)
}

/// The files of a directory that were last written before a time.
fn files_before(dir: &Path, before: SystemTime) -> Vec<PathBuf> {
    let is_old = |entry: &DirEntry| {
        let written = entry.metadata().and_then(|meta| meta.modified());
        entry.path().extension().is_none() && written.is_ok_and(|written| written < before)
    };
    fs::read_dir(dir).into_iter().flatten().flatten().filter(is_old).map(|entry| entry.path()).collect()
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove a pull record");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "r.example/a:1";
    const ID: &str = "sha256:1";
    const REPOSITORY: &str = "r.example/a";

    fn name(text: &str) -> ImageName {
        ImageName::parse(text).unwrap()
    }

    fn secret(hash: &str) -> SecretIdentity {
        SecretIdentity { uid: hash.into(), namespace: "ns".into(), name: hash.into(), hash: hash.into() }
    }

    #[test]
    fn access_to_an_image_is_recorded_before_its_pull_and_survives_restarts() {
        let root = tempfile::tempdir().unwrap();
        let may_use = |presented: &[SecretIdentity]| PullRecords::new(root.path()).may_use(&name(NAME), ID, presented);
        assert!(may_use(&[]), "the agent did not pull the image");

        let records = PullRecords::new(root.path());
        let (first, second) = (records.intend(&name(NAME)).unwrap(), records.intend(&name(NAME)).unwrap());
        assert!(!may_use(&[]));
        first.end();
        assert!(!may_use(&[]), "another pull is running");
        records.grant(ID, REPOSITORY, None).unwrap();
        second.end();
        assert!(!may_use(&[secret("1")]), "no access is recorded yet");
        records.grant(ID, REPOSITORY, Some(Access::Secrets(vec![secret("1")]))).unwrap();
        assert!(may_use(&[secret("1")]) && !may_use(&[secret("2")]) && !may_use(&[]));

        // A cancelled pull may still bring the image.
        let b = name("r.example/b:1");
        drop(records.intend(&b).unwrap());
        assert!(!records.may_use(&b, "sha256:2", &[]));
        let (nothing, later) = (HashSet::new(), SystemTime::now() + 2 * CANCELLED_PULL);
        records.retain(&nothing, &nothing, SystemTime::now());
        assert!(!may_use(&[]), "the record is newer than the image list");
        records.retain(&HashSet::from([ID.to_owned()]), &HashSet::from([NAME.to_owned()]), later);
        assert!(may_use(&[secret("1")]) && !may_use(&[]));
        assert!(records.may_use(&b, "sha256:2", &[]), "the pull brought no image");
        records.retain(&nothing, &nothing, later);
        assert!(may_use(&[]), "the image was removed, so the agent did not pull the next one of this ID");
    }

    // A pod with a secret started the pull, and the agent was killed. Another spelling of the name gives no access either.
    #[test]
    fn a_pull_intent_is_found_by_every_spelling_of_the_image_name() {
        let digest = format!("@sha256:{}", "0a".repeat(32));
        for (written, listed, otherwise) in [
            ("acme/app:1", "docker.io/acme/app:1".to_owned(), "docker.io/acme/app:1".to_owned()),
            (&format!("acme/app:1{digest}"), format!("docker.io/acme/app{digest}"), format!("acme/app{digest}")),
            ("app", "docker.io/library/app:latest".to_owned(), "index.docker.io/library/app".to_owned()),
        ] {
            let root = tempfile::tempdir().unwrap();
            drop(PullRecords::new(root.path()).intend(&name(written)).unwrap());
            let records = PullRecords::new(root.path());
            let later = SystemTime::now() + 2 * CANCELLED_PULL;
            records.retain(&HashSet::from([ID.to_owned()]), &HashSet::from([listed]), later);
            for name in [name(written), name(&otherwise)] {
                assert!(!records.may_use(&name, ID, &[]), "{written} as {}", name.as_str());
            }
            records.retain(&HashSet::new(), &HashSet::new(), later);
            assert!(records.may_use(&name(written), ID, &[]), "the pull brought no image");
        }
    }

    #[test]
    fn a_pull_record_that_cannot_be_read_gives_no_access() {
        let root = tempfile::tempdir().unwrap();
        let records = PullRecords::new(root.path());
        records.grant(ID, REPOSITORY, Some(Access::Node)).unwrap();
        assert!(records.may_use(&name(NAME), ID, &[]));
        fs::write(record_path(&records.0.pulled, ID), "{").unwrap();
        assert!(!records.may_use(&name(NAME), ID, &[]));
    }
}
