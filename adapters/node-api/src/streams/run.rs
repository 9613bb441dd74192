//! Runs a command and answers with its output, without streams.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::sync::mpsc;

use super::command::CommandStreams;
use super::{Refusal, Stream, Streams, remote};
use podwright_host::streaming::{CommandEnd, LocalSession, Opened};
use podwright_model::ids::{ContainerId, FullName};
use podwright_model::texts::containers::hooks;
use podwright_model::texts::streams::EXIT_CODE;

/// The most bytes of standard output and of standard error in an answer. A kubelet accepts 16 MiB of each.
const MAX_OUTPUT: usize = 1 << 20;

impl Streams {
    /// Runs a command in a container of a pod, and answers with its output, at most 1 MiB of each stream. Dropping the future kills the
    /// command of a runtime without a streaming server.
    pub async fn run(&self, pod: &FullName, container: ContainerId, command: Vec<String>) -> Response {
        self.output(pod, container, command).await.unwrap_or_else(IntoResponse::into_response)
    }

    async fn output(&self, pod: &FullName, container: ContainerId, command: Vec<String>) -> Result<Response, Refusal> {
        let _permit = self.sessions.take(pod).map_err(Refusal::Busy)?;
        let words = command.clone();
        let stream = Stream::Exec { container, command, stdin: false, stdout: true, stderr: true, tty: false };
        let streams = CommandStreams::of(&stream);
        let start = match self.runtime.open(stream).await? {
            Opened::Url(url) => remote::command(&url, streams).await?,
            Opened::Local(LocalSession::Command(start)) => start,
            Opened::Local(LocalSession::Ports(_)) => {
                return Err(Refusal::Server("the runtime runs no command".to_owned()));
            }
        };
        let mut running = start.start().await.map_err(Refusal::Server)?;
        let (stdout, stderr) = tokio::join!(collect(running.stdout.take()), collect(running.stderr.take()));
        let end = running.ended.await.map_err(|_| Refusal::Server("the agent is shutting down".to_owned()))?;
        match code(end) {
            // The kubelet sends the output under this type, whatever it is.
            Ok(0) => Ok(([(header::CONTENT_TYPE, "application/json")], [stdout, stderr].concat()).into_response()),
            Ok(code) => {
                let text = hooks::exit(&words, code, &String::from_utf8_lossy(&stderr));
                Ok((StatusCode::INTERNAL_SERVER_ERROR, text).into_response())
            }
            Err(reason) => Err(Refusal::Server(reason)),
        }
    }
}

/// The exit code, or the reason why there is none.
fn code(end: CommandEnd) -> Result<i32, String> {
    let status = match end {
        CommandEnd::Exited(code) => return Ok(code),
        CommandEnd::Failed(reason) => return Err(reason),
        CommandEnd::Status(status) => serde_json::from_slice::<Value>(&status).unwrap_or_default(),
    };
    if status["status"] == "Success" {
        return Ok(0);
    }
    let causes = status["details"]["causes"].as_array().into_iter().flatten();
    let code =
        causes.filter(|cause| cause["reason"] == EXIT_CODE).find_map(|cause| cause["message"].as_str()?.parse().ok());
    code.ok_or_else(|| status["message"].as_str().unwrap_or("the runtime sent no status").to_owned())
}

/// Reads a stream to its end, and keeps its first bytes.
async fn collect(from: Option<mpsc::Receiver<Vec<u8>>>) -> Vec<u8> {
    let mut kept = Vec::new();
    if let Some(mut from) = from {
        while let Some(bytes) = from.recv().await {
            kept.extend_from_slice(&bytes[..bytes.len().min(MAX_OUTPUT - kept.len())]);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_exit_code_of_a_status_is_its_cause() {
        let status = |value: Value| CommandEnd::Status(value.to_string().into_bytes());
        assert_eq!(code(status(json!({"status": "Success"}))), Ok(0));
        let causes = json!({"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": "3"}]}});
        assert_eq!(code(status(causes)), Ok(3));
        assert_eq!(code(status(json!({"status": "Failure", "message": "why"}))), Err("why".to_owned()));
        assert!(code(CommandEnd::Status(b"no JSON".to_vec())).is_err());
    }
}
