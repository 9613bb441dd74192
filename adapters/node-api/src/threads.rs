//! The threads of the node API.
//!
//! The agent works on its pods in one thread: probes, statuses and the lease of the node. TLS handshakes, streams and large answers have
//! other threads, so that no client delays this work, and no work delays an administrator who looks for its cause.

use std::io;
use std::thread;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;

/// The threads that serve connections. They share the CPUs with the pods of the node.
const WORKERS: usize = 2;
/// How long the end waits for reads of files that are under way.
const BLOCKING_LIMIT: Duration = Duration::from_secs(2);
const NAME: &str = "node-api";

/// The node API while it is served by threads of its own. Clones are the same threads.
#[derive(Clone, Debug)]
pub struct NodeApiThreads {
    /// Cancelled when the threads have ended.
    ended: CancellationToken,
}

impl NodeApiThreads {
    /// Runs a server on new threads, with the tasks that it spawns.
    ///
    /// # Errors
    /// The system's error if it gives no thread.
    pub(super) fn start(serve: impl Future<Output = ()> + Send + 'static) -> io::Result<Self> {
        let ended = CancellationToken::new();
        let threads = NodeApiThreads { ended: ended.clone() };
        thread::Builder::new().name(NAME.to_owned()).spawn(move || {
            // The guard also reports an end by a panic.
            let _ended = ended.drop_guard();
            // A runtime must not be dropped in the runtime of the caller, so it is made here.
            match Builder::new_multi_thread().worker_threads(WORKERS).thread_name(NAME).enable_all().build() {
                Ok(runtime) => {
                    runtime.block_on(serve);
                    runtime.shutdown_timeout(BLOCKING_LIMIT);
                }
                Err(error) => tracing::error!(%error, "the node API is not served: raise the limit of threads"),
            }
        })?;
        Ok(threads)
    }

    /// Resolves when the server and all its tasks have ended, also after a panic. Cancel safe.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use axum::Router;
    use axum::routing::get;
    use podwright_http_server::{Authentication, Listener, SeatLimits, Seats, TimeLimits};

    use super::*;

    /// A server whose answer has the name of its thread, until `stop` is cancelled.
    fn server(stop: CancellationToken) -> (NodeApiThreads, std::net::SocketAddr, Receiver<()>) {
        struct Dropped(Sender<()>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                let _ = self.0.send(());
            }
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, dropped) = channel();
        let serve = async move {
            let task = Dropped(sender);
            tokio::spawn(async move {
                let _task = task;
                std::future::pending::<()>().await;
            });
            let name = async || thread::current().name().unwrap_or_default().to_owned();
            let router = Router::new().route("/", get(name));
            let listener = Listener::Tcp(tokio::net::TcpListener::from_std(listener).unwrap());
            let seats = Seats::new(SeatLimits { anonymous: 8, authenticated: 0, client: None });
            let served =
                podwright_http_server::serve(listener, seats, Authentication::Router, TimeLimits::default(), router);
            stop.run_until_cancelled(served).await;
        };
        (NodeApiThreads::start(serve).unwrap(), address, dropped)
    }

    #[tokio::test]
    async fn clients_get_answers_while_the_thread_of_the_agent_is_busy() {
        let stop = CancellationToken::new();
        let (threads, address, dropped) = server(stop.clone());
        // This blocks the only thread of the test's runtime.
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with(NAME), "{answer}");

        stop.cancel();
        threads.ended().await;
        assert_eq!(dropped.try_recv(), Ok(()), "the tasks of the server have ended");
    }

    #[tokio::test]
    async fn server_that_panics_has_ended() {
        let threads = NodeApiThreads::start(async { panic!("a faulty server") }).unwrap();
        threads.clone().ended().await;
        threads.ended().await;
    }
}
