//! Manifests: YAML or JSON text to pods, strictly. What cannot be used is said with its place and the remedy, one message
//! for each fault, and does not keep the other pods of the text from being used.

mod tree;
mod typed;

use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use podwright_actors::config::validate::{self, Problem};

pub use tree::Place;

use tree::{Node, Value};

/// The largest manifest that is read (upstream `maxConfigLength`, 1.36).
pub const MAX_BYTES: usize = 10 << 20;

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
    pub at: Option<Place>,
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
    let mut manifest = Manifest::default();
    if bytes.len() > MAX_BYTES {
        manifest.refuse(None, format!("has {} bytes: split it into manifests of at most 10 MiB", bytes.len()));
        return manifest;
    }
    match serde_saphyr::from_slice_multiple_with_options::<Node>(bytes, options()) {
        Err(error) => {
            let error = error.without_snippet();
            manifest.refuse(error.location().and_then(Place::of), brief(error));
        }
        Ok(documents) if documents.is_empty() => {
            manifest.refuse(None, "holds no pod: write one, or remove the manifest to stop its pods".into());
        }
        Ok(documents) => documents.iter().for_each(|document| manifest.document(document)),
    }
    manifest
}

fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        // A mode such as 0644 is octal to the tools that manifests are written with.
        legacy_octal_numbers: true,
        // The document is read before the type of a field is known; whether `y` is a name or a truth value is not known
        // here.
        strict_booleans: true,
        with_snippet: false,
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

impl Manifest {
    fn refuse(&mut self, at: Option<Place>, message: String) {
        self.faults.push(Fault { at, pod: None, message });
    }

    fn document(&mut self, document: &Node) {
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
    fn item(&mut self, item: &Node) {
        let kind = item.field("kind").and_then(|entry| entry.node.text()).unwrap_or("Pod");
        if !matches!(item.value, Value::Map(_)) || kind != "Pod" {
            return self.refuse(item.at, format!("an item of kind {kind:?} cannot run here: list only pods"));
        }
        self.pod(item);
    }

    fn pod(&mut self, node: &Node) {
        let name =
            node.field("metadata").and_then(|entry| entry.node.field("name")).and_then(|entry| entry.node.text());
        let fault = |at, message| Fault { at, pod: name.map(str::to_owned), message };
        let pod = match typed::typed::<Pod>(node) {
            Ok(pod) => pod,
            Err(misfits) => {
                let faults =
                    misfits.into_iter().map(|misfit| fault(misfit.at, format!("{}: {}", misfit.path, misfit.message)));
                return self.faults.extend(faults);
            }
        };
        let mut problems = validate::validate(&pod);
        problems.extend(validate::validate_static(&pod));
        if problems.is_empty() {
            self.pods.push(pod);
        }
        let place = |problem: &Problem| node.locate(&problem.path);
        self.faults.extend(problems.iter().map(|problem| fault(place(problem), problem.to_string())));
    }
}

#[cfg(test)]
mod tests;
