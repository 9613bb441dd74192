//! The resources of the machine, and the part of them that pods may request.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use rustix::fs::statvfs;

use podwright_actors::eviction::EvictionPolicy;
use podwright_core::admission::NodeCapacity;
use podwright_host::stats::kernel_file;

/// The directories of the kernel with one entry for each size of huge pages.
const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages";

/// An amount of resources that pods may not request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reservation {
    /// CPU in thousandths of a core.
    pub(crate) cpu_millis: i64,
    /// Memory in bytes.
    pub(crate) memory_bytes: i64,
    /// Disk space in bytes.
    pub(crate) storage_bytes: i64,
}

/// The machine's capacity for pods: at most `max_pods`, and at most `pods_per_core` for each CPU unless that is 0. The disk is the one of
/// `root`, which holds the volumes and logs of pods.
pub(crate) fn capacity(max_pods: usize, pods_per_core: u32, root: &Path) -> NodeCapacity {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    // The agent's own CPU affinity and cgroup may allow fewer CPUs than the machine has.
    let cores = cpus(&online).unwrap_or_else(|| std::thread::available_parallelism().map_or(1, NonZeroUsize::get));
    let cpu_millis = i64::try_from(cores).unwrap_or(i64::MAX).saturating_mul(1000);
    let memory = memory_bytes(&fs::read_to_string("/proc/meminfo").unwrap_or_default());
    let pods = pods(max_pods, pods_per_core, cores);
    let capacity = NodeCapacity::new(cpu_millis, memory, pods).ephemeral_storage(disk_bytes(root));
    huge_pages(Path::new(HUGE_PAGES))
        .into_iter()
        .fold(capacity, |capacity, (name, bytes)| capacity.huge_pages(name, bytes))
}

/// The most pods on a machine with this many CPUs (upstream `MachineInfo`, `nodestatus`, kubelet 1.36).
fn pods(max_pods: usize, per_core: u32, cores: usize) -> usize {
    match usize::try_from(per_core) {
        Ok(0) | Err(_) => max_pods,
        Ok(per_core) => max_pods.min(per_core.saturating_mul(cores)),
    }
}

/// What pods may use together: the CPU in thousandths of a core and the memory in bytes that are not reserved. Pods may use the
/// memory that they may not request, so that an eviction can happen before the kernel kills (upstream
/// `getNodeAllocatableAbsolute`, kubelet 1.36). `None` if everything is reserved.
pub(crate) fn enforced(capacity: &NodeCapacity, reservations: &[Reservation]) -> Option<(i64, i64)> {
    let sum = |of: fn(&Reservation) -> i64| reservations.iter().map(of).fold(0, i64::saturating_add);
    let cpu_millis = capacity.cpu_millis.saturating_sub(sum(|it| it.cpu_millis));
    let memory_bytes = capacity.memory_bytes.saturating_sub(sum(|it| it.memory_bytes));
    (cpu_millis > 0 && memory_bytes > 0).then_some((cpu_millis, memory_bytes))
}

/// The resources that pods may request: the capacity without the reservations, and without the resources that the hard eviction
/// thresholds keep free. Huge pages are subtracted from the memory, because pods cannot use them as memory (upstream
/// `node.status.allocatable`, kubelet 1.36).
pub(crate) fn allocatable(
    capacity: NodeCapacity,
    reservations: &[Reservation],
    eviction: &EvictionPolicy,
) -> NodeCapacity {
    let sum = |of: fn(&Reservation) -> i64| reservations.iter().map(of).fold(0, i64::saturating_add);
    let huge_pages: i64 = capacity.huge_pages.values().copied().fold(0, i64::saturating_add);
    let less = |have: i64, all: &[i64]| all.iter().fold(have, |left, part| left.saturating_sub(*part)).max(0);
    let disk = capacity.ephemeral_storage_bytes;
    let size = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
    let (free_memory, free_disk) =
        (eviction.free_memory(size(capacity.memory_bytes)), eviction.free_storage(size(disk)));
    let mut rest = capacity;
    rest.cpu_millis = less(rest.cpu_millis, &[sum(|it| it.cpu_millis)]);
    rest.memory_bytes = less(rest.memory_bytes, &[sum(|it| it.memory_bytes), free_memory, huge_pages]);
    rest.ephemeral_storage_bytes = less(disk, &[sum(|it| it.storage_bytes), free_disk]);
    for (what, left) in
        [("CPU", rest.cpu_millis), ("memory", rest.memory_bytes), ("disk space", rest.ephemeral_storage_bytes)]
    {
        if left == 0 {
            tracing::warn!("no {what} is left for the requests of pods: lower --system-reserved or --kube-reserved");
        }
    }
    rest
}

/// The capacity as resource quantities, which `resourceFieldRef` uses.
pub(crate) fn quantities(capacity: &NodeCapacity) -> BTreeMap<String, Quantity> {
    BTreeMap::from([
        ("cpu".to_owned(), Quantity(format!("{}m", capacity.cpu_millis))),
        ("memory".to_owned(), Quantity(capacity.memory_bytes.to_string())),
        ("ephemeral-storage".to_owned(), Quantity(capacity.ephemeral_storage_bytes.to_string())),
    ])
}

/// The resources as the status of the node has them.
pub(crate) fn published(capacity: &NodeCapacity) -> BTreeMap<String, Quantity> {
    let cpu = match (capacity.cpu_millis / 1000, capacity.cpu_millis % 1000) {
        (cores, 0) => cores.to_string(),
        _ => format!("{}m", capacity.cpu_millis),
    };
    let resources = [
        ("cpu", cpu),
        ("memory", binary(capacity.memory_bytes)),
        ("pods", capacity.pods.to_string()),
        ("ephemeral-storage", binary(capacity.ephemeral_storage_bytes)),
    ];
    let resources = resources.map(|(name, amount)| (name.to_owned(), amount)).into_iter();
    let huge_pages = capacity.huge_pages.iter().map(|(name, bytes)| (name.clone(), binary(*bytes)));
    resources.chain(huge_pages).map(|(name, amount)| (name, Quantity(amount))).collect()
}

/// A number of bytes with the largest binary unit of which it is a multiple, as the API server spells it.
fn binary(bytes: i64) -> String {
    let mut units = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].into_iter();
    let (mut number, mut unit) = (bytes, "");
    while number != 0
        && number % 1024 == 0
        && let Some(next) = units.next()
    {
        (number, unit) = (number / 1024, next);
    }
    format!("{number}{unit}")
}

/// The number of CPUs in a list of the kernel, such as `0-3,8`. `None` if the text is not such a list.
fn cpus(list: &str) -> Option<usize> {
    let range = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    list.trim().split(',').map(range).try_fold(0usize, |sum, count| sum.checked_add(count?))
}

/// The machine's memory in bytes; `i64::MAX` if the system does not report it.
fn memory_bytes(meminfo: &str) -> i64 {
    let total = kernel_file::bytes(meminfo, "MemTotal:");
    total.and_then(|bytes| i64::try_from(bytes).ok()).unwrap_or(i64::MAX)
}

/// The size of the file system of a directory in bytes; `i64::MAX` if the system does not report it.
fn disk_bytes(directory: &Path) -> i64 {
    let size = statvfs(directory).ok().and_then(|fs| i64::try_from(fs.f_frsize.checked_mul(fs.f_blocks)?).ok());
    size.filter(|size| *size > 0).unwrap_or(i64::MAX)
}

/// The huge pages of the machine in bytes, by resource name. `directory` has an entry such as `hugepages-2048kB` for each size.
fn huge_pages(directory: &Path) -> Vec<(String, i64)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let of_size = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let kibibytes: i64 = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let pages: i64 = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?.trim().parse().ok()?;
        let bytes = kibibytes.checked_mul(1024)?.checked_mul(pages)?;
        Some((huge_page_resource(kibibytes), bytes))
    };
    let mut sizes: Vec<_> = entries.filter_map(of_size).collect();
    sizes.sort();
    sizes
}

/// The resource name of huge pages of a size.
fn huge_page_resource(kibibytes: i64) -> String {
    let units = [(30 - 10, "Gi"), (20 - 10, "Mi"), (0, "Ki")];
    let fits = |(shift, _): &&(i64, &str)| kibibytes >= 1 << shift && kibibytes % (1 << shift) == 0;
    let (shift, unit) = units.iter().find(fits).copied().unwrap_or((0, "Ki"));
    format!("hugepages-{}{unit}", kibibytes >> shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_memory_is_in_bytes_and_unlimited_if_unknown() {
        assert_eq!(memory_bytes("MemFree: 1 kB\nMemTotal:        2048 kB\n"), 2 << 20);
        assert_eq!(memory_bytes("nothing"), i64::MAX);
    }

    #[test]
    fn pods_are_limited_for_each_core_if_that_is_less() {
        for (per_core, cores, expected) in [(0, 4, 110), (10, 4, 40), (100, 4, 110), (u32::MAX, usize::MAX, 110)] {
            assert_eq!(pods(110, per_core, cores), expected, "{per_core} {cores}");
        }
    }

    #[test]
    fn cpus_of_the_machine_are_counted_in_the_list_of_the_kernel() {
        for (list, count) in [("0-3\n", Some(4)), ("0", Some(1)), ("0-1,4,8-9", Some(5)), ("", None), ("3-1", None)] {
            assert_eq!(cpus(list), count, "{list:?}");
        }
    }

    #[test]
    fn pods_get_the_capacity_without_reservations_and_what_stays_free() {
        let gi = 1 << 30;
        let machine = NodeCapacity::new(4000, 8 * gi, 110).ephemeral_storage(100 * gi).huge_pages("hugepages-2Mi", gi);
        let none = Reservation::default();
        let policy = EvictionPolicy::default();
        let rest = allocatable(machine.clone(), &[none, none], &policy);
        assert_eq!((rest.cpu_millis, rest.memory_bytes), (4000, 7 * gi - (100 << 20)));
        // A percentage has single precision, so the reserved space is slightly larger than the exact number.
        let free = policy.free_storage(100 << 30);
        assert_eq!(free, 10_737_418_400);
        assert_eq!(rest.ephemeral_storage_bytes, 100 * gi - free);
        assert_eq!((rest.pods, rest.huge_pages.clone()), (110, machine.huge_pages.clone()));
        let system = Reservation { cpu_millis: 500, memory_bytes: gi, storage_bytes: 0 };
        let kube = Reservation { cpu_millis: 500, memory_bytes: gi, storage_bytes: 20 * gi };
        let rest = allocatable(machine.clone(), &[system, kube], &policy);
        assert_eq!((rest.cpu_millis, rest.memory_bytes), (3000, 5 * gi - (100 << 20)));
        assert_eq!(rest.ephemeral_storage_bytes, 80 * gi - free);
        let all = Reservation { cpu_millis: 9000, memory_bytes: 9 * gi, storage_bytes: i64::MAX };
        let rest = allocatable(machine, &[all, all], &policy);
        assert_eq!((rest.cpu_millis, rest.memory_bytes, rest.ephemeral_storage_bytes), (0, 0, 0));
    }

    #[test]
    fn published_resources_have_the_spelling_of_the_api_server() {
        let capacity =
            NodeCapacity::new(3500, 8_148_108 << 10, 110).ephemeral_storage(1001).huge_pages("hugepages-2Mi", 0);
        let text = |capacity| {
            let resources = published(capacity).into_iter();
            resources.map(|(name, Quantity(amount))| format!("{name}={amount}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(text(&capacity), "cpu=3500m ephemeral-storage=1001 hugepages-2Mi=0 memory=8148108Ki pods=110");
        let round = NodeCapacity::new(4000, 8 << 30, 5).ephemeral_storage(i64::MAX);
        assert_eq!(text(&round), "cpu=4 ephemeral-storage=9223372036854775807 memory=8Gi pods=5");
        assert_eq!(binary(1 << 60), "1Ei");
    }

    #[test]
    fn huge_pages_of_each_size_are_a_resource() {
        let directory = tempfile::tempdir().unwrap();
        for (size, pages) in
            [("2048kB", "3\n"), ("1048576kB", "1\n"), ("64kB", "0\n"), ("1536kB", "1\n"), ("odd", "5\n")]
        {
            let path = directory.path().join(format!("hugepages-{size}"));
            fs::create_dir(&path).unwrap();
            fs::write(path.join("nr_hugepages"), pages).unwrap();
        }
        let sizes = huge_pages(directory.path());
        let named = |name: &str| sizes.iter().find(|(own, _)| own == name).map(|(_, bytes)| *bytes);
        assert_eq!(sizes.len(), 4, "{sizes:?}");
        assert_eq!(named("hugepages-2Mi"), Some(6 << 20));
        assert_eq!(named("hugepages-1Gi"), Some(1 << 30));
        assert_eq!(named("hugepages-64Ki"), Some(0));
        assert_eq!(named("hugepages-1536Ki"), Some(1536 << 10));
        assert_eq!(huge_pages(Path::new("/nowhere/at-all")), []);
    }

    #[test]
    fn the_disk_of_a_directory_has_a_size() {
        assert!(disk_bytes(Path::new("/")) > 0);
        assert_eq!(disk_bytes(Path::new("/nowhere/at-all")), i64::MAX);
    }
}
