//! The fields of `KubeletConfiguration` and the flags of a kubelet, and what each means here.
//!
//! Names, types and defaults are those of Kubernetes 1.36 (`k8s.io/kubelet/config/v1beta1` and `cmd/kubelet/app/options`).

mod only;
mod settings;
mod unused;

use std::collections::BTreeSet;

use super::kind::Kind;

/// A field, a flag, or both.
#[derive(Debug)]
pub(crate) struct Field {
    /// The path of the field; empty for a flag without a field.
    pub(crate) path: &'static str,
    /// The flag of a kubelet, without its dashes; empty for a field without a flag.
    pub(crate) flag: &'static str,
    pub(crate) kind: Kind,
    pub(crate) meaning: Meaning,
}

/// What a field means here.
#[derive(Debug)]
pub(crate) enum Meaning {
    /// It is a flag of `podwright run`.
    Setting(Flag),
    /// `combined` computes a setting from it and from other fields.
    Combined,
    /// Nothing here depends on it. Any other value than these has a notice with the reason.
    Unused(&'static [&'static str], &'static str),
    /// The agent does only these values, and refuses any other one with the remedy.
    Only(&'static [&'static str], &'static str),
}

/// A flag of `podwright run`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Flag {
    /// The name, without its dashes.
    pub(crate) name: &'static str,
    /// The values with which a kubelet uses its default.
    pub(super) unset: &'static [&'static str],
    pub(super) form: Form,
    pub(super) needs: Needs,
}

/// What a flag of `podwright run` has an effect with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    /// `--kubeconfig`.
    Cluster,
    /// `--kubeconfig` and a node API that is not off.
    NodeApi,
    /// `--runtime cri=ENDPOINT`.
    ContainerRuntime,
}

/// How the value of a field becomes the value of a flag.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Form {
    /// As it is.
    Same,
    /// A time span as whole seconds.
    Seconds,
    /// The flag has no value. It is given if the field is true.
    Present,
    /// After this text.
    After(&'static str),
    /// Taints as `KEY=VALUE:EFFECT`.
    Taints,
    /// Grace periods as `PRIORITY=SECONDS`.
    Priorities,
}

impl Field {
    /// The key of the field in a layer.
    pub(crate) fn key(&self) -> &'static str {
        if self.path.is_empty() { self.flag } else { self.path }
    }
}

impl Flag {
    const fn form(self, form: Form) -> Flag {
        Flag { form, ..self }
    }

    const fn needs(self, needs: Needs) -> Flag {
        Flag { needs, ..self }
    }
}

const fn flag(name: &'static str, unset: &'static [&'static str]) -> Flag {
    Flag { name, unset, form: Form::Same, needs: Needs::Nothing }
}

const fn setting(path: &'static str, flag: &'static str, kind: Kind, setting: Flag) -> Field {
    Field { path, flag, kind, meaning: Meaning::Setting(setting) }
}

const fn combined(path: &'static str, flag: &'static str, kind: Kind) -> Field {
    Field { path, flag, kind, meaning: Meaning::Combined }
}

const fn unused(
    path: &'static str,
    flag: &'static str,
    kind: Kind,
    values: &'static [&'static str],
    why: &'static str,
) -> Field {
    Field { path, flag, kind, meaning: Meaning::Unused(values, why) }
}

const fn only(
    path: &'static str,
    flag: &'static str,
    kind: Kind,
    values: &'static [&'static str],
    remedy: &'static str,
) -> Field {
    Field { path, flag, kind, meaning: Meaning::Only(values, remedy) }
}

/// The field with this path.
pub(super) fn field(path: &str) -> Option<&'static Field> {
    fields().find(|field| field.path == path)
}

/// The field or flag with this key of a layer.
pub(super) fn of_key(key: &str) -> Option<&'static Field> {
    all().find(|field| field.key() == key)
}

/// The fields that flags of a kubelet set, and the flags without a field.
pub(crate) fn flags() -> impl Iterator<Item = &'static Field> {
    all().filter(|field| !field.flag.is_empty())
}

/// The names of the fields of an object, given the path of the object with a dot after it. Empty if there is no such object.
pub(super) fn names_below(prefix: &str) -> Vec<&'static str> {
    let names = fields().filter_map(|field| field.path.strip_prefix(prefix)?.split('.').next());
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

/// All fields of `KubeletConfiguration`, less `apiVersion` and `kind`.
fn fields() -> impl Iterator<Item = &'static Field> {
    settings::FIELDS.iter().chain(unused::FIELDS).chain(only::FIELDS)
}

fn all() -> impl Iterator<Item = &'static Field> {
    fields().chain(settings::FLAGS).chain(unused::FLAGS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_and_each_flag_is_in_the_table_once() {
        let paths: Vec<_> = fields().map(|field| field.path).collect();
        assert_eq!(paths.iter().collect::<BTreeSet<_>>().len(), paths.len());
        assert!(paths.iter().all(|path| !path.is_empty()));
        let names: Vec<_> = flags().map(|field| field.flag).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        // No field is the object of another one.
        for path in &paths {
            assert!(names_below(&format!("{path}.")).is_empty(), "{path}");
        }
    }

    #[test]
    fn fields_of_an_object_are_found() {
        assert_eq!(names_below("authentication."), ["anonymous", "webhook", "x509"]);
        assert_eq!(names_below("authentication.x509."), ["clientCAFile"]);
        assert!(names_below("maxPods.").is_empty() && names_below("nothing.").is_empty());
        let of_flag = |flag: &str| flags().find(|field| field.flag == flag).map(Field::key);
        assert_eq!(of_flag("pod-manifest-path"), Some("staticPodPath"));
        assert_eq!(of_flag("cert-dir"), Some("cert-dir"));
        assert!(field("staticPodPath").is_some() && field("cert-dir").is_none());
    }

    #[test]
    fn every_value_that_changes_nothing_is_of_the_kind_of_its_field() {
        for field in all() {
            let (Meaning::Unused(values, text) | Meaning::Only(values, text)) = &field.meaning else { continue };
            assert!(!text.is_empty(), "{}", field.key());
            for value in *values {
                let parsed = field.kind.parse(value).unwrap_or_else(|error| panic!("{}: {error}", field.key()));
                assert_eq!(field.kind.text(&parsed), *value, "{}", field.key());
            }
        }
    }
}
