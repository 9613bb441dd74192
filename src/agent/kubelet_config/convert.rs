//! The fields of a configuration become settings of `podwright run`. Pure.

use super::combined;
use super::fields::{self, Field, Flag, Form, Needs};
use super::kind::{Kind, time_span};
use super::{ConfigFault, Given, Layer, Meaning, Notice};

/// A flag of `podwright run` with the value that a field gives it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setting {
    /// The name of the flag, without its dashes.
    pub(crate) flag: &'static str,
    /// The value; `None` if the flag has none.
    pub(crate) value: Option<String>,
    /// The field that gives the value, and where it was given.
    pub(crate) field: &'static str,
    pub(crate) given: Given,
    pub(crate) needs: Needs,
}

impl Setting {
    /// The word of the command line.
    pub(crate) fn word(&self) -> String {
        match &self.value {
            Some(value) => format!("--{}={value}", self.flag),
            None => format!("--{}", self.flag),
        }
    }

    /// A notice about this setting.
    pub(crate) fn notice(&self, why: String) -> Notice {
        Notice { place: self.given.place.clone(), field: self.field.to_owned(), why }
    }
}

/// What a conversion depends on besides the fields.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context<'a> {
    /// The feature gates of `podwright run`.
    pub(crate) gates: &'a [&'static str],
    /// The value of `--kubeconfig` of `podwright run`, if it has no `--bootstrap-kubeconfig`.
    pub(crate) kubeconfig: Option<&'a str>,
}

/// Collects what the fields give.
#[derive(Debug, Default)]
pub(super) struct Converted {
    pub(super) settings: Vec<Setting>,
    pub(super) notices: Vec<Notice>,
    pub(super) faults: Vec<ConfigFault>,
}

/// The settings and notices of a configuration.
///
/// # Errors
/// All fields that ask for something that the agent does not do.
pub(crate) fn convert(layer: &Layer, context: Context<'_>) -> Result<(Vec<Setting>, Vec<Notice>), Vec<ConfigFault>> {
    let mut converted = Converted::default();
    for (key, given) in layer {
        let Some(field) = fields::of_key(key) else { continue };
        let text = field.kind.text(&given.value);
        match &field.meaning {
            Meaning::Setting(flag) => converted.setting(field, flag, given, &text),
            Meaning::Combined => {}
            Meaning::Unused(values, _) | Meaning::Only(values, _) if values.contains(&text.as_str()) => {}
            Meaning::Unused(_, why) => converted.notice(field.key(), given, why),
            Meaning::Only(values, remedy) => {
                let values: Vec<_> = values.iter().filter(|value| !value.is_empty()).copied().collect();
                let only = if values.is_empty() { String::new() } else { format!(" (only {})", values.join(" or ")) };
                // The headers for manifest URLs are of any kind, and secret.
                let value = if field.kind == Kind::Any { "a value".to_owned() } else { format!("{text:?}") };
                converted.fault(field.key(), given, format!("{value} is not supported here{only}: {remedy}"));
            }
        }
    }
    combined::convert(layer, context, &mut converted);
    if converted.faults.is_empty() { Ok((converted.settings, converted.notices)) } else { Err(converted.faults) }
}

impl Converted {
    pub(super) fn fault(&mut self, field: &str, given: &Given, message: String) {
        self.faults.push(ConfigFault { place: given.place.clone(), field: field.to_owned(), message });
    }

    pub(super) fn notice(&mut self, field: &str, given: &Given, why: &str) {
        self.notices.push(Notice { place: given.place.clone(), field: field.to_owned(), why: why.to_owned() });
    }

    /// Adds a setting that one field gives.
    fn setting(&mut self, field: &Field, flag: &Flag, given: &Given, text: &str) {
        if flag.unset.contains(&text) {
            return;
        }
        let value = match flag.form {
            Form::Same => Some(text.to_owned()),
            Form::After(prefix) => Some(format!("{prefix}{text}")),
            Form::Present if text == "true" => None,
            Form::Present => return,
            Form::Seconds => match time_span(text) {
                Some(time) if time.subsec_nanos() == 0 => Some(time.as_secs().to_string()),
                _ => {
                    let message = format!("{text} is not a whole number of seconds: write one such as 90s");
                    return self.fault(field.key(), given, message);
                }
            },
            Form::Taints => Some(combined::taints(&given.value)),
            Form::Priorities => Some(combined::priorities(&given.value)),
        };
        let given = given.clone();
        self.settings.push(Setting { flag: flag.name, value, field: field.key(), given, needs: flag.needs });
    }
}
