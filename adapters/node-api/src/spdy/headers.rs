//! Blocks of headers, and their compression. One zlib stream for each direction compresses all blocks of a connection, so a block
//! can be read only after all earlier ones.

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

use super::decoder::DecodeError;
use super::dictionary::DICTIONARY;

/// The most bytes of a block after decompression. The headers of a stream are short: its type, a port, a request number.
pub const MAX_BLOCK_BYTES: usize = 16 << 10;
/// The most headers of a stream.
const MAX_HEADERS: u32 = 64;

/// The headers of a stream. Names are in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(pub Vec<(String, String)>);

impl Headers {
    /// Headers of these pairs of a name, in lower case, and a value.
    pub fn new<const N: usize>(pairs: [(&str, &str); N]) -> Self {
        Headers(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into())
    }

    /// The first value of a header.
    pub fn get(&self, name: &str) -> Option<&str> {
        let (_, values) = self.0.iter().find(|(own, _)| own == name)?;
        values.split('\0').next()
    }

    fn parse(mut block: &[u8]) -> Result<Self, DecodeError> {
        let count = number(&mut block)?;
        if count > MAX_HEADERS {
            return Err(DecodeError::Headers("too many headers"));
        }
        let mut headers = Headers::default();
        for _ in 0..count {
            let name = text(&mut block)?;
            if name.is_empty() || headers.0.iter().any(|(own, _)| *own == name) {
                return Err(DecodeError::Headers("an empty or repeated name"));
            }
            headers.0.push((name, text(&mut block)?));
        }
        Ok(headers)
    }

    fn write(&self) -> Vec<u8> {
        let mut block = Vec::new();
        let length = |block: &mut Vec<u8>, length: usize| {
            block.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        };
        length(&mut block, self.0.len());
        for text in self.0.iter().flat_map(|(name, value)| [name, value]) {
            length(&mut block, text.len());
            block.extend_from_slice(text.as_bytes());
        }
        block
    }
}

fn number(block: &mut &[u8]) -> Result<u32, DecodeError> {
    let (bytes, rest) = block.split_first_chunk::<4>().ok_or(DecodeError::Headers("a block that is too short"))?;
    *block = rest;
    Ok(u32::from_be_bytes(*bytes))
}

fn text(block: &mut &[u8]) -> Result<String, DecodeError> {
    let length = number(block)?;
    let at = usize::try_from(length).ok().filter(|length| *length <= block.len());
    let (bytes, rest) = block.split_at(at.ok_or(DecodeError::Headers("a block that is too short"))?);
    *block = rest;
    String::from_utf8(bytes.to_vec()).map_err(|_| DecodeError::Headers("text that is not UTF-8"))
}

/// Compresses the blocks of one direction.
#[derive(Debug)]
pub(super) struct Deflate(Compress);

impl Deflate {
    pub(super) fn new() -> Self {
        let mut zlib = Compress::new(Compression::best(), true);
        zlib.set_dictionary(&DICTIONARY).expect("a new stream takes a dictionary");
        Deflate(zlib)
    }

    /// Appends the compressed block to `to`.
    pub(super) fn append(&mut self, headers: &Headers, to: &mut Vec<u8>) {
        let block = headers.write();
        let start = self.0.total_in();
        loop {
            to.reserve(block.len() + 64);
            let taken = usize::try_from(self.0.total_in() - start).unwrap_or(block.len());
            let status = self.0.compress_vec(&block[taken..], to, FlushCompress::Sync);
            status.expect("only a finished stream refuses input");
            // The flush is complete if it has left free space.
            if to.len() < to.capacity() {
                return;
            }
        }
    }
}

/// Decompresses the blocks of one direction.
#[derive(Debug)]
pub(super) struct Inflate(Decompress);

impl Inflate {
    pub(super) fn new() -> Self {
        Inflate(Decompress::new(true))
    }

    /// Reads a compressed block.
    pub(super) fn headers(&mut self, block: &[u8]) -> Result<Headers, DecodeError> {
        Headers::parse(&self.decompress(block)?)
    }

    fn decompress(&mut self, block: &[u8]) -> Result<Vec<u8>, DecodeError> {
        let start = self.0.total_in();
        let mut plain = Vec::with_capacity((4 * block.len()).clamp(256, MAX_BLOCK_BYTES));
        loop {
            let before = (self.0.total_in(), plain.len());
            let taken = usize::try_from(self.0.total_in() - start).unwrap_or(block.len());
            match self.0.decompress_vec(&block[taken..], &mut plain, FlushDecompress::Sync) {
                Ok(Status::Ok | Status::BufError) => {}
                Ok(Status::StreamEnd) => return Err(DecodeError::Headers("the end of the compressed headers")),
                Err(error) if error.needs_dictionary().is_some() => {
                    self.0.set_dictionary(&DICTIONARY).map_err(|_| DecodeError::Headers("another dictionary"))?;
                    continue;
                }
                Err(_) => return Err(DecodeError::Headers("bytes that are not compressed headers")),
            }
            if plain.len() > MAX_BLOCK_BYTES {
                return Err(DecodeError::Headers("too many bytes after decompression"));
            }
            let taken = usize::try_from(self.0.total_in() - start).unwrap_or(block.len());
            if plain.len() < plain.capacity() {
                return if taken == block.len() { Ok(plain) } else { Err(DecodeError::Headers("an unfinished block")) };
            }
            if (self.0.total_in(), plain.len()) == before && taken == block.len() {
                return Ok(plain);
            }
            plain.reserve(MAX_BLOCK_BYTES / 4);
        }
    }
}
