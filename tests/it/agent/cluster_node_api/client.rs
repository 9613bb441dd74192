//! A client of the node API.

use podwright_stand_in::ClientCertificate;
use reqwest::{Client, Response};

use super::https::https;
use crate::agent::harness::Agent;

/// A client of the node API.
pub(super) struct NodeClient {
    pub(super) client: Client,
    pub(super) url: String,
    token: Option<String>,
}

impl NodeClient {
    pub(super) async fn new(agent: &Agent, certificate: Option<ClientCertificate>, token: Option<String>) -> Self {
        let line = agent.wait_for_line("the node API is served").await;
        let port = line.rsplit(':').next().unwrap().trim();
        NodeClient { client: https(certificate), url: format!("https://127.0.0.1:{port}"), token }
    }

    pub(super) async fn send(&self, method: &str, path: &str) -> Response {
        let request = self.client.request(method.parse().unwrap(), format!("{}{path}", self.url));
        let request = match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        request.send().await.unwrap()
    }

    pub(super) async fn get(&self, path: &str) -> (u16, String) {
        let response = self.send("GET", path).await;
        (response.status().as_u16(), response.text().await.unwrap())
    }

    pub(super) async fn code(&self, path: &str) -> u16 {
        self.get(path).await.0
    }
}
