//! Converts the answers of plugins. Plugins are other programs, so each text from a plugin is checked, and its length is limited,
//! before it reaches a log, a status or a file. Pure.

use std::collections::BTreeMap;
use std::path::Path;

use podwright_dra_api::registration::PluginInfo;
use podwright_dra_api::{v1, v1beta1};
use podwright_model::ids::ClaimUid;
use podwright_model::text::plain;
use podwright_ports::{ClaimRef, PreparedDevice};

use super::MAX_TEXT;
use super::plugins::Plugin;

/// The longest type, name or service name of a plugin, in bytes.
const MAX_NAME: usize = 253;
/// The longest path of a Unix socket, in bytes (`sun_path` without its terminator).
const MAX_SOCKET_PATH: usize = 107;
/// The largest number of services that a plugin may announce.
const MAX_VERSIONS: usize = 64;
/// The longest text of a device, in bytes. Names in the API have at most 253 bytes, and a CDI name consists of two names.
const MAX_DEVICE_TEXT: usize = 1024;
/// The largest number of devices that a driver may prepare for a claim. The API allocates at most 32 (`AllocationResultsMaxSize`,
/// Kubernetes 1.36), and a driver may prepare several devices for one of them.
const MAX_DEVICES: usize = 256;
/// The largest total length of the texts of a claim's devices, in bytes. The agent writes the record of a claim for each pod that
/// uses it.
const MAX_DEVICES_TEXT: usize = 64 << 10;
/// The longest UID that a driver may answer with, in bytes. No claim has a longer one.
const MAX_UID: usize = 253;

/// Why the information that a plugin announces cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidPlugin {
    /// A text is empty, too long, or has control characters.
    #[error("the {field} {text:?} must have 1 to {most} printable characters")]
    Text {
        /// The field.
        field: &'static str,
        /// The text, shortened.
        text: String,
        /// The longest text.
        most: usize,
    },
    /// The endpoint is not an absolute path.
    #[error("the endpoint {0:?} is not an absolute path: the driver must announce a path that begins with /")]
    RelativeEndpoint(String),
    /// Too many services.
    #[error("the plugin announces {0} supported versions: it must announce at most {MAX_VERSIONS}")]
    Versions(usize),
}

/// The plugin behind a registration socket.
///
/// # Errors
/// [`InvalidPlugin`].
pub(super) fn plugin(info: PluginInfo, socket: &Path) -> Result<Plugin, InvalidPlugin> {
    let PluginInfo { r#type: kind, name, endpoint, supported_versions: versions } = info;
    check("type", &kind, MAX_NAME)?;
    check("name", &name, MAX_NAME)?;
    if versions.len() > MAX_VERSIONS {
        return Err(InvalidPlugin::Versions(versions.len()));
    }
    versions.iter().try_for_each(|version| check("supported version", version, MAX_NAME))?;
    let endpoint = if endpoint.is_empty() {
        socket.to_owned()
    } else {
        check("endpoint", &endpoint, MAX_SOCKET_PATH)?;
        if !endpoint.starts_with('/') {
            return Err(InvalidPlugin::RelativeEndpoint(endpoint));
        }
        endpoint.into()
    };
    Ok(Plugin { kind, name, endpoint, versions })
}

fn check(field: &'static str, text: &str, most: usize) -> Result<(), InvalidPlugin> {
    if is_valid(text, most) && !text.is_empty() {
        return Ok(());
    }
    Err(InvalidPlugin::Text { field, text: plain(text, 64).into_owned(), most })
}

/// Whether a text is short and printable.
fn is_valid(text: &str, most: usize) -> bool {
    text.len() <= most && plain(text, most) == text
}

/// What a driver answered for each claim.
pub(super) type Answers<T> = BTreeMap<ClaimUid, Result<T, String>>;

/// Converts the claims of a request.
pub(super) fn claims(claims: &[ClaimRef]) -> Vec<v1::Claim> {
    let claim = |claim: &ClaimRef| v1::Claim {
        namespace: claim.name.namespace().to_owned(),
        uid: claim.uid.as_str().to_owned(),
        name: claim.name.name().to_owned(),
    };
    claims.iter().map(claim).collect()
}

/// Converts the claims of a request to the version `v1beta1`.
pub(super) fn claims_v1beta1(claims: Vec<v1::Claim>) -> Vec<v1beta1::Claim> {
    let claim = |v1::Claim { namespace, uid, name }| v1beta1::Claim { namespace, uid, name };
    claims.into_iter().map(claim).collect()
}

/// The devices that a driver prepared.
pub(super) fn prepared(answer: v1::NodePrepareResourcesResponse) -> Answers<Vec<PreparedDevice>> {
    let claim = |answer: v1::NodePrepareResourceResponse| {
        succeeded(&answer.error)?;
        check_size(&answer.devices)?;
        answer.devices.into_iter().map(device).collect()
    };
    answer.claims.into_iter().map(|(uid, answer)| (claim_uid(&uid), claim(answer))).collect()
}

/// Converts an answer of the version `v1beta1`, which has no share ids.
pub(super) fn prepared_v1beta1(answer: v1beta1::NodePrepareResourcesResponse) -> v1::NodePrepareResourcesResponse {
    let device = |device: v1beta1::Device| v1::Device {
        request_names: device.request_names,
        pool_name: device.pool_name,
        device_name: device.device_name,
        cdi_device_ids: device.cdi_device_ids,
        share_id: None,
    };
    let claim = |claim: v1beta1::NodePrepareResourceResponse| v1::NodePrepareResourceResponse {
        devices: claim.devices.into_iter().map(device).collect(),
        error: claim.error,
    };
    let claims = answer.claims.into_iter().map(|(uid, answer)| (uid, claim(answer))).collect();
    v1::NodePrepareResourcesResponse { claims }
}

/// The claims that a driver unprepared.
pub(super) fn unprepared(answer: v1::NodeUnprepareResourcesResponse) -> Answers<()> {
    answer.claims.into_iter().map(|(uid, answer)| (claim_uid(&uid), succeeded(&answer.error))).collect()
}

/// Converts an answer of the version `v1beta1`.
pub(super) fn unprepared_v1beta1(
    answer: v1beta1::NodeUnprepareResourcesResponse,
) -> v1::NodeUnprepareResourcesResponse {
    let claims = answer.claims.into_iter();
    let claims = claims.map(|(uid, claim)| (uid, v1::NodeUnprepareResourceResponse { error: claim.error })).collect();
    v1::NodeUnprepareResourcesResponse { claims }
}

/// Checks that the devices of a claim fit into its record.
fn check_size(devices: &[v1::Device]) -> Result<(), String> {
    if devices.len() > MAX_DEVICES {
        let found = devices.len();
        return Err(format!("the driver answered with {found} devices, and at most {MAX_DEVICES} are allowed"));
    }
    // In the record, each text takes more bytes than it has, even an empty one.
    let length = |text: &String| text.len() + 4;
    let texts = |device: &v1::Device| -> usize {
        let lists = device.request_names.iter().chain(&device.cdi_device_ids).chain(&device.share_id);
        lists.chain([&device.pool_name, &device.device_name]).map(length).sum()
    };
    let bytes: usize = devices.iter().map(texts).sum();
    if bytes > MAX_DEVICES_TEXT {
        return Err(format!(
            "the texts of the devices that the driver answered with have {bytes} bytes, and at most {MAX_DEVICES_TEXT} are allowed"
        ));
    }
    Ok(())
}

fn device(device: v1::Device) -> Result<PreparedDevice, String> {
    let v1::Device { request_names: requests, pool_name: pool, device_name, cdi_device_ids: cdi_devices, share_id } =
        device;
    let texts = [&pool, &device_name].into_iter().chain(&share_id).chain(&requests).chain(&cdi_devices);
    if let Some(bad) = texts.into_iter().find(|text| !is_valid(text, MAX_DEVICE_TEXT)) {
        let bad = plain(bad, 64);
        return Err(format!(
            "the driver answered with a device whose text {bad:?} is not printable or longer than {MAX_DEVICE_TEXT} bytes"
        ));
    }
    Ok(PreparedDevice { pool, device: device_name, share_id, requests, cdi_devices })
}

fn succeeded(error: &str) -> Result<(), String> {
    if error.is_empty() { Ok(()) } else { Err(plain(error, MAX_TEXT).into_owned()) }
}

/// Converts a UID. A text that cannot be the UID of a claim is made printable, because an error names it.
fn claim_uid(uid: &str) -> ClaimUid {
    ClaimUid::from(&*plain(uid, MAX_UID))
}

/// Decodes and converts bytes, for the fuzz targets.
pub mod bytes {
    use prost::Message;

    use super::*;

    /// What a plugin announces.
    pub fn plugin(bytes: &[u8]) -> Option<Result<Plugin, InvalidPlugin>> {
        Some(super::plugin(PluginInfo::decode(bytes).ok()?, Path::new("/run/registry/a.sock")))
    }

    /// The devices that a driver prepared.
    pub fn prepared(bytes: &[u8]) -> Option<Answers<Vec<PreparedDevice>>> {
        Some(super::prepared(v1::NodePrepareResourcesResponse::decode(bytes).ok()?))
    }

    /// The devices that a driver of the version `v1beta1` prepared.
    pub fn prepared_v1beta1(bytes: &[u8]) -> Option<Answers<Vec<PreparedDevice>>> {
        let answer = v1beta1::NodePrepareResourcesResponse::decode(bytes).ok()?;
        Some(super::prepared(super::prepared_v1beta1(answer)))
    }

    /// The claims that a driver unprepared.
    pub fn unprepared(bytes: &[u8]) -> Option<Answers<()>> {
        Some(super::unprepared(v1::NodeUnprepareResourcesResponse::decode(bytes).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Edit = fn(&mut PluginInfo);

    fn info(edit: impl FnOnce(&mut PluginInfo)) -> PluginInfo {
        let mut info = PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: "gpu.example.com".to_owned(),
            endpoint: "/run/gpu.sock".to_owned(),
            supported_versions: vec!["v1.DRAPlugin".to_owned()],
        };
        edit(&mut info);
        info
    }

    /// DRA-R8: an empty endpoint is the registration socket.
    #[test]
    fn plugins_announce_short_and_printable_texts() {
        let socket = Path::new("/reg/a.sock");
        let found = plugin(info(|_| {}), socket).unwrap();
        assert_eq!((&*found.name, &*found.endpoint), ("gpu.example.com", Path::new("/run/gpu.sock")));
        assert_eq!(plugin(info(|info| info.endpoint.clear()), socket).unwrap().endpoint, socket);
        let bad: [(Edit, &str); 8] = [
            (|info| info.r#type.clear(), "type"),
            (|info| info.name = "a\n".to_owned(), "name"),
            (|info| info.name.clear(), "name"),
            (|info| info.name = "x".repeat(254), "name"),
            (|info| info.endpoint = format!("/{}", "x".repeat(107)), "endpoint"),
            (|info| info.endpoint = "gpu.sock".to_owned(), "not an absolute path"),
            (|info| info.supported_versions.push("\u{1b}[2J".to_owned()), "supported version"),
            (|info| info.supported_versions = vec!["v".to_owned(); 65], "65 supported versions"),
        ];
        for (edit, expected) in bad {
            let error = plugin(info(edit), socket).unwrap_err().to_string();
            assert!(error.contains(expected) && error.len() < 300, "{error}");
        }
    }

    fn answer(devices: Vec<v1::Device>, error: &str) -> v1::NodePrepareResourcesResponse {
        let claim = v1::NodePrepareResourceResponse { devices, error: error.to_owned() };
        v1::NodePrepareResourcesResponse { claims: [("c-1".to_owned(), claim)].into() }
    }

    fn gpu() -> v1::Device {
        v1::Device {
            request_names: vec!["r0".to_owned()],
            pool_name: "n7".to_owned(),
            device_name: "g0".to_owned(),
            cdi_device_ids: vec!["example.com/gpu=g0".to_owned()],
            share_id: Some("s".to_owned()),
        }
    }

    /// The record of a claim stays small, however large the answer is.
    #[test]
    fn devices_of_a_claim_are_bounded() {
        let of = |devices| prepared(answer(devices, "")).remove(&ClaimUid::from("c-1")).unwrap();
        assert_eq!(of(vec![gpu(); 256]).unwrap().len(), 256);
        let error = of(vec![gpu(); 100_000]).unwrap_err();
        assert!(error.contains("100000 devices") && error.contains("256"), "{error}");
        for edit in
            [(|device| device.cdi_device_ids = vec!["a/b=c".to_owned(); 100_000]) as fn(&mut v1::Device), |device| {
                device.request_names = vec![String::new(); 100_000]
            }]
        {
            let mut large = gpu();
            edit(&mut large);
            let error = of(vec![large]).unwrap_err();
            assert!(error.contains("bytes") && error.contains("65536"), "{error}");
        }
    }

    #[test]
    fn an_error_text_discards_the_devices() {
        let of = |answer| prepared(answer).remove(&ClaimUid::from("c-1")).unwrap();
        let expected = PreparedDevice {
            pool: "n7".to_owned(),
            device: "g0".to_owned(),
            share_id: Some("s".to_owned()),
            requests: vec!["r0".to_owned()],
            cdi_devices: vec!["example.com/gpu=g0".to_owned()],
        };
        assert_eq!(of(answer(vec![gpu()], "")), Ok(vec![expected]));
        assert_eq!(of(answer(vec![], "")), Ok(vec![]));
        assert_eq!(of(answer(vec![gpu()], "no\ndevice")), Err("no\\ndevice".to_owned()));
        assert_eq!(of(answer(vec![], &"x".repeat(1 << 20))).unwrap_err().len(), MAX_TEXT);
        for edit in [
            (|device: &mut v1::Device| device.pool_name = "a\u{202e}b".to_owned()) as fn(&mut v1::Device),
            |device| device.share_id = Some("\0".to_owned()),
            |device| device.cdi_device_ids.push("x".repeat(1025)),
            |device| device.request_names.push("a\nb".to_owned()),
        ] {
            let mut bad = gpu();
            edit(&mut bad);
            let error = of(answer(vec![gpu(), bad], "")).unwrap_err();
            assert!(error.contains("not printable") && error.len() < 300, "{error}");
        }
    }
}
