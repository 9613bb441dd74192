//! `get pods` and `explain`: what a running agent says, for people or programs.

use std::sync::Arc;

use crate::actors::pod::PodObject;
use crate::actors::ports::{Clock, SystemClock};
use crate::actors::status::PodSummary;
use crate::actors::time::Time;
use k8s_openapi::List;
use k8s_openapi::api::core::v1::Pod;

use super::cli::{ExplainArgs, ExplainOutput, GetArgs, GetOutput};
use super::client::{AskError, ask, lines};
use super::table;

const JSON: &str = "application/json";
const TEXT: &str = "text/plain";

/// What `get` prints.
///
/// # Errors
/// [`AskError`].
pub(crate) fn get(args: &GetArgs) -> Result<String, AskError> {
    let address = args.admin.0;
    let body = ask(address, "/pods", &[], JSON)?;
    let stranger = |_| AskError::Stranger { address };
    if args.output == GetOutput::Json {
        return pretty(&body).map_err(stranger);
    }
    let list: List<Pod> = serde_json::from_str(&body).map_err(stranger)?;
    let pods: Vec<Arc<PodObject>> = list.items.into_iter().filter_map(|pod| PodObject::new(pod).ok()).collect();
    Ok(render(&pods, SystemClock::new().now(), args.output == GetOutput::Wide))
}

/// What `explain` prints.
///
/// # Errors
/// [`AskError`].
pub(crate) fn explain(args: &ExplainArgs) -> Result<String, AskError> {
    let address = args.admin.0;
    let path = match &args.pod {
        Some(pod) => format!("/explain/{pod}"),
        None => "/explain".to_owned(),
    };
    let query: Vec<_> = args.uid.iter().map(|uid| ("uid", uid.clone())).collect();
    match args.output {
        ExplainOutput::Text => ask(address, &path, &query, TEXT).map(|text| lines(&text)),
        ExplainOutput::Json => {
            let body = ask(address, &path, &query, JSON)?;
            pretty(&body).map_err(|_| AskError::Stranger { address })
        }
    }
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
    let nothing = Default::default();
    let status = pod.status().unwrap_or(&nothing);
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
