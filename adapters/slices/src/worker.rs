//! The task that publishes the pools.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use k8s_openapi::api::resource::v1::ResourceSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use podwright_model::text::error_chain;
use podwright_model::time::Time;
use podwright_work_queue::Outcome;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::api::{CallError, SliceApi};
use super::compare;
use super::engine::{Desired, Shared};
use super::error::{DroppedFields, SliceError, Write, WriteError};
use super::pace::CallPace;
use super::plan::{Identity, Plan, plan};
use super::view::View;

/// Compares and writes one pool after another.
pub(super) struct Worker {
    api: Arc<dyn SliceApi>,
    shared: Arc<Shared>,
    view: View,
    pace: CallPace,
    /// Whether the running sync has called the API server.
    has_called: bool,
    /// The UID of the owner, once it is known.
    owner_uid: Option<String>,
}

impl Worker {
    pub(super) fn new(api: Arc<dyn SliceApi>, shared: Arc<Shared>) -> Self {
        let options = &shared.options;
        let owner_uid = options.owner.as_ref().and_then(|owner| owner.uid.clone());
        let view = View::new(options.only.clone());
        Worker { api, shared, view, pace: CallPace::default(), has_called: false, owner_uid }
    }

    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut events = self.api.watch();
        let relist_every = self.shared.options.relist_every;
        let mut relist = relist_every.map(|period| Instant::now() + period);
        let shared = self.shared.clone();
        loop {
            // Before the first list, each slice would seem to be missing.
            let wait = {
                let queue = shared.queue.lock();
                let wait = if queue.has_ready() {
                    Some(Duration::ZERO)
                } else {
                    queue.next_due().map(|due| due.since(shared.now()))
                };
                wait.filter(|_| self.view.is_listed() && shared.is_updated() && !shared.is_held())
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                event = events.next() => match event {
                    Some(Ok(event)) => self.changed(event),
                    Some(Err(error)) => self.report(SliceError::Watch(error)),
                    None => return,
                },
                () = sleep_until(relist.unwrap_or_else(Instant::now)), if relist.is_some() => {
                    events = self.api.watch();
                    relist = relist_every.map(|period| Instant::now() + period);
                }
                () = shared.queued.notified() => {}
                () = sleep(wait.unwrap_or_default()), if wait.is_some() => {
                    let pool = shared.queue.lock().take(shared.now());
                    let Some(pool) = pool else { continue };
                    let pause = self.pace.wait(&pool, shared.now());
                    if !pause.is_zero() {
                        shared.queue.lock().done(&pool, Outcome::Wait(pause), shared.now());
                        continue;
                    }
                    tokio::select! {
                        () = stop.cancelled() => return,
                        () = self.sync_and_report(&pool) => {}
                    }
                }
            }
        }
    }

    fn changed(&mut self, event: kube::runtime::watcher::Event<ResourceSlice>) {
        let pools = self.view.apply(event);
        let due = self.shared.now() + self.shared.options.change_delay;
        let mut queue = self.shared.queue.lock();
        pools.iter().for_each(|pool| queue.add_at(pool, due));
    }

    async fn sync_and_report(&mut self, pool: &str) {
        self.has_called = false;
        let result = AssertUnwindSafe(self.sync(pool)).catch_unwind().await;
        // Also after a failure: an update of the driver ends its backoff.
        if self.has_called {
            self.pace.called(pool, self.shared.now());
        }
        let result = result
            .unwrap_or_else(|panic| Err(SliceError::Panicked { pool: pool.to_owned(), message: message(&*panic) }));
        let outcome = match &result {
            Err(error) if error.is_recoverable() => Outcome::Retry { at_least: Duration::ZERO },
            Ok(()) | Err(_) => Outcome::Finished,
        };
        let mut queue = self.shared.queue.lock();
        let key = pool.to_owned();
        let waited = queue.waited(&key).unwrap_or_default();
        let worked = queue.worked(&key, self.shared.now()).unwrap_or_default();
        queue.done(&key, outcome, self.shared.now());
        if let Some(until) = self.view.own_until(pool) {
            // Until then, the own writes hide a change by another client that the watch has missed.
            queue.add_at(&key, Time::ZERO + until.saturating_duration_since(self.shared.started));
        }
        drop(queue);
        (self.shared.options.on_sync)(waited, worked);
        if let Err(error) = result {
            self.report(error);
        }
    }

    /// Reports an error to the driver. A panic of its function does not stop the task.
    fn report(&self, error: SliceError) {
        let text = error_chain(&error).to_string();
        let report = AssertUnwindSafe(|| (self.shared.options.on_error)(error));
        if std::panic::catch_unwind(report).is_err() {
            tracing::error!(error = text, "the error function of the ResourceSlice publisher panicked");
        }
    }

    /// Makes the slices of a pool equal to what the driver offers.
    async fn sync(&mut self, name: &str) -> Result<(), SliceError> {
        // Also before a sync that ends early: an own write that is past its end makes the pool due again at once.
        self.view.expire(Instant::now());
        let desired = self.shared.desired.lock().get(name).cloned();
        if let Some(Desired { is_refused: true, .. }) = desired {
            return Ok(());
        }
        if let Some(desired) = &desired
            && let Err(source) = desired.pool.validate(self.shared.options.node().is_some())
        {
            self.change_desired(name, desired, |desired| desired.is_refused = true);
            return Err(SliceError::Invalid { pool: name.to_owned(), source });
        }
        let was_known = self.owner_uid.is_some();
        let identity = self.identity().await.map_err(SliceError::Owner)?;
        let seen = self.view.pool(name);
        let pool = desired.as_ref().map(|desired| &*desired.pool);
        let mut planned = plan(&identity, name, pool, &seen);
        if self.shared.options.reads_owner_again && was_known && !planned.creates.is_empty() {
            self.owner_uid = None;
            let identity = self.identity().await.map_err(SliceError::Owner)?;
            planned = plan(&identity, name, pool, &seen);
        }
        let errors = self.perform(name, desired.as_ref(), planned).await;
        if errors.is_empty() { Ok(()) } else { Err(SliceError::Writes { pool: name.to_owned(), errors }) }
    }

    async fn identity(&mut self) -> Result<Identity, CallError> {
        let options = &self.shared.options;
        let owner: Option<OwnerReference> = match &options.owner {
            None => None,
            Some(owner) => {
                let uid = match self.owner_uid.clone() {
                    Some(uid) => uid,
                    None if owner.is_node() => {
                        self.has_called = true;
                        self.api.node_uid(&owner.name).await?
                    }
                    None => String::new(),
                };
                self.owner_uid = Some(uid.clone());
                Some(owner.reference(&uid))
            }
        };
        Ok(Identity { driver: options.driver.clone(), owner, node: options.node().map(str::to_owned) })
    }

    /// Performs each write, even after one has failed: slices of removed devices must be deleted although the new slices cannot be
    /// written.
    async fn perform(&mut self, name: &str, desired: Option<&Desired>, plan: Plan) -> Vec<WriteError> {
        let api = self.api.clone();
        let mut errors = Vec::new();
        let mut failed = |write, slice: &ResourceSlice, source| {
            let metadata = &slice.metadata;
            let slice = metadata.name.clone().or_else(|| metadata.generate_name.clone()).unwrap_or_default();
            errors.push(WriteError { write, slice, source });
        };
        for (index, slice) in &plan.updates {
            if self.shared.is_held() {
                // All pools are compared again when the engine resumes.
                return Vec::new();
            }
            self.has_called = true;
            match api.update(slice).await {
                Ok(stored) => {
                    self.shared.wrote(Write::Update);
                    self.stored(name, desired, *index, stored);
                }
                Err(error) => failed(Write::Update, slice, error),
            }
        }
        for (index, slice) in &plan.creates {
            if self.shared.is_held() {
                return Vec::new();
            }
            self.has_called = true;
            match api.create(slice).await {
                Ok(stored) => {
                    self.shared.wrote(Write::Create);
                    self.stored(name, desired, *index, stored);
                }
                Err(error) => failed(Write::Create, slice, error),
            }
        }
        for slice in plan.deletes {
            self.has_called = true;
            match api.delete(&slice).await {
                Ok(()) => {
                    self.shared.wrote(Write::Delete);
                    self.view.deleted(slice, Instant::now() + self.shared.options.own_writes);
                }
                Err(error) if error.is_not_found() => {
                    self.view.deleted(slice, Instant::now() + self.shared.options.own_writes);
                }
                Err(error) => failed(Write::Delete, &slice, error),
            }
        }
        errors
    }

    /// Remembers what the API server stored. If it dropped fields, what it stored becomes what is desired, so that it is not
    /// written again and again.
    fn stored(&mut self, name: &str, desired: Option<&Desired>, index: usize, stored: ResourceSlice) {
        let actual = compare::content(&stored);
        self.view.written(stored, Instant::now() + self.shared.options.own_writes);
        let Some((desired, slice)) = desired.and_then(|desired| Some((desired, desired.pool.slices.get(index)?)))
        else {
            return;
        };
        let features = compare::suspected_features(slice, &actual);
        if features.is_empty() {
            return;
        }
        self.change_desired(name, desired, |desired| {
            if let Some(slice) = Arc::make_mut(&mut desired.pool).slices.get_mut(index) {
                slice.clone_from(&actual);
            }
        });
        let dropped = DroppedFields { pool: name.to_owned(), index, desired: slice.clone(), actual, features };
        self.report(SliceError::DroppedFields(Box::new(dropped)));
    }

    /// Changes what is desired, unless the driver has made another update in the meantime.
    fn change_desired(&self, name: &str, synced: &Desired, change: impl FnOnce(&mut Desired)) {
        if let Some(desired) = self.shared.desired.lock().get_mut(name)
            && desired.version == synced.version
        {
            change(desired);
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
