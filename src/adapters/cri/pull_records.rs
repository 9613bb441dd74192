//! What the agent pulled, and with which secrets, kept over its restarts. Everything here blocks.
//!
//! ```text
//! ROOT/image_manager/pulling/HASH   normal name of an image whose pull has begun   written before the runtime is asked
//! ROOT/image_manager/pulled/HASH    a PulledImage                                  written before the other one goes
//! ```
//!
//! So an image that came by a pull of which the agent has not seen the end is nobody's until somebody could pull it.

use std::collections::{HashMap, HashSet};
use std::fs::{self, DirBuilder, DirEntry, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use ring::digest::{SHA256, digest};

use super::access::{Access, PulledImage, SecretMark, Verdict};
use super::image_name::ImageName;

/// The time of a file may lag behind the clock by a tick of the kernel's.
const MARGIN: Duration = Duration::from_secs(1);
/// How long a pull that the agent gave up may go on in the runtime.
const LATE_PULL: Duration = Duration::from_secs(3600);

/// The records. Clones share them.
#[derive(Clone)]
pub(super) struct PullRecords(Arc<Shared>);

struct Shared {
    pulling: PathBuf,
    pulled: PathBuf,
    /// How many pulls of an image are under way. Held while files are read or written.
    under_way: Mutex<HashMap<String, usize>>,
}

/// A pull that is under way.
pub(super) struct Intent {
    records: PullRecords,
    image: String,
}

impl PullRecords {
    /// Records below the agent's directory; nothing is made before the first pull.
    pub(super) fn new(root: &Path) -> Self {
        let dir = root.join("image_manager");
        let (pulling, pulled) = (dir.join("pulling"), dir.join("pulled"));
        PullRecords(Arc::new(Shared { pulling, pulled, under_way: Mutex::default() }))
    }

    /// Notes that an image is about to be pulled.
    ///
    /// # Errors
    /// As the file system says: then it must not be pulled.
    pub(super) fn intend(&self, image: &ImageName) -> io::Result<Intent> {
        let image = image.normal();
        let mut under_way = self.0.under_way.lock();
        write(&self.0.pulling, &image, image.as_bytes())?;
        *under_way.entry(image.clone()).or_default() += 1;
        Ok(Intent { records: self.clone(), image })
    }

    /// Notes who may use an image that the agent pulled. `None` for a pull of which that is not known yet.
    ///
    /// # Errors
    /// As the file system says: then whoever wants the image has to pull it once more.
    pub(super) fn grant(&self, image_id: &str, repository: &str, access: Option<Access>) -> io::Result<()> {
        let _held = self.0.under_way.lock();
        let known = self.read(image_id)?;
        let is_new = known.is_none();
        let mut image = known.unwrap_or_else(|| PulledImage::new(image_id));
        let changed = access.is_some_and(|access| image.grant(repository, access));
        if is_new || changed {
            write(&self.0.pulled, image_id, &serde_json::to_vec(&image)?)?;
        }
        Ok(())
    }

    /// Whether a pod that shows these secrets may use an image that is present without asking its registry. What cannot
    /// be read is a no.
    pub(super) fn may_use(&self, image: &ImageName, image_id: &str, shown: &[SecretMark]) -> bool {
        let (name, repository) = (image.normal(), image.repository());
        let verdict = {
            let _held = self.0.under_way.lock();
            match self.read(image_id) {
                Ok(Some(pulled)) => pulled.judge(&repository, shown),
                Ok(None) => match fs::symlink_metadata(place(&self.0.pulling, &name)) {
                    Err(error) if error.kind() == ErrorKind::NotFound => Verdict::Yes,
                    _ => Verdict::AskRegistry,
                },
                Err(error) => {
                    tracing::warn!(image = name, %error, "how the image came cannot be read, so it is pulled again");
                    Verdict::AskRegistry
                }
            }
        };
        match verdict {
            Verdict::Yes => true,
            Verdict::AskRegistry => false,
            Verdict::YesAndKeep(mark) => {
                if let Err(error) = self.grant(image_id, &repository, Some(Access::Secrets(vec![mark]))) {
                    tracing::warn!(image = name, %error, "a secret for the image was not noted");
                }
                true
            }
        }
    }

    /// Forgets images that are gone, and pulls that came to nothing. `ids` and `names` are those that the
    /// runtime listed at a time.
    pub(super) fn retain(&self, ids: &HashSet<String>, names: &HashSet<String>, at: SystemTime) {
        let under_way = self.0.under_way.lock();
        for path in files(&self.0.pulled, at - MARGIN) {
            // One that cannot be read keeps its image from being used for nothing.
            if read_record(&path).is_ok_and(|image| image.is_some_and(|image| !ids.contains(&image.image))) {
                remove(&path);
            }
        }
        for path in files(&self.0.pulling, at - LATE_PULL) {
            let gone = |name: String| !under_way.contains_key(&name) && !names.contains(&name);
            if fs::read_to_string(&path).is_ok_and(gone) {
                remove(&path);
            }
        }
    }

    fn read(&self, image_id: &str) -> io::Result<Option<PulledImage>> {
        read_record(&place(&self.0.pulled, image_id))
    }
}

impl Intent {
    /// The runtime has answered, and what there is to note was noted. A pull that was dropped may still go on, and so
    /// leaves its file.
    pub(super) fn end(self) {
        let under_way = self.records.0.under_way.lock();
        if under_way.get(&self.image).is_none_or(|count| *count <= 1) {
            remove(&place(&self.records.0.pulling, &self.image));
        }
    }
}

impl Drop for Intent {
    fn drop(&mut self) {
        let mut under_way = self.records.0.under_way.lock();
        if let Some(count) = under_way.get_mut(&self.image) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&self.image);
            }
        }
    }
}

/// A hash in hex.
pub(super) fn hash(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The file of a name that may hold anything.
fn place(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("sha256-{}", hash(name.as_bytes())))
}

fn read_record(path: &Path) -> io::Result<Option<PulledImage>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a file as a whole, for the agent's eyes only.
fn write(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let path = place(dir, name);
    let new = path.with_extension("new");
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, &path)?;
    File::open(dir)?.sync_all()
}

/// The files that were last written before a time.
fn files(dir: &Path, before: SystemTime) -> Vec<PathBuf> {
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
        tracing::warn!(path = %path.display(), %error, "record of a pull was not removed");
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

    fn mark(hash: &str) -> SecretMark {
        SecretMark { uid: hash.into(), namespace: "ns".into(), name: hash.into(), hash: hash.into() }
    }

    #[test]
    fn an_image_is_watched_from_the_beginning_of_its_pull_over_restarts() {
        let root = tempfile::tempdir().unwrap();
        let may_use = |shown: &[SecretMark]| PullRecords::new(root.path()).may_use(&name(NAME), ID, shown);
        assert!(may_use(&[]), "it was there before");

        let records = PullRecords::new(root.path());
        let (first, second) = (records.intend(&name(NAME)).unwrap(), records.intend(&name(NAME)).unwrap());
        assert!(!may_use(&[]));
        first.end();
        assert!(!may_use(&[]), "another pull goes on");
        records.grant(ID, REPOSITORY, None).unwrap();
        second.end();
        assert!(!may_use(&[mark("1")]), "who may use it is not known yet");
        records.grant(ID, REPOSITORY, Some(Access::Secrets(vec![mark("1")]))).unwrap();
        assert!(may_use(&[mark("1")]) && !may_use(&[mark("2")]) && !may_use(&[]));

        // A pull that was given up may still bring the image.
        let b = name("r.example/b:1");
        drop(records.intend(&b).unwrap());
        assert!(!records.may_use(&b, "sha256:2", &[]));
        let (nothing, later) = (HashSet::new(), SystemTime::now() + 2 * LATE_PULL);
        records.retain(&nothing, &nothing, SystemTime::now());
        assert!(!may_use(&[]), "it came after the images were listed");
        records.retain(&HashSet::from([ID.to_owned()]), &HashSet::from([NAME.to_owned()]), later);
        assert!(may_use(&[mark("1")]) && !may_use(&[]));
        assert!(records.may_use(&b, "sha256:2", &[]), "nothing came of it");
        records.retain(&nothing, &nothing, later);
        assert!(may_use(&[]), "one that comes again came another way");
    }

    // A pod with a secret began the pull, and the agent died: whoever writes the name otherwise gets it no sooner.
    #[test]
    fn the_beginning_of_a_pull_is_found_by_every_way_to_write_the_name() {
        let digest = format!("@sha256:{}", "0a".repeat(32));
        for (written, listed, otherwise) in [
            ("acme/app:1", "docker.io/acme/app:1".to_owned(), "docker.io/acme/app:1".to_owned()),
            (&format!("acme/app:1{digest}"), format!("docker.io/acme/app{digest}"), format!("acme/app{digest}")),
            ("app", "docker.io/library/app:latest".to_owned(), "index.docker.io/library/app".to_owned()),
        ] {
            let root = tempfile::tempdir().unwrap();
            drop(PullRecords::new(root.path()).intend(&name(written)).unwrap());
            let records = PullRecords::new(root.path());
            let later = SystemTime::now() + 2 * LATE_PULL;
            records.retain(&HashSet::from([ID.to_owned()]), &HashSet::from([listed]), later);
            for name in [name(written), name(&otherwise)] {
                assert!(!records.may_use(&name, ID, &[]), "{written} as {}", name.as_str());
            }
            records.retain(&HashSet::new(), &HashSet::new(), later);
            assert!(records.may_use(&name(written), ID, &[]), "nothing came of it");
        }
    }

    #[test]
    fn a_record_that_cannot_be_read_opens_nothing() {
        let root = tempfile::tempdir().unwrap();
        let records = PullRecords::new(root.path());
        records.grant(ID, REPOSITORY, Some(Access::Node)).unwrap();
        assert!(records.may_use(&name(NAME), ID, &[]));
        fs::write(place(&records.0.pulled, ID), "{").unwrap();
        assert!(!records.may_use(&name(NAME), ID, &[]));
    }
}
