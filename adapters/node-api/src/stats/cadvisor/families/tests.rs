use std::collections::BTreeSet;

use super::*;
use podwright_host::stats::{CpuDetails, MemoryDetails, MemoryUsage, Pressure, StallTime};

fn usage() -> Usage {
    let stall = |some, full| {
        let time = |total| StallTime { total, ..StallTime::default() };
        Some(Stall { some: time(some), full: time(full) })
    };
    let details = CgroupDetails {
        path: "/a".into(),
        cpu: CpuDetails {
            user: Some(1_250_000_000),
            system: Some(250_000_000),
            periods: Some(40),
            throttled_periods: Some(4),
            throttled: Some(2_000_000_001),
        },
        memory: MemoryDetails {
            cache: Some(11),
            mapped: Some(12),
            active_file: Some(13),
            inactive_file: Some(14),
            kernel: Some(15),
            peak: Some(16),
            limit_hits: Some(17),
            oom_kills: Some(18),
        },
        disks: Vec::new(),
        threads: Some(19),
        limits: KernelLimits {
            cpu_shares: Some(1024),
            cpu_quota: Some(50_000),
            cpu_period: Some(100_000),
            memory: Some(21),
            memory_reservation: Some(0),
            swap: Some(22),
            threads: Some(23),
        },
    };
    Usage {
        cpu: Some(1_500_000_000),
        memory: MemoryUsage {
            working_set: Some(1),
            used: Some(2),
            resident: Some(3),
            faults: Some(4),
            major_faults: Some(5),
            swap: Some(6),
            ..MemoryUsage::default()
        },
        pressure: Pressure { cpu: stall(1, 2), memory: stall(3, 4), io: stall(5, 6) },
        details: Some(Box::new(details)),
        ..Usage::default()
    }
}

fn subject<'a>(usage: Option<&'a Usage>, interfaces: &'a [InterfaceUsage]) -> Subject<'a> {
    Subject {
        labels: "id=\"/a\"".into(),
        at: Time::from_nanos(9_123_000_000),
        started: Some(Time::from_secs(7)),
        usage,
        processes: Some(8),
        interfaces,
        disks: Vec::new(),
        file_system: None,
    }
}

fn text(subject: Subject<'_>) -> String {
    let mut text = String::new();
    write(&mut text, &[subject]);
    text
}

fn interface() -> InterfaceUsage {
    InterfaceUsage {
        name: "eth0".into(),
        rx_bytes: Some(41),
        rx_packets: Some(42),
        rx_errors: Some(43),
        rx_dropped: Some(44),
        tx_bytes: Some(45),
        tx_packets: Some(46),
        tx_errors: Some(47),
        tx_dropped: Some(48),
    }
}

/// A subject with every value.
fn whole() -> String {
    let (usage, interfaces) = (usage(), [interface()]);
    let traffic = DiskTraffic {
        major: 8,
        minor: 0,
        read_bytes: Some(31),
        written_bytes: Some(32),
        reads: Some(33),
        writes: Some(34),
    };
    let file_system = FileSystem { device: "/dev/sda1".into(), used: 35, capacity: 36, inodes: 37, inodes_free: 38 };
    let disks = vec![("/dev/sda".to_owned(), traffic)];
    text(Subject { disks, file_system: Some(file_system), ..subject(Some(&usage), &interfaces) })
}

#[test]
fn each_value_has_its_series() {
    let found = whole();
    let series: BTreeSet<&str> = found.lines().filter(|line| !line.starts_with('#')).collect();
    let sampled = [
        ("cpu_usage_seconds_total", ",cpu=\"total\"", "1.500000000"),
        ("cpu_user_seconds_total", "", "1.250000000"),
        ("cpu_system_seconds_total", "", "0.250000000"),
        ("cpu_cfs_periods_total", "", "40"),
        ("cpu_cfs_throttled_periods_total", "", "4"),
        ("cpu_cfs_throttled_seconds_total", "", "2.000000001"),
        ("memory_working_set_bytes", "", "1"),
        ("memory_usage_bytes", "", "2"),
        ("memory_rss", "", "3"),
        ("memory_swap", "", "6"),
        ("memory_cache", "", "11"),
        ("memory_mapped_file", "", "12"),
        ("memory_total_active_file_bytes", "", "13"),
        ("memory_total_inactive_file_bytes", "", "14"),
        ("memory_kernel_usage", "", "15"),
        ("memory_max_usage_bytes", "", "16"),
        ("memory_failcnt", "", "17"),
        ("memory_failures_total", ",failure_type=\"pgfault\",scope=\"container\"", "4"),
        ("memory_failures_total", ",failure_type=\"pgfault\",scope=\"hierarchy\"", "4"),
        ("memory_failures_total", ",failure_type=\"pgmajfault\",scope=\"container\"", "5"),
        ("memory_failures_total", ",failure_type=\"pgmajfault\",scope=\"hierarchy\"", "5"),
        ("oom_events_total", "", "18"),
        ("processes", "", "8"),
        ("threads", "", "19"),
        ("threads_max", "", "23"),
        ("pressure_cpu_waiting_seconds_total", "", "0.000001"),
        ("pressure_cpu_stalled_seconds_total", "", "0.000002"),
        ("pressure_memory_waiting_seconds_total", "", "0.000003"),
        ("pressure_memory_stalled_seconds_total", "", "0.000004"),
        ("pressure_io_waiting_seconds_total", "", "0.000005"),
        ("pressure_io_stalled_seconds_total", "", "0.000006"),
        ("fs_reads_bytes_total", ",device=\"/dev/sda\"", "31"),
        ("fs_writes_bytes_total", ",device=\"/dev/sda\"", "32"),
        ("fs_reads_total", ",device=\"/dev/sda\"", "33"),
        ("fs_writes_total", ",device=\"/dev/sda\"", "34"),
        ("fs_usage_bytes", ",device=\"/dev/sda1\"", "35"),
        ("fs_limit_bytes", ",device=\"/dev/sda1\"", "36"),
        ("fs_inodes_total", ",device=\"/dev/sda1\"", "37"),
        ("fs_inodes_free", ",device=\"/dev/sda1\"", "38"),
        ("network_receive_bytes_total", ",interface=\"eth0\"", "41"),
        ("network_receive_packets_total", ",interface=\"eth0\"", "42"),
        ("network_receive_errors_total", ",interface=\"eth0\"", "43"),
        ("network_receive_packets_dropped_total", ",interface=\"eth0\"", "44"),
        ("network_transmit_bytes_total", ",interface=\"eth0\"", "45"),
        ("network_transmit_packets_total", ",interface=\"eth0\"", "46"),
        ("network_transmit_errors_total", ",interface=\"eth0\"", "47"),
        ("network_transmit_packets_dropped_total", ",interface=\"eth0\"", "48"),
        ("last_seen", "", "9"),
    ];
    let settings = [
        ("spec_cpu_period", "100000"),
        ("spec_cpu_quota", "50000"),
        ("spec_cpu_shares", "1024"),
        ("spec_memory_limit_bytes", "21"),
        ("spec_memory_reservation_limit_bytes", "0"),
        ("spec_memory_swap_limit_bytes", "22"),
        ("start_time_seconds", "7"),
    ];
    let sampled = sampled.map(|(name, more, value)| format!("container_{name}{{id=\"/a\"{more}}} {value} 9123"));
    let settings = settings.map(|(name, value)| format!("container_{name}{{id=\"/a\"}} {value}"));
    let expected: BTreeSet<&str> = sampled.iter().chain(&settings).map(String::as_str).collect();
    assert_eq!(series, expected);
}

#[test]
fn each_metric_has_its_type() {
    let found = whole();
    let types: Vec<(&str, &str)> =
        found.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    // The names of counters end with `_total`, with one exception.
    for (name, kind) in &types {
        let is_counter =
            *name == "container_memory_failcnt" || (name.ends_with("_total") && *name != "container_fs_inodes_total");
        assert_eq!(*kind, if is_counter { "counter" } else { "gauge" }, "{name}");
    }
    let names: BTreeSet<&str> = types.iter().map(|(name, _)| *name).collect();
    assert_eq!((names.len(), types.len()), (FAMILIES.len(), FAMILIES.len()), "each one appears once");
}

#[test]
fn what_is_unknown_has_no_series() {
    let found = text(Subject { started: None, processes: None, ..subject(None, &[]) });
    let series: Vec<&str> = found.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(series, ["container_last_seen{id=\"/a\"} 9 9123"]);
}

#[test]
fn periods_are_counted_only_with_a_quota() {
    let mut unlimited = usage();
    unlimited.details.as_mut().unwrap().limits.cpu_quota = None;
    let found = text(subject(Some(&unlimited), &[]));
    assert!(!found.contains("_cfs_") && !found.contains("spec_cpu_quota"), "{found}");
    assert!(found.contains("container_spec_cpu_period"), "{found}");
}
