//! The connections that one listener has open.
//!
//! Any process of this machine can connect to a TCP port and connect again after each time limit. So a new connection never
//! waits for older ones: if no seat is free, a connection that has not authenticated itself is closed, the oldest one of the
//! address that has the most. Connections that have authenticated themselves have seats of their own.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::clients::{Anonymous, Arrivals, ClientAddress, ClientLimits, displaced};
use podwright_metrics::{NodeApiLimit, NodeApiMetrics, NodeApiResource};

/// How many connections a listener has open at most.
#[derive(Clone, Copy, Debug)]
pub struct SeatLimits {
    /// Connections that have not authenticated themselves.
    pub anonymous: usize,
    /// Connections that have authenticated themselves.
    pub authenticated: usize,
    /// What each address may have of the seats without authentication. `None` if only processes of this machine connect.
    pub client: Option<ClientLimits>,
}

/// The seats of one listener.
#[derive(Debug)]
pub struct Seats {
    limits: SeatLimits,
    anonymous: Arc<Semaphore>,
    authenticated: Arc<Semaphore>,
    open: Mutex<AnonymousConnections>,
    arrivals: Mutex<Arrivals>,
    metrics: NodeApiMetrics,
}

/// Connections that can be closed for a new one, by the order of their arrival.
#[derive(Debug, Default)]
struct AnonymousConnections {
    next: u64,
    closers: BTreeMap<u64, (Option<ClientAddress>, CancellationToken)>,
}

/// The seat of one connection. It is free again when this value is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    seats: Arc<Seats>,
    number: u64,
    closer: CancellationToken,
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    is_authenticated: Mutex<bool>,
}

impl Seats {
    /// Free seats.
    pub fn new(limits: SeatLimits) -> Arc<Self> {
        Seats::counted(limits, NodeApiMetrics::default())
    }

    /// Free seats. Connections that are refused or displaced are counted in these metrics.
    pub fn counted(limits: SeatLimits, metrics: NodeApiMetrics) -> Arc<Self> {
        Arc::new(Seats {
            limits,
            anonymous: Arc::new(Semaphore::new(limits.anonymous)),
            authenticated: Arc::new(Semaphore::new(limits.authenticated)),
            open: Mutex::default(),
            arrivals: Mutex::default(),
            metrics,
        })
    }

    /// Whether a new connection of this address may begin. An address that connects too often does not use the time of the server.
    pub(crate) fn admits(&self, client: Option<ClientAddress>) -> bool {
        let (Some(client), Some(limits)) = (client, self.limits.client) else { return true };
        let is_admitted = self.arrivals.lock().admit(client, limits.connects, Instant::now().into_std());
        if !is_admitted {
            self.metrics.refused(NodeApiResource::Connection, NodeApiLimit::Client);
        }
        is_admitted
    }

    /// Takes a seat for a new connection. If none is free for its address, an anonymous connection loses its seat. Cancel safe.
    pub(crate) async fn take(self: &Arc<Self>, client: Option<ClientAddress>) -> Seat {
        let seat = self.begin(client);
        // The connection that loses its seat frees its permit at once.
        let permit = self.anonymous.clone().acquire_owned().await.expect("the semaphore is never closed");
        *seat.permit.lock() = Some(permit);
        seat
    }

    /// The seat of a new connection, whose permit may not be free yet.
    fn begin(self: &Arc<Self>, client: Option<ClientAddress>) -> Seat {
        let closer = CancellationToken::new();
        let mut open = self.open.lock();
        let anonymous: Vec<Anonymous> = open.closers.iter().map(|(number, (own, _))| (*number, *own)).collect();
        if let Some((number, limit)) = displaced(&anonymous, client, self.limits)
            && let Some((_, displaced)) = open.closers.remove(&number)
        {
            displaced.cancel();
            self.metrics.refused(NodeApiResource::Connection, limit);
        }
        let number = open.next;
        open.next += 1;
        open.closers.insert(number, (client, closer.clone()));
        Seat { seats: self.clone(), number, closer, permit: Mutex::default(), is_authenticated: Mutex::default() }
    }
}

impl Seat {
    /// Records that the client has authenticated itself. The connection then keeps its seat. If all seats for such
    /// connections are taken, this returns false, and the connection remains one that a new connection can displace.
    pub(crate) fn authenticate(&self) -> bool {
        if *self.is_authenticated.lock() {
            return true;
        }
        let mut open = self.seats.open.lock();
        if !open.closers.contains_key(&self.number) {
            return false;
        }
        let Ok(permit) = self.seats.authenticated.clone().try_acquire_owned() else { return false };
        open.closers.remove(&self.number);
        *self.permit.lock() = Some(permit);
        *self.is_authenticated.lock() = true;
        true
    }

    /// A token that is cancelled when the connection has lost its seat to a new one.
    pub(crate) fn closer(&self) -> CancellationToken {
        self.closer.clone()
    }

    /// Resolves when the connection has lost its seat to a new one.
    pub(crate) async fn lost(&self) {
        self.closer.cancelled().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.open.lock().closers.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_new_connection_displaces_the_oldest_anonymous_one() {
        let seats = Seats::new(SeatLimits { anonymous: 2, authenticated: 1, client: None });
        let (first, second) = (seats.take(None).await, seats.take(None).await);
        assert!(first.authenticate());
        let third = seats.take(None).await;
        assert!(second.lost().now_or_never().is_none(), "the authenticated connection left its first seat");
        let mut fourth = Box::pin(seats.take(None));
        assert!(fourth.as_mut().now_or_never().is_none());
        assert!(second.lost().now_or_never().is_some(), "the oldest anonymous connection is closed");
        drop(second);
        let fourth = fourth.await;
        assert!([&first, &third, &fourth].iter().all(|seat| seat.lost().now_or_never().is_none()));

        assert!(!third.authenticate() && first.authenticate());
        let mut fifth = Box::pin(seats.take(None));
        assert!(fifth.as_mut().now_or_never().is_none());
        assert!(third.lost().now_or_never().is_some(), "only one connection gets an authenticated seat");
        drop(first);
        drop(third);
        let fifth = fifth.await;
        assert!(fifth.authenticate());
        assert_eq!((seats.open.lock().closers.len(), seats.authenticated.available_permits()), (1, 0));
        drop((fourth, fifth));
        assert_eq!((seats.anonymous.available_permits(), seats.authenticated.available_permits()), (2, 1));
        assert!(seats.open.lock().closers.is_empty());
    }
}
