//! Pods as bytes: the facts that a step reads of them. An object that the record holds already is written as a reference.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time as ApiTime};
use serde::{Deserialize, Serialize};

use super::Decoded;
use crate::codec::{Text, Uid};
use crate::ids::PodUid;
use crate::pod::{MIRROR_ANNOTATION, Phase, PodObject, SOURCE_ANNOTATION};
use crate::pod_worker::state::Record;
use crate::pod_worker::{Config, Target};
use crate::ports::RunningPod;

/// The most bytes of a resource version that are kept.
const LONGEST_VERSION: usize = 32;

/// The specs that a record holds: the one that the worker acts on, and the one of the pending update.
#[derive(Clone, Copy, Default)]
pub(crate) struct HeldConfigs<'a> {
    active: Option<&'a Config>,
    pending: Option<&'a Config>,
}

impl<'a> HeldConfigs<'a> {
    pub(crate) fn of(record: &'a Record) -> Self {
        HeldConfigs { active: record.active(), pending: record.pending_config() }
    }

    pub(crate) fn active(active: Option<&'a Config>) -> Self {
        HeldConfigs { active, pending: None }
    }
}

/// A [`Target`] in a recording.
// A recording has the index of the variant: another order of variants is another format.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum TargetData<'a> {
    #[serde(borrow)]
    Config(ConfigData<'a>),
    Runtime(RunningPodData<'a>),
}

impl<'a> TargetData<'a> {
    #[inline]
    pub(crate) fn new(target: &'a Target, held: HeldConfigs<'_>) -> Self {
        match target {
            Target::Config(config) => TargetData::Config(ConfigData::new(config, held)),
            Target::Runtime(running) => TargetData::Runtime(RunningPodData::new(running)),
        }
    }

    pub(crate) fn decode(self, held: HeldConfigs<'_>) -> Decoded<Target> {
        Ok(match self {
            TargetData::Config(config) => Target::Config(config.decode(held)?),
            TargetData::Runtime(running) => Target::Runtime(Arc::new(running.decode()?)),
        })
    }
}

/// A [`RunningPod`] in a recording.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RunningPodData<'a> {
    #[serde(borrow)]
    uid: Uid<'a>,
    full_name: Text<'a>,
}

impl<'a> RunningPodData<'a> {
    pub(crate) fn new(running: &'a RunningPod) -> Self {
        RunningPodData { uid: Uid::from(&running.uid), full_name: Text::new(running.full_name.as_str()) }
    }

    pub(crate) fn decode(self) -> Decoded<RunningPod> {
        let full_name = self.full_name.to_full_name().ok_or("a full name")?;
        Ok(RunningPod { uid: self.uid.into(), full_name })
    }
}

/// A [`Config`] in a recording.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ConfigData<'a> {
    #[serde(borrow)]
    pod: ObjectData<'a>,
    mirror: Option<ObjectData<'a>>,
}

/// A [`PodObject`] in a recording.
// A recording has the index of the variant: another order of variants is another format.
#[derive(Debug, Serialize, Deserialize)]
enum ObjectData<'a> {
    /// The object that the worker acts on.
    Active,
    /// The object of the pending update.
    Pending,
    #[serde(borrow)]
    New(PodData<'a>),
}

#[derive(Debug, Serialize, Deserialize)]
struct PodData<'a> {
    #[serde(borrow)]
    uid: Uid<'a>,
    full_name: Text<'a>,
    version: Text<'a>,
    phase: Phase,
    is_static: bool,
    is_mirror: bool,
    is_deleting: bool,
    deletion_grace: Option<i64>,
    spec_grace: Option<i64>,
}

impl<'a> ConfigData<'a> {
    #[inline]
    pub(crate) fn new(config: &'a Config, held: HeldConfigs<'_>) -> Self {
        ConfigData {
            pod: ObjectData::new(&config.pod, held, |held| Some(&held.pod)),
            mirror: config.mirror.as_ref().map(|mirror| ObjectData::new(mirror, held, |held| held.mirror.as_ref())),
        }
    }

    pub(crate) fn decode(self, held: HeldConfigs<'_>) -> Decoded<Config> {
        let pod = self.pod.decode(held, |held| Some(&held.pod))?;
        let mirror = self.mirror.map(|mirror| mirror.decode(held, |held| held.mirror.as_ref())).transpose()?;
        Ok(Config { pod, mirror })
    }
}

impl<'a> ObjectData<'a> {
    #[inline]
    fn new(object: &'a Arc<PodObject>, held: HeldConfigs<'_>, of: impl Fn(&Config) -> Option<&Arc<PodObject>>) -> Self {
        let is = |config: Option<&Config>| config.and_then(&of).is_some_and(|held| Arc::ptr_eq(held, object));
        if is(held.active) {
            ObjectData::Active
        } else if is(held.pending) {
            ObjectData::Pending
        } else {
            ObjectData::New(PodData::new(object))
        }
    }

    fn decode(self, held: HeldConfigs<'_>, of: impl Fn(&Config) -> Option<&Arc<PodObject>>) -> Decoded<Arc<PodObject>> {
        let config = match self {
            ObjectData::Active => held.active,
            ObjectData::Pending => held.pending,
            ObjectData::New(pod) => return pod.decode(),
        };
        config.and_then(of).cloned().ok_or("an object that the record holds")
    }
}

impl<'a> PodData<'a> {
    #[inline]
    fn new(pod: &'a PodObject) -> Self {
        PodData {
            uid: Uid::from(pod.uid()),
            full_name: Text::new(pod.full_name().as_str()),
            version: Text::new(version(pod)),
            phase: pod.phase(),
            is_static: pod.is_static(),
            is_mirror: pod.is_mirror(),
            is_deleting: pod.is_deleting(),
            deletion_grace: pod.deletion_grace(),
            spec_grace: pod.spec_grace(),
        }
    }

    fn decode(self) -> Decoded<Arc<PodObject>> {
        let full_name = self.full_name.to_full_name().ok_or("a full name")?;
        let version = self.version.as_str();
        let mut annotations = std::collections::BTreeMap::new();
        if self.is_static {
            annotations.insert(SOURCE_ANNOTATION.to_owned(), "file".to_owned());
        }
        if self.is_mirror {
            annotations.insert(MIRROR_ANNOTATION.to_owned(), String::new());
        }
        let pod = Pod {
            metadata: ObjectMeta {
                name: Some(full_name.name().to_owned()),
                namespace: Some(full_name.namespace().to_owned()),
                uid: Some(PodUid::from(self.uid).to_string()),
                resource_version: (!version.is_empty()).then(|| version.to_owned()),
                annotations: Some(annotations),
                deletion_timestamp: self.is_deleting.then_some(ApiTime(jiff::Timestamp::UNIX_EPOCH)),
                deletion_grace_period_seconds: self.deletion_grace,
                ..ObjectMeta::default()
            },
            spec: Some(PodSpec { termination_grace_period_seconds: self.spec_grace, ..PodSpec::default() }),
            status: Some(PodStatus { phase: Some(self.phase.as_str().to_owned()), ..PodStatus::default() }),
        };
        PodObject::new(pod).map_err(|_| "a pod with a name, a namespace and a UID")
    }
}

/// The resource version that the API server gave the object. It is empty for an object of another source, where a new version
/// is a new pod with its own UID.
pub(crate) fn version(pod: &PodObject) -> &str {
    let version = pod.metadata().resource_version.as_deref().unwrap_or_default();
    version.get(..LONGEST_VERSION.min(version.len())).unwrap_or_default()
}
