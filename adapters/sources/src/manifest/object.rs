//! Parses a file with one object of any kind, such as a configuration, and keeps the positions of its fields.

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::tree::{Position, Value, YamlNode};
use super::{Fault, documents, shortened};

/// One object, with the position of each of its fields. Its serialized form has the fields in the order of the text.
#[derive(Debug)]
pub struct LocatedObject(YamlNode);

impl LocatedObject {
    /// The position of a field, given its path, such as `a.b[0].c` or `labels[KEY]`. If the field does not exist, the position of the
    /// nearest field above it.
    pub fn locate(&self, path: &str) -> Option<Position> {
        self.0.locate(path)
    }
}

impl Serialize for LocatedObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// Parses the YAML or JSON text of one object. A field that is set twice is a fault.
///
/// # Errors
/// The first fault, with its position and remedy.
pub fn read_object(bytes: &[u8]) -> Result<LocatedObject, Fault> {
    let fault = |at, message: &str| shortened(Fault { at, pod: None, message: message.to_owned() });
    let mut documents = documents(bytes).map_err(|(at, message)| fault(at, &message))?;
    let second = documents.get(1).map(|document| document.at);
    match (documents.pop(), second) {
        (_, Some(at)) => Err(fault(at, "has more than one document: write one object")),
        (None, None) => Err(fault(None, "contains no object: start with apiVersion and kind")),
        (Some(document), None) if matches!(document.value, Value::Map(_)) => Ok(LocatedObject(document)),
        (Some(document), None) => Err(fault(document.at, "is not an object: start with apiVersion and kind")),
    }
}

impl Serialize for YamlNode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.value {
            Value::Null => serializer.serialize_unit(),
            Value::Bool(value) => serializer.serialize_bool(*value),
            Value::Int(number) => serializer.serialize_i64(*number),
            Value::Uint(number) => serializer.serialize_u64(*number),
            Value::Float(number) => serializer.serialize_f64(*number),
            Value::Text(text) => serializer.serialize_str(text),
            Value::List(items) => serializer.collect_seq(items),
            Value::Map(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for entry in entries {
                    map.serialize_entry(&entry.key, &entry.node)?;
                }
                map.end()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn object_keeps_its_values_and_their_positions() {
        let object = read_object(b"a: 1\nb:\n  c: [x, {d: true}]\n  e.f: null\n").unwrap();
        let value = serde_json::to_value(&object).unwrap();
        assert_eq!(value, json!({"a": 1, "b": {"c": ["x", {"d": true}], "e.f": null}}));
        let line = |path: &str| object.locate(path).map(|at| at.line);
        assert_eq!([line("a"), line("b.c[1].d"), line("b[e.f]"), line("b.g")], [Some(1), Some(3), Some(4), Some(2)]);
    }

    #[test]
    fn text_without_exactly_one_object_is_refused() {
        for (text, says) in [
            ("", "contains no object"),
            ("- a", "line 1, column 1: is not an object"),
            ("a: 1\n---\na: 2\n", "has more than one document"),
            ("a: 1\nb: 2\na: 3\n", "line 3, column 1: field \"a\" is set twice: keep one"),
            ("a: [", "not valid YAML or JSON"),
        ] {
            let fault = read_object(text.as_bytes()).unwrap_err().to_string();
            assert!(fault.contains(says), "{text:?}: {fault}");
        }
    }
}
