//! The metadata files on the node.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use podwright_model::ids::{ClaimName, ClaimUid, DriverName, base_request};
use podwright_ports::{ClaimRef, PreparedDevice};
use serde_json::json;

use super::file::{self, Stored, ignore_missing};
use super::{
    ClaimIdentity, ClaimMetadata, DescribedDevice, DeviceMetadata, LARGEST_FILE, ReadMetadataError, RequestMetadata,
};
use crate::Claim;

/// The folder below the folder of the driver.
const FOLDER: &str = "dra-device-metadata";
/// The file of a request.
const FILE: &str = "metadata.json";
/// The folder in containers.
const MOUNTS: &str = "/var/run/kubernetes.io/dra-device-attributes";
/// The annotation of a claim from a template, with the name that the pod has for the claim (`resource.k8s.io/v1`).
const POD_CLAIM_NAME: &str = "resource.kubernetes.io/pod-claim-name";

/// Why the metadata of devices cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// The driver was started without metadata.
    #[error("the driver writes no metadata: call device_metadata()")]
    Off,
    /// The claim is not prepared, or another claim has its name now.
    #[error("claim {claim} (UID {uid}) has no metadata")]
    UnknownClaim {
        /// The claim.
        claim: ClaimName,
        /// Its UID.
        uid: ClaimUid,
    },
    /// The claim has no device for the request.
    #[error("claim {claim} has no metadata for the request {request:?}")]
    UnknownRequest {
        /// The claim.
        claim: ClaimName,
        /// The request.
        request: String,
    },
    /// A name contains a slash, or begins with a dot.
    #[error("{0:?} cannot be the name of a file")]
    Name(String),
    /// The metadata would be larger than what containers read. Nothing is written.
    #[error("the metadata of the request {request:?} has {bytes} bytes, and at most {LARGEST_FILE} are allowed")]
    TooLarge {
        /// The request, or the one that its subrequests belong to.
        request: String,
        /// The size.
        bytes: usize,
    },
    /// The file is damaged. The next prepare of the claim writes it again.
    #[error("{path} is damaged: prepare the claim again", path = .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ReadMetadataError,
    },
    /// A file cannot be read or written.
    #[error("cannot use {path}", path = .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The files of a driver.
pub(crate) struct MetadataStore {
    driver: DriverName,
    /// The folder of all claims.
    claims: PathBuf,
    cdi_dir: PathBuf,
    versions: Vec<&'static str>,
    /// Held during a change, so that no update is lost.
    changing: Mutex<()>,
}

/// Whose file a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// There is no file: a prepare was interrupted before it wrote one.
    Nobody,
    /// The claim in question. Its file may be damaged: then its CDI file mounts it.
    Claim,
    /// An earlier or later claim of the name.
    Other,
}

impl MetadataStore {
    pub(crate) fn new(driver: DriverName, data_dir: &Path, cdi_dir: PathBuf, versions: Vec<&'static str>) -> Self {
        MetadataStore { driver, claims: data_dir.join(FOLDER), cdi_dir, versions, changing: Mutex::new(()) }
    }

    /// Writes the files of a claim, and adds a CDI device to the first device of each request. Blocking.
    pub(crate) fn prepare(
        &self,
        claim: &Claim,
        devices: &mut [PreparedDevice],
        describe: impl Fn(&PreparedDevice) -> DeviceMetadata,
    ) -> Result<(), MetadataError> {
        let files = requests(claim, devices);
        let dir = self.claim_dir(claim.name())?;
        let _changing = self.changing.lock();
        self.remove(&dir, |owner| owner != Owner::Claim, claim.uid())?;
        let annotations = claim.object().and_then(|object| object.metadata.annotations.as_ref());
        let pod_claim_name = annotations.and_then(|annotations| annotations.get(POD_CLAIM_NAME));
        // Authors of claims choose the annotation, and it becomes a part of a path in containers.
        let pod_claim_name = pod_claim_name.map(|name| file_name(name).map(str::to_owned)).transpose()?;
        for (file, requests) in files {
            let of_request = |(name, devices_of_it): (String, Vec<usize>)| RequestMetadata {
                name,
                devices: devices_of_it.into_iter().map(|index| self.described(&devices[index], &describe)).collect(),
            };
            let first = requests.values().flatten().min().copied();
            let mut content = ClaimMetadata {
                metadata: ClaimIdentity {
                    name: claim.name().name().to_owned(),
                    namespace: claim.name().namespace().to_owned(),
                    uid: claim.uid().to_string(),
                    generation: 1,
                },
                pod_claim_name: pod_claim_name.clone(),
                requests: requests.into_iter().map(of_request).collect(),
            };
            let path = dir.join(file_name(&file)?).join(FILE);
            self.write(&path, &file, &mut content)?;
            self.write_cdi(claim.uid(), &file, &path, &content)?;
            if let Some(first) = first {
                let id = format!("{}/metadata={}_{file}", self.driver, claim.uid());
                if !devices[first].cdi_devices.contains(&id) {
                    devices[first].cdi_devices.push(id);
                }
            }
        }
        Ok(())
    }

    /// Replaces the devices of a request in its file. Blocking.
    pub(crate) fn update(
        &self,
        claim: &ClaimRef,
        request: &str,
        devices: Vec<DescribedDevice>,
    ) -> Result<(), MetadataError> {
        let unknown_request =
            || MetadataError::UnknownRequest { claim: claim.name.clone(), request: request.to_owned() };
        let dir = self.claim_dir(&claim.name)?;
        let file = base_request(request);
        let path = dir.join(file_name(file)?).join(FILE);
        let unknown_claim = || MetadataError::UnknownClaim { claim: claim.name.clone(), uid: claim.uid.clone() };
        let _changing = self.changing.lock();
        let is_of_claim = |(_, owner): &(PathBuf, Owner)| *owner == Owner::Claim;
        if !self.owners(&dir, &claim.uid)?.iter().any(is_of_claim) {
            return Err(unknown_claim());
        }
        let mut content = match file::read(&path).map_err(at(&path))? {
            Stored::Content(content) if content.metadata.uid == claim.uid.as_str() => content,
            Stored::Content(_) => return Err(unknown_claim()),
            Stored::Missing => return Err(unknown_request()),
            Stored::Unreadable(source) => return Err(MetadataError::Damaged { path, source }),
        };
        let found = content.requests.iter_mut().find(|found| found.name == request).ok_or_else(unknown_request)?;
        found.devices = devices;
        self.write(&path, file, &mut content)
    }

    /// Removes the files of a claim. Those of another claim of the same name stay. Blocking.
    pub(crate) fn unprepare(&self, claim: &ClaimRef) -> Result<(), MetadataError> {
        let dir = self.claim_dir(&claim.name)?;
        let _changing = self.changing.lock();
        // The CDI files say which damaged files are of this claim, so they are removed last.
        self.remove(&dir, |owner| owner != Owner::Other, &claim.uid)?;
        let prefix = format!("{}_metadata_{}_", self.driver, claim.uid);
        for entry in entries(&self.cdi_dir).map_err(at(&self.cdi_dir))? {
            if entry.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(&prefix)) {
                fs::remove_file(&entry).or_else(ignore_missing).map_err(at(&entry))?;
            }
        }
        Ok(())
    }

    /// Removes the folders of requests with such an owner, and then the folder of the claim if it is empty.
    fn remove(&self, dir: &Path, which: impl Fn(Owner) -> bool, uid: &ClaimUid) -> Result<(), MetadataError> {
        for (request, owner) in self.owners(dir, uid)? {
            if which(owner) {
                let removed = if request.is_dir() { fs::remove_dir_all(&request) } else { fs::remove_file(&request) };
                removed.or_else(ignore_missing).map_err(at(&request))?;
            }
        }
        match fs::remove_dir(dir) {
            Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => ignore_missing(error).map_err(at(dir)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// The folders of requests in the folder of a claim name, each with its owner, compared with the claim of this UID.
    fn owners(&self, dir: &Path, uid: &ClaimUid) -> Result<Vec<(PathBuf, Owner)>, MetadataError> {
        let owner = |request: PathBuf| {
            let path = request.join(FILE);
            let owner = match file::read(&path).map_err(at(&path))? {
                Stored::Content(content) if content.metadata.uid == uid.as_str() => Owner::Claim,
                Stored::Content(_) => Owner::Other,
                Stored::Missing => Owner::Nobody,
                Stored::Unreadable(_) => {
                    let name = request.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                    if self.cdi_file(uid, name).exists() { Owner::Claim } else { Owner::Other }
                }
            };
            Ok((request, owner))
        };
        entries(dir).map_err(at(dir))?.into_iter().map(owner).collect()
    }

    /// The CDI file that mounts the file of a request.
    fn cdi_file(&self, uid: &ClaimUid, request: &str) -> PathBuf {
        self.cdi_dir.join(format!("{}_metadata_{uid}_{request}.json", self.driver))
    }

    fn claim_dir(&self, claim: &ClaimName) -> Result<PathBuf, MetadataError> {
        // A slash in a name would lead to another folder. No valid name has an underscore.
        Ok(self.claims.join(format!("{}_{}", file_name(claim.namespace())?, file_name(claim.name())?)))
    }

    fn described(
        &self,
        device: &PreparedDevice,
        describe: &impl Fn(&PreparedDevice) -> DeviceMetadata,
    ) -> DescribedDevice {
        DescribedDevice {
            driver: self.driver.to_string(),
            pool: device.pool.clone(),
            name: device.device.clone(),
            metadata: describe(device),
        }
    }

    /// Writes the content with the next generation, unless the file already has this content. An existing file is rewritten in
    /// place, because the containers of the claim have mounted it.
    fn write(&self, path: &Path, request: &str, content: &mut ClaimMetadata) -> Result<(), MetadataError> {
        let stored = file::read(path).map_err(at(path))?;
        if let Stored::Content(old) = &stored {
            content.metadata.generation = old.metadata.generation;
            if old == content {
                return Ok(());
            }
            content.metadata.generation += 1;
        }
        let text = content.text(&self.versions);
        if text.len() as u64 > LARGEST_FILE {
            return Err(MetadataError::TooLarge { request: request.to_owned(), bytes: text.len() });
        }
        match stored {
            Stored::Content(_) | Stored::Unreadable(_) => file::rewrite(path, &text).map_err(at(path)),
            Stored::Missing => {
                if let Some(dir) = path.parent() {
                    fs::create_dir_all(dir).map_err(at(dir))?;
                }
                file::replace(path, &text).map_err(at(path))
            }
        }
    }

    /// Writes the CDI file that mounts the file of a request.
    fn write_cdi(
        &self,
        uid: &ClaimUid,
        request: &str,
        file: &Path,
        content: &ClaimMetadata,
    ) -> Result<(), MetadataError> {
        let claim = match &content.pod_claim_name {
            Some(name) => format!("resourceclaimtemplates/{name}"),
            None => format!("resourceclaims/{}", content.metadata.name),
        };
        let mount = json!({
            "hostPath": file,
            "containerPath": format!("{MOUNTS}/{claim}/{request}/{}-metadata.json", self.driver),
            "options": ["ro", "bind"],
        });
        let spec = json!({
            "cdiVersion": "0.5.0",
            "kind": format!("{}/metadata", self.driver),
            "devices": [{"name": format!("{uid}_{request}"), "containerEdits": {"mounts": [mount]}}],
        });
        fs::create_dir_all(&self.cdi_dir).map_err(at(&self.cdi_dir))?;
        let path = self.cdi_file(uid, request);
        file::replace(&path, &spec.to_string()).map_err(at(&path))
    }
}

/// The devices by file and request: one file for each base request, with the indexes of the devices. A device without requests
/// serves all requests of its allocation.
fn requests(claim: &Claim, devices: &[PreparedDevice]) -> BTreeMap<String, BTreeMap<String, Vec<usize>>> {
    let mut files: BTreeMap<String, BTreeMap<String, Vec<usize>>> = BTreeMap::new();
    for (index, device) in devices.iter().enumerate() {
        let is_same = |pool: &str, name: &str| (pool, name) == (device.pool.as_str(), device.device.as_str());
        let results = claim.results().filter(|result| is_same(&result.pool, &result.device));
        let mut names: Vec<&str> = results
            .filter(|result| device.share_id.is_none() || result.share_id == device.share_id)
            .map(|result| result.request.as_str())
            .filter(|request| {
                let serves = |name: &String| base_request(name) == base_request(request);
                device.requests.is_empty() || device.requests.iter().any(serves)
            })
            .collect();
        if names.is_empty() {
            // A driver without claim objects, or a device that was not allocated.
            names = device.requests.iter().map(String::as_str).collect();
        }
        for name in names {
            let file = files.entry(base_request(name).to_owned()).or_default();
            let devices = file.entry(name.to_owned()).or_default();
            if !devices.contains(&index) {
                devices.push(index);
            }
        }
    }
    files
}

/// The files in a folder. Empty if there is no folder.
fn entries(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn file_name(name: &str) -> Result<&str, MetadataError> {
    if name.is_empty() || name.starts_with('.') || name.contains('/') {
        return Err(MetadataError::Name(name.to_owned()));
    }
    Ok(name)
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> MetadataError {
    let path = path.to_owned();
    |source| MetadataError::Io { path, source }
}
