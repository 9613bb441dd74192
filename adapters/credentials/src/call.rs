//! Calls a plugin: one process for each request, which reads the request and writes the answer.

use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use podwright_model::text::{error_chain, plain};
use podwright_ports::ErrorSource;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::time::sleep;

/// How long a call may take (kubelet 1.36).
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// The longest answer, in bytes.
const MAX_ANSWER: u64 = 1 << 20;
/// How many bytes of the standard error are kept for the log.
const MAX_STDERR: u64 = 4 << 10;

/// A plugin as the configuration describes it.
pub(crate) struct Program<'a> {
    pub(crate) path: &'a Path,
    pub(crate) args: &'a [String],
    /// The variables that the plugin gets beside those of the agent.
    pub(crate) env: &'a [(String, String)],
}

/// A call that gave no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("cannot start it")]
    Start(#[source] ErrorSource),
    #[error("cannot read its answer")]
    Read(#[source] ErrorSource),
    #[error("it did not end within 60 s, so it was killed")]
    Timeout,
    #[error("it failed ({0})")]
    Failed(ExitStatus),
    #[error("its answer has more than 1 MiB")]
    TooLong,
}

/// A process that is killed, with the processes that it started, if it has not ended when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The process was not waited for, so its ID, which is that of its group, has no other owner yet.
        let group = self.0.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(group) = group {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Calls a plugin and returns its standard output.
///
/// Cancel safe: the process is killed.
pub(crate) async fn call(program: Program<'_>, request: &[u8], secret: &str) -> Result<Vec<u8>, CallError> {
    call_until(sleep(TIME_LIMIT), program, request, secret).await
}

/// Calls a plugin, and kills it when the time limit passes.
async fn call_until(
    limit: impl Future<Output = ()>,
    program: Program<'_>,
    request: &[u8],
    secret: &str,
) -> Result<Vec<u8>, CallError> {
    let started = Command::new(program.path)
        .args(program.args)
        .envs(program.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn();
    let mut running = Running(started.map_err(|error| CallError::Start(source(error)))?);
    let (status, answer, stderr) = tokio::select! {
        biased;
        talked = talk(&mut running.0, request) => talked?,
        () = limit => return Err(CallError::Timeout),
    };
    if !stderr.is_empty() {
        let text = String::from_utf8_lossy(&stderr);
        let text = if secret.is_empty() { text } else { text.replace(secret, "[redacted]").into() };
        // A plugin may write a part of a credential, so the text is no part of an error, an event or the log at its default level.
        tracing::debug!(
            plugin = %program.path.display(), stderr = %plain(&text, 1000),
            "a credential provider plugin wrote to its standard error"
        );
    }
    if answer.len() as u64 > MAX_ANSWER {
        return Err(CallError::TooLong);
    }
    if status.success() { Ok(answer) } else { Err(CallError::Failed(status)) }
}

/// Writes the request, and reads until the process has ended. Returns at most one byte more than the longest answer.
async fn talk(child: &mut Child, request: &[u8]) -> Result<(ExitStatus, Vec<u8>, Vec<u8>), CallError> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async {
        if let Some(mut stdin) = stdin
            && let Err(error) = stdin.write_all(request).await
        {
            // A plugin may need nothing of the request.
            tracing::debug!(error = %error_chain(&error), "a credential provider plugin did not read its request");
        }
        Ok::<(), io::Error>(())
    };
    let answer = async {
        let mut answer = Vec::new();
        if let Some(stdout) = stdout {
            // If the answer is longer, the pipe is closed, and the plugin cannot write more.
            stdout.take(MAX_ANSWER + 1).read_to_end(&mut answer).await?;
        }
        Ok::<_, io::Error>(answer)
    };
    let errors = async {
        match stderr {
            Some(stderr) => first_bytes(stderr).await,
            None => Ok(Vec::new()),
        }
    };
    let talk = async {
        let ((), answer, stderr) = tokio::try_join!(write, answer, errors)?;
        // Only now, when no process of the group holds a pipe: the ID of the group is free when its first process was waited for, and
        // the group could not be killed any more.
        Ok::<_, io::Error>((child.wait().await?, answer, stderr))
    };
    talk.await.map_err(|error| CallError::Read(source(error)))
}

/// Reads until the end, and returns the first bytes.
async fn first_bytes(stream: impl AsyncRead + Unpin) -> io::Result<Vec<u8>> {
    let mut limited = stream.take(MAX_STDERR);
    let mut bytes = Vec::new();
    limited.read_to_end(&mut bytes).await?;
    tokio::io::copy(&mut limited.into_inner(), &mut tokio::io::sink()).await?;
    Ok(bytes)
}

fn source(error: io::Error) -> ErrorSource {
    ErrorSource::from(Box::<dyn std::error::Error + Send + Sync>::from(error))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use podwright_fixtures::polling::until;

    use super::*;

    /// Calls a shell with a script, in the environment of this process.
    async fn run(script: &str, request: &str) -> Result<String, CallError> {
        run_until(sleep(TIME_LIMIT), script, request).await
    }

    async fn run_until(limit: impl Future<Output = ()>, script: &str, request: &str) -> Result<String, CallError> {
        let args = ["-c".to_owned(), script.to_owned()];
        let env = [("PLUGIN_REGION".to_owned(), "west".to_owned())];
        let program = Program { path: Path::new("/bin/sh"), args: &args, env: &env };
        let answer = call_until(limit, program, request.as_bytes(), "").await;
        answer.map(|answer| String::from_utf8(answer).unwrap())
    }

    /// Whether a process has ended, even if its parent has not waited for it yet.
    fn has_ended(pid: &str) -> bool {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The state follows the name, which is in parentheses.
        stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with(['Z', 'X']))
    }

    #[tokio::test]
    async fn a_plugin_reads_the_request_and_writes_the_answer() {
        let answer = run("read request; echo \"$request $PLUGIN_REGION\"; echo noise >&2", "question\n").await.unwrap();
        assert_eq!(answer, "question west\n");
        assert_eq!(
            run("test -n \"$PATH\" && echo the variables of the agent", "").await.unwrap(),
            "the variables of the agent\n"
        );
        let long = "x".repeat(1 << 18);
        assert_eq!(run("echo unread", &long).await.unwrap(), "unread\n", "a plugin may ignore the request");
        let noise = run(
            "i=0; while [ $i -lt 3000 ]; do echo 0123456789012345678901234567890123456789 >&2; i=$((i+1)); done; echo ok",
            "",
        );
        assert_eq!(noise.await.unwrap(), "ok\n", "the standard error is read, but not kept");
    }

    #[tokio::test]
    async fn a_plugin_that_fails_gives_no_answer_and_no_output_in_the_error() {
        let error = run("echo s3cret; echo s3cret >&2; exit 3", "").await.unwrap_err();
        assert!(matches!(&error, CallError::Failed(status) if status.code() == Some(3)), "{error}");
        assert!(!format!("{error} {error:?}").contains("s3cret"));
        let absent = Program { path: Path::new("/nonexistent/plugin"), args: &[], env: &[] };
        assert!(matches!(call(absent, b"", "").await, Err(CallError::Start(_))));
        let endless =
            run("while :; do echo 0123456789012345678901234567890123456789012345678901234567890123456789; done", "");
        assert!(matches!(endless.await, Err(CallError::TooLong)));
    }

    #[tokio::test]
    async fn a_plugin_that_does_not_end_is_killed_with_what_it_started() {
        let dir = tempfile::tempdir().unwrap();
        // The first process ends at once. The other one keeps its output.
        let script = "echo $$ > first\nsleep 1000 &\necho $! > second";
        let script = format!("cd {}\n{script}", dir.path().display());
        let pid = |file: &str| {
            let text = fs::read_to_string(dir.path().join(file)).ok()?;
            Some(text.strip_suffix('\n')?.to_owned())
        };
        let both_ran = || pid("second").is_some() && pid("first").is_some_and(|first| has_ended(&first));
        let answer = run_until(until("the first process has ended", both_ran), &script, "").await;
        assert!(matches!(answer, Err(CallError::Timeout)), "{answer:?}");
        let second = pid("second").unwrap();
        until("the second process was killed", || has_ended(&second)).await;
    }
}
