//! The metrics of the machine.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use k8s_openapi::api::core::v1::NodeSystemInfo;

use super::encode::{Head, Kind, Series, labels};
use podwright_host::stats::kernel_file::bytes;
use podwright_model::time::Time;

/// The directory of the kernel with a directory for each CPU.
const CPUS: &str = "/sys/devices/system/cpu";

/// The CPUs and the memory of the machine. What the kernel does not report is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hardware {
    /// The CPUs that run threads.
    cores: Option<u64>,
    /// The parts of the machine that run one or more threads at a time.
    physical_cores: Option<u64>,
    sockets: Option<u64>,
    /// In bytes.
    pub(super) memory: Option<u64>,
    /// In bytes.
    swap: Option<u64>,
}

/// Reads what the machine has. Blocks.
pub(super) fn read() -> Hardware {
    of(Path::new(CPUS), &fs::read_to_string("/proc/meminfo").unwrap_or_default())
}

/// The hardware with these CPUs and this text of `/proc/meminfo`.
fn of(cpus: &Path, info: &str) -> Hardware {
    let (mut cores, mut siblings, mut sockets) = (0, BTreeSet::new(), BTreeSet::new());
    for cpu in fs::read_dir(cpus).into_iter().flatten().flatten() {
        let number = cpu.file_name().to_str().and_then(|name| name.strip_prefix("cpu")?.parse::<u32>().ok());
        let topology = cpu.path().join("topology");
        // A CPU that is offline has no such file.
        let Some(threads) = number.and_then(|_| fs::read_to_string(topology.join("thread_siblings_list")).ok()) else {
            continue;
        };
        cores += 1;
        siblings.insert(threads);
        sockets.extend(fs::read_to_string(topology.join("physical_package_id")).ok());
    }
    let known = |count: usize| u64::try_from(count).ok().filter(|count| *count > 0);
    Hardware {
        cores: known(cores),
        physical_cores: known(siblings.len()),
        sockets: known(sockets.len()),
        memory: bytes(info, "MemTotal:"),
        swap: bytes(info, "SwapTotal:"),
    }
}

/// Appends the metrics of the machine (cAdvisor, `metrics/prometheus_machine.go`).
pub(super) fn write(text: &mut String, hardware: &Hardware, system: &NodeSystemInfo, at: Time) {
    let of_machine = labels(&[
        ("boot_id", system.boot_id.as_str()),
        ("machine_id", system.machine_id.as_str()),
        ("system_uuid", system.system_uuid.as_str()),
    ]);
    let Hardware { cores, physical_cores, sockets, memory, swap } = *hardware;
    for (name, help, value) in [
        ("machine_cpu_cores", "CPUs that run threads", cores),
        ("machine_cpu_physical_cores", "Physical cores", physical_cores),
        ("machine_cpu_sockets", "Sockets of CPUs", sockets),
        ("machine_memory_bytes", "Memory of the machine", memory),
        ("machine_swap_bytes", "Swap space of the machine", swap),
    ] {
        let head = Head { name, kind: Kind::Gauge, help };
        Series::new(text, head).of(&of_machine, Some(at)).number(&[], value);
    }
    // The agent contains no cAdvisor, and no Docker.
    let version = labels(&[
        ("cadvisorRevision", ""),
        ("cadvisorVersion", ""),
        ("dockerVersion", ""),
        ("kernelVersion", system.kernel_version.as_str()),
        ("osVersion", system.os_image.as_str()),
    ]);
    let help = "1, with the versions of the machine's software";
    let head = Head { name: "cadvisor_version_info", kind: Kind::Gauge, help };
    Series::new(text, head).of(&version, None).number(&[], Some(1));
    let help = "1 if the machine could not be measured, otherwise 0";
    let head = Head { name: "machine_scrape_error", kind: Kind::Gauge, help };
    Series::new(text, head).number(&[], Some(u64::from(cores.is_none() || memory.is_none())));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_counted_by_their_threads_and_sockets() {
        let dir = tempfile::tempdir().unwrap();
        for (cpu, siblings, socket) in [
            ("cpu0", "0,2", "0"),
            ("cpu1", "1,3", "1"),
            ("cpu2", "0,2", "0"),
            ("cpu3", "1,3", "1"),
            ("cpuidle", "", ""),
        ] {
            let topology = dir.path().join(cpu).join("topology");
            fs::create_dir_all(&topology).unwrap();
            fs::write(topology.join("thread_siblings_list"), format!("{siblings}\n")).unwrap();
            fs::write(topology.join("physical_package_id"), format!("{socket}\n")).unwrap();
        }
        fs::create_dir(dir.path().join("cpu4")).unwrap();
        let found = of(dir.path(), "MemTotal: 100 kB\nSwapTotal: 0 kB\n");
        assert_eq!((found.cores, found.physical_cores, found.sockets), (Some(4), Some(2), Some(2)));
        assert_eq!((found.memory, found.swap), (Some(100 << 10), Some(0)));
        assert_eq!(of(&dir.path().join("none"), ""), Hardware::default());
    }

    #[test]
    fn machine_has_the_metrics_of_cadvisor() {
        let hardware = Hardware { cores: Some(4), memory: Some(1024), ..Hardware::default() };
        let system = NodeSystemInfo {
            boot_id: "b".into(),
            machine_id: "m".into(),
            system_uuid: "s".into(),
            kernel_version: "6.1".into(),
            os_image: "Debian".into(),
            ..NodeSystemInfo::default()
        };
        let mut text = String::new();
        write(&mut text, &hardware, &system, Time::from_secs(7));
        let series: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            "machine_cpu_cores{boot_id=\"b\",machine_id=\"m\",system_uuid=\"s\"} 4 7000",
            "machine_memory_bytes{boot_id=\"b\",machine_id=\"m\",system_uuid=\"s\"} 1024 7000",
            "cadvisor_version_info{cadvisorRevision=\"\",cadvisorVersion=\"\",dockerVersion=\"\",kernelVersion=\"6.1\",\
             osVersion=\"Debian\"} 1",
            "machine_scrape_error 0",
        ];
        assert_eq!(series, expected);
        let mut text = String::new();
        write(&mut text, &Hardware::default(), &system, Time::from_secs(7));
        assert!(text.ends_with("\nmachine_scrape_error 1\n") && !text.contains("machine_cpu"), "{text}");
    }
}
