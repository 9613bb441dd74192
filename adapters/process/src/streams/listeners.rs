//! Decides where a connection to a port of a pod goes. Pure.
//!
//! All pods share the network of the node, so other pods, daemons and the API server of a node may listen on the same loopback
//! addresses. A connection may go to an address only if every socket that could get it belongs to the pod.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A socket that listens for TCP connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listener {
    address: IpAddr,
    port: u16,
    /// The number by which the open files of processes name the socket.
    inode: u64,
}

/// The listening sockets in the text of `/proc/net/tcp` or `/proc/net/tcp6` (proc_pid_net(5)).
pub(super) fn parse(table: &str) -> Vec<Listener> {
    table.lines().skip(1).filter_map(listener).collect()
}

fn listener(line: &str) -> Option<Listener> {
    let fields: Vec<&str> = line.split_ascii_whitespace().take(INODE + 1).collect();
    if *fields.get(STATE)? != LISTENING {
        return None;
    }
    let (address, port) = fields.get(LOCAL_ADDRESS)?.split_once(':')?;
    let inode = fields.get(INODE)?.parse().ok()?;
    Some(Listener { address: parse_address(address)?, port: u16::from_str_radix(port, 16).ok()?, inode })
}

const LOCAL_ADDRESS: usize = 1;
const STATE: usize = 3;
const INODE: usize = 9;
/// The state of a socket that listens (`TCP_LISTEN` of Linux).
const LISTENING: &str = "0A";

/// An address: one or four words of 32 bits, each of them a number in the byte order of the machine.
fn parse_address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| Some(u32::from_str_radix(text.get(8 * at..8 * (at + 1))?, 16).ok()?.to_ne_bytes());
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(at)?);
            }
            // A socket of IPv6 may have an address of IPv4.
            Some(Ipv6Addr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

/// The addresses to which the ports of pods are forwarded, in their order.
pub(super) const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// Who gets a connection to a port of a loopback address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiver {
    /// The pod: every socket that can get the connection belongs to it.
    Pod,
    /// A process outside of the pod, or one of several processes.
    Other,
    /// No socket listens.
    Nobody,
}

/// Who gets a connection to a port. `own` are the sockets of the pod's processes, `listeners` those of the node's network. A socket of
/// another network namespace is not among them, and a connection from the node does not reach it.
pub(super) fn receiver(listeners: &[Listener], own: &HashSet<u64>, address: IpAddr, port: u16) -> Receiver {
    let sockets = receivers(listeners, address, port);
    if sockets.is_empty() {
        Receiver::Nobody
    } else if sockets.iter().all(|socket| own.contains(socket)) {
        Receiver::Pod
    } else {
        Receiver::Other
    }
}

/// The sockets that can get a connection to an address: those with this address, or else those with all addresses. A socket with all
/// addresses of IPv6 usually has those of IPv4 too.
fn receivers(listeners: &[Listener], address: IpAddr, port: u16) -> Vec<u64> {
    let of = |fits: &dyn Fn(IpAddr) -> bool| -> Vec<u64> {
        let found = listeners.iter().filter(|listener| listener.port == port && fits(listener.address));
        found.map(|listener| listener.inode).collect()
    };
    let exact = of(&|own| own == address);
    if exact.is_empty() { of(&|own| own.is_unspecified() && (own.is_ipv6() || address.is_ipv4())) } else { exact }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    /// A word as the kernel prints an address on this machine.
    fn word(bytes: [u8; 4]) -> String {
        format!("{:08X}", u32::from_ne_bytes(bytes))
    }

    fn line(address: &str, port: u16, state: &str, inode: u64) -> String {
        format!(
            "   0: {address}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  1000        0 {inode} 1 0 100\n"
        )
    }

    #[test]
    fn listening_sockets_are_parsed_with_their_addresses() {
        let (zero, one) = (word([0; 4]), word([0, 0, 0, 1]));
        let mapped = [zero.clone(), zero.clone(), word([0, 0, 0xff, 0xff]), word([127, 0, 0, 1])].concat();
        let table = [
            HEAD.to_owned(),
            line(&word([127, 0, 0, 1]), 8080, "0A", 11),
            line(&word([10, 0, 0, 7]), 80, "0A", 12),
            // An open connection, a damaged address and a line that is not whole.
            line(&word([127, 0, 0, 1]), 8081, "01", 13),
            line("0100007", 8082, "0A", 14),
            "   4: 0100007F:1F90 00000000:0000 0A\n".to_owned(),
            line(&zero.repeat(4), 443, "0A", 15),
            line(&(zero.repeat(3) + &one), 444, "0A", 16),
            line(&mapped, 445, "0A", 17),
        ];
        let expected =
            [("127.0.0.1", 8080, 11), ("10.0.0.7", 80, 12), ("::", 443, 15), ("::1", 444, 16), ("127.0.0.1", 445, 17)];
        let expected = expected.map(|(address, port, inode)| listening(address, port, inode));
        assert_eq!(parse(&table.concat()), expected);
        assert!(parse("").is_empty());
    }

    fn listening(address: &str, port: u16, inode: u64) -> Listener {
        Listener { address: address.parse().unwrap(), port, inode }
    }

    #[test]
    fn connection_goes_to_the_pod_only_if_all_sockets_that_can_get_it_belong_to_the_pod() {
        use Receiver::{Nobody, Other, Pod};
        const V4: &str = "127.0.0.1";
        // Rows: sockets that listen, each with whether it is one of the pod; who gets a connection to 127.0.0.1, and to ::1.
        for (sockets, of_v4, of_v6) in [
            (vec![], Nobody, Nobody),
            (vec![(V4, true)], Pod, Nobody),
            (vec![("::1", true)], Nobody, Pod),
            (vec![("0.0.0.0", true)], Pod, Nobody),
            (vec![("::", true)], Pod, Pod),
            (vec![(V4, false)], Other, Nobody),
            // The daemon gets the connections to its own address.
            (vec![(V4, false), ("0.0.0.0", true)], Other, Nobody),
            (vec![(V4, false), ("::", true)], Other, Pod),
            (vec![("0.0.0.0", false), ("::", true)], Other, Pod),
            (vec![(V4, true), ("0.0.0.0", false)], Pod, Nobody),
            // The pod listens on the port, but not where the connection would go.
            (vec![(V4, false), ("127.0.0.2", true), ("10.0.0.7", true)], Other, Nobody),
            // Several processes share the port.
            (vec![(V4, true), (V4, false)], Other, Nobody),
            (vec![(V4, true), (V4, true)], Pod, Nobody),
        ] {
            let numbered = sockets.iter().zip(1_u64..);
            let listeners: Vec<Listener> = numbered.clone().map(|((at, _), n)| listening(at, 80, n)).collect();
            let own = numbered.filter(|((_, is_own), _)| *is_own).map(|(_, n)| n).collect();
            let found = |port| LOOPBACK.map(|address| receiver(&listeners, &own, address, port));
            assert_eq!(found(80), [of_v4, of_v6], "{sockets:?}");
            assert_eq!(found(81), [Nobody, Nobody], "{sockets:?}");
        }
    }

    // The socket is in the network namespace that a process of the pod has created.
    #[test]
    fn socket_of_another_network_namespace_gets_no_connection() {
        let (of_node, of_pod) = (listening("127.0.0.1", 80, 1), 2);
        assert_eq!(receiver(&[of_node], &HashSet::from([of_pod]), LOOPBACK[0], 80), Receiver::Other);
        assert_eq!(receiver(&[], &HashSet::from([of_pod]), LOOPBACK[0], 80), Receiver::Nobody);
    }
}
