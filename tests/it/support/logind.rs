//! A stand-in for the system bus with systemd-logind on it. Nothing has to be installed for it.

use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use parking_lot::Mutex;
use zbus::connection::Builder;
use zbus::{Connection, Fd, Guid, Message, Variant};

const PATH: &str = "/org/freedesktop/login1";
const MANAGER: &str = "org.freedesktop.login1.Manager";
/// The address of logind on the bus.
const OWNER: &str = ":1.0";

/// The bus. It answers each connection by itself.
pub(crate) struct StandIn {
    path: PathBuf,
    state: Arc<Mutex<BusState>>,
}

struct BusState {
    /// The delay that logind allows, in microseconds.
    delay: u64,
    reads_settings: bool,
    settings: PathBuf,
    calls: Vec<String>,
    /// logind's ends of the locks.
    locks: Vec<UnixStream>,
    connections: Vec<Connection>,
}

impl StandIn {
    /// Listens at a socket in `folder`. Reads its settings from the folder `conf.d` there.
    pub(crate) fn listen(folder: &Path) -> Self {
        let path = folder.join("bus");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::UnixListener::from_std(listener).unwrap();
        let state = Arc::new(Mutex::new(BusState {
            delay: 5_000_000,
            reads_settings: true,
            settings: folder.join("conf.d/99-podwright.conf"),
            calls: Vec::new(),
            locks: Vec::new(),
            connections: Vec::new(),
        }));
        let shared = state.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream.into_std().unwrap(), shared.clone()));
            }
        });
        StandIn { path, state }
    }

    pub(crate) fn address(&self) -> String {
        format!("unix:path={}", self.path.display())
    }

    /// A connection of a client.
    pub(crate) async fn connect(&self) -> Connection {
        Builder::address(self.address().as_str()).build().await.unwrap()
    }

    /// Makes logind allow a shutdown to be delayed by this time instead of five seconds.
    pub(crate) fn allow(&self, delay: Duration) {
        self.state.lock().delay = delay.as_micros().try_into().unwrap();
    }

    /// Makes logind read no settings any more.
    pub(crate) fn ignore_settings(&self) {
        self.state.lock().reads_settings = false;
    }

    /// How often a method was called.
    pub(crate) fn calls(&self, member: &str) -> usize {
        self.state.lock().calls.iter().filter(|call| *call == member).count()
    }

    /// The number of locks that are held.
    pub(crate) fn locks(&self) -> usize {
        use std::io::{ErrorKind, Read};
        // A released lock is an end of file.
        let is_held = |lock: &mut UnixStream| match lock.read(&mut [0]) {
            Err(error) => error.kind() == ErrorKind::WouldBlock,
            Ok(_) => false,
        };
        let mut state = self.state.lock();
        state.locks.retain_mut(is_held);
        state.locks.len()
    }

    /// Announces that the machine begins to shut down, or that it does not after all. Another program announces the opposite,
    /// which nobody may believe.
    pub(crate) async fn prepare(&self, begins: bool) {
        let connections = self.state.lock().connections.clone();
        for connection in connections {
            for (sender, begins) in [(":1.66", !begins), (OWNER, begins)] {
                let signal = Message::signal(PATH, MANAGER, "PrepareForShutdown").sender(sender).build(&begins);
                // The client may be gone.
                let _gone = connection.send(&signal.unwrap()).await;
            }
        }
    }
}

async fn serve(stream: UnixStream, state: Arc<Mutex<BusState>>) {
    let server = Builder::unix_stream(stream).server(Guid::generate()).p2p();
    let Ok(mut messages) = server.build_message_stream().await else { return };
    let connection = Connection::from(&messages);
    state.lock().connections.push(connection.clone());
    while let Some(Ok(message)) = messages.next().await {
        answer(&connection, &message, &state).await;
    }
}

async fn answer(connection: &Connection, message: &Message, state: &Mutex<BusState>) {
    let header = message.header();
    let Some(member) = header.member().map(ToString::to_string) else { return };
    state.lock().calls.push(member.clone());
    let answered = match member.as_str() {
        "Hello" => connection.reply(&header, &":1.1").await,
        "GetNameOwner" => connection.reply(&header, &OWNER).await,
        "Get" => {
            let (_, name): (String, String) = message.body().deserialize().unwrap();
            let value = match name.as_str() {
                "InhibitDelayMaxUSec" => Variant::from(state.lock().delay),
                _ => Variant::from(false),
            };
            connection.reply(&header, &value).await
        }
        "KillUnit" => {
            reload(&mut state.lock());
            connection.reply(&header, &()).await
        }
        "Inhibit" => {
            let (kept, given) = UnixStream::pair().unwrap();
            kept.set_nonblocking(true).unwrap();
            state.lock().locks.push(kept);
            connection.reply(&header, &Fd::from(OwnedFd::from(given))).await
        }
        _ => connection.reply(&header, &()).await,
    };
    answered.unwrap();
}

fn reload(state: &mut BusState) {
    let text = std::fs::read_to_string(&state.settings).unwrap_or_default();
    let seconds = text.lines().find_map(|line| line.strip_prefix("InhibitDelayMaxSec=")?.parse::<u64>().ok());
    if let Some(seconds) = seconds.filter(|_| state.reads_settings) {
        state.delay = seconds * 1_000_000;
    }
}
