//! Deletion: grace periods, finalizers and preconditions.

use std::sync::Arc;

use serde_json::{Value, json};

use super::read::list_item;
use super::write::stored_resource;
use super::{Answer, Env, Key, Store, time_text};
use crate::call::Call;
use crate::convert;
use crate::refusal::Refusal;
use crate::schema::Resource;
use crate::selector::Selector;

/// The options of a deletion.
#[derive(Clone, Debug, Default)]
pub(super) struct DeleteOptions {
    grace: Option<i64>,
    uid: Option<String>,
    resource_version: Option<String>,
    /// Whether the dependents stay without their owner.
    orphans: bool,
    is_dry_run: bool,
}

impl DeleteOptions {
    fn read(call: &Call) -> Result<Self, Refusal> {
        let body = &call.body;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let grace = match call.query.get("gracePeriodSeconds") {
            "" => body["gracePeriodSeconds"].as_i64(),
            seconds => Some(seconds.parse().map_err(|_| {
                Refusal::bad_request(format!("invalid gracePeriodSeconds {seconds:?}: use a whole number of seconds"))
            })?),
        };
        let policy = [body["propagationPolicy"].as_str().unwrap_or_default(), call.query.get("propagationPolicy")];
        Ok(Self {
            grace,
            uid: text(&body["preconditions"]["uid"]),
            resource_version: text(&body["preconditions"]["resourceVersion"]),
            orphans: policy.contains(&"Orphan"),
            is_dry_run: call.query.get("dryRun") == "All" || body["dryRun"] == json!(["All"]),
        })
    }
}

/// The result of a deletion.
enum Deleted {
    /// The object waits for its grace period or its finalizers.
    Pending(Arc<Value>),
    Gone(Arc<Value>),
}

impl Store {
    pub(super) fn delete(&mut self, call: &Call, env: &Env) -> Result<Answer, Refusal> {
        let options = DeleteOptions::read(call)?;
        let live = self.live(call)?;
        self.restrict(call, env, Some(&live), None)?;
        let body = match self.delete_object(call.resource, &live, &options, env)? {
            Deleted::Pending(object) => convert::outward(call.resource, &object),
            Deleted::Gone(object) if returns_the_object(call.resource) => convert::outward(call.resource, &object),
            Deleted::Gone(object) => success(call.resource, &object),
        };
        Ok(Answer::Object(200, body))
    }

    pub(super) fn delete_collection(&mut self, call: &Call, env: &Env) -> Result<Answer, Refusal> {
        let options = DeleteOptions::read(call)?;
        let selector =
            Selector::parse(call.resource, call.query.get("fieldSelector"), call.query.get("labelSelector"))?;
        let state = self.state_at(call.resource, call.namespace.as_deref(), self.version());
        let mut items = Vec::new();
        for (_, object) in state.iter().filter(|(_, object)| selector.matches(&convert::view(call.resource, object))) {
            self.restrict(call, env, Some(object), None)?;
            self.delete_object(call.resource, object, &options, env)?;
            items.push(list_item(call.resource, object));
        }
        let body = json!({
            "kind": format!("{}List", call.resource.kind),
            "apiVersion": call.resource.api_version(),
            "metadata": {"resourceVersion": self.version().to_string()},
            "items": items,
        });
        Ok(Answer::Object(200, body))
    }

    /// Deletes an object as a controller does, without preconditions.
    pub(super) fn delete_quietly(&mut self, resource: &'static Resource, object: &Arc<Value>, env: &Env) {
        // Without preconditions, a deletion is not refused.
        let _ = self.delete_object(resource, object, &DeleteOptions::default(), env);
    }

    /// Deletes an object after the preconditions of an eviction have been checked.
    pub(super) fn delete_evicted(&mut self, call: &Call, live: &Arc<Value>, env: &Env) -> Result<(), Refusal> {
        let inner = Call { body: call.body["deleteOptions"].clone(), ..call.clone() };
        let options = DeleteOptions::read(&inner)?;
        self.delete_object(call.resource, live, &options, env).map(drop)
    }

    fn delete_object(
        &mut self,
        resource: &'static Resource,
        live: &Arc<Value>,
        options: &DeleteOptions,
        env: &Env,
    ) -> Result<Deleted, Refusal> {
        let text = |field: &str| live["metadata"][field].as_str().unwrap_or_default();
        let (name, namespace) = (text("name"), text("namespace"));
        for (field, title, precondition) in
            [("uid", "UID", &options.uid), ("resourceVersion", "ResourceVersion", &options.resource_version)]
        {
            let Some(precondition) = precondition.as_ref().filter(|precondition| *precondition != text(field)) else {
                continue;
            };
            let happened = if field == "uid" { "deleted and then recreated" } else { "modified" };
            let why = format!(
                "the {title} in the precondition ({precondition}) does not match the {title} in record ({}). The object \
                 might have been {happened}",
                text(field)
            );
            return Err(Refusal::deletion_conflict(resource, name, &why));
        }
        let key = Key::new(resource, namespace, name);
        let stored = stored_resource(resource);
        let has_finalizers = has_finalizers(live) || resource.kind == "Namespace" && !self.is_empty_namespace(name);
        if options.is_dry_run {
            return Ok(Deleted::Gone(live.clone()));
        }
        if options.orphans {
            self.orphan_dependents(text("uid"), env.now);
        }
        if resource.kind != "Pod" {
            if !has_finalizers {
                return Ok(Deleted::Gone(self.remove(&key, env.now).unwrap_or_else(|| live.clone())));
            }
            if !live["metadata"]["deletionTimestamp"].is_null() {
                return Ok(Deleted::Pending(live.clone()));
            }
            let mut object = marked(live, env.now, 0);
            if resource.kind == "Namespace" {
                object["status"]["phase"] = json!("Terminating");
            }
            return Ok(Deleted::Pending(self.put(stored, object, env.now)));
        }
        let Some((object, grace)) = marked_pod(live, options.grace, env.now) else {
            return Ok(Deleted::Pending(live.clone()));
        };
        let pending = self.put(stored, object, env.now);
        if grace > 0 || has_finalizers {
            return Ok(Deleted::Pending(pending));
        }
        Ok(Deleted::Gone(self.remove(&key, env.now).unwrap_or(pending)))
    }

    /// Removes an object that waited for its last finalizer.
    pub(super) fn finish_deletion(&mut self, key: &Key, object: &Value, now: jiff::Timestamp) {
        let metadata = &object["metadata"];
        let is_due = !metadata["deletionTimestamp"].is_null()
            && metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0) == 0
            && !has_finalizers(object);
        if is_due && key.storage != "namespaces" {
            self.remove(key, now);
        }
    }
}

fn has_finalizers(object: &Value) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty())
}

/// Deletions of these kinds answer with the object, others with a `Status`.
fn returns_the_object(resource: &Resource) -> bool {
    matches!(
        resource.kind,
        "Pod"
            | "Service"
            | "ServiceAccount"
            | "ResourceClaim"
            | "ResourceClaimTemplate"
            | "ResourceSlice"
            | "DeviceClass"
            | "DeviceTaintRule"
    )
}

fn success(resource: &Resource, object: &Value) -> Value {
    let mut details = json!({
        "name": object["metadata"]["name"],
        "kind": resource.plural,
        "uid": object["metadata"]["uid"],
    });
    if !resource.group.is_empty() {
        details["group"] = json!(resource.group);
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

fn marked(live: &Value, now: jiff::Timestamp, grace: i64) -> Value {
    let mut object = live.clone();
    let deadline = now.checked_add(jiff::SignedDuration::from_secs(grace)).unwrap_or(now);
    object["metadata"]["deletionTimestamp"] = json!(time_text(deadline));
    object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
    if let Some(generation) = object["metadata"]["generation"].as_i64() {
        object["metadata"]["generation"] = json!(generation + 1);
    }
    object
}

/// The pod with its deletion mark, and the grace period; none if the pod has a mark that the request does not shorten.
fn marked_pod(live: &Value, requested: Option<i64>, now: jiff::Timestamp) -> Option<(Value, i64)> {
    let positive = |seconds: i64| if seconds < 0 { 1 } else { seconds };
    let metadata = &live["metadata"];
    if let Some(deadline) = metadata["deletionTimestamp"].as_str() {
        let earlier = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
        let grace = positive(requested.unwrap_or(earlier));
        if grace >= earlier {
            return None;
        }
        let deadline: jiff::Timestamp = deadline.parse().unwrap_or(now);
        let start = deadline.checked_sub(jiff::SignedDuration::from_secs(earlier)).unwrap_or(now);
        let end = start.checked_add(jiff::SignedDuration::from_secs(grace)).unwrap_or(start);
        let mut object = live.clone();
        object["metadata"]["deletionTimestamp"] = json!(time_text(end));
        object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        return Some((object, grace));
    }
    let is_scheduled = live["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
    let is_finished = matches!(live["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
    let own = live["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(30);
    let grace = if is_scheduled && !is_finished { positive(requested.unwrap_or(own)) } else { 0 };
    Some((marked(live, now, grace), grace))
}
