//! Parses manifests: YAML or JSON text with pods. Each fault gets a message with its position and the remedy; the pods
//! without faults are used. An unknown field is a warning, as for a kubelet, or a fault if the caller chooses so.

mod encoding;
mod object;
mod rule;
mod tree;
mod typed;

use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use podwright_core::config::validate::{self, Problem};
use podwright_model::text::plain;

pub use object::{LocatedObject, read_object};
pub use rule::read_rule;
pub use tree::Position;
pub use typed::unknown_field;

use serde_saphyr::budget::BudgetBreach;
use tree::{Value, YamlNode};

/// The size limit of a manifest in bytes (upstream `maxConfigLength`, kubelet 1.36).
pub const MAX_BYTES: usize = 10 << 20;

/// How many levels of objects and lists a manifest may have.
const MAX_DEPTH: usize = 32;
/// The parser's text for brackets that are nested so deeply that it stops before it counts levels (granit-parser 2.1,
/// `ErrorKind::RecursionLimitExceeded`). Its error has no code for this case.
const NESTED_TOO_DEEPLY: &str = "recursion limit exceeded";
/// How many YAML documents a manifest may have.
const MAX_DOCUMENTS: usize = 1024;
/// How many values the aliases of a manifest may repeat.
const MAX_ALIASED: usize = 10_000;
/// How many faults of one text are reported.
const MAX_FAULTS: usize = 100;
/// The size limit of a fault's message in bytes. Messages quote values and keys, which may have any length.
const MAX_MESSAGE: usize = 1000;
/// The size limit of a pod's name in a fault, in bytes: the longest name that a pod may have.
const MAX_NAME: usize = 253;

/// The content of a manifest.
#[derive(Clone, Debug, Default)]
pub struct Manifest {
    /// The pods without faults, as written, without defaults.
    pub pods: Vec<Pod>,
    /// The faults of the manifest.
    pub faults: Vec<Fault>,
    /// The unknown fields that are ignored.
    pub warnings: Vec<Warning>,
}

/// An unknown field of a manifest that is used nevertheless.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Warning {
    /// The index of the field's pod in [`Manifest::pods`]; `None` if the field belongs to a list of pods.
    pub pod: Option<usize>,
    /// The field and its position.
    pub fault: Fault,
}

/// What an unknown field of a manifest means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum UnknownFields {
    /// A warning. The field is ignored and the pod runs, as with a kubelet.
    #[default]
    Warn,
    /// A fault. The pod is not used.
    Refuse,
}

/// A fault in a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub struct Fault {
    /// The position of the fault, if the parser knows it.
    pub at: Option<Position>,
    /// The name of the pod, if it has one.
    pub pod: Option<String>,
    /// The field, what is wrong with it, and the remedy.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(at) = self.at {
            write!(f, "{at}: ")?;
        }
        if let Some(pod) = &self.pod {
            write!(f, "pod {pod:?}: ")?;
        }
        f.write_str(&self.message)
    }
}

/// Parses a manifest of static pods: one or more YAML documents with `v1` objects of kind `Pod`, `PodList` or `List` (of
/// pods).
///
/// A pod is used only if its fields have values of the right type, and if it passes [`validate`](validate::validate) and
/// [`validate_static`](validate::validate_static). An unknown field is a warning.
pub fn read(bytes: &[u8]) -> Manifest {
    read_with(bytes, UnknownFields::Warn)
}

/// Like [`read`], and the caller chooses what an unknown field means.
pub fn read_with(bytes: &[u8], unknown_fields: UnknownFields) -> Manifest {
    let mut reader = ManifestBuilder { unknown_fields, ..ManifestBuilder::default() };
    match documents(bytes) {
        Err((at, message)) => reader.refuse(at, message),
        Ok(documents) if documents.is_empty() => {
            reader.refuse(None, "contains no pod: write one, or remove the manifest to stop its pods".into());
        }
        Ok(documents) => documents.iter().for_each(|document| reader.document(document)),
    }
    reader.finish()
}

/// Parses a text into its documents.
///
/// # Errors
/// The position of the fault, if it is known, and the fault with its remedy.
fn documents(bytes: &[u8]) -> Result<Vec<YamlNode>, (Option<Position>, String)> {
    if bytes.len() > MAX_BYTES {
        // The caller may have read only the first bytes of a longer manifest.
        return Err((None, "has more than 10 MiB: split it into smaller manifests".into()));
    }
    let text = encoding::decode(bytes).map_err(|(at, message)| (Some(at), message))?;
    serde_saphyr::from_multiple_with_options::<YamlNode>(&text, options()).map_err(|error| {
        let error = error.without_snippet();
        (error.location().and_then(Position::of), brief(error))
    })
}

fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
            // The tools that manifests are written for read a mode such as 0644 as octal.
            legacy_octal_numbers: true,
            // The document is parsed before the types of its fields are known, so `y` may be a name or a boolean.
            strict_booleans: true,
            with_snippet: false,
    // Parsing is recursive. A list of pods needs half of this depth, and a thread's stack suffices for twice this depth.
            budget: serde_saphyr::budget! { max_depth: MAX_DEPTH, max_documents: MAX_DOCUMENTS },
            // Limits the work that nested aliases can cause.
            alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_ALIASED },
        }
}

/// The parser's message without the position. [`Fault`] prints the position itself.
fn brief(error: &serde_saphyr::Error) -> String {
    use serde_saphyr::Error;
    match error {
        // The parser names an error in the value of an alias.
        Error::AliasError { error, .. } => return brief(error),
        Error::DuplicateMappingKey { key, .. } => {
            return format!("field {:?} is set twice: keep one", key.as_deref().unwrap_or_default());
        }
        Error::Budget { breach: BudgetBreach::Documents { .. }, .. } => {
            return format!("has more than {MAX_DOCUMENTS} documents: split it into smaller manifests");
        }
        Error::Budget { breach: BudgetBreach::Depth { .. }, .. } => {
            return too_many_levels();
        }
        Error::Budget { .. } => return "has too many values: split it into smaller manifests".into(),
        Error::AliasReplayLimitExceeded { .. } | Error::AliasExpansionLimitExceeded { .. } => {
            return format!("its aliases repeat more than {MAX_ALIASED} values: write fewer aliases (`*name`)");
        }
        _ => {}
    }
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    let line = line.split(" at line ").next().unwrap_or(line);
    if line == NESTED_TOO_DEEPLY {
        return too_many_levels();
    }
    format!("not valid YAML or JSON: {line}")
}

fn too_many_levels() -> String {
    format!("has more than {MAX_DEPTH} levels of objects and lists: no pod has so many, correct it")
}

/// Collects the pods and faults of a manifest.
#[derive(Debug, Default)]
struct ManifestBuilder {
    manifest: Manifest,
    unknown_fields: UnknownFields,
    /// The number of faults after the first [`MAX_FAULTS`].
    unreported: usize,
}

impl ManifestBuilder {
    fn finish(mut self) -> Manifest {
        if self.unreported > 0 {
            let message = format!("and {} more faults: correct these first", self.unreported);
            self.manifest.faults.push(Fault { at: None, pod: None, message });
        }
        self.manifest
    }

    fn refuse(&mut self, at: Option<Position>, message: String) {
        self.add(|| Fault { at, pod: None, message });
    }

    /// Adds a fault. After [`MAX_FAULTS`], `fault` is not called, because finding the position in a long text takes time.
    fn add(&mut self, fault: impl FnOnce() -> Fault) {
        if self.manifest.faults.len() >= MAX_FAULTS {
            self.unreported += 1;
            return;
        }
        self.manifest.faults.push(shortened(fault()));
    }

    /// Adds an unknown field. After [`MAX_FAULTS`] warnings, further ones are dropped.
    fn warn(&mut self, pod: Option<usize>, fault: impl FnOnce() -> Fault) {
        if self.manifest.warnings.len() < MAX_FAULTS {
            let Fault { at, pod: name, message } = fault();
            let message = format!("{message} (the field is ignored)");
            self.manifest.warnings.push(Warning { pod, fault: shortened(Fault { at, pod: name, message }) });
        }
    }

    fn unknown(&mut self, pod: Option<usize>, fault: impl FnOnce() -> Fault) {
        match self.unknown_fields {
            UnknownFields::Warn => self.warn(pod, fault),
            UnknownFields::Refuse => self.add(fault),
        }
    }

    fn document(&mut self, document: &YamlNode) {
        let Value::Map(entries) = &document.value else {
            return self.refuse(document.at, "is not an object: start with apiVersion: v1 and kind: Pod".into());
        };
        let text = |key| document.field(key).and_then(|entry| entry.node.text()).unwrap_or_default();
        match (text("apiVersion"), text("kind")) {
            ("v1", "Pod") => self.pod(document),
            ("v1", "PodList" | "List") => {
                let known = ["apiVersion", "items", "kind", "metadata"];
                for entry in entries.iter().filter(|entry| !known.contains(&entry.key.as_str())) {
                    let message = || format!("{}: {}", entry.key, typed::unknown_field(&entry.key, &known));
                    self.unknown(None, || Fault { at: entry.at, pod: None, message: message() });
                }
                match document.field("items").map(|entry| &entry.node.value) {
                    Some(Value::List(items)) => items.iter().for_each(|item| self.item(item)),
                    _ => self.refuse(document.at, "items is missing: list the pods there".into()),
                }
            }
            ("", "") => {
                self.refuse(document.at, "apiVersion and kind are missing: add apiVersion: v1 and kind: Pod".into())
            }
            (_, "") => self.refuse(document.at, "kind is missing: add kind: Pod".into()),
            (version, kind @ ("Pod" | "PodList" | "List")) => {
                let at = document.locate("apiVersion");
                self.refuse(at, format!("apiVersion of {kind} is {version:?}: write apiVersion: v1"));
            }
            (_, kind) => {
                let at = document.locate("kind");
                self.refuse(at, format!("kind {kind:?} cannot run here: only Pod, PodList and List of pods can"));
            }
        }
    }

    /// Adds an item of a list. The items of a `PodList` need no `kind`.
    fn item(&mut self, item: &YamlNode) {
        let kind = item.field("kind").and_then(|entry| entry.node.text()).unwrap_or("Pod");
        if !matches!(item.value, Value::Map(_)) || kind != "Pod" {
            return self.refuse(item.at, format!("an item of kind {kind:?} cannot run here: list only pods"));
        }
        self.pod(item);
    }

    fn pod(&mut self, node: &YamlNode) {
        let name =
            node.field("metadata").and_then(|entry| entry.node.field("name")).and_then(|entry| entry.node.text());
        let fault = |at, message| Fault { at, pod: name.map(str::to_owned), message };
        let type_fault = |found: typed::TypeFault| fault(found.at, format!("{}: {}", found.path, found.message));
        let (pod, unknown) = match typed::deserialize::<Pod>(node) {
            Ok(read) => read,
            Err(faults) => return faults.into_iter().for_each(|found| self.add(|| type_fault(found))),
        };
        let mut problems = validate::validate(&pod);
        problems.extend(validate::validate_static(&pod));
        let index = self.manifest.pods.len();
        let is_used = problems.is_empty() && (unknown.is_empty() || self.unknown_fields == UnknownFields::Warn);
        for found in unknown {
            // An unknown field is often the cause of another fault, such as a misspelled field that is missing.
            if is_used { self.unknown(Some(index), || type_fault(found)) } else { self.add(|| type_fault(found)) }
        }
        if is_used {
            self.manifest.pods.push(pod);
        }
        let invalid = |problem: &Problem| fault(node.locate(&problem.path), problem.to_string());
        problems.iter().for_each(|problem| self.add(|| invalid(problem)));
    }
}

/// The fault with texts of limited length, without control characters.
fn shortened(Fault { at, pod, message }: Fault) -> Fault {
    let short = |text: String, limit| plain(&text, limit).into_owned();
    Fault { at, pod: pod.map(|name| short(name, MAX_NAME)), message: short(message, MAX_MESSAGE) }
}

#[cfg(test)]
mod tests;
