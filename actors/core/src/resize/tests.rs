mod calls;
mod inherited;
mod model;

use std::sync::Arc;

use podwright_fixtures::containers::{IMAGE, Is, status};
use serde_json::{Value, json};

use super::allocation::{Allocation, Bounds};
use super::changes::ContainerChange;
use super::state::ResizeProgress;
use super::*;
use crate::admission::Rejection;
use crate::containers::plan::{KillReason, Plan, plan};
use crate::pod::PodObject;
use crate::ports::PodRuntimeStatus;
use crate::probes::ProbeSnapshot;
use crate::testing::pod;
use crate::texts::resize as texts;
use crate::time::Time;

fn amounts(cpu: &str, memory: &str) -> Value {
    json!({"cpu": cpu, "memory": memory})
}

/// A container with these limits, and requests of the same amounts.
fn container(name: &str, cpu: &str, memory: &str) -> Value {
    json!({"name": name, "image": IMAGE, "resources": {"limits": amounts(cpu, memory), "requests": amounts(cpu, memory)}})
}

fn with(containers: Value) -> Arc<PodObject> {
    spec(json!({"containers": containers}))
}

fn spec(value: Value) -> Arc<PodObject> {
    pod("p").spec(|own| *own = serde_json::from_value(value).unwrap()).build()
}

fn one(cpu: &str, memory: &str) -> Arc<PodObject> {
    with(json!([container("a", cpu, memory)]))
}

/// The state after the resources of `to` were allocated to a pod with those of `from`.
fn resized(from: &PodObject, to: &Arc<PodObject>) -> PodResize {
    let mut resize = PodResize::default();
    resize.allocate(from, to);
    resize
}

fn changes(from: &PodObject, to: &Arc<PodObject>, runs: &PodRuntimeStatus) -> Option<ResizeChanges> {
    let planned = plan(to, runs, &ProbeSnapshot::new());
    ResizeChanges::plan(&resized(from, to).actuated.unwrap(), to, runs, &planned)
}

#[test]
fn allocated_resources_replace_the_desired_ones() {
    let sidecar = |cpu: &str| {
        let mut sidecar = container("s", cpu, "1Mi");
        sidecar["restartPolicy"] = json!("Always");
        sidecar
    };
    let of = |cpu: &str| {
        spec(json!({
            "initContainers": [container("i", cpu, "1Mi"), sidecar(cpu)], "containers": [container("a", cpu, "1Mi")],
            "resources": {"limits": {"cpu": cpu}},
        }))
    };
    let (old, new) = (of("1"), of("2"));
    let allocated = with_resources_of(&new, &old);
    let cpu = |container: &k8s_openapi::api::core::v1::Container| {
        container.resources.as_ref().unwrap().limits.as_ref().unwrap()["cpu"].0.clone()
    };
    assert_eq!(cpu(&allocated.containers()[0]), "1");
    assert_eq!(cpu(&allocated.init_containers()[1]), "1", "a sidecar can be resized");
    assert_eq!(cpu(&allocated.init_containers()[0]), "1", "another init container can too");
    assert_eq!(allocated.spec().resources, old.spec().resources);
    assert!(Arc::ptr_eq(&with_resources_of(&old, &of("1000m")), &old), "equal amounts with other texts");
}

#[test]
fn allocation_is_read_from_a_status() {
    let read = |requests: Value, resources: Value| {
        let mut status = json!({"name": "a", "image": IMAGE, "imageID": "", "ready": true, "restartCount": 0});
        status["allocatedResources"] = requests;
        status["resources"] = resources;
        let status = serde_json::from_value(json!({"containerStatuses": [status]})).unwrap();
        let pod = one("2", "1Mi").with_status(status);
        Allocation::of_status(&pod).map(|allocation| allocation.apply(&pod))
    };
    let actual = json!({"limits": amounts("1", "1Mi"), "requests": amounts("1", "1Mi")});
    let old = one("1", "1Mi");
    assert_eq!(read(amounts("1", "1Mi"), actual.clone()).unwrap().spec(), old.spec());
    assert_eq!(read(Value::Null, actual).unwrap().spec(), old.spec(), "a kubelet before 1.36");
    assert!(read(Value::Null, Value::Null).is_none());
}

#[test]
fn limit_of_a_status_is_at_least_its_request() {
    let status = |requests: Value, limits: Value| {
        let mut status = json!({"name": "a", "image": IMAGE, "imageID": "", "ready": true, "restartCount": 0});
        status["allocatedResources"] = requests;
        status["resources"] = json!({"requests": {"cpu": "1"}, "limits": limits});
        serde_json::from_value(json!({"containerStatuses": [status]})).unwrap()
    };
    // A guaranteed pod stays guaranteed. Rows: the requests that are reported; the limits in use; what was allocated.
    let desired = one("3", "1000000");
    for (requests, limits, allocated) in [
        (amounts("2", "1000000"), amounts("1", "1000000"), Some(one("2", "1000000"))),
        (amounts("2", "1000000"), amounts("1", "999424"), Some(one("2", "1000000"))),
        // The limit in use is still that of the earlier allocation.
        (amounts("2", "1000000"), amounts("4", "1000000"), None),
    ] {
        let pod = desired.with_status(status(requests, limits.clone()));
        let read = Allocation::of_status(&pod).map(|allocation| allocation.apply(&pod).spec().clone());
        assert_eq!(read, allocated.map(|pod| pod.spec().clone()), "{limits}");
    }
    // Rows: the request that is reported; the limit, which is 2 in use.
    let burstable =
        with(json!([{"name": "a", "image": IMAGE, "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "4"}}}]));
    for (request, limit) in [("2", "2"), ("3", "3")] {
        let pod = burstable.with_status(status(json!({"cpu": request}), json!({"cpu": "2"})));
        let read = Allocation::of_status(&pod).unwrap().apply(&pod);
        let resources = serde_json::to_value(&read.containers()[0].resources).unwrap();
        assert_eq!(resources, json!({"requests": {"cpu": request}, "limits": {"cpu": limit}}));
    }
    // With the raised limits, this pod would be guaranteed.
    let nearly = json!({"requests": amounts("1", "1Mi"), "limits": amounts("4", "1Mi")});
    let nearly = with(json!([{"name": "a", "image": IMAGE, "resources": nearly}]));
    let pod = nearly.with_status(status(amounts("3", "1Mi"), amounts("2", "1Mi")));
    assert!(Allocation::of_status(&pod).is_none());
}

#[test]
fn resizes_are_deferred_as_admission_says_or_infeasible() {
    let short = || Err(Rejection::new("OutOfcpu", "no room"));
    let (small, large) = (one("1", "1Mi"), one("2", "1Mi"));
    assert_eq!(decide(&large, &small, || Ok(())), Verdict::Fits);
    let deferred = Verdict::Deferred { reason: "OutOfcpu".into(), message: "no room".into() };
    assert_eq!(decide(&large, &small, short), deferred);
    let of_file = pod("p").static_pod().spec(|own| *own = large.spec().clone()).build();
    let infeasible = |message, detail| Verdict::Infeasible { message, detail };
    assert_eq!(decide(&of_file, &small, || Ok(())), infeasible(texts::STATIC_POD, "static_pod"));
    let burstable = with(json!([{"name": "a", "resources": {"requests": {"cpu": "1"}}}]));
    assert_eq!(decide(&burstable, &small, || Ok(())), infeasible(texts::QOS_CLASS, "qos_class"));
}

#[test]
fn waiting_resizes_have_an_order() {
    let of = |cpu: &str, priority: i32| {
        pod("p")
            .spec(|own| {
                *own = one(cpu, "1Mi").spec().clone();
                own.priority = Some(priority);
            })
            .build()
    };
    let burstable = |name: &str| {
        pod(name)
            .spec(|own| {
                *own = with(json!([{"name": "a", "resources": {"requests": {"cpu": "2"}}}])).spec().clone();
            })
            .build()
    };
    let old = one("1", "1Mi");
    let at = |seconds| Some(Time::from_secs(seconds));
    let ordered = [
        (of("1", 0), at(9)),
        (of("2", 5), at(9)),
        (of("2", 0), at(9)),
        (burstable("b"), at(1)),
        (burstable("a"), at(2)),
        (burstable("a"), None),
        (burstable("b"), None),
    ];
    let keys: Vec<_> = ordered.iter().map(|(pod, since)| order(pod, &old, *since)).collect();
    assert!(keys.is_sorted_by(|one, other| one < other));
}

#[test]
fn requested_changes_are_counted_for_each_container_and_resource() {
    let of = |old: Value, new: Value| {
        let pod = |resources: Value| with(json!([{"name": "a", "resources": resources}]));
        let changes = requested(&pod(old), &pod(new));
        changes.iter().map(|it| format!("{} {} {}", it.operation, it.resource, it.requirement)).collect::<Vec<_>>()
    };
    let cpu = |cpu: &str| json!({"requests": {"cpu": cpu}});
    assert_eq!(of(cpu("1"), cpu("1000m")), [""; 0]);
    assert_eq!(of(cpu("1"), cpu("2")), ["increase cpu requests"]);
    assert_eq!(
        of(cpu("1"), json!({"requests": {"cpu": "500m", "memory": "1Mi"}})),
        ["decrease cpu requests", "add memory requests"]
    );
    assert_eq!(of(json!({"limits": {"memory": "1Mi"}}), json!({})), ["remove memory limits"]);
}

#[test]
fn limit_of_a_container_that_may_have_none_is_checked() {
    let of = |memory: Option<&str>| {
        let mut container = container("a", "1", memory.unwrap_or("64Mi"));
        if memory.is_none() {
            container["resources"]["limits"].as_object_mut().unwrap().remove("memory");
        }
        with(json!([container]))
    };
    let running = status(&[("a", Is::Running)]);
    let limits = |changes: &ResizeChanges| {
        let (of_pod, of_containers) = decreased_limits(changes);
        (of_pod, of_containers.into_iter().map(|(_, limit)| limit).collect::<Vec<_>>())
    };
    let added = changes(&of(None), &of(Some("64Mi")), &running).unwrap();
    assert_eq!(limits(&added), (Some(64 << 20), vec![64 << 20]));
    let raised = changes(&of(Some("32Mi")), &of(Some("64Mi")), &running).unwrap();
    assert_eq!(limits(&raised), (None, vec![]));
}

#[test]
fn decreases_come_before_increases() {
    let of = |a: &str, b: &str| with(json!([container("a", a, a_memory(a)), container("b", b, a_memory(b))]));
    fn a_memory(cpu: &str) -> &'static str {
        if cpu == "1" { "64Mi" } else { "128Mi" }
    }
    let (old, new) = (of("1", "2"), of("2", "1"));
    let changes = changes(&old, &new, &status(&[("a", Is::Running), ("b", Is::Running)])).unwrap();
    let names = |list: &[ContainerChange]| list.iter().map(|it| it.name.to_string()).collect::<Vec<_>>();
    assert_eq!(
        (names(&changes.memory), names(&changes.cpu)),
        (vec!["b".into(), "a".into()], vec!["b".into(), "a".into()])
    );
    assert_eq!(changes.cgroup, None, "the pod has as much as before");
    assert_eq!(decreased_limits(&changes).1, [(&"b".into(), 64 << 20)]);
    assert!(changes.restart.is_empty());
}

#[test]
fn resize_policy_decides_on_a_restart() {
    // Rows: the policies of CPU and memory; the change; restarts, changes of memory, changes of CPU.
    let (no, yes) = ("NotRequired", "RestartContainer");
    for (cpu, memory, new, expected) in [
        (no, no, ("2", "2Mi"), (0, 1, 1)),
        (no, yes, ("2", "1Mi"), (0, 0, 1)),
        (no, yes, ("1", "2Mi"), (1, 0, 0)),
        (yes, no, ("2", "2Mi"), (1, 0, 0)),
        (yes, no, ("1", "2Mi"), (0, 1, 0)),
    ] {
        let of = |amounts: (&str, &str)| {
            let mut own = container("a", amounts.0, amounts.1);
            own["resizePolicy"] = json!([
                {"resourceName": "cpu", "restartPolicy": cpu}, {"resourceName": "memory", "restartPolicy": memory}]);
            with(json!([own]))
        };
        let changes = changes(&of(("1", "1Mi")), &of(new), &status(&[("a", Is::Running)])).unwrap();
        let found = (changes.restart.len(), changes.memory.len(), changes.cpu.len());
        assert_eq!(found, expected, "{cpu} {memory} {new:?}");
        assert!(changes.restart.iter().all(|it| it.kill.reason == KillReason::Resize));
    }
}

#[test]
fn only_running_containers_are_changed() {
    let (old, new) = (one("1", "1Mi"), one("2", "1Mi"));
    for (runs, expected) in [(status(&[("a", Is::Running)]), 1), (status(&[("a", Is::Exited(0))]), 0), (status(&[]), 0)]
    {
        let changes = changes(&old, &new, &runs).unwrap();
        assert_eq!(changes.cpu.len(), expected);
        let bounds = changes.cgroup.map(|it| (it.before.known.cpu_limit, it.after.cpu_limit));
        assert_eq!(bounds, Some((Some(1000), Some(2000))), "the cgroup changes anyway");
    }
    let stops = Plan::StopPod { kills: Vec::new() };
    let used = resized(&old, &new).actuated.unwrap();
    assert_eq!(ResizeChanges::plan(&used, &new, &status(&[("a", Is::Running)]), &stops), None);
}

#[test]
fn resize_is_complete_when_containers_and_cgroup_have_the_resources() {
    let (old, new) = (one("1", "1Mi"), one("2", "1Mi"));
    let runs = status(&[("a", Is::Running)]);
    let mut resize = resized(&old, &new);
    assert_eq!(resize.settle(&new, &runs, true), None);
    let of = |pod: &PodObject| pod.containers()[0].resources.clone();
    assert_eq!(resize.starts(&new, "a"), Ok(true));
    assert_eq!(resize.starts(&new, "a"), Ok(false));
    assert_eq!(resize.settle(&new, &runs, true), None, "the cgroup has the old limit");
    resize.actuated.as_mut().unwrap().cgroup = Actual::known(Bounds::of(&new));
    assert_eq!(resize.settle(&new, &runs, true), Some(ResizeProgress::default()));
    assert!(resize.is_over());

    let mut resize = resized(&old, &new);
    assert!(resize.settle(&new, &status(&[]), false).is_some(), "no container runs and there is no cgroup");

    // The resize is withdrawn before it is applied.
    let mut resize = resized(&old, &new);
    resize.allocate(&new, &old);
    let actuated = resize.actuated.as_ref().unwrap();
    assert!(actuated.containers.is_empty() && actuated.cgroup == Actual::known(Bounds::of(&old)));
    assert!(resize.settle(&old, &runs, true).is_some());

    // A second resize before the first one is applied starts from what the container has.
    let mut resize = resized(&old, &new);
    resize.allocate(&new, &one("3", "1Mi"));
    let used = &resize.actuated.as_ref().unwrap().containers["a"];
    assert_eq!(used, &Actual::known(of(&old).unwrap()));
}

#[test]
fn sync_with_an_older_allocation_completes_nothing() {
    let (old, new) = (one("1", "1Mi"), one("2", "1Mi"));
    let mut resize = resized(&old, &new);
    // The sync was reading the status when the resize came. It is about to start the container with its old resources.
    assert_eq!(resize.settle(&old, &status(&[]), false), None);
    assert_eq!(resize.starts(&old, "a"), Err(Superseded));
    assert!(resize.settle(&new, &status(&[]), false).is_some());
}

#[test]
fn resize_is_over_once_the_file_has_its_record() {
    let (old, new) = (one("1", "1Mi"), one("2", "1Mi"));
    let mut resize = resized(&old, &new);
    resize.unsaved = Some(7);
    assert!(resize.settle(&new, &status(&[]), false).is_some(), "no container runs");
    resize.saved(6);
    assert!(!resize.is_over());
    resize.saved(7);
    assert!(resize.is_over());
}

#[test]
fn resize_is_stuck_after_two_minutes_of_failures() {
    let (old, new) = (one("2", "1Mi"), one("1", "1Mi"));
    let mut resize = resized(&old, &new);
    let mut tried = |error, at: u64| {
        resize.tried(&new, error, Time::from_secs(at)).unwrap();
        [at, at + 120, at + 121].map(|now| resize.is_stuck(Time::from_secs(now)))
    };
    assert_eq!(tried(None, 0), [false, false, false]);
    assert_eq!(tried(Some("it uses more"), 1), [false, false, true]);
    assert_eq!(tried(Some("another error"), 100), [false, true, true], "the first failure counts");
    assert_eq!(tried(None, 200), [false, false, false]);
    assert_eq!(tried(Some("it uses more"), 300), [false, false, true]);
}

// The stop of a container, for example, comes before the calls of the resize.
#[test]
fn resize_is_stuck_if_syncs_fail_before_its_calls() {
    let (old, new) = (one("2", "1Mi"), one("1", "1Mi"));
    let mut resize = resized(&old, &new);
    let mut synced = |pod: &PodObject, has_failed, at: u64| {
        resize.synced(pod, has_failed, Time::from_secs(at));
        let error = resize.progress.as_ref().and_then(|progress| progress.error.clone());
        assert_eq!(error, None, "the error is not one of the resize");
        resize.is_stuck(Time::from_secs(at + 121))
    };
    assert!(!synced(&new, false, 0));
    assert!(!synced(&old, true, 1), "an older allocation");
    assert!(synced(&new, true, 2));
    assert!(!synced(&new, false, 3));
    let mut loaded = PodResize { actuated: resized(&old, &new).actuated, ..PodResize::default() };
    loaded.synced(&new, true, Time::ZERO);
    assert!(loaded.is_stuck(Time::from_secs(121)), "an earlier agent allocated it");
}

#[test]
fn new_reasons_and_new_generations_are_reported() {
    let refusal = |reason: &str, generation, at| PendingResize {
        reason: reason.into(),
        message: String::new(),
        generation: Some(generation),
        since: Time::from_secs(at),
    };
    let mut resize = PodResize::default();
    let mut refused = |reason, generation, at| {
        let is_new = resize.refuse(refusal(reason, generation, at));
        (is_new, resize.is_queued, resize.pending.as_ref().unwrap().since)
    };
    assert_eq!(refused("OutOfcpu", 2, 1), (true, true, Time::from_secs(1)));
    assert_eq!(refused("OutOfcpu", 2, 5), (false, true, Time::from_secs(1)));
    assert_eq!(refused("OutOfmemory", 2, 6), (true, true, Time::from_secs(1)));
    assert_eq!(refused("OutOfmemory", 3, 7), (true, true, Time::from_secs(1)));
    assert_eq!(refused(PendingResize::INFEASIBLE, 3, 8), (true, false, Time::from_secs(8)));
}
