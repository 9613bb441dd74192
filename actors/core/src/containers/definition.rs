//! A container of a pod's spec, from any of its three lists.

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EphemeralContainer, Lifecycle, Probe, ResourceRequirements, VolumeMount,
};

use crate::ids::ContainerName;
use crate::pod::{ContainerKind, PodObject, is_sidecar};

/// The fields of a container that starting and stopping need.
#[derive(Clone, Copy, Debug)]
pub struct Definition<'a> {
    /// The container's list.
    pub kind: ContainerKind,
    /// The container's name.
    pub name: &'a str,
    /// The image, as the spec names it.
    pub image: &'a str,
    /// The image pull policy.
    pub pull_policy: Option<&'a str>,
    /// The lifecycle hooks.
    pub lifecycle: Option<&'a Lifecycle>,
    /// The ports, for hooks that name a port.
    pub ports: &'a [ContainerPort],
    /// The volume mounts.
    pub mounts: &'a [VolumeMount],
    /// The resource requests and limits.
    pub resources: Option<&'a ResourceRequirements>,
    /// The liveness probe.
    pub liveness: Option<&'a Probe>,
    /// The startup probe.
    pub startup: Option<&'a Probe>,
    /// Whether the container is a sidecar: an init container with restart policy `Always`.
    pub sidecar: bool,
}

impl<'a> Definition<'a> {
    /// Finds a container of a pod by name.
    pub fn find(pod: &'a PodObject, name: &str) -> Option<Self> {
        Definition::all(pod).find(|definition| definition.name == name)
    }

    /// Every container of a pod: regular, init, ephemeral, each in spec order.
    pub fn all(pod: &'a PodObject) -> impl Iterator<Item = Self> {
        let regular = pod.containers().iter().map(|c| Definition::new(ContainerKind::Regular, c));
        let init = pod.init_containers().iter().map(|c| Definition::new(ContainerKind::Init, c));
        regular.chain(init).chain(pod.ephemeral_containers().iter().map(Definition::ephemeral))
    }

    /// A regular or init container.
    pub fn new(kind: ContainerKind, container: &'a Container) -> Self {
        Definition {
            kind,
            name: &container.name,
            image: container.image.as_deref().unwrap_or_default(),
            pull_policy: container.image_pull_policy.as_deref(),
            lifecycle: container.lifecycle.as_ref(),
            ports: container.ports.as_deref().unwrap_or_default(),
            mounts: container.volume_mounts.as_deref().unwrap_or_default(),
            resources: container.resources.as_ref(),
            liveness: container.liveness_probe.as_ref(),
            startup: container.startup_probe.as_ref(),
            sidecar: kind == ContainerKind::Init && is_sidecar(container),
        }
    }

    /// An ephemeral container.
    pub fn ephemeral(container: &'a EphemeralContainer) -> Self {
        Definition {
            kind: ContainerKind::Ephemeral,
            name: &container.name,
            image: container.image.as_deref().unwrap_or_default(),
            pull_policy: container.image_pull_policy.as_deref(),
            lifecycle: container.lifecycle.as_ref(),
            ports: container.ports.as_deref().unwrap_or_default(),
            mounts: container.volume_mounts.as_deref().unwrap_or_default(),
            resources: container.resources.as_ref(),
            liveness: container.liveness_probe.as_ref(),
            startup: container.startup_probe.as_ref(),
            sidecar: false,
        }
    }

    /// The container's name as an identity.
    pub fn container_name(&self) -> ContainerName {
        ContainerName::from(self.name)
    }

    /// See [`spec_hash`].
    pub fn spec_hash(&self) -> u64 {
        fnv1a([self.name.as_bytes(), self.image.as_bytes()])
    }

    /// Whether a run was created from this name and image. `stored` is the hash that the runtime keeps with the run: the agent's
    /// own ([`spec_hash`]), or that of a kubelet that created the container.
    pub fn is_hash(&self, stored: u64) -> bool {
        stored == self.spec_hash() || stored == u64::from(kubelet_hash(self.name, self.image))
    }

    /// Like [`spec_hash`], with the resources, because new resources reset the crash backoff. The hash is never stored.
    pub fn backoff_hash(&self) -> u64 {
        let resources = format!("{:?}", self.resources);
        fnv1a([self.name.as_bytes(), self.image.as_bytes(), resources.as_bytes()])
    }
}

/// Hashes the fields that must not change while a container runs: its name and image (the kubelet's `HashContainer`,
/// 1.36). A running container whose hash differs is replaced.
///
/// The runtime stores the hash with the container, and it must be equal in every release. The algorithm is therefore
/// fixed: 64-bit FNV-1a over both texts, each ended by a byte that is not valid UTF-8.
#[cfg(test)]
pub fn spec_hash(container: &Container) -> u64 {
    Definition::new(ContainerKind::Regular, container).spec_hash()
}

/// Whether a run was created from the name and image of this container; see [`Definition::is_hash`].
pub(crate) fn is_hash_of(stored: u64, container: &Container) -> bool {
    Definition::new(ContainerKind::Regular, container).is_hash(stored)
}

/// The hash that a kubelet stores with a container (`HashContainer`, kubelet 1.31 to 1.36): 32-bit FNV-1a over the text form of a
/// Go byte slice, each byte as a decimal number. The bytes are the JSON object of image and name.
fn kubelet_hash(name: &str, image: &str) -> u32 {
    const OFFSET: u32 = 0x811c_9dc5;
    const PRIME: u32 = 0x0100_0193;
    let json = serde_json::json!({ "image": image, "name": name }).to_string();
    // Go writes these characters of a JSON text as escapes.
    let json = json.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e");
    let numbers = json.bytes().map(|byte| byte.to_string()).collect::<Vec<_>>().join(" ");
    format!("([]uint8)[{numbers}]").bytes().fold(OFFSET, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(PRIME))
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

    use super::*;

    fn container(name: &str, image: &str) -> Container {
        Container { name: name.into(), image: Some(image.into()), ..Container::default() }
    }

    // The hash is stored with running containers. Another algorithm would restart all of them.
    #[test]
    fn the_spec_hash_is_the_same_in_every_release() {
        assert_eq!(spec_hash(&container("a", "busybox:1.36")), 0x4f24_ca8f_6330_a444);
    }

    // The numbers were computed from the description above by another program. Kubelet 1.36 has the first one in a test.
    #[test]
    fn the_hash_of_a_kubelet_is_recognized() {
        for (name, image, hash) in [
            ("test_container", "foo/image:v1", 0x8e45_cbd0),
            ("busybox", "busybox", 0x8f4f_3c6c),
            ("foo", "", 0x7147_aeb5),
        ] {
            assert!(is_hash_of(hash, &container(name, image)), "{name} {image}");
            assert!(!is_hash_of(hash, &container(name, "other")), "{name} {image}");
        }
        assert!(is_hash_of(spec_hash(&container("a", "i")), &container("a", "i")));
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
        let hash = |container: &Container| Definition::new(ContainerKind::Regular, container).backoff_hash();
        assert_eq!(hash(&plain), hash(&plain.clone()));
        assert_ne!(hash(&plain), hash(&more));
        assert_ne!(hash(&plain), hash(&container("a", "j")));
    }
}
