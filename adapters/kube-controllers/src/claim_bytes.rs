//! Edits an encoded ResourceClaim without decoding it. Every byte that an edit does not concern is copied: opaque parameters, and fields
//! that this program does not know. The field numbers are those of `generated.proto` in Kubernetes 1.36. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::resource::v1::ResourceClaimConsumerReference;
use podwright_controllers::ports::resource_claims::{CLAIM_FINALIZER, ClaimEdit};

/// The encoding of Kubernetes: a prefix, and an envelope with the encoded object.
pub(super) const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
const PREFIX: &[u8] = b"k8s\0";

// `runtime.Unknown`, the envelope.
const OBJECT: u64 = 2;
// `ResourceClaim` of `resource.k8s.io/v1`.
const METADATA: u64 = 1;
const STATUS: u64 = 3;
// `ObjectMeta` of `meta/v1`.
const RESOURCE_VERSION: u64 = 6;
const FINALIZERS: u64 = 14;
// `ResourceClaimStatus`.
const ALLOCATION: u64 = 1;
const RESERVED_FOR: u64 = 2;
// `ResourceClaimConsumerReference`.
const CONSUMER_GROUP: u64 = 1;
const CONSUMER_RESOURCE: u64 = 3;
const CONSUMER_NAME: u64 = 4;
const CONSUMER_UID: u64 = 5;
// `Status` of `meta/v1`, the answer of a failed call.
const FAILURE_MESSAGE: u64 = 3;
const FAILURE_REASON: u64 = 4;

/// The wire type of texts, bytes and messages.
const WITH_LENGTH: u64 = 2;

/// The resource version of a claim. `None` if the body is no encoded claim.
pub(super) fn resource_version(body: &[u8]) -> Option<&str> {
    text(only(only(object(body)?, METADATA)?, RESOURCE_VERSION)?)
}

/// The message and the reason of a failed call. `None` if the body is no encoded status.
pub(super) fn failure(body: &[u8]) -> Option<(&str, &str)> {
    let status = object(body)?;
    Some((text(only(status, FAILURE_MESSAGE)?)?, only(status, FAILURE_REASON).and_then(text).unwrap_or_default()))
}

/// The body with an edited claim. `None` if the body is no encoded claim.
pub(super) fn edited(body: &[u8], edit: &ClaimEdit) -> Option<Vec<u8>> {
    let (claim, envelope) = (object(body)?, body.strip_prefix(PREFIX)?);
    let (number, part) = match edit {
        ClaimEdit::RemoveFinalizer => (METADATA, without_finalizer(only(claim, METADATA)?)?),
        ClaimEdit::Release { consumers, deallocate } => {
            (STATUS, released(only(claim, STATUS)?, consumers, *deallocate)?)
        }
        ClaimEdit::Reserve(consumer) => (STATUS, reserved(only(claim, STATUS)?, consumer)),
    };
    let claim = replaced(claim, number, &part)?;
    Some([PREFIX, &replaced(envelope, OBJECT, &claim)?].concat())
}

/// The object in an envelope.
fn object(body: &[u8]) -> Option<&[u8]> {
    only(body.strip_prefix(PREFIX)?, OBJECT)
}

fn without_finalizer(metadata: &[u8]) -> Option<Vec<u8>> {
    filtered(metadata, |number, name| Some(number != FINALIZERS || name != CLAIM_FINALIZER.as_bytes()))
}

fn released(status: &[u8], consumers: &BTreeSet<String>, deallocate: bool) -> Option<Vec<u8>> {
    filtered(status, |number, part| {
        Some(match number {
            ALLOCATION => !deallocate,
            RESERVED_FOR => !consumers.contains(only(part, CONSUMER_UID).map_or(Some(""), text)?),
            _ => true,
        })
    })
}

fn reserved(status: &[u8], consumer: &ResourceClaimConsumerReference) -> Vec<u8> {
    let mut reference = Vec::new();
    put(&mut reference, CONSUMER_GROUP, consumer.api_group.as_deref().unwrap_or_default().as_bytes());
    put(&mut reference, CONSUMER_RESOURCE, consumer.resource.as_bytes());
    put(&mut reference, CONSUMER_NAME, consumer.name.as_bytes());
    put(&mut reference, CONSUMER_UID, consumer.uid.as_bytes());
    let mut status = status.to_vec();
    put(&mut status, RESERVED_FOR, &reference);
    status
}

/// One field of a message.
struct Field<'a> {
    number: u64,
    /// The field with its tag.
    whole: &'a [u8],
    /// The content, if the field has a length.
    content: Option<&'a [u8]>,
}

/// The fields of a message. `None` stands for a message that is damaged from there on.
fn fields(message: &[u8]) -> impl Iterator<Item = Option<Field<'_>>> {
    let mut rest = message;
    std::iter::from_fn(move || {
        let field = (!rest.is_empty()).then(|| next(&mut rest))?;
        if field.is_none() {
            rest = &[];
        }
        Some(field)
    })
}

fn next<'a>(rest: &mut &'a [u8]) -> Option<Field<'a>> {
    let start = *rest;
    let tag = varint(rest)?;
    let mut content = None;
    match tag & 7 {
        0 => _ = varint(rest)?,
        1 => _ = take(rest, 8)?,
        WITH_LENGTH => {
            let length = usize::try_from(varint(rest)?).ok()?;
            content = Some(take(rest, length)?);
        }
        5 => _ = take(rest, 4)?,
        // Groups, which Kubernetes does not use.
        _ => return None,
    }
    Some(Field { number: tag >> 3, whole: &start[..start.len() - rest.len()], content })
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, tail) = rest.split_first()?;
        *rest = tail;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, tail) = rest.split_at_checked(length)?;
    *rest = tail;
    Some(taken)
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// The content of the field that a message has exactly once. Servers repeat no field of a single value.
fn only(message: &[u8], number: u64) -> Option<&[u8]> {
    let mut found = None;
    for field in fields(message) {
        let field = field?;
        if field.number == number && found.replace(field.content?).is_some() {
            return None;
        }
    }
    found
}

/// A message with other content in all fields of a number.
fn replaced(message: &[u8], number: u64, content: &[u8]) -> Option<Vec<u8>> {
    let mut copy = Vec::with_capacity(message.len() + content.len());
    for field in fields(message) {
        let field = field?;
        if field.number == number {
            put(&mut copy, number, content);
        } else {
            copy.extend_from_slice(field.whole);
        }
    }
    Some(copy)
}

/// A message without the fields with a length that `keeps` does not keep. `None` if a field cannot be judged.
fn filtered(message: &[u8], keeps: impl Fn(u64, &[u8]) -> Option<bool>) -> Option<Vec<u8>> {
    let mut copy = Vec::with_capacity(message.len());
    for field in fields(message) {
        let field = field?;
        let is_kept = match field.content {
            Some(content) => keeps(field.number, content)?,
            None => true,
        };
        if is_kept {
            copy.extend_from_slice(field.whole);
        }
    }
    Some(copy)
}

/// Adds a field with a length.
fn put(message: &mut Vec<u8>, number: u64, content: &[u8]) {
    put_varint(message, (number << 3) | WITH_LENGTH);
    put_varint(message, content.len() as u64);
    message.extend_from_slice(content);
}

fn put_varint(message: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        message.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    message.push(value.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests;
