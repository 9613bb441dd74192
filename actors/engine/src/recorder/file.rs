//! The file of a recording: a header and the segments of all rings, each with a checksum. Pure.

use serde::{Deserialize, Serialize};

use super::FrameKind;
use super::ring::{LENGTH, Saved};
use crate::codec::{Reader, Text, Unreadable, put};
use crate::text::plain;
use crate::time::Time;

/// The version of the format that this build writes and reads.
pub const FORMAT: u16 = 3;

const MAGIC: &[u8; 8] = b"podrec\r\n";
const END: u16 = u16::MAX;

/// Why a file cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The file is not a recording.
    #[error("byte 0: not a recording: get one from a running agent, at /recording of its admin address")]
    Foreign,
    /// Another build wrote the recording in another format.
    #[error(
        "byte 8: the recording has format {found}, which {build} wrote; this build reads format {FORMAT}: replay it with \
         that build"
    )]
    Format {
        /// The format of the recording.
        found: u16,
        /// The build that wrote it, or "another build" if its name cannot be read.
        build: String,
    },
    /// The file ends too early.
    #[error("byte {offset}: the recording ends where {what} should be: it was cut off; copy it again")]
    CutOff {
        /// The position, in bytes from the start.
        offset: usize,
        /// The missing or expected part, as a noun phrase.
        what: &'static str,
    },
    /// Bytes follow the end of the recording.
    #[error("byte {offset}: the recording ends here and {more} bytes follow: something was added; copy it again")]
    Trailing {
        /// The end of the recording, in bytes from the start.
        offset: usize,
        /// The number of bytes that follow.
        more: usize,
    },
    /// A checksum does not match.
    #[error("byte {offset}: the checksum of {what} does not match: the file was changed; copy it again")]
    Checksum {
        /// Where the changed part begins, in bytes from the start.
        offset: usize,
        /// The changed part.
        what: &'static str,
    },
    /// A part has another content than this version writes.
    #[error("byte {offset}: expected {what}: the file was not written by this version; get a new one from the agent")]
    Damaged {
        /// The position, in bytes from the start.
        offset: usize,
        /// The missing or expected part, as a noun phrase.
        what: &'static str,
    },
}

impl From<Unreadable> for ReadError {
    fn from(Unreadable { offset, what }: Unreadable) -> Self {
        ReadError::Damaged { offset, what }
    }
}

/// The content of the header. Another format keeps `build` in front, so that an error can name the build.
#[derive(Serialize, Deserialize)]
struct Header<'a> {
    #[serde(borrow)]
    build: Text<'a>,
    /// Nanoseconds since the Unix epoch.
    saved_at: u64,
    dropped: u64,
}

pub(crate) fn write(now: Time, rings: &[Saved]) -> Vec<u8> {
    let mut header = Vec::new();
    let content = Header {
        build: Text::new(concat!("podwright ", env!("CARGO_PKG_VERSION"))),
        saved_at: now.as_nanos(),
        dropped: rings.iter().map(|ring| ring.dropped).sum(),
    };
    put(&mut header, &content);

    let content: usize = rings.iter().flat_map(|ring| &ring.segments).map(|segment| segment.bytes.len() + 10).sum();
    let mut file = Vec::with_capacity(content + header.len() + 32);
    file.extend_from_slice(MAGIC);
    file.extend_from_slice(&FORMAT.to_le_bytes());
    file.extend_from_slice(&(header.len() as u32).to_le_bytes());
    file.extend_from_slice(&crc32fast::hash(&header).to_le_bytes());
    file.extend_from_slice(&header);
    let mut count = 0u32;
    for (ring, saved) in rings.iter().enumerate() {
        for segment in &saved.segments {
            count += 1;
            file.extend_from_slice(&(ring as u16).to_le_bytes());
            file.extend_from_slice(&(segment.bytes.len() as u32).to_le_bytes());
            file.extend_from_slice(&crc32fast::hash(&segment.bytes).to_le_bytes());
            file.extend_from_slice(&segment.bytes);
        }
    }
    file.extend_from_slice(&END.to_le_bytes());
    file.extend_from_slice(&count.to_le_bytes());
    file
}

/// The content of a file whose checksums match.
#[derive(Debug)]
pub(crate) struct File<'a> {
    pub(crate) build: String,
    pub(crate) saved_at: Time,
    pub(crate) dropped: u64,
    /// The segments of each ring, oldest first.
    pub(crate) rings: Vec<Vec<Reader<'a>>>,
}

/// Finds the segments and verifies their checksums.
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
    if format != FORMAT {
        // The text may come from anywhere and is printed on a terminal.
        let build = header.take::<Text<'_>>("the version of the build");
        let build = build.map_or_else(|_| "another build".to_owned(), |build| plain(build.as_str(), 100).into_owned());
        return Err(ReadError::Format { found: format, build });
    }
    let Header { build, saved_at, dropped } = header.take("the build, the time of saving and a count of frames")?;
    let (build, saved_at) = (build.as_str().to_owned(), Time::from_nanos(saved_at));

    let mut rings: Vec<Vec<Reader<'_>>> = Vec::new();
    let mut count = 0;
    loop {
        let ring = u16::from_le_bytes(cut_off(reader.array("a segment"))?);
        if ring == END {
            break;
        }
        let ring = usize::from(ring);
        // A recorder has the rings of pods and the ring of notes.
        if ring > super::RINGS {
            return Err(ReadError::Damaged { offset: reader.offset(), what: "a segment of a known ring" });
        }
        let length = u32::from_le_bytes(cut_off(reader.array("the length of a segment"))?);
        let sum = u32::from_le_bytes(cut_off(reader.array("the checksum of a segment"))?);
        let offset = reader.offset();
        let content = cut_off(reader.raw(length as usize, "the frames of a segment"))?;
        if crc32fast::hash(content) != sum {
            return Err(ReadError::Checksum { offset, what: "a segment" });
        }
        if rings.len() <= ring {
            rings.resize_with(ring + 1, Vec::new);
        }
        rings[ring].push(Reader::new(content, offset));
        count += 1;
    }
    let expected = u32::from_le_bytes(cut_off(reader.array("the number of segments"))?);
    if expected != count {
        return Err(ReadError::Damaged { offset: reader.offset(), what: "the number of segments before it" });
    }
    if !reader.is_empty() {
        let offset = reader.offset();
        return Err(ReadError::Trailing { offset, more: bytes.len() - offset });
    }
    Ok(File { build, saved_at, dropped, rings })
}

/// The header. The outer error is for a header that is not there, the inner one for a header whose checksum does not match.
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

/// Outside of a part with a checksum, a value can be missing only because the file is too short.
fn cut_off<T>(read: Result<T, Unreadable>) -> Result<T, ReadError> {
    read.map_err(|Unreadable { offset, what }| ReadError::CutOff { offset, what })
}

/// The next frame of a segment: its kind and its content.
pub(crate) fn frame<'a>(segment: &mut Reader<'a>) -> Result<(FrameKind, Reader<'a>), ReadError> {
    let mut length = [0; 8];
    length[..LENGTH].copy_from_slice(segment.raw(LENGTH, "the length of a frame")?);
    let length = u64::from_le_bytes(length) as usize;
    let mut frame = segment.part(length, "a whole frame")?;
    let [kind] = frame.array("the kind of a frame")?;
    let Some(kind) = FrameKind::from_byte(kind) else { return frame.missing("a frame of this version")? };
    Ok((kind, frame))
}
