//! Records of the images that the agent pulled, and of the secrets that it used. The records survive a restart of the agent, and
//! have the form of the kubelet. Those that earlier agents wrote in another form are read too. Everything here blocks.
//!
//! ```text
//! ROOT/image_manager/pulling/HASH   a PullIntentRecord   written before the pull starts
//! ROOT/image_manager/pulled/HASH    a PulledImage        written before the file in pulling/ is removed
//! ```
//!
//! If the agent is killed during a pull, the file in `pulling/` stays, and no pod may use the image until a pod has pulled it
//! again.

mod import;

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, DirEntry};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use podwright_host::record::{self, Durability};
use ring::digest::{SHA256, digest};

use super::access::{Access, AccessDecision, Presented, PullIntentRecord, PulledImage, SecretIdentity};
use super::image_name::ImageName;
use super::verification::VerificationPolicy;

/// How far the modification time of a file may lag behind the clock: the kernel updates file times once per tick.
const FILE_TIME_LAG: Duration = Duration::from_secs(1);
/// How long the runtime may continue a pull that the agent cancelled.
const CANCELLED_PULL: Duration = Duration::from_secs(3600);
/// The start of the name of each record.
const PREFIX: &str = "sha256-";
/// The largest record that is read, in bytes. A record of 100 secrets and 100 service accounts has about 100 KiB.
const MAX_RECORD: u64 = 1 << 20;

/// The records. Clones share them.
#[derive(Clone)]
pub(super) struct PullRecords(Arc<RecordStore>);

struct RecordStore {
    pulling: PathBuf,
    pulled: PathBuf,
    /// Which images need a record.
    policy: VerificationPolicy,
    /// Locked while files are read or written.
    state: Mutex<State>,
}

struct State {
    /// The number of running pulls of each image, by its normal name.
    running: HashMap<String, usize>,
    /// The records of a kubelet that were not copied yet.
    kubelet: Option<KubeletRecords>,
}

struct KubeletRecords {
    /// The root directory of the kubelet.
    root: PathBuf,
    /// Why they could not be copied, as it was logged last.
    logged: Option<String>,
}

impl KubeletRecords {
    /// Keeps why the records could not be copied. Returns whether this differs from the last time.
    fn has_another_fault(&mut self, error: &io::Error) -> bool {
        let fault = Some(error.to_string());
        let before = std::mem::replace(&mut self.logged, fault);
        before != self.logged
    }
}

/// The record of a running pull.
pub(super) struct PullIntent {
    records: PullRecords,
    /// The normal name of the image.
    image: String,
}

/// Whether a pod may use an image that is present, without another pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The policy demands no verification for the image.
    PolicyAllows,
    /// The pod may use the image because of an earlier pull.
    RecordAllows,
    /// The registry must be asked.
    AskRegistry {
        /// Whether pods with certain service accounts may use the image.
        of_accounts: bool,
    },
    /// The records cannot be read, so the registry must be asked.
    Unknown,
}

impl Verdict {
    /// Whether the pod may use the image.
    pub(super) fn allows(self) -> bool {
        matches!(self, Verdict::PolicyAllows | Verdict::RecordAllows)
    }
}

impl PullRecords {
    /// The records in the agent's root directory. The first pull creates the directories. The records of a kubelet in the directory
    /// `kubelet` are copied when the records are first used.
    pub(super) fn new(root: &Path, policy: VerificationPolicy, kubelet: Option<PathBuf>) -> Self {
        let dir = root.join("image_manager");
        let (pulling, pulled) = (dir.join("pulling"), dir.join("pulled"));
        let kubelet = kubelet.map(|root| KubeletRecords { root, logged: None });
        let state = Mutex::new(State { running: HashMap::new(), kubelet });
        PullRecords(Arc::new(RecordStore { pulling, pulled, policy, state }))
    }

    /// Records that a pull of an image is about to start.
    ///
    /// # Errors
    /// The error of the file system. The pull must not start then.
    pub(super) fn intend(&self, image: &ImageName) -> io::Result<PullIntent> {
        let mut state = self.0.state.lock();
        // The kubelet looks for the name as the container has it.
        let written = PullIntentRecord { image: image.as_str().to_owned() };
        write(&self.0.pulling, image.as_str(), &written.encode()?)?;
        let image = image.normal();
        *state.running.entry(image.clone()).or_default() += 1;
        Ok(PullIntent { records: self.clone(), image })
    }

    /// Records which pods may use an image that the agent pulled. With `None` it records only that the agent pulled the image.
    ///
    /// # Errors
    /// The error of the file system. The next pod then pulls the image again.
    pub(super) fn grant(&self, image_id: &str, repository: &str, access: Option<Access>) -> io::Result<()> {
        let _lock = self.lock();
        // A record that cannot be read gives nobody access, and neither does a new one.
        let recorded = self.read(image_id).inspect_err(|error| self.warn_unreadable(image_id, error)).ok().flatten();
        let is_new = recorded.is_none();
        let mut image = recorded.unwrap_or_else(|| PulledImage::new(image_id));
        let changed = access.is_some_and(|access| image.grant(repository, access));
        if is_new || changed {
            write(&self.0.pulled, image_id, &image.encode(Timestamp::now())?)?;
        }
        Ok(())
    }

    /// Whether a pod that presents these secrets and service accounts may use an image that is present, without another pull.
    pub(super) fn verify(&self, image: &ImageName, image_id: &str, presented: &Presented) -> Verdict {
        let repository = image.repository();
        let (verdict, secret) = self.decide(image, image_id, &repository, presented);
        if let Some(secret) = secret
            && let Err(error) = self.grant(image_id, &repository, Some(Access::Secret(secret)))
        {
            tracing::warn!(image = image.as_str(), %error, "cannot record a secret for the image");
        }
        verdict
    }

    /// The verdict, and the secret that must be recorded for the image.
    fn decide(
        &self,
        image: &ImageName,
        image_id: &str,
        repository: &str,
        presented: &Presented,
    ) -> (Verdict, Option<SecretIdentity>) {
        // A record that cannot be read matters only to an image that needs one.
        if !self.0.policy.verifies(repository, true) {
            return (Verdict::PolicyAllows, None);
        }
        let state = self.lock();
        let pulled = match self.read(image_id) {
            Ok(pulled) => pulled,
            Err(error) => {
                self.warn_unreadable(image_id, &error);
                return (Verdict::Unknown, None);
            }
        };
        // A record of the kubelet that was not copied may restrict the image.
        if pulled.is_none() && state.kubelet.is_some() {
            return (Verdict::Unknown, None);
        }
        let is_pulled = pulled.is_some() || self.is_intended(image);
        if !self.0.policy.verifies(repository, is_pulled) {
            return (Verdict::PolicyAllows, None);
        }
        match pulled.map(|pulled| pulled.decide(repository, presented)) {
            Some(AccessDecision::Allow) => (Verdict::RecordAllows, None),
            Some(AccessDecision::AllowAndRecord(secret)) => (Verdict::RecordAllows, Some(secret)),
            Some(AccessDecision::AskRegistry { of_accounts }) => (Verdict::AskRegistry { of_accounts }, None),
            None => (Verdict::AskRegistry { of_accounts: false }, None),
        }
    }

    /// Removes the records of images that no longer exist, and of pulls that brought no image. `ids` and `names` are those of
    /// the images that the runtime listed at the time `at`.
    pub(super) fn retain(&self, ids: &HashSet<String>, names: &HashSet<String>, at: SystemTime) {
        let state = self.lock();
        let files = |names: &HashSet<String>| names.iter().map(|name| file_name(name)).collect::<HashSet<_>>();
        let present = files(ids);
        for path in files_before(&self.0.pulled, at - FILE_TIME_LAG) {
            if path.file_name().is_none_or(|name| !present.contains(name)) {
                remove(&path);
            }
        }
        let named = files(names);
        for path in files_before(&self.0.pulling, at - CANCELLED_PULL) {
            let is_needed = match intended(&path) {
                Some(image) => state.running.contains_key(&image) || names.contains(&image),
                None => path.file_name().is_some_and(|name| named.contains(name)),
            };
            if !is_needed {
                remove(&path);
            }
        }
    }

    /// Locks the records. Copies those of a kubelet before the first use. If that fails, each use tries it again, and what failed is logged
    /// when it changes.
    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.0.state.lock();
        let Some(mut kubelet) = state.kubelet.take() else { return state };
        match import::copy(&kubelet.root, &self.0.pulling, &self.0.pulled) {
            Ok(0) => {}
            Ok(copied) => tracing::info!(records = copied, "copied the kubelet's records of image pulls"),
            Err(error) => {
                if kubelet.has_another_fault(&error) {
                    tracing::warn!(
                        kubelet = %kubelet.root.display(), %error,
                        "cannot copy the kubelet's records of image pulls, so images without a record are pulled again: run the agent as \
                         the kubelet's user, or move a record away that the error names"
                    );
                }
                state.kubelet = Some(kubelet);
            }
        }
        state
    }

    /// Whether a pull of the image runs, or had no result when its agent ended. True if a file of the image's name cannot be read.
    fn is_intended(&self, image: &ImageName) -> bool {
        let normal = image.normal();
        let exists = |name: &str| {
            let found = fs::symlink_metadata(record_path(&self.0.pulling, name));
            !matches!(found, Err(error) if error.kind() == ErrorKind::NotFound)
        };
        // The pod whose pull was intended may have written the name in another way.
        let is_of_image = |path: PathBuf| intended(&path).is_some_and(|intended| intended == normal);
        exists(image.as_str()) || exists(&normal) || records_in(&self.0.pulling).any(is_of_image)
    }

    fn read(&self, image_id: &str) -> io::Result<Option<PulledImage>> {
        match fs::read(record_path(&self.0.pulled, image_id)) {
            Ok(bytes) => PulledImage::decode(&bytes).map(Some).map_err(io::Error::other),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn warn_unreadable(&self, image_id: &str, error: &io::Error) {
        let record = record_path(&self.0.pulled, image_id);
        tracing::warn!(
            image = image_id, record = %record.display(), %error,
            "cannot read the pull record of the image, so it is pulled again"
        );
    }
}

impl PullIntent {
    /// Removes the files of the image in `pulling/`, unless another pull of the image is running. Called after the runtime has
    /// answered and the result is recorded. An intent that is dropped instead leaves its file, because the runtime may continue the
    /// pull.
    pub(super) fn end(self) {
        let state = self.records.0.state.lock();
        if state.running.get(&self.image).is_none_or(|count| *count <= 1) {
            let of_image = |path: &PathBuf| intended(path).is_some_and(|image| image == self.image);
            records_in(&self.records.0.pulling).filter(of_image).for_each(|path| remove(&path));
        }
    }
}

impl Drop for PullIntent {
    fn drop(&mut self) {
        let mut state = self.records.0.state.lock();
        if let Some(count) = state.running.get_mut(&self.image) {
            *count -= 1;
            if *count == 0 {
                state.running.remove(&self.image);
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
    dir.join(file_name(name))
}

fn file_name(name: &str) -> OsString {
    format!("{PREFIX}{}", hash(name.as_bytes())).into()
}

/// The normal name of the image in the record of a pull. `None` if the record cannot be read.
fn intended(path: &Path) -> Option<String> {
    let bytes = fs::read(path).ok()?;
    let image = match PullIntentRecord::decode(&bytes) {
        Ok(intent) => intent.image,
        // An earlier agent wrote the name alone.
        Err(_) => String::from_utf8(bytes).ok()?,
    };
    Some(ImageName::parse(&image)?.normal())
}

/// Writes a file atomically, readable by the agent only.
fn write(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    record::replace(&record_path(dir, name), bytes, Durability::Disk)
}

/// The records in a directory. The temporary files of agents and kubelets are left out.
fn records_in(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    entries(dir).map(|entry| entry.path())
}

fn entries(dir: &Path) -> impl Iterator<Item = DirEntry> + use<> {
    fs::read_dir(dir).into_iter().flatten().flatten().filter(is_record)
}

fn is_record(entry: &DirEntry) -> bool {
    let name = entry.file_name();
    name.to_str().is_some_and(|name| name.starts_with(PREFIX) && !name.contains('.'))
}

/// The records of a directory that were last written before a time.
fn files_before(dir: &Path, before: SystemTime) -> Vec<PathBuf> {
    let is_old = |entry: &DirEntry| {
        let written = entry.metadata().and_then(|meta| meta.modified());
        written.is_ok_and(|written| written < before)
    };
    entries(dir).filter(is_old).map(|entry| entry.path()).collect()
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove a pull record");
    }
}

#[cfg(test)]
mod tests;
