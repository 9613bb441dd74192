//! The server around the store: the listener, credentials, the record of requests, and the methods that tests call.

mod builder;
mod credentials;
mod handler;
mod proxy;
mod tls;
mod watches;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::User;
use crate::call::{Call, Verb};
use crate::faults::Faults;
use crate::protobuf;
use crate::raw;
use crate::refusal::Refusal;
use crate::schema;
use crate::store::{Answer, Env, Store};

use proxy::Kubelets;
use tls::{Peer, Tls};

pub use builder::Builder;

/// The time of a server.
pub type Clock = Arc<dyn Fn() -> jiff::Timestamp + Send + Sync>;

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
    /// Changes whenever watches must look for events.
    changes: watch::Sender<u64>,
    served: Mutex<Vec<Served>>,
    /// Cancelled to cut the connections of all watches; replaced for later ones.
    watches: Mutex<CancellationToken>,
    anonymous: Option<User>,
    bookmark_period: Duration,
}

impl ServerState {
    /// Answers a request of a user, and wakes the watches.
    fn apply(&self, call: &Call, user: &User, agent: &str) -> Result<Answer, Refusal> {
        let env = Env { now: (self.clock)(), user: user.clone(), agent: agent.to_owned() };
        let mut store = self.store.lock();
        let result = store.apply(call, &env);
        self.wake(store.version());
        result
    }

    fn wake(&self, version: u64) {
        self.changes.send_if_modified(|known| std::mem::replace(known, version) != version);
    }
}

/// The tasks of a server that accepts connections.
struct Running {
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Running {
    fn start(listener: TcpListener, shared: Arc<ServerState>) -> Self {
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let router = Router::new().fallback(handler::handle).with_state(shared.clone());
        let (accept_stop, connections) = (stop.clone(), tasks.clone());
        tasks.spawn(async move {
            loop {
                let accepted = tokio::select! {
                    () = accept_stop.cancelled() => return,
                    accepted = listener.accept() => accepted,
                };
                if let Ok((stream, _)) = accepted {
                    let (shared, router, cut) = (shared.clone(), router.clone(), accept_stop.child_token());
                    connections.spawn(async move {
                        tokio::select! {
                            // A client that breaks its connection off is no fault of the server.
                            _ = connection(stream, &shared, router, cut.clone()) => {}
                            () = cut.cancelled() => {}
                        }
                    });
                }
            }
        });
        Self { stop, tasks }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Serves one connection until the client closes it. The first byte says whether the client speaks TLS.
async fn connection(stream: TcpStream, shared: &ServerState, router: Router, cut: CancellationToken) -> io::Result<()> {
    stream.set_nodelay(true)?;
    if Tls::is_started(&stream).await? {
        let (stream, peer) = shared.tls.accept(stream).await?;
        serve(stream, peer, router, cut).await
    } else {
        serve(stream, Peer::Unknown, router, cut).await
    }
}

/// Serves the requests of one connection. A request cancels `cut` to end the connection without an answer.
async fn serve(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    peer: Peer,
    router: Router,
    cut: CancellationToken,
) -> io::Result<()> {
    let service = TowerToHyperService::new(router.layer(Extension(cut)).layer(Extension(peer)));
    let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    connection.with_upgrades().await.map_err(io::Error::other)
}

/// The connections that wait for the server.
const BACKLOG: u32 = 1024;

/// A socket with an address that other sockets of this kind may have too.
fn reserve(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// A running server. It ends when this value is dropped.
pub struct StandIn {
    shared: Arc<ServerState>,
    address: SocketAddr,
    /// Keeps the port while the server is stopped. Otherwise the system gives it to another server, or to the client that connects to it.
    _reserved: TcpSocket,
    running: Mutex<Option<Running>>,
}

impl fmt::Debug for StandIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StandIn").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        if let Some(running) = self.running.get_mut() {
            running.stop.cancel();
        }
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
        let env = Env { now: (self.shared.clock)(), user: User::admin(), agent: "test".to_owned() };
        let mut store = self.shared.store.lock();
        let live = store.object(call.resource, call.namespace(), call.name());
        let live = live.ok_or_else(|| Refusal::not_found(call.resource, call.name()))?;
        call.body = Value::clone(&live);
        change(&mut call.body);
        raw::keep(call.resource.kind, "", &mut call.body);
        let result = store.apply(&call, &env);
        self.shared.wake(store.version());
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
        let mut store = self.shared.store.lock();
        let resource = schema::stored(plural).expect("the server has the resource");
        let live = store.object(resource, namespace, name).expect("the object exists");
        let mut object = Value::clone(&live);
        change(&mut object);
        store.put(resource, object, (self.shared.clock)());
        self.shared.wake(store.version());
    }

    /// Creates a namespace.
    pub fn create_namespace(&self, name: &str) {
        let mut store = self.shared.store.lock();
        store.ensure_namespace(name, (self.shared.clock)());
        self.shared.wake(store.version());
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
        self.shared.changes.send_modify(|_| {});
    }

    /// Closes all connections and accepts no more. The objects stay.
    ///
    /// Cancel safe: the server stops even if the caller does not wait.
    pub async fn stop(&self) {
        let running = self.running.lock().take();
        if let Some(running) = running {
            running.stop().await;
        }
    }

    /// Accepts connections again, on the same address.
    ///
    /// # Errors
    ///
    /// If another program has taken the port.
    pub async fn resume(&self) -> io::Result<()> {
        let listener = reserve(self.address)?.listen(BACKLOG)?;
        *self.running.lock() = Some(Running::start(listener, self.shared.clone()));
        Ok(())
    }

    /// Restarts the server: connections are closed, objects stay, and the history before the restart is lost if
    /// `loses_history` is set.
    ///
    /// # Errors
    ///
    /// If another program has taken the port.
    pub async fn restart(&self, loses_history: bool) -> io::Result<()> {
        self.stop().await;
        if loses_history {
            self.compact();
        }
        self.resume().await
    }
}
