//! Values as bytes and back, in the format of [postcard](https://postcard.jamesmunns.com/wire-format): whole numbers take
//! seven bits to a byte, and an enum is written as the index of its variant. Pure.
//!
//! The bytes may come from anywhere. Reading borrows texts from the input, and a list reserves no more elements than bytes
//! are left, so a small input cannot claim much memory. No type that is read contains itself, so the depth is bounded.

use postcard::ser_flavors::Flavor;
use serde::de::Error as _;
use serde::ser::SerializeTuple;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ids::{FullName, PodUid, Repr};
use crate::time::Time;

/// The maximum length of a text in bytes. Longer texts, such as long error messages, are cut when they are written.
const LONGEST_TEXT: usize = 1024;

/// The largest number of bytes that are appended one by one.
const SHORT: usize = 4;

/// Appends a value to a buffer.
#[inline]
pub(crate) fn put<T: Serialize + ?Sized>(bytes: &mut Vec<u8>, value: &T) {
    let written = value.serialize(&mut postcard::Serializer { output: Append(bytes) });
    debug_assert!(written.is_ok(), "only a list of unknown length is refused, and none is written");
}

/// Appends a whole number, as postcard does, but without the small buffer that postcard writes a number to first.
#[inline]
pub(crate) fn put_number(bytes: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// For `#[serde(serialize_with)]` on a `u32`: see [`put_number`].
#[inline]
pub(crate) fn number<S: Serializer>(value: &u32, serializer: S) -> Result<S::Ok, S::Error> {
    serialize_number(u64::from(*value), serializer)
}

/// Writes a number as a tuple of bytes, which postcard appends to the output one by one.
#[inline]
fn serialize_number<S: Serializer>(mut value: u64, serializer: S) -> Result<S::Ok, S::Error> {
    let mut tuple = serializer.serialize_tuple(0)?;
    while value > 0x7f {
        tuple.serialize_element(&(value as u8 | 0x80))?;
        value >>= 7;
    }
    tuple.serialize_element(&(value as u8))?;
    tuple.end()
}

/// Lets postcard write to the end of a buffer that has other bytes.
struct Append<'a>(&'a mut Vec<u8>);

impl Flavor for Append<'_> {
    type Output = ();

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        // Most numbers have one to three bytes. A call that copies them would cost more than they do.
        if bytes.len() <= SHORT {
            bytes.iter().for_each(|byte| self.0.push(*byte));
        } else {
            self.0.extend_from_slice(bytes);
        }
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// A text of at most [`LONGEST_TEXT`] bytes.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Text<'a>(&'a str);

impl<'a> Text<'a> {
    /// The text, cut if it is too long.
    pub(crate) fn new(text: &'a str) -> Self {
        Text(&text[..text.floor_char_boundary(LONGEST_TEXT)])
    }

    pub(crate) fn as_str(self) -> &'a str {
        self.0
    }

    /// The full name that this text is, if it is one.
    pub(crate) fn to_full_name(self) -> Option<FullName> {
        self.0.split_once('_').map(|(name, namespace)| FullName::new(namespace, name))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <&str>::deserialize(deserializer)?;
        if text.len() > LONGEST_TEXT {
            return Err(D::Error::custom("a text is longer than 1024 bytes"));
        }
        Ok(Text(text))
    }
}

/// A pod's UID. The two usual forms take 17 bytes.
// A recording has the index of the variant: another order of variants is another format.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Uid<'a> {
    Uuid(#[serde(with = "bits")] [u8; 16]),
    Hex(#[serde(with = "bits")] [u8; 16]),
    #[serde(borrow)]
    Text(Text<'a>),
}

impl<'a> From<&'a PodUid> for Uid<'a> {
    fn from(uid: &'a PodUid) -> Self {
        match uid.repr() {
            Repr::Uuid(bits) => Uid::Uuid(*bits),
            Repr::Hex(bits) => Uid::Hex(*bits),
            Repr::Text(text) => Uid::Text(Text::new(text)),
        }
    }
}

impl From<Uid<'_>> for PodUid {
    fn from(uid: Uid<'_>) -> Self {
        PodUid::from_repr(match uid {
            Uid::Uuid(bits) => Repr::Uuid(bits),
            Uid::Hex(bits) => Repr::Hex(bits),
            Uid::Text(text) => Repr::Text(text.as_str().into()),
        })
    }
}

/// Sixteen bytes that are copied at once. Serde would write an array one byte at a time.
mod bits {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bits: &[u8; 16], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bits)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 16], D::Error> {
        <&[u8]>::deserialize(deserializer)?.try_into().map_err(D::Error::custom)
    }
}

/// For `#[serde(with)]` on a [`PodUid`].
pub(crate) mod uid {
    use super::{Deserialize, Deserializer, PodUid, Serialize, Uid};

    pub(crate) fn serialize<S: serde::Serializer>(uid: &PodUid, serializer: S) -> Result<S::Ok, S::Error> {
        Uid::from(uid).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PodUid, D::Error> {
        Uid::deserialize(deserializer).map(PodUid::from)
    }
}

/// For `#[serde(with)]` on a [`FullName`].
pub(crate) mod full_name {
    use super::{Deserialize, Deserializer, FullName, Serialize, Text};
    use serde::de::Error as _;

    pub(crate) fn serialize<S: serde::Serializer>(name: &FullName, serializer: S) -> Result<S::Ok, S::Error> {
        Text::new(name.as_str()).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<FullName, D::Error> {
        Text::deserialize(deserializer)?.to_full_name().ok_or_else(|| D::Error::custom("a full name has a namespace"))
    }
}

/// For `#[serde(with)]` on a `String` that is kept as a [`Text`].
pub(crate) mod text {
    use super::{Deserialize, Deserializer, Serialize, Text};

    pub(crate) fn serialize<S: serde::Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
        Text::new(text).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
        Text::deserialize(deserializer).map(|text| text.as_str().to_owned())
    }
}

/// For `#[serde(with)]` on an `Option<String>` that is kept as a [`Text`].
pub(crate) mod some_text {
    use super::{Deserialize, Deserializer, Serialize, Text};

    pub(crate) fn serialize<S: serde::Serializer>(text: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
        text.as_deref().map(Text::new).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
        Ok(Option::<Text<'_>>::deserialize(deserializer)?.map(|text| text.as_str().to_owned()))
    }
}

/// A time as nanoseconds after another one; negative if it is earlier.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct Delta(i64);

impl Serialize for Delta {
    #[inline]
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serialize_number(self.zigzag(), serializer)
    }
}

impl Delta {
    #[inline]
    pub(crate) fn new(from: Time, time: Time) -> Self {
        Delta(time.as_nanos().wrapping_sub(from.as_nanos()) as i64)
    }

    /// The number that postcard writes for a signed one.
    #[inline]
    fn zigzag(self) -> u64 {
        (self.0 << 1 ^ self.0 >> 63) as u64
    }

    /// Appends the difference.
    #[inline]
    pub(crate) fn put(self, bytes: &mut Vec<u8>) {
        put_number(bytes, self.zigzag());
    }

    pub(crate) fn after(self, from: Time) -> Time {
        Time::from_nanos(from.as_nanos().wrapping_add(self.0 as u64))
    }
}

/// The bytes do not hold the expected value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable {
    /// Where the value should begin, in bytes from the start of the file.
    pub(crate) offset: usize,
    /// The expected value, as a noun phrase.
    pub(crate) what: &'static str,
}

pub(crate) type Read<T> = Result<T, Unreadable>;

/// Reads values from a part of a file, one after another.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where the part begins in the file.
    base: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], base: usize) -> Self {
        Reader { bytes, at: 0, base }
    }

    /// Where the next value begins, in bytes from the start of the file.
    pub(crate) fn offset(&self) -> usize {
        self.base + self.at
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest().is_empty()
    }

    fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    pub(crate) fn missing<T>(&self, what: &'static str) -> Read<T> {
        Err(Unreadable { offset: self.offset(), what })
    }

    /// The next value.
    pub(crate) fn take<T: Deserialize<'a>>(&mut self, what: &'static str) -> Read<T> {
        let Ok((value, rest)) = postcard::take_from_bytes(self.rest()) else { return self.missing(what) };
        self.at = self.bytes.len() - rest.len();
        Ok(value)
    }

    /// The next `length` bytes as they are.
    pub(crate) fn raw(&mut self, length: usize, what: &'static str) -> Read<&'a [u8]> {
        let Some(taken) = self.rest().get(..length) else { return self.missing(what) };
        self.at += length;
        Ok(taken)
    }

    /// A reader of the next `length` bytes alone.
    pub(crate) fn part(&mut self, length: usize, what: &'static str) -> Read<Reader<'a>> {
        let base = self.offset();
        Ok(Reader::new(self.raw(length, what)?, base))
    }

    pub(crate) fn array<const N: usize>(&mut self, what: &'static str) -> Read<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.raw(N, what)?);
        Ok(array)
    }
}
