//! A client of one request for each connection.

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use podwright_stand_in::StandIn;
use serde_json::Value;
use tokio::net::TcpStream;

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) code: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Bytes,
    /// The body as JSON; null if it is none.
    pub(crate) body: Value,
}

/// A client with a bearer token; without one it sends no credential.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    address: String,
    token: Option<String>,
    accept: String,
}

impl Client {
    pub(crate) fn new(server: &StandIn, token: Option<String>) -> Self {
        Self { address: server.plain_url().trim_start_matches("http://").to_owned(), token, accept: String::new() }
    }

    /// A client that requests another form of the answers.
    pub(crate) fn accepting(&self, accept: &str) -> Self {
        Self { accept: accept.to_owned(), ..self.clone() }
    }

    /// A client that requests the objects themselves.
    pub(crate) fn plain(&self) -> Self {
        self.accepting("")
    }

    pub(crate) fn admin(server: &StandIn) -> Self {
        Self::new(server, Some(server.admin_token()))
    }

    async fn open(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, String> {
        let stream = TcpStream::connect(&self.address).await.map_err(|error| error.to_string())?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "stand-in")
            .header("user-agent", "Python-urllib/3.13")
            .header("content-type", content_type);
        if !self.accept.is_empty() {
            request = request.header("accept", &self.accept);
        }
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Full::new(body)).unwrap();
        sender.send_request(request).await.map_err(|error| error.to_string())
    }

    /// Sends a request. An error means that the connection ended without an answer.
    pub(crate) async fn try_send(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: &Value,
    ) -> Result<Reply, String> {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        self.try_send_bytes(method, path, content_type, body).await
    }

    async fn try_send_bytes(&self, method: &str, path: &str, content_type: &str, body: Bytes) -> Result<Reply, String> {
        let response = self.open(method, path, content_type, body).await?;
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        Ok(Reply { code: parts.status.as_u16(), headers: parts.headers, bytes, body })
    }

    /// Sends a request with the very bytes of a body.
    pub(crate) async fn send_bytes(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: impl Into<Bytes>,
    ) -> Reply {
        self.try_send_bytes(method, path, content_type, body.into()).await.unwrap()
    }

    pub(crate) async fn send(&self, method: &str, path: &str, content_type: &str, body: &Value) -> Reply {
        self.try_send(method, path, content_type, body).await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send("GET", path, "", &Value::Null).await
    }

    /// The code and the body of an answer that is not JSON.
    pub(crate) async fn get_text(&self, path: &str) -> (u16, String) {
        let (parts, body) = self.open("GET", path, "", Bytes::new()).await.unwrap().into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        (parts.status.as_u16(), String::from_utf8(bytes.to_vec()).unwrap())
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Reply {
        self.send("POST", path, "application/json", &body).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Reply {
        self.send("DELETE", path, "", &Value::Null).await
    }

    pub(crate) async fn watch(&self, path: &str) -> Watch {
        let response = self.open("GET", path, "", Bytes::new()).await.unwrap();
        assert_eq!(response.status(), 200);
        Watch { body: response.into_body(), buffer: Vec::new() }
    }
}

/// The lines of a watch.
pub(crate) struct Watch {
    body: Incoming,
    buffer: Vec<u8>,
}

impl Watch {
    /// The next event; none if the stream ended or broke.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = self.body.frame().await?.ok()?;
            self.buffer.extend_from_slice(frame.data_ref()?);
        }
    }

    /// The type and the name of the next event.
    pub(crate) async fn event(&mut self) -> String {
        match self.next().await {
            Some(line) => {
                let name = line["object"]["metadata"]["name"].as_str().unwrap_or_default();
                format!("{} {name}", line["type"].as_str().unwrap()).trim().to_owned()
            }
            None => "END".to_owned(),
        }
    }
}
