//! Bodies in the protobuf encoding of Kubernetes. `kubectl` sends a few small kinds in this encoding, whatever encoding the server prefers.
//! The server also encodes claims and the statuses of failures. Source: `generated.proto` of the API packages.

mod claims;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::raw;

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
    /// A message whose fields are in JSON those of the message around it.
    Inline(&'static [Field]),
    /// An opaque value.
    Raw,
    /// A JSON value as text.
    Json,
    Quantity,
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
    (7, "generation", Int),
    (8, "creationTimestamp", Time),
    (9, "deletionTimestamp", Time),
    (10, "deletionGracePeriodSeconds", Int),
    (11, "labels", Kind::Map(&Text)),
    (12, "annotations", Kind::Map(&Text)),
    (13, "ownerReferences", Messages(OWNER)),
    (14, "finalizers", Texts),
    (17, "managedFields", Messages(MANAGER)),
];
const MANAGER: &[Field] = &[
    (1, "manager", Text),
    (2, "operation", Text),
    (3, "apiVersion", Text),
    (4, "time", Time),
    (6, "fieldsType", Text),
    (7, "fieldsV1", Kind::Json),
    (8, "subresource", Text),
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
const FAILURE: &[Field] = &[
    (1, "metadata", Message(&[(3, "continue", Text)])),
    (2, "status", Text),
    (3, "message", Text),
    (4, "reason", Text),
    (5, "details", Message(&[(1, "name", Text), (2, "group", Text), (3, "kind", Text), (5, "retryAfterSeconds", Int)])),
    (6, "code", Int),
];
const TOKEN: &[Field] =
    &[(1, "audiences", Texts), (3, "boundObjectRef", Message(REFERENCE)), (4, "expirationSeconds", Int)];

/// The fields of the kinds that the server reads or writes.
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
        "ResourceClaim" => claims::CLAIM,
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
        "Status" => FAILURE,
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

/// Writes an object; none if the server has its kind as JSON only.
pub(crate) fn encode(object: &Value) -> Option<Vec<u8>> {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    let fields = fields(text("kind"))?;
    let kind = [("apiVersion", 1), ("kind", 2)].map(|(field, number)| with_length(number, text(field).as_bytes()));
    let envelope = [with_length(1, &kind.concat()), with_length(2, &encoded(object, fields)), with_length(3, b"")];
    Some([MAGIC, &envelope.concat(), &with_length(4, b"")].concat())
}

/// The fields of an object that the table names.
fn encoded(object: &Value, fields: &[Field]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (number, name, kind) in fields {
        let found = &object[*name];
        match (kind, found) {
            (Kind::Inline(fields), _) => bytes.extend(with_length(*number, &encoded(object, fields))),
            (Texts, Value::Array(items)) => items.iter().for_each(|item| bytes.extend(field(*number, &Text, item))),
            (Messages(fields), Value::Array(items)) => {
                items.iter().for_each(|item| bytes.extend(field(*number, &Message(fields), item)));
            }
            (Kind::Map(kind), Value::Object(entries)) => {
                for (key, value) in entries {
                    let entry = [with_length(1, key.as_bytes()), field(2, kind, value)].concat();
                    bytes.extend(with_length(*number, &entry));
                }
            }
            (_, Value::Null) => {}
            (kind, found) => bytes.extend(field(*number, kind, found)),
        }
    }
    bytes
}

/// A field with one value.
fn field(number: u64, kind: &Kind, value: &Value) -> Vec<u8> {
    let text = value.as_str().unwrap_or_default();
    let with_text = |text: &str| with_length(1, text.as_bytes());
    match kind {
        Int | Bool => {
            let value = value.as_i64().map_or(u64::from(value == true), i64::cast_unsigned);
            [varint(number << 3), varint(value)].concat()
        }
        Bytes => with_length(number, &STANDARD.decode(text).unwrap_or_default()),
        Time => {
            let seconds = text.parse::<jiff::Timestamp>().map_or(0, |time| time.as_second());
            with_length(number, &[varint(1 << 3), varint(seconds.cast_unsigned())].concat())
        }
        Message(fields) => with_length(number, &encoded(value, fields)),
        Kind::Raw => with_length(number, &with_text(raw::bytes(value).unwrap_or_default())),
        Kind::Json => with_length(number, &with_text(&value.to_string())),
        Kind::Quantity => with_length(number, &with_text(text)),
        // The others have several values.
        Text | Texts | Messages(_) | Kind::Map(_) | Kind::Inline(_) => with_length(number, text.as_bytes()),
    }
}

fn with_length(number: u64, content: &[u8]) -> Vec<u8> {
    [varint((number << 3) | 2).as_slice(), &varint(content.len() as u64), content].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value > 0x7f {
        bytes.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    bytes.push(value.to_le_bytes()[0]);
    bytes
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
            (Kind::Inline(fields), EncodedValue::Bytes(bytes)) => {
                object.extend(message(bytes, fields)?.as_object().cloned().unwrap_or_default());
            }
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
        (Kind::Raw, EncodedValue::Bytes(bytes)) => {
            let text = message(bytes, &[(1, "raw", Text)])?;
            text["raw"].as_str().map_or(Value::Null, raw::opaque)
        }
        (Kind::Json, EncodedValue::Bytes(bytes)) => {
            let text = message(bytes, &[(1, "raw", Text)])?;
            serde_json::from_str(text["raw"].as_str()?).ok()?
        }
        (Kind::Quantity, EncodedValue::Bytes(bytes)) => message(bytes, &[(1, "string", Text)])?["string"].take(),
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
mod tests;
