//! The behaviour of simulated containers, and the settings and annotations that define it. Pure.

mod values;

use std::collections::BTreeMap;

use values::Setting;

pub use values::{Latency, RunFor, Share, StopLatency};

/// The prefix of the annotations, as in `simulated.podwright.dev/run-for: 5s`.
pub const ANNOTATION_PREFIX: &str = "simulated.podwright.dev/";

/// What a simulated pod and its containers do over time.
///
/// Each field has a key. The key sets the field for all pods ([`set`](Behaviour::set)), or for one pod as an annotation. An
/// annotation may have different values for different containers: with `5s,proxy=forever` all containers but `proxy` get
/// `5s`.
///
/// An init container that is not a sidecar ends at once with exit code 0. The keys `run-for`, `exits` and `exit-code` apply to
/// it only in annotations that name it.
#[derive(Clone, Debug, PartialEq)]
pub struct Behaviour {
    /// `sandbox-latency`: how long the creation of a sandbox with its network takes. Applies to the whole pod.
    pub sandbox_latency: Latency,
    /// `sandbox-failures`: which attempts to create a sandbox fail. Applies to the whole pod.
    pub sandbox_failures: Share,
    /// `network-failures`: which calls of probes and hooks to the pod's address are refused. Applies to the whole pod.
    pub network_failures: Share,
    /// `pull-latency`: how long a pull takes.
    pub pull_latency: Latency,
    /// `pull-failures`: which attempts to pull fail.
    pub pull_failures: Share,
    /// `start-latency`: how long the start of a container takes.
    pub start_latency: Latency,
    /// `start-failures`: which attempts to start fail.
    pub start_failures: Share,
    /// `run-for`: how long a container runs until it ends by itself, or `forever`.
    pub run_for: RunFor,
    /// `exits`: which runs end by themselves after `run-for`. The other runs go on until they are stopped.
    pub exits: Share,
    /// `exit-code`: the exit code of a run that ends by itself.
    pub exit_code: u8,
    /// `stop-latency`: how long a container takes to end with exit code 0 after SIGTERM, or `never` if it has to be killed.
    pub stop_latency: StopLatency,
    /// `exec-exit-code`: the exit code of every command of an exec probe or hook.
    pub exec_exit_code: u8,
}

/// Everything succeeds at once, and containers run for ever.
impl Default for Behaviour {
    fn default() -> Self {
        Behaviour {
            sandbox_latency: Latency::ZERO,
            sandbox_failures: Share::Never,
            network_failures: Share::Never,
            pull_latency: Latency::ZERO,
            pull_failures: Share::Never,
            start_latency: Latency::ZERO,
            start_failures: Share::Never,
            run_for: RunFor::Forever,
            exits: Share::Always,
            exit_code: 0,
            stop_latency: StopLatency::After(Latency::ZERO),
            exec_exit_code: 0,
        }
    }
}

/// The keys that apply to a whole pod.
const POD_KEYS: [&str; 3] = ["sandbox-latency", "sandbox-failures", "network-failures"];
/// The keys that apply to a container.
const CONTAINER_KEYS: [&str; 9] = [
    "pull-latency",
    "pull-failures",
    "start-latency",
    "start-failures",
    "run-for",
    "exits",
    "exit-code",
    "stop-latency",
    "exec-exit-code",
];

/// The keys that define how a run ends by itself.
const END_KEYS: [&str; 3] = ["run-for", "exits", "exit-code"];

/// The container whose behaviour is requested.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamedContainer<'a> {
    /// The container's name; empty for the pod as a whole.
    pub(super) name: &'a str,
    /// Whether it is an init container that is not a sidecar.
    pub(super) is_init: bool,
}

/// Whether [`Behaviour`] has a setting with this key.
fn known(key: &str) -> bool {
    POD_KEYS.contains(&key) || CONTAINER_KEYS.contains(&key)
}

fn all_keys() -> String {
    [&POD_KEYS[..], &CONTAINER_KEYS[..]].concat().join(", ")
}

/// An invalid setting, with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSetting {
    /// There is no setting with this key.
    #[error("there is no setting {0:?}: write one of {keys}", keys = all_keys())]
    Unknown(String),
    /// The value is not valid for the key.
    #[error("{key} cannot be {value:?}: write {expected}")]
    Value {
        /// The key.
        key: String,
        /// The invalid value.
        value: String,
        /// The valid values.
        expected: &'static str,
    },
}

/// An invalid annotation of a pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("annotation {ANNOTATION_PREFIX}{key}: {problem}")]
pub struct BadAnnotation {
    /// The part after [`ANNOTATION_PREFIX`].
    pub key: String,
    /// What is wrong with the annotation.
    pub problem: AnnotationProblem,
}

/// What is wrong with an annotation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnnotationProblem {
    /// The key or a value is invalid.
    #[error(transparent)]
    Setting(#[from] BadSetting),
    /// The value names a container that the pod does not have.
    #[error("{value:?} names container {container:?}, which the pod does not have: name one of {names}")]
    NoSuchContainer {
        /// The whole value.
        value: String,
        /// The unknown container.
        container: String,
        /// The names of the pod's containers.
        names: String,
    },
    /// The value names a container, but the key applies to the whole pod.
    #[error("{value:?} names a container, but the setting applies to the whole pod: write one value")]
    WholePod {
        /// The whole value.
        value: String,
    },
}

impl Behaviour {
    /// Sets one field by its key.
    ///
    /// # Errors
    /// [`BadSetting`] if there is no such key, or the value is not valid for it. Then nothing is changed.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), BadSetting> {
        fn read<T: Setting>(field: &mut T, key: &str, value: &str) -> Result<(), BadSetting> {
            let bad = || BadSetting::Value { key: key.into(), value: value.into(), expected: T::EXPECTED };
            *field = T::read(value.trim()).ok_or_else(bad)?;
            Ok(())
        }
        match key {
            "sandbox-latency" => read(&mut self.sandbox_latency, key, value),
            "sandbox-failures" => read(&mut self.sandbox_failures, key, value),
            "network-failures" => read(&mut self.network_failures, key, value),
            "pull-latency" => read(&mut self.pull_latency, key, value),
            "pull-failures" => read(&mut self.pull_failures, key, value),
            "start-latency" => read(&mut self.start_latency, key, value),
            "start-failures" => read(&mut self.start_failures, key, value),
            "run-for" => read(&mut self.run_for, key, value),
            "exits" => read(&mut self.exits, key, value),
            "exit-code" => read(&mut self.exit_code, key, value),
            "stop-latency" => read(&mut self.stop_latency, key, value),
            "exec-exit-code" => read(&mut self.exec_exit_code, key, value),
            _ => Err(BadSetting::Unknown(key.to_owned())),
        }
    }

    /// The defaults for an init container that is not a sidecar. It ends at once with exit code 0: other containers wait for
    /// its end, so with `run-for: forever` they would never start.
    pub(super) fn for_init_container(&self) -> Behaviour {
        Behaviour { run_for: RunFor::Time(Latency::ZERO), exits: Share::Always, exit_code: 0, ..self.clone() }
    }

    /// The behaviour of one container of a pod: these defaults, changed by the pod's annotations. `None` if the pod has no
    /// such annotations. Every annotation is parsed for every container, so the first container reports an invalid
    /// annotation.
    ///
    /// # Errors
    /// [`BadAnnotation`] for the first invalid annotation.
    pub(super) fn for_container(
        &self,
        annotations: Option<&BTreeMap<String, String>>,
        container: NamedContainer<'_>,
        all: &[&str],
    ) -> Result<Option<Behaviour>, BadAnnotation> {
        let ours = || {
            let all = annotations.into_iter().flatten();
            all.filter_map(|(name, value)| Some((name.strip_prefix(ANNOTATION_PREFIX)?, value.as_str())))
        };
        if ours().next().is_none() {
            return Ok(None);
        }
        let mut behaviour = self.clone();
        for (key, value) in ours() {
            let bad = |problem: AnnotationProblem| BadAnnotation { key: key.to_owned(), problem };
            behaviour.annotate(key, value, container, all).map_err(bad)?;
        }
        Ok(Some(behaviour))
    }

    fn annotate(
        &mut self,
        key: &str,
        value: &str,
        container: NamedContainer<'_>,
        all: &[&str],
    ) -> Result<(), AnnotationProblem> {
        if !known(key) {
            return Err(BadSetting::Unknown(key.to_owned()).into());
        }
        let mut own = None;
        let mut others = None;
        let mut scratch = self.clone();
        for part in value.split(',') {
            let Some((name, part)) = part.split_once('=') else {
                scratch.set(key, part)?;
                others = Some(part);
                continue;
            };
            let name = name.trim();
            if POD_KEYS.contains(&key) {
                return Err(AnnotationProblem::WholePod { value: value.to_owned() });
            }
            if !all.contains(&name) {
                return Err(AnnotationProblem::NoSuchContainer {
                    value: value.to_owned(),
                    container: name.to_owned(),
                    names: all.join(", "),
                });
            }
            scratch.set(key, part)?;
            if name == container.name {
                own = Some(part);
            }
        }
        let others = others.filter(|_| !(container.is_init && END_KEYS.contains(&key)));
        match own.or(others) {
            Some(value) => Ok(self.set(key, value)?),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ALL: [&str; 3] = ["setup", "web", "proxy"];

    fn parsed(annotations: &[(&str, &str)], container: &str) -> Result<Option<Behaviour>, BadAnnotation> {
        let annotations = annotations.iter().map(|(key, value)| (format!("{ANNOTATION_PREFIX}{key}"), (*value).into()));
        let named = NamedContainer { name: container, is_init: container == "setup" };
        Behaviour::default().for_container(Some(&annotations.collect()), named, &ALL)
    }

    #[test]
    fn annotation_value_may_differ_between_containers() {
        let annotations = [("run-for", "5s, proxy=1s..2s"), ("exit-code", "proxy=3")];
        let web = parsed(&annotations, "web").unwrap().unwrap();
        assert_eq!(web.run_for, RunFor::Time(Latency::exactly(Duration::from_secs(5))));
        assert_eq!(web.exit_code, 0);
        let proxy = parsed(&annotations, "proxy").unwrap().unwrap();
        let range = Latency::between(Duration::from_secs(1), Duration::from_secs(2));
        assert_eq!(proxy.run_for, RunFor::Time(range));
        assert_eq!(proxy.exit_code, 3);
        assert_eq!(parsed(&annotations, "setup").unwrap().unwrap(), Behaviour::default());
        assert_eq!(parsed(&[("exit-code", "setup=9,1")], "setup").unwrap().unwrap().exit_code, 9);
        assert_eq!(parsed(&[], "web"), Ok(None));
    }

    #[test]
    fn invalid_annotation_is_refused_with_a_remedy() {
        for (key, value, says) in [
            ("run-fro", "5s", "write one of sandbox-latency"),
            ("run-for", "soon", "run-for cannot be \"soon\": write a duration"),
            ("run-for", "2s..1s", "range"),
            ("run-for", "-1s", "duration"),
            ("exits", "1.5", "fraction"),
            ("exit-code", "256", "0 to 255"),
            ("stop-latency", "web=no", "never"),
            ("run-for", "db=5s", "name one of setup, web, proxy"),
            ("sandbox-latency", "web=5s", "whole pod"),
        ] {
            // Also for a container that the annotation does not name.
            let error = parsed(&[(key, value)], "proxy").unwrap_err().to_string();
            assert!(error.contains(&format!("{ANNOTATION_PREFIX}{key}")) && error.contains(says), "{error}");
        }
    }
}
