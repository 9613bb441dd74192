//! The bytes that a kubelet sends to the registration socket.

use podwright_dra_api::registration::{PluginInfo, RegistrationStatus};
use podwright_dra_driver::Registration;
use podwright_dra_tests::http2::{SETTINGS, call, field, frame, response};
use prost::Message;
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

use super::{DRIVER, Folders, REGISTRATION, TestDriver};

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
