//! The last content of each manifest file or URL.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use podwright_core::config::defaults::{StaticContext, apply_static_defaults};
use podwright_model::ids::FullName;
use podwright_model::pod::{PodObject, SEEN_ANNOTATION};
use podwright_ports::{Severity, SourceKind, SourceProblem, SourceSet};

use super::SourceContext;
use super::holders::{DefinedPod, Holders};
use crate::manifest::{self, Manifest};

/// The fault of a text that the agent cannot read because of a fault of its own.
const PANICKED: &str = "the agent panicked while it read this text, as its log says: change the text, or remove it";

/// The longest name that an API object may have, in bytes.
pub const MAX_NAME: usize = 253;

/// The pods of one manifest file or URL.
#[derive(Debug, Default)]
pub(super) struct CachedManifest {
    /// The text that was read last. An equal text is not parsed again.
    bytes: Option<Vec<u8>>,
    pods: Vec<Arc<PodObject>>,
    /// The faults in that text.
    faults: Vec<String>,
    /// The warnings about that text, each with the pod that it is about.
    warnings: Vec<(String, Option<FullName>)>,
    /// Why the last attempt to read a newer text failed.
    unreadable: Option<String>,
}

impl CachedManifest {
    /// Updates the pods from a text.
    ///
    /// If the text has a fault, the pods that only the previous text defined are kept: the faulty part may be meant to
    /// define them (POD-W27).
    pub(super) fn read(&mut self, bytes: Vec<u8>, source: SourceKind, origin: &str, cx: &SourceContext) {
        self.unreadable = None;
        if self.bytes.as_ref() == Some(&bytes) {
            return;
        }
        // After a panic, the source goes on with what it has read. It keeps the pods, and must not panic on the same text for ever.
        self.warnings.clear();
        self.faults = vec![PANICKED.to_owned()];
        let bytes = self.bytes.insert(bytes);
        let Manifest { pods, faults, warnings } = manifest::read_with(bytes, cx.unknown_fields);
        let mut faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        let mut fresh = Vec::with_capacity(pods.len());
        let mut names = Vec::with_capacity(pods.len());
        for pod in pods {
            let object = self.object(pod, source, origin, cx);
            names.push(object.as_ref().ok().map(|object| object.full_name().clone()));
            match object {
                Ok(object) => fresh.push(object),
                Err(fault) => faults.push(fault),
            }
        }
        let pod = |index: Option<usize>| names.get(index?).cloned().flatten();
        self.warnings = warnings.iter().map(|warning| (warning.fault.to_string(), pod(warning.pod))).collect();
        if !faults.is_empty() {
            let names: BTreeSet<_> = fresh.iter().map(|pod| pod.full_name().clone()).collect();
            let kept: Vec<_> = self.pods.drain(..).filter(|pod| !names.contains(pod.full_name())).collect();
            fresh.extend(kept);
        }
        self.pods = fresh;
        self.faults = faults;
    }

    /// Records that the text could not be read. The pods are kept.
    pub(super) fn fail(&mut self, why: String) {
        self.unreadable = Some(why);
    }

    /// Whether a text was ever read.
    pub(super) fn was_read(&self) -> bool {
        self.bytes.is_some()
    }

    fn object(
        &self,
        mut pod: Pod,
        source: SourceKind,
        origin: &str,
        cx: &SourceContext,
    ) -> Result<Arc<PodObject>, String> {
        let now = cx.clock.now();
        apply_static_defaults(&mut pod, &StaticContext { node_name: &cx.node_name, source, origin, now });
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        if name.len() > MAX_NAME {
            let over = name.len() - MAX_NAME;
            return Err(format!(
                "pod name {name:?}, which ends with the node's name, is too long: shorten it by {over} bytes"
            ));
        }
        let new = PodObject::new(pod).map_err(|error| error.to_string())?;
        // An unchanged pod stays the same object, so that a comparison of pointers finds that it is unchanged.
        let Some(old) = self.pods.iter().find(|old| old.uid() == new.uid()) else { return Ok(new) };
        let new = match old.annotation(SEEN_ANNOTATION) {
            Some(seen) => new.with_first_seen(seen),
            None => new,
        };
        Ok(if old.pod() == new.pod() { old.clone() } else { new })
    }
}

/// All manifests of a source, by path or URL.
#[derive(Debug, Default)]
pub(super) struct ManifestCache {
    pub(super) manifests: BTreeMap<String, CachedManifest>,
    holders: Holders,
}

impl ManifestCache {
    /// The names of the pods in the manifests that `which` selects.
    pub(super) fn names(&self, which: impl Fn(&&String) -> bool) -> Vec<FullName> {
        let manifests = self.manifests.iter().filter(|(what, _)| which(what));
        manifests.flat_map(|(_, manifest)| &manifest.pods).map(|pod| pod.full_name().clone()).collect()
    }

    /// The problems of the manifests in `order`.
    pub(super) fn problems(&self, order: &[&str]) -> Vec<SourceProblem> {
        let mut problems = Vec::new();
        for (what, manifest) in in_order(&self.manifests, order) {
            let messages = manifest.unreadable.iter().chain(&manifest.faults).cloned();
            let held = || manifest.pods.iter().map(|pod| pod.full_name().clone()).collect();
            problems.extend(messages.map(|message| SourceProblem {
                what: what.to_owned(),
                message,
                pods: held(),
                severity: Severity::Fault,
            }));
            problems.extend(manifest.warnings.iter().map(|(message, pod)| SourceProblem {
                what: what.to_owned(),
                message: message.clone(),
                pods: pod.iter().cloned().collect(),
                severity: Severity::Warning,
            }));
        }
        problems
    }

    /// The set to deliver: the pods of the manifests in `order`, with their problems and those of the caller.
    pub(super) fn set(
        &mut self,
        source: SourceKind,
        order: &[&str],
        mut problems: Vec<SourceProblem>,
        cx: &SourceContext,
    ) -> SourceSet {
        problems.extend(self.problems(order));
        let defined: Vec<DefinedPod<'_>> = in_order(&self.manifests, order)
            .flat_map(|(what, manifest)| manifest.pods.iter().map(move |pod| (what, pod)))
            .collect();
        let (pods, duplicates) = self.holders.choose(&defined, &*cx.has_started);
        problems.extend(duplicates);
        SourceSet { source, pods, problems }
    }
}

fn in_order<'a>(
    manifests: &'a BTreeMap<String, CachedManifest>,
    order: &'a [&str],
) -> impl Iterator<Item = (&'a str, &'a CachedManifest)> {
    order.iter().filter_map(move |what| manifests.get(*what).map(|manifest| (*what, manifest)))
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use podwright_model::time::Time;
    use podwright_ports::{Clock, TokioClock};

    use crate::manifest::UnknownFields;

    use super::*;

    fn pod(name: &str, image: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: {image}}}]}}\n"
        )
    }

    fn cx() -> SourceContext {
        SourceContext::new("node", Arc::new(TokioClock::new()))
    }

    fn read(manifest: &mut CachedManifest, text: &str) {
        manifest.read(text.as_bytes().to_vec(), SourceKind::File, "/pods/a.yaml", &cx());
    }

    fn held(manifest: &CachedManifest) -> Vec<String> {
        let image = |pod: &PodObject| pod.containers()[0].image.clone().unwrap();
        manifest.pods.iter().map(|pod| format!("{} {}", pod.full_name().name(), image(pod))).collect()
    }

    // A faulty edit must not stop pods (POD-W27).
    #[tokio::test]
    async fn faulty_manifest_keeps_its_last_static_pods() {
        let mut manifest = CachedManifest::default();
        read(&mut manifest, &format!("{}---\n{}", pod("a", "one"), pod("b", "one")));
        assert_eq!(held(&manifest), ["a-node one", "b-node one"]);

        for broken in ["", "apiVersion: v1\nkind: [", "kind: Pod\n", &pod("a", "one").replace("name: c", "name: C")] {
            read(&mut manifest, broken);
            assert_eq!(held(&manifest), ["a-node one", "b-node one"], "{broken}");
            assert_eq!(manifest.faults.len(), 1, "{broken}");
        }
        manifest.fail("permission denied".into());
        assert_eq!(held(&manifest), ["a-node one", "b-node one"]);

        read(&mut manifest, &format!("{}---\nkind: Nothing\n", pod("b", "two")));
        assert_eq!(held(&manifest), ["b-node two", "a-node one"], "the good part of a text is used");
        read(&mut manifest, &pod("b", "two"));
        assert_eq!(held(&manifest), ["b-node two"], "a text without fault drops the pods that it does not have");
        assert!(manifest.faults.is_empty() && manifest.unreadable.is_none());
    }

    struct FaultyClock;

    impl Clock for FaultyClock {
        fn now(&self) -> Time {
            panic!("a faulty clock")
        }
    }

    #[tokio::test]
    async fn text_on_which_the_agent_panics_is_faulty_and_is_read_once() {
        let mut manifest = CachedManifest::default();
        read(&mut manifest, &pod("a", "one"));
        let faulty = SourceContext::new("node", Arc::new(FaultyClock));
        let mut read_faulty = || manifest.read(pod("a", "two").into_bytes(), SourceKind::File, "/pods/a.yaml", &faulty);
        assert!(catch_unwind(AssertUnwindSafe(&mut read_faulty)).is_err());
        read_faulty();
        assert_eq!((held(&manifest), manifest.faults.len()), (vec!["a-node one".to_owned()], 1));
        read(&mut manifest, &pod("a", "three"));
        assert_eq!((held(&manifest), manifest.faults.len()), (vec!["a-node three".to_owned()], 0));
    }

    #[tokio::test]
    async fn unchanged_static_pod_stays_the_same_object() {
        let mut manifest = CachedManifest::default();
        read(&mut manifest, &pod("a", "one"));
        let first = manifest.pods[0].clone();
        read(&mut manifest, &format!("# a comment\n{}", pod("a", "one")));
        assert!(Arc::ptr_eq(&first, &manifest.pods[0]));
        read(&mut manifest, &pod("a", "two"));
        assert!(!Arc::ptr_eq(&first, &manifest.pods[0]));
        assert_ne!(first.uid(), manifest.pods[0].uid());
        assert_eq!(first.full_name(), manifest.pods[0].full_name());
    }

    #[tokio::test]
    async fn unknown_field_is_a_warning_about_its_pod_and_in_strict_mode_a_fault() {
        let text = format!("{}---\n{}", pod("a", "one"), pod("b", "one").replace("image", "imagee: x, image"));
        let problems = |cx: &SourceContext| {
            let mut cache = ManifestCache::default();
            let manifest = cache.manifests.entry("/m".into()).or_default();
            manifest.read(text.clone().into_bytes(), SourceKind::File, "/m", cx);
            let pods = held(manifest);
            (pods, cache.set(SourceKind::File, &["/m"], vec![], cx).problems)
        };
        let (pods, warnings) = problems(&cx());
        assert_eq!(pods, ["a-node one", "b-node one"]);
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        assert_eq!(
            (warning.severity, &warning.pods[..]),
            (Severity::Warning, &[FullName::new("default", "b-node")][..])
        );
        assert!(warning.message.contains("imagee: unknown field"), "{warning}");

        let (pods, faults) = problems(&SourceContext { unknown_fields: UnknownFields::Refuse, ..cx() });
        assert_eq!(pods, ["a-node one"]);
        assert_eq!((faults.len(), faults[0].severity), (1, Severity::Fault));
    }

    #[tokio::test]
    async fn static_pod_name_too_long_with_the_node_name_is_refused() {
        let mut manifest = CachedManifest::default();
        read(&mut manifest, &pod(&"a".repeat(250), "one"));
        assert!(manifest.pods.is_empty());
        assert!(manifest.faults[0].contains("shorten it by 2"), "{}", manifest.faults[0]);
    }

    #[tokio::test]
    async fn static_pod_defined_in_two_files_runs_once_and_is_reported_with_both() {
        let mut cache = ManifestCache::default();
        for what in ["/a", "/b"] {
            cache.manifests.entry(what.into()).or_default().read(
                pod("x", "one").into_bytes(),
                SourceKind::File,
                what,
                &cx(),
            );
        }
        let set = cache.set(SourceKind::File, &["/a", "/b"], vec![], &cx());
        assert_eq!((set.pods.len(), set.problems.len()), (1, 1));
        assert_eq!(set.problems[0].what, "/b");
        assert!(set.problems[0].message.contains("default/x-node") && set.problems[0].message.contains("/a"));
    }
}
