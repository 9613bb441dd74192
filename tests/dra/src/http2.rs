//! The bytes of HTTP/2 that a client writes and reads, for requests that no library sends.

use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
/// The type of a frame with settings.
pub const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// A frame of this type, with a payload.
pub fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// A literal header field with incremental indexing.
pub fn field(name: &[u8], value: &str) -> Vec<u8> {
    [name, &[value.len() as u8], value.as_bytes()].concat()
}

/// One unary call, with the message of the request.
pub fn call(stream: u8, headers: &[u8], message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u32).to_be_bytes();
    let body = [&[0], &length[..], message].concat();
    [frame(HEADERS, END_HEADERS, stream, headers), frame(DATA, END_STREAM, stream, &body)].concat()
}

/// Reads frames until the message of the response on `stream` arrives.
///
/// # Panics
/// If the server closes the stream or the connection before.
pub async fn response(socket: &mut UnixStream, stream: u8) -> Vec<u8> {
    loop {
        let mut head = [0; 9];
        socket.read_exact(&mut head).await.unwrap();
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        socket.read_exact(&mut payload).await.unwrap();
        assert!(!matches!(head[3], 3 | 7), "the server resets the stream or the connection: {payload:?}");
        if (head[3], head[8]) == (DATA, stream) {
            return payload.split_off(5);
        }
    }
}
