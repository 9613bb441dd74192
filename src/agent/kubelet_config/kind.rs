//! The types of fields: what a value may be, and its text. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use podwright_model::texts::format::duration;
use podwright_sources::manifest::unknown_field;
use serde_json::{Map, Value};

/// The type of a field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    Bool,
    /// A whole number.
    Number,
    Fraction,
    Text,
    /// A time span such as `1m30s`.
    Duration,
    Texts,
    /// A map of texts. A flag has each key and value with this character between them.
    TextMap(char),
    BoolMap,
    /// A list of objects with these fields. A flag has a text of a form of its own.
    Objects(&'static [(&'static str, Kind)]),
    /// A value of any type. Only its absence matters here.
    Any,
}

/// What is wrong with a value: the path below its field, and the fault.
pub(super) type Fault = (String, String);

impl Kind {
    /// Checks a value of a file.
    pub(super) fn fault(self, value: &Value) -> Option<Fault> {
        let must_be = |what: &str| Some((String::new(), format!("must be {what}, not {}", describe(value))));
        match (self, value) {
            (Kind::Any, _)
            | (Kind::Bool, Value::Bool(_))
            | (Kind::Text, Value::String(_))
            | (Kind::Fraction, Value::Number(_)) => None,
            (Kind::Bool, Value::String(text)) if yes_or_no(text).is_some() => None,
            (Kind::Bool, _) => must_be("true or false"),
            (Kind::Number, Value::Number(number)) if number.is_i64() => None,
            (Kind::Number, _) => must_be("a whole number"),
            (Kind::Fraction, _) => must_be("a number"),
            (Kind::Text, Value::Number(_) | Value::Bool(_)) => {
                Some((String::new(), format!("must be text, not {}: put it in quotes", describe(value))))
            }
            (Kind::Text, _) => must_be("text"),
            (Kind::Duration, Value::String(text)) => match time_span(text) {
                Some(_) => None,
                None => {
                    Some((String::new(), format!("{text:?} is not a time span: write one such as 90s, 5m or 1h30m")))
                }
            },
            (Kind::Duration, _) => must_be("a time span in quotes, such as \"90s\""),
            (Kind::Texts, Value::Array(items)) => {
                let mut items = items.iter().enumerate();
                items.find_map(|(index, item)| below(&format!("[{index}]"), Kind::Text.fault(item)))
            }
            (Kind::Texts, _) => must_be("a list"),
            (Kind::TextMap(_), Value::Object(entries)) => of_entries(entries, Kind::Text),
            (Kind::BoolMap, Value::Object(entries)) => of_entries(entries, Kind::Bool),
            (Kind::TextMap(_) | Kind::BoolMap, _) => must_be("a map"),
            (Kind::Objects(fields), Value::Array(items)) => {
                let mut items = items.iter().enumerate();
                items.find_map(|(index, item)| below(&format!("[{index}]"), of_object(item, fields)))
            }
            (Kind::Objects(_), _) => must_be("a list of objects"),
        }
    }

    /// The value that the text of a flag gives.
    ///
    /// # Errors
    /// What is wrong with the text, and the remedy.
    pub(crate) fn parse(self, text: &str) -> Result<Value, String> {
        let entry = |part: &str, between: char| match part.split_once(between) {
            Some((key, value)) => Ok((key.trim().to_owned(), value.trim().to_owned())),
            None => Err(format!("{part:?} is not of the form KEY{between}VALUE")),
        };
        let parts = || text.split(',').map(str::trim).filter(|part| !part.is_empty());
        match self {
            Kind::Bool => boolean(text).map(Value::Bool),
            Kind::Number => match text.parse::<i64>() {
                Ok(number) => Ok(number.into()),
                Err(_) => Err(format!("{text:?} is not a whole number: write one such as 10")),
            },
            Kind::Fraction => match text.parse::<f64>() {
                Ok(number) => Ok(number.into()),
                Err(_) => Err(format!("{text:?} is not a number: write one such as 0.9")),
            },
            Kind::Duration if time_span(text).is_none() => {
                Err(format!("{text:?} is not a time span: write one such as 90s, 5m or 1h30m"))
            }
            Kind::Text | Kind::Duration | Kind::Any | Kind::Objects(_) => Ok(text.into()),
            Kind::Texts => Ok(parts().map(Value::from).collect()),
            Kind::TextMap(between) => {
                let entries = parts().map(|part| entry(part, between).map(|(key, value)| (key, Value::String(value))));
                entries.collect::<Result<Map<String, Value>, String>>().map(Value::Object)
            }
            Kind::BoolMap => {
                let entries = parts().map(|part| {
                    let (key, value) = entry(part, '=')?;
                    Ok((key, Value::Bool(boolean(&value)?)))
                });
                entries.collect::<Result<Map<String, Value>, String>>().map(Value::Object)
            }
        }
    }

    /// The value as a flag of `podwright run` has it. A time span has its shortest form, and an empty list or map is an empty text.
    pub(super) fn text(self, value: &Value) -> String {
        match (self, value) {
            (Kind::Bool, Value::String(text)) => yes_or_no(text).unwrap_or_default().to_string(),
            (Kind::Duration, Value::String(text)) => time_span(text).map_or_else(|| text.clone(), duration),
            (Kind::TextMap(between), Value::Object(entries)) => joined(entries, between, Kind::Text),
            (Kind::BoolMap, Value::Object(entries)) => joined(entries, '=', Kind::Bool),
            (Kind::Any, Value::Object(entries)) if entries.is_empty() => String::new(),
            (_, Value::String(text)) => text.clone(),
            (_, Value::Array(items)) => items.iter().map(|item| Kind::Text.text(item)).collect::<Vec<_>>().join(","),
            (_, value) => value.to_string(),
        }
    }
}

/// The time span of a text such as `1h30m`, `0` or `1.5s` (`time.ParseDuration`), if it is not negative.
pub(super) fn time_span(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    // A number without a unit is no time span for a kubelet.
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse::<jiff::SignedDuration>().ok().and_then(|span| Duration::try_from(span).ok())
}

fn joined(entries: &Map<String, Value>, between: char, kind: Kind) -> String {
    let sorted: BTreeMap<_, _> = entries.iter().collect();
    let entries = sorted.into_iter().map(|(key, value)| format!("{key}{between}{}", kind.text(value)));
    entries.collect::<Vec<_>>().join(",")
}

fn of_entries(entries: &Map<String, Value>, kind: Kind) -> Option<Fault> {
    entries.iter().find_map(|(key, value)| below(&format!("[{key}]"), kind.fault(value)))
}

fn of_object(item: &Value, fields: &'static [(&'static str, Kind)]) -> Option<Fault> {
    let Value::Object(entries) = item else {
        return Some((String::new(), format!("must be an object, not {}", describe(item))));
    };
    entries.iter().filter(|(_, value)| !value.is_null()).find_map(|(key, value)| {
        let path = format!(".{key}");
        match fields.iter().find(|(name, _)| name == key) {
            Some((_, kind)) => below(&path, kind.fault(value)),
            None => {
                let known: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
                Some((path, unknown_field(key, &known)))
            }
        }
    })
}

fn below(path: &str, fault: Option<Fault>) -> Option<Fault> {
    fault.map(|(rest, message)| (format!("{path}{rest}"), message))
}

/// The booleans of YAML 1.1 that the parser leaves as texts.
fn yes_or_no(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "yes" | "on" => Some(true),
        "no" | "off" => Some(false),
        _ => None,
    }
}

/// Parses a boolean of a flag (`strconv.ParseBool`).
fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("{text:?} is not a boolean: write true or false")),
    }
}

fn describe(value: &Value) -> String {
    match value {
        Value::Null => "empty".to_owned(),
        Value::Bool(value) => format!("the boolean {value}"),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) if text.chars().count() > 40 => "text".to_owned(),
        Value::String(text) => format!("the text {text:?}"),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a map".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn value_of_a_file_and_of_a_flag_have_the_same_text() {
        for (kind, value, flag, text) in [
            (Kind::Bool, json!("yes"), "true", "true"),
            (Kind::Bool, json!(false), "F", "false"),
            (Kind::Number, json!(110), "110", "110"),
            (Kind::Fraction, json!(0.9), "0.9", "0.9"),
            (Kind::Duration, json!("90s"), "1m30s", "1m30s"),
            (Kind::Duration, json!("0s"), "0", "0s"),
            (Kind::Texts, json!(["a", "b"]), "a, b", "a,b"),
            (Kind::Texts, json!([]), "", ""),
            (Kind::TextMap('<'), json!({"b": "2", "a": "1"}), "b<2,a<1", "a<1,b<2"),
            (Kind::BoolMap, json!({"A": true}), "A=true", "A=true"),
        ] {
            assert_eq!((kind.fault(&value), kind.text(&value).as_str()), (None, text), "{value}");
            assert_eq!(kind.text(&kind.parse(flag).unwrap()), text, "{flag}");
        }
    }

    #[test]
    fn value_of_another_type_is_refused() {
        let taints = Kind::Objects(&[("key", Kind::Text), ("effect", Kind::Text)]);
        for (kind, value, path, says) in [
            (Kind::Bool, json!("maybe"), "", "must be true or false, not the text \"maybe\""),
            (Kind::Number, json!(1.5), "", "must be a whole number"),
            (Kind::Text, json!(5), "", "put it in quotes"),
            (Kind::Duration, json!("90"), "", "write one such as 90s"),
            (Kind::Duration, json!(90), "", "a time span in quotes"),
            (Kind::Duration, json!("-5s"), "", "not a time span"),
            (Kind::Texts, json!(["a", 1]), "[1]", "put it in quotes"),
            (Kind::TextMap('='), json!({"cpu": 1}), "[cpu]", "put it in quotes"),
            (Kind::BoolMap, json!([]), "", "must be a map, not a list"),
            (taints, json!([{"key": "a"}, {"efect": "b"}]), "[1].efect", "did you mean \"effect\"?"),
            (taints, json!(["a"]), "[0]", "must be an object"),
        ] {
            let (at, message) = kind.fault(&value).unwrap();
            assert!(at == path && message.contains(says), "{value}: {at}: {message}");
        }
        for (kind, flag, says) in [
            (Kind::Bool, "2", "write true or false"),
            (Kind::Number, "many", "write one such as 10"),
            (Kind::TextMap('<'), "a=1", "KEY<VALUE"),
            (Kind::Duration, "90", "write one such as 90s"),
        ] {
            assert!(kind.parse(flag).unwrap_err().contains(says), "{flag}");
        }
    }
}
