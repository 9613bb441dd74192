//! Field and label selectors.

use serde_json::Value;

use crate::refusal::Refusal;
use crate::schema::Resource;

/// The fields and labels that an object must have to be in the answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selector {
    fields: Vec<(String, bool, String)>,
    labels: Vec<LabelRule>,
}

#[derive(Clone, Debug, PartialEq)]
enum LabelRule {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Missing(String),
}

impl Selector {
    /// Reads the two texts of a request.
    ///
    /// # Errors
    ///
    /// If a text is not a selector, or names a field that the resource cannot select by.
    pub(crate) fn parse(resource: &Resource, fields: &str, labels: &str) -> Result<Self, Refusal> {
        let fields = fields.split(',').filter(|term| !term.is_empty()).map(|term| field_rule(resource, term));
        Ok(Self { fields: fields.collect::<Result<_, _>>()?, labels: label_rules(labels)? })
    }

    /// Whether every object is selected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.labels.is_empty()
    }

    /// The value that the selector requires of a field.
    #[must_use]
    pub fn required(&self, field: &str) -> Option<&str> {
        self.fields.iter().find(|(name, equal, _)| name == field && *equal).map(|(_, _, value)| value.as_str())
    }

    /// Whether an object is selected.
    #[must_use]
    pub fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        let label = |name: &str| labels.get(name).and_then(Value::as_str);
        self.fields.iter().all(|(field, equal, value)| (field_text(object, field) == *value) == *equal)
            && self.labels.iter().all(|rule| match rule {
                LabelRule::In(name, values) => label(name).is_some_and(|found| values.iter().any(|v| v == found)),
                LabelRule::NotIn(name, values) => !label(name).is_some_and(|found| values.iter().any(|v| v == found)),
                LabelRule::Exists(name) => label(name).is_some(),
                LabelRule::Missing(name) => label(name).is_none(),
            })
    }
}

fn field_rule(resource: &Resource, term: &str) -> Result<(String, bool, String), Refusal> {
    let (field, equal, value) = term
        .split_once("!=")
        .map(|(field, value)| (field, false, value))
        .or_else(|| term.split_once("==").map(|(field, value)| (field, true, value)))
        .or_else(|| term.split_once('=').map(|(field, value)| (field, true, value)))
        .ok_or_else(|| Refusal::bad_request(format!("invalid selector: '{term}'; can't understand '{term}'")))?;
    let is_known = field == "metadata.name"
        || (field == "metadata.namespace" && resource.namespaced)
        || resource.selectable.contains(&field);
    if !is_known {
        return Err(Refusal::bad_request(format!("field label not supported: {field}")));
    }
    Ok((field.to_owned(), equal, value.to_owned()))
}

/// The text of a field; empty if it is missing. A missing boolean is `false`.
fn field_text(object: &Value, field: &str) -> String {
    if field == "source" {
        return field_text(object, "source.component");
    }
    let mut value = object;
    for part in field.split('.') {
        value = value.get(part).unwrap_or(&Value::Null);
    }
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(flag) => flag.to_string(),
        Value::Null if matches!(field, "spec.unschedulable" | "spec.hostNetwork") => "false".to_owned(),
        _ => String::new(),
    }
}

fn label_rules(text: &str) -> Result<Vec<LabelRule>, Refusal> {
    let bad = || Refusal::bad_request(format!("unable to parse requirement: {text:?} is not a label selector"));
    let mut rules = Vec::new();
    let mut depth = 0;
    let terms = text.split(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    });
    for term in terms.map(str::trim).filter(|term| !term.is_empty()) {
        let set = |rest: &str| -> Option<Vec<String>> {
            let inner = rest.trim().strip_prefix('(')?.strip_suffix(')')?;
            Some(inner.split(',').map(|value| value.trim().to_owned()).collect())
        };
        let rule = if let Some((name, rest)) = term.split_once(" notin ") {
            LabelRule::NotIn(name.trim().to_owned(), set(rest).ok_or_else(bad)?)
        } else if let Some((name, rest)) = term.split_once(" in ") {
            LabelRule::In(name.trim().to_owned(), set(rest).ok_or_else(bad)?)
        } else if let Some((name, value)) = term.split_once("!=") {
            LabelRule::NotIn(name.trim().to_owned(), vec![value.trim().to_owned()])
        } else if let Some((name, value)) = term.split_once('=') {
            LabelRule::In(name.trim().to_owned(), vec![value.trim_start_matches('=').trim().to_owned()])
        } else if let Some(name) = term.strip_prefix('!') {
            LabelRule::Missing(name.trim().to_owned())
        } else if term.contains([' ', '(', ')']) {
            return Err(bad());
        } else {
            LabelRule::Exists(term.to_owned())
        };
        rules.push(rule);
    }
    Ok(rules)
}
