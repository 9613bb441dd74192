//! Manifests: YAML or JSON text to pods, strictly. What cannot be used is said with its place and the remedy, one message
//! for each fault, and does not keep the other pods of the text from being used.

mod tree;
mod typed;

use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use podwright_actors::config::validate::{self, Problem};
use podwright_actors::text::plain;

pub use tree::Position;

use tree::{Value, YamlNode};

/// The largest manifest that is read (upstream `maxConfigLength`, 1.36).
pub const MAX_BYTES: usize = 10 << 20;

/// How many faults of one text are told.
const MAX_FAULTS: usize = 100;
/// How long one may be, in bytes: values and keys are quoted, and may be of any length.
const MAX_MESSAGE: usize = 1000;
/// The longest name that a pod may have.
const MAX_NAME: usize = 253;

/// What a text holds.
#[derive(Clone, Debug, Default)]
pub struct Manifest {
    /// The pods without fault, as written: nothing is defaulted.
    pub pods: Vec<Pod>,
    /// What is wrong with the rest.
    pub faults: Vec<Fault>,
}

/// Something in a manifest that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub struct Fault {
    /// Where, if the parser can tell.
    pub at: Option<Position>,
    /// The name of the pod, if it has one.
    pub pod: Option<String>,
    /// What is wrong with which field, and what to do.
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

/// Reads a manifest for static pods: `v1` objects of kind `Pod`, `PodList` or `List` of pods, one or more YAML documents.
///
/// A pod is used only if it has no field that the API does not know, no value of a wrong type, and passes
/// [`validate`](validate::validate) and [`validate_static`](validate::validate_static).
pub fn read(bytes: &[u8]) -> Manifest {
    let mut reader = ManifestBuilder::default();
    if bytes.len() > MAX_BYTES {
        reader.refuse(None, format!("has {} bytes: split it into manifests of at most 10 MiB", bytes.len()));
        return reader.finish();
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let at = Position::behind(&String::from_utf8_lossy(&bytes[..error.valid_up_to()]));
            reader.refuse(Some(at), "not valid UTF-8: save it in that encoding".into());
            return reader.finish();
        }
    };
    match serde_saphyr::from_multiple_with_options::<YamlNode>(text, options()) {
        Err(error) => {
            let error = error.without_snippet();
            reader.refuse(error.location().and_then(Position::of), brief(error));
        }
        Ok(documents) if documents.is_empty() => {
            reader.refuse(None, "holds no pod: write one, or remove the manifest to stop its pods".into());
        }
        Ok(documents) => documents.iter().for_each(|document| reader.document(document)),
    }
    reader.finish()
}

fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        // A mode such as 0644 is octal to the tools that manifests are written with.
        legacy_octal_numbers: true,
        // The document is read before the type of a field is known; whether `y` is a name or a truth value is not known
        // here.
        strict_booleans: true,
        with_snippet: false,
        // Reading nests calls. A list of pods needs half of this, and a thread's stack would take twice of it.
        budget: serde_saphyr::budget! { max_depth: 32 },
        // So much text may stand in for aliases, whatever they are aliases of.
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 10_000 },
    }
}

/// The parser's message without the place, which is told before it.
fn brief(error: &serde_saphyr::Error) -> String {
    if let serde_saphyr::Error::DuplicateMappingKey { key, .. } = error {
        return format!("field {:?} is set twice: keep one", key.as_deref().unwrap_or_default());
    }
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    let line = line.split(" at line ").next().unwrap_or(line);
    format!("not valid YAML or JSON: {line}")
}

/// What was read so far.
#[derive(Debug, Default)]
struct ManifestBuilder {
    manifest: Manifest,
    /// How many faults there are beyond those that are told.
    unreported: usize,
}

impl ManifestBuilder {
    fn finish(mut self) -> Manifest {
        if self.unreported > 0 {
            let message = format!("and {} faults more: mend these first", self.unreported);
            self.manifest.faults.push(Fault { at: None, pod: None, message });
        }
        self.manifest
    }

    fn refuse(&mut self, at: Option<Position>, message: String) {
        self.add(|| Fault { at, pod: None, message });
    }

    /// One fault more, made only if it is told: to find the place of each in a long text takes long.
    fn add(&mut self, fault: impl FnOnce() -> Fault) {
        if self.manifest.faults.len() >= MAX_FAULTS {
            self.unreported += 1;
            return;
        }
        let Fault { at, pod, message } = fault();
        let short = |text: String, most| plain(&text, most).into_owned();
        let (pod, message) = (pod.map(|name| short(name, MAX_NAME)), short(message, MAX_MESSAGE));
        self.manifest.faults.push(Fault { at, pod, message });
    }

    fn document(&mut self, document: &YamlNode) {
        let Value::Map(entries) = &document.value else {
            return self.refuse(document.at, "is not an object: start with apiVersion: v1 and kind: Pod".into());
        };
        let word = |key| document.field(key).and_then(|entry| entry.node.text()).unwrap_or_default();
        match (word("apiVersion"), word("kind")) {
            ("v1", "Pod") => self.pod(document),
            ("v1", "PodList" | "List") => {
                let known = ["apiVersion", "items", "kind", "metadata"];
                for entry in entries.iter().filter(|entry| !known.contains(&entry.key.as_str())) {
                    self.refuse(entry.at, format!("{}: {}", entry.key, typed::unknown_field(&entry.key, &known)));
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

    /// An item of a list. In a `PodList` items need not say what they are.
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
        let pod = match typed::typed::<Pod>(node) {
            Ok(pod) => pod,
            Err(faults) => {
                let said = |found: typed::TypeFault| fault(found.at, format!("{}: {}", found.path, found.message));
                return faults.into_iter().for_each(|found| self.add(|| said(found)));
            }
        };
        let mut problems = validate::validate(&pod);
        problems.extend(validate::validate_static(&pod));
        if problems.is_empty() {
            self.manifest.pods.push(pod);
        }
        let said = |problem: &Problem| fault(node.locate(&problem.path), problem.to_string());
        problems.iter().for_each(|problem| self.add(|| said(problem)));
    }
}

#[cfg(test)]
mod tests;
