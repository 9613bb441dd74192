//! The clients of a listener by their addresses: which connection a new one displaces, and who connects too often. Pure.
//!
//! A client that has not authenticated itself is known by its address alone. Whatever one address does, another address finds a seat.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Instant;

use podwright_metrics::NodeApiLimit;

use super::pace::{Pace, Rate};
use super::seats::SeatLimits;

/// The most addresses whose rate is known. Addresses beyond that have no limited rate.
const MAX_ADDRESSES: usize = 4096;

/// The address that connections have in common: an IPv4 address, or the first 64 bits of an IPv6 address, because one machine can use
/// every address of such a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientAddress(IpAddr);

impl From<IpAddr> for ClientAddress {
    fn from(address: IpAddr) -> Self {
        ClientAddress(match address.to_canonical() {
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
            address => address,
        })
    }
}

/// What one address may have of the connections without authentication.
#[derive(Clone, Copy, Debug)]
pub struct ClientLimits {
    /// How many may be open, those in their TLS handshake included. A further one displaces the oldest of the same address.
    pub open: usize,
    /// How often the address may connect. A further connection is closed before its TLS handshake.
    pub connects: Rate,
}

/// An open connection that has not authenticated itself: its number by arrival, and its address if it has one.
pub(crate) type Anonymous = (u64, Option<ClientAddress>);

/// The connection that a new connection displaces, and the limit that requires it. `open` is sorted by arrival.
pub(crate) fn displaced(
    open: &[Anonymous],
    client: Option<ClientAddress>,
    limits: SeatLimits,
) -> Option<(u64, NodeApiLimit)> {
    let mut counts: HashMap<Option<ClientAddress>, usize> = HashMap::new();
    for (_, own) in open {
        *counts.entry(*own).or_default() += 1;
    }
    if let (Some(_), Some(most)) = (client, limits.client)
        && counts.get(&client).is_some_and(|count| *count >= most.open)
    {
        return open.iter().find(|(_, own)| *own == client).map(|(number, _)| (*number, NodeApiLimit::Client));
    }
    if open.len() < limits.anonymous {
        return None;
    }
    let greediest = open.iter().max_by_key(|(number, own)| (counts.get(own).copied(), Reverse(*number)));
    greediest.map(|(number, _)| (*number, NodeApiLimit::Node))
}

/// How often each address connects.
#[derive(Debug, Default)]
pub(crate) struct Arrivals(HashMap<ClientAddress, Pace>);

impl Arrivals {
    /// Counts a new connection. Returns false if the address connects too often. Such a connection does not count.
    pub(crate) fn admit(&mut self, client: ClientAddress, rate: Rate, now: Instant) -> bool {
        if self.0.len() >= MAX_ADDRESSES && !self.0.contains_key(&client) {
            self.0.retain(|_, pace| !pace.is_rested(now));
            if self.0.len() >= MAX_ADDRESSES {
                return true;
            }
        }
        let pace = self.0.entry(client).or_default();
        let is_due = pace.wait(rate, now).is_zero();
        if is_due {
            pace.count(rate, now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn client(text: &str) -> ClientAddress {
        ClientAddress::from(text.parse::<IpAddr>().unwrap())
    }

    #[test]
    fn addresses_of_one_machine_are_one_client() {
        for (one, other, is_same) in [
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "::ffff:10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("2001:db8::1", "2001:db8::ffff:ffff:ffff:ffff", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
            ("::1", "127.0.0.1", false),
        ] {
            assert_eq!(client(one) == client(other), is_same, "{one} {other}");
        }
    }

    #[test]
    fn a_new_connection_displaces_one_of_the_address_with_the_most() {
        use NodeApiLimit::{Client, Node};
        let connects = Rate { burst: 1, every: Duration::from_secs(1) };
        let shares = Some(ClientLimits { open: 3, connects });
        let (a, b, c) = (Some(client("10.0.0.1")), Some(client("10.0.0.2")), Some(client("10.0.0.3")));
        for (open, new, client, expected) in [
            (&[][..], a, shares, None),
            (&[a, a], a, shares, None),
            (&[b, a, a, a], a, shares, Some((1, Client))),
            (&[b, a, a, a], b, shares, None),
            // All seats are taken.
            (&[b, a, a, a, b], c, shares, Some((1, Node))),
            (&[b, b, a, a, c], c, shares, Some((0, Node))),
            (&[b, a, c, c, c], b, shares, Some((2, Node))),
            (&[a, a, a, a, b], a, None, Some((0, Node))),
            (&[None, None, None, None], None, shares, None),
            (&[None, None, None, None, None], None, shares, Some((0, Node))),
        ] {
            let limits = SeatLimits { anonymous: 5, authenticated: 0, client };
            let numbered: Vec<Anonymous> = (0..).zip(open.iter().copied()).collect();
            assert_eq!(displaced(&numbered, new, limits), expected, "{open:?} {new:?}");
        }
    }

    #[test]
    fn an_address_that_connects_too_often_does_not_slow_down_others() {
        let (rate, start) = (Rate { burst: 2, every: Duration::from_secs(1) }, Instant::now());
        let mut arrivals = Arrivals::default();
        let mut admit = |text: &str, seconds| arrivals.admit(client(text), rate, start + Duration::from_secs(seconds));
        assert_eq!([0, 0, 0, 1, 1].map(|at| admit("10.0.0.1", at)), [true, true, false, true, false]);
        assert!(admit("10.0.0.2", 1));
        for number in 0..2 * MAX_ADDRESSES {
            let address = Ipv6Addr::from_bits((number as u128) << 64);
            assert!(arrivals.admit(IpAddr::from(address).into(), rate, start + Duration::from_secs(1)));
        }
        assert_eq!(arrivals.0.len(), MAX_ADDRESSES, "the memory is limited");
        assert!(arrivals.admit(client("10.0.0.9"), rate, start + Duration::from_secs(60)));
        assert_eq!(arrivals.0.len(), 1, "addresses that rest are forgotten");
    }
}
