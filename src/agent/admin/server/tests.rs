use std::convert::Infallible;
use std::net::SocketAddr;

use axum::body::{Body, Bytes};
use axum::routing::get;
use futures_util::stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::*;

/// More bytes than socket buffers hold.
const LARGE: usize = 32 << 20;

/// Serves a short answer, a large answer, and an answer without end.
async fn server() -> SocketAddr {
    let endless = || async {
        let beats = stream::unfold((), |()| async {
            sleep(Duration::from_secs(5)).await;
            Some((Ok::<_, Infallible>(Bytes::from_static(b"beat ")), ()))
        });
        Body::from_stream(beats)
    };
    let router = Router::new()
        .route("/", get(async || "ok"))
        .route("/large", get(async || vec![b'x'; LARGE]))
        .route("/endless", get(endless));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(listener, router));
    address
}

async fn request(address: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).await.unwrap();
    stream
}

/// Whether the short answer arrives within this time.
async fn answers(address: SocketAddr, within: Duration) -> bool {
    let mut answer = [0; 12];
    let answered = async { request(address, "/").await.read_exact(&mut answer).await };
    timeout(within, answered).await.is_ok_and(|read| read.is_ok()) && answer == *b"HTTP/1.1 200"
}

/// How many bytes arrive until the server closes the connection.
async fn read_to_end(mut stream: TcpStream) -> usize {
    let (mut buffer, mut all) = (vec![0; 1 << 16], 0);
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        all += read;
    }
    all
}

/// Lets other tasks run without advancing the clock.
async fn run_other_tasks() {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn idle_admin_connections_are_limited_and_time_out() {
    let address = server().await;
    let mut silent = Vec::new();
    for index in 0..MAX_CONNECTIONS {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // Half of the clients send an incomplete request, the others nothing.
        stream.write_all(if index % 2 == 0 { b"" } else { b"GET / HTTP/1.1\r\n" }).await.unwrap();
        silent.push(stream);
    }
    run_other_tasks().await;
    assert!(!answers(address, REQUEST_TIMEOUT / 2).await, "all connections are in use");
    assert!(answers(address, REQUEST_TIMEOUT).await);
}

#[tokio::test(start_paused = true)]
async fn an_unread_answer_times_out_and_a_stream_continues() {
    let address = server().await;
    let begun = Instant::now();
    let (mut endless, idle, large) =
        (request(address, "/endless").await, request(address, "/").await, request(address, "/large").await);
    assert!(read_to_end(idle).await < 1000);
    assert_eq!(begun.elapsed().as_secs(), REQUEST_TIMEOUT.as_secs());
    let limit = ANSWER_TIMEOUT + Duration::from_secs(LARGE as u64 / MIN_BYTES_PER_SECOND);
    sleep(limit).await;
    let sent = read_to_end(large).await;
    assert!(sent < LARGE, "{sent} bytes were sent");
    let whole = read_to_end(request(address, "/large").await).await;
    assert!(whole > LARGE, "a client that reads gets all bytes: {whole}");
    let mut beats = vec![0; 1000];
    endless.read_exact(&mut beats).await.unwrap();
    assert!(begun.elapsed() > limit);
}
