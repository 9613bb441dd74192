//! What the parts of the runtime share: the client, where things are, and the lookups that several need.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Once};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use podwright_actors::ids::SandboxId;
use podwright_actors::pod::PodObject;
use podwright_actors::ports::{EventRecorder, RuntimeClasses, RuntimeError};
use podwright_actors::time::Time;

use super::cgroups::Trees;
use super::client::Client;
use super::config::{Assigned, Facts, ImageUser, Layout, labels};
use super::flights::Flights;
use super::users::Users;
use super::{NodeSettings, node_facts, read, v1};

/// How often, and after how long each time, the cause of an end is asked for that was not told with it.
const CAUSE_LOOKS: u32 = 5;
const CAUSE_EVERY: Duration = Duration::from_millis(100);

/// A node has fewer images than that.
const MAX_IMAGE_USERS: usize = 1000;

/// Client and layout.
pub(super) struct Inner {
    pub(super) client: Client,
    pub(super) layout: Layout,
    pub(super) seccomp_profiles: PathBuf,
    pub(super) settings: NodeSettings,
    pub(super) runtime_classes: Arc<dyn RuntimeClasses>,
    pub(super) users: Users,
    pub(super) cgroups: Trees,
    pub(super) events: Arc<dyn EventRecorder>,
    /// Containers that were asked to stop, by id.
    pub(super) stopped: Mutex<HashSet<String>>,
    /// By the ids of images.
    pub(super) image_users: Mutex<HashMap<String, ImageUser>>,
    /// Whether it was told what cgroups do not do here.
    pub(super) told_limits: Once,
    /// What is known of node and runtime.
    pub(super) facts: Mutex<Option<Arc<Facts>>>,
    /// The reading of that.
    pub(super) reading: Flights<(), Arc<Facts>>,
}

impl Inner {
    /// Node and runtime, as they were when the connection was made; the name servers as they are now.
    pub(super) async fn facts(self: &Arc<Self>) -> Result<Arc<Facts>, RuntimeError> {
        let known = self.known_facts().await?;
        let settings = self.settings.clone();
        let resolver = blocking(move || Ok(node_facts::resolver(&settings))).await?;
        Ok(Arc::new(Facts { resolver, ..(*known).clone() }))
    }

    /// Node and runtime, as they were when the connection was made; the name servers too. They are read once for all who ask
    /// before they are known.
    pub(super) async fn known_facts(self: &Arc<Self>) -> Result<Arc<Facts>, RuntimeError> {
        let known = self.facts.lock().clone();
        match known {
            Some(known) => Ok(known),
            None => self.reading.join((), Arc::clone(self).read_facts()).await,
        }
    }

    async fn read_facts(self: Arc<Self>) -> Result<Arc<Facts>, RuntimeError> {
        // They may have been read since they were asked for.
        let known = self.facts.lock().clone();
        if let Some(known) = known {
            return Ok(known);
        }
        let (layout, profiles) = (self.layout.clone(), self.seccomp_profiles.clone());
        let facts = node_facts::read_facts(&self.client, layout, profiles, self.settings.clone()).await?;
        self.told_limits.call_once(|| node_facts::tell_limits(&facts.cgroups));
        let facts = Arc::new(facts);
        *self.facts.lock() = Some(Arc::clone(&facts));
        Ok(facts)
    }

    /// What a pod is given by name or number.
    pub(super) async fn assigned(self: &Arc<Self>, facts: &Facts, pod: &PodObject) -> Result<Assigned, RuntimeError> {
        let handler = match pod.spec().runtime_class_name.as_deref().filter(|class| !class.is_empty()) {
            None => String::new(),
            Some(class) => {
                let handler = self.runtime_classes.handler(class).await;
                handler.map_err(|error| RuntimeError::Config(error.to_string()))?
            }
        };
        let own_users = pod.spec().host_users == Some(false) && facts.user_namespaces.contains(&handler);
        let users = if own_users {
            let (inner, uid) = (Arc::clone(self), pod.uid().to_string());
            Some(blocking(move || inner.users.of_pod(&inner.layout.pods, &uid)).await?)
        } else {
            None
        };
        Ok(Assigned { handler, users })
    }

    /// Who an image runs as. An id stands for one content for ever.
    pub(super) async fn image_user(&self, id: &str) -> Result<ImageUser, RuntimeError> {
        if let Some(user) = self.image_users.lock().get(id) {
            return Ok(user.clone());
        }
        let image = Some(v1::ImageSpec { image: id.to_owned(), ..Default::default() });
        let found = self.client.image_status(v1::ImageStatusRequest { image, verbose: false }).await?.image;
        // The creation of a container without an image fails, so nothing runs as root that should not.
        let Some(found) = found else { return Ok(ImageUser::Id(0)) };
        let user = ImageUser::of(&found);
        let mut known = self.image_users.lock();
        if known.len() == MAX_IMAGE_USERS {
            known.clear();
        }
        known.insert(id.to_owned(), user.clone());
        Ok(user)
    }

    /// Lets node and runtime be looked at again when they are needed next.
    pub(super) fn forget_facts(&self) {
        self.facts.lock().take();
    }

    /// The sandboxes of somebody.
    pub(super) async fn sandboxes(&self, whose: Whose<'_>) -> Result<Vec<v1::PodSandbox>, RuntimeError> {
        let label_selector = whose.selector(&self.layout);
        let filter = Some(v1::PodSandboxFilter { label_selector, ..Default::default() });
        Ok(self.client.list_pod_sandbox(v1::ListPodSandboxRequest { filter }).await?.items)
    }

    /// The containers of somebody.
    pub(super) async fn containers(&self, whose: Whose<'_>) -> Result<Vec<v1::Container>, RuntimeError> {
        let label_selector = whose.selector(&self.layout);
        let filter = Some(v1::ContainerFilter { label_selector, ..Default::default() });
        Ok(self.client.list_containers(v1::ListContainersRequest { filter }).await?.containers)
    }

    /// The status of a container, with the cause of its end unless that was asked for.
    pub(super) async fn container_status(
        &self,
        request: v1::ContainerStatusRequest,
    ) -> Result<Option<v1::ContainerStatus>, RuntimeError> {
        let stopped = self.stopped.lock().contains(&request.container_id);
        let mut status = self.client.container_status(request.clone()).await?.status;
        for _ in 0..CAUSE_LOOKS {
            let now = Time::from_timestamp(Timestamp::now());
            if stopped || !status.as_ref().is_some_and(|status| read::cause_may_come(status, now)) {
                break;
            }
            tokio::time::sleep(CAUSE_EVERY).await;
            // What was told holds if nothing more is.
            let Ok(again) = self.client.container_status(request.clone()).await else { break };
            status = again.status;
        }
        Ok(status)
    }

    /// Stops a sandbox, which may be gone.
    pub(super) async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.as_str().to_owned() };
        gone_is_fine(self.client.stop_pod_sandbox(request).await.map(|_| ()))
    }

    /// Stops and removes a sandbox with all that is in it.
    pub(super) async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), RuntimeError> {
        // Only what was stopped gave its network back.
        self.stop_sandbox(id).await?;
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: id.as_str().to_owned() };
        gone_is_fine(self.client.remove_pod_sandbox(request).await.map(|_| ()))
    }

    /// Removes a container, which may be gone.
    pub(super) async fn remove_container(&self, container_id: String) -> Result<(), RuntimeError> {
        let request = v1::RemoveContainerRequest { container_id: container_id.clone() };
        gone_is_fine(self.client.remove_container(request).await.map(|_| ()))?;
        self.stopped.lock().remove(&container_id);
        Ok(())
    }
}

/// Whose sandboxes and containers are asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Whose<'a> {
    /// Those of one pod, by its UID.
    Pod(&'a str),
    /// Those that this agent made.
    Own,
    /// Also those of others that use the runtime.
    Anybody,
}

impl Whose<'_> {
    fn selector(self, layout: &Layout) -> HashMap<String, String> {
        match self {
            Whose::Pod(uid) => labels::selector(layout, Some(uid)),
            Whose::Own => labels::selector(layout, None),
            Whose::Anybody => HashMap::new(),
        }
    }
}

/// Does what blocks apart from everything else.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RuntimeError> + Send + 'static,
) -> Result<T, RuntimeError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(RuntimeError::Failed(format!("the work was lost: {error}"))))
}

/// Makes that something is gone already a success.
pub(super) fn gone_is_fine(result: Result<(), RuntimeError>) -> Result<(), RuntimeError> {
    match result {
        Err(RuntimeError::NotFound(_)) => Ok(()),
        result => result,
    }
}
