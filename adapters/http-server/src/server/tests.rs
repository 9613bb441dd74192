use std::convert::Infallible;
use std::net::SocketAddr;

use axum::body::{Body, Bytes};
use axum::routing::get;
use futures_util::stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::*;
use crate::{ClientLimits, Rate, SeatLimits, Token};

const SEATS: SeatLimits = SeatLimits { anonymous: 8, authenticated: 4, client: None };
/// More bytes than socket buffers hold.
const LARGE: usize = 32 << 20;

/// Serves a short answer, a large answer, and an answer without end.
async fn server(authentication: Authentication) -> SocketAddr {
    server_with(SEATS, authentication).await
}

async fn server_with(seats: SeatLimits, authentication: Authentication) -> SocketAddr {
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
    let listener = Listener::tcp("127.0.0.1:0".parse().unwrap(), None).await.unwrap();
    let address = listener.address().unwrap();
    tokio::spawn(serve(listener, Seats::new(seats), authentication, TimeLimits::default(), router));
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

/// Whether the server has closed the connection.
async fn is_closed(stream: &mut TcpStream) -> bool {
    timeout(Duration::from_millis(1), stream.read_to_end(&mut Vec::new())).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn a_new_client_gets_an_answer_although_silent_clients_hold_all_seats() {
    let address = server(Authentication::Token(Token::random().unwrap())).await;
    let mut silent = Vec::new();
    for index in 0..SEATS.anonymous {
        // Some clients send nothing, some an incomplete request, and some do not stop to read an endless answer.
        let mut stream = request(address, "/endless").await;
        if index % 3 > 0 {
            stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(if index % 3 == 1 { b"" } else { b"GET / HTTP/1.1\r\n" }).await.unwrap();
        }
        silent.push(stream);
        run_other_tasks().await;
    }
    assert!(answers(address, TimeLimits::default().request / 2).await, "a new client does not wait");
    assert!(is_closed(&mut silent[0]).await, "the oldest connection was closed");
    assert!(!is_closed(&mut silent[3]).await, "the other connections stay open");
    for _ in 0..1000 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    assert!(answers(address, TimeLimits::default().request / 2).await);
}

#[tokio::test(start_paused = true)]
async fn an_authenticated_client_keeps_its_seat() {
    let token = Token::random().unwrap();
    let address = server(Authentication::Token(token.clone())).await;
    let mut watcher = TcpStream::connect(address).await.unwrap();
    let head = format!("GET /endless HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\r\n", token.secret());
    watcher.write_all(head.as_bytes()).await.unwrap();
    let mut start = [0; 12];
    watcher.read_exact(&mut start).await.unwrap();
    let mut crowd = Vec::new();
    for _ in 0..10 * SEATS.anonymous {
        crowd.push(TcpStream::connect(address).await.unwrap());
        run_other_tasks().await;
    }
    let mut beats = vec![0; 1000];
    watcher.read_exact(&mut beats).await.unwrap();
    assert!(is_closed(&mut crowd[0]).await);
}

#[tokio::test(start_paused = true)]
async fn an_idle_client_is_disconnected() {
    let address = server(Authentication::Listener).await;
    for sent in [&b""[..], b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"] {
        let begun = Instant::now();
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(sent).await.unwrap();
        read_to_end(stream).await;
        assert_eq!(begun.elapsed().as_secs(), TimeLimits::default().request.as_secs());
    }
}

#[tokio::test(start_paused = true)]
async fn an_unread_answer_times_out_and_a_stream_continues() {
    let address = server(Authentication::Listener).await;
    let begun = Instant::now();
    let (mut endless, idle, large) =
        (request(address, "/endless").await, request(address, "/").await, request(address, "/large").await);
    assert!(read_to_end(idle).await < 1000);
    assert_eq!(begun.elapsed().as_secs(), TimeLimits::default().request.as_secs());
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

/// Connects from another address of this machine.
async fn connect_from(client: &str, address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(client.parse().unwrap(), 0)).unwrap();
    socket.connect(address).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn an_address_with_many_connections_displaces_only_its_own() {
    let connects = Rate { burst: 1000, every: Duration::from_secs(1) };
    let seats = SeatLimits { client: Some(ClientLimits { open: 4, connects }), ..SEATS };
    let address = server_with(seats, Authentication::Listener).await;
    let mut quiet = connect_from("127.0.0.3", address).await;
    run_other_tasks().await;
    let mut crowd = Vec::new();
    for _ in 0..20 {
        crowd.push(connect_from("127.0.0.2", address).await);
        run_other_tasks().await;
    }
    assert!(is_closed(&mut crowd[15]).await, "the oldest connections of the address were closed");
    assert!(!is_closed(&mut crowd[16]).await, "the address keeps its last four");
    assert!(!is_closed(&mut quiet).await, "the connection of another address stays open");
}

#[tokio::test(start_paused = true)]
async fn an_address_that_connects_too_often_is_refused_and_others_are_not() {
    let connects = Rate { burst: 5, every: Duration::from_secs(3600) };
    let seats = SeatLimits { client: Some(ClientLimits { open: 4, connects }), ..SEATS };
    let address = server_with(seats, Authentication::Listener).await;
    let asks = async |client: &str| {
        let mut stream = connect_from(client, address).await;
        // The server may have closed the connection already.
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await;
        read_to_end(stream).await > 0
    };
    for _ in 0..5 {
        assert!(asks("127.0.0.2").await);
    }
    assert!(!asks("127.0.0.2").await, "the sixth connection within the hour is closed");
    assert!(asks("127.0.0.3").await);
}
