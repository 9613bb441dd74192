//! A YAML document as a tree of nodes with positions.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

/// A position in a text. Lines and columns count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: u64,
    /// The column, in characters.
    pub column: u64,
}

impl Position {
    /// The position of a parser's location; `None` if the parser does not know it.
    pub(super) fn of(location: Location) -> Option<Position> {
        (location.line() > 0).then(|| Position { line: location.line(), column: location.column() })
    }

    /// The position after a text.
    pub(super) fn after(text: &str) -> Position {
        let last = text.rsplit('\n').next().unwrap_or_default();
        Position { line: 1 + text.matches('\n').count() as u64, column: 1 + last.chars().count() as u64 }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

#[derive(Debug)]
pub(super) struct YamlNode {
    pub(super) at: Option<Position>,
    pub(super) value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Float(f64),
    Text(String),
    List(Vec<YamlNode>),
    Map(Vec<MapEntry>),
}

#[derive(Debug)]
pub(super) struct MapEntry {
    pub(super) key: String,
    /// The position of the key.
    pub(super) at: Option<Position>,
    pub(super) node: YamlNode,
}

impl YamlNode {
    /// The entry of a key; `None` if this is not a map or has no such key.
    pub(super) fn field(&self, key: &str) -> Option<&MapEntry> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|entry| entry.key == key),
            _ => None,
        }
    }

    /// The text; `None` if this is not a text.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The position of a field, given its path, such as `spec.containers[0].name` or `metadata.labels[KEY]`. If the field does
    /// not exist, the position of the nearest node above it.
    pub(super) fn locate(&self, path: &str) -> Option<Position> {
        let mut node = self;
        let mut at = self.at;
        for step in steps(path) {
            let next = match (step, &node.value) {
                (Step::Field(key) | Step::Bracket(key), Value::Map(_)) => {
                    node.field(key).map(|entry| (entry.at, &entry.node))
                }
                (Step::Bracket(index), Value::List(items)) => {
                    index.parse::<usize>().ok().and_then(|index| items.get(index)).map(|item| (item.at, item))
                }
                _ => None,
            };
            let Some((position, below)) = next else { break };
            at = position.or(at);
            node = below;
        }
        at
    }
}

enum Step<'a> {
    Field(&'a str),
    Bracket(&'a str),
}

fn steps(path: &str) -> impl Iterator<Item = Step<'_>> {
    let mut rest = path;
    std::iter::from_fn(move || {
        rest = rest.strip_prefix('.').unwrap_or(rest);
        if rest.is_empty() {
            return None;
        }
        if let Some(inner) = rest.strip_prefix('[') {
            let (key, after) = inner.split_once(']').unwrap_or((inner, ""));
            rest = after;
            return Some(Step::Bracket(key));
        }
        let end = rest.find(['.', '[']).unwrap_or(rest.len());
        let (field, after) = rest.split_at(end);
        rest = after;
        Some(Step::Field(field))
    })
}

impl<'de> Deserialize<'de> for YamlNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(YamlNode { at: Position::of(spanned.referenced), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Untyped)
    }
}

struct Untyped;

impl<'de> Visitor<'de> for Untyped {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(i64::try_from(value).map_or(Value::Uint(value), Value::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Vec::new();
        while let Some((key, node)) = entries.next_entry::<Spanned<String>, YamlNode>()? {
            map.push(MapEntry { key: key.value, at: Position::of(key.referenced), node });
        }
        Ok(Value::Map(map))
    }
}
