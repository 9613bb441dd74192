//! Writing: create, update and patch.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Answer, Env, Key, Store};
use crate::access::{self, MIRROR};
use crate::call::{Call, Verb};
use crate::convert;
use crate::defaults;
use crate::managed::{self, Writer};
use crate::patch;
use crate::raw::{self, Encoding};
use crate::refusal::{FieldFault, Refusal};
use crate::schema::{self, Resource};
use crate::validate;

/// The longest base of a generated name, so that base and suffix fit into a label.
const LONGEST_BASE: usize = 58;

/// Kinds whose status is kept when they are created.
const STATUS_AT_CREATION: &[&str] = &["Node", "Event"];

impl Store {
    pub(super) fn create(&mut self, call: &Call, env: &Env) -> Result<Answer, Refusal> {
        let object = body_object(call)?;
        let stored = self.create_object(call, object, env, env.manager(call), "Update")?;
        Ok(Answer::Object(201, convert::outward(call.resource, &stored)))
    }

    fn create_object(
        &mut self,
        call: &Call,
        mut object: Value,
        env: &Env,
        manager: &str,
        operation: &str,
    ) -> Result<Arc<Value>, Refusal> {
        let resource = call.resource;
        self.check_namespace(call, &mut object)?;
        let metadata = object["metadata"].as_object_mut().expect("body_object made the metadata an object");
        if metadata.get("resourceVersion").is_some_and(|version| version != "") {
            return Err(Refusal::bad_request("resourceVersion should not be set on objects to be created"));
        }
        for field in ["resourceVersion", "uid", "creationTimestamp", "generation", "deletionTimestamp", "managedFields"]
            .into_iter()
            .chain(["deletionGracePeriodSeconds", "selfLink"])
        {
            metadata.remove(field);
        }
        let base = metadata.get("generateName").and_then(Value::as_str).unwrap_or_default();
        let base: String = base.chars().take(LONGEST_BASE).collect();
        let is_generated =
            metadata.get("name").and_then(Value::as_str).unwrap_or_default().is_empty() && !base.is_empty();
        if is_generated {
            metadata.insert("name".to_owned(), json!(format!("{base}{}", self.suffix())));
        }
        if resource.has_status() && !STATUS_AT_CREATION.contains(&resource.kind) {
            object.as_object_mut().expect("a body is an object").remove("status");
        }
        let now = env.now_text();
        let writer = Writer { manager, subresource: "", now: &now };
        if operation == "Apply" {
            let zero = stored_resource(resource).zero_object();
            object = managed::apply(stored_resource(resource), &zero, &object, &writer, true)?;
        }
        defaults::fill(stored_resource(resource), &mut object, &now);
        if operation == "Update" {
            managed::record_update(stored_resource(resource), None, &mut object, &writer);
        }
        if resource.kind == "Pod" && object["metadata"]["annotations"].get(MIRROR).is_some() {
            access::admit_mirror(call, &object)?;
        }
        self.restrict(call, env, None, Some(&object))?;
        self.admit_new(resource, &mut object, env)?;
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let faults = validate::new_object(stored_resource(resource), &object);
        if !faults.is_empty() {
            return Err(Refusal::invalid(resource, &name, &faults));
        }
        if self.object(resource, call.namespace(), &name).is_some() {
            if is_generated {
                return self.create_object(call, call.body.clone(), env, manager, operation);
            }
            return Err(Refusal::already_exists(resource, &name));
        }
        let own = self.settings.uid_annotation.and_then(|key| object["metadata"]["annotations"][key].as_str());
        let uid = own.map_or_else(|| self.uid(), str::to_owned);
        object["metadata"]["uid"] = json!(uid);
        object["metadata"]["creationTimestamp"] = json!(now);
        if resource.counts_generation {
            object["metadata"]["generation"] = json!(1);
        }
        if call.query.get("dryRun") == "All" {
            return Ok(Arc::new(object));
        }
        let stored = self.put(stored_resource(resource), object, env.now);
        if resource.kind == "Namespace" {
            self.fill_namespace(&name, env.now);
        }
        Ok(stored)
    }

    fn check_namespace(&self, call: &Call, object: &mut Value) -> Result<(), Refusal> {
        if !call.resource.namespaced {
            return Ok(());
        }
        let namespace = call.namespace();
        if object["metadata"]["namespace"].as_str().is_some_and(|found| !found.is_empty() && found != namespace) {
            return Err(Refusal::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        object["metadata"]["namespace"] = json!(namespace);
        let namespaces = schema::stored("namespaces").expect("the table has namespaces");
        let found = self.object(namespaces, "", namespace).ok_or_else(|| Refusal::not_found(namespaces, namespace))?;
        if !found["metadata"]["deletionTimestamp"].is_null() {
            let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            return Err(Refusal::forbidden(call.resource, name, &why));
        }
        Ok(())
    }

    /// PUT and PATCH, of an object or of a path below it.
    pub(super) fn update(&mut self, call: &Call, env: &Env) -> Result<Answer, Refusal> {
        let resource = call.resource;
        let is_apply = call.content_type == "application/apply-patch+yaml";
        if call.verb == Verb::Patch && is_apply {
            if call.query.get("fieldManager").is_empty() {
                let fault = FieldFault::required("fieldManager", "is required for apply patch");
                return Err(Refusal::invalid_kind("meta.k8s.io", "PatchOptions", "", &[fault]));
            }
            if self.live(call).is_err() && call.subresource().is_empty() {
                return self.create_by_apply(call, env);
            }
        }
        let live = self.live(call)?;
        let now = env.now_text();
        let writer = Writer { manager: env.manager(call), subresource: call.subresource(), now: &now };
        let shown = convert::view(resource, &live);
        let requested = match (call.verb, call.content_type.as_str()) {
            (Verb::Update, _) => body_object(call)?,
            (_, "application/json-patch+json") => patch::json_patch(&shown, &call.body)?,
            (_, "application/merge-patch+json") => patch::merge_patch(&shown, &call.body),
            (_, "application/strategic-merge-patch+json") => patch::strategic_merge(resource.kind, &shown, &call.body)?,
            (_, "application/apply-patch+yaml") => {
                let body = body_object(call)?;
                let mut fields = body.clone();
                reset(resource, call.subresource(), None, &mut fields);
                let mut merged = managed::apply(resource, &live, &fields, &writer, call.query.is_true("force"))?;
                for field in ["uid", "resourceVersion"] {
                    if let Some(value) = body["metadata"].get(field) {
                        merged["metadata"][field] = value.clone();
                    }
                }
                merged
            }
            _ => return Err(Refusal::unsupported_patch()),
        };
        let mut object = if is_apply { requested } else { convert::inward(resource, requested) };
        let encoding = match call.content_type.as_str() {
            _ if call.verb == Verb::Update => None,
            "application/json-patch+json" | "application/merge-patch+json" => Some(Encoding::Compact),
            _ => Some(Encoding::Sorted),
        };
        if let Some(encoding) = encoding {
            raw::recode(resource.kind, &mut object, encoding);
        }
        check_identity(call, &live, &object)?;
        let owners = object["metadata"]["managedFields"].take();
        carry_over(&live, &mut object);
        reset(resource, call.subresource(), Some(&live), &mut object);
        defaults::fill(stored_resource(resource), &mut object, &now);
        self.restrict(call, env, Some(&live), Some(&object))?;
        self.admit_change(resource, call, &live, &mut object, env)?;
        let faults = validate::changed_object(stored_resource(resource), call.subresource(), &live, &object);
        if !faults.is_empty() {
            return Err(Refusal::invalid(resource, call.name(), &faults));
        }
        for field in ["uid", "creationTimestamp"] {
            object["metadata"][field] = live["metadata"][field].clone();
        }
        if is_apply && !owners.is_null() {
            object["metadata"]["managedFields"] = owners;
        }
        if object == *live {
            return Ok(Answer::Object(200, shown.into_owned()));
        }
        if !is_apply {
            managed::record_update(stored_resource(resource), Some(&live), &mut object, &writer);
        }
        if resource.counts_generation && call.subresource() != "status" && object["spec"] != live["spec"] {
            let generation = live["metadata"]["generation"].as_i64().unwrap_or(0);
            object["metadata"]["generation"] = json!(generation + 1);
        }
        if call.query.get("dryRun") == "All" {
            return Ok(Answer::Object(200, convert::outward(resource, &object)));
        }
        let stored = self.put(stored_resource(resource), object, env.now);
        self.finish_deletion(&Key::new(resource, call.namespace(), call.name()), &stored, env.now);
        Ok(Answer::Object(200, convert::outward(resource, &stored)))
    }

    fn create_by_apply(&mut self, call: &Call, env: &Env) -> Result<Answer, Refusal> {
        let mut object = body_object(call)?;
        if let Some(uid) = object["metadata"]["uid"].as_str() {
            let why =
                format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
            return Err(Refusal::conflict(call.resource, call.name(), &why));
        }
        object["metadata"]["name"] = json!(call.name());
        raw::recode(call.resource.kind, &mut object, Encoding::Sorted);
        let stored = self.create_object(call, object, env, env.manager(call), "Apply")?;
        Ok(Answer::Object(201, convert::outward(call.resource, &stored)))
    }
}

impl Env {
    /// The manager of the fields that a request writes.
    fn manager<'a>(&'a self, call: &'a Call) -> &'a str {
        match call.query.get("fieldManager") {
            "" => &self.agent,
            manager => manager,
        }
    }
}

/// The resource in whose form objects are stored.
pub(super) fn stored_resource(resource: &'static Resource) -> &'static Resource {
    schema::stored(resource.storage).expect("every resource names a stored one")
}

/// The body of a write, in the stored form, with the kind of the resource, with metadata, and without the fields that its kind does not
/// have.
fn body_object(call: &Call) -> Result<Value, Refusal> {
    let (resource, body) = (call.resource, &call.body);
    let text = |field: &str| body[field].as_str().unwrap_or_default();
    if !body.is_object() {
        return Err(Refusal::bad_request(
            "the object provided is unrecognized (must be of type Object): it has no fields",
        ));
    }
    let api_version = resource.api_version();
    if !text("apiVersion").is_empty() && text("apiVersion") != api_version {
        let message = format!(
            "the API version in the data ({}) does not match the expected API version ({api_version})",
            text("apiVersion")
        );
        return Err(Refusal::bad_request(message));
    }
    if !text("kind").is_empty() && text("kind") != resource.kind {
        return Err(Refusal::bad_request(format!(
            "{} in version {:?} cannot be handled as a {}: the kind differs from the resource of the path",
            text("kind"),
            resource.version,
            resource.kind
        )));
    }
    let unknown = validate::unknown_fields(call);
    if !unknown.is_empty() && call.query.get("fieldValidation") == "Strict" {
        let (kind, version) = (resource.kind, resource.version);
        let faults = unknown.iter().map(|field| format!("unknown field {field:?}")).collect::<Vec<_>>().join(", ");
        return Err(Refusal::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {kind}: strict decoding error: {faults}"
        )));
    }
    let mut object = convert::inward(resource, body.clone());
    if let Some(fields) = object.as_object_mut() {
        fields.retain(|name, _| !unknown.contains(name));
    }
    object["kind"] = json!(resource.kind);
    object["apiVersion"] = json!(stored_resource(resource).api_version());
    if !object["metadata"].is_object() {
        object["metadata"] = json!({});
    }
    Ok(object)
}

/// Name, namespace and resource version of a write must be those of the live object, and so must the UID of a replacement. The UID of a
/// patch is validated with the other fields.
fn check_identity(call: &Call, live: &Value, object: &Value) -> Result<(), Refusal> {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    if !text("name").is_empty() && text("name") != call.name() {
        return Err(Refusal::bad_request(format!(
            "the name of the object ({}) does not match the name on the URL ({})",
            text("name"),
            call.name()
        )));
    }
    if !text("namespace").is_empty() && text("namespace") != call.namespace() {
        return Err(Refusal::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    let uid = live["metadata"]["uid"].as_str().unwrap_or_default();
    if !text("uid").is_empty() && text("uid") != uid && call.verb == Verb::Update {
        let why = format!("Precondition failed: UID in precondition: {}, UID in object meta: {uid}", text("uid"));
        return Err(Refusal::conflict(call.resource, call.name(), &why));
    }
    let version = text("resourceVersion");
    if !version.is_empty() && live["metadata"]["resourceVersion"] != version {
        return Err(Refusal::modified(call.resource, call.name()));
    }
    Ok(())
}

/// Metadata that only the server writes.
fn carry_over(live: &Value, object: &mut Value) {
    let fields =
        ["name", "namespace", "resourceVersion", "generation", "deletionTimestamp", "deletionGracePeriodSeconds"];
    for field in fields.into_iter().chain(["managedFields", "selfLink"]) {
        match live["metadata"].get(field) {
            Some(value) => object["metadata"][field] = value.clone(),
            None => {
                object["metadata"].as_object_mut().expect("metadata is an object").remove(field);
            }
        }
    }
    for field in ["uid", "creationTimestamp"] {
        if object["metadata"][field].is_null() {
            object["metadata"][field] = live["metadata"][field].clone();
        }
    }
    object["kind"] = live["kind"].clone();
    object["apiVersion"] = live["apiVersion"].clone();
}

/// A write to the object leaves the status alone, and a write to the status leaves the rest alone. Without a live object,
/// the fields that the write may not touch are removed.
fn reset(resource: &Resource, subresource: &str, live: Option<&Value>, object: &mut Value) {
    let mut keep = |field: &str| {
        let map = object.as_object_mut().expect("objects are maps");
        match live.and_then(|live| live.get(field)) {
            Some(value) => map.insert(field.to_owned(), value.clone()),
            None => map.remove(field),
        };
    };
    match subresource {
        "status" => {
            keep("spec");
            let keeps_metadata = !matches!(resource.kind, "Pod" | "Node" | "Namespace" | "Service");
            let fields: &[&str] = if keeps_metadata {
                &["labels", "annotations", "finalizers", "ownerReferences"]
            } else {
                &["ownerReferences"]
            };
            if let Some(live) = live {
                for field in fields {
                    match live["metadata"].get(*field) {
                        Some(value) => object["metadata"][*field] = value.clone(),
                        None => {
                            object["metadata"].as_object_mut().expect("metadata is an object").remove(*field);
                        }
                    }
                }
            }
        }
        "approval" => {}
        "resize" | "ephemeralcontainers" | "finalize" => keep("status"),
        _ if resource.has_status() => keep("status"),
        _ => {}
    }
}
