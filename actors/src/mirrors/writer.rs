//! Performs the writes of mirror pods: one task, at most [`MAX_ACTIVE`] names at once, one call per name.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use podwright_metrics::Metrics;
use podwright_work_loop::{Work, work};
use podwright_work_queue::{Backoff, Outcome, Urgency, WorkQueue};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::checks::MirrorChecks;
use super::object::mirror_pod;
use super::plan::{MirrorAction, MirrorFacts, plan};
use crate::desired::DesiredPods;
use crate::engine::Engine;
use crate::ids::{FullName, NodeUid};
use crate::node_status::Registration;
use crate::pod::PodObject;
use crate::ports::{ApiError, Clock, PodApi, SourceKind};
use crate::text::error_chain;

/// The largest number of calls at one time. A node has few static pods.
const MAX_ACTIVE: usize = 8;
/// The delays of a full name whose writes fail, as for the statuses.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(10) };

/// Creates and deletes mirror pods.
pub(crate) struct MirrorWriter {
    pub(crate) engine: Engine,
    pub(crate) desired: Arc<DesiredPods>,
    pub(crate) checks: Arc<MirrorChecks>,
    pub(crate) api: Arc<dyn PodApi>,
    /// The name of the node.
    pub(crate) node: String,
    /// The registration of the node, which owns its mirror pods. Without it, no mirror pod is created.
    pub(crate) registration: Option<watch::Receiver<Registration>>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) metrics: Metrics,
    pub(crate) state: MirrorWriterState,
}

/// What the writer remembers between writes.
pub(crate) struct MirrorWriterState {
    queue: Mutex<WorkQueue<FullName>>,
    /// The errors of the last writes, by full name. A repeated error is logged once.
    errors: Mutex<HashMap<FullName, String, RandomState>>,
}

impl Default for MirrorWriterState {
    fn default() -> Self {
        MirrorWriterState { queue: Mutex::new(WorkQueue::new(BACKOFF)), errors: Mutex::default() }
    }
}

impl MirrorWriter {
    /// Writes until `stop` is cancelled. A call that runs then is dropped.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        let writes = Work {
            queue: &self.state.queue,
            limit: MAX_ACTIVE,
            fill: |queue: &mut WorkQueue<FullName>| {
                self.checks.take().for_each(|name| queue.add(&name, Urgency::Normal));
            },
            added: || self.checks.added(),
            perform: |name: FullName| self.write(name),
            clock: &*self.clock,
            panics: self.metrics.actors.panics(),
            durations: None,
        };
        tokio::join!(work(writes, stop.clone()), stop.run_until_cancelled(self.follow_node()));
    }

    /// Checks all static pods if the Node object exists, and each time it appears.
    async fn follow_node(&self) {
        let Some(mut registration) = self.registration.clone() else { return };
        let mut last = None;
        loop {
            let uid = registration.borrow_and_update().node_uid();
            if uid != last && uid.is_some() {
                self.desired.lock().pods.pods().filter(|pod| pod.is_static()).for_each(|pod| self.checks.changed(pod));
            }
            last = uid;
            if registration.changed().await.is_err() {
                return;
            }
        }
    }

    /// The UID of the Node object. `None` while the node is not registered, and while its object is being deleted.
    fn node_uid(&self) -> Option<NodeUid> {
        self.registration.as_ref().and_then(|registration| registration.borrow().node_uid())
    }

    async fn write(&self, name: FullName) -> Outcome {
        let errors = &self.state.errors;
        let Err(error) = self.update(&name).await else {
            errors.lock().remove(&name);
            return Outcome::Finished;
        };
        let at_least = error.retry_after();
        let text = error_chain(&error).to_string();
        let last = errors.lock().insert(name.clone(), text.clone());
        if last.as_ref() != Some(&text) {
            tracing::warn!(pod = %name, error = text, "cannot create or delete the mirror pod of the static pod");
        }
        Outcome::Retry { at_least }
    }

    /// Brings the mirror pod of a full name up to date: deletes it, creates it, or both.
    ///
    /// # Errors
    /// [`ApiError`], among them [`ApiError::Conflict`] if a pod of this name exists that the API source has not delivered. The
    /// next try knows it.
    async fn update(&self, name: &FullName) -> Result<(), ApiError> {
        let mut action = plan(&self.facts(name));
        if let MirrorAction::Delete(mirror) = action {
            match self.api.delete(&mirror).await {
                Ok(()) => tracing::info!(pod = %name, mirror.uid = %mirror.uid(), "deleted the mirror pod"),
                // Somebody else deleted it.
                Err(ApiError::NotFound | ApiError::Conflict(_)) => {}
                Err(error) => return Err(error),
            }
            self.checks.deleted(&mirror);
            action = plan(&self.facts(name));
        }
        let MirrorAction::Create(pod) = action else { return Ok(()) };
        let Some(uid) = self.node_uid() else { return Ok(()) };
        let mirror = self.api.create(&mirror_pod(&pod, &self.node, &uid)).await?;
        tracing::info!(pod = %name, mirror.uid = %mirror.uid(), "created the mirror pod of the static pod");
        self.created(mirror);
        Ok(())
    }

    /// Remembers a mirror pod that was created. The API source may have delivered it before the answer arrived.
    fn created(&self, mirror: Arc<PodObject>) {
        let desired = self.desired.lock();
        let is_seen = desired.pods.mirror_named(mirror.full_name()).is_some_and(|seen| seen.uid() == mirror.uid());
        if !is_seen {
            self.checks.created(mirror, self.clock.now());
        }
    }

    fn facts(&self, name: &FullName) -> MirrorFacts {
        let desired = self.desired.lock();
        let mirror = desired.pods.mirror_named(name).cloned();
        MirrorFacts {
            static_pod: desired.static_pod(name).cloned(),
            mirror: self.checks.newest(name, mirror, self.clock.now()),
            is_terminating: self.engine.is_pod_for_mirror_terminating(name),
            are_sources_ready: desired.is_ready(),
            are_mirrors_known: desired.has_delivered(SourceKind::Api),
        }
    }
}
