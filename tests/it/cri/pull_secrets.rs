//! The pull secrets of a pod of an API server reach the container runtime.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use podwright_stand_in::StandIn;
use serde_json::json;

use super::containerd::Containerd;
use crate::agent::harness::{AgentHome, eventually};

/// A registry without images. It demands a password, and records the `Authorization` headers of its clients.
struct Registry {
    address: SocketAddr,
    authorizations: Arc<Mutex<Vec<String>>>,
}

impl Registry {
    fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let registry = Registry { address: listener.local_addr().unwrap(), authorizations: Arc::default() };
        let authorizations = registry.authorizations.clone();
        // The thread ends with the process.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let head: Vec<String> = BufReader::new(&stream)
                    .lines()
                    .map_while(Result::ok)
                    .take_while(|line| !line.trim().is_empty())
                    .collect();
                let given = head.iter().find_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    name.eq_ignore_ascii_case("authorization").then(|| value.trim().to_owned())
                });
                let answer = match given {
                    Some(given) => {
                        authorizations.lock().push(given);
                        "404 Not Found\r\n"
                    }
                    None => "401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"test\"\r\n",
                };
                let _closed = write!(&stream, "HTTP/1.1 {answer}Content-Length: 0\r\nConnection: close\r\n\r\n");
            }
        });
        registry
    }
}

#[tokio::test]
async fn containerd_gets_the_pull_secret_of_a_pod_of_the_api_server() {
    let Some(containerd) = Containerd::turn().await else { return };
    let (registry, server) = (Registry::start(), StandIn::start().await.unwrap());
    server.create("/api/v1/nodes", json!({"metadata": {"name": "n1"}})).unwrap();
    let home = AgentHome::of_node(&server, "n1");
    let _agent = containerd.agent_with(&home, &["--kubeconfig", &home.kubeconfig()]).await;
    let auth = STANDARD.encode("user:word");
    let config = json!({"auths": {registry.address.to_string(): {"auth": auth}}}).to_string();
    let secret = json!({"metadata": {"name": "login"}, "type": "kubernetes.io/dockerconfigjson",
        "data": {".dockerconfigjson": STANDARD.encode(config)}});
    server.create("/api/v1/namespaces/default/secrets", secret).unwrap();
    let image = format!("{}/private/app:1", registry.address);
    let pod = json!({"metadata": {"name": "web"}, "spec": {"nodeName": "n1", "automountServiceAccountToken": false,
        "imagePullSecrets": [{"name": "login"}], "containers": [{"name": "main", "image": image}]}});
    server.create("/api/v1/namespaces/default/pods", pod).unwrap();
    eventually("the pull fails, because the registry has no image", || async {
        let pod = server.get("pods", "default", "web")?;
        let reason = pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"].as_str()?;
        matches!(reason, "ErrImagePull" | "ImagePullBackOff").then_some(())
    })
    .await;
    let given = registry.authorizations.lock().clone();
    assert!(!given.is_empty() && given.iter().all(|given| *given == format!("Basic {auth}")), "{given:?}");
}
