//! Records of the process runtime: what an earlier agent or a shim left on disk.

use std::fmt::Debug;

use podwright::adapters::process::record::{
    ContainerRecord, ExitRecord, RunRecord, SandboxRecord, ShimRecord, StartedRecord, decode, encode, seal,
};

/// A byte that tells the kind of record and whether a header is to be put before the rest.
pub fn check(bytes: &[u8]) {
    let Some((how, rest)) = bytes.split_first() else { return };
    let sealed = seal(rest);
    let file = if how & 0x80 == 0 { &sealed } else { rest };
    match how & 0x7f {
        b's' => read::<SandboxRecord>(file),
        b'c' => read::<ContainerRecord>(file),
        b'r' => read::<RunRecord>(file),
        b'w' => read::<ShimRecord>(file),
        b'b' => read::<StartedRecord>(file),
        _ => read::<ExitRecord>(file),
    }
}

fn read<T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + Debug>(file: &[u8]) {
    let record = match decode::<T>(file) {
        Ok(record) => record,
        Err(damage) => return super::assert_plain(&damage.to_string(), 600),
    };
    let written = encode(&record).unwrap();
    assert_eq!(decode::<T>(&written).unwrap(), record);
    // One byte more, less or other than what was written is no record.
    let at = file.len() % written.len();
    let mut changed = written.clone();
    changed[at] ^= 1;
    assert!(decode::<T>(&changed).is_err(), "changed at {at}");
    assert!(decode::<T>(&written[..at]).is_err(), "cut at {at}");
    assert!(decode::<T>(&[&written[..], b" "].concat()).is_err(), "longer");
}
