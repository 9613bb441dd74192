//! Parses what the kernel counts for a cgroup beside its usage.

use std::collections::BTreeMap;

use super::super::details::{CgroupDetails, CpuDetails, DiskTraffic, KernelLimits, MemoryDetails};
use super::super::kernel_file::value;
use super::{Read, UNLIMITED, number};

/// The details of a cgroup of version 2.
pub(super) fn unified(path: String, read: Read<'_>) -> CgroupDetails {
    let [cpu, memory, events] = ["cpu.stat", "memory.stat", "memory.events"].map(|file| text(read, file));
    let nanos = |key| value(&cpu, key)?.checked_mul(1000);
    let (cpu_quota, cpu_period) = quota(&text(read, "cpu.max"));
    CgroupDetails {
        path,
        cpu: CpuDetails {
            user: nanos("user_usec"),
            system: nanos("system_usec"),
            periods: value(&cpu, "nr_periods"),
            throttled_periods: value(&cpu, "nr_throttled"),
            throttled: nanos("throttled_usec"),
        },
        memory: MemoryDetails {
            cache: value(&memory, "file"),
            mapped: value(&memory, "file_mapped"),
            active_file: value(&memory, "active_file"),
            inactive_file: value(&memory, "inactive_file"),
            kernel: value(&memory, "kernel"),
            peak: number(read, "memory.peak"),
            limit_hits: value(&events, "max"),
            oom_kills: value(&events, "oom_kill"),
        },
        disks: unified_disks(&text(read, "io.stat")),
        threads: number(read, "pids.current"),
        limits: KernelLimits {
            cpu_shares: number(read, "cpu.weight").and_then(shares),
            cpu_quota,
            cpu_period,
            memory: limit_or_zero(read, "memory.max"),
            memory_reservation: limit_or_zero(read, "memory.min"),
            swap: limit_or_zero(read, "memory.swap.max"),
            threads: limit_or_zero(read, "pids.max"),
        },
    }
}

/// The details of a cgroup of version 1.
pub(super) fn split(path: String, read: Read<'_>) -> CgroupDetails {
    let [cpu, memory, oom] = ["cpu.stat", "memory.stat", "memory.oom_control"].map(|file| text(read, file));
    CgroupDetails {
        path,
        cpu: CpuDetails {
            user: number(read, "cpuacct.usage_user"),
            system: number(read, "cpuacct.usage_sys"),
            periods: value(&cpu, "nr_periods"),
            throttled_periods: value(&cpu, "nr_throttled"),
            throttled: value(&cpu, "throttled_time"),
        },
        memory: MemoryDetails {
            cache: value(&memory, "total_cache"),
            mapped: value(&memory, "total_mapped_file"),
            active_file: value(&memory, "total_active_file"),
            inactive_file: value(&memory, "total_inactive_file"),
            kernel: number(read, "memory.kmem.usage_in_bytes"),
            peak: number(read, "memory.max_usage_in_bytes"),
            limit_hits: number(read, "memory.failcnt"),
            oom_kills: value(&oom, "oom_kill"),
        },
        disks: split_disks(read),
        threads: number(read, "pids.current"),
        limits: KernelLimits {
            cpu_shares: number(read, "cpu.shares"),
            // Without a quota, the file has -1.
            cpu_quota: number(read, "cpu.cfs_quota_us"),
            cpu_period: number(read, "cpu.cfs_period_us"),
            memory: limit_or_zero(read, "memory.limit_in_bytes"),
            memory_reservation: limit_or_zero(read, "memory.soft_limit_in_bytes"),
            swap: limit_or_zero(read, "memory.memsw.limit_in_bytes"),
            threads: limit_or_zero(read, "pids.max"),
        },
    }
}

fn text(read: Read<'_>, file: &'static str) -> String {
    read(file).unwrap_or_default()
}

/// The quota and its period in the text of `cpu.max`.
fn quota(text: &str) -> (Option<u64>, Option<u64>) {
    let mut words = text.split_ascii_whitespace();
    let mut next = || words.next()?.parse::<u64>().ok();
    (next(), next())
}

/// Converts `cpu.weight` (1 to 10000) to `cpu.shares` (2 to 262144), as cAdvisor does. `None` for a number that is no weight.
fn shares(weight: u64) -> Option<u64> {
    (1..=10_000).contains(&weight).then(|| 2 + (weight - 1) * 262_142 / 9999)
}

/// The limit in a file; 0 without a limit.
fn limit_or_zero(read: Read<'_>, file: &'static str) -> Option<u64> {
    match read(file)?.trim() {
        "max" => Some(0),
        limit => limit.parse::<u64>().ok().map(|limit| if limit > UNLIMITED { 0 } else { limit }),
    }
}

/// The disks in the text of `io.stat`, which has a line such as `8:0 rbytes=1 wbytes=2 rios=3 wios=4` for each one.
fn unified_disks(text: &str) -> Vec<DiskTraffic> {
    let disk = |line: &str| {
        // Some kernels write the numbers of disks without traffic before those of the next disk, on one line.
        let (major, minor) = line.split_ascii_whitespace().rev().find_map(device)?;
        let count = |key: &str| {
            let mut fields = line.split_ascii_whitespace();
            fields.find_map(|field| field.strip_prefix(key)?.strip_prefix('=')?.parse().ok())
        };
        Some(DiskTraffic {
            major,
            minor,
            read_bytes: count("rbytes"),
            written_bytes: count("wbytes"),
            reads: count("rios"),
            writes: count("wios"),
        })
    };
    text.lines().filter_map(disk).collect()
}

/// The disks in the files of the controller `blkio`, which have lines such as `8:0 Read 4096`.
fn split_disks(read: Read<'_>) -> Vec<DiskTraffic> {
    let mut disks: BTreeMap<(u32, u32), DiskTraffic> = BTreeMap::new();
    // Older kernels do not have the files that include the cgroups below.
    let bytes = read("blkio.throttle.io_service_bytes_recursive").or_else(|| read("blkio.throttle.io_service_bytes"));
    let counts = read("blkio.throttle.io_serviced_recursive").or_else(|| read("blkio.throttle.io_serviced"));
    for (text, is_bytes) in [(bytes, true), (counts, false)] {
        for line in text.unwrap_or_default().lines() {
            let mut words = line.split_ascii_whitespace();
            let Some((major, minor)) = words.next().and_then(device) else { continue };
            let (operation, value) = (words.next(), words.next().and_then(|word| word.parse().ok()));
            let disk = disks.entry((major, minor)).or_insert(DiskTraffic { major, minor, ..DiskTraffic::default() });
            match (operation, is_bytes) {
                (Some("Read"), true) => disk.read_bytes = value,
                (Some("Write"), true) => disk.written_bytes = value,
                (Some("Read"), false) => disk.reads = value,
                (Some("Write"), false) => disk.writes = value,
                _ => {}
            }
        }
    }
    disks.into_values().collect()
}

/// The major and the minor number of a device, such as `8:0`.
fn device(word: &str) -> Option<(u32, u32)> {
    let (major, minor) = word.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{SPLIT, UNIFIED, files};
    use super::*;

    const DISK: DiskTraffic = DiskTraffic {
        major: 8,
        minor: 0,
        read_bytes: Some(4096),
        written_bytes: Some(8192),
        reads: Some(1),
        writes: Some(2),
    };

    const MORE_UNIFIED: [(&str, &str); 8] = [
        (
            "cpu.stat",
            "usage_usec 2500000\nuser_usec 1500000\nsystem_usec 1000000\nnr_periods 10\nnr_throttled 3\nthrottled_usec 7\n",
        ),
        ("cpu.max", "50000 100000\n"),
        ("cpu.weight", "100\n"),
        ("memory.peak", "31000000\n"),
        ("memory.events", "low 0\nhigh 0\nmax 5\noom 2\noom_kill 1\noom_group_kill 0\n"),
        ("io.stat", "8:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n"),
        ("pids.current", "4\n"),
        ("pids.max", "max\n"),
    ];

    #[test]
    fn details_of_a_cgroup_of_version_2_are_read() {
        let found = unified("/a".into(), &files(&UNIFIED, &MORE_UNIFIED));
        let cpu = CpuDetails {
            user: Some(1_500_000_000),
            system: Some(1_000_000_000),
            periods: Some(10),
            throttled_periods: Some(3),
            throttled: Some(7000),
        };
        let memory = MemoryDetails {
            cache: Some(15_000_000),
            mapped: None,
            active_file: Some(4_000_000),
            inactive_file: Some(5_000_000),
            kernel: Some(900_000),
            peak: Some(31_000_000),
            limit_hits: Some(5),
            oom_kills: Some(1),
        };
        let limits = KernelLimits {
            cpu_shares: Some(2597),
            cpu_quota: Some(50_000),
            cpu_period: Some(100_000),
            memory: Some(80_000_000),
            memory_reservation: None,
            swap: Some(20_000_000),
            threads: Some(0),
        };
        let expected = CgroupDetails { path: "/a".into(), cpu, memory, disks: vec![DISK], threads: Some(4), limits };
        assert_eq!(found, expected);
    }

    #[test]
    fn details_of_a_cgroup_of_version_1_are_read() {
        let more = [
            ("cpuacct.usage_user", "1500000000\n"),
            ("cpuacct.usage_sys", "1000000000\n"),
            ("cpu.stat", "nr_periods 10\nnr_throttled 3\nthrottled_time 7000\n"),
            ("cpu.shares", "1024\n"),
            ("cpu.cfs_quota_us", "-1\n"),
            ("cpu.cfs_period_us", "100000\n"),
            ("memory.max_usage_in_bytes", "31000000\n"),
            ("memory.failcnt", "5\n"),
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n"),
            ("memory.soft_limit_in_bytes", "9223372036854771712\n"),
            ("blkio.throttle.io_service_bytes", "8:0 Read 4096\n8:0 Write 8192\n8:0 Total 12288\nTotal 12288\n"),
            ("blkio.throttle.io_serviced_recursive", "8:0 Read 1\n8:0 Write 2\n"),
            ("pids.current", "4\n"),
            ("pids.max", "100\n"),
        ];
        let found = split("/a".into(), &files(&SPLIT, &more));
        let cpu = CpuDetails {
            user: Some(1_500_000_000),
            system: Some(1_000_000_000),
            periods: Some(10),
            throttled_periods: Some(3),
            throttled: Some(7000),
        };
        assert_eq!((found.cpu, found.disks, found.threads), (cpu, vec![DISK], Some(4)));
        let memory = found.memory;
        assert_eq!((memory.cache, memory.peak, memory.kernel), (Some(15_000_000), Some(31_000_000), None));
        assert_eq!((memory.limit_hits, memory.oom_kills), (Some(5), Some(1)));
        let limits = KernelLimits {
            cpu_shares: Some(1024),
            cpu_quota: None,
            cpu_period: Some(100_000),
            memory: Some(80_000_000),
            memory_reservation: Some(0),
            swap: Some(100_000_000),
            threads: Some(100),
        };
        assert_eq!(found.limits, limits);
    }

    #[test]
    fn file_of_another_form_loses_only_its_own_values() {
        let whole = unified("/a".into(), &files(&UNIFIED, &MORE_UNIFIED));
        for (name, _) in UNIFIED.iter().chain(&MORE_UNIFIED) {
            let broken: Vec<_> = [(*name, "\u{0}no:number = ?\n")].into_iter().chain(MORE_UNIFIED).collect();
            let found = unified("/a".into(), &files(&UNIFIED, &broken));
            assert_eq!(found.cpu == whole.cpu, *name != "cpu.stat", "{name}");
            assert_eq!(found.disks == whole.disks, *name != "io.stat", "{name}");
            assert_eq!(found.threads == whole.threads, *name != "pids.current", "{name}");
            let memory = ["memory.stat", "memory.peak", "memory.events"].contains(name);
            assert_eq!(found.memory == whole.memory, !memory, "{name}");
            let limits = ["cpu.max", "cpu.weight", "memory.max", "memory.swap.max", "pids.max"].contains(name);
            assert_eq!(found.limits == whole.limits, !limits, "{name}");
        }
    }

    #[test]
    fn limit_is_zero_if_there_is_none() {
        let limit = |text: &'static str| limit_or_zero(&files(&[("memory.max", text)], &[]), "memory.max");
        for (text, expected) in
            [("max\n", Some(0)), ("0\n", Some(0)), ("7\n", Some(7)), ("9223372036854771712", Some(0))]
        {
            assert_eq!(limit(text), expected, "{text}");
        }
        assert_eq!([limit("-1"), limit("")], [None; 2]);
    }

    #[test]
    fn weights_are_on_the_scale_of_shares() {
        assert_eq!([0, 1, 100, 10_000, 10_001].map(shares), [None, Some(2), Some(2597), Some(262_144), None]);
    }

    #[test]
    fn quota_is_absent_without_one() {
        assert_eq!(quota("max 100000\n"), (None, Some(100_000)));
        assert_eq!(quota(""), (None, None));
    }

    #[test]
    fn disks_on_one_line_with_others_are_found() {
        let text = "7:0 7:1 8:0 rbytes=4096 wbytes=8192 rios=1 wios=2\n7:2 \nnonsense\n";
        let idle = DiskTraffic { major: 7, minor: 2, ..DiskTraffic::default() };
        assert_eq!(unified_disks(text), [DISK, idle]);
    }
}
