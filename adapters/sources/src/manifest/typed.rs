//! Deserializes a tree of nodes to an API type. Unknown fields and values of the wrong type are faults with their positions.

use std::cell::RefCell;
use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

use super::Position;
use super::tree::{MapEntry, Value, YamlNode};

/// An unknown field, or a value of the wrong type.
#[derive(Clone, Debug)]
pub(super) struct TypeFault {
    pub(super) at: Option<Position>,
    pub(super) path: String,
    pub(super) message: String,
}

/// Deserializes a node. Returns the value and the unknown fields, which the value lacks.
///
/// # Errors
/// The faults of the node: its unknown fields and the first value of a wrong type, which ends the search.
pub(super) fn deserialize<T: DeserializeOwned>(node: &YamlNode) -> Result<(T, Vec<TypeFault>), Vec<TypeFault>> {
    let unknown = RefCell::new(Vec::new());
    let result = T::deserialize(Typed { node, path: Path::Root, unknown: &unknown, field: None });
    let mut faults = unknown.into_inner();
    match result {
        Ok(value) => Ok((value, faults)),
        Err(error) => {
            faults.push(TypeFault { at: error.at, path: error.path.unwrap_or_default(), message: error.message });
            Err(faults)
        }
    }
}

#[derive(Clone, Copy)]
enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'a str),
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root => Ok(()),
            Path::Field(Path::Root, name) => f.write_str(name),
            Path::Field(parent, name) => write!(f, "{parent}.{name}"),
            Path::Key(parent, key) => write!(f, "{parent}[{key}]"),
            Path::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// A field of a struct: the key as written, and the field names of the struct.
#[derive(Clone, Copy)]
struct Field<'a> {
    at: Option<Position>,
    known: &'static [&'static str],
    key: &'a str,
}

#[derive(Clone, Copy)]
struct Typed<'a, 'p> {
    node: &'a YamlNode,
    path: Path<'p>,
    unknown: &'p RefCell<Vec<TypeFault>>,
    field: Option<Field<'a>>,
}

impl<'a> Typed<'a, '_> {
    fn must_be(&self, what: &str) -> LocatedError {
        self.locate(de::Error::custom(format_args!("must be {what}, not {}", describe(self.node))))
    }

    /// Adds the position of this node to an error without a position. So an error gets the position of the innermost value.
    fn locate(&self, error: LocatedError) -> LocatedError {
        LocatedError {
            at: error.at.or(self.node.at),
            path: error.path.or_else(|| Some(self.path.to_string())),
            message: error.message,
        }
    }

    fn integer<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, LocatedError> {
        match self.node.value {
            Value::Int(number) => visitor.visit_i64(number),
            Value::Uint(number) => visitor.visit_u64(number),
            _ => return Err(self.must_be("a whole number")),
        }
        .map_err(|error| self.locate(error))
    }

    fn string<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, LocatedError> {
        match &self.node.value {
            Value::Text(text) => visitor.visit_str(text).map_err(|error| self.locate(error)),
            Value::Bool(_) | Value::Int(_) | Value::Uint(_) | Value::Float(_) => {
                let message = format_args!("must be text, not {}: put it in quotes", describe(self.node));
                Err(self.locate(de::Error::custom(message)))
            }
            Value::Null | Value::List(_) | Value::Map(_) => Err(self.must_be("text")),
        }
    }

    fn list<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, LocatedError> {
        let Value::List(items) = &self.node.value else { return Err(self.must_be("a list")) };
        visitor.visit_seq(ListItems { parent: &self, items, next: 0 }).map_err(|error| self.locate(error))
    }

    fn map<V: Visitor<'a>>(self, visitor: V, known: Option<&'static [&'static str]>) -> Result<V::Value, LocatedError> {
        let Value::Map(entries) = &self.node.value else { return Err(self.must_be("a map of fields")) };
        visitor.visit_map(MapEntries { parent: &self, entries, known, value: None }).map_err(|error| self.locate(error))
    }
}

fn describe(node: &YamlNode) -> String {
    match &node.value {
        Value::Null => "empty".into(),
        Value::Bool(value) => format!("the boolean {value}"),
        Value::Int(number) => format!("the number {number}"),
        Value::Uint(number) => format!("the number {number}"),
        Value::Float(number) => format!("the number {number}"),
        Value::Text(text) if text.chars().count() > 40 => "text".into(),
        Value::Text(text) => format!("the text {text:?}"),
        Value::List(_) => "a list".into(),
        Value::Map(_) => "a map".into(),
    }
}

impl<'de> Deserializer<'de> for Typed<'de, '_> {
    type Error = LocatedError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, LocatedError> {
        match &self.node.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Int(number) => visitor.visit_i64(*number),
            Value::Uint(number) => visitor.visit_u64(*number),
            Value::Float(number) => visitor.visit_f64(*number),
            Value::Text(text) => visitor.visit_str(text),
            Value::List(_) => self.list(visitor),
            Value::Map(_) => self.map(visitor, None),
        }
        .map_err(|error| self.locate(error))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, LocatedError> {
        match &self.node.value {
            Value::Bool(value) => visitor.visit_bool(*value),
            // Further booleans of YAML 1.1. In a field of another type they are text.
            Value::Text(text) if ["yes", "Yes", "YES", "on", "On", "ON"].contains(&text.as_str()) => {
                visitor.visit_bool(true)
            }
            Value::Text(text) if ["no", "No", "NO", "off", "Off", "OFF"].contains(&text.as_str()) => {
                visitor.visit_bool(false)
            }
            _ => Err(self.must_be("true or false")),
        }
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, LocatedError> {
        self.integer(visitor)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, LocatedError> {
        self.integer(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, LocatedError> {
        self.string(visitor)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, LocatedError> {
        self.string(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, LocatedError> {
        match self.node.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, LocatedError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, LocatedError> {
        self.list(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, LocatedError> {
        self.map(visitor, None)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, LocatedError> {
        self.map(visitor, Some(fields))
    }

    /// The API types call this for a field that they do not have.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, LocatedError> {
        if let Some(field) = self.field {
            let message = unknown_field(field.key, field.known);
            self.unknown.borrow_mut().push(TypeFault { at: field.at, path: self.path.to_string(), message });
        }
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct enum identifier
    }
}

/// The message for an unknown field. It suggests the most similar known field if there is a similar one.
pub fn unknown_field(key: &str, known: &[&str]) -> String {
    // No field has such a long name, and comparing longer keys takes time.
    let near = known
        .iter()
        .filter(|_| key.len() <= 64)
        .map(|name| (strsim::damerau_levenshtein(&key.to_lowercase(), &name.to_lowercase()), name))
        // If more than a third of the letters differ, the key is another word and not a misspelling.
        .filter(|(distance, name)| distance * 3 <= name.len().max(3))
        .min_by_key(|(distance, _)| *distance);
    match near {
        Some((_, name)) => format!("unknown field; did you mean {name:?}?"),
        None => "unknown field: remove it or move it to where it belongs".into(),
    }
}

struct ListItems<'a, 'p> {
    parent: &'p Typed<'a, 'p>,
    items: &'a [YamlNode],
    next: usize,
}

impl<'a> SeqAccess<'a> for ListItems<'a, '_> {
    type Error = LocatedError;

    fn next_element_seed<T: DeserializeSeed<'a>>(&mut self, seed: T) -> Result<Option<T::Value>, LocatedError> {
        let Some(node) = self.items.get(self.next) else { return Ok(None) };
        let path = Path::Index(&self.parent.path, self.next);
        self.next += 1;
        seed.deserialize(Typed { node, path, unknown: self.parent.unknown, field: None }).map(Some)
    }
}

struct MapEntries<'a, 'p> {
    parent: &'p Typed<'a, 'p>,
    entries: &'a [MapEntry],
    known: Option<&'static [&'static str]>,
    value: Option<&'a MapEntry>,
}

impl<'a> MapAccess<'a> for MapEntries<'a, '_> {
    type Error = LocatedError;

    fn next_key_seed<K: DeserializeSeed<'a>>(&mut self, seed: K) -> Result<Option<K::Value>, LocatedError> {
        let Some((entry, rest)) = self.entries.split_first() else { return Ok(None) };
        self.entries = rest;
        self.value = Some(entry);
        seed.deserialize(StrDeserializer::new(&entry.key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'a>>(&mut self, seed: V) -> Result<V::Value, LocatedError> {
        let entry = self.value.take().expect("serde asks for a value only after its key");
        let (path, field) = match self.known {
            Some(known) => {
                let field = Field { at: entry.at, known, key: &entry.key };
                (Path::Field(&self.parent.path, &entry.key), Some(field))
            }
            None => (Path::Key(&self.parent.path, &entry.key), None),
        };
        seed.deserialize(Typed { node: &entry.node, path, unknown: self.parent.unknown, field })
    }
}

/// An error with its position and path, once they are known.
#[derive(Debug)]
pub(super) struct LocatedError {
    at: Option<Position>,
    path: Option<String>,
    message: String,
}

impl de::Error for LocatedError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        LocatedError { at: None, path: None, message: message.to_string() }
    }
}

impl std::error::Error for LocatedError {}

impl fmt::Display for LocatedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
