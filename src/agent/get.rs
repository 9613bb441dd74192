//! `podwright get`, `explain`, `health`, `logs` and `link`: print what a running agent answers.

mod logs;
mod pods;
mod rows;

use super::cli::{ExplainArgs, ExplainOutput, ExplainedObject, HealthArgs, HealthCheck, LinkArgs};
use super::client::{Agent, RequestError, escape_lines};
use super::root::{DefaultDirectories, RootError};
pub(crate) use logs::logs;
pub(crate) use pods::{get, watch};
use podwright_model::ids::FullName;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain";

/// Why a command has no output.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueryError {
    #[error(transparent)]
    Root(#[from] RootError),
    #[error(transparent)]
    Request(#[from] RequestError),
    /// No controllers listen, and the user may mean the pod of an agent.
    #[error("{missing}; for a pod of an agent: `podwright explain {pod}`")]
    NoControllers { missing: RequestError, pod: Box<FullName> },
    /// The agent has no pods of these names.
    #[error("{0}")]
    UnknownPods(String),
    /// Some containers have no logs. The other logs were printed.
    #[error("{0}")]
    MissingLogs(String),
}

/// The output of `give-up`.
///
/// # Errors
/// [`QueryError`] if the agent does not answer, or does not hold the claim.
pub(crate) fn give_up(args: &super::cli::GiveUpArgs) -> Result<String, QueryError> {
    let agent = args.agent.agent()?;
    let answer = agent.post(&format!("/claims/{}/give-up", args.claim), &[("driver", args.driver.clone())])?;
    Ok(escape_lines(answer.trim_end()))
}

/// The output of `health`.
///
/// # Errors
/// [`QueryError`] if the agent does not answer, or is not in this state.
pub(crate) fn health(args: &HealthArgs) -> Result<String, QueryError> {
    let path = match args.check {
        HealthCheck::Ready => "/readyz",
        HealthCheck::Live => "/healthz",
    };
    let answer = args.agent.agent()?.fetch(path, &[], TEXT).map_err(RequestError::of_any_program)?;
    Ok(escape_lines(&answer))
}

/// The output of `explain`.
///
/// # Errors
/// [`QueryError`] if the agent or the controllers do not answer, or if the agent does not know the pod.
pub(crate) fn explain(args: &ExplainArgs) -> Result<String, QueryError> {
    if let Some(object) = &args.object {
        let (path, agent, output) = match object {
            ExplainedObject::Claim(args) => (format!("/explain/claim/{}", args.claim), &args.agent, args.output),
            ExplainedObject::Pod(args) => (format!("/explain/pod/{}", args.pod), &args.agent, args.output),
            ExplainedObject::Rule(args) => (format!("/explain/rule/{}", args.rule.0), &args.agent, args.output),
        };
        let answer = explanation(&agent.controllers()?, &path, &[], output);
        return match (answer, object) {
            (Err(QueryError::Request(missing @ RequestError::NoControllers(_))), ExplainedObject::Pod(args)) => {
                Err(QueryError::NoControllers { missing, pod: Box::new(args.pod.clone()) })
            }
            (answer, _) => answer,
        };
    }
    let path = match args.pod() {
        Some(pod) => format!("/explain/{pod}"),
        None => "/explain".to_owned(),
    };
    let query: Vec<_> = args.uid.iter().map(|uid| ("uid", uid.clone())).collect();
    explanation(&args.agent.agent()?, &path, &query, args.output)
}

fn explanation(
    agent: &Agent,
    path: &str,
    query: &[(&str, String)],
    output: ExplainOutput,
) -> Result<String, QueryError> {
    match output {
        ExplainOutput::Text => Ok(escape_lines(&agent.fetch(path, query, TEXT)?)),
        ExplainOutput::Json => {
            let body = agent.fetch(path, query, JSON)?;
            Ok(pretty(&body).map_err(|_| agent.not_podwright())?)
        }
    }
}

/// The output of `link`.
///
/// # Errors
/// [`QueryError`] if no agent runs, or if it serves no page.
pub(crate) fn link(args: &LinkArgs) -> Result<String, QueryError> {
    let root = match &args.root {
        Some(root) => root.clone(),
        None => DefaultDirectories::of_process().root()?,
    };
    Ok(Agent::link(&root)?)
}

fn pretty(body: &str) -> serde_json::Result<String> {
    let value: serde_json::Value = serde_json::from_str(body)?;
    serde_json::to_string_pretty(&value)
}

#[cfg(test)]
mod tests {
    use crate::agent::cli::{Command, parse};

    use super::*;

    #[test]
    fn pod_without_controllers_may_be_one_of_an_agent() {
        let dir = tempfile::tempdir().unwrap();
        let error = |kind: &str| {
            let root = dir.path().to_str().unwrap();
            match parse(["podwright", "explain", kind, "web", "--root", root]).unwrap().command {
                Command::Explain(args) => explain(&args).unwrap_err().to_string(),
                other => panic!("{other:?}"),
            }
        };
        let of_pod = error("pod");
        assert!(of_pod.starts_with("no controllers listen at "), "{of_pod}");
        assert!(of_pod.ends_with("; for a pod of an agent: `podwright explain default/web`"), "{of_pod}");
        assert!(error("claim").ends_with(" --admin ADDRESS"));
    }
}
