//! Pods in a recording: what `step` reads of them, written once; an object that a record holds already is only pointed at.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time as ApiTime};

use crate::codec::{Coded, Put, Read, Reader, coded};
use crate::ids::PodUid;
use crate::pod::{MIRROR_ANNOTATION, Phase, PodObject, SOURCE_ANNOTATION};
use crate::pod_worker::state::Record;
use crate::pod_worker::update::{Config, Target};
use crate::ports::RunningPod;

coded!(Phase: Pending, Running, Succeeded, Failed, Unknown);

/// Of a version so many bytes are kept.
const LONGEST_VERSION: usize = 32;

/// Where an object stands that need not be written again.
const NONE: u8 = 0;
const ACTIVE: u8 = 1;
const PENDING: u8 = 2;
const NEW: u8 = 3;

/// The specs that a record holds: what it acts on, and what waits to be taken.
#[derive(Clone, Copy, Default)]
pub(crate) struct Held<'a> {
    active: Option<&'a Config>,
    pending: Option<&'a Config>,
}

impl<'a> Held<'a> {
    pub(crate) fn of(record: &'a Record) -> Self {
        Held { active: record.active(), pending: record.pending_config() }
    }

    pub(crate) fn active(active: Option<&'a Config>) -> Self {
        Held { active, pending: None }
    }

    fn place(&self, object: &Arc<PodObject>, of: impl Fn(&Config) -> Option<&Arc<PodObject>>) -> u8 {
        let is = |config: Option<&Config>| config.and_then(&of).is_some_and(|held| Arc::ptr_eq(held, object));
        match () {
            () if is(self.active) => ACTIVE,
            () if is(self.pending) => PENDING,
            () => NEW,
        }
    }

    fn at(&self, place: u8) -> Option<&'a Config> {
        match place {
            ACTIVE => self.active,
            PENDING => self.pending,
            _ => None,
        }
    }
}

/// A pod alone, or the one that the runtime knows.
pub(crate) fn put_target(bytes: &mut Vec<u8>, target: &Target, held: Held<'_>) {
    bytes.flag(matches!(target, Target::Runtime(_)));
    match target {
        Target::Config(config) => put_config(bytes, config, held),
        Target::Runtime(running) => put_running(bytes, running),
    }
}

pub(crate) fn read_target(reader: &mut Reader<'_>, held: Held<'_>) -> Read<Target> {
    Ok(match reader.flag("whether only the runtime knows the pod")? {
        true => Target::Runtime(Arc::new(read_running(reader)?)),
        false => Target::Config(read_config(reader, held)?),
    })
}

pub(crate) fn put_running(bytes: &mut Vec<u8>, running: &RunningPod) {
    bytes.uid(&running.uid);
    bytes.full_name(&running.full_name);
}

pub(crate) fn read_running(reader: &mut Reader<'_>) -> Read<RunningPod> {
    Ok(RunningPod { uid: reader.uid("a UID")?, full_name: reader.full_name("a name")? })
}

pub(crate) fn put_config(bytes: &mut Vec<u8>, config: &Config, held: Held<'_>) {
    let pod = held.place(&config.pod, |held| Some(&held.pod));
    let mirror = config.mirror.as_ref().map_or(NONE, |mirror| held.place(mirror, |held| held.mirror.as_ref()));
    bytes.byte(pod | mirror << 4);
    if pod == NEW {
        put_pod(bytes, &config.pod);
    }
    if let (NEW, Some(object)) = (mirror, &config.mirror) {
        put_pod(bytes, object);
    }
}

pub(crate) fn read_config(reader: &mut Reader<'_>, held: Held<'_>) -> Read<Config> {
    let places = reader.byte("where a pod stands")?;
    let pod = match places & 0xf {
        NEW => Some(read_pod(reader)?),
        place => held.at(place).map(|config| config.pod.clone()),
    };
    let Some(pod) = pod else { return reader.missing("a pod that the record holds") };
    let mirror = match places >> 4 {
        NONE => None,
        NEW => Some(read_pod(reader)?),
        place => match held.at(place).and_then(|config| config.mirror.clone()) {
            Some(mirror) => Some(mirror),
            None => return reader.missing("a mirror that the record holds"),
        },
    };
    Ok(Config { pod, mirror })
}

fn put_pod(bytes: &mut Vec<u8>, pod: &PodObject) {
    let phase = pod.phase().code();
    let flags = [
        pod.is_static(),
        pod.is_mirror(),
        pod.is_deleting(),
        pod.deletion_grace().is_some(),
        pod.spec_grace().is_some(),
    ];
    bytes.byte(flags.into_iter().enumerate().fold(phase << 5, |all, (place, flag)| all | u8::from(flag) << place));
    bytes.uid(pod.uid());
    bytes.full_name(pod.full_name());
    for grace in [pod.deletion_grace(), pod.spec_grace()].into_iter().flatten() {
        bytes.signed(grace);
    }
    bytes.text(version(pod));
}

/// Which version of an object this is, as the API server numbers them; empty for one from elsewhere, where another version
/// is another pod. No number is longer than what is told of it.
pub(crate) fn version(pod: &PodObject) -> &str {
    let version = pod.metadata().resource_version.as_deref().unwrap_or_default();
    version.get(..LONGEST_VERSION.min(version.len())).unwrap_or_default()
}

fn read_pod(reader: &mut Reader<'_>) -> Read<Arc<PodObject>> {
    let flags = reader.byte("a pod")?;
    let has = |place: u8| flags >> place & 1 == 1;
    let uid: PodUid = reader.uid("a pod's UID")?;
    let name = reader.full_name("a pod's name")?;
    let deletion_grace = if has(3) { Some(reader.signed("a deletion grace")?) } else { None };
    let spec_grace = if has(4) { Some(reader.signed("a grace")?) } else { None };
    let version = reader.text("a version")?;
    let Some(phase) = Phase::ALL.get(usize::from(flags >> 5)) else { return reader.missing("a pod's phase") };
    let mut annotations = std::collections::BTreeMap::new();
    if has(0) {
        annotations.insert(SOURCE_ANNOTATION.to_owned(), "file".to_owned());
    }
    if has(1) {
        annotations.insert(MIRROR_ANNOTATION.to_owned(), String::new());
    }
    let pod = Pod {
        metadata: ObjectMeta {
            name: Some(name.name().to_owned()),
            namespace: Some(name.namespace().to_owned()),
            uid: Some(uid.to_string()),
            resource_version: (!version.is_empty()).then(|| version.to_owned()),
            annotations: Some(annotations),
            deletion_timestamp: has(2).then_some(ApiTime(jiff::Timestamp::UNIX_EPOCH)),
            deletion_grace_period_seconds: deletion_grace,
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec { termination_grace_period_seconds: spec_grace, ..PodSpec::default() }),
        status: Some(PodStatus { phase: Some(phase.as_str().to_owned()), ..PodStatus::default() }),
    };
    PodObject::new(pod).or_else(|_| reader.missing("a pod with a name, a namespace and a UID"))
}
