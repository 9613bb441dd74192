use proptest::prelude::*;

use super::*;

const NAME: u64 = 1;
const DEVICES: u64 = 4;
/// A field that no version of the API has.
const UNKNOWN: u64 = 1_000;

fn message(fields: &[(u64, &[u8])]) -> Vec<u8> {
    let mut message = Vec::new();
    fields.iter().for_each(|(number, content)| put(&mut message, *number, content));
    message
}

/// A claim in its envelope. The spec is no message, because no edit may read it.
fn body(metadata: &[u8], status: &[u8]) -> Vec<u8> {
    let claim = message(&[(METADATA, metadata), (2, b"\xff{ \"a\" : 1 }"), (STATUS, status), (UNKNOWN, b"new")]);
    [PREFIX, &message(&[(1, b"\x0a\x02v1"), (OBJECT, &claim), (3, b""), (4, b"")])].concat()
}

fn finalizers(names: &[&str]) -> Vec<u8> {
    let mut metadata = message(&[(NAME, b"c"), (RESOURCE_VERSION, b"7")]);
    names.iter().for_each(|name| put(&mut metadata, FINALIZERS, name.as_bytes()));
    put(&mut metadata, UNKNOWN, b"x");
    metadata
}

fn consumer(uid: &str) -> ResourceClaimConsumerReference {
    ResourceClaimConsumerReference {
        api_group: None,
        name: format!("pod-{uid}"),
        resource: "pods".to_owned(),
        uid: uid.to_owned(),
    }
}

/// A status with an allocation, these consumers, and fields that no edit names: of devices, and of each wire type.
fn status(is_allocated: bool, uids: &[&str]) -> Vec<u8> {
    let mut status = Vec::new();
    if is_allocated {
        put(&mut status, ALLOCATION, b"\xffallocation");
    }
    for uid in uids {
        status = reserved(&status, &consumer(uid));
    }
    put(&mut status, DEVICES, b"\xffdevices");
    // The fields 5, 6 and 7: a number, 8 bytes and 4 bytes.
    status.extend_from_slice(b"\x28\x96\x01\x3112345678\x3d1234");
    status
}

fn release(uids: &[&str], deallocate: bool) -> ClaimEdit {
    ClaimEdit::Release { consumers: uids.iter().map(|uid| (*uid).to_owned()).collect(), deallocate }
}

#[test]
fn finalizer_goes_and_all_other_bytes_stay() {
    // With the first, the length of the metadata needs one byte less after the edit.
    let (medium, long) = ("x".repeat(80), "x".repeat(200));
    for (before, after) in [
        (vec![CLAIM_FINALIZER], vec![]),
        (vec![CLAIM_FINALIZER, "a"], vec!["a"]),
        (vec!["a", CLAIM_FINALIZER, "b"], vec!["a", "b"]),
        (vec!["a", CLAIM_FINALIZER], vec!["a"]),
        (vec![medium.as_str(), CLAIM_FINALIZER], vec![medium.as_str()]),
        (vec![long.as_str(), CLAIM_FINALIZER], vec![long.as_str()]),
        (vec!["a"], vec!["a"]),
    ] {
        let status = status(true, &["p"]);
        let found = edited(&body(&finalizers(&before), &status), &ClaimEdit::RemoveFinalizer);
        assert_eq!(found, Some(body(&finalizers(&after), &status)), "{before:?}");
    }
}

#[test]
fn consumers_and_the_allocation_go_and_all_other_bytes_stay() {
    let metadata = finalizers(&[CLAIM_FINALIZER]);
    for (edit, expected) in [
        (release(&["p"], false), status(true, &["q", "r"])),
        (release(&["q", "r"], false), status(true, &["p"])),
        (release(&["p", "q", "r"], true), status(false, &[])),
        (release(&[], true), status(false, &["p", "q", "r"])),
        (release(&["absent"], false), status(true, &["p", "q", "r"])),
    ] {
        let found = edited(&body(&metadata, &status(true, &["p", "q", "r"])), &edit);
        assert_eq!(found, Some(body(&metadata, &expected)), "{edit:?}");
    }
}

#[test]
fn consumer_is_added_behind_the_other_fields() {
    let group = ResourceClaimConsumerReference { api_group: Some("scheduling.k8s.io".to_owned()), ..consumer("g") };
    let added = b"\x0a\x11scheduling.k8s.io\x1a\x04pods\x22\x05pod-g\x2a\x01g";
    for before in [status(true, &["p"]), Vec::new()] {
        let mut after = before.clone();
        put(&mut after, RESERVED_FOR, added);
        let found = edited(&body(b"", &before), &ClaimEdit::Reserve(group.clone()));
        assert_eq!(found, Some(body(b"", &after)));
    }
}

#[test]
fn version_of_a_claim_is_read() {
    assert_eq!(resource_version(&body(&finalizers(&[]), b"")), Some("7"));
    assert_eq!(resource_version(&body(&message(&[(NAME, b"c")]), b"")), None);
    assert_eq!(resource_version(br#"{"metadata": {"resourceVersion": "7"}}"#), None);
}

#[test]
fn failure_of_a_call_is_read() {
    let status = message(&[(1, b""), (2, b"Failure"), (FAILURE_MESSAGE, b"no claim"), (FAILURE_REASON, b"NotFound")]);
    assert_eq!(failure(&[PREFIX, &message(&[(OBJECT, &status)])].concat()), Some(("no claim", "NotFound")));
    assert_eq!(failure(b"too many requests"), None);
}

#[test]
fn damaged_claims_are_not_edited() {
    let claim = message(&[(METADATA, &finalizers(&[CLAIM_FINALIZER])), (STATUS, &status(true, &["p"]))]);
    let whole = [PREFIX, &message(&[(OBJECT, &claim)])].concat();
    let edits = [ClaimEdit::RemoveFinalizer, release(&["p"], true), ClaimEdit::Reserve(consumer("q"))];
    for edit in &edits {
        assert!(edited(&whole, edit).is_some());
        for length in 0..whole.len() {
            assert_eq!(edited(&whole[..length], edit), None, "{length} bytes of {}", whole.len());
        }
        let huge = [PREFIX, b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01".as_slice()].concat();
        // A group, a number without an end, and a claim without metadata and status.
        let others = [b"\x13".as_slice(), b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x12\x00"];
        for damaged in others.into_iter().map(|rest| [PREFIX, rest].concat()).chain([huge]) {
            assert_eq!(edited(&damaged, edit), None, "{damaged:?}");
        }
        // Repeated fields would be merged by the server, so which of them counts is not known.
        let twice = message(&[(METADATA, b""), (METADATA, b""), (STATUS, b""), (STATUS, b"")]);
        assert_eq!(edited(&[PREFIX, &message(&[(OBJECT, &twice)])].concat(), edit), None);
    }
}

/// Fields of the metadata: those that are edited, and others.
fn metadata_fields() -> impl Strategy<Value = Vec<(u64, Vec<u8>)>> {
    let number = prop_oneof![Just(FINALIZERS), Just(RESOURCE_VERSION + 1), 15..UNKNOWN];
    let content =
        prop_oneof![Just(CLAIM_FINALIZER.as_bytes().to_vec()), proptest::collection::vec(any::<u8>(), 0..300)];
    proptest::collection::vec((number, content), 0..12)
}

proptest! {
    #![proptest_config(podwright_random::cases(256))]

    /// Whatever the other fields are, the edited metadata are those without the finalizer.
    #[test]
    fn other_fields_of_any_content_stay(
        fields in metadata_fields(),
        status in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let encode = |fields: &[(u64, Vec<u8>)]| {
            message(&fields.iter().map(|(number, content)| (*number, content.as_slice())).collect::<Vec<_>>())
        };
        let mut kept = fields.clone();
        kept.retain(|(number, content)| *number != FINALIZERS || content != CLAIM_FINALIZER.as_bytes());
        let found = edited(&body(&encode(&fields), &status), &ClaimEdit::RemoveFinalizer);
        prop_assert_eq!(found, Some(body(&encode(&kept), &status)));
    }

    #[test]
    fn any_body_is_edited_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        for body in [bytes.clone(), [PREFIX, &bytes].concat(), body(&bytes, &bytes)] {
            let _ = resource_version(&body);
            for edit in [ClaimEdit::RemoveFinalizer, release(&["p"], true), ClaimEdit::Reserve(consumer("q"))] {
                let _ = edited(&body, &edit);
            }
        }
    }
}
