use std::convert::Infallible;
use std::net::SocketAddr;

use axum::body::{Body, Bytes};
use axum::routing::get;
use futures_util::stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::*;

/// Longer than what sockets hold.
const LARGE: usize = 32 << 20;

/// Serves an answer that is short, one that is long, and one that never ends.
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

async fn ask(address: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").as_bytes()).await.unwrap();
    stream
}

/// Whether the short answer comes within this time.
async fn answers(address: SocketAddr, within: Duration) -> bool {
    let mut answer = [0; 12];
    let asked = async { ask(address, "/").await.read_exact(&mut answer).await };
    timeout(within, asked).await.is_ok_and(|read| read.is_ok()) && answer == *b"HTTP/1.1 200"
}

/// How many bytes come until the other side closes.
async fn drained(mut stream: TcpStream) -> usize {
    let (mut buffer, mut all) = (vec![0; 1 << 16], 0);
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        all += read;
    }
    all
}

/// Lets others do what they can without time going by.
async fn settle() {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn silent_connections_are_bounded_and_go_away() {
    let address = server().await;
    let mut silent = Vec::new();
    for place in 0..CONNECTIONS {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // A head that does not end is as silent as none.
        stream.write_all(if place % 2 == 0 { b"" } else { b"GET / HTTP/1.1\r\n" }).await.unwrap();
        silent.push(stream);
    }
    settle().await;
    assert!(!answers(address, REQUEST / 2).await, "all places are taken");
    assert!(answers(address, REQUEST).await);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_taken_ends_and_one_without_end_goes_on() {
    let address = server().await;
    let begun = Instant::now();
    let (mut endless, idle, large) =
        (ask(address, "/endless").await, ask(address, "/").await, ask(address, "/large").await);
    assert!(drained(idle).await < 1000);
    assert_eq!(begun.elapsed().as_secs(), REQUEST.as_secs());
    let limit = ANSWER.0 + Duration::from_secs(LARGE as u64 / ANSWER.1);
    sleep(limit).await;
    let taken = drained(large).await;
    assert!(taken < LARGE, "{taken} bytes were sent");
    let whole = drained(ask(address, "/large").await).await;
    assert!(whole > LARGE, "who reads gets all of it: {whole}");
    let mut beats = vec![0; 1000];
    endless.read_exact(&mut beats).await.unwrap();
    assert!(begun.elapsed() > limit);
}
