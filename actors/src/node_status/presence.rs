//! Registers the node. The same task keeps its status up to date (`updates`). `renewal` renews the lease at the same time.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeStatus};
use parking_lot::Mutex;
use podwright_metrics::PanicMetrics;
use podwright_model::resource_version::ResourceVersion;
use podwright_work_queue::Backoff;
use tokio::sync::watch;
use tokio::time::sleep;

use super::conditions::Health;
use super::next::{ObservedNode, desired_status};
use super::object::{NodeIdentity, adoption_patch, initial_node, provider_id};
use super::registration::{NodeRegistration, Registration};
use super::renewal::Hold;
use crate::eviction::EvictionState;
use crate::observer::Observer;
use crate::ports::{
    ApiError, ApiFuture, Clock, EventRecorder, Freshness, HostIps, ImageStore, NamedImage, NodeApi, PodEvent,
    RuntimeName,
};
use crate::shutdown::ShutdownGate;
use crate::text::error_chain;
use crate::texts::node as texts;

/// The delays between two attempts to register the node (upstream `registerWithAPIServer`, kubelet 1.36).
const REGISTER_BACKOFF: Backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(7) };
/// How often the images are listed (upstream `imageCacheRefreshInterval`, kubelet 1.36).
const IMAGES_PERIOD: Duration = Duration::from_secs(30);

/// The parts of a node that its status depends on.
pub(crate) struct PresenceParts {
    pub(crate) api: Arc<dyn NodeApi>,
    pub(crate) settings: NodeRegistration,
    pub(crate) name: String,
    pub(crate) host_ips: HostIps,
    pub(crate) runtime_name: RuntimeName,
    pub(crate) observer: Arc<Observer>,
    pub(crate) evictions: Arc<EvictionState>,
    pub(crate) gate: Arc<ShutdownGate>,
    pub(crate) images: Option<Arc<dyn ImageStore>>,
    pub(crate) events: Arc<dyn EventRecorder>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) panics: PanicMetrics,
}

/// Keeps the node in the API server.
pub(crate) struct NodePresence {
    pub(super) parts: PresenceParts,
    pub(super) identity: NodeIdentity,
    /// The images of the last list, and a signal for each change.
    pub(super) images: watch::Sender<Vec<NamedImage>>,
    /// The lease that the server had when the registration began. Nobody renewed it.
    pub(super) found_lease: Mutex<Option<Lease>>,
    own: Mutex<OwnNode>,
}

/// What is known of the node of this agent.
#[derive(Clone, Default)]
enum OwnNode {
    /// No request has created or adopted it.
    #[default]
    Absent,
    /// A request may have created or adopted it, and the server has not answered.
    Unanswered,
    /// The UID of the node that this agent created or adopted. A node that somebody created again is not its own, although the agent keeps
    /// its status and its lease: it may be the live node of a kubelet that has not renewed the lease yet.
    Known(String),
}

impl NodePresence {
    pub(crate) fn new(parts: PresenceParts) -> Self {
        let identity = NodeIdentity { name: parts.name.clone(), host_ips: parts.host_ips.clone() };
        NodePresence {
            parts,
            identity,
            images: watch::Sender::default(),
            found_lease: Mutex::default(),
            own: Mutex::default(),
        }
    }

    /// Records that the agent of the node starts.
    pub(crate) fn record_start(&self) {
        self.record(PodEvent::normal(texts::STARTING.0, texts::STARTING.1));
    }

    /// Registers the node, then keeps its status and its lease up to date. Returns only if another agent runs with the name of the node.
    /// May be called again after a panic of an adapter: it begins with the registration.
    pub(crate) async fn run(&self) {
        tokio::select! {
            // A fixed order lets a simulation repeat its run.
            biased;
            () = self.keep_registered() => {}
            () = self.keep_images() => {}
        }
    }

    async fn keep_registered(&self) {
        if self.parts.settings.enforces_allocatable {
            let (reason, message) = texts::ALLOCATABLE_ENFORCED;
            self.record(PodEvent::normal(reason, message));
        }
        if let Ok(base) = self.wait_for_lease().await {
            self.found_lease.lock().clone_from(&base);
            let node = self.register().await;
            // No pod of the API server starts before the lease is claimed: another agent may have claimed it meanwhile.
            if let Ok(lease) = self.renew_lease(base, uid(&node)).await {
                tracing::info!(node = self.name(), "the node is registered");
                self.publish(&node);
                tokio::select! {
                    // The status and the lease are due at the same times. In a fixed order, so that a simulation repeats.
                    biased;
                    () = self.keep_status(node) => {}
                    () = self.keep_lease(lease) => {}
                }
            }
        }
        self.parts.settings.progress.send_replace(Registration::Taken);
    }

    /// The name of the node.
    pub(super) fn name(&self) -> &str {
        &self.identity.name
    }

    /// The progress of the registration, and a signal for each change.
    pub(crate) fn progress(&self) -> tokio::sync::watch::Receiver<Registration> {
        self.parts.settings.progress()
    }

    /// Deletes the node that was registered, and its lease. If the server has not answered the registration, this deletes the node that
    /// the server has. Returns false if no node was registered, or if another agent or a kubelet has claimed the lease.
    ///
    /// # Errors
    /// [`ApiError`]. [`Conflict`](ApiError::Conflict) if somebody has created another node of this name.
    pub(crate) async fn deregister(&self) -> Result<bool, ApiError> {
        let own = self.own.lock().clone();
        if matches!(own, OwnNode::Absent) || matches!(&*self.parts.settings.progress.borrow(), Registration::Taken) {
            return Ok(false);
        }
        let existing = match self.parts.api.node(Freshness::Newest).await {
            Ok(node) => Some(uid(&node).to_owned()),
            Err(ApiError::NotFound) => None,
            Err(error) => return Err(error),
        };
        let uid = match (own, existing) {
            (OwnNode::Absent, _) | (OwnNode::Unanswered, None) => return Ok(false),
            (OwnNode::Known(own), Some(existing)) if own != existing => {
                return Err(ApiError::conflict("somebody has created another node of this name"));
            }
            (OwnNode::Unanswered, Some(uid)) | (OwnNode::Known(uid), _) => uid,
        };
        let lease = match self.hold_lease(&uid).await? {
            Hold::Taken => return Ok(false),
            Hold::Refused => None,
            Hold::Held(lease) => Some(lease),
        };
        match self.parts.api.delete_node(&uid).await {
            Ok(()) | Err(ApiError::NotFound) => {}
            Err(error) => return Err(error),
        }
        let Some(lease) = lease else { return Ok(true) };
        match self.parts.api.delete_lease(&lease).await {
            // A conflict means that somebody has claimed the lease since, and keeps it.
            Ok(()) | Err(ApiError::NotFound | ApiError::Conflict(_)) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Creates the node, or adopts the one that exists. Tries until that succeeds.
    async fn register(&self) -> Node {
        let mut failures = 0;
        loop {
            let error = match self.try_register().await {
                Ok(node) => return node,
                Err(error) => error,
            };
            self.report("cannot register the node", &error);
            failures += 1;
            sleep(REGISTER_BACKOFF.after(failures).max(error.retry_after())).await;
        }
    }

    async fn try_register(&self) -> Result<Node, ApiError> {
        let (api, settings) = (&self.parts.api, &self.parts.settings);
        let mut refusal = None;
        if settings.creates {
            let (observed, now) = (self.observe(), self.parts.clock.now());
            let (status, events) = desired_status(&self.identity, settings, &observed, NodeStatus::default(), now);
            match self.registering(api.create_node(&initial_node(&self.identity, settings, status))).await {
                Ok(node) => {
                    *self.own.lock() = OwnNode::Known(uid(&node).to_owned());
                    events.into_iter().for_each(|event| self.record(event));
                    return Ok(node);
                }
                Err(ApiError::Conflict(_)) => {}
                // The node may exist although this agent may not create it.
                Err(error @ ApiError::Refused(_)) => refusal = Some(error),
                Err(error) => return Err(error),
            }
        }
        let existing = match api.node(Freshness::Newest).await {
            Ok(existing) => existing,
            Err(error) => return Err(refusal.unwrap_or(error)),
        };
        if let (Some(desired), Some(found)) = (settings.provider_id.as_deref(), provider_id(&existing))
            && desired != found
        {
            let node = self.name();
            tracing::warn!(
                node,
                desired,
                found,
                "the node keeps its provider ID, which cannot be changed: delete the node to register it anew, or correct --provider-id"
            );
        }
        let node = match adoption_patch(&self.identity, settings, &existing) {
            Some(patch) => self.registering(api.patch_node(patch)).await?,
            None => existing,
        };
        let mut own = self.own.lock();
        // An agent that registers its node again, after a panic of an adapter, may find a node that somebody else has created since.
        if !matches!(&*own, OwnNode::Known(_)) {
            *own = OwnNode::Known(uid(&node).to_owned());
        }
        drop(own);
        Ok(node)
    }

    /// Performs a write that creates or adopts the node. The server may perform a write that has no answer, so the node may exist from the
    /// beginning of the write on.
    async fn registering(&self, write: ApiFuture<'_, Node>) -> Result<Node, ApiError> {
        let before = self.own.lock().clone();
        if matches!(before, OwnNode::Absent) {
            *self.own.lock() = OwnNode::Unanswered;
        }
        let answer = write.await;
        if let Err(ApiError::Conflict(_) | ApiError::Refused(_) | ApiError::NotFound) = answer {
            *self.own.lock() = before;
        }
        answer
    }

    pub(super) fn observe(&self) -> ObservedNode {
        let PresenceParts { observer, evictions, gate, runtime_name, clock, .. } = &self.parts;
        let list_age = observer.list_age();
        let is_complete = *observer.healthy().borrow();
        let is_shutting_down = *gate.stopping().borrow();
        ObservedNode {
            health: Health { list_age, is_complete, unready: observer.unready(), is_shutting_down },
            pressures: evictions.node_conditions(clock.now()),
            runtime_name: runtime_name.to_string(),
            capabilities: observer.capabilities(),
            images: self.images.borrow().clone(),
        }
    }

    /// Lists the images of the runtime periodically, beside the status: a list that hangs does not delay the status. While the images
    /// cannot be listed, those of the last list are kept. Does not return.
    async fn keep_images(&self) {
        let Some(store) = &self.parts.images else { return std::future::pending().await };
        loop {
            match AssertUnwindSafe(async { store.named_images().await }).catch_unwind().await {
                Ok(Ok(images)) => {
                    self.images.send_if_modified(|last| std::mem::replace(last, images) != *last);
                }
                Ok(Err(error)) => {
                    tracing::debug!(error = %error_chain(&error), "cannot list the images for the status of the node");
                }
                Err(_) => {
                    // The registration and the lease do not depend on the images.
                    self.parts.panics.caught();
                    tracing::error!("the list of the images for the status of the node panicked");
                }
            }
            sleep(IMAGES_PERIOD).await;
        }
    }

    /// Publishes the node, if it has changed.
    pub(super) fn publish(&self, node: &Node) {
        self.parts.settings.progress.send_if_modified(|progress| {
            if let Registration::Registered(before) = progress
                && ResourceVersion::of(&before.metadata) == ResourceVersion::of(&node.metadata)
                && uid(before) == uid(node)
            {
                return false;
            }
            *progress = Registration::Registered(Arc::new(node.clone()));
            true
        });
    }

    /// Logs and publishes why the node is not registered yet.
    pub(super) fn report(&self, what: &'static str, error: &ApiError) {
        let remedy = match error {
            ApiError::Refused(_) => ": use the credentials of this node, or correct --node-name",
            ApiError::NotFound => ": create the node, or let the agent do that with --register-node",
            _ => "",
        };
        let problem = format!("{}{remedy}", error_chain(error));
        tracing::warn!(node = self.name(), error = problem, "{what}, trying again");
        self.pending(format!("{what}: {problem}"));
    }

    /// Publishes why the node is not registered yet.
    pub(super) fn pending(&self, problem: String) {
        self.parts.settings.progress.send_if_modified(|progress| match progress {
            Registration::Pending { problem: before } if before.as_ref() != Some(&problem) => {
                *before = Some(problem);
                true
            }
            _ => false,
        });
    }

    pub(super) fn record(&self, event: PodEvent) {
        self.parts.events.record_of_node(event);
    }
}

/// The UID of the node; empty if it has none.
pub(super) fn uid(node: &Node) -> &str {
    node.metadata.uid.as_deref().unwrap_or_default()
}
