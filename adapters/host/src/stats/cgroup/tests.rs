use super::*;

/// The files of a pod's cgroup of version 2, with a limit of 80 MB and 20 MB of swap space.
pub(super) const UNIFIED: [(&str, &str); 9] = [
    ("cpu.stat", "usage_usec 2500000\nuser_usec 1500000\nsystem_usec 1000000\ncore_sched.force_idle_usec 0\n"),
    ("memory.current", "30000000\n"),
    (
        "memory.stat",
        "anon 12000000\nfile 15000000\nkernel 900000\ninactive_file 5000000\nactive_file 4000000\npgfault 4000\npgmajfault 7\n",
    ),
    ("memory.max", "80000000\n"),
    ("memory.swap.current", "1000000\n"),
    ("memory.swap.max", "20000000\n"),
    (
        "cpu.pressure",
        "some avg10=1.25 avg60=0.50 avg300=0.10 total=123456\nfull avg10=0.75 avg60=0.25 avg300=0.05 total=23456\n",
    ),
    (
        "memory.pressure",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=11\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=10\n",
    ),
    (
        "io.pressure",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=21\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=20\n",
    ),
];

/// The files of a pod's cgroup of version 1, with a limit of 80 MB of memory and of 100 MB with swap space.
pub(super) const SPLIT: [(&str, &str); 5] = [
    ("cpuacct.usage", "2500000000\n"),
    ("memory.usage_in_bytes", "30000000\n"),
    (
        "memory.stat",
        "cache 1\nrss 2\nswap 3\npgfault 40\npgmajfault 4\ninactive_file 5\nhierarchical_memory_limit 80000000\n\
         total_cache 15000000\ntotal_rss 12000000\ntotal_swap 1000000\ntotal_pgfault 4000\ntotal_inactive_file 5000000\n",
    ),
    ("memory.limit_in_bytes", "80000000\n"),
    ("memory.memsw.limit_in_bytes", "100000000\n"),
];

/// The files of a cgroup, with other texts for some of them. A file with an empty text does not exist.
pub(super) fn files(
    texts: &[(&'static str, &'static str)],
    other: &[(&'static str, &'static str)],
) -> impl Fn(&str) -> Option<String> {
    let all: Vec<_> = other.iter().chain(texts).copied().collect();
    move |file| {
        let (_, text) = all.iter().find(|(name, _)| *name == file)?;
        (!text.is_empty()).then(|| (*text).to_owned())
    }
}

const LIMITED: MemoryUsage = MemoryUsage {
    working_set: Some(25_000_000),
    used: Some(30_000_000),
    resident: Some(12_000_000),
    available: Some(55_000_000),
    faults: Some(4000),
    major_faults: Some(7),
    swap: Some(1_000_000),
    swap_available: Some(19_000_000),
};

#[test]
fn cgroup_of_version_2_is_measured() {
    let read = files(&UNIFIED, &[]);
    assert_eq!(unified_cpu(&read), Some(2_500_000_000));
    assert_eq!(unified_memory(&read), LIMITED);
    let Pressure { cpu, memory, io } = pressure(&read);
    let some = StallTime { total: 123_456, avg10: 1.25, avg60: 0.5, avg300: 0.1 };
    let full = StallTime { total: 23_456, avg10: 0.75, avg60: 0.25, avg300: 0.05 };
    assert_eq!(cpu, Some(Stall { some, full }));
    let totals = [memory, io].map(|stall| stall.map(|stall| (stall.some.total, stall.full.total)));
    assert_eq!(totals, [Some((11, 10)), Some((21, 20))]);
}

#[test]
fn cgroup_of_version_1_is_measured() {
    let expected = MemoryUsage { faults: Some(40), major_faults: Some(4), ..LIMITED };
    assert_eq!(split_memory(&files(&SPLIT, &[])), expected);
}

#[test]
fn memory_is_available_only_below_a_limit() {
    let unlimited = files(&UNIFIED, &[("memory.max", "max\n"), ("memory.swap.max", "max\n")]);
    let memory = unified_memory(&unlimited);
    assert_eq!(memory, MemoryUsage { available: None, swap_available: None, ..LIMITED });
    // Version 1 has no word for the absence of a limit.
    let largest = "9223372036854771712\n";
    let limits = [("memory.limit_in_bytes", largest), ("memory.memsw.limit_in_bytes", largest)];
    let memory = split_memory(&files(&SPLIT, &limits));
    assert_eq!((memory.available, memory.swap_available), (None, None));
    // More memory than the limit, which was lowered.
    let lowered = unified_memory(&files(&UNIFIED, &[("memory.max", "1000\n"), ("memory.swap.max", "10\n")]));
    assert_eq!((lowered.available, lowered.swap_available), (Some(0), Some(0)));
}

#[test]
fn kernel_that_swaps_no_memory_of_cgroups_leaves_them_no_swap_space() {
    let without = [("memory.swap.current", ""), ("memory.swap.max", ""), ("memory.memsw.limit_in_bytes", "")];
    let memory = unified_memory(&files(&UNIFIED, &without));
    assert_eq!((memory.swap, memory.swap_available), (Some(0), Some(0)));
    assert_eq!(split_memory(&files(&SPLIT, &without)).swap_available, Some(0));
}

#[test]
fn root_cgroup_uses_the_memory_of_processes_and_files() {
    let root = files(&UNIFIED, &[("memory.current", ""), ("memory.max", "")]);
    let memory = unified_memory(&root);
    assert_eq!((memory.used, memory.working_set, memory.available), (Some(27_000_000), Some(22_000_000), None));
}

#[test]
fn what_the_kernel_does_not_count_is_absent() {
    assert_eq!(unified_memory(&files(&[], &[])), MemoryUsage::default());
    assert_eq!(split_memory(&files(&[], &[])), MemoryUsage::default());
    assert_eq!(pressure(&files(&[], &[])), Pressure::default());
    assert_eq!(stall("nonsense\n"), None);
    // Linux before 5.13.
    let old = stall("some avg10=0.10 avg60=0.00 avg300=0.00 total=9\n").unwrap();
    assert_eq!((old.some.avg10, old.full), (0.1, StallTime::default()));
}

/// A cgroup file system in a directory: the cgroup `a` has two processes, and the cgroup `a/b` below it has one.
fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, CgroupTree) {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let tree = CgroupTree::at(dir.path());
    (dir, tree)
}

#[test]
fn both_versions_of_the_cgroup_file_system_are_read() {
    let unified = tree(&[
        ("a/cpu.stat", "usage_usec 7\n"),
        ("a/cgroup.procs", "1\n2\n"),
        ("a/b/cgroup.procs", "3\n"),
        ("a/memory.current", "100\n"),
        ("a/pids.current", "5\n"),
    ]);
    let split = tree(&[
        ("memory/memory.usage_in_bytes", "1000\n"),
        ("memory/a/memory.usage_in_bytes", "100\n"),
        ("memory/a/cgroup.procs", "1\n2\n"),
        ("memory/a/b/cgroup.procs", "3\n"),
        ("cpuacct/a/cpuacct.usage", "7000\n"),
        ("pids/a/pids.current", "5\n"),
    ]);
    for (_dir, tree) in [unified, split] {
        let found = tree.cgroup("/a");
        let usage = found.usage(Depth::Usage).unwrap();
        assert_eq!((usage.cpu, usage.memory.used), (Some(7000), Some(100)), "{found:?}");
        assert!(usage.created > Some(Time::ZERO) && usage.created <= Some(Usage::now().at), "{usage:?}");
        assert_eq!(found.memory(), usage.memory);
        assert_eq!((found.processes(), found.first_process()), (Some(3), Some(1)));
        assert_eq!(usage.details, None);
        let details = found.usage(Depth::Details).unwrap().details.unwrap();
        assert_eq!((details.path.as_str(), details.threads), ("/a", Some(5)));
        let children = found.children();
        assert_eq!(children, [("b".to_owned(), tree.cgroup("/a/b"))]);
        let none = tree.cgroup("/none");
        assert_eq!((none.usage(Depth::Details), none.processes(), none.first_process()), (None, None, None));
    }
}

#[test]
fn process_has_one_cgroup_for_its_time_and_its_memory() {
    let unified = "0::/system.slice/podwright.service\n";
    assert_eq!(own_path(unified, true), Some("/system.slice/podwright.service"));
    assert_eq!(own_path("0::/../other\n", true), None);
    let split = "5:memory:/a\n4:cpu,cpuacct:/a\n1:name=systemd:/a\n0::/b\n";
    assert_eq!(own_path(split, false), Some("/a"));
    // The CPU time of all processes of the machine is counted together.
    assert_eq!(own_path("5:memory:/a\n4:cpu,cpuacct:/\n", false), None);
}

#[test]
fn cgroup_of_a_directory_has_its_path_below_the_mount() {
    for (dir, path) in [
        ("/sys/fs/cgroup/podwright/a", "/podwright/a"),
        ("/sys/fs/cgroup/unified/podwright/a", "/podwright/a"),
        ("/sys/fs/cgroup", "/"),
        ("/mnt/cgroup2/a", "/mnt/cgroup2/a"),
    ] {
        let files = CgroupFiles::unified(Path::new(dir));
        assert_eq!((files.path().as_str(), files.dir().as_path()), (path, Path::new(dir)), "{dir}");
    }
}

#[test]
fn long_file_is_read_to_its_end() {
    let long = "7\n".repeat(9000);
    let (_dir, tree) = tree(&[("a/cgroup.procs", long.as_str())]);
    assert_eq!(tree.cgroup("/a").processes(), Some(9000));
}
