//! Requests that nobody sane sends: the corpus of the fuzz target, over a socket.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::harness::{Place, eventually};
use crate::fuzz_corpora::corpus;
use crate::properties::requests::{Answer, PODS, Request, check};

#[tokio::test]
async fn every_request_gets_a_proper_answer() {
    let place = Place::new();
    place.put("pods.yaml", PODS);
    let agent = place.start(&[]).await;
    let admin = agent.admin();
    eventually("the pods are known", || async {
        let pods = ask(admin, &Request::parse(b"GET /pods").unwrap());
        String::from_utf8(pods.body).unwrap().contains("other-n1").then_some(())
    })
    .await;
    for (name, bytes) in corpus("requests") {
        println!("requests/{name}");
        if let Some(request) = Request::parse(&bytes) {
            check(&request, &ask(admin, &request));
        }
    }
}

fn ask(admin: SocketAddr, request: &Request) -> Answer {
    let mut text = format!("{} {} HTTP/1.1\r\nConnection: close\r\n", request.method, request.target);
    for (name, value) in &request.headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    let mut stream = TcpStream::connect(admin).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("an answer has a head");
    let head = String::from_utf8(answer[..end].to_vec()).unwrap().to_lowercase();
    let content_type = head.lines().find_map(|line| line.strip_prefix("content-type: "));
    Answer {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        content_type: content_type.unwrap_or_default().to_owned(),
        body: answer[end + 4..].to_vec(),
    }
}
