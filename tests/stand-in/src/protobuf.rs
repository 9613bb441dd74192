//! Bodies in the protobuf encoding of Kubernetes. `kubectl` sends a few small kinds in this encoding, whatever encoding the server prefers.
//! Source: `generated.proto` of the API packages.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

/// The media type of such bodies.
pub(crate) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// The bytes before the envelope.
const MAGIC: &[u8] = b"k8s\0";

/// A field of a message: its number, its name in JSON and its type.
type Field = (u64, &'static str, Kind);

#[derive(Clone, Copy)]
enum Kind {
    Text,
    Int,
    Bool,
    /// Base64 in JSON.
    Bytes,
    Time,
    Message(&'static [Field]),
    Texts,
    Messages(&'static [Field]),
    /// A map from texts to values of a type.
    Map(&'static Kind),
}

use Kind::{Bool, Bytes, Int, Message, Messages, Text, Texts, Time};

const OWNER: &[Field] = &[
    (1, "kind", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "controller", Bool),
    (7, "blockOwnerDeletion", Bool),
];
const METADATA: &[Field] = &[
    (1, "name", Text),
    (2, "generateName", Text),
    (3, "namespace", Text),
    (5, "uid", Text),
    (6, "resourceVersion", Text),
    (8, "creationTimestamp", Time),
    (11, "labels", Kind::Map(&Text)),
    (12, "annotations", Kind::Map(&Text)),
    (13, "ownerReferences", Messages(OWNER)),
    (14, "finalizers", Texts),
];
const META: Field = (1, "metadata", Message(METADATA));
const DELETE_OPTIONS: &[Field] = &[
    (1, "gracePeriodSeconds", Int),
    (2, "preconditions", Message(&[(1, "uid", Text), (2, "resourceVersion", Text)])),
    (3, "orphanDependents", Bool),
    (4, "propagationPolicy", Text),
    (5, "dryRun", Texts),
];
const REFERENCE: &[Field] = &[(1, "kind", Text), (2, "apiVersion", Text), (3, "name", Text), (4, "uid", Text)];
const RESOURCE_ATTRIBUTES: &[Field] = &[
    (1, "namespace", Text),
    (2, "verb", Text),
    (3, "group", Text),
    (4, "version", Text),
    (5, "resource", Text),
    (6, "subresource", Text),
    (7, "name", Text),
];
const ACCESS: &[Field] = &[
    (1, "resourceAttributes", Message(RESOURCE_ATTRIBUTES)),
    (2, "nonResourceAttributes", Message(&[(1, "path", Text), (2, "verb", Text)])),
    (3, "user", Text),
    (4, "groups", Texts),
];
const CONDITION: &[Field] = &[
    (1, "type", Text),
    (2, "reason", Text),
    (3, "message", Text),
    (4, "lastUpdateTime", Time),
    (5, "lastTransitionTime", Time),
    (6, "status", Text),
];
const SIGNING: &[Field] = &[
    (1, "request", Bytes),
    (2, "username", Text),
    (3, "uid", Text),
    (4, "groups", Texts),
    (5, "usages", Texts),
    (7, "signerName", Text),
    (8, "expirationSeconds", Int),
];
const TOKEN: &[Field] =
    &[(1, "audiences", Texts), (3, "boundObjectRef", Message(REFERENCE)), (4, "expirationSeconds", Int)];

/// The fields of the kinds that the server reads.
fn fields(kind: &str) -> Option<&'static [Field]> {
    Some(match kind {
        "CertificateSigningRequest" => &[
            META,
            (2, "spec", Message(SIGNING)),
            (3, "status", Message(&[(1, "conditions", Messages(CONDITION)), (2, "certificate", Bytes)])),
        ],
        "ConfigMap" => {
            &[META, (2, "data", Kind::Map(&Text)), (3, "binaryData", Kind::Map(&Bytes)), (4, "immutable", Bool)]
        }
        "DeleteOptions" => DELETE_OPTIONS,
        "Eviction" => &[META, (2, "deleteOptions", Message(DELETE_OPTIONS))],
        "Namespace" => &[META],
        "Secret" => &[
            META,
            (2, "data", Kind::Map(&Bytes)),
            (3, "type", Text),
            (4, "stringData", Kind::Map(&Text)),
            (5, "immutable", Bool),
        ],
        "SelfSubjectAccessReview" | "SubjectAccessReview" | "LocalSubjectAccessReview" => {
            &[META, (2, "spec", Message(ACCESS))]
        }
        "SelfSubjectReview" => &[META],
        "ServiceAccount" => &[META, (4, "automountServiceAccountToken", Bool)],
        "TokenRequest" => &[META, (2, "spec", Message(TOKEN))],
        _ => return None,
    })
}

/// Reads a body.
///
/// # Errors
///
/// A text for the user if the body is not in this encoding, or if its kind is not among the few that the server reads.
pub(crate) fn decode(body: &[u8]) -> Result<Value, String> {
    const TYPE: &[Field] = &[(1, "apiVersion", Text), (2, "kind", Text)];
    const ENVELOPE: &[Field] = &[(1, "typeMeta", Message(TYPE)), (2, "raw", Bytes)];
    let envelope = body.strip_prefix(MAGIC).ok_or("the body does not start with the prefix of Kubernetes protobuf")?;
    let broken = || "the protobuf message is broken".to_owned();
    let envelope = message(envelope, ENVELOPE).ok_or_else(broken)?;
    let text = |field: &str| envelope["typeMeta"][field].as_str().unwrap_or_default().to_owned();
    let kind = text("kind");
    let fields =
        fields(&kind).ok_or_else(|| format!("the kind {kind:?} is served as JSON only: send application/json"))?;
    let raw = STANDARD.decode(envelope["raw"].as_str().unwrap_or_default()).map_err(|error| error.to_string())?;
    let mut object = message(&raw, fields).ok_or_else(broken)?;
    object["apiVersion"] = json!(text("apiVersion"));
    object["kind"] = json!(kind);
    Ok(object)
}

/// One encoded value of a message.
enum EncodedValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The number and the value of the next field.
fn next<'a>(bytes: &mut &'a [u8]) -> Option<(u64, EncodedValue<'a>)> {
    let tag = number(bytes)?;
    let length = match tag & 7 {
        0 => return Some((tag >> 3, EncodedValue::Number(number(bytes)?))),
        1 => 8,
        2 => usize::try_from(number(bytes)?).ok()?,
        5 => 4,
        _ => return None,
    };
    let (value, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some((tag >> 3, EncodedValue::Bytes(value)))
}

/// The fields of a message that the table names; none if the message is broken.
fn message(mut bytes: &[u8], fields: &[Field]) -> Option<Value> {
    let mut object = Map::new();
    while !bytes.is_empty() {
        let (tag, wire) = next(&mut bytes)?;
        let Some((_, name, kind)) = fields.iter().find(|(number, ..)| *number == tag) else { continue };
        let mut push = |item: Value| {
            if let Some(list) = object.entry(*name).or_insert_with(|| json!([])).as_array_mut() {
                list.push(item);
            }
        };
        match (kind, &wire) {
            (Texts, _) => push(value(&Text, &wire)?),
            (Messages(fields), EncodedValue::Bytes(bytes)) => push(message(bytes, fields)?),
            (Kind::Map(kind), EncodedValue::Bytes(entry)) => {
                let mut entry = *entry;
                let (mut key, mut found) = (String::new(), json!(""));
                while !entry.is_empty() {
                    match next(&mut entry)? {
                        (1, EncodedValue::Bytes(text)) => key = String::from_utf8(text.to_vec()).ok()?,
                        (2, wire) => found = value(kind, &wire)?,
                        _ => {}
                    }
                }
                if let Some(map) = object.entry(*name).or_insert_with(|| json!({})).as_object_mut() {
                    map.insert(key, found);
                }
            }
            _ => {
                let found = value(kind, &wire)?;
                // An empty text is a field that is not set.
                if found != "" && !found.is_null() {
                    object.insert((*name).to_owned(), found);
                }
            }
        }
    }
    Some(Value::Object(object))
}

fn value(kind: &Kind, wire: &EncodedValue<'_>) -> Option<Value> {
    Some(match (kind, wire) {
        (Text, EncodedValue::Bytes(bytes)) => json!(std::str::from_utf8(bytes).ok()?),
        (Bytes, EncodedValue::Bytes(bytes)) => json!(STANDARD.encode(bytes)),
        (Bool, EncodedValue::Number(number)) => json!(*number != 0),
        (Int, EncodedValue::Number(number)) => json!(number.cast_signed()),
        (Message(fields), EncodedValue::Bytes(bytes)) => message(bytes, fields)?,
        (Time, EncodedValue::Bytes(bytes)) => {
            let parts = message(bytes, &[(1, "seconds", Int)])?;
            match parts["seconds"].as_i64() {
                Some(seconds) => json!(jiff::Timestamp::from_second(seconds).ok()?.to_string()),
                None => Value::Null,
            }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::decode;

    #[test]
    fn an_eviction_is_read() {
        // A continuation byte without an end is refused.
        assert_eq!(decode(b"k8s\0\x0a\xff").unwrap_err(), "the protobuf message is broken");
        let body = b"k8s\0\x0a\x15\x0a\x09policy/v1\x12\x08Eviction\
            \x12\x15\x0a\x0f\x0a\x01p\x12\x00\x5a\x06\x0a\x01a\x12\x01b\x42\x00\x12\x02\x08\x05\x1a\x00\"\x00";
        let expected = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": "p", "labels": {"a": "b"}},
            "deleteOptions": {"gracePeriodSeconds": 5},
        });
        assert_eq!(decode(body).unwrap(), expected);
    }

    #[test]
    fn other_kinds_and_other_bodies_are_refused() {
        let pod = b"k8s\0\x0a\x09\x0a\x02v1\x12\x03Pod\x12\x00";
        assert_eq!(decode(pod).unwrap_err(), "the kind \"Pod\" is served as JSON only: send application/json");
        assert!(decode(b"{}").unwrap_err().contains("prefix"));
    }
}
