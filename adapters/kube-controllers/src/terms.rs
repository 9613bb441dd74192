//! Runs a controller while this replica leads.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, Either, select};
use kube::Client;
use podwright_controllers::leader_election::Leadership;
use podwright_metrics::ControllersMetrics;
use podwright_parts::Parts;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::watch_problems::WatchProblems;

/// How long the write of the events of a term may take. The next term begins after it.
const EVENTS_TIMEOUT: Duration = Duration::from_secs(8);
/// How long the end of a term may still take once this replica leads again. Meanwhile, no replica does the work of the controller.
const END_TIMEOUT_OF_LEADER: Duration = Duration::from_secs(1);

/// A controller that lives for one term as the leader.
pub(super) trait TermController: Send + Sync + Sized + 'static {
    /// Its name.
    const NAME: &'static str;
    type Config: Copy + Send + Sync;
    type Ports: Clone + Send + Sync;
    /// What a term leaves to the next term of this process.
    type Left: Default + Send;

    fn metrics(ports: &Self::Ports) -> &ControllersMetrics;

    /// The ports of one term. No call begins while this replica does not hold the lease of this term.
    fn of_term(ports: &Self::Ports, term: u64) -> Self::Ports;

    /// Starts the controller with an empty cache.
    fn begin(config: Self::Config, ports: Self::Ports, left: Self::Left) -> Self;

    /// Starts the watches, each as a part.
    fn watch(controller: &Arc<Self>, config: Self::Config, client: &Client, problems: &WatchProblems, parts: &Parts);

    /// Ends all passes.
    fn end(&self) -> impl Future<Output = Self::Left> + Send;

    /// Writes the events of the term. Returns how many were not written within `limit`.
    ///
    /// Cancel safe: another call goes on.
    fn close_events(ports: &Self::Ports, limit: Duration) -> BoxFuture<'_, usize>;
}

/// The terms of this replica as the leader. Each term has a controller with an empty cache and watches of its own, which begin with a
/// list from the storage of the server. So a term knows everything that the previous leader has done.
pub(super) struct Terms<C: TermController> {
    client: Client,
    config: C::Config,
    pub(super) ports: C::Ports,
    current: watch::Sender<Option<Arc<C>>>,
    problems: WatchProblems,
}

impl<C: TermController> Terms<C> {
    /// The terms before the first one begins.
    pub(super) fn new(client: Client, config: C::Config, ports: C::Ports) -> Self {
        let problems = WatchProblems::new(C::NAME, C::metrics(&ports).watches.clone());
        let current = watch::Sender::new(None);
        Terms { client, config, ports, current, problems }
    }

    pub(super) fn current(&self) -> watch::Receiver<Option<Arc<C>>> {
        self.current.subscribe()
    }

    pub(super) fn problems(&self) -> WatchProblems {
        self.problems.clone()
    }

    /// Begins and ends terms with the leadership, until `stop` is cancelled. When this returns, no watch and no pass runs. Returns what the
    /// last term has left.
    pub(super) async fn run(self, mut leadership: watch::Receiver<Leadership>, stop: CancellationToken) -> C::Left {
        let mut left = C::Left::default();
        loop {
            let leads = async { Some(leadership.wait_for(Leadership::is_leading).await.ok()?.clone()) };
            // Without a sender, the election has ended.
            let Some(Some(leading)) = stop.run_until_cancelled(leads).await else { break };
            left = self.run_term(left, &leading, &mut leadership, &stop).await;
            if stop.is_cancelled() {
                break;
            }
        }
        left
    }

    /// Runs the controller until the leadership changes or `stop` is cancelled.
    async fn run_term(
        &self,
        left: C::Left,
        leading: &Leadership,
        leadership: &mut watch::Receiver<Leadership>,
        stop: &CancellationToken,
    ) -> C::Left {
        let ports = match leading {
            Leadership::Leading { term } => C::of_term(&self.ports, *term),
            Leadership::Following { .. } => return left,
        };
        let controller = Arc::new(C::begin(self.config, ports, left));
        let watched = stop.child_token();
        // If this future is dropped, the watches end, and with the last reference to the controller its passes.
        let _term_end = TermEnd::new(&self.current, &watched);
        let watches = Parts::new(C::metrics(&self.ports).panics.clone(), watched.clone());
        C::watch(&controller, self.config, &self.client, &self.problems, &watches);
        self.current.send_replace(Some(controller.clone()));
        tracing::info!(controller = C::NAME, "controller started");
        let ends = async { leadership.wait_for(|leadership| leadership != leading).await.is_ok() };
        let _by_election = stop.run_until_cancelled(ends).await;
        self.current.send_replace(None);
        watched.cancel();
        let next_term = pin!(async {
            let leads_again = leadership.wait_for(Leadership::is_leading).await.is_ok();
            // Without a sender, the election has ended.
            if leads_again { sleep(END_TIMEOUT_OF_LEADER).await } else { pending().await }
        });
        let ended = pin!(async {
            let left = controller.end().await;
            watches.ended().await;
            left
        });
        // The time of the passes counts too.
        let (left, next_term) = match select(ended, next_term).await {
            Either::Left((left, next_term)) => (left, Some(next_term)),
            Either::Right(((), ended)) => (ended.await, None),
        };
        self.problems.reset();
        // A process that stops gives its lease back first, and closes the events then.
        let closed = async {
            let Some(next_term) = next_term else { return C::close_events(&self.ports, Duration::ZERO).await };
            tokio::select! {
                unwritten = C::close_events(&self.ports, EVENTS_TIMEOUT) => unwritten,
                () = next_term => C::close_events(&self.ports, Duration::ZERO).await,
            }
        };
        let unwritten = stop.run_until_cancelled(closed).await.unwrap_or(0);
        if unwritten > 0 {
            tracing::warn!(controller = C::NAME, events = unwritten, "not all events were written in time");
        }
        tracing::info!(controller = C::NAME, "controller stopped");
        left
    }
}

/// Ends the watches of a term and the use of its controller by others.
struct TermEnd<'a, C> {
    current: &'a watch::Sender<Option<Arc<C>>>,
    _watches: DropGuard,
}

impl<'a, C> TermEnd<'a, C> {
    fn new(current: &'a watch::Sender<Option<Arc<C>>>, watched: &CancellationToken) -> Self {
        TermEnd { current, _watches: watched.clone().drop_guard() }
    }
}

impl<C> Drop for TermEnd<'_, C> {
    fn drop(&mut self) {
        self.current.send_replace(None);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    /// A controller whose passes end after 0.8 s, and whose events cannot be written.
    struct FakeController;

    impl TermController for FakeController {
        const NAME: &'static str = "fake";
        type Config = ();
        type Ports = ControllersMetrics;
        type Left = ();

        fn metrics(ports: &ControllersMetrics) -> &ControllersMetrics {
            ports
        }

        fn of_term(ports: &ControllersMetrics, _: u64) -> ControllersMetrics {
            ports.clone()
        }

        fn begin((): (), _: ControllersMetrics, (): ()) -> Self {
            FakeController
        }

        fn watch(_: &Arc<Self>, (): (), _: &Client, _: &WatchProblems, _: &Parts) {}

        async fn end(&self) {
            sleep(Duration::from_millis(800)).await;
        }

        fn close_events(_: &ControllersMetrics, limit: Duration) -> BoxFuture<'_, usize> {
            Box::pin(async move {
                sleep(limit).await;
                1
            })
        }
    }

    /// A replica that leads again does not wait for the events of its last term for the whole limit. The end of the passes counts.
    #[tokio::test(start_paused = true)]
    async fn term_begins_a_second_after_this_replica_leads_again() {
        let no_server = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::io::Error>>()
        });
        let terms = Terms::<FakeController>::new(Client::new(no_server, "default"), (), ControllersMetrics::new());
        let mut current = terms.current();
        let (leads, leadership) = watch::channel(Leadership::Leading { term: 1 });
        let stop = CancellationToken::new();
        let running = tokio::spawn(terms.run(leadership, stop.clone()));
        for (follows_for, expected) in [(0, 1), (3, 4), (7, 8), (20, 20)] {
            current.wait_for(Option::is_some).await.unwrap();
            let started = Instant::now();
            leads.send_replace(Leadership::Following { holder: None, address: None, problem: None });
            current.wait_for(Option::is_none).await.unwrap();
            sleep(Duration::from_secs(follows_for)).await;
            leads.send_replace(Leadership::Leading { term: 2 });
            current.wait_for(Option::is_some).await.unwrap();
            let (took, expected) = (started.elapsed(), Duration::from_secs(expected));
            assert!(took.abs_diff(expected) < Duration::from_millis(10), "{took:?}: leads again after {follows_for} s");
        }
        stop.cancel();
        running.await.unwrap();
    }
}
