//! Limits that containers inherit from their pod.

use super::*;
use crate::pod::ContainerKind;

/// A pod with a memory limit as a whole. Of its containers `s`, a sidecar, and `a` and `b`, only `b` has a limit of its own.
fn whole(memory: &str, policy: &str) -> Arc<PodObject> {
    let policy = json!([{"resourceName": "memory", "restartPolicy": policy}]);
    spec(json!({
        "initContainers": [{"name": "s", "image": IMAGE, "restartPolicy": "Always", "resizePolicy": policy}],
        "containers": [
            {"name": "a", "image": IMAGE, "resizePolicy": policy},
            {"name": "b", "image": IMAGE, "resizePolicy": policy, "resources": {"limits": {"memory": "8Mi"}}},
        ],
        "resources": {"limits": {"memory": memory}, "requests": {"memory": memory}},
    }))
}

#[test]
fn resize_of_a_pod_changes_the_containers_that_inherit_its_limits() {
    let runs = status(&[("s", Is::Running), ("a", Is::Running), ("b", Is::Running)]);
    let of = |policy: &str| changes(&whole("95Mi", policy), &whole("100Mi", policy), &runs).unwrap();
    let restarts = of("RestartContainer").restart;
    assert_eq!(restarts.iter().map(|it| it.kill.name.as_str()).collect::<Vec<_>>(), ["a", "s"]);
    let in_place = of("NotRequired");
    let limits = |change: &ContainerChange| change.to.limits.as_ref().unwrap()["memory"].0.clone();
    let memory: Vec<_> = in_place.memory.iter().map(|it| (it.name.as_str(), limits(it))).collect();
    assert_eq!(memory, [("a", "100Mi".to_owned()), ("s", "100Mi".to_owned())]);
    assert!(in_place.restart.is_empty() && in_place.cpu.is_empty());
    assert_eq!(in_place.cgroup.map(|it| it.after.memory_limit), Some(Some(100 << 20)));

    // The kernel would kill a container that uses more than the lower limit that it inherits.
    let lower = changes(&whole("100Mi", "NotRequired"), &whole("95Mi", "NotRequired"), &runs).unwrap();
    assert_eq!(decreased_limits(&lower), (Some(95 << 20), vec![(&"a".into(), 95 << 20), (&"s".into(), 95 << 20)]));
}

#[test]
fn resize_of_a_pod_is_complete_when_its_containers_have_the_limits_that_they_inherit() {
    let runs = status(&[("s", Is::Running), ("a", Is::Running), ("b", Is::Running)]);
    let (old, new) = (whole("95Mi", "NotRequired"), whole("100Mi", "NotRequired"));
    let mut resize = resized(&old, &new);
    resize.actuated.as_mut().unwrap().cgroup = Actual::known(Bounds::of(&new));
    assert_eq!(resize.settle(&new, &runs, true), None, "the containers have the old limit");
    for step in changes(&old, &new, &runs).unwrap().steps() {
        resize.begin(&new, &step).unwrap();
        resize.done(&step);
    }
    assert!(resize.settle(&new, &runs, true).is_some());

    // A container that starts again inherits the new limit.
    let mut resize = resized(&old, &new);
    assert_eq!([resize.starts(&new, "a"), resize.starts(&new, "s")], [Ok(true), Ok(true)]);
    assert!(resize.actuated.as_ref().unwrap().containers.is_empty());

    // A resize that is taken back gives the old limit to a container that may have the new one.
    let mut resize = resized(&old, &new);
    assert_eq!(resize.starts(&new, "a"), Ok(true));
    resize.allocate(&new, &old);
    let used: Vec<_> = resize.actuated.unwrap().containers.into_keys().collect();
    assert_eq!(used, ["a"]);
}

/// A pod with a memory limit as a whole, which its init containers `i` and `j` and its container `a` inherit.
fn initializing(memory: &str, policy: &str) -> Arc<PodObject> {
    let policy = json!([{"resourceName": "memory", "restartPolicy": policy}]);
    let container = |name: &str| json!({"name": name, "image": IMAGE, "resizePolicy": policy});
    spec(json!({
        "initContainers": [container("i"), container("j")], "containers": [container("a")],
        "resources": {"limits": {"memory": memory}, "requests": {"memory": memory}},
    }))
}

#[test]
fn resize_of_a_pod_changes_the_init_container_that_runs() {
    let of = |memory| initializing(memory, "NotRequired");
    let (old, new) = (of("95Mi"), of("100Mi"));
    // Rows: how far the initialization is; the container that gets the new limit.
    for (runs, expected) in [
        (status(&[("i", Is::Running)]), vec!["i"]),
        (status(&[("i", Is::Exited(0)), ("j", Is::Running)]), vec!["j"]),
        (status(&[("i", Is::Exited(0)), ("j", Is::Exited(0)), ("a", Is::Running)]), vec!["a"]),
        (status(&[("i", Is::Exited(1))]), vec![]),
    ] {
        let mut resize = resized(&old, &new);
        let planned = changes(&old, &new, &runs).unwrap();
        assert_eq!(planned.memory.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(), expected);
        resize.actuated.as_mut().unwrap().cgroup = Actual::known(Bounds::of(&new));
        let is_complete = resize.settle(&new, &runs, true).is_some();
        assert_eq!(is_complete, expected.is_empty(), "{expected:?}");
        if !is_complete {
            for step in planned.steps() {
                resize.begin(&new, &step).unwrap();
                resize.done(&step);
            }
            assert!(resize.settle(&new, &runs, true).is_some(), "{expected:?}");
        }
    }
}

#[test]
fn init_container_gets_the_limit_that_it_inherits_when_it_starts() {
    let of = |memory| initializing(memory, "NotRequired");
    let (old, new) = (of("95Mi"), of("100Mi"));
    let mut resize = resized(&old, &new);
    assert_eq!([resize.starts(&new, "j"), resize.starts(&new, "j")], [Ok(true), Ok(false)]);
    // The resize is taken back. The other containers have not started with the new limit.
    resize.allocate(&new, &old);
    let used: Vec<_> = resize.actuated.unwrap().containers.into_keys().collect();
    assert_eq!(used, ["j"]);
}

#[test]
fn init_container_restarts_if_its_policy_requires_that() {
    let of = |memory| initializing(memory, "RestartContainer");
    let (old, new) = (of("95Mi"), of("100Mi"));
    let runs = |j| status(&[("i", Is::Exited(0)), ("j", j)]);
    for (from, to, limit) in [(&old, &new, 100 << 20), (&new, &old, 95 << 20)] {
        let planned = changes(from, to, &runs(Is::Running)).unwrap();
        let restarts: Vec<_> = planned.restart.iter().map(|it| (it.kill.name.as_str(), it.kind, it.index)).collect();
        assert_eq!(restarts, [("j", ContainerKind::Init, 1)]);
        assert!(planned.memory.is_empty());
        assert_eq!(planned.cgroup.map(|it| it.after.memory_limit), Some(Some(limit)));
        assert!(changes(from, to, &runs(Is::Exited(0))).unwrap().restart.is_empty(), "it has completed");
    }
    let mut resize = resized(&old, &new);
    resize.actuated.as_mut().unwrap().cgroup = Actual::known(Bounds::of(&new));
    assert_eq!(resize.settle(&new, &runs(Is::Running), true), None);
    assert_eq!(resize.starts(&new, "j"), Ok(true));
    assert!(resize.settle(&new, &runs(Is::Running), true).is_some(), "it has started again");
}

// The runtime reports the limits that it has applied, also those that the container has from its pod.
#[test]
fn limit_that_a_container_inherits_is_not_allocated_to_it() {
    let own = json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1"}});
    let whole = json!({"limits": {"memory": "95Mi"}, "requests": {"memory": "95Mi"}});
    let pod = spec(json!({"containers": [{"name": "a", "image": IMAGE, "resources": own}], "resources": whole}));
    let container = json!({
        "name": "a", "image": IMAGE, "imageID": "", "ready": true, "restartCount": 0,
        "allocatedResources": {"cpu": "1"},
        "resources": {"limits": {"cpu": "1", "memory": "95Mi"}, "requests": {"cpu": "1"}},
    });
    let status = json!({
        "containerStatuses": [container], "resources": whole, "allocatedResources": {"cpu": "1", "memory": "95Mi"},
    });
    let pod = pod.with_status(serde_json::from_value(status).unwrap());
    assert!(Arc::ptr_eq(&Allocation::of_status(&pod).unwrap().apply(&pod), &pod), "no resize is in progress");
}

// The record of the pod is lost. Its status in the API server says what was allocated, also to the pod as a whole.
#[test]
fn allocation_of_a_pod_as_a_whole_is_read_from_a_status() {
    let of = |memory| initializing(memory, "NotRequired");
    let (old, new) = (of("95Mi"), of("100Mi"));
    let memory = json!({"memory": "95Mi"});
    let container =
        json!({"name": "a", "image": IMAGE, "imageID": "", "ready": true, "restartCount": 0, "resources": {}});
    let status = json!({
        "containerStatuses": [container], "allocatedResources": memory,
        "resources": {"limits": memory, "requests": memory},
    });
    let read = |pod: &PodObject, status: Value| {
        let pod = pod.with_status(serde_json::from_value(status).unwrap());
        Allocation::of_status(&pod).unwrap().apply(&pod).spec().resources.clone()
    };
    assert_eq!(read(&new, status.clone()), old.spec().resources);
    assert_eq!(read(&new, json!({"containerStatuses": [container]})), new.spec().resources, "an earlier kubelet");

    // The amounts in the status of a pod with an overhead are larger.
    let mut with_overhead = new.spec().clone();
    with_overhead.overhead = Some(serde_json::from_value(memory).unwrap());
    assert_eq!(read(&new.with_spec(with_overhead), status), new.spec().resources);
}

// The spec has a resize that waits. For an amount that is not allocated to the pod as a whole, a status has the sum of its containers.
#[test]
fn limit_of_a_pod_as_a_whole_that_is_only_desired_is_not_allocated() {
    type Amount = (&'static str, &'static str, &'static str);
    let whole = |amounts: &[Amount]| {
        let mut whole = json!({});
        for (requirement, name, amount) in amounts {
            whole[*requirement][*name] = json!(amount);
        }
        whole
    };
    // The containers have a sum of 20Mi, and `b` has no limit.
    let own = [
        json!({"requests": {"memory": "10Mi"}, "limits": {"memory": "10Mi"}}),
        json!({"requests": {"memory": "10Mi"}}),
    ];
    let containers = json!([
        {"name": "a", "image": IMAGE, "resources": own[0]}, {"name": "b", "image": IMAGE, "resources": own[1]}]);
    let statuses = |reports_b: bool| {
        let of = |name: &str, own: &Value| {
            let mut status = json!({"name": name, "image": IMAGE, "imageID": "", "ready": true, "restartCount": 0});
            status["resources"] = own.clone();
            status
        };
        if reports_b { json!([of("a", &own[0]), of("b", &own[1])]) } else { json!([of("a", &own[0])]) }
    };
    let read = |desired: &[Amount], reported: &[Amount], reports_b: bool| {
        let (pod, reported) = (spec(json!({"containers": containers, "resources": whole(desired)})), whole(reported));
        let status = json!({
            "containerStatuses": statuses(reports_b),
            "allocatedResources": reported["requests"], "resources": reported,
        });
        let pod = pod.with_status(serde_json::from_value(status).unwrap());
        let allocation = Allocation::of_status(&pod)?;
        Some(serde_json::to_value(&allocation.apply(&pod).spec().resources).unwrap())
    };
    let (requests, limits) = ("requests", "limits");
    let (request, limit) = ((requests, "memory", "40Mi"), (limits, "memory", "40Mi"));
    let (request_sum, limit_sum) = ((requests, "memory", "20Mi"), (limits, "memory", "10Mi"));
    let lower = (limits, "memory", "30Mi");
    let cpu = [(requests, "cpu", "1"), (limits, "cpu", "2")];
    // Rows: the amounts that are desired, reported and allocated.
    for (desired, reported, allocated) in [
        (vec![request, limit], vec![request_sum, limit_sum], vec![request_sum]),
        (vec![request, limit], vec![request, limit_sum], vec![request]),
        (vec![request, limit], vec![request_sum, lower], vec![request_sum, lower]),
        (vec![request, limit, cpu[0], cpu[1]], vec![request, limit], vec![request, limit]),
        // A resize is in progress, and the limit in use is below the new request.
        (vec![request, limit], vec![request, lower], vec![request, limit]),
    ] {
        assert_eq!(read(&desired, &reported, true), Some(whole(&allocated)), "{desired:?} {reported:?}");
    }
    // Without the amounts of `b`, the limit may be one of the pod as a whole. None is below the request.
    assert_eq!(read(&[request, limit], &[request_sum, limit_sum], false), None);
}

// The status of a pod that initializes says nothing about its regular containers. The spec has a resize that waits.
#[test]
fn container_without_a_reported_allocation_gets_no_more_than_its_pod_has() {
    let of = |whole: &str, own: &str| {
        let amounts = |memory: &str| json!({"limits": {"memory": memory}, "requests": {"memory": memory}});
        spec(json!({
            "initContainers": [{"name": "i", "image": IMAGE, "resources": {}}],
            "containers": [{"name": "a", "image": IMAGE, "resources": amounts(own)}],
            "resources": amounts(whole),
        }))
    };
    let memory = json!({"memory": "20Mi"});
    let init = json!({"name": "i", "image": IMAGE, "imageID": "", "ready": false, "restartCount": 0, "resources": {}});
    let status = json!({
        "initContainerStatuses": [init], "allocatedResources": memory,
        "resources": {"limits": memory, "requests": memory},
    });
    let read = |pod: Arc<PodObject>| {
        let pod = pod.with_status(serde_json::from_value(status.clone()).unwrap());
        Allocation::of_status(&pod).map(|allocation| allocation.apply(&pod).spec().clone())
    };
    // Rows: the container in the spec; whether the 20Mi of the pod suffice for it.
    for (own, suffices) in [("10Mi", true), ("20Mi", true), ("30Mi", false)] {
        let expected = suffices.then(|| of("20Mi", own).spec().clone());
        assert_eq!(read(of("40Mi", own)), expected, "{own}");
    }
}
