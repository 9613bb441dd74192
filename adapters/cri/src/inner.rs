//! The state that the parts of [`CriRuntime`](super::CriRuntime) share.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use podwright_host::cdi::SpecCache;
use podwright_model::pod::PodObject;
use podwright_ports::{EventRecorder, RuntimeClasses, RuntimeError};

use super::cgroups::CgroupTrees;
use super::client::Client;
use super::config::{ImageUser, NodeFacts, PodAssignments};
use super::container_stops::ContainerStops;
use super::id_ranges::IdRanges;
use super::node_facts::NodeFactsCache;
use super::stats::NetworkImages;
use super::tasks::blocking;
use super::v1;
use crate::adoption::AdoptedPods;

/// The most images whose users are cached. A node has fewer images.
const MAX_IMAGE_USERS: usize = 1000;

/// The state that the parts of [`CriRuntime`](super::CriRuntime) share.
pub(super) struct CriRuntimeInner {
    pub(super) client: Client,
    pub(super) facts: Arc<NodeFactsCache>,
    pub(super) runtime_classes: Arc<dyn RuntimeClasses>,
    pub(super) id_ranges: IdRanges,
    pub(super) cgroups: CgroupTrees,
    /// The pods of a kubelet that belong to this agent too.
    pub(super) adopted: Arc<AdoptedPods>,
    /// The specifications of CDI devices.
    pub(super) cdi: Arc<SpecCache>,
    pub(super) events: Arc<dyn EventRecorder>,
    /// The directory of the checkpoints (upstream: `checkpoints` in the root directory).
    pub(super) checkpoints: PathBuf,
    pub(super) stops: ContainerStops,
    /// The IDs of the containers that this agent has stopped and not yet removed.
    pub(super) stopped: Mutex<HashSet<String>>,
    /// The users of images, by image ID.
    pub(super) image_users: Mutex<HashMap<String, ImageUser>>,
    pub(super) network_images: NetworkImages,
}

impl CriRuntimeInner {
    /// Resolves the pod's runtime class, and reserves a range of IDs if the pod has a user namespace of its own.
    pub(super) async fn assignments(
        self: &Arc<Self>,
        facts: &NodeFacts,
        pod: &PodObject,
    ) -> Result<PodAssignments, RuntimeError> {
        let handler = self.handler(pod).await?;
        let has_own_users = pod.spec().host_users == Some(false) && facts.user_namespaces.contains(&handler);
        let users = if has_own_users {
            let (inner, uid) = (Arc::clone(self), pod.uid().to_string());
            let range = move || {
                let layout = inner.facts.layout();
                inner.id_ranges.of_pod(&layout.pods, &layout.kubelet.pods, &uid)
            };
            Some(blocking(range).await?)
        } else {
            None
        };
        Ok(PodAssignments { handler, users })
    }

    /// The runtime handler of the pod's runtime class. The default handler has an empty name.
    pub(super) async fn handler(&self, pod: &PodObject) -> Result<String, RuntimeError> {
        match pod.spec().runtime_class_name.as_deref().filter(|class| !class.is_empty()) {
            None => Ok(String::new()),
            Some(class) => self.runtime_classes.handler(class).await.map_err(RuntimeError::config),
        }
    }

    /// The user of an image. It is cached, because an image ID always names the same content.
    pub(super) async fn image_user(&self, id: &str) -> Result<ImageUser, RuntimeError> {
        if let Some(user) = self.image_users.lock().get(id) {
            return Ok(user.clone());
        }
        let image = Some(v1::ImageSpec { image: id.to_owned(), ..Default::default() });
        let found = self.client.image_status(v1::ImageStatusRequest { image, verbose: false }).await?.image;
        // If the image is missing, the creation of the container fails, so no container runs as root by mistake.
        let Some(found) = found else { return Ok(ImageUser::Id(0)) };
        let user = ImageUser::of(&found);
        let mut known = self.image_users.lock();
        if known.len() == MAX_IMAGE_USERS {
            known.clear();
        }
        known.insert(id.to_owned(), user.clone());
        Ok(user)
    }
}
