//! Facts about the machine that the agent runs on.

mod capacity;
mod requirements;
mod system_info;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

pub(crate) use capacity::{Reservation, allocatable, capacity, enforced, published, quantities};
pub(crate) use requirements::{Requirements, UnfitMachine};
pub(crate) use system_info::{KUBELET_VERSION, system_info};

/// The default node name: the host name in lower case, with characters that a node name cannot have replaced by `-`.
pub(crate) fn node_name() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c.to_ascii_lowercase() } else { '-' };
    let name: String = host.trim().chars().map(allowed).collect();
    match name.trim_matches(['-', '.']) {
        "" => "localhost".to_owned(),
        name => name.to_owned(),
    }
}

/// The version of the running kernel, such as `(6, 1)`; `(0, 0)` if the system does not report it.
pub(crate) fn kernel_version() -> (u32, u32) {
    version(&fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default()).unwrap_or((0, 0))
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Whether AppArmor is enabled on this machine.
pub(crate) fn has_app_armor() -> bool {
    Path::new("/sys/kernel/security/apparmor").exists()
        && fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|enabled| enabled.starts_with('Y'))
}

/// The machine's source addresses of its default routes, IPv4 first. Empty if there is no route.
pub(crate) fn host_ips() -> Vec<IpAddr> {
    // Connecting a UDP socket chooses a route and sends nothing. The destinations are reserved for documentation (RFC 5737,
    // RFC 3849).
    let v4 = source_address((Ipv4Addr::UNSPECIFIED, 0).into(), (Ipv4Addr::new(192, 0, 2, 1), 9).into());
    let v6 =
        source_address((Ipv6Addr::UNSPECIFIED, 0).into(), (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 9).into());
    v4.into_iter().chain(v6).collect()
}

fn source_address(from: SocketAddr, to: SocketAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind(from).ok()?;
    socket.connect(to).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_unspecified()).then_some(ip)
}

/// Raises this process's soft limit on open files to its hard limit. Each pod and each request needs file descriptors, and
/// the usual soft limit is only 1,024. Returns the earlier limit, which containers get; `None` if the limit did not change.
pub(crate) fn raise_open_files() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let before = limit.current.filter(|current| limit.maximum.is_none_or(|most| most > *current))?;
    match setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        Ok(()) => Some(before),
        Err(error) => {
            tracing::warn!(%error, limit = before, "cannot raise the limit on open files");
            None
        }
    }
}

/// Whether the process was started with a signal ignored (`nohup` does that with SIGHUP).
pub(crate) fn starts_ignoring(signal: u32) -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| is_ignored(&status, signal))
}

fn is_ignored(status: &str, signal: u32) -> bool {
    status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok())
        .is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions_are_the_first_two_numbers() {
        for (release, expected) in
            [("6.18.44-fc-v445\n", Some((6, 18))), ("5.4", Some((5, 4))), ("", None), ("x.1", None)]
        {
            assert_eq!(version(release), expected, "{release}");
        }
        assert!(kernel_version() > (2, 0));
    }

    #[test]
    fn an_ignored_signal_is_found_by_its_bit() {
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n";
        assert!(is_ignored(status, 1));
        assert!(!is_ignored(status, 2));
        assert!(is_ignored(status, 13));
        assert!(!is_ignored("", 1));
    }

    #[test]
    fn the_default_node_name_has_only_valid_characters() {
        let name = node_name();
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.'), "{name}");
    }
}
