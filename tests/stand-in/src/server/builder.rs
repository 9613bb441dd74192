//! Settings of a server before its start.

use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::credentials::ADMIN_TOKEN;
use super::listener::{BACKLOG, Listener, Running, reserve};
use super::proxy::Kubelets;
use super::tls::Tls;
use super::{Clock, ServerState, StandIn, WriteHook};
use crate::access::User;
use crate::faults::Faults;
use crate::store::{Settings, Store, Write};

/// A server that has not been started.
pub struct Builder {
    settings: Settings,
    port: u16,
    seed: u64,
    clock: Clock,
    anonymous: Option<User>,
    bookmark_period: Duration,
    on_write: Option<WriteHook>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("settings", &self.settings).field("port", &self.port).finish_non_exhaustive()
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            settings: Settings::default(),
            port: 0,
            seed: 1,
            clock: Arc::new(jiff::Timestamp::now),
            anonymous: None,
            bookmark_period: Duration::from_secs(60),
            on_write: None,
        }
    }
}

impl Builder {
    /// The settings of the store.
    #[must_use]
    pub fn settings(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// The port of the listener on the loopback address; 0 for any free port.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// The seed of names and UIDs.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The clock of timestamps.
    #[must_use]
    pub fn clock(mut self, clock: impl Fn() -> jiff::Timestamp + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// The user of requests without a credential. By default, the server answers such requests with 401.
    #[must_use]
    pub fn anonymous(mut self, user: User) -> Self {
        self.anonymous = Some(user);
        self
    }

    /// How often a watch gets a bookmark. The default is one minute.
    #[must_use]
    pub fn bookmark_period(mut self, period: Duration) -> Self {
        self.bookmark_period = period;
        self
    }

    /// Calls a function for every object that a request has changed, before the request is answered. A request that does not change an
    /// object is no write.
    #[must_use]
    pub fn on_write(mut self, hook: impl Fn(&User, &Write) + Send + Sync + 'static) -> Self {
        self.on_write = Some(Box::new(hook));
        self
    }

    /// Starts the server.
    ///
    /// # Errors
    ///
    /// If the port cannot be bound.
    pub async fn start(self) -> io::Result<StandIn> {
        let reserved = reserve((Ipv4Addr::LOCALHOST, self.port).into())?;
        let address = reserved.local_addr()?;
        let socket = reserve(address)?.listen(BACKLOG)?;
        let StandIn { shared, .. } = self.without_port();
        let running = Mutex::new(Some(Running::start(socket, shared.clone())));
        Ok(StandIn { shared, listener: Some(Listener { address, _reserved: reserved, running }) })
    }

    /// A server that only [`StandIn::service`] reaches. It needs no tokio runtime.
    #[must_use]
    pub fn without_port(self) -> StandIn {
        let mut store = Store::new(self.settings, self.seed, (self.clock)());
        store.tokens.insert(ADMIN_TOKEN.to_owned(), User::admin());
        let shared = Arc::new(ServerState {
            kubelets: Kubelets::new(&store.authority, (self.clock)()),
            tls: Tls::new(&store.authority, self.clock.clone()),
            store: Mutex::new(store),
            clock: self.clock,
            faults: Faults::default(),
            changes: Notify::new(),
            on_write: self.on_write,
            served: Mutex::default(),
            watches: Mutex::default(),
            anonymous: self.anonymous,
            bookmark_period: self.bookmark_period,
        });
        StandIn { shared, listener: None }
    }
}
