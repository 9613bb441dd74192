//! The refusals of an API server, with the texts of a real one.

use serde_json::{Value, json};

use crate::raw;
use crate::schema::Resource;

/// A request that the server refused. The body is a `Status` object.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Refusal {
    /// The HTTP status code.
    pub code: u16,
    /// The machine-readable reason.
    pub reason: &'static str,
    /// The text for people.
    pub message: String,
    /// The object and the fields that the refusal concerns.
    pub details: Option<Value>,
    /// A token with which the client can continue an expired list.
    pub continue_token: Option<String>,
}

/// The fault of one field.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldFault {
    reason: &'static str,
    message: String,
    field: String,
}

impl FieldFault {
    /// A field is missing or empty.
    #[must_use]
    pub fn required(field: &str, detail: &str) -> Self {
        let message = if detail.is_empty() { "Required value".to_owned() } else { format!("Required value: {detail}") };
        Self { reason: "FieldValueRequired", message, field: field.to_owned() }
    }

    /// A field has a value that the rules forbid.
    #[must_use]
    pub fn invalid(field: &str, value: &Value, detail: &str) -> Self {
        let message = format!("Invalid value: {}: {detail}", raw::text(value));
        Self { reason: "FieldValueInvalid", message, field: field.to_owned() }
    }

    pub(crate) fn duplicate(field: &str, value: &Value) -> Self {
        Self { reason: "FieldValueDuplicate", message: format!("Duplicate value: {value}"), field: field.to_owned() }
    }

    pub(crate) fn not_supported(field: &str, value: &Value, supported: &[&str]) -> Self {
        let mut supported: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
        supported.sort_unstable();
        let message = format!("Unsupported value: {value}: supported values: {}", supported.join(", "));
        Self { reason: "FieldValueNotSupported", message, field: field.to_owned() }
    }

    pub(crate) fn too_many(field: &str, found: usize, longest: usize) -> Self {
        let message = format!("Too many: {found}: must have at most {longest} items");
        Self { reason: "FieldValueTooMany", message, field: field.to_owned() }
    }

    /// A field must not be set or changed.
    #[must_use]
    pub fn forbidden(field: &str, detail: &str) -> Self {
        Self { reason: "FieldValueForbidden", message: format!("Forbidden: {detail}"), field: field.to_owned() }
    }
}

fn details(name: &str, resource: &Resource, kind: &str) -> Value {
    let mut details = json!({"name": name, "kind": kind});
    if !resource.group.is_empty() {
        details["group"] = json!(resource.group);
    }
    details
}

impl Refusal {
    /// A refusal with a code and a text of its own, as injected faults have.
    #[must_use]
    pub fn plain(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None, continue_token: None }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::plain(400, "BadRequest", message)
    }

    pub(crate) fn unauthorized() -> Self {
        Self::plain(401, "Unauthorized", "Unauthorized")
    }

    pub(crate) fn forbidden(resource: &Resource, name: &str, why: &str) -> Self {
        let message = if name.is_empty() {
            format!("{} is forbidden: {why}", resource.qualified())
        } else {
            format!("{} {name:?} is forbidden: {why}", resource.qualified())
        };
        let mut refusal = Self::plain(403, "Forbidden", message);
        let mut about = details(name, resource, resource.plural);
        if name.is_empty() {
            about.as_object_mut().expect("details are an object").remove("name");
        }
        refusal.details = Some(about);
        refusal
    }

    pub(crate) fn not_found(resource: &Resource, name: &str) -> Self {
        let mut refusal = Self::plain(404, "NotFound", format!("{} {name:?} not found", resource.qualified()));
        refusal.details = Some(details(name, resource, resource.plural));
        refusal
    }

    pub(crate) fn no_such_path() -> Self {
        let message = "the server could not find the requested resource";
        Self { details: Some(json!({})), ..Self::plain(404, "NotFound", message) }
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self { details: Some(json!({})), ..Self::plain(405, "MethodNotAllowed", message) }
    }

    pub(crate) fn already_exists(resource: &Resource, name: &str) -> Self {
        let mut refusal =
            Self::plain(409, "AlreadyExists", format!("{} {name:?} already exists", resource.qualified()));
        refusal.details = Some(details(name, resource, resource.plural));
        refusal
    }

    pub(crate) fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", resource.qualified());
        Self { details: Some(details(name, resource, resource.plural)), ..Self::plain(409, "Conflict", message) }
    }

    /// A conflict on a path below an object, such as `pods/binding`.
    pub(crate) fn conflict_on(resource: &Resource, path: &str, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {path} {name:?}: {why}");
        Self { details: Some(details(name, resource, path)), ..Self::plain(409, "Conflict", message) }
    }

    /// A precondition of a deletion failed. The text names the kind, not the resource.
    pub(crate) fn deletion_conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", resource.qualified_kind());
        Self { details: Some(details(name, resource, resource.kind)), ..Self::plain(409, "Conflict", message) }
    }

    pub(crate) fn modified(resource: &Resource, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource, name, why)
    }

    pub(crate) fn invalid(resource: &Resource, name: &str, faults: &[FieldFault]) -> Self {
        Self::invalid_kind(resource.group, resource.kind, name, faults)
    }

    pub(crate) fn invalid_kind(group: &str, kind: &str, name: &str, faults: &[FieldFault]) -> Self {
        let mut texts: Vec<String> = Vec::new();
        for fault in faults {
            let text = format!("{}: {}", fault.field, fault.message);
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        let text = if texts.len() == 1 { texts.remove(0) } else { format!("[{}]", texts.join(", ")) };
        let dot = if group.is_empty() { "" } else { "." };
        let message = format!("{kind}{dot}{group} {name:?} is invalid: {text}");
        let mut about = json!({"kind": kind});
        for (field, text) in [("name", name), ("group", group)] {
            if !text.is_empty() {
                about[field] = json!(text);
            }
        }
        about["causes"] = faults
            .iter()
            .map(|fault| json!({"reason": fault.reason, "message": fault.message, "field": fault.field}))
            .collect();
        Self { details: Some(about), ..Self::plain(422, "Invalid", message) }
    }

    pub(crate) fn unprocessable_patch() -> Self {
        let message = "the server rejected our request due to an error in our request";
        Self { details: Some(json!({})), ..Self::plain(422, "Invalid", message) }
    }

    /// The body of a patch has no media type of a patch.
    pub(crate) fn unsupported_patch() -> Self {
        Self { details: Some(json!({})), ..Self::plain(415, "UnsupportedMediaType", "415: Unsupported Media Type") }
    }

    pub(crate) fn unsupported_media_type(accepted: &str) -> Self {
        let message =
            format!("the body of the request was in an unknown format - accepted media types include: {accepted}");
        Self::plain(415, "UnsupportedMediaType", message)
    }

    pub(crate) fn too_large_version(requested: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {requested}, current: {current}");
        let about = json!({
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
            "retryAfterSeconds": 1,
        });
        Self { details: Some(about), ..Self::plain(504, "Timeout", message) }
    }

    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::plain(410, "Expired", message)
    }

    pub(crate) fn too_many_requests(message: impl Into<String>, retry_after: u64) -> Self {
        let about = json!({"retryAfterSeconds": retry_after});
        Self { details: Some(about), ..Self::plain(429, "TooManyRequests", message) }
    }

    /// Seconds for the header `Retry-After`, if the refusal carries them.
    #[must_use]
    pub fn retry_after(&self) -> Option<u64> {
        self.details.as_ref()?.get("retryAfterSeconds")?.as_u64()
    }

    /// The `Status` object.
    #[must_use]
    pub fn body(&self) -> Value {
        let mut body = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        });
        if let Some(token) = &self.continue_token {
            body["metadata"]["continue"] = json!(token);
        }
        if let Some(details) = &self.details {
            body["details"] = details.clone();
        }
        body
    }
}
