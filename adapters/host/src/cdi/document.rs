//! Parses one specification.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::edits::{Edits, nullable};
use super::error::SpecError;
use super::resolve::Device;
use super::{validate, version};

/// The size limit of a specification in bytes. The specification of a machine with hundreds of devices has 100 KiB.
pub const MAX_BYTES: u64 = 2 << 20;

/// How a specification is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// JSON, in files that end with `.json`.
    Json,
    /// YAML, in files that end with `.yaml`.
    Yaml,
}

impl Format {
    /// The format of a file by its name. `None` if the file is no specification.
    pub fn of(name: &str) -> Option<Self> {
        match name.rsplit_once('.')?.1 {
            "json" => Some(Format::Json),
            "yaml" => Some(Format::Yaml),
            _ => None,
        }
    }
}

/// A specification as it is written.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Document {
    pub(super) cdi_version: String,
    pub(super) kind: String,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) devices: Vec<DeviceDocument>,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) container_edits: Edits,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct DeviceDocument {
    pub(super) name: String,
    #[serde(default, deserialize_with = "nullable")]
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) container_edits: Edits,
}

/// The content of one specification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The vendor and the class of the devices.
    pub kind: String,
    /// The devices, each name once.
    pub devices: Vec<Device>,
    /// The edits for a container with any of the devices.
    pub edits: Edits,
}

/// Parses a specification. An unknown field is an error, as the CDI specification demands: a runtime that ignored it would give the
/// container an incomplete device.
///
/// # Errors
/// [`SpecError`] for the first fault. None of the devices can be used then.
pub fn parse(bytes: &[u8], format: Format) -> Result<Content, SpecError> {
    if bytes.len() as u64 > MAX_BYTES {
        return Err(SpecError::TooLarge(MAX_BYTES));
    }
    let document: Document = match format {
        Format::Json => serde_json::from_slice(bytes).map_err(SpecError::syntax)?,
        Format::Yaml => from_yaml(bytes)?,
    };
    version::check(&document)?;
    validate::check(&document)?;
    let devices =
        document.devices.into_iter().map(|device| Device { name: device.name, edits: device.container_edits });
    Ok(Content { kind: document.kind, devices: devices.collect(), edits: document.container_edits })
}

fn from_yaml(bytes: &[u8]) -> Result<Document, SpecError> {
    let text = std::str::from_utf8(bytes).map_err(SpecError::syntax)?;
    let options = serde_saphyr::options! {
        // The libraries of vendors read a mode such as 0660 as octal.
        legacy_octal_numbers: true,
        with_snippet: false,
        // Parsing is recursive. A specification needs a quarter of this depth.
        budget: serde_saphyr::budget! { max_depth: 32 },
        // Limits the work that nested aliases can cause.
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 10_000 },
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| SpecError::syntax(error.without_snippet()))
}
