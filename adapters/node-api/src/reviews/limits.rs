//! How many reviews may run and wait. Pure.

use std::time::Duration;

use podwright_http_server::Rate;
use podwright_metrics::NodeApiLimit;

/// The most reviews of one kind that run at a time. Clients with random tokens must not overload the API server.
pub(super) const MAX_RUNNING: usize = 16;
/// The most reviews of one kind that run and wait.
pub(super) const MAX_OPEN: usize = 128;
/// The most of these that one client has. A client of a node needs one or two.
pub(super) const MAX_OF_CLIENT: usize = 8;
/// How often a review of one kind begins (`kubeAPIQPS` and `kubeAPIBurst` of `KubeletConfiguration`, defaults of 1.36).
pub(super) const RATE: Rate = Rate { burst: 100, every: Duration::from_millis(20) };

/// Whether a client may have one more review. `open` has the clients of those that run and wait.
///
/// # Errors
/// The limit that leaves no room.
pub(super) fn may_open<'a, C: PartialEq + 'a>(
    open: impl Iterator<Item = &'a C>,
    client: &C,
) -> Result<(), NodeApiLimit> {
    let (mut all, mut own) = (0, 0);
    for other in open {
        all += 1;
        own += usize::from(other == client);
    }
    if own >= MAX_OF_CLIENT {
        return Err(NodeApiLimit::Client);
    }
    if all >= MAX_OPEN {
        return Err(NodeApiLimit::Node);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_and_all_clients_have_limits() {
        let greedy = [7; MAX_OF_CLIENT];
        assert_eq!(may_open(greedy.iter(), &7), Err(NodeApiLimit::Client));
        assert_eq!(may_open(greedy[1..].iter(), &7), Ok(()));
        assert_eq!(may_open(greedy.iter(), &8), Ok(()));
        let all: Vec<usize> = (0..MAX_OPEN).collect();
        assert_eq!(may_open(all.iter(), &MAX_OPEN), Err(NodeApiLimit::Node));
        assert_eq!(may_open(all[1..].iter(), &MAX_OPEN), Ok(()));
    }
}
