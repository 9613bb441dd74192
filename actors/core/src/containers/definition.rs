//! One view of the containers in a pod's three lists.

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EnvFromSource, EnvVar, EphemeralContainer, Lifecycle, Probe, ResourceRequirements,
    SecurityContext, VolumeDevice, VolumeMount,
};

use crate::ids::ContainerName;
use crate::pod::{ContainerKind, PodObject, is_sidecar};

/// A container of a pod's spec. The API has two types of containers. The fields that both have are methods here.
#[derive(Clone, Copy, Debug)]
pub enum Definition<'a> {
    /// A regular container.
    Regular(&'a Container),
    /// An init container, which may be a sidecar.
    Init(&'a Container),
    /// An ephemeral container.
    Ephemeral(&'a EphemeralContainer),
}

/// A value from a field that both types of the API have.
macro_rules! common {
    ($definition:expr, $container:ident => $value:expr) => {
        match $definition {
            Definition::Regular($container) | Definition::Init($container) => $value,
            Definition::Ephemeral($container) => $value,
        }
    };
}

impl<'a> Definition<'a> {
    /// Every container of a pod: regular, init, ephemeral, each in spec order.
    pub fn all(pod: &'a PodObject) -> impl Iterator<Item = Self> {
        let regular = pod.containers().iter().map(Definition::Regular);
        let init = pod.init_containers().iter().map(Definition::Init);
        regular.chain(init).chain(pod.ephemeral_containers().iter().map(Definition::Ephemeral))
    }

    /// Finds a container of a pod by name.
    pub fn find(pod: &'a PodObject, name: &str) -> Option<Self> {
        Definition::all(pod).find(|container| container.name() == name)
    }

    /// Finds a container by name in one list of a pod.
    pub fn find_in(pod: &'a PodObject, kind: ContainerKind, name: &str) -> Option<Self> {
        Definition::all(pod).find(|container| container.kind() == kind && container.name() == name)
    }

    /// The container's list.
    pub fn kind(self) -> ContainerKind {
        match self {
            Definition::Regular(_) => ContainerKind::Regular,
            Definition::Init(_) => ContainerKind::Init,
            Definition::Ephemeral(_) => ContainerKind::Ephemeral,
        }
    }

    /// The regular or init container; `None` for an ephemeral container, which never restarts and has no probes.
    pub fn container(self) -> Option<&'a Container> {
        match self {
            Definition::Regular(container) | Definition::Init(container) => Some(container),
            Definition::Ephemeral(_) => None,
        }
    }

    /// Whether the container is a sidecar: an init container with restart policy `Always`.
    pub fn is_sidecar(self) -> bool {
        matches!(self, Definition::Init(container) if is_sidecar(container))
    }

    /// Whether the container is an init container that runs to its end.
    pub fn is_plain_init(self) -> bool {
        matches!(self, Definition::Init(container) if !is_sidecar(container))
    }

    /// The container's name.
    pub fn name(self) -> &'a str {
        common!(self, container => &container.name)
    }

    /// The image, as the spec names it; empty if it names none.
    pub fn image(self) -> &'a str {
        common!(self, container => container.image.as_deref().unwrap_or_default())
    }

    /// The image pull policy.
    pub fn pull_policy(self) -> Option<&'a str> {
        common!(self, container => container.image_pull_policy.as_deref())
    }

    /// The command, which replaces the entry point of the image.
    pub fn command(self) -> &'a [String] {
        common!(self, container => container.command.as_deref().unwrap_or_default())
    }

    /// The arguments.
    pub fn args(self) -> &'a [String] {
        common!(self, container => container.args.as_deref().unwrap_or_default())
    }

    /// The working directory.
    pub fn working_dir(self) -> Option<&'a str> {
        common!(self, container => container.working_dir.as_deref())
    }

    /// The variables.
    pub fn env(self) -> &'a [EnvVar] {
        common!(self, container => container.env.as_deref().unwrap_or_default())
    }

    /// The objects whose keys become variables.
    pub fn env_from(self) -> &'a [EnvFromSource] {
        common!(self, container => container.env_from.as_deref().unwrap_or_default())
    }

    /// The lifecycle hooks and the stop signal.
    pub fn lifecycle(self) -> Option<&'a Lifecycle> {
        common!(self, container => container.lifecycle.as_ref())
    }

    /// The ports, for hooks that name a port.
    pub fn ports(self) -> &'a [ContainerPort] {
        common!(self, container => container.ports.as_deref().unwrap_or_default())
    }

    /// The volume mounts.
    pub fn mounts(self) -> &'a [VolumeMount] {
        common!(self, container => container.volume_mounts.as_deref().unwrap_or_default())
    }

    /// The block volumes.
    pub fn devices(self) -> &'a [VolumeDevice] {
        common!(self, container => container.volume_devices.as_deref().unwrap_or_default())
    }

    /// The resource requests and limits.
    pub fn resources(self) -> Option<&'a ResourceRequirements> {
        common!(self, container => container.resources.as_ref())
    }

    /// The security context.
    pub fn security(self) -> Option<&'a SecurityContext> {
        common!(self, container => container.security_context.as_ref())
    }

    /// The liveness probe.
    pub fn liveness(self) -> Option<&'a Probe> {
        common!(self, container => container.liveness_probe.as_ref())
    }

    /// The readiness probe.
    pub fn readiness(self) -> Option<&'a Probe> {
        common!(self, container => container.readiness_probe.as_ref())
    }

    /// The startup probe.
    pub fn startup(self) -> Option<&'a Probe> {
        common!(self, container => container.startup_probe.as_ref())
    }

    /// The file to which the container writes its termination message.
    pub fn message_path(self) -> Option<&'a str> {
        common!(self, container => container.termination_message_path.as_deref())
    }

    /// Where the termination message comes from.
    pub fn message_policy(self) -> Option<&'a str> {
        common!(self, container => container.termination_message_policy.as_deref())
    }

    /// Whether the container has a standard input (field `stdin`).
    pub fn stdin(self) -> bool {
        common!(self, container => container.stdin).unwrap_or(false)
    }

    /// Whether the standard input ends with the first connection to it (field `stdinOnce`).
    pub fn stdin_once(self) -> bool {
        common!(self, container => container.stdin_once).unwrap_or(false)
    }

    /// Whether the container has a terminal (field `tty`).
    pub fn tty(self) -> bool {
        common!(self, container => container.tty).unwrap_or(false)
    }

    /// The container's name as an identity.
    pub fn container_name(self) -> ContainerName {
        ContainerName::from(self.name())
    }

    /// Hashes the fields that must not change while a container runs: its name and image. A running container whose hash differs is
    /// replaced.
    ///
    /// It is the hash of a kubelet (`HashContainer`, 1.31 to 1.36), so that a kubelet keeps the containers of this agent, and this agent
    /// those of a kubelet. The runtime stores it with the container: [`Definition::is_hash`] must recognize it in every later release.
    pub fn spec_hash(self) -> u64 {
        kubelet_hash(self.name(), self.image()).into()
    }

    /// Whether a run was created from this name and image. `stored` is the hash that the runtime keeps with the run:
    /// [`Definition::spec_hash`], or the hash of an earlier release, 64-bit FNV-1a over both texts, each ended by a byte that is not
    /// valid UTF-8.
    pub fn is_hash(self, stored: u64) -> bool {
        stored == fnv1a([self.name().as_bytes(), self.image().as_bytes()]) || stored == self.spec_hash()
    }

    /// Like [`Definition::spec_hash`], with the resources, because new resources reset the crash backoff. The hash is never stored.
    pub fn backoff_hash(self) -> u64 {
        let resources = format!("{:?}", self.resources());
        fnv1a([self.name().as_bytes(), self.image().as_bytes(), resources.as_bytes()])
    }
}

/// Whether a run was created from the name and image of this container; see [`Definition::is_hash`].
pub(crate) fn is_hash_of(stored: u64, container: &Container) -> bool {
    Definition::Regular(container).is_hash(stored)
}

/// The hash that a kubelet stores with a container (`HashContainer`, kubelet 1.31 to 1.36): 32-bit FNV-1a over the text form of a
/// Go byte slice, each byte as a decimal number. The bytes are the JSON object of image and name.
fn kubelet_hash(name: &str, image: &str) -> u32 {
    const OFFSET: u32 = 0x811c_9dc5;
    const PRIME: u32 = 0x0100_0193;
    let json = serde_json::json!({ "image": image, "name": name }).to_string();
    // Go writes these characters of a JSON text as escapes.
    let json = json.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e");
    let digits = |byte: u8| {
        let all = [byte / 100, byte / 10 % 10, byte % 10];
        let leading = if byte >= 100 {
            0
        } else if byte >= 10 {
            1
        } else {
            2
        };
        all.into_iter().skip(leading).map(|digit| b'0' + digit)
    };
    let numbers =
        json.bytes().enumerate().flat_map(|(index, byte)| (index > 0).then_some(b' ').into_iter().chain(digits(byte)));
    let text = "([]uint8)[".bytes().chain(numbers).chain([b']']);
    text.fold(OFFSET, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(PRIME))
}

fn fnv1a<const N: usize>(parts: [&[u8]; N]) -> u64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    parts
        .iter()
        .flat_map(|part| part.iter().copied().chain([0xff]))
        .fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
    use serde_json::json;

    use super::*;

    fn container(name: &str, image: &str) -> Container {
        Container { name: name.into(), image: Some(image.into()), ..Container::default() }
    }

    /// The value of every field that both types have.
    fn fields(definition: Definition<'_>) -> serde_json::Value {
        json!({
            "name": definition.name(),
            "image": definition.image(),
            "imagePullPolicy": definition.pull_policy(),
            "command": definition.command(),
            "args": definition.args(),
            "workingDir": definition.working_dir(),
            "env": definition.env(),
            "envFrom": definition.env_from(),
            "lifecycle": definition.lifecycle(),
            "ports": definition.ports(),
            "volumeMounts": definition.mounts(),
            "volumeDevices": definition.devices(),
            "resources": definition.resources(),
            "securityContext": definition.security(),
            "livenessProbe": definition.liveness(),
            "readinessProbe": definition.readiness(),
            "startupProbe": definition.startup(),
            "terminationMessagePath": definition.message_path(),
            "terminationMessagePolicy": definition.message_policy(),
            "stdin": definition.stdin(),
            "stdinOnce": definition.stdin_once(),
            "tty": definition.tty(),
        })
    }

    #[test]
    fn every_field_is_that_of_the_spec_in_each_list() {
        let probe = |seconds: u64| json!({"exec": {"command": ["true"]}, "periodSeconds": seconds});
        let spec = json!({
            "name": "a", "image": "i", "imagePullPolicy": "Always", "command": ["c"], "args": ["d"], "workingDir": "/w",
            "env": [{"name": "E", "value": "e"}], "envFrom": [{"prefix": "p"}], "lifecycle": {"stopSignal": "SIGHUP"},
            "ports": [{"containerPort": 80}], "volumeMounts": [{"name": "v", "mountPath": "/m"}],
            "volumeDevices": [{"name": "b", "devicePath": "/b"}], "resources": {"limits": {"cpu": "1"}},
            "securityContext": {"privileged": true}, "livenessProbe": probe(1), "readinessProbe": probe(2),
            "startupProbe": probe(3), "terminationMessagePath": "/t", "terminationMessagePolicy": "File", "stdin": true,
            "stdinOnce": true, "tty": true,
        });
        let container: Container = serde_json::from_value(spec.clone()).unwrap();
        let ephemeral: EphemeralContainer = serde_json::from_value(spec.clone()).unwrap();
        assert_eq!(fields(Definition::Regular(&container)), spec);
        assert_eq!(fields(Definition::Init(&container)), spec);
        assert_eq!(fields(Definition::Ephemeral(&ephemeral)), spec);
    }

    #[test]
    fn container_is_found_in_its_own_list_only() {
        use ContainerKind::{Ephemeral, Init, Regular};
        let pod = json!({
            "metadata": {"name": "p", "namespace": "d", "uid": "u"},
            "spec": {
                "containers": [{"name": "a"}],
                "initContainers": [{"name": "b"}, {"name": "c", "restartPolicy": "Always"}],
                "ephemeralContainers": [{"name": "d"}],
            },
        });
        let pod = PodObject::new(serde_json::from_value(pod).unwrap()).unwrap();
        for (name, kind, is_sidecar) in
            [("a", Regular, false), ("b", Init, false), ("c", Init, true), ("d", Ephemeral, false)]
        {
            let found = Definition::find(&pod, name).unwrap();
            assert_eq!((found.name(), found.kind(), found.is_sidecar()), (name, kind, is_sidecar));
            assert_eq!(found.is_plain_init(), kind == Init && !is_sidecar, "{name}");
            assert_eq!(found.container().is_none(), kind == Ephemeral, "{name}");
            for other in [Regular, Init, Ephemeral] {
                assert_eq!(Definition::find_in(&pod, other, name).is_some(), other == kind, "{name} {other:?}");
            }
        }
        assert!(Definition::find(&pod, "e").is_none());
    }

    fn spec_hash(container: &Container) -> u64 {
        Definition::Regular(container).spec_hash()
    }

    // The hash is stored with running containers. Another algorithm would restart all of them.
    #[test]
    fn the_hash_of_an_earlier_release_is_recognized() {
        assert!(is_hash_of(0x4f24_ca8f_6330_a444, &container("a", "busybox:1.36")));
        assert!(!is_hash_of(0x4f24_ca8f_6330_a444, &container("a", "busybox:1.37")));
    }

    // The numbers were computed from the description above by another program. Kubelet 1.36 has the first one in a test.
    #[test]
    fn the_hash_is_that_of_a_kubelet() {
        for (name, image, hash) in [
            ("test_container", "foo/image:v1", 0x8e45_cbd0),
            ("busybox", "busybox", 0x8f4f_3c6c),
            ("foo", "", 0x7147_aeb5),
        ] {
            assert_eq!(spec_hash(&container(name, image)), hash, "{name} {image}");
            assert!(is_hash_of(hash, &container(name, image)), "{name} {image}");
            assert!(!is_hash_of(hash, &container(name, "other")), "{name} {image}");
        }
    }

    #[test]
    fn only_name_and_image_change_the_spec_hash() {
        let plain = container("a", "i");
        let more = Container { command: Some(vec!["sh".into()]), ..plain.clone() };
        assert_eq!(spec_hash(&plain), spec_hash(&more));
        assert_ne!(spec_hash(&plain), spec_hash(&container("ai", "")));
        assert_ne!(spec_hash(&plain), spec_hash(&container("a", "j")));
    }

    #[test]
    fn changed_resources_change_the_backoff_hash() {
        let plain = container("a", "i");
        let limits = [("cpu".to_owned(), Quantity("1".to_owned()))].into();
        let limited = ResourceRequirements { limits: Some(limits), ..ResourceRequirements::default() };
        let more = Container { resources: Some(limited), ..plain.clone() };
        let hash = |container: &Container| Definition::Regular(container).backoff_hash();
        assert_eq!(hash(&plain), hash(&plain.clone()));
        assert_ne!(hash(&plain), hash(&more));
        assert_ne!(hash(&plain), hash(&container("a", "j")));
    }
}
