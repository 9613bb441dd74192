//! Builds pod objects from pod plans.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use podwright::adapters::simulated::ANNOTATION_PREFIX;
use podwright_model::pod::PodObject;
use serde_json::{Map, Value, json};

use super::cluster::NODE_NAME;
use super::scenario::{ClaimPlan, ContainerPlan, HookPlan, Kind, PodPlan, ProbePlan, ResizePlan, Resources, Source};
use super::usage::VOLUME;

/// The state of a pod in its source.
#[derive(Clone, Copy, Debug)]
pub(super) struct PodRevision<'a> {
    pub(super) uid: &'a str,
    pub(super) image: u32,
    pub(super) label: u32,
    /// Grows with every change in the API server.
    pub(super) version: u64,
    /// The number of resizes.
    pub(super) resizes: u32,
    pub(super) resources: Option<Resources>,
    /// The grace period in seconds, if the pod is marked for deletion.
    pub(super) deleting: Option<i64>,
    pub(super) status: Option<&'a PodStatus>,
}

pub(super) fn pod_object(plan: &PodPlan, claims: &[ClaimPlan], revision: &PodRevision<'_>) -> Arc<PodObject> {
    let mut pod: Pod = serde_json::from_value(pod_json(plan, claims, revision)).unwrap();
    pod.status = revision.status.cloned();
    PodObject::new(pod).unwrap()
}

/// A pod without its status.
pub(super) fn pod_json(plan: &PodPlan, claims: &[ClaimPlan], revision_of_pod: &PodRevision<'_>) -> Value {
    let source = match plan.source {
        Source::File => "file",
        Source::Api => "api",
    };
    let mut annotations: Map<String, Value> = Map::new();
    annotations.insert("kubernetes.io/config.source".into(), json!(source));
    for (key, value) in &plan.settings {
        annotations.insert(format!("{ANNOTATION_PREFIX}{key}"), json!(value));
    }
    for container in &plan.containers {
        for (key, value) in &container.settings {
            let part = format!("{}={value}", container.name);
            let all = annotations.entry(format!("{ANNOTATION_PREFIX}{key}")).or_insert(json!(""));
            let before = all.as_str().unwrap();
            *all = if before.is_empty() { json!(part) } else { json!(format!("{before},{part}")) };
        }
    }
    let list = |regular: bool| -> Vec<Value> {
        let of = plan.containers.iter().filter(|c| (c.kind == Kind::Regular) == regular);
        of.map(|c| container(c, revision_of_pod.image)).collect()
    };
    let mut spec = json!({"nodeName": NODE_NAME, "containers": list(true)});
    let mut set = |key: &str, value: Value| spec[key] = value;
    if plan.containers.iter().any(|c| c.kind != Kind::Regular) {
        set("initContainers", json!(list(false)));
    }
    if let Some(policy) = plan.policy {
        set("restartPolicy", json!(policy));
    }
    if let Some(grace) = plan.grace {
        set("terminationGracePeriodSeconds", json!(grace));
    }
    if let Some(deadline) = plan.deadline {
        set("activeDeadlineSeconds", json!(deadline));
    }
    if let Some(priority) = plan.priority {
        set("priority", json!(priority));
    }
    if plan.host_network {
        set("hostNetwork", json!(true));
    }
    if let Some(cpu) = plan.cpu {
        spec["containers"][0]["resources"] = json!({"requests": {"cpu": cpu}});
    }
    if let (Some(resize), Some(resources)) = (plan.resize, revision_of_pod.resources) {
        let lists: &[&str] = if resize.has_init { &["containers", "initContainers"] } else { &["containers"] };
        for list in lists {
            for container in spec.get_mut(*list).and_then(Value::as_array_mut).into_iter().flatten() {
                set_resources(container, resize, resources);
            }
        }
        if resize.is_whole {
            // Sidecars run beside the regular containers. An init container needs no more than one of those.
            let sidecars = if resize.has_init { plan.of(Kind::Sidecar).count() } else { 0 };
            let count = plan.of(Kind::Regular).count() + sidecars;
            spec["resources"] = amounts(u32::try_from(count).unwrap(), resources);
        }
    }
    if !plan.claims.is_empty() {
        let name = |which: &usize| format!("of-{}", claims[*which].name);
        let of = |which: &usize| json!({"name": name(which), "resourceClaimName": claims[*which].name});
        spec["resourceClaims"] = plan.claims.iter().map(of).collect();
        spec["containers"][0]["resources"]["claims"] =
            plan.claims.iter().map(|which| json!({"name": name(which)})).collect();
    }
    if plan.source == Source::Api {
        let (name, limit) = VOLUME;
        spec["volumes"] = json!([{"name": name, "emptyDir": {"sizeLimit": limit}}]);
    }
    let mut metadata = json!({
        "name": plan.name, "namespace": "sim", "uid": revision_of_pod.uid, "generation": 1 + revision_of_pod.resizes,
        "resourceVersion": revision_of_pod.version.to_string(),
        "labels": {"version": revision_of_pod.label.to_string()}, "annotations": annotations,
    });
    if let Some(grace) = revision_of_pod.deleting {
        metadata["deletionTimestamp"] = json!("2027-01-01T00:00:00Z");
        metadata["deletionGracePeriodSeconds"] = json!(grace);
    }
    json!({"metadata": metadata, "spec": spec})
}

/// The resources of some containers together. A limit of the CPU above the request keeps the pod in its class.
fn amounts(count: u32, Resources { cpu, memory }: Resources) -> Value {
    json!({
        "requests": {"cpu": format!("{}m", count * cpu), "memory": format!("{}Mi", count * memory)},
        "limits": {"cpu": format!("{}m", count * (cpu + 500)), "memory": format!("{}Mi", count * 2 * memory)},
    })
}

fn set_resources(container: &mut Value, plan: ResizePlan, resources: Resources) {
    container["resources"] = amounts(1, resources);
    let policy = |restarts| if restarts { "RestartContainer" } else { "NotRequired" };
    container["resizePolicy"] = json!([
        {"resourceName": "cpu", "restartPolicy": policy(plan.cpu_restarts)},
        {"resourceName": "memory", "restartPolicy": policy(plan.memory_restarts)},
    ]);
}

/// The image of a pod's containers.
pub(super) fn image(revision: u32) -> String {
    format!("img:{revision}")
}

fn container(plan: &ContainerPlan, revision: u32) -> Value {
    let mut container = json!({
        "name": plan.name, "image": image(revision), "imagePullPolicy": "Always",
        "ports": [{"name": "http", "containerPort": 80}],
    });
    let policy = if plan.kind == Kind::Sidecar { Some("Always") } else { plan.policy };
    if let Some(policy) = policy {
        container["restartPolicy"] = json!(policy);
    }
    if let Some((code, action)) = plan.rule {
        let codes = json!({"operator": "In", "values": [code]});
        container["restartPolicyRules"] = json!([{"action": action, "exitCodes": codes}]);
    }
    for probe in &plan.probes {
        container[probe.field] = of_probe(probe);
    }
    let hooks = [("postStart", plan.post_start), ("preStop", plan.pre_stop)];
    for (field, hook) in hooks {
        if let Some(hook) = hook {
            container["lifecycle"][field] = of_hook(hook);
        }
    }
    container
}

fn of_probe(plan: &ProbePlan) -> Value {
    let mut probe = match plan.exec {
        true => json!({"exec": {"command": ["probe"]}}),
        false => json!({"httpGet": {"port": 80, "path": "/"}}),
    };
    probe["periodSeconds"] = json!(plan.period);
    probe["failureThreshold"] = json!(plan.failures);
    probe["timeoutSeconds"] = json!(1);
    probe["successThreshold"] = json!(1);
    if let Some(grace) = plan.grace {
        probe["terminationGracePeriodSeconds"] = json!(grace);
    }
    probe
}

fn of_hook(plan: HookPlan) -> Value {
    match plan {
        HookPlan::Exec => json!({"exec": {"command": ["hook"]}}),
        HookPlan::Http => json!({"httpGet": {"port": 80, "path": "/"}}),
        HookPlan::Sleep(seconds) => json!({"sleep": {"seconds": seconds}}),
    }
}
