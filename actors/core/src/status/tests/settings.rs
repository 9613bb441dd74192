use serde_json::json;

use crate::ports::{AppliedSettings, ContainerStatus, LinuxUser};
use crate::resize::{Actual, Actuated, PodResize};
use crate::status::fixtures::*;

/// A pod with one container, `a`, with these fields.
fn world(container: serde_json::Value) -> World {
    let mut fields = json!({"name": "a", "image": "i"});
    fields.as_object_mut().unwrap().extend(container.as_object().unwrap().clone());
    World::new(pod(json!({"spec": {"containers": [fields]}})))
}

fn applied(run: ContainerStatus, settings: AppliedSettings) -> ContainerStatus {
    ContainerStatus { applied: Some(Box::new(settings)), ..run }
}

fn shown(world: &World, field: &str) -> serde_json::Value {
    let status = world.status();
    serde_json::to_value(&status.container_statuses.unwrap()[0]).unwrap()[field].clone()
}

#[test]
fn a_status_has_the_mounts_of_its_container_from_the_start() {
    let mounts = json!({"volumeMounts": [
        {"name": "v", "mountPath": "/w"},
        {"name": "v", "mountPath": "/r", "readOnly": true},
        {"name": "v", "mountPath": "/p", "readOnly": true, "recursiveReadOnly": "IfPossible"},
    ]});
    let expected = |possible: &str| {
        json!([
            {"mountPath": "/w", "name": "v"},
            {"mountPath": "/r", "name": "v", "readOnly": true, "recursiveReadOnly": "Disabled"},
            {"mountPath": "/p", "name": "v", "readOnly": true, "recursiveReadOnly": possible},
        ])
    };
    let mut world = world(mounts);
    assert_eq!(shown(&world, "volumeMounts"), expected("Disabled"));
    world.recursive_read_only = true;
    assert_eq!(shown(&world, "volumeMounts"), expected("Enabled"));
    let before = world.status();
    let world = World { recursive_read_only: false, ..world.after(before).runs([running("a", 0)]) };
    assert_eq!(shown(&world, "volumeMounts"), expected("Enabled"), "the mounts of a container do not change");
}

#[test]
fn a_status_has_the_user_that_the_runtime_reports() {
    assert_eq!(shown(&world(json!({})).runs([running("a", 0)]), "user"), json!(null));
    let user = Some(LinuxUser { uid: 5, gid: 6, groups: vec![6, 7] });
    let run = applied(running("a", 0), AppliedSettings { user, ..AppliedSettings::default() });
    let expected = json!({"linux": {"uid": 5, "gid": 6, "supplementalGroups": [6, 7]}});
    assert_eq!(shown(&world(json!({})).runs([run]), "user"), expected);
}

#[test]
fn a_running_container_has_the_resources_that_the_runtime_applied() {
    let spec = json!({"resources": {
        "limits": {"cpu": "0.5", "memory": "64Mi", "example.com/d": "1"}, "requests": {"cpu": "100m", "memory": "32Mi"},
    }});
    let of = |limit, request, memory| AppliedSettings {
        user: None,
        cpu_limit: limit,
        cpu_request: request,
        memory_limit: memory,
    };
    let result = |cpu: &str, memory: &str, request: &str| {
        json!({
            "limits": {"cpu": cpu, "memory": memory, "example.com/d": "1"},
            "requests": {"cpu": request, "memory": "32Mi"},
        })
    };
    let with = |settings| shown(&world(spec.clone()).runs([applied(running("a", 0), settings)]), "resources");
    assert_eq!(
        with(of(Some(500), Some(100), Some(64 << 20))),
        result("0.5", "64Mi", "100m"),
        "equal amounts keep the text"
    );
    assert_eq!(with(of(Some(2000), Some(250), Some(128 << 20))), result("2", "128Mi", "250m"));
    assert_eq!(with(of(None, None, None)), result("0.5", "64Mi", "100m"));
    let ended = applied(exited("a", 0, 0), of(Some(2000), None, None));
    assert_eq!(shown(&world(spec.clone()).runs([ended]), "resources"), result("0.5", "64Mi", "100m"));

    // The runtime reports nothing. The last resize that was applied is known.
    let mut world = world(spec).runs([running("a", 0)]);
    let before = json!({"limits": {"cpu": "2"}, "requests": {"cpu": "1", "memory": "16Mi"}});
    let containers = [("a".to_owned(), Actual::known(serde_json::from_value(before).unwrap()))].into();
    let actuated = Actuated { allocated: world.pod.clone(), containers, cgroup: Actual::default(), pod_level: None };
    world.resize = Some(PodResize { actuated: Some(actuated), ..PodResize::default() });
    let mut expected = result("2", "64Mi", "1");
    expected["requests"]["memory"] = json!("16Mi");
    assert_eq!(shown(&world, "resources"), expected);
}

#[test]
fn an_amount_that_the_kernel_raised_is_shown_as_in_the_spec() {
    let spec = json!({"resources": {"limits": {"cpu": "5m"}, "requests": {"cpu": "1m"}}});
    let settings = AppliedSettings { cpu_limit: Some(10), cpu_request: Some(2), ..AppliedSettings::default() };
    let shown = shown(&world(spec).runs([applied(running("a", 0), settings)]), "resources");
    assert_eq!(shown, json!({"limits": {"cpu": "5m"}, "requests": {"cpu": "1m"}}));
}
