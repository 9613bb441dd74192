//! Handlers of the watches, which are added and removed while the controller runs.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use k8s_openapi::Metadata;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use k8s_openapi::api::scheduling::v1alpha2::PodGroup;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::{Mutex, MutexGuard};
use podwright_metrics::PanicMetrics;
use podwright_model::time::Time;
use tokio::sync::Notify;
use tracing::field::display;

use super::super::owners::object_key;
use super::super::resource_claim::{CONTROLLER_NAME, Core, Key, WatchEvent};

/// A handler that [`ClaimController::add_handler`](super::ClaimController::add_handler) has added to a watch. Dropping this value removes
/// the handler.
///
/// When the drop returns, no further call of the handler begins. A call that another thread has begun before may still be running.
#[must_use = "a drop removes the handler"]
pub struct WatchHandler {
    is_removed: Arc<AtomicBool>,
    handlers: Weak<dyn RemoveHandlers>,
}

impl fmt::Debug for WatchHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchHandler").finish_non_exhaustive()
    }
}

impl Drop for WatchHandler {
    fn drop(&mut self) {
        self.is_removed.store(true, Ordering::Release);
        if let Some(handlers) = self.handlers.upgrade() {
            handlers.remove();
        }
    }
}

trait RemoveHandlers: Send + Sync {
    /// Drops the handlers that were removed. While a thread delivers events, that thread drops them.
    fn remove(&self);
}

/// The function of a handler.
type Call<K> = Box<dyn FnMut(&WatchEvent<K>) + Send>;

/// One handler.
struct Handler<K> {
    call: Call<K>,
    is_removed: Arc<AtomicBool>,
}

impl<K> Handler<K> {
    fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }
}

/// One item of the queue of deliveries.
enum Delivery<K> {
    Event(WatchEvent<K>),
    /// A new handler, with the events that show it the present objects.
    New(Handler<K>, Vec<WatchEvent<K>>),
}

/// The handlers of the watch of one kind of object.
///
/// One thread delivers at a time, and holds no lock during a call. So a handler may add and remove handlers, even itself. While a thread
/// delivers the list of a new handler, the watch brings further events, which are queued. A watch waits while [`MAX_QUEUED_EVENTS`] or more
/// are queued.
pub struct Handlers<K> {
    state: Mutex<HandlersState<K>>,
    /// Notified when there is room in the queue again.
    has_room: Notify,
    is_closed: AtomicBool,
}

/// A watch waits while this number of events, or more, are queued.
const MAX_QUEUED_EVENTS: usize = 1000;

struct HandlersState<K> {
    /// Empty while a thread delivers, because that thread has taken them.
    handlers: Vec<Handler<K>>,
    deliveries: VecDeque<Delivery<K>>,
    is_delivering: bool,
}

impl<K> Default for Handlers<K> {
    fn default() -> Self {
        let state = HandlersState { handlers: Vec::new(), deliveries: VecDeque::new(), is_delivering: false };
        Handlers { state: Mutex::new(state), has_room: Notify::new(), is_closed: AtomicBool::new(false) }
    }
}

impl<K> Handlers<K>
where
    K: Metadata<Ty = ObjectMeta> + Clone + Send + Sync + 'static,
{
    /// Adds a handler. `list` names the events that show the present objects. No event of the watch is applied meanwhile.
    pub(super) fn add(
        self: &Arc<Self>,
        call: Call<K>,
        list: impl FnOnce() -> Vec<WatchEvent<K>>,
        panics: &PanicMetrics,
    ) -> WatchHandler {
        let is_removed = Arc::new(AtomicBool::new(false));
        let this: Weak<Self> = Arc::downgrade(self);
        let handler = Handler { call, is_removed: is_removed.clone() };
        let mut state = self.state.lock();
        state.deliveries.push_back(Delivery::New(handler, list()));
        self.deliver(state, panics);
        WatchHandler { is_removed, handlers: this }
    }

    /// Applies an event of the watch with `apply`, and delivers it to the handlers.
    pub(super) fn event(&self, event: WatchEvent<K>, apply: impl FnOnce(WatchEvent<K>), panics: &PanicMetrics) {
        let mut state = self.state.lock();
        let has_handlers = state.is_delivering || !state.handlers.is_empty();
        let delivered = has_handlers.then(|| event.clone());
        apply(event);
        if let Some(event) = delivered {
            state.deliveries.push_back(Delivery::Event(event));
            self.deliver(state, panics);
        }
    }

    /// Waits while too many events are queued. Cancel safe.
    pub(super) async fn until_room(&self) {
        loop {
            let mut has_room = pin!(self.has_room.notified());
            // Before the check, so that no notification is lost.
            has_room.as_mut().enable();
            let is_full = self.state.lock().deliveries.len() >= MAX_QUEUED_EVENTS;
            if !is_full || self.is_closed.load(Ordering::Acquire) {
                return;
            }
            has_room.await;
        }
    }

    /// Removes all handlers. When this returns, no further call of a handler begins.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        self.has_room.notify_waiters();
        self.remove();
    }

    fn deliver<'a>(&'a self, mut state: MutexGuard<'a, HandlersState<K>>, panics: &PanicMetrics) {
        if mem::replace(&mut state.is_delivering, true) {
            // The thread that delivers, which may be this one, continues with what was added.
            return;
        }
        let mut handlers = mem::take(&mut state.handlers);
        while let Some(delivery) = state.deliveries.pop_front() {
            let has_room = state.deliveries.len() < MAX_QUEUED_EVENTS;
            drop(state);
            if has_room {
                self.has_room.notify_waiters();
            }
            match delivery {
                Delivery::Event(event) => handlers.iter_mut().for_each(|handler| self.call(handler, &event, panics)),
                Delivery::New(mut handler, list) => {
                    list.iter().for_each(|event| self.call(&mut handler, event, panics));
                    handlers.push(handler);
                }
            }
            state = self.state.lock();
        }
        state.is_delivering = false;
        state.handlers = handlers;
        drop(state);
        // Handlers may have been removed during the delivery.
        self.remove();
    }

    /// Calls a handler. A panic does not end the watch, and the handler receives the next events.
    fn call(&self, handler: &mut Handler<K>, event: &WatchEvent<K>, panics: &PanicMetrics) {
        if handler.is_removed() || self.is_closed.load(Ordering::Acquire) {
            return;
        }
        if catch_unwind(AssertUnwindSafe(|| (handler.call)(event))).is_err() {
            panics.caught();
            log_panic(event.object().map(|object| &**object), "a handler of the watch panicked");
        }
    }
}

impl<K: Send + Sync> RemoveHandlers for Handlers<K> {
    fn remove(&self) {
        let is_closed = self.is_closed.load(Ordering::Acquire);
        let mut state = self.state.lock();
        let is_removed = |handler: &mut Handler<K>| is_closed || handler.is_removed();
        let removed: Vec<_> = state.handlers.extract_if(.., is_removed).collect();
        drop(state);
        // Without the lock, because a handler that is dropped may remove others.
        drop(removed);
    }
}

/// A kind of object that the controller watches: [`Pod`], [`ResourceClaim`], [`ResourceClaimTemplate`] or [`PodGroup`].
pub trait WatchedKind: kinds::Kind {}

impl<K: kinds::Kind> WatchedKind for K {}

/// The handlers of all watches.
#[derive(Default)]
pub struct AllHandlers {
    pods: Arc<Handlers<Pod>>,
    claims: Arc<Handlers<ResourceClaim>>,
    templates: Arc<Handlers<ResourceClaimTemplate>>,
    groups: Arc<Handlers<PodGroup>>,
}

impl AllHandlers {
    /// Removes all handlers. When this returns, no further call of a handler begins.
    pub(super) fn close(&self) {
        self.pods.close();
        self.claims.close();
        self.templates.close();
        self.groups.close();
    }
}

/// The trait is private, so that there are no other kinds.
pub(super) mod kinds {
    use super::*;

    pub trait Kind: Metadata<Ty = ObjectMeta> + Clone + Send + Sync + 'static {
        /// Takes an event of the watch, and returns the keys that need work.
        fn apply(core: &mut Core, event: WatchEvent<Self>, now: Time) -> Vec<Key>;

        /// The events that show the present objects.
        fn list(core: &Core) -> Vec<WatchEvent<Self>>;

        /// The handlers of the watch.
        fn handlers(all: &AllHandlers) -> &Arc<Handlers<Self>>;
    }

    macro_rules! kind {
        ($kind:ty, $event:expr, $list:ident, $handlers:ident) => {
            impl Kind for $kind {
                fn apply(core: &mut Core, event: WatchEvent<Self>, now: Time) -> Vec<Key> {
                    let take: fn(&mut Core, WatchEvent<Self>, Time) -> Vec<Key> = $event;
                    take(core, event, now)
                }

                fn list(core: &Core) -> Vec<WatchEvent<Self>> {
                    core.$list()
                }

                fn handlers(all: &AllHandlers) -> &Arc<Handlers<Self>> {
                    &all.$handlers
                }
            }
        };
    }

    kind!(Pod, |core, event, _| core.pod_event(event), list_pods, pods);
    kind!(ResourceClaim, Core::claim_event, list_claims, claims);
    kind!(ResourceClaimTemplate, |core, event, _| core.template_event(event), list_templates, templates);
    kind!(PodGroup, |core, event, _| core.pod_group_event(event), list_pod_groups, groups);
}

/// Logs a panic in the handling of an event, with the object of the event.
pub(super) fn log_panic<K: Metadata<Ty = ObjectMeta>>(object: Option<&K>, message: &'static str) {
    let object = object.map(|object| display(object_key(object.metadata())));
    tracing::error!(controller = CONTROLLER_NAME, kind = K::KIND, object, message);
}
