//! The text of a `KubeletConfiguration` becomes a layer of fields. Pure.
//!
//! An unknown field, a field that is set twice and a value of another type are faults. A field without a value (`null`) is not set.

use std::sync::Arc;

use podwright_sources::manifest::{LocatedObject, read_object, unknown_field};
use serde_json::{Map, Value};

use super::{API_VERSION, ConfigFault, Given, KIND, Layer, Place, fields};

/// Parses the text of a file.
///
/// # Errors
/// All faults of its fields, or the first fault of its syntax.
pub(super) fn parse(path: &Arc<str>, text: &[u8]) -> Result<Layer, Vec<ConfigFault>> {
    let object = match read_object(text) {
        Ok(object) => object,
        Err(fault) => {
            let place = Place::File { path: path.clone(), at: fault.at };
            return Err(vec![ConfigFault { place, field: KIND.to_owned(), message: fault.message }]);
        }
    };
    let mut reader = Reader { path, object: &object, layer: Layer::new(), faults: Vec::new() };
    match serde_json::to_value(&object) {
        Ok(Value::Object(entries)) => reader.root(&entries),
        Ok(_) => reader.fault("", "is not an object: start with apiVersion and kind".to_owned()),
        Err(error) => reader.fault("", error.to_string()),
    }
    if reader.faults.is_empty() { Ok(reader.layer) } else { Err(reader.faults) }
}

struct Reader<'a> {
    path: &'a Arc<str>,
    object: &'a LocatedObject,
    layer: Layer,
    faults: Vec<ConfigFault>,
}

impl Reader<'_> {
    fn place(&self, field: &str) -> Place {
        Place::File { path: self.path.clone(), at: self.object.locate(field) }
    }

    fn fault(&mut self, field: &str, message: String) {
        let named = if field.is_empty() { KIND } else { field };
        self.faults.push(ConfigFault { place: self.place(field), field: named.to_owned(), message });
    }

    fn root(&mut self, entries: &Map<String, Value>) {
        for (field, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
            match entries.get(field) {
                Some(Value::String(text)) if text == expected => {}
                Some(value) => self.fault(field, format!("is {value}: write {field}: {expected}")),
                None => self.fault(field, format!("is missing: add {field}: {expected}")),
            }
        }
        let fields = entries.iter().filter(|(key, _)| !["apiVersion", "kind"].contains(&key.as_str()));
        self.object("", fields);
    }

    /// Reads the fields of an object, whose path has a dot after it.
    fn object<'v>(&mut self, prefix: &str, entries: impl Iterator<Item = (&'v String, &'v Value)>) {
        for (key, value) in entries {
            let path = format!("{prefix}{key}");
            // A dot in a key does not lead to a field below.
            let field = fields::field(&path).filter(|_| !key.contains('.'));
            let below = fields::names_below(&format!("{path}."));
            match (field, value) {
                (None, _) if below.is_empty() || key.contains('.') => {
                    let place = self.place(&format!("{prefix}[{key}]"));
                    let message = unknown_field(key, &fields::names_below(prefix));
                    self.faults.push(ConfigFault { place, field: path, message });
                }
                (_, Value::Null) => {}
                (Some(field), value) => match field.kind.fault(value) {
                    None => {
                        let place = self.place(&path);
                        self.layer.insert(field.path, Given { value: value.clone(), place });
                    }
                    Some((rest, message)) => self.fault(&format!("{path}{rest}"), message),
                },
                (None, Value::Object(entries)) => self.object(&format!("{path}."), entries.iter()),
                (None, _) => self.fault(&path, format!("must be an object with the fields {}", below.join(", "))),
            }
        }
    }
}
