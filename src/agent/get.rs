//! `podwright get`, `explain`, `health`, `logs` and `link`: print what a running agent answers.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use crate::actors::pod::PodObject;
use crate::actors::ports::{Clock, SystemClock};
use crate::actors::status::PodSummary;
use crate::actors::time::Time;
use k8s_openapi::List;
use k8s_openapi::api::core::v1::Pod;

#[cfg(feature = "controllers")]
use super::cli::ExplainedObject;
use super::cli::{ExplainArgs, ExplainOutput, GetArgs, GetOutput, HealthArgs, HealthCheck, LinkArgs, LogsArgs};
use super::client::{Agent, RequestError, escape_lines};
use super::root::{DefaultDirectories, RootError};
use super::table;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain";

/// Why a command has no output.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueryError {
    #[error(transparent)]
    Root(#[from] RootError),
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// The output of `get`.
///
/// # Errors
/// [`QueryError`] if the agent does not answer, or if its answer is not a list of pods.
pub(crate) fn get(args: &GetArgs) -> Result<String, QueryError> {
    let agent = args.agent.agent()?;
    let body = agent.fetch("/pods", &[], JSON)?;
    let not_podwright = |_| agent.not_podwright();
    if args.output == GetOutput::Json {
        return Ok(pretty(&body).map_err(not_podwright)?);
    }
    let list: List<Pod> = serde_json::from_str(&body).map_err(not_podwright)?;
    let pods: Vec<Arc<PodObject>> = list.items.into_iter().filter_map(|pod| PodObject::new(pod).ok()).collect();
    Ok(render(&pods, SystemClock::new().now(), args.output == GetOutput::Wide))
}

/// The output of `give-up`.
///
/// # Errors
/// [`QueryError`] if the agent does not answer, or does not hold the claim.
#[cfg(feature = "dra")]
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
    let answer = args.agent.agent()?.fetch(path, &[], TEXT);
    #[cfg(feature = "controllers")]
    let answer = answer.map_err(RequestError::of_any_program);
    Ok(escape_lines(&answer?))
}

/// The output of `explain`.
///
/// # Errors
/// [`QueryError`] if the agent or the controllers do not answer, or if the agent does not know the pod.
pub(crate) fn explain(args: &ExplainArgs) -> Result<String, QueryError> {
    #[cfg(feature = "controllers")]
    if let Some(object) = &args.object {
        let (path, agent, output) = match object {
            ExplainedObject::Claim(args) => (format!("/explain/claim/{}", args.claim), &args.agent, args.output),
            ExplainedObject::Pod(args) => (format!("/explain/pod/{}", args.pod), &args.agent, args.output),
            ExplainedObject::Rule(args) => (format!("/explain/rule/{}", args.rule.0), &args.agent, args.output),
        };
        return explanation(&agent.controllers()?, &path, &[], output);
    }
    let path = match &args.pod {
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

/// Prints the log of a container. With `--follow`, it prints until the container ends or the reader closes standard output
/// (`| head`), which is no error.
///
/// # Errors
/// [`QueryError`] if the agent does not answer, or has no such log.
pub(crate) fn logs(args: &LogsArgs) -> Result<(), QueryError> {
    let mut query: Vec<(&str, String)> = Vec::new();
    if let Some(container) = &args.container {
        query.push(("container", container.clone()));
    }
    for (name, is_set) in [("follow", args.follow), ("previous", args.previous), ("timestamps", args.timestamps)] {
        if is_set {
            query.push((name, "true".to_owned()));
        }
    }
    query.extend(args.tail.map(|lines| ("tailLines", lines.to_string())));
    query.extend(args.since.map(|time| ("sinceSeconds", seconds_rounded_up(time).to_string())));
    query.extend(args.since_time.map(|time| ("sinceTime", time.to_string())));
    let mut out = io::stdout().lock();
    let agent = args.agent.agent()?;
    Ok(agent.follow(&format!("/logs/{}", args.pod), &query, |text| {
        out.write_all(text).and_then(|()| out.flush()).is_ok()
    })?)
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

/// Whole seconds, rounded up so that no line of the time span is missing.
fn seconds_rounded_up(time: Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

fn pretty(body: &str) -> serde_json::Result<String> {
    let value: serde_json::Value = serde_json::from_str(body)?;
    serde_json::to_string_pretty(&value)
}

fn render(pods: &[Arc<PodObject>], now: Time, wide: bool) -> String {
    if pods.is_empty() {
        return "no pods".to_owned();
    }
    let mut columns = vec!["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE"];
    if wide {
        columns.extend(["IP", "NODE", "UID"]);
    }
    let rows: Vec<Vec<String>> = pods.iter().map(|pod| row(pod, now, wide)).collect();
    table::lines(&columns, &rows).join("\n")
}

fn row(pod: &PodObject, now: Time, wide: bool) -> Vec<String> {
    let no_status = Default::default();
    let status = pod.status().unwrap_or(&no_status);
    let summary = PodSummary::new(pod, status, now);
    let mut row = vec![
        pod.full_name().namespace().to_owned(),
        pod.full_name().name().to_owned(),
        summary.ready_column(),
        summary.state.clone(),
        summary.restarts_column(),
        summary.age_column(),
    ];
    if wide {
        let or_none = |text: Option<&String>| text.map_or("<none>", String::as_str).to_owned();
        row.extend([or_none(status.pod_ip.as_ref()), or_none(pod.spec().node_name.as_ref()), pod.uid().to_string()]);
    }
    row
}
