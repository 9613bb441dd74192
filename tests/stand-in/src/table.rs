//! Tables for `kubectl get`, and objects without their content. Source: the printers of kube-apiserver.

use serde_json::{Value, json};

use crate::schema::Resource;

/// The form of an answer that a client requests in `Accept`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The objects themselves.
    Object,
    /// The metadata of the objects.
    Metadata,
    /// A table with one row for each object.
    Table(Include),
}

/// The content of a row of a table besides its cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Include {
    Nothing,
    Metadata,
    Object,
}

impl Form {
    /// The first form of the header that the server has. `include` is the option `includeObject` of the request.
    pub(crate) fn parse(accept: &str, include: &str) -> Self {
        for part in accept.split(',') {
            let has = |parameter: &str| part.split(';').any(|found| found.trim() == parameter);
            if has("as=Table") && has("v=v1") {
                return Self::Table(match include {
                    "None" => Include::Nothing,
                    "Object" => Include::Object,
                    _ => Include::Metadata,
                });
            }
            if has("as=PartialObjectMetadata") || has("as=PartialObjectMetadataList") {
                return Self::Metadata;
            }
            if has("application/json") || has("*/*") {
                return Self::Object;
            }
        }
        Self::Object
    }

    /// Converts an answer to the form. `now` is the time from which the ages are computed.
    pub(crate) fn render(self, resource: &Resource, body: Value, now: jiff::Timestamp) -> Value {
        let is_list = body["kind"] == format!("{}List", resource.kind) && body["items"].is_array();
        if !is_list && body["kind"] != resource.kind {
            return body;
        }
        match self {
            Self::Object => body,
            Self::Metadata if is_list => {
                let items: Vec<Value> = items(&body).map(metadata).collect();
                json!({
                    "kind": "PartialObjectMetadataList",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": body["metadata"],
                    "items": items,
                })
            }
            Self::Metadata => metadata(&body),
            Self::Table(include) => {
                let columns = columns(resource.kind);
                let row = |object: &Value| {
                    let cells: Vec<Value> = columns.iter().map(|column| (column.cell)(object, now)).collect();
                    match include {
                        Include::Nothing => json!({"cells": cells}),
                        Include::Metadata => json!({"cells": cells, "object": metadata(object)}),
                        Include::Object => {
                            let mut object = object.clone();
                            object["kind"] = json!(resource.kind);
                            object["apiVersion"] = json!(resource.api_version());
                            json!({"cells": cells, "object": object})
                        }
                    }
                };
                let is_empty = body["metadata"].get("name").is_none() && !is_list;
                let rows: Vec<Value> = match (is_list, is_empty) {
                    (true, _) => items(&body).map(row).collect(),
                    // A bookmark.
                    (false, true) => Vec::new(),
                    (false, false) => vec![row(&body)],
                };
                let list = if is_list {
                    body["metadata"].clone()
                } else {
                    json!({"resourceVersion": body["metadata"]["resourceVersion"]})
                };
                json!({
                    "kind": "Table",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": list,
                    "columnDefinitions": columns.iter().map(Column::definition).collect::<Vec<_>>(),
                    "rows": rows,
                })
            }
        }
    }
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list["items"].as_array().into_iter().flatten()
}

fn metadata(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

struct Column {
    name: &'static str,
    kind: &'static str,
    /// Shown only by `-o wide`.
    is_wide: bool,
    cell: fn(&Value, jiff::Timestamp) -> Value,
}

impl Column {
    fn definition(&self) -> Value {
        let format = if self.name == "Name" { "name" } else { "" };
        json!({
            "name": self.name,
            "type": self.kind,
            "format": format,
            "description": "",
            "priority": i32::from(self.is_wide),
        })
    }
}

const fn text(name: &'static str, cell: fn(&Value, jiff::Timestamp) -> Value) -> Column {
    Column { name, kind: "string", is_wide: false, cell }
}

const fn wide(name: &'static str, cell: fn(&Value, jiff::Timestamp) -> Value) -> Column {
    Column { name, kind: "string", is_wide: true, cell }
}

const NAME: Column = text("Name", |object, _| object["metadata"]["name"].clone());
const AGE: Column = text("Age", |object, now| json!(since(&object["metadata"]["creationTimestamp"], now)));

fn columns(kind: &str) -> Vec<Column> {
    match kind {
        "Pod" => vec![
            NAME,
            text("Ready", |pod, _| json!(pod_ready(pod))),
            text("Status", |pod, _| json!(pod_status(pod))),
            text("Restarts", |pod, now| json!(pod_restarts(pod, now))),
            AGE,
            wide("IP", |pod, _| or_none(&pod["status"]["podIP"])),
            wide("Node", |pod, _| or_none(&pod["spec"]["nodeName"])),
            wide("Nominated Node", |pod, _| or_none(&pod["status"]["nominatedNodeName"])),
            wide("Readiness Gates", |_, _| json!("<none>")),
        ],
        "Node" => vec![
            NAME,
            text("Status", |node, _| json!(node_status(node))),
            text("Roles", |node, _| json!(node_roles(node))),
            AGE,
            text("Version", |node, _| node["status"]["nodeInfo"]["kubeletVersion"].clone()),
            wide("Internal-IP", |node, _| json!(node_address(node, "InternalIP"))),
            wide("External-IP", |node, _| json!(node_address(node, "ExternalIP"))),
            wide("OS-Image", |node, _| or_unknown(&node["status"]["nodeInfo"]["osImage"])),
            wide("Kernel-Version", |node, _| or_unknown(&node["status"]["nodeInfo"]["kernelVersion"])),
            wide("Container-Runtime", |node, _| or_unknown(&node["status"]["nodeInfo"]["containerRuntimeVersion"])),
        ],
        "Event" => vec![
            text("Last Seen", |event, now| json!(event_age(event, now))),
            text("Type", |event, _| event["type"].clone()),
            text("Reason", |event, _| event["reason"].clone()),
            text("Object", |event, _| json!(event_object(event))),
            wide("Subobject", |event, _| part(event, "involvedObject", "regarding")["fieldPath"].clone()),
            wide("Source", |event, _| json!(event_source(event))),
            text("Message", |event, _| part(event, "message", "note").clone()),
            wide("Count", |event, _| part(event, "count", "deprecatedCount").clone()),
            wide("Name", |event, _| event["metadata"]["name"].clone()),
        ],
        "Namespace" => vec![NAME, text("Status", |object, _| object["status"]["phase"].clone()), AGE],
        "CertificateSigningRequest" => vec![
            NAME,
            AGE,
            text("SignerName", |object, _| object["spec"]["signerName"].clone()),
            text("Requestor", |object, _| object["spec"]["username"].clone()),
            text("Condition", |object, _| json!(request_condition(object))),
        ],
        "Lease" => vec![NAME, text("Holder", |object, _| object["spec"]["holderIdentity"].clone()), AGE],
        "Service" => vec![
            NAME,
            text("Type", |object, _| object["spec"]["type"].clone()),
            text("Cluster-IP", |object, _| or_none(&object["spec"]["clusterIP"])),
            AGE,
        ],
        _ => vec![NAME, AGE],
    }
}

fn or_none(value: &Value) -> Value {
    value.as_str().filter(|text| !text.is_empty()).map_or_else(|| json!("<none>"), |text| json!(text))
}

fn or_unknown(value: &Value) -> Value {
    value.as_str().filter(|text| !text.is_empty()).map_or_else(|| json!("<unknown>"), |text| json!(text))
}

fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    value[field].as_array().into_iter().flatten()
}

/// The text of the time since `time`, as `kubectl` prints ages. Source: `k8s.io/apimachinery/pkg/util/duration`.
fn since(time: &Value, now: jiff::Timestamp) -> String {
    let Some(time) = time.as_str().and_then(|text| text.parse::<jiff::Timestamp>().ok()) else {
        return "<unknown>".to_owned();
    };
    let seconds = now.as_second() - time.as_second();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let with_rest = |whole: i64, unit: &str, rest: i64, part: &str| {
        if rest == 0 { format!("{whole}{unit}") } else { format!("{whole}{unit}{rest}{part}") }
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => with_rest(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => with_rest(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => with_rest(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => with_rest(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

/// The sidecars of a pod: init containers that restart always.
fn is_sidecar(pod: &Value, status: &Value) -> bool {
    list(&pod["spec"], "initContainers").any(|init| init["name"] == status["name"] && init["restartPolicy"] == "Always")
}

fn pod_ready(pod: &Value) -> String {
    let sidecars = list(&pod["spec"], "initContainers").filter(|init| init["restartPolicy"] == "Always").count();
    let total = list(&pod["spec"], "containers").count() + sidecars;
    let is_running = |status: &&Value| status["ready"] == true && status["state"].get("running").is_some();
    let ready = list(&pod["status"], "containerStatuses").filter(is_running).count()
        + list(&pod["status"], "initContainerStatuses")
            .filter(|status| is_sidecar(pod, status) && status["ready"] == true)
            .count();
    format!("{ready}/{total}")
}

fn pod_restarts(pod: &Value, now: jiff::Timestamp) -> String {
    let status = &pod["status"];
    let sidecars = list(status, "initContainerStatuses").filter(|status| is_sidecar(pod, status));
    let counted: Vec<&Value> = list(status, "containerStatuses").chain(sidecars).collect();
    let count: i64 = counted.iter().filter_map(|status| status["restartCount"].as_i64()).sum();
    let finished = |status: &&Value| status["lastState"]["terminated"]["finishedAt"].as_str().map(str::to_owned);
    match counted.iter().filter_map(finished).max().filter(|_| count > 0) {
        Some(last) => format!("{count} ({} ago)", since(&json!(last), now)),
        None => count.to_string(),
    }
}

fn pod_status(pod: &Value) -> String {
    let status = &pod["status"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let ended = |terminated: &Value| match (text(&terminated["reason"]), terminated["signal"].as_i64().unwrap_or(0)) {
        (reason, _) if !reason.is_empty() => reason,
        (_, 0) => format!("ExitCode:{}", terminated["exitCode"].as_i64().unwrap_or(0)),
        (_, signal) => format!("Signal:{signal}"),
    };
    let mut reason = match text(&status["reason"]) {
        reason if reason.is_empty() => text(&status["phase"]),
        reason => reason,
    };
    let conditions = || list(status, "conditions");
    if conditions().any(|c| c["type"] == "PodScheduled" && c["reason"] == "SchedulingGated") {
        "SchedulingGated".clone_into(&mut reason);
    }
    let total = list(&pod["spec"], "initContainers").count();
    let mut is_initializing = false;
    for (at, init) in list(status, "initContainerStatuses").enumerate() {
        let (terminated, waiting) = (&init["state"]["terminated"], text(&init["state"]["waiting"]["reason"]));
        if terminated["exitCode"] == 0 || is_sidecar(pod, init) && init["started"] == true {
            continue;
        }
        reason = match (terminated.is_object(), waiting.as_str()) {
            (true, _) => format!("Init:{}", ended(terminated)),
            (false, "" | "PodInitializing") => format!("Init:{at}/{total}"),
            (false, waiting) => format!("Init:{waiting}"),
        };
        is_initializing = true;
        break;
    }
    if !is_initializing || conditions().any(|c| c["type"] == "Initialized" && c["status"] == "True") {
        let mut has_running = false;
        for container in list(status, "containerStatuses").collect::<Vec<_>>().into_iter().rev() {
            let state = &container["state"];
            match text(&state["waiting"]["reason"]) {
                waiting if !waiting.is_empty() => reason = waiting,
                _ if state["terminated"].is_object() => reason = ended(&state["terminated"]),
                _ => has_running |= container["ready"] == true && state["running"].is_object(),
            }
        }
        if reason == "Completed" && has_running {
            let is_ready = conditions().any(|c| c["type"] == "Ready" && c["status"] == "True");
            (if is_ready { "Running" } else { "NotReady" }).clone_into(&mut reason);
        }
    }
    let is_finished = matches!(status["phase"].as_str(), Some("Succeeded" | "Failed"));
    if pod["metadata"]["deletionTimestamp"].is_null() {
        return reason;
    }
    if status["reason"] == "NodeLost" {
        return "Unknown".to_owned();
    }
    if is_finished { reason } else { "Terminating".to_owned() }
}

fn node_status(node: &Value) -> String {
    let ready = list(&node["status"], "conditions").find(|condition| condition["type"] == "Ready");
    let status = match ready.and_then(|condition| condition["status"].as_str()) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    if node["spec"]["unschedulable"] == true { format!("{status},SchedulingDisabled") } else { status.to_owned() }
}

fn node_roles(node: &Value) -> String {
    let labels = node["metadata"]["labels"].as_object();
    let roles = labels.into_iter().flatten().filter_map(|(key, value)| {
        key.strip_prefix("node-role.kubernetes.io/")
            .or_else(|| (key == "kubernetes.io/role").then(|| value.as_str().unwrap_or_default()))
    });
    let roles: Vec<&str> = roles.filter(|role| !role.is_empty()).collect();
    if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") }
}

fn node_address(node: &Value, kind: &str) -> String {
    let found = list(&node["status"], "addresses").find(|address| address["type"] == kind);
    found.and_then(|address| address["address"].as_str()).unwrap_or("<none>").to_owned()
}

/// A field that has two names: one in the core group, and one in `events.k8s.io`.
fn part<'a>(event: &'a Value, core: &str, new: &str) -> &'a Value {
    event.get(core).unwrap_or(&event[new])
}

fn event_age(event: &Value, now: jiff::Timestamp) -> String {
    let first = [part(event, "firstTimestamp", "deprecatedFirstTimestamp"), &event["eventTime"]];
    let first = first.into_iter().find(|time| time.is_string()).unwrap_or(&Value::Null);
    let last = [&event["series"]["lastObservedTime"], part(event, "lastTimestamp", "deprecatedLastTimestamp"), first];
    let last = last.into_iter().find(|time| time.is_string()).unwrap_or(&Value::Null);
    let count = event["series"]["count"].as_i64().or_else(|| part(event, "count", "deprecatedCount").as_i64());
    match count {
        Some(count) if count > 1 => format!("{} (x{count} over {})", since(last, now), since(first, now)),
        _ => since(last, now),
    }
}

fn event_object(event: &Value) -> String {
    let object = part(event, "involvedObject", "regarding");
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    format!("{}/{}", text("kind").to_lowercase(), text("name"))
}

fn event_source(event: &Value) -> String {
    let source = part(event, "source", "deprecatedSource");
    let component = [&source["component"], part(event, "reportingComponent", "reportingController")];
    let component =
        component.into_iter().find_map(|value| value.as_str().filter(|text| !text.is_empty())).unwrap_or_default();
    match source["host"].as_str() {
        Some(host) if !host.is_empty() => format!("{component}, {host}"),
        _ => component.to_owned(),
    }
}

fn request_condition(request: &Value) -> String {
    let has = |kind: &str| list(&request["status"], "conditions").any(|condition| condition["type"] == kind);
    let mut words = Vec::new();
    if has("Denied") {
        words.push("Denied");
    } else if has("Approved") {
        words.push("Approved");
    } else {
        words.push("Pending");
    }
    if has("Failed") {
        words.push("Failed");
    }
    if request["status"]["certificate"].is_string() {
        words.push("Issued");
    }
    words.join(",")
}
