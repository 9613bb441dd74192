//! Reading: one object, lists and their pages.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use serde_json::{Value, json};

use super::{Answer, Key, Store};
use crate::call::Call;
use crate::convert;
use crate::refusal::Refusal;
use crate::schema::Resource;
use crate::selector::Selector;

/// The start of the next page of a list.
struct Continue {
    /// The version of the first page; none for a list that goes on at the newest version.
    version: Option<u64>,
    start: String,
}

impl Continue {
    fn token(&self) -> String {
        let text = json!({
            "v": "meta.k8s.io/v1",
            "rv": self.version.map_or(-1, u64::cast_signed),
            "start": self.start,
        });
        STANDARD_NO_PAD.encode(text.to_string())
    }

    fn parse(token: &str) -> Result<Self, Refusal> {
        let bad =
            |why: String| Refusal::bad_request(format!("invalid continue token: continue key is not valid: {why}"));
        let bytes = STANDARD_NO_PAD.decode(token).or_else(|_| {
            base64::engine::GeneralPurpose::new(
                &base64::alphabet::STANDARD,
                base64::engine::GeneralPurposeConfig::new()
                    .with_decode_padding_mode(base64::engine::DecodePaddingMode::Indifferent)
                    .with_decode_allow_trailing_bits(true),
            )
            .decode(token)
        });
        let bytes = bytes.map_err(|error| bad(error.to_string()))?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| {
            let first = bytes.first().copied().map_or(' ', char::from);
            if matches!(first, '{' | '[') {
                bad(error.to_string())
            } else {
                bad(format!("invalid character '{first}' looking for beginning of value"))
            }
        })?;
        let start = value["start"].as_str().ok_or_else(|| bad("start is missing".to_owned()))?;
        let version = value["rv"].as_i64().and_then(|version| u64::try_from(version).ok());
        Ok(Self { version, start: start.trim_end_matches('\0').to_owned() })
    }
}

impl Store {
    pub(super) fn get(&self, call: &Call) -> Result<Answer, Refusal> {
        let found = self.live(call)?;
        Ok(Answer::Object(200, convert::outward(call.resource, &found)))
    }

    /// The object that a request names.
    pub(super) fn live(&self, call: &Call) -> Result<Arc<Value>, Refusal> {
        self.object(call.resource, call.namespace(), call.name())
            .ok_or_else(|| Refusal::not_found(call.resource, call.name()))
    }

    pub(super) fn list(&self, call: &Call) -> Result<Answer, Refusal> {
        let query = &call.query;
        let selector = Selector::parse(call.resource, query.get("fieldSelector"), query.get("labelSelector"))?;
        let token = match query.get("continue") {
            "" => None,
            token => Some(Continue::parse(token)?),
        };
        let limit = query.number("limit")?.unwrap_or(0);
        let version = match &token {
            Some(token) => token.version.unwrap_or(self.version()),
            None => self.list_version(call)?,
        };
        if version < self.oldest() {
            return Err(self.expired_list(token.as_ref()));
        }
        let state = self.state_at(call.resource, call.namespace.as_deref(), version);
        let after = token.as_ref().map(|token| token.start.as_str());
        let all: Vec<(Key, Arc<Value>)> = state
            .into_iter()
            .filter(|(key, object)| {
                after.is_none_or(|after| key.path().as_str() > after)
                    && selector.matches(&convert::view(call.resource, object))
            })
            .collect();
        let count = usize::try_from(limit).ok().filter(|limit| *limit > 0).unwrap_or(all.len()).min(all.len());
        let items: Vec<Value> = all[..count].iter().map(|(_, object)| list_item(call.resource, object)).collect();
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if count < all.len() {
            let next = Continue { version: Some(version), start: format!("{}\0", all[count - 1].0.path()) };
            metadata["continue"] = json!(next.token());
            if selector.is_empty() {
                metadata["remainingItemCount"] = json!(all.len() - count);
            }
        }
        Ok(Answer::Object(
            200,
            json!({
                "kind": format!("{}List", call.resource.kind),
                "apiVersion": call.resource.api_version(),
                "metadata": metadata,
                "items": items,
            }),
        ))
    }

    /// The version at which a list is read.
    fn list_version(&self, call: &Call) -> Result<u64, Refusal> {
        let visible = self.visible(call.resource);
        let requested = call.query.number("resourceVersion")?;
        match (requested, call.query.get("resourceVersionMatch")) {
            (None, _) => Ok(self.version()),
            (Some(version), _) if version > self.version() => Err(Refusal::too_large_version(version, self.version())),
            (Some(version), "Exact") => Ok(version),
            (Some(version), _) => Ok(visible.max(version)),
        }
    }

    fn expired_list(&self, token: Option<&Continue>) -> Refusal {
        let Some(token) = token else {
            return Refusal::expired("The resourceVersion for the provided list is too old.");
        };
        let mut refusal = Refusal::expired(
            "The provided continue parameter is too old to display a consistent list result. You can start a new list \
             without the continue parameter, or use the continue token in this response to retrieve the remainder of the \
             results. Continuing with the provided token results in an inconsistent list - objects that were created, \
             modified, or deleted between the time the first chunk was returned and now may show up in the list.",
        );
        refusal.continue_token = Some(Continue { version: None, start: token.start.clone() }.token());
        refusal
    }
}

/// An object without its kind, which items of a list do not carry.
pub(super) fn list_item(resource: &Resource, object: &Value) -> Value {
    let mut item = convert::outward(resource, object);
    if let Some(fields) = item.as_object_mut() {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    item
}
