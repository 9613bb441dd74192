//! Adoption: the agent takes over pods that a kubelet started in the same container runtime, without restarting them.
//!
//! A kubelet-made sandbox or container has the kubelet's labels and not the label of an agent's root directory. By default the
//! agent never touches it. With adoption, a pod of a source takes over kubelet-made sandboxes and containers:
//!
//! - of its own UID, or
//! - for a static pod: of the UID under which its full name runs. The UID of a static pod is a hash of its manifest, and the
//!   agent's hash is not the kubelet's. So the pod gets the UID that runs, and keeps it until its manifest changes.
//!
//! A pod that a kubelet started and that no source names is left alone.
//!
//! Each adoption is on disk before the pod is delivered: a restarted agent recognizes a manifest that changed meanwhile, and
//! stops an adopted pod whose manifest was removed meanwhile.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use podwright_host::record::{self, Durability, ReadError};
use podwright_model::ids::{FullName, PodUid};
use podwright_model::pod::{HASH_ANNOTATION, PodObject};
use podwright_model::text::error_chain;
use podwright_model::time::Time;
use podwright_ports::{RuntimeError, RuntimeFuture, SourceKind, SourceSet, SourceUpdate};
use serde::{Deserialize, Serialize};

/// The file below the root directory that keeps the adoptions.
const FILE: &str = "adopted-pods";
/// The pause before another attempt to adopt, while the runtime does not answer or the disk is full.
const RETRY: Duration = Duration::from_secs(1);

/// A pod that a kubelet started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KubeletPod {
    /// The pod's UID.
    pub uid: PodUid,
    /// The pod's name and namespace.
    pub full_name: FullName,
    /// Whether a container runs or a sandbox is ready.
    pub is_running: bool,
    /// When the newest sandbox was created.
    pub created_at: Time,
}

/// Lists the pods that a kubelet started.
pub trait KubeletPods: Send + Sync + 'static {
    /// The pods with a sandbox or container that a kubelet made.
    fn kubelet_pods(&self) -> RuntimeFuture<'_, Vec<KubeletPod>>;
}

/// The adoptions cannot be read when the agent starts. Without them the agent might start a pod a second time.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot read which pods of a kubelet the agent adopted: remove the file and start the agent with --adopt-kubelet-pods, which \
     adopts those that still run"
)]
pub struct LoadError(#[source] ReadError);

/// A pod of a source that runs under the UID that a kubelet gave it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    source: String,
    namespace: String,
    name: String,
    /// The UID under which the pod runs.
    uid: String,
    /// The UID that the source gives the pod. For a static pod it changes with the manifest.
    source_uid: String,
}

impl Entry {
    fn is_of(&self, name: &FullName) -> bool {
        self.name == name.name() && self.namespace == name.namespace()
    }

    /// Whether the source still desires the pod as it was adopted.
    fn fits(&self, pod: &PodObject) -> bool {
        self.is_of(pod.full_name()) && self.source_uid == pod.uid().to_string()
    }
}

/// The pods of a kubelet that the agent has adopted. Kept in a file, and shared by the runtime and the sources.
#[derive(Debug)]
pub struct AdoptedPods {
    file: PathBuf,
    /// Whether more pods may be adopted. Adopted pods stay adopted without it.
    adopts_more: bool,
    uids: parking_lot::Mutex<Arc<HashSet<PodUid>>>,
    state: tokio::sync::Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: Vec<Entry>,
    /// The last pods as their source sent them, and with the UID that runs. A source sends the same `Arc` for an unchanged pod.
    renamed: Vec<Renamed>,
    /// The running pods of a kubelet that no source named, as last logged.
    unclaimed: Vec<FullName>,
}

/// A static pod that runs under another UID than its own.
#[derive(Clone, Debug)]
struct Renamed {
    source: SourceKind,
    /// The pod with its own UID.
    pod: Arc<PodObject>,
    /// The pod with the UID under which it runs.
    as_run: Arc<PodObject>,
}

impl AdoptedPods {
    /// Reads the adoptions of earlier agents with this root directory. `adopts_more` allows further adoptions.
    ///
    /// # Errors
    /// [`LoadError`] if the file exists and cannot be read.
    pub fn load(root: &Path, adopts_more: bool) -> Result<Self, LoadError> {
        let file = root.join(FILE);
        let entries: Vec<Entry> = match record::read(&file) {
            Ok(entries) => entries,
            Err(error) if error.is_missing() => vec![],
            Err(error) => return Err(LoadError(error)),
        };
        let uids = parking_lot::Mutex::new(uids(&entries));
        let state = tokio::sync::Mutex::new(State { entries, ..State::default() });
        Ok(AdoptedPods { file, adopts_more, uids, state })
    }

    /// No adopted pods, now and later.
    pub fn none() -> Self {
        AdoptedPods {
            file: PathBuf::new(),
            adopts_more: false,
            uids: parking_lot::Mutex::default(),
            state: tokio::sync::Mutex::default(),
        }
    }

    /// These pods, and no others.
    #[cfg(test)]
    pub(crate) fn of(uids: &[&str]) -> Self {
        let uids = uids.iter().map(|uid| PodUid::new(uid)).collect();
        AdoptedPods { uids: parking_lot::Mutex::new(Arc::new(uids)), ..AdoptedPods::none() }
    }

    /// The UIDs of the adopted pods.
    pub(crate) fn uids(&self) -> Arc<HashSet<PodUid>> {
        self.uids.lock().clone()
    }

    /// Whether there are adopted pods, or may be.
    pub(crate) fn is_used(&self) -> bool {
        self.adopts_more || !self.uids.lock().is_empty()
    }
}

fn uids(entries: &[Entry]) -> Arc<HashSet<PodUid>> {
    Arc::new(entries.iter().map(|entry| PodUid::new(&entry.uid)).collect())
}

/// Adopts the pods of sources.
#[derive(Clone)]
pub struct Adoption {
    /// The adopted pods.
    pub pods: Arc<AdoptedPods>,
    /// Lists the pods of the kubelet.
    pub runtime: Arc<dyn KubeletPods>,
}

/// Why pods cannot be adopted now.
#[derive(Debug, thiserror::Error)]
enum AdoptError {
    #[error("cannot list the pods of the kubelet")]
    List(#[source] RuntimeError),
    #[error("cannot write {path}", path = .path.display())]
    Write { path: PathBuf, source: io::Error },
}

impl Adoption {
    /// Gives the adopted pods of an update the UIDs under which they run. Waits until the runtime has listed its pods and new
    /// adoptions are on disk, because a pod that is delivered earlier would be started a second time.
    ///
    /// Cancel safe: a later call repeats what is left.
    pub async fn apply(&self, update: SourceUpdate) -> SourceUpdate {
        let SourceUpdate::Set(mut set) = update else { return update };
        if !self.pods.is_used() {
            return set.into();
        }
        let mut is_first = true;
        loop {
            match self.adopt(&set).await {
                Ok(pods) => {
                    set.pods = pods;
                    return set.into();
                }
                Err(error) if is_first => {
                    tracing::warn!(source = %set.source, error = %error_chain(&error), "pods of the source wait until those of the kubelet can be adopted");
                }
                Err(_) => {}
            }
            is_first = false;
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn adopt(&self, set: &SourceSet) -> Result<Vec<Arc<PodObject>>, AdoptError> {
        let mut state = self.pods.state.lock().await;
        let found = self.runtime.kubelet_pods().await.map_err(AdoptError::List)?;
        let entries = plan(&state.entries, set, &found, self.pods.adopts_more);
        if entries != state.entries {
            self.save(entries.clone()).await?;
            for entry in entries.iter().filter(|entry| !state.entries.contains(entry)) {
                tracing::info!(
                    pod = entry.name,
                    namespace = entry.namespace,
                    pod.uid = entry.uid,
                    "adopting a pod of the kubelet"
                );
            }
            *self.pods.uids.lock() = uids(&entries);
            state.entries = entries;
        }
        if self.pods.adopts_more {
            state.log_unclaimed(&found);
        }
        Ok(state.rename(set))
    }

    async fn save(&self, entries: Vec<Entry>) -> Result<(), AdoptError> {
        let path = self.pods.file.clone();
        let write = tokio::task::spawn_blocking(move || record::write(&path, &entries, Durability::Disk));
        let written = write.await.map_err(io::Error::other).and_then(|written| written);
        written.map_err(|source| AdoptError::Write { path: self.pods.file.clone(), source })
    }
}

impl State {
    fn log_unclaimed(&mut self, found: &[KubeletPod]) {
        let claimed = |pod: &KubeletPod| self.entries.iter().any(|entry| entry.uid == pod.uid.to_string());
        let running = found.iter().filter(|pod| pod.is_running && !claimed(pod));
        let mut unclaimed: Vec<FullName> = running.map(|pod| pod.full_name.clone()).collect();
        unclaimed.sort();
        if unclaimed != self.unclaimed && !unclaimed.is_empty() {
            let names = unclaimed.iter().map(FullName::to_string).collect::<Vec<_>>().join(", ");
            tracing::warn!(
                pods = names,
                "pods of the kubelet that no manifest names are left running: add their manifests, or stop them with crictl stopp"
            );
        }
        self.unclaimed = unclaimed;
    }

    /// The pods of the set with the UIDs under which they run.
    fn rename(&mut self, set: &SourceSet) -> Vec<Arc<PodObject>> {
        let (earlier, of_others) = self.renamed.drain(..).partition::<Vec<_>, _>(|it| it.source == set.source);
        self.renamed = of_others;
        let mut used = HashSet::new();
        let rename = |pod: &Arc<PodObject>| {
            // A second pod of the same name does not run. It keeps its own UID.
            let entry = self.entries.iter().find(|entry| entry.fits(pod) && used.insert(entry.uid.clone()));
            let Some(entry) = entry.filter(|entry| entry.uid != entry.source_uid) else { return pod.clone() };
            let known = earlier.iter().find(|it| Arc::ptr_eq(&it.pod, pod)).map(|it| it.as_run.clone());
            let as_run = known.unwrap_or_else(|| with_uid(pod, &entry.uid));
            self.renamed.push(Renamed { source: set.source, pod: pod.clone(), as_run: as_run.clone() });
            as_run
        };
        set.pods.iter().map(rename).collect()
    }
}

/// The pod under another UID. The hash annotation of a static pod equals its UID.
fn with_uid(pod: &PodObject, uid: &str) -> Arc<PodObject> {
    let mut object = pod.pod().clone();
    object.metadata.uid = Some(uid.to_owned());
    if let Some(hash) = object.metadata.annotations.as_mut().and_then(|all| all.get_mut(HASH_ANNOTATION)) {
        uid.clone_into(hash);
    }
    PodObject::new(object).expect("the pod had an identity, and a kubelet's UID is not empty")
}

/// The adoptions after a source has sent this set. An adoption ends once its source no longer desires the pod as it was adopted
/// and nothing is left of what the kubelet made.
fn plan(entries: &[Entry], set: &SourceSet, found: &[KubeletPod], adopts_more: bool) -> Vec<Entry> {
    let source = set.source.as_str();
    let is_left = |entry: &Entry| found.iter().any(|pod| pod.uid.to_string() == entry.uid);
    let is_desired = |entry: &Entry| entry.source != source || set.pods.iter().any(|pod| entry.fits(pod));
    let mut entries: Vec<Entry> = entries.iter().filter(|entry| is_desired(entry) || is_left(entry)).cloned().collect();
    for pod in set.pods.iter().filter(|_| adopts_more) {
        // After a change of the manifest, the pod must not continue under the adopted UID.
        if entries.iter().any(|entry| entry.is_of(pod.full_name())) {
            continue;
        }
        let of_uid = found.iter().find(|found| found.uid == *pod.uid());
        let of_name = || {
            let same = found.iter().filter(|found| found.is_running && found.full_name == *pod.full_name());
            same.filter(|_| pod.is_static()).max_by_key(|found| found.created_at)
        };
        if let Some(found) = of_uid.or_else(of_name) {
            entries.push(Entry {
                source: source.to_owned(),
                namespace: pod.full_name().namespace().to_owned(),
                name: pod.full_name().name().to_owned(),
                uid: found.uid.to_string(),
                source_uid: pod.uid().to_string(),
            });
        }
    }
    entries
}

#[cfg(test)]
mod tests;
