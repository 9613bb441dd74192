use super::*;
use podwright_model::ids::PodUid;
use podwright_ports::{ContainerState, UsedSpace};

/// The usage of a container whose ID is its name.
pub(in crate::stats) fn used(name: &str, cpu: u64, memory: MemoryUsage) -> ContainerUsage {
    let usage = Usage { at: Time::from_secs(10), cpu: Some(cpu), memory, ..Usage::default() };
    ContainerUsage { id: name.into(), usage, processes: Some(2), layer: None }
}

/// The pod `u`, whose containers have started after 7 s.
pub(in crate::stats) fn pod(usage: &RuntimeUsage) -> PodStats {
    let runs: Vec<_> = usage.containers.iter().map(|used| run(used.id.as_str(), used.id.as_str(), 7)).collect();
    let pod_ref = PodReference { name: "web".into(), namespace: "shop".into(), uid: "u".into() };
    super::pod(pod_ref, None, &runs, &by_id(usage), usage.pods.get(&PodUid::new("u"))).unwrap()
}

/// A run of a container, which started after so many seconds.
pub(in crate::stats) fn run(id: &str, name: &str, started: u64) -> ContainerStatus {
    ContainerStatus {
        id: id.into(),
        sandbox: "s".into(),
        name: name.into(),
        restart_count: 0,
        state: ContainerState::Running,
        created_at: Time::from_secs(started - 1),
        started_at: Some(Time::from_secs(started)),
        finished_at: None,
        exit_code: 0,
        signal: None,
        reason: String::new(),
        message: String::new(),
        spec_hash: 0,
        image: String::new(),
        image_id: String::new(),
        applied: None,
    }
}

fn memory(bytes: u64) -> MemoryUsage {
    MemoryUsage { working_set: Some(bytes), ..MemoryUsage::default() }
}

fn limited(bytes: u64) -> MemoryUsage {
    MemoryUsage { available: Some(10), swap: Some(1), swap_available: Some(4), ..memory(bytes) }
}

fn containers(containers: Vec<ContainerUsage>) -> RuntimeUsage {
    RuntimeUsage { containers, ..RuntimeUsage::default() }
}

fn cpu(used: &ResourceUsage) -> u64 {
    used.cpu.as_ref().unwrap().usage_core_nano_seconds.unwrap()
}

fn working_set(used: &ResourceUsage) -> u64 {
    used.memory.as_ref().unwrap().working_set_bytes.unwrap()
}

#[test]
fn container_appears_once_and_a_pod_always_has_a_start_time() {
    let usage = containers(["1", "2", "3"].into_iter().zip(1..).map(|(id, n)| used(id, 10 * n, memory(1))).collect());
    let runs = [run("2", "main", 7), run("1", "main", 3), run("3", "first", 5), run("4", "unused", 1)];
    let pod_ref = PodReference::default();
    let found = super::pod(pod_ref.clone(), None, &runs, &by_id(&usage), None).unwrap();
    let used: Vec<_> = found.containers.iter().map(|stats| (stats.name.as_str(), cpu(&stats.used))).collect();
    assert_eq!(used, [("first", 30), ("main", 20)]);
    assert_eq!(found.start_time, "1970-01-01T00:00:05Z");
    let status = Some("then".to_owned());
    assert_eq!(super::pod(pod_ref.clone(), status, &runs, &by_id(&usage), None).unwrap().start_time, "then");
    assert!(super::pod(pod_ref, None, &runs[3..], &by_id(&usage), None).is_none());
}

#[test]
fn pod_without_a_cgroup_uses_what_its_containers_use() {
    let usage = containers(vec![used("a", 5, limited(100)), used("b", 7, limited(200))]);
    let found = pod(&usage);
    assert_eq!((cpu(&found.used), working_set(&found.used)), (12, 300));
    assert_eq!(found.processes.unwrap().process_count, 4);
    let swap = found.used.swap.unwrap();
    assert_eq!((swap.swap_usage_bytes, swap.swap_available_bytes), (2, Some(8)));
    assert_eq!(found.used.memory.unwrap().available_bytes, Some(20));
    let json = serde_json::to_value(&found.containers[0]).unwrap();
    assert_eq!(json["memory"]["workingSetBytes"], 100);
    assert_eq!(json["cpu"], serde_json::json!({"time": "1970-01-01T00:00:10Z", "usageCoreNanoSeconds": 5}));
    assert!(json.get("rootfs").is_none() && json.get("io").is_none(), "{json}");
}

#[test]
fn numbers_that_are_too_large_have_a_sum() {
    let largest = MemoryUsage { available: Some(u64::MAX), ..memory(u64::MAX) };
    let found = pod(&containers(vec![used("a", u64::MAX, largest), used("b", 7, largest)])).used;
    assert_eq!((cpu(&found), working_set(&found)), (u64::MAX, u64::MAX));
    assert_eq!(found.memory.unwrap().available_bytes, Some(u64::MAX));
}

#[test]
fn one_container_without_a_limit_makes_a_pod_unlimited() {
    let found = pod(&containers(vec![used("a", 5, limited(100)), used("b", 7, memory(200))])).used;
    assert_eq!(found.memory.unwrap().available_bytes, None);
    let swap = found.swap.unwrap();
    assert_eq!((swap.swap_usage_bytes, swap.swap_available_bytes), (1, None));
}

#[test]
fn cgroup_of_a_pod_goes_before_the_sum_of_its_containers() {
    let counted = Usage { cpu: Some(50), memory: limited(500), ..Usage::default() };
    let mut usage = containers(vec![used("a", 5, memory(100))]);
    usage.pods.insert(PodUid::new("u"), counted);
    let found = pod(&usage).used;
    assert_eq!((cpu(&found), working_set(&found)), (50, 500));
    assert_eq!(found.memory.unwrap().available_bytes, Some(10));
    // A cgroup without a controller of memory.
    usage.pods.insert(PodUid::new("u"), Usage { cpu: Some(50), ..Usage::default() });
    let found = pod(&usage).used;
    assert_eq!((cpu(&found), working_set(&found)), (50, 100));
}

#[test]
fn system_containers_are_the_agent_and_all_pods() {
    let (started, now) = (Time::from_secs(3), Time::from_secs(20));
    let agent = Usage { cpu: Some(9), memory: memory(90), ..Usage::default() };
    let mut usage = containers(vec![used("a", 5, memory(100)), used("b", 7, memory(200))]);
    let of = |agent: Option<&Usage>, usage: &RuntimeUsage| {
        let found = system_containers(agent, usage, started, now).into_iter();
        found
            .map(|found| (found.name, found.start_time, cpu(&found.used), working_set(&found.used)))
            .collect::<Vec<_>>()
    };
    let at = |second: u64| format!("1970-01-01T00:00:0{second}Z");
    let kubelet = ("kubelet".to_owned(), at(3), 9, 90);
    assert_eq!(of(Some(&agent), &usage), [kubelet, ("pods".to_owned(), at(3), 12, 300)]);
    usage.all_pods =
        Some(Usage { created: Some(Time::from_secs(1)), cpu: Some(15), memory: memory(400), ..agent.clone() });
    assert_eq!(of(None, &usage), [("pods".to_owned(), at(1), 15, 400)]);
    // No pod runs.
    assert_eq!(of(None, &RuntimeUsage::default()), [("pods".to_owned(), at(3), 0, 0)]);
}

#[test]
fn disk_of_a_container_has_the_size_of_its_file_system_if_that_is_known() {
    let layer = FileSystemUsage { at: Time::from_secs(1), used: UsedSpace::new(4096, 3), space: None };
    let usage = containers(vec![ContainerUsage { layer: Some(layer), ..used("a", 5, memory(1)) }]);
    let json = serde_json::to_value(&pod(&usage).containers[0].rootfs).unwrap();
    assert_eq!(json, serde_json::json!({"time": "1970-01-01T00:00:01Z", "usedBytes": 4096, "inodesUsed": 3}));
}
