//! The machine and its software, for the status of the node.

use std::fs;

use k8s_openapi::api::core::v1::{NodeSwapStatus, NodeSystemInfo};

use podwright_core::admission::architecture;
use podwright_host::stats::kernel_file;

/// The version of the kubelet whose behaviour this agent has. Clients compare it with the version of the API server; the part after
/// the plus sign does not count in comparisons (semver.org).
pub(crate) const KUBELET_VERSION: &str = concat!("v1.36.0+podwright.", env!("CARGO_PKG_VERSION"));

/// Reads the facts about the machine. A fact that the system does not report is empty.
pub(crate) fn system_info() -> NodeSystemInfo {
    let machine_id = first_of(&["/etc/machine-id", "/var/lib/dbus/machine-id"]);
    // Only the superuser can read the first file.
    let system_uuid = first_of(&["/sys/class/dmi/id/product_uuid", "/proc/device-tree/vm,uuid"]);
    let release = first_of(&["/etc/os-release", "/usr/lib/os-release"]);
    let swap = kernel_file::bytes(&first_of(&["/proc/meminfo"]), "SwapTotal:").filter(|bytes| *bytes > 0);
    NodeSystemInfo {
        architecture: architecture().to_owned(),
        boot_id: first_of(&["/proc/sys/kernel/random/boot_id"]),
        kernel_version: first_of(&["/proc/sys/kernel/osrelease"]),
        kubelet_version: KUBELET_VERSION.to_owned(),
        system_uuid: if system_uuid.is_empty() { machine_id.clone() } else { system_uuid },
        machine_id,
        operating_system: "linux".to_owned(),
        os_image: pretty_name(&release).unwrap_or_else(|| "Linux".to_owned()),
        swap: swap.map(|bytes| NodeSwapStatus { capacity: i64::try_from(bytes).ok() }),
        ..NodeSystemInfo::default()
    }
}

/// The text of the first file that has one.
fn first_of(files: &[&str]) -> String {
    let texts = files.iter().filter_map(|file| fs::read_to_string(file).ok());
    let mut texts = texts.map(|text| text.trim_matches(['\n', ' ', '\0']).to_owned());
    texts.find(|text| !text.is_empty()).unwrap_or_default()
}

/// The name of the operating system in `os-release`.
fn pretty_name(release: &str) -> Option<String> {
    let value = release.lines().find_map(|line| line.trim().strip_prefix("PRETTY_NAME="))?;
    let name = value.trim().trim_matches(['"', '\'']);
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_operating_system_is_in_os_release() {
        let release = "NAME=\"Debian GNU/Linux\"\nPRETTY_NAME=\"Debian GNU/Linux 13 (trixie)\"\n";
        assert_eq!(pretty_name(release).as_deref(), Some("Debian GNU/Linux 13 (trixie)"));
        assert_eq!(pretty_name("PRETTY_NAME=Alpine\n").as_deref(), Some("Alpine"));
        assert_eq!(pretty_name("NAME=x\nPRETTY_NAME=\"\"\n"), None);
    }

    #[test]
    fn this_machine_reports_what_every_linux_reports() {
        let info = system_info();
        assert!(!info.boot_id.is_empty() && !info.kernel_version.is_empty() && !info.os_image.is_empty(), "{info:?}");
        assert!(info.kubelet_version.starts_with("v1.36."));
    }
}
