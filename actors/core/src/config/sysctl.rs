//! Names of kernel parameters (sysctls) in a pod spec.

/// The longest name in bytes (upstream `SysctlMaxLength`, Kubernetes 1.36).
const MAX_NAME: usize = 253;

/// The kernel namespace that holds a parameter, so that pods can have different values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SysctlNamespace {
    /// The IPC namespace.
    Ipc,
    /// The network namespace.
    Net,
}

/// Whether the text is the name of a parameter: segments of lower-case letters, digits, `-` and `_`, separated by dots or
/// slashes.
pub fn is_sysctl_name(name: &str) -> bool {
    let edge = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let segment = |segment: &str| {
        segment.bytes().next().is_some_and(edge)
            && segment.bytes().last().is_some_and(edge)
            && segment.bytes().all(|b| edge(b) || b"-_".contains(&b))
    };
    name.len() <= MAX_NAME && name.split(['.', '/']).all(segment)
}

/// The name with dots as separators. If the first separator is a slash, dots and slashes swap (sysctl.d(5)).
pub fn dotted_sysctl_name(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(first) if name[first..].starts_with('/') => {
            let swap = |c| match c {
                '.' => '/',
                '/' => '.',
                other => other,
            };
            name.chars().map(swap).collect()
        }
        _ => name.to_owned(),
    }
}

/// The namespace that holds the parameter; `None` if the parameter belongs to the whole node (upstream
/// `sysctl.GetNamespace`, Kubernetes 1.36).
pub(crate) fn sysctl_namespace(name: &str) -> Option<SysctlNamespace> {
    let name = dotted_sysctl_name(name);
    let ipc = ["kernel.shm", "kernel.msg", "fs.mqueue."];
    match name.as_str() {
        "kernel.sem" => Some(SysctlNamespace::Ipc),
        name if ipc.iter().any(|prefix| name.starts_with(prefix)) => Some(SysctlNamespace::Ipc),
        name if name.starts_with("net.") => Some(SysctlNamespace::Net),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysctl_names_have_segments_with_a_separator() {
        let long = "a".repeat(254);
        let cases = [
            ("kernel.shm_rmid_forced", true),
            ("net/ipv4/conf/eth0.1/forwarding", true),
            ("a", true),
            ("net.ipv4.tcp-x_y", true),
            ("", false),
            (".a", false),
            ("a.", false),
            ("a..b", false),
            ("net.ipv4.conf.*.x", false),
            ("A.b", false),
            ("a b", false),
            ("_a", false),
            (&long, false),
        ];
        for (name, valid) in cases {
            assert_eq!(is_sysctl_name(name), valid, "{name}");
        }
    }

    #[test]
    fn sysctl_names_with_slashes_become_dotted() {
        assert_eq!(dotted_sysctl_name("net/ipv4/conf/eth0.1/forwarding"), "net.ipv4.conf.eth0/1.forwarding");
        assert_eq!(dotted_sysctl_name("net.ipv4.conf.eth0/1.forwarding"), "net.ipv4.conf.eth0/1.forwarding");
    }

    #[test]
    fn sysctls_belong_to_the_ipc_or_network_namespace_or_to_the_node() {
        for (name, namespace) in [
            ("kernel.shmmax", Some(SysctlNamespace::Ipc)),
            ("kernel/sem", Some(SysctlNamespace::Ipc)),
            ("fs.mqueue.msg_max", Some(SysctlNamespace::Ipc)),
            ("net.core.somaxconn", Some(SysctlNamespace::Net)),
            ("kernel.panic", None),
            ("vm.swappiness", None),
        ] {
            assert_eq!(sysctl_namespace(name), namespace, "{name}");
        }
    }
}
