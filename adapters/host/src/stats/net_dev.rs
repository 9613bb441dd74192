//! Network interfaces, as the kernel counts their bytes for a network namespace (proc_net(5)).

use std::fs;

use super::InterfaceUsage;

/// The prefixes of interfaces that belong to no network of the node or of a pod: the loopback, and the ends and bridges of containers
/// (cAdvisor, `container/libcontainer/handler.go`, `isIgnoredDevice`).
const IGNORED: [&str; 4] = ["lo", "veth", "docker", "nerdctl"];

/// The interfaces in the network namespace of the agent. `None` if the kernel does not list them. Blocks.
pub fn of_agent() -> Option<Vec<InterfaceUsage>> {
    Some(interfaces(&fs::read_to_string("/proc/self/net/dev").ok()?))
}

/// The interfaces in the network namespace of a process. `None` if the process has ended. Blocks.
pub fn of_process(pid: u32) -> Option<Vec<InterfaceUsage>> {
    Some(interfaces(&fs::read_to_string(format!("/proc/{pid}/net/dev")).ok()?))
}

/// The interfaces in the text of `/proc/PID/net/dev`.
fn interfaces(dev: &str) -> Vec<InterfaceUsage> {
    let of_line = |line: &str| {
        let (name, counts) = line.split_once(':')?;
        let name = name.trim();
        let counts: Vec<u64> = counts.split_ascii_whitespace().map_while(|count| count.parse().ok()).collect();
        // Eight counts of what was received, and eight of what was sent.
        let [rx_bytes, rx_packets, rx_errors, rx_dropped, _, _, _, _, rest @ ..] = &counts[..] else { return None };
        let [tx_bytes, tx_packets, tx_errors, tx_dropped, ..] = rest else { return None };
        let is_own = !IGNORED.iter().any(|prefix| name.starts_with(prefix));
        is_own.then(|| InterfaceUsage {
            name: name.to_owned(),
            rx_bytes: Some(*rx_bytes),
            rx_packets: Some(*rx_packets),
            rx_errors: Some(*rx_errors),
            rx_dropped: Some(*rx_dropped),
            tx_bytes: Some(*tx_bytes),
            tx_packets: Some(*tx_packets),
            tx_errors: Some(*tx_errors),
            tx_dropped: Some(*tx_dropped),
        })
    };
    dev.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEV: &str = "Inter-|   Receive                                                |  Transmit\n \
        face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
        lo: 9 9 9 9 0 0 0 0 9 9 9 9 0 0 0 0\n  \
        eth0: 100 2 3 1 0 0 0 0 200 4 5 6 0 0 0 0\nveth1: 1 1 1 1 0 0 0 0 1 1 1 1 0 0 0 0\n  \
        ens4:7 0 0 0 0 0 0 0 8 0 0 0 0 0 0 0\n";

    #[test]
    fn interfaces_of_a_network_are_counted() {
        let found = interfaces(DEV);
        assert_eq!(found.iter().map(|found| found.name.as_str()).collect::<Vec<_>>(), ["eth0", "ens4"]);
        let InterfaceUsage {
            rx_bytes,
            rx_packets,
            rx_errors,
            rx_dropped,
            tx_bytes,
            tx_packets,
            tx_errors,
            tx_dropped,
            ..
        } = &found[0];
        assert_eq!([rx_bytes, rx_packets, rx_errors, rx_dropped], [&Some(100), &Some(2), &Some(3), &Some(1)]);
        assert_eq!([tx_bytes, tx_packets, tx_errors, tx_dropped], [&Some(200), &Some(4), &Some(5), &Some(6)]);
        assert_eq!((found[1].rx_bytes, found[1].tx_bytes), (Some(7), Some(8)));
    }

    #[test]
    fn text_of_another_form_has_no_interface() {
        assert_eq!(interfaces("eth0: 1 2\neth1 3\n\n"), []);
    }

    #[test]
    fn process_of_the_agent_has_its_network() {
        let names = |found: Option<Vec<InterfaceUsage>>| {
            found.map(|found| found.into_iter().map(|found| found.name).collect::<Vec<_>>())
        };
        assert_eq!(names(of_process(std::process::id())), names(of_agent()));
        assert_eq!(names(of_process(u32::MAX)), None);
    }
}
