//! The kernel parameters that pods may set.

use super::{AdmissionHandler, Admitted, Rejection};
use crate::config::sysctl::{SysctlNamespace, dotted_sysctl_name, is_sysctl_name, sysctl_namespace};
use crate::pod::PodObject;
use crate::texts::admission as texts;

/// The sysctls that affect only the pod which sets them, each with the first kernel version that isolates it (upstream
/// `safeSysctls`, kubelet 1.36).
const SAFE: [(&str, (u32, u32)); 12] = [
    ("kernel.shm_rmid_forced", (0, 0)),
    ("net.ipv4.ip_local_port_range", (0, 0)),
    ("net.ipv4.tcp_syncookies", (0, 0)),
    ("net.ipv4.ping_group_range", (0, 0)),
    ("net.ipv4.ip_unprivileged_port_start", (0, 0)),
    ("net.ipv4.ip_local_reserved_ports", (3, 16)),
    ("net.ipv4.tcp_keepalive_time", (4, 5)),
    ("net.ipv4.tcp_fin_timeout", (4, 6)),
    ("net.ipv4.tcp_keepalive_intvl", (4, 5)),
    ("net.ipv4.tcp_keepalive_probes", (4, 5)),
    ("net.ipv4.tcp_rmem", (4, 15)),
    ("net.ipv4.tcp_wmem", (4, 15)),
];

/// The sysctls that pods may set. As an admission handler, it rejects a pod with another sysctl, and a pod with a sysctl of a
/// namespace that the pod shares with the host.
#[derive(Clone, Debug)]
pub struct SysctlAllowlist(Vec<Allowed>);

#[derive(Clone, Debug)]
struct Allowed {
    /// A name, or the beginning of names.
    name: String,
    is_prefix: bool,
    namespace: SysctlNamespace,
}

/// A pattern of sysctls that cannot be allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSysctlPattern {
    /// The text is neither a name nor the beginning of names with a `*` at its end.
    #[error(
        "{0:?} is not a sysctl: write a name such as net.core.somaxconn, or the beginning of names such as kernel.msg*"
    )]
    Text(String),
    /// The kernel has the sysctl once for the whole node, so that one pod would change it for all.
    #[error(
        "{0:?} has no namespace of its own in each pod: use sysctls below net., kernel.shm, kernel.msg, kernel.sem or fs.mqueue."
    )]
    NotNamespaced(String),
}

impl SysctlAllowlist {
    /// The safe sysctls of a kernel version, such as `(6, 1)`.
    pub fn safe(kernel: (u32, u32)) -> Self {
        let available = SAFE.into_iter().filter(|(_, since)| *since <= kernel);
        let allowed = available.filter_map(|(name, _)| {
            Some(Allowed { name: name.to_owned(), is_prefix: false, namespace: sysctl_namespace(name)? })
        });
        SysctlAllowlist(allowed.collect())
    }

    /// Also allows unsafe sysctls: a name such as `net.core.somaxconn`, or the beginning of names such as `kernel.msg*` (upstream
    /// `--allowed-unsafe-sysctls`, kubelet 1.36).
    ///
    /// # Errors
    /// [`InvalidSysctlPattern`] if the pattern is not of this form, or not of sysctls that a pod has for itself.
    pub fn allow(mut self, pattern: &str) -> Result<Self, InvalidSysctlPattern> {
        let (name, is_prefix) = pattern.strip_suffix('*').map_or((pattern, false), |beginning| (beginning, true));
        // The beginning of a name may end at a separator.
        let text = if is_prefix { name.trim_end_matches(['.', '/', '-', '_']) } else { name };
        if !is_sysctl_name(text) {
            return Err(InvalidSysctlPattern::Text(pattern.to_owned()));
        }
        let name = dotted_sysctl_name(name);
        let namespace = sysctl_namespace(&name).filter(|_| !is_prefix || name != "kernel.sem");
        let namespace = namespace.ok_or_else(|| InvalidSysctlPattern::NotNamespaced(pattern.to_owned()))?;
        self.0.push(Allowed { name, is_prefix, namespace });
        Ok(self)
    }

    fn find(&self, name: &str) -> Option<SysctlNamespace> {
        let is_match = |allowed: &&Allowed| match allowed.is_prefix {
            true => name.starts_with(&allowed.name),
            false => name == allowed.name,
        };
        self.0.iter().find(is_match).map(|allowed| allowed.namespace)
    }
}

impl AdmissionHandler for SysctlAllowlist {
    fn admit(&self, pod: &PodObject, _: &Admitted) -> Result<(), Rejection> {
        let spec = pod.spec();
        let sysctls = spec.security_context.iter().flat_map(|context| context.sysctls.iter().flatten());
        for sysctl in sysctls {
            let name = dotted_sysctl_name(&sysctl.name);
            let (shares_host, namespace) = match self.find(&name) {
                Some(SysctlNamespace::Ipc) => (spec.host_ipc, "ipc"),
                Some(SysctlNamespace::Net) => (spec.host_network, "net"),
                None => return Err(Rejection::new(texts::SYSCTL_FORBIDDEN, texts::sysctl_not_allowed(&name))),
            };
            if shares_host == Some(true) {
                return Err(Rejection::new(texts::SYSCTL_FORBIDDEN, texts::sysctl_of_host(&name, namespace)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::pod;

    fn admit(list: &SysctlAllowlist, sysctl: &str, host: Value) -> Result<(), String> {
        let mut spec = json!({"containers": [], "securityContext": {"sysctls": [{"name": sysctl, "value": "1"}]}});
        spec.as_object_mut().unwrap().extend(host.as_object().unwrap().clone());
        let pod = pod("p").spec(|own| *own = serde_json::from_value(spec).unwrap()).build();
        list.admit(&pod, &Admitted::default()).map_err(|rejection| {
            assert_eq!(rejection.reason, "SysctlForbidden");
            rejection.message
        })
    }

    #[test]
    fn a_pod_sets_safe_and_allowed_sysctls_of_its_own_namespaces() {
        let list = SysctlAllowlist::safe((6, 1)).allow("kernel.msg*").unwrap().allow("net/core/somaxconn").unwrap();
        let (own, ipc, net) = (json!({}), json!({"hostIPC": true}), json!({"hostNetwork": true}));
        for (sysctl, host, refusal) in [
            ("kernel.shm_rmid_forced", &own, None),
            ("kernel/shm_rmid_forced", &own, None),
            ("kernel.shm_rmid_forced", &net, None),
            ("kernel.msgmax", &own, None),
            ("net.core.somaxconn", &own, None),
            ("net.ipv4.tcp_rmem", &ipc, None),
            ("kernel.shmmax", &own, Some("forbidden sysctl: \"kernel.shmmax\" not allowlisted")),
            ("net.core.somaxconn2", &own, Some("forbidden sysctl: \"net.core.somaxconn2\" not allowlisted")),
            ("vm/swappiness", &own, Some("forbidden sysctl: \"vm.swappiness\" not allowlisted")),
            ("kernel/msgmax", &ipc, Some("forbidden sysctl: \"kernel.msgmax\" not allowed with host ipc enabled")),
            (
                "net.ipv4.tcp_syncookies",
                &net,
                Some("forbidden sysctl: \"net.ipv4.tcp_syncookies\" not allowed with host net enabled"),
            ),
        ] {
            let expected = refusal.map_or(Ok(()), |text| Err(text.to_owned()));
            assert_eq!(admit(&list, sysctl, host.clone()), expected, "{sysctl} {host}");
        }
    }

    #[test]
    fn an_old_kernel_has_fewer_safe_sysctls() {
        for (kernel, allowed) in [((4, 14), false), ((4, 15), true), ((5, 0), true)] {
            let list = SysctlAllowlist::safe(kernel);
            assert_eq!(admit(&list, "net.ipv4.tcp_wmem", json!({})).is_ok(), allowed, "{kernel:?}");
        }
    }

    #[test]
    fn only_names_and_beginnings_of_namespaced_sysctls_can_be_allowed() {
        let list = SysctlAllowlist::safe((6, 1));
        for pattern in ["net.*", "net.ipv4.conf.*", "kernel.shm*", "fs.mqueue.*", "kernel.sem", "net/ipv4/tcp_*"] {
            assert!(list.clone().allow(pattern).is_ok(), "{pattern}");
        }
        for (pattern, is_text) in [
            ("", true),
            ("*", true),
            ("net.*.x", true),
            ("Net.core", true),
            ("vm.swappiness", false),
            ("kernel.*", false),
            ("kernel.sem*", false),
            ("n*", false),
        ] {
            let error = list.clone().allow(pattern).unwrap_err();
            assert_eq!(matches!(error, InvalidSysctlPattern::Text(_)), is_text, "{pattern}: {error}");
        }
    }
}
