//! `/metrics/cadvisor`: what the machine, its pods and their containers use, as the metrics of cAdvisor in a kubelet.
//!
//! ```text
//!  runtime: usage of containers and pods ──┐
//!  machine: cgroups, CPUs, memory, disk ───┴─> subjects: one for each cgroup, with its labels ──> families ──> encode ──> text
//! ```

mod encode;
mod families;
mod hardware;
mod subjects;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use self::encode::{Head, Kind, Series};
use self::families::Subject;
use self::subjects::Measured;
use super::machine;
use super::shared::PANIC;
use crate::routes::NodeApi;
use crate::served_node::ServedPod;
use podwright_host::node_meter::booted;
use podwright_host::stats::{Depth, DeviceNames, RuntimeUsage, net_dev};
use podwright_metrics::Format;
use podwright_model::text::error_chain;
use podwright_ports::{DiskMeter, FileSystemSpace};

/// The usual size of the series of one cgroup.
const BYTES_OF_SUBJECT: usize = 16 << 10;

/// The answer of `/metrics/cadvisor`.
pub(crate) async fn metrics(State(api): State<NodeApi>) -> Response {
    match api.meters.cadvisor.measure(measure(api.clone())).await {
        Ok(text) => {
            let answer = |text: &Bytes| ([(CONTENT_TYPE, Format::Classic.content_type())], text.clone());
            api.blocking.answer(Bytes::clone(&text), answer).await
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("Internal Error: {error}")).into_response(),
    }
}

/// Measures and encodes everything. If the runtime cannot measure, the answer has no containers and an error.
///
/// # Errors
/// The text of a panic.
async fn measure(api: NodeApi) -> Result<Bytes, String> {
    let queries = api.queries.clone();
    let pods = api.blocking.compute(move || queries.pods()).await.ok_or(PANIC)?;
    let objects: Vec<_> = pods.iter().filter_map(|pod| pod.object.clone()).collect();
    let usage = match api.stats.usage(&objects, Depth::Details).await {
        Ok(usage) => Some(usage),
        Err(error) => {
            let error = error_chain(&error).to_string();
            tracing::warn!(error, "cannot measure the containers for /metrics/cadvisor");
            None
        }
    };
    let disk = api.storage.node_file_system().await.ok();
    let node = api.clone();
    let text = api.blocking.compute(move || exposition(&node, &pods, usage.as_ref(), disk)).await;
    Ok(Bytes::from(text.ok_or(PANIC)?))
}

/// Blocking: reads the usage of the machine and of the agent.
fn exposition(
    api: &NodeApi,
    pods: &[ServedPod],
    usage: Option<&RuntimeUsage>,
    disk: Option<FileSystemSpace>,
) -> String {
    let hardware = hardware::read();
    let (mut node, agent) = (machine::node(Depth::Details), machine::agent(Depth::Details));
    if let Some(details) = &mut node.details {
        // The root cgroup has no limit.
        details.limits.memory = hardware.memory;
    }
    let interfaces = net_dev::of_agent().unwrap_or_default();
    let mut devices = DeviceNames::default();
    let disk =
        disk.map(|space| subjects::file_system(&space, space.capacity.saturating_sub(space.available), &mut devices));
    let machine = subjects::machine(&node, booted(api.clock.now()), &mut devices);
    let mut subjects = vec![Subject { interfaces: &interfaces, file_system: disk, ..machine }];
    let systems = agent.iter().chain(usage.and_then(|usage| usage.all_pods.as_ref()));
    subjects.extend(systems.filter_map(|usage| subjects::system(usage, &mut devices)));
    if let Some(usage) = usage {
        let measured = Measured::new(usage);
        for pod in pods {
            let Some(status) = api.queries.runtime_status(&pod.uid) else { continue };
            subjects.extend(measured.pod(pod, &status.containers, &mut devices));
        }
    }
    let mut text = String::with_capacity(subjects.len() * BYTES_OF_SUBJECT);
    families::write(&mut text, &subjects);
    let help = "1 if the containers could not be measured, otherwise 0";
    let head = Head { name: "container_scrape_error", kind: Kind::Gauge, help };
    Series::new(&mut text, head).number(&[], Some(u64::from(usage.is_none())));
    hardware::write(&mut text, &hardware, &api.system_info, node.at);
    text
}
