//! The bytes of a file, and what they hold.

use crate::text::plain;
use crate::time::Time;

use super::ring::{LENGTH, Saved};
use crate::codec::{Put, Reader, Unreadable};

/// The version of the format that this build writes and reads.
pub const FORMAT: u16 = 2;

const MAGIC: &[u8; 8] = b"podrec\r\n";
const END: u16 = u16::MAX;

/// A file cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// It is something else.
    #[error("byte 0: not a recording: get one from a running agent, at /recording of its admin address")]
    Foreign,
    /// Another build's.
    #[error(
        "byte 8: the recording has format {found}, which {build} wrote; this build reads format {FORMAT}: replay it with \
         that build"
    )]
    Format {
        /// Its format.
        found: u16,
        /// Who wrote it, as far as can be read.
        build: String,
    },
    /// It ends too early.
    #[error("byte {offset}: the recording ends where {what} should be: it was cut off; copy it again")]
    CutOff {
        /// Where, in bytes from the start.
        offset: usize,
        /// What should be there.
        what: &'static str,
    },
    /// It goes on behind its end.
    #[error("byte {offset}: the recording ends here and {more} bytes follow: something was added; copy it again")]
    Trailing {
        /// Where its end is, in bytes from the start.
        offset: usize,
        /// How many bytes follow.
        more: usize,
    },
    /// A checksum does not match.
    #[error("byte {offset}: the checksum of {what} does not match: the file was changed; copy it again")]
    Checksum {
        /// Where what was changed begins.
        offset: usize,
        /// What was changed.
        what: &'static str,
    },
    /// What is there makes no sense.
    #[error("byte {offset}: expected {what}: the file was not written by this version; get a new one from the agent")]
    Damaged {
        /// Where, in bytes from the start.
        offset: usize,
        /// What should be there.
        what: &'static str,
    },
}

impl From<Unreadable> for ReadError {
    fn from(Unreadable { offset, what }: Unreadable) -> Self {
        ReadError::Damaged { offset, what }
    }
}

pub(crate) fn write(now: Time, rings: &[Saved]) -> Vec<u8> {
    let mut header = Vec::new();
    header.text(concat!("podwright ", env!("CARGO_PKG_VERSION")));
    header.number(now.as_nanos());
    header.number(rings.iter().map(|ring| ring.dropped).sum());

    let content: usize = rings.iter().flat_map(|ring| &ring.segments).map(|segment| segment.bytes.len() + 10).sum();
    let mut file = Vec::with_capacity(content + header.len() + 32);
    file.raw(MAGIC);
    file.raw(&FORMAT.to_le_bytes());
    file.raw(&(header.len() as u32).to_le_bytes());
    file.raw(&crc32fast::hash(&header).to_le_bytes());
    file.raw(&header);
    let mut count = 0u32;
    for (ring, saved) in rings.iter().enumerate() {
        for segment in &saved.segments {
            count += 1;
            file.raw(&(ring as u16).to_le_bytes());
            file.raw(&(segment.bytes.len() as u32).to_le_bytes());
            file.raw(&crc32fast::hash(&segment.bytes).to_le_bytes());
            file.raw(&segment.bytes);
        }
    }
    file.raw(&END.to_le_bytes());
    file.raw(&count.to_le_bytes());
    file
}

/// A file whose checksums match.
#[derive(Debug)]
pub(crate) struct File<'a> {
    pub(crate) build: String,
    pub(crate) saved_at: Time,
    pub(crate) dropped: u64,
    /// By ring, oldest segment first.
    pub(crate) rings: Vec<Vec<Reader<'a>>>,
}

/// Finds the segments and checks what can be checked without reading them.
pub(crate) fn read(bytes: &[u8]) -> Result<File<'_>, ReadError> {
    let mut reader = Reader::new(bytes, 0);
    if reader.raw(MAGIC.len(), "").is_ok_and(|magic| magic != MAGIC) || bytes.len() < MAGIC.len() {
        return Err(ReadError::Foreign);
    }
    let format = u16::from_le_bytes(cut_off(reader.array("the version of the format"))?);
    let header = header(&mut reader, format)?;
    let mut header = match header {
        Ok(header) => header,
        Err(_) if format != FORMAT => {
            return Err(ReadError::Format { found: format, build: "another build".to_owned() });
        }
        Err(error) => return Err(error),
    };
    let build = header.text("the version of the build").map(str::to_owned);
    if format != FORMAT {
        // Whatever wrote it: this is read on a terminal.
        let build = build.map_or_else(|_| "another build".to_owned(), |build| plain(&build, 100).into_owned());
        return Err(ReadError::Format { found: format, build });
    }
    let build = build?;
    let saved_at = Time::from_nanos(header.number("the time of saving")?);
    let dropped = header.number("how many frames were dropped")?;

    let mut rings: Vec<Vec<Reader<'_>>> = Vec::new();
    let mut count = 0;
    loop {
        let ring = u16::from_le_bytes(cut_off(reader.array("a segment"))?);
        if ring == END {
            break;
        }
        let place = usize::from(ring);
        // The rings of pods and the one of notes: no recorder writes more.
        if place > super::RINGS {
            return Err(ReadError::Damaged { offset: reader.offset(), what: "a segment of a known ring" });
        }
        let length = u32::from_le_bytes(cut_off(reader.array("the length of a segment"))?);
        let sum = u32::from_le_bytes(cut_off(reader.array("the checksum of a segment"))?);
        let offset = reader.offset();
        let content = cut_off(reader.raw(length as usize, "the frames of a segment"))?;
        if crc32fast::hash(content) != sum {
            return Err(ReadError::Checksum { offset, what: "a segment" });
        }
        if rings.len() <= place {
            rings.resize_with(place + 1, Vec::new);
        }
        rings[place].push(Reader::new(content, offset));
        count += 1;
    }
    let said = u32::from_le_bytes(cut_off(reader.array("the number of segments"))?);
    if said != count {
        return Err(ReadError::Damaged { offset: reader.offset(), what: "as many segments as there were" });
    }
    if !reader.is_empty() {
        let offset = reader.offset();
        return Err(ReadError::Trailing { offset, more: bytes.len() - offset });
    }
    Ok(File { build, saved_at, dropped, rings })
}

/// The header, unless its checksum does not match; an error if it is not there.
fn header<'a>(reader: &mut Reader<'a>, format: u16) -> Result<Result<Reader<'a>, ReadError>, ReadError> {
    let foreign = |error: ReadError| match format {
        FORMAT => error,
        found => ReadError::Format { found, build: "another build".to_owned() },
    };
    let length = u32::from_le_bytes(cut_off(reader.array("the length of the header")).map_err(foreign)?);
    let sum = u32::from_le_bytes(cut_off(reader.array("the checksum of the header")).map_err(foreign)?);
    let offset = reader.offset();
    let content = cut_off(reader.raw(length as usize, "the header")).map_err(foreign)?;
    if crc32fast::hash(content) != sum {
        return Ok(Err(ReadError::Checksum { offset, what: "the header" }));
    }
    Ok(Ok(Reader::new(content, offset)))
}

/// Outside of a checked part the only way not to find something is that the file is too short.
fn cut_off<T>(read: Result<T, Unreadable>) -> Result<T, ReadError> {
    read.map_err(|Unreadable { offset, what }| ReadError::CutOff { offset, what })
}

/// The next frame of a segment: its kind and what follows.
pub(crate) fn frame<'a>(segment: &mut Reader<'a>) -> Result<(u8, Reader<'a>), ReadError> {
    let mut length = [0; 8];
    length[..LENGTH].copy_from_slice(segment.raw(LENGTH, "the length of a frame")?);
    let length = u64::from_le_bytes(length) as usize;
    let mut frame = segment.part(length, "a whole frame")?;
    Ok((frame.byte("the kind of a frame")?, frame))
}
