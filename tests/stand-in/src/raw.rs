//! Opaque values inside objects (`RawExtension` of the API types): the parameters of drivers. The server stores the bytes that it received,
//! and a field with other bytes has another value. It encodes the bytes anew when an object leaves as JSON, and in patches.
//!
//! The store keeps an opaque value as an object whose only field is [`MARK`], with the bytes as text. So two opaque values are equal if and
//! only if their bytes are equal.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::ser::{Error as _, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// The field with the bytes. No JSON field of the API has such a name.
const MARK: &str = "\0raw";

/// The paths of the opaque values of a kind. An asterisk stands for each item of a list.
fn paths(kind: &str) -> &'static [&'static str] {
    match kind {
        "DeviceClass" => &["spec.config.*.opaque.parameters"],
        "ResourceClaim" => &[
            "spec.devices.config.*.opaque.parameters",
            "status.allocation.devices.config.*.opaque.parameters",
            "status.devices.*.data",
        ],
        "ResourceClaimTemplate" => &["spec.spec.devices.config.*.opaque.parameters"],
        _ => &[],
    }
}

/// An opaque value with these bytes, for an object that [`StandIn::replace`](crate::StandIn::replace) writes.
#[must_use]
pub fn opaque(text: &str) -> Value {
    json!({ MARK: text })
}

/// The bytes of an opaque value. `None` for other values.
pub(crate) fn bytes(value: &Value) -> Option<&str> {
    value.get(MARK)?.as_str()
}

/// Keeps the bytes of the opaque values of a body. `text` is the body. If it is no JSON, the server encodes the values as JSON.
pub(crate) fn keep(kind: &str, text: &str, body: &mut Value) {
    for path in paths(kind) {
        keep_at(&path.split('.').collect::<Vec<_>>(), Some(text), body);
    }
}

fn keep_at(path: &[&str], text: Option<&str>, value: &mut Value) {
    let Some((name, rest)) = path.split_first() else {
        if !value.is_null() && bytes(value).is_none() {
            *value = opaque(&text.map_or_else(|| sorted(value), str::to_owned));
        }
        return;
    };
    match value {
        Value::Array(items) if *name == "*" => {
            let texts: Vec<&RawValue> = text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
            for (at, item) in items.iter_mut().enumerate() {
                keep_at(rest, texts.get(at).map(|text| text.get()), item);
            }
        }
        Value::Object(fields) => {
            let texts: Option<BTreeMap<String, &RawValue>> = text.and_then(|text| serde_json::from_str(text).ok());
            if let Some(field) = fields.get_mut(*name) {
                keep_at(rest, texts.as_ref().and_then(|texts| texts.get(*name)).map(|text| text.get()), field);
            }
        }
        _ => {}
    }
}

/// How the server encodes opaque values in a patch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Encoding {
    /// Without blanks, and with the characters escaped that are special in HTML: in JSON patches and JSON merge patches, and in answers.
    Compact,
    /// Decoded and encoded, so that the keys are sorted too: in strategic merge patches and in server-side apply.
    Sorted,
}

/// Encodes the opaque values of an object anew. A value that a patch has added without its bytes gets sorted keys.
pub(crate) fn recode(kind: &str, object: &mut Value, encoding: Encoding) {
    for path in paths(kind) {
        recode_at(&path.split('.').collect::<Vec<_>>(), object, encoding);
    }
}

fn recode_at(path: &[&str], value: &mut Value, encoding: Encoding) {
    let Some((name, rest)) = path.split_first() else {
        let text = match (bytes(value), encoding) {
            (Some(text), Encoding::Compact) => compact(text),
            (Some(text), Encoding::Sorted) => sorted(&serde_json::from_str(text).unwrap_or_default()),
            (None, _) if value.is_null() => return,
            (None, _) => sorted(value),
        };
        *value = opaque(&text);
        return;
    };
    match value {
        Value::Array(items) if *name == "*" => items.iter_mut().for_each(|item| recode_at(rest, item, encoding)),
        Value::Object(fields) => {
            if let Some(field) = fields.get_mut(*name) {
                recode_at(rest, field, encoding);
            }
        }
        _ => {}
    }
}

/// A JSON text without the blanks between its tokens, and with `<`, `>`, `&` and the line separators escaped, as Go encodes it.
fn compact(text: &str) -> String {
    let mut compact = String::with_capacity(text.len());
    let (mut is_in_text, mut is_escaped) = (false, false);
    for c in text.chars() {
        match c {
            ' ' | '\t' | '\r' | '\n' if !is_in_text => continue,
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => compact.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => compact.push(c),
        }
        if c == '"' && !is_escaped {
            is_in_text = !is_in_text;
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    compact
}

/// The JSON text that Go writes for a decoded value.
fn sorted(value: &Value) -> String {
    let mut value = value.clone();
    shorten_numbers(&mut value);
    compact(&value.to_string())
}

/// Go decodes a number with a fraction to a floating-point number, and writes no fraction for a whole one.
fn shorten_numbers(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(shorten_numbers),
        Value::Array(items) => items.iter_mut().for_each(shorten_numbers),
        Value::Number(number) if number.is_f64() => {
            let text = format!("{:.0}", number.as_f64().unwrap_or_default());
            if let Ok(whole) = text.parse::<i64>()
                && number.as_f64() == text.parse::<f64>().ok()
            {
                *value = json!(whole);
            }
        }
        _ => {}
    }
}

/// A value as the server writes it in JSON.
pub(crate) struct Written<'a>(pub(crate) &'a Value);

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Object(fields) => match bytes(self.0) {
                Some(text) => RawValue::from_string(compact(text)).map_err(S::Error::custom)?.serialize(serializer),
                None => serializer.collect_map(fields.iter().map(|(name, value)| (name, Written(value)))),
            },
            Value::Array(items) => serializer.collect_seq(items.iter().map(Written)),
            value => value.serialize(serializer),
        }
    }
}

/// The JSON text of a value.
pub(crate) fn text(value: &Value) -> String {
    serde_json::to_string(&Written(value)).unwrap_or_default()
}

/// Replaces each opaque value by what its bytes say.
pub(crate) fn open(value: &mut Value) {
    if let Some(text) = bytes(value) {
        *value = serde_json::from_str(text).unwrap_or_default();
        return;
    }
    match value {
        Value::Object(fields) => fields.values_mut().for_each(open),
        Value::Array(items) => items.iter_mut().for_each(open),
        _ => {}
    }
}

/// The object with its opaque values opened.
pub(crate) fn opened(object: Arc<Value>) -> Arc<Value> {
    if !has_opaque(&object) {
        return object;
    }
    let mut opened = Value::clone(&object);
    open(&mut opened);
    Arc::new(opened)
}

fn has_opaque(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.contains_key(MARK) || fields.values().any(has_opaque),
        Value::Array(items) => items.iter().any(has_opaque),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLAIM: &str =
        r#"{"spec": {"devices": {"config": [{"opaque": {"parameters": {"b" : "<\"> ", "a": 1.0}}}, {}]}}}"#;

    fn claim() -> Value {
        let mut claim = serde_json::from_str(CLAIM).unwrap();
        keep("ResourceClaim", CLAIM, &mut claim);
        claim
    }

    fn parameters(claim: &Value) -> &Value {
        &claim["spec"]["devices"]["config"][0]["opaque"]["parameters"]
    }

    #[test]
    fn bytes_are_kept_until_they_are_encoded() {
        let kept = claim();
        assert_eq!(bytes(parameters(&kept)), Some(r#"{"b" : "<\"> ", "a": 1.0}"#));
        for (encoding, expected) in [
            (Encoding::Compact, r#"{"b":"\u003c\"\u003e ","a":1.0}"#),
            (Encoding::Sorted, r#"{"a":1,"b":"\u003c\"\u003e "}"#),
        ] {
            let mut claim = kept.clone();
            recode("ResourceClaim", &mut claim, encoding);
            assert_eq!(bytes(parameters(&claim)), Some(expected), "{encoding:?}");
        }
        assert!(text(&kept).contains(r#"{"b":"\u003c\"\u003e ","a":1.0}"#), "{}", text(&kept));
    }

    #[test]
    fn values_of_a_body_in_yaml_are_encoded() {
        let mut claim = serde_json::from_str(CLAIM).unwrap();
        keep("ResourceClaim", "spec:\n  devices: {}", &mut claim);
        assert_eq!(bytes(parameters(&claim)), Some(r#"{"a":1,"b":"\u003c\"\u003e "}"#));
    }

    #[test]
    fn opened_values_are_plain_json() {
        let opened = opened(Arc::new(json!({"kind": "ResourceClaim", "spec": claim()["spec"]})));
        assert_eq!(*parameters(&opened), json!({"a": 1.0, "b": "<\"> "}));
    }

    #[test]
    fn other_kinds_have_no_opaque_values() {
        let mut pod: Value = serde_json::from_str(CLAIM).unwrap();
        let before = pod.clone();
        keep("Pod", CLAIM, &mut pod);
        assert_eq!(pod, before);
    }
}
