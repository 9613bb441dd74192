//! The bytes that a kubelet sends to the registration socket.

use podwright::dra_driver::Registration;
use podwright_dra_api::registration::{PluginInfo, RegistrationStatus};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::{DRIVER, Folders, REGISTRATION, TestDriver};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
pub(crate) const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

pub(crate) fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// A literal header field with incremental indexing.
pub(crate) fn field(name: &[u8], value: &str) -> Vec<u8> {
    [name, &[value.len() as u8], value.as_bytes()].concat()
}

/// One unary call, with the message of the request.
pub(crate) fn call(stream: u8, headers: &[u8], message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u32).to_be_bytes();
    let body = [&[0], &length[..], message].concat();
    [frame(HEADERS, END_HEADERS, stream, headers), frame(DATA, END_STREAM, stream, &body)].concat()
}

/// Reads frames until the message of the response on `stream` arrives.
pub(crate) async fn response(socket: &mut UnixStream, stream: u8) -> Vec<u8> {
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

/// DRA-D5: a kubelet 1.36 sends the percent-encoded path of the socket as `:authority`. Its second call refers to the dynamic table.
#[tokio::test]
async fn kubelet_registers_with_the_path_as_authority() {
    let folders = Folders::new();
    let driver = folders.builder(TestDriver::new().0).without_api().start().await.unwrap();
    let path = folders.registry(REGISTRATION);
    let mut socket = UnixStream::connect(&path).await.unwrap();
    let authority = path.display().to_string().replace('/', "%2F");
    let (post, http) = (&[0x83][..], &[0x86][..]);
    let headers = [
        post,
        http,
        &field(&[0x45], "/pluginregistration.Registration/GetInfo"),
        &field(&[0x41], &authority),
        &field(&[0x5f], "application/grpc"),
        &field(&[0x7a], "grpc-go/1.78.0"),
        &field(b"\x40\x02te", "trailers"),
    ]
    .concat();
    let start = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(SETTINGS, 0, 0, &[])].concat();
    socket.write_all(&[start, call(1, &headers, &[])].concat()).await.unwrap();
    let info = PluginInfo::decode(&response(&mut socket, 1).await[..]).unwrap();
    assert_eq!(info.name, DRIVER);

    // The entries 62 to 66 are te, user-agent, content-type, :authority and :path. The new path becomes 62.
    let path = field(&[0x45], "/pluginregistration.Registration/NotifyRegistrationStatus");
    let headers = [post, http, &[0xc1], &path, &[0xc1, 0xc0, 0xbf]].concat();
    let status = RegistrationStatus { plugin_registered: true, error: String::new() }.encode_to_vec();
    socket.write_all(&call(3, &headers, &status)).await.unwrap();
    response(&mut socket, 3).await;
    assert_eq!(*driver.registration().borrow(), Registration::Registered);
}
