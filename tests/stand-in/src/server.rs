//! The server around the store: its state, the record of requests, and the methods that tests call.

mod builder;
mod credentials;
mod handler;
mod listener;
mod proxy;
mod service;
mod tls;
mod watches;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::access::User;
use crate::call::{Call, Verb};
use crate::faults::Faults;
use crate::protobuf;
use crate::raw;
use crate::refusal::Refusal;
use crate::schema;
use crate::store::{Answer, Env, Store, Write};

use listener::{BACKLOG, Listener, Running, reserve};
use proxy::Kubelets;
use tls::Tls;

pub use builder::Builder;
pub use service::StandInService;

/// The time of a server.
pub type Clock = Arc<dyn Fn() -> jiff::Timestamp + Send + Sync>;

/// What is called for every write.
type WriteHook = Box<dyn Fn(&User, &Write) + Send + Sync>;

/// One request that was answered, or dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Served {
    /// The user, empty for a request without a known credential.
    pub user: String,
    /// The verb, where the path names a resource.
    pub verb: Option<Verb>,
    /// The plural of the resource, with the path below the object.
    pub resource: String,
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The path.
    pub path: String,
    /// The status code; 0 if the connection was dropped instead of an answer.
    pub code: u16,
}

/// The state that all connections share.
struct ServerState {
    store: Mutex<Store>,
    tls: Tls,
    kubelets: Kubelets,
    clock: Clock,
    faults: Faults,
    /// Notified whenever watches must check for events. It wakes them in the order in which they began to wait, so that a simulation
    /// repeats its run.
    changes: Notify,
    on_write: Option<WriteHook>,
    served: Mutex<Vec<Served>>,
    /// Cancelled to cut the connections of all watches; replaced for later ones.
    watches: Mutex<CancellationToken>,
    anonymous: Option<User>,
    bookmark_period: Duration,
}

impl ServerState {
    /// Answers a request of a user, and wakes the watches.
    fn apply(&self, call: &Call, user: &User, agent: &str) -> Result<Answer, Refusal> {
        self.write(user, agent, |store, env| store.apply(call, env))
    }

    /// Lets a user change the store. Then wakes the watches, and calls the hook for what has changed.
    fn write<T>(&self, user: &User, agent: &str, change: impl FnOnce(&mut Store, &Env) -> T) -> T {
        let env = Env { now: (self.clock)(), user: user.clone(), agent: agent.to_owned() };
        let mut store = self.store.lock();
        let before = store.version();
        let result = change(&mut store, &env);
        if store.version() != before {
            self.changes.notify_waiters();
        }
        let writes = self.on_write.as_ref().map(|hook| (hook, store.writes_since(before)));
        drop(store);
        // The hook may read the store.
        if let Some((hook, writes)) = writes {
            writes.iter().for_each(|write| hook(user, write));
        }
        result
    }

    fn router(self: &Arc<Self>) -> Router {
        Router::new().fallback(handler::handle).with_state(self.clone())
    }
}

/// A running server. It ends when this value is dropped.
pub struct StandIn {
    shared: Arc<ServerState>,
    /// `None` if only [`StandIn::service`] reaches the server.
    listener: Option<Listener>,
}

impl fmt::Debug for StandIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.listener.as_ref().map(|listener| listener.address);
        f.debug_struct("StandIn").field("address", &address).finish_non_exhaustive()
    }
}

impl StandIn {
    /// A server with default settings on a free port.
    ///
    /// # Errors
    ///
    /// If no port can be bound.
    pub async fn start() -> io::Result<Self> {
        Self::builder().start().await
    }

    /// Settings before the start.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Answers the requests of a user without a connection, so that time can be paused. A fault that drops a connection is an error of
    /// the request or of its body, and a request that the client drops is not processed further, except as
    /// [`Faults::on_hang_up`] says.
    #[must_use]
    pub fn service(&self, user: User) -> StandInService {
        StandInService::new(&self.shared, user)
    }

    /// The faults.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// Sends a request as the administrator, without HTTP and without faults.
    ///
    /// # Errors
    ///
    /// If the server refuses the request.
    ///
    /// # Panics
    ///
    /// If the path is one of a watch.
    pub fn request(&self, method: &str, path: &str, content_type: &str, body: &Value) -> Result<Value, Refusal> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.request_text(method, path, content_type, &body)
    }

    /// The same with the very bytes of a body. The server compares opaque parameters by their bytes.
    ///
    /// # Errors
    ///
    /// If the server refuses the request.
    ///
    /// # Panics
    ///
    /// If the path is one of a watch.
    pub fn request_text(&self, method: &str, path: &str, content_type: &str, body: &str) -> Result<Value, Refusal> {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let call = Call::parse(method, path, query, content_type, body.as_bytes())?;
        match self.shared.apply(&call, &User::admin(), "test")? {
            Answer::Object(_, mut body) => {
                raw::open(&mut body);
                Ok(body)
            }
            Answer::Watch(_) => panic!("a watch needs HTTP"),
        }
    }

    /// Changes an object as a client of the protobuf encoding does: opaque values keep their bytes.
    ///
    /// # Errors
    ///
    /// If the object does not exist, or the server refuses the change.
    pub fn replace(&self, path: &str, change: impl FnOnce(&mut Value)) -> Result<Value, Refusal> {
        let mut call = Call::parse("PUT", path, "", protobuf::MEDIA_TYPE, b"")?;
        let result = self.shared.write(&User::admin(), "test", |store, env| {
            let live = store.object(call.resource, call.namespace(), call.name());
            let live = live.ok_or_else(|| Refusal::not_found(call.resource, call.name()))?;
            call.body = Value::clone(&live);
            change(&mut call.body);
            raw::keep(call.resource.kind, "", &mut call.body);
            store.apply(&call, env)
        });
        match result? {
            Answer::Object(_, mut body) => {
                raw::open(&mut body);
                Ok(body)
            }
            Answer::Watch(_) => unreachable!("a replacement is no watch"),
        }
    }

    /// Creates an object in a collection such as `/api/v1/namespaces/default/pods`.
    ///
    /// # Errors
    ///
    /// If the server refuses the object.
    #[expect(clippy::needless_pass_by_value, reason = "callers write the object in place")]
    pub fn create(&self, collection: &str, object: Value) -> Result<Value, Refusal> {
        self.request("POST", collection, "application/json", &object)
    }

    /// One object, by the plural of its resource.
    #[must_use]
    pub fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.shared.store.lock().find(plural, namespace, name).map(raw::opened)
    }

    /// All objects of a resource.
    #[must_use]
    pub fn all(&self, plural: &str) -> Vec<Arc<Value>> {
        self.shared.store.lock().all(plural).cloned().map(raw::opened).collect()
    }

    /// Changes an object without any check, as if a server of another version had stored it.
    ///
    /// # Panics
    ///
    /// If the object does not exist.
    pub fn edit_unchecked(&self, plural: &str, namespace: &str, name: &str, change: impl FnOnce(&mut Value)) {
        let resource = schema::stored(plural).expect("the server has the resource");
        self.shared.write(&User::admin(), "test", |store, env| {
            let live = store.object(resource, namespace, name).expect("the object exists");
            let mut object = Value::clone(&live);
            change(&mut object);
            store.put(resource, object, env.now);
        });
    }

    /// Creates a namespace.
    pub fn create_namespace(&self, name: &str) {
        self.shared.write(&User::admin(), "test", |store, env| store.ensure_namespace(name, env.now));
    }

    /// The requests that came over HTTP since the start or the last [`Self::forget_requests`].
    #[must_use]
    pub fn requests(&self) -> Vec<Served> {
        self.shared.served.lock().clone()
    }

    /// Empties the record of requests.
    pub fn forget_requests(&self) {
        self.shared.served.lock().clear();
    }

    /// Cuts the connections of all watches.
    pub fn drop_watches(&self) {
        std::mem::take(&mut *self.shared.watches.lock()).cancel();
    }

    /// Forgets the history: a watch from an earlier version is answered with 410.
    pub fn compact(&self) {
        self.shared.store.lock().compact();
    }

    /// Holds the watch events of a resource back from now on. Reads at resource version 0 are as old.
    pub fn hold(&self, plural: &str) {
        let mut store = self.shared.store.lock();
        let version = store.version();
        store.held.insert(plural.to_owned(), version);
    }

    /// Sends the events that [`Self::hold`] kept.
    pub fn release(&self, plural: &str) {
        self.shared.store.lock().held.remove(plural);
        self.shared.changes.notify_waiters();
    }

    /// Closes all connections and accepts no more. The objects stay.
    ///
    /// Cancel safe: the server stops even if the caller does not wait.
    pub async fn stop(&self) {
        let running = self.listener.as_ref().and_then(|listener| listener.running.lock().take());
        if let Some(running) = running {
            running.stop().await;
        }
    }

    /// Accepts connections again, on the same address.
    ///
    /// # Errors
    ///
    /// If another program has taken the port, or if the server has none.
    pub async fn resume(&self) -> io::Result<()> {
        let listener = self.listener.as_ref().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let socket = reserve(listener.address)?.listen(BACKLOG)?;
        *listener.running.lock() = Some(Running::start(socket, self.shared.clone()));
        Ok(())
    }

    /// Restarts the server: connections are closed, objects stay, and the history before the restart is lost if
    /// `loses_history` is set.
    ///
    /// # Errors
    ///
    /// If another program has taken the port, or if the server has none.
    pub async fn restart(&self, loses_history: bool) -> io::Result<()> {
        self.stop().await;
        if loses_history {
            self.compact();
        }
        self.resume().await
    }
}
