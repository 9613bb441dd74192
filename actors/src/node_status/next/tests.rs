use std::time::Duration;

use super::*;
use crate::ports::{EventType, RuntimeHandler, Unready};

const START: u64 = 1_800_000_000;

fn at(seconds: u64) -> Time {
    Time::from_secs(START + seconds)
}

fn identity() -> NodeIdentity {
    NodeIdentity {
        name: "n1".to_owned(),
        host_ips: vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()].into(),
    }
}

fn quantities(list: &[(&str, &str)]) -> BTreeMap<String, Quantity> {
    list.iter().map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned()))).collect()
}

fn settings() -> NodeRegistration {
    let info = NodeSystemInfo { boot_id: "boot-1".to_owned(), ..NodeSystemInfo::default() };
    let capacity = [("cpu", "4"), ("memory", "8Gi"), ("pods", "110"), ("ephemeral-storage", "100Gi")];
    let allocatable = [("cpu", "3500m"), ("memory", "7Gi"), ("pods", "110"), ("ephemeral-storage", "90Gi")];
    NodeRegistration::new("agent-1").system_info(info).resources(quantities(&capacity), quantities(&allocatable))
}

fn pressure(type_: &str, status: &str) -> NodeCondition {
    NodeCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        last_heartbeat_time: Some(at(0).to_api()),
        last_transition_time: Some(at(0).to_api()),
        ..NodeCondition::default()
    }
}

fn healthy() -> ObservedNode {
    ObservedNode {
        health: Health { list_age: Some(Duration::ZERO), is_complete: true, ..Health::default() },
        pressures: vec![pressure("MemoryPressure", "False"), pressure("DiskPressure", "False")],
        runtime_name: "containerd".to_owned(),
        capabilities: RuntimeCapabilities::of_version("v2.1.4"),
        images: Vec::new(),
    }
}

/// A node as the server has it after the status was written.
fn written(observed: &ObservedNode, now: u64) -> Node {
    let (status, _) = desired_status(&identity(), &settings(), observed, NodeStatus::default(), at(now));
    Node { status: Some(status), ..Node::default() }
}

fn next(observed: &ObservedNode, server: &Node, reported: &LastReport, now: u64) -> NextStatus {
    next_status(&identity(), &settings(), observed, server, reported, at(now)).unwrap()
}

fn reported_at(seconds: u64) -> LastReport {
    LastReport { at: Some(at(seconds)), ..LastReport::default() }
}

fn reasons(next: &NextStatus) -> Vec<&str> {
    next.events.iter().map(|event| &*event.reason).collect()
}

#[test]
fn unchanged_status_is_written_every_five_minutes_with_heartbeats_only() {
    let server = written(&healthy(), 0);
    assert_eq!(next(&healthy(), &server, &reported_at(0), 299).patch, None);
    let due = next(&healthy(), &server, &reported_at(0), 300);
    let patch = due.patch.unwrap();
    assert_eq!(patch["status"].as_object().unwrap().keys().collect::<Vec<_>>(), ["conditions"]);
    let conditions = patch["status"]["conditions"].as_array().unwrap();
    assert!(
        conditions.iter().all(|it| it.get("status").is_none() && it.get("lastTransitionTime").is_none()),
        "{patch}"
    );
    assert_eq!(due.reported.at, Some(at(300)));
    assert!(next(&healthy(), &server, &LastReport::default(), 1).patch.is_some(), "the first update reports");
}

#[test]
fn readiness_keeps_its_transition_time_until_its_status_changes() {
    let server = written(&healthy(), 0);
    let mut away = healthy();
    away.health.list_age = Some(Duration::from_secs(29));
    assert_eq!(next(&away, &server, &reported_at(0), 29).patch, None, "a short failure does not count");
    away.health.list_age = Some(Duration::from_secs(30));
    let down = next(&away, &server, &reported_at(0), 30);
    let condition = &down.patch.as_ref().unwrap()["status"]["conditions"][0];
    assert_eq!((&condition["type"], &condition["status"]), (&json!("Ready"), &json!("False")));
    assert_eq!(
        (&condition["reason"], &condition["message"]),
        (&json!("KubeletNotReady"), &json!("container runtime is down"))
    );
    assert_eq!(condition["lastTransitionTime"], json!(at(30).to_api()));
    assert_eq!(reasons(&down), ["NodeNotReady"]);
    assert_eq!(down.events[0].message, "Node n1 status is now: NodeNotReady");
    assert_eq!(down.events[0].kind, EventType::Normal);

    away.health.unready.network = Some("container runtime network not ready: cni".to_owned());
    let server = written(&away, 30);
    let worse = next(
        &away,
        &written(
            &ObservedNode { health: Health { unready: Unready::default(), ..away.health.clone() }, ..away.clone() },
            30,
        ),
        &reported_at(30),
        40,
    );
    let condition = &worse.patch.as_ref().unwrap()["status"]["conditions"][0];
    assert_eq!(condition["message"], "[container runtime is down, container runtime network not ready: cni]");
    assert!(condition.get("lastTransitionTime").is_none(), "{condition}");
    assert_eq!(reasons(&worse), [""; 0]);
    assert_eq!(reasons(&next(&healthy(), &server, &reported_at(40), 50)), ["NodeReady"]);
}

#[test]
fn ready_message_names_each_problem() {
    let capacity = |missing: &'static str| move |resource: &str| resource != missing;
    let health = |change: fn(&mut Health)| {
        let mut health = healthy().health;
        change(&mut health);
        health.problems(capacity("none"))
    };
    assert_eq!(health(|_| {}), [""; 0]);
    let not_checked = "container runtime status check may not have completed yet";
    assert_eq!(health(|it| it.list_age = None), [not_checked]);
    assert_eq!(health(|it| it.is_complete = false), [not_checked]);
    assert_eq!(health(|it| it.is_shutting_down = true), ["node is shutting down"]);
    assert_eq!(
        health(|it| it.unready.runtime = Some("container runtime not ready: x".to_owned())),
        ["container runtime not ready: x"]
    );
    assert_eq!(health(|it| it.list_age = Some(Duration::from_secs(29))), [""; 0]);
    assert_eq!(health(|it| it.list_age = Some(Duration::from_secs(30))), ["container runtime is down"]);
    let missing = healthy().health.problems(capacity("memory"));
    assert_eq!(missing, ["missing node capacity for resources: memory"]);
}

#[test]
fn conditions_resources_and_other_fields_of_others_stay() {
    let mut server = written(&healthy(), 0);
    let status = server.status.as_mut().unwrap();
    status.conditions.as_mut().unwrap().insert(0, pressure("NetworkUnavailable", "False"));
    status.capacity.as_mut().unwrap().extend(quantities(&[("example.com/dongle", "4"), ("hugepages-1Gi", "2Gi")]));
    status.allocatable.as_mut().unwrap().extend(quantities(&[("example.com/gone", "1"), ("hugepages-1Gi", "2Gi")]));
    status.phase = Some("Running".to_owned());
    let next = next(&healthy(), &server, &reported_at(0), 10);
    assert_eq!(
        next.patch,
        Some(json!({"status": {"capacity": {"hugepages-1Gi": null},
            "allocatable": {"hugepages-1Gi": null, "example.com/gone": null, "example.com/dongle": "4"}, "conditions": next.patch.as_ref().unwrap()["status"]["conditions"]}}))
    );
}

#[test]
fn quantities_that_the_server_spells_differently_are_equal() {
    let mut server = written(&healthy(), 0);
    server.status.as_mut().unwrap().capacity = Some(quantities(&[
        ("cpu", "4000m"),
        ("memory", "8388608Ki"),
        ("pods", "110"),
        ("ephemeral-storage", "107374182400"),
    ]));
    assert_eq!(next(&healthy(), &server, &reported_at(0), 10).patch, None);
}

#[test]
fn addresses_are_replaced_as_a_whole() {
    let mut server = written(&healthy(), 0);
    server.status.as_mut().unwrap().addresses.as_mut().unwrap().truncate(1);
    let patch = next(&healthy(), &server, &reported_at(0), 10).patch.unwrap();
    let addresses = patch["status"]["addresses"].as_array().unwrap();
    assert_eq!((addresses.len(), &addresses[0]), (4, &json!({"$patch": "replace"})));
}

#[test]
fn new_node_has_events_about_pressures_and_none_about_readiness() {
    let (status, events) =
        desired_status(&identity(), &settings(), &ObservedNode::default(), NodeStatus::default(), at(0));
    assert_eq!(events.len(), 0);
    let conditions = status.conditions.unwrap();
    assert_eq!(conditions.last().map(|it| (it.type_.as_str(), it.status.as_str())), Some(("Ready", "False")));
    let (_, events) = desired_status(&identity(), &settings(), &healthy(), NodeStatus::default(), at(0));
    let reasons: Vec<_> = events.iter().map(|event| &*event.reason).collect();
    assert_eq!(reasons, ["NodeHasSufficientMemory", "NodeHasNoDiskPressure"]);
}

#[test]
fn reboot_and_cordon_are_reported_once() {
    let mut server = written(&healthy(), 0);
    server.status.as_mut().unwrap().node_info.as_mut().unwrap().boot_id = "boot-0".to_owned();
    server.spec.get_or_insert_default().unschedulable = Some(true);
    let first = next(&healthy(), &server, &reported_at(0), 10);
    assert_eq!(reasons(&first), ["NodeNotSchedulable", "Rebooted"]);
    assert_eq!(first.events[1].message, "Node n1 has been rebooted, boot id: boot-1");
    assert_eq!(reasons(&next(&healthy(), &server, &first.reported, 20)), [""; 0]);
    server.spec = None;
    assert_eq!(reasons(&next(&healthy(), &server, &first.reported, 30)), ["NodeSchedulable"]);
}

#[test]
fn the_largest_images_are_listed_with_a_few_of_their_names() {
    let image = |size: u64| NamedImage { names: (0..7).map(|n| format!("{size}-{n}")).collect(), size };
    let listed = images(&(1..=60).map(image).collect::<Vec<_>>()).unwrap();
    assert_eq!((listed.len(), listed[0].size_bytes, listed[49].size_bytes), (50, Some(60), Some(11)));
    assert_eq!(listed[0].names.as_ref().unwrap(), &["60-0", "60-1", "60-2", "60-3", "60-4"]);
    assert_eq!(images(&[]), None);
}

#[test]
fn versions_and_features_of_the_runtime_are_reported() {
    let mut observed = healthy();
    let handler =
        |name: &str| RuntimeHandler { name: name.to_owned(), recursive_read_only_mounts: true, user_namespaces: false };
    observed.capabilities.handlers = vec![handler("runc"), handler("")];
    observed.capabilities.supplemental_groups_policy = Some(true);
    let (status, _) = desired_status(&identity(), &settings(), &observed, NodeStatus::default(), at(0));
    assert_eq!(status.declared_features.unwrap(), ["RestartAllContainersOnContainerExits"]);
    let settings = settings().declared_features(vec!["B".to_owned(), "A".to_owned()]);
    let (status, _) = desired_status(&identity(), &settings, &observed, NodeStatus::default(), at(0));
    assert_eq!(status.node_info.unwrap().container_runtime_version, "containerd://v2.1.4");
    let names: Vec<_> = status.runtime_handlers.unwrap().into_iter().filter_map(|it| it.name).collect();
    assert_eq!(names, ["", "runc"]);
    assert_eq!(status.features.unwrap().supplemental_groups_policy, Some(true));
    assert_eq!(status.declared_features.unwrap(), ["A", "B"]);
    assert_eq!(status.daemon_endpoints.unwrap().kubelet_endpoint.unwrap().port, 0);
}
