//! The metadata of devices: a JSON file in each container that uses a device of the driver (KEP-5304).
//!
//! The driver writes the file on the node, and a CDI file mounts it. The container reads it with [`ClaimMetadata::read`].

mod file;
mod store;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;

use k8s_openapi::api::resource::v1::{DeviceAttribute, NetworkDeviceData};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use store::MetadataError;
pub(super) use store::MetadataStore;

/// The group of the objects in the file.
const GROUP: &str = "metadata.resource.k8s.io";
/// The kind of the objects in the file.
const KIND: &str = "DeviceMetadata";
/// The known versions, newest first.
pub(super) const VERSIONS: [&str; 1] = ["v1alpha1"];
/// The largest file that is read, in bytes.
const LARGEST_FILE: u64 = 4 << 20;

/// The metadata of a device that its containers can read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceMetadata {
    /// The attributes, by their qualified names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, DeviceAttribute>,
    /// The addresses of a network device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_data: Option<NetworkDeviceData>,
}

/// A device with its metadata.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DescribedDevice {
    /// The driver of the device.
    pub driver: String,
    /// The pool of the device.
    pub pool: String,
    /// The name of the device in its pool.
    pub name: String,
    /// The metadata.
    #[serde(flatten)]
    pub metadata: DeviceMetadata,
}

/// The devices of a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RequestMetadata {
    /// The name of the request, or `REQUEST/SUBREQUEST` for a subrequest.
    pub name: String,
    /// The devices.
    #[serde(default)]
    pub devices: Vec<DescribedDevice>,
}

/// The claim that a file belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimIdentity {
    /// The name.
    pub name: String,
    /// The namespace.
    pub namespace: String,
    /// The UID.
    pub uid: String,
    /// The generation of the content. It begins with 1, and grows with each change.
    pub generation: i64,
}

/// The content of a file: the devices of one driver for a request of a claim, or for its subrequests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimMetadata {
    /// The claim.
    pub metadata: ClaimIdentity,
    /// The name that the pod has for a claim from a template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_claim_name: Option<String>,
    /// The requests.
    #[serde(default)]
    pub requests: Vec<RequestMetadata>,
}

/// Why a file with metadata cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadMetadataError {
    /// The system's error.
    #[error("cannot read the metadata of devices")]
    Io(#[from] io::Error),
    /// The file is larger than any file that a driver writes.
    #[error("the metadata of devices has more than {LARGEST_FILE} bytes")]
    TooLarge,
    /// The content is malformed. The driver may be rewriting the file: read it again.
    #[error("the metadata of devices is malformed: read it again, because the driver may be rewriting it")]
    Malformed(#[from] serde_json::Error),
    /// No object has a known version.
    #[error("the metadata of devices has the versions {0:?}, but this library reads only {VERSIONS:?}")]
    UnknownVersions(Vec<String>),
}

/// An object of the file.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Object<'a> {
    api_version: String,
    kind: &'static str,
    #[serde(flatten)]
    claim: &'a ClaimMetadata,
}

impl ClaimMetadata {
    /// Reads a file in a container. Blocks.
    ///
    /// # Errors
    /// [`ReadMetadataError`].
    pub fn read(path: impl AsRef<Path>) -> Result<Self, ReadMetadataError> {
        let mut text = String::new();
        std::fs::File::open(path)?.take(LARGEST_FILE + 1).read_to_string(&mut text)?;
        if text.len() as u64 > LARGEST_FILE {
            return Err(ReadMetadataError::TooLarge);
        }
        ClaimMetadata::parse(&text)
    }

    /// Parses the content of a file: a stream of JSON objects, of which it uses the first one with a known version.
    ///
    /// # Errors
    /// [`ReadMetadataError::Malformed`] and [`ReadMetadataError::UnknownVersions`].
    pub fn parse(text: &str) -> Result<Self, ReadMetadataError> {
        let mut unknown = Vec::new();
        for object in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
            let object = object?;
            let field = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
            let (version, kind) = (field("apiVersion"), field("kind"));
            if kind == KIND && VERSIONS.iter().any(|known| version == format!("{GROUP}/{known}")) {
                return Ok(serde_json::from_value(object)?);
            }
            unknown.push(format!("{version} {kind}"));
        }
        Err(ReadMetadataError::UnknownVersions(unknown))
    }

    /// The content of a file with these versions.
    fn text(&self, versions: &[&'static str]) -> String {
        let object = |version: &&str| {
            let object = Object { api_version: format!("{GROUP}/{version}"), kind: KIND, claim: self };
            serde_json::to_string(&object).expect("the keys of the maps are strings") + "\n"
        };
        versions.iter().map(object).collect()
    }
}
