//! Numbers, times and texts as bytes, and back. Whole numbers take seven bits to a byte, least first, the top bit saying
//! that more come (LEB128); signed ones are folded first, so that small ones of either sign are short.

use std::time::Duration;

use crate::ids::{FullName, PodUid, Repr};
use crate::time::Time;

/// A text longer than this is cut: error messages may be of any length.
const LONGEST_TEXT: usize = 1024;

/// An enum without data that is written as its place among its variants, in a byte.
pub(crate) trait Coded: Copy + PartialEq + 'static {
    /// Every variant, each at its place.
    const ALL: &'static [Self];

    fn code(self) -> u8 {
        // `coded` makes a list that lacks a variant fail to compile.
        Self::ALL.iter().position(|variant| *variant == self).map_or(u8::MAX, |place| place as u8)
    }
}

/// Gives the variants of an enum their places. One that is not listed does not compile, so that none is written as another.
macro_rules! coded {
    ($type:ident: $($variant:ident),+ $(,)?) => {
        impl crate::codec::Coded for $type {
            const ALL: &'static [Self] = {
                // Every variant is here.
                const fn known(variant: $type) {
                    match variant {
                        $($type::$variant => {})+
                    }
                }
                let _known: fn($type) = known;
                &[$($type::$variant),+]
            };
        }
    };
}

pub(crate) use coded;

/// Appends to a buffer.
pub(crate) trait Put {
    fn byte(&mut self, byte: u8);
    fn raw(&mut self, bytes: &[u8]);

    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.byte(number as u8 | 0x80);
            number >>= 7;
        }
        self.byte(number as u8);
    }

    fn signed(&mut self, number: i64) {
        self.number(((number << 1) ^ (number >> 63)) as u64);
    }

    fn flag(&mut self, flag: bool) {
        self.byte(u8::from(flag));
    }

    /// A time as its distance from another one.
    fn time(&mut self, from: Time, time: Time) {
        self.signed(time.as_nanos().wrapping_sub(from.as_nanos()) as i64);
    }

    fn some_time(&mut self, from: Time, time: Option<Time>) {
        self.flag(time.is_some());
        if let Some(time) = time {
            self.time(from, time);
        }
    }

    fn duration(&mut self, duration: Duration) {
        self.number(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }

    /// A text of any length.
    fn long_text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.raw(text.as_bytes());
    }

    fn text(&mut self, text: &str) {
        let mut end = text.len().min(LONGEST_TEXT);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.long_text(&text[..end]);
    }

    fn coded(&mut self, variant: impl Coded) {
        self.byte(variant.code());
    }

    fn uid(&mut self, uid: &PodUid) {
        match &uid.0 {
            Repr::Uuid(bits) => {
                self.byte(0);
                self.raw(bits);
            }
            Repr::Hex(bits) => {
                self.byte(1);
                self.raw(bits);
            }
            Repr::Text(text) => {
                self.byte(2);
                self.text(text);
            }
        }
    }

    fn full_name(&mut self, name: &FullName) {
        self.text(name.as_str());
    }
}

impl Put for Vec<u8> {
    #[inline]
    fn byte(&mut self, byte: u8) {
        self.push(byte);
    }

    #[inline]
    fn raw(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// What should be there is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable {
    /// Where, from the start of the file.
    pub(crate) offset: usize,
    /// What should be there.
    pub(crate) what: &'static str,
}

pub(crate) type Read<T> = Result<T, Unreadable>;

/// Reads from a buffer. Whatever the bytes are, it answers or says where it cannot, and takes no more memory than they.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where the buffer stands in the file.
    base: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], base: usize) -> Self {
        Reader { bytes, at: 0, base }
    }

    pub(crate) fn offset(&self) -> usize {
        self.base + self.at
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.at >= self.bytes.len()
    }

    pub(crate) fn missing<T>(&self, what: &'static str) -> Read<T> {
        Err(Unreadable { offset: self.offset(), what })
    }

    pub(crate) fn raw(&mut self, length: usize, what: &'static str) -> Read<&'a [u8]> {
        let rest = &self.bytes[self.at.min(self.bytes.len())..];
        let Some(taken) = rest.get(..length) else { return self.missing(what) };
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

    pub(crate) fn byte(&mut self, what: &'static str) -> Read<u8> {
        Ok(self.array::<1>(what)?[0])
    }

    pub(crate) fn number(&mut self, what: &'static str) -> Read<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte(what)?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        self.missing(what)
    }

    pub(crate) fn small(&mut self, what: &'static str) -> Read<u32> {
        let number = self.number(what)?;
        u32::try_from(number).or_else(|_| self.missing(what))
    }

    pub(crate) fn signed(&mut self, what: &'static str) -> Read<i64> {
        let folded = self.number(what)?;
        Ok((folded >> 1) as i64 ^ -((folded & 1) as i64))
    }

    pub(crate) fn flag(&mut self, what: &'static str) -> Read<bool> {
        match self.byte(what)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => self.missing(what),
        }
    }

    pub(crate) fn time(&mut self, from: Time, what: &'static str) -> Read<Time> {
        Ok(Time::from_nanos(from.as_nanos().wrapping_add(self.signed(what)? as u64)))
    }

    pub(crate) fn some_time(&mut self, from: Time, what: &'static str) -> Read<Option<Time>> {
        if self.flag(what)? { self.time(from, what).map(Some) } else { Ok(None) }
    }

    pub(crate) fn duration(&mut self, what: &'static str) -> Read<Duration> {
        self.number(what).map(Duration::from_nanos)
    }

    /// A text of any length.
    pub(crate) fn long_text(&mut self, what: &'static str) -> Read<&'a str> {
        self.text_of(usize::MAX, what)
    }

    /// A text that is no longer than [`Put::text`] writes one.
    pub(crate) fn text(&mut self, what: &'static str) -> Read<&'a str> {
        self.text_of(LONGEST_TEXT, what)
    }

    fn text_of(&mut self, most: usize, what: &'static str) -> Read<&'a str> {
        let length = self.number(what)?;
        let Some(length) = usize::try_from(length).ok().filter(|length| *length <= most) else {
            return self.missing(what);
        };
        let bytes = self.raw(length, what)?;
        str::from_utf8(bytes).or_else(|_| self.missing(what))
    }

    pub(crate) fn coded<T: Coded>(&mut self, what: &'static str) -> Read<T> {
        let place = self.byte(what)?;
        T::ALL.get(usize::from(place)).copied().map_or_else(|| self.missing(what), Ok)
    }

    pub(crate) fn uid(&mut self, what: &'static str) -> Read<PodUid> {
        Ok(match self.byte(what)? {
            0 => PodUid(Repr::Uuid(self.array(what)?)),
            1 => PodUid(Repr::Hex(self.array(what)?)),
            2 => PodUid(Repr::Text(self.text(what)?.into())),
            _ => return self.missing(what),
        })
    }

    pub(crate) fn full_name(&mut self, what: &'static str) -> Read<FullName> {
        let Some((name, namespace)) = self.text(what)?.split_once('_') else { return self.missing(what) };
        Ok(FullName::new(namespace, name))
    }
}
