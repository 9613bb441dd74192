//! Malformed and unusual requests: the corpus of the fuzz target, sent over a socket.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;

use podwright_fuzz::corpus;
use podwright_fuzz::requests::{Answer, EVENTS, PODS, Request, check};

use super::harness::{AgentHome, eventually, manifest};
use crate::support::processes::PATIENCE;

#[tokio::test]
async fn every_admin_request_of_the_corpus_gets_a_valid_answer() {
    let home = AgentHome::new();
    home.put("pods.yaml", PODS);
    let agent = home.start(&[]).await;
    let admin = &agent.socket();
    eventually("the pods are known", || async {
        let pods = send(admin, &Request::parse(b"GET /pods").unwrap());
        String::from_utf8(pods.body).unwrap().contains("other-n1").then_some(())
    })
    .await;
    for (name, bytes) in corpus("requests") {
        println!("requests/{name}");
        if let Some(request) = Request::parse(&bytes) {
            check(&request, &send(admin, &request));
        }
    }
}

#[tokio::test]
async fn idle_admin_connections_leave_file_descriptors_for_pods() {
    let home = AgentHome::new();
    // The limit is low, so the connections of this test exceed it.
    let agent = home.start_with_open_files(256).await;
    let silent: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(agent.admin()).unwrap()).collect();
    let limit = home.shared().join("limit");
    let script = format!("ulimit -Sn > {0}.tmp && mv {0}.tmp {0}; sleep 1000", limit.display());
    home.put("pod.yaml", &manifest("web", &script, ""));
    let has = eventually("the pod runs", || async { std::fs::read_to_string(&limit).ok() }).await;
    assert_eq!(has.trim(), "256", "pods keep the original limit on open files");
    assert!(agent.open_files() < 300, "{} are open", agent.open_files());
    assert_eq!(agent.get("/pods", "").0, 200, "the socket has seats of its own");
    assert_eq!(agent.get_from_port("/healthz", "").0, 200, "a new client displaces an idle one");
    drop(silent);
}

fn send(admin: &Path, request: &Request) -> Answer {
    // HTTP/1.1 would send a body of unknown length in chunks.
    let mut text = format!("{} {} HTTP/1.0\r\n", request.method, request.target);
    for (name, value) in &request.headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    let mut stream = UnixStream::connect(admin).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut stream = BufReader::new(stream);
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        assert!(stream.read_until(b'\n', &mut head).unwrap() > 0, "an answer has a head");
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let content_type = head.lines().find_map(|line| line.strip_prefix("content-type: ")).unwrap_or_default();
    let mut body = Vec::new();
    if content_type == EVENTS {
        while !body.ends_with(b"\n\n") && stream.read_until(b'\n', &mut body).unwrap() > 0 {}
    } else {
        stream.read_to_end(&mut body).unwrap();
    }
    Answer { status: head.split(' ').nth(1).unwrap().parse().unwrap(), content_type: content_type.to_owned(), body }
}
