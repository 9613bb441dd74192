//! Parsing manifests into the pods of the node.

use k8s_openapi::api::core::v1::Pod;
use podwright::PodObject;
use podwright::adapters::sources::manifest::{MAX_BYTES, Manifest, UnknownFields, Warning, read, read_with};
use podwright_core::config::defaults::{StaticContext, apply_api_defaults, apply_static_defaults};
use podwright_core::config::validate::{validate, validate_static};
use podwright_model::quantity::Amount;
use podwright_ports::SourceKind;

/// The input is a manifest file.
pub fn check(bytes: &[u8]) {
    let Manifest { pods, faults, warnings } = read(bytes);
    assert!(warnings.len() <= 100, "{} warnings", warnings.len());
    for warning in &warnings {
        super::assert_plain(&warning.fault.to_string(), 2000);
        assert!(warning.pod.is_none_or(|pod| pod < pods.len()), "the warning has no pod: {warning:?}");
    }
    unknown_fields_can_be_refused(bytes, &pods, &warnings);
    assert!(faults.len() <= 101, "{} faults", faults.len());
    for fault in &faults {
        super::assert_plain(&fault.to_string(), 2000);
        let whole = ["contains no pod", "has ", "and "].iter().any(|start| fault.message.starts_with(start));
        assert!(whole || fault.at.is_some(), "the fault has no line: {fault}");
    }
    pods.iter().for_each(json_round_trips);
    pods.iter().for_each(defaults_are_idempotent);
    pods.iter().for_each(quantities_are_exact);
    if !pods.is_empty() {
        line_endings_do_not_matter(bytes, &pods);
        the_encoding_does_not_matter(bytes, &pods);
    }
}

/// If unknown fields are refused, the pods without warnings are used.
fn unknown_fields_can_be_refused(bytes: &[u8], pods: &[Pod], warnings: &[Warning]) {
    let strict = read_with(bytes, UnknownFields::Refuse);
    assert!(strict.warnings.is_empty());
    if warnings.len() < 100 {
        let is_known = |index: &usize| !warnings.iter().any(|warning| warning.pod == Some(*index));
        let known: Vec<&Pod> =
            pods.iter().enumerate().filter(|(index, _)| is_known(index)).map(|(_, pod)| pod).collect();
        assert!(strict.pods.iter().eq(known), "{:?}", strict.faults);
    }
}

/// The amount of a quantity is its written number, rounded up.
fn quantities_are_exact(pod: &Pod) {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let resources = containers.flat_map(|container| &container.resources);
    for quantity in resources.flat_map(|own| own.limits.iter().chain(&own.requests).flat_map(|map| map.values())) {
        let text = quantity.0.as_str();
        let units = Amount::of(quantity).unwrap().units();
        let end = text.find(|c: char| !c.is_ascii_digit() && !"+-.".contains(c)).unwrap_or(text.len());
        let (number, unit) = text.split_at(end);
        let factor = match (unit, unit.strip_suffix('i')) {
            ("", _) => 1.0,
            ("E", _) => 1e18,
            (_, Some(power)) => 1024f64.powi(" KMGTPE".find(power).unwrap() as i32),
            _ => match "num kMGTP".find(unit) {
                Some(power) => 1000f64.powi(power as i32 - 3),
                None => format!("1{unit}").parse().unwrap(),
            },
        };
        let exact = number.parse::<f64>().unwrap() * factor;
        let near = (units as f64 - exact).abs() <= 1.0 + exact.abs() * 1e-9;
        // The exponents of number and unit may cancel out, or exceed what `f64` can hold.
        let saturated = units == i64::MAX && exact > 9e18;
        assert!(near || saturated || !exact.is_normal(), "{text:?} is {units}");
    }
}

/// A valid pod is the same valid pod after it was written as JSON and parsed again.
fn json_round_trips(pod: &Pod) {
    let mut json = String::new();
    for c in serde_json::to_string(pod).unwrap().chars() {
        // YAML accepts these characters only as escapes; JSON accepts them as they are.
        match c {
            '\u{7f}'..='\u{9f}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => json += &format!("\\u{:04x}", u32::from(c)),
            c => json.push(c),
        }
    }
    let again = read(json.as_bytes());
    assert!(again.faults.is_empty(), "{:?} of {json}", again.faults);
    assert!(again.pods == [pod.clone()], "{:?} became {:?}", pod, again.pods);
}

/// The defaults make a valid static pod of the node. Applying them twice changes nothing more.
fn defaults_are_idempotent(pod: &Pod) {
    let cx = StaticContext {
        node_name: "node-1",
        source: SourceKind::File,
        origin: "/manifests/a.yaml",
        now: podwright::Time::ZERO,
    };
    let fill = |pod: &Pod| {
        let mut pod = pod.clone();
        apply_static_defaults(&mut pod, &cx);
        pod
    };
    let full = fill(pod);
    assert_eq!(full, fill(pod));
    let mut twice = full.clone();
    apply_api_defaults(&mut twice);
    assert_eq!(full, twice);
    let too_long = full.metadata.name.as_ref().is_some_and(|name| name.len() > 253);
    if !too_long {
        assert_eq!(validate(&full), []);
        assert_eq!(validate_static(&full), []);
    }
    let object = PodObject::new(full).unwrap();
    assert!(object.is_static() && object.full_name().name().ends_with("-node-1"));
}

/// A byte order mark and Windows line endings make no difference.
fn line_endings_do_not_matter(bytes: &[u8], pods: &[Pod]) {
    if bytes.starts_with(b"\xef\xbb\xbf") || bytes.contains(&b'\r') || std::str::from_utf8(bytes).is_err() {
        return;
    }
    let mut marked = b"\xef\xbb\xbf".to_vec();
    for byte in bytes {
        if *byte == b'\n' {
            marked.push(b'\r');
        }
        marked.push(*byte);
    }
    // A quoted key may have 1024 characters and several lines. The carriage returns count, so a longer one is no key any more. Escaped
    // quotes hide where it ends.
    let is_quote = |byte: &u8| matches!(byte, b'"' | b'\'');
    let first = marked.iter().position(is_quote).unwrap_or_default();
    let last = marked.iter().rposition(is_quote).unwrap_or_default();
    let may_be_key = &marked[first..last];
    if may_be_key.len() <= 1024 || !may_be_key.contains(&b'\n') {
        assert!(read(&marked).pods == pods);
    }
}

/// UTF-16 with a byte order mark makes no difference.
fn the_encoding_does_not_matter(bytes: &[u8], pods: &[Pod]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if bytes.len() > MAX_BYTES / 4 {
        return;
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for encoded in [u16::to_le_bytes, u16::to_be_bytes] {
        let encoded: Vec<u8> = format!("\u{feff}{text}").encode_utf16().flat_map(encoded).collect();
        assert!(read(&encoded).pods == pods);
    }
}
