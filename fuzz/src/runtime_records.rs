//! Parsing the records that the process runtime keeps on disk, written by an earlier agent or a shim.

use std::fmt::Debug;

use podwright_process::testing::record::{
    ContainerRecord, ExitRecord, RunRecord, SandboxRecord, ShimRecord, StartedRecord, decode, encode, seal,
};

/// The input is one byte and a record. The byte selects the kind of the record, and whether a header is put before it.
pub fn check(bytes: &[u8]) {
    let Some((how, rest)) = bytes.split_first() else { return };
    let sealed = seal(rest);
    let file = if how & 0x80 == 0 { &sealed } else { rest };
    match how & 0x7f {
        b's' => round_trips::<SandboxRecord>(file),
        b'c' => round_trips::<ContainerRecord>(file),
        b'r' => round_trips::<RunRecord>(file),
        b'w' => round_trips::<ShimRecord>(file),
        b'b' => round_trips::<StartedRecord>(file),
        _ => round_trips::<ExitRecord>(file),
    }
}

fn round_trips<T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + Debug>(file: &[u8]) {
    let record = match decode::<T>(file) {
        Ok(record) => record,
        Err(damage) => return super::assert_plain(&damage.to_string(), 600),
    };
    let written = encode(&record).unwrap();
    assert_eq!(decode::<T>(&written).unwrap(), record);
    // A record with a byte added, removed or changed is refused.
    let at = file.len() % written.len();
    let mut changed = written.clone();
    changed[at] ^= 1;
    assert!(decode::<T>(&changed).is_err(), "changed at {at}");
    assert!(decode::<T>(&written[..at]).is_err(), "cut at {at}");
    assert!(decode::<T>(&[&written[..], b" "].concat()).is_err(), "one byte added");
}
