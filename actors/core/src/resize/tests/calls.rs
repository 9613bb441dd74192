//! Calls whose results are unknown, and allocations that are replaced while a sync applies them.

use super::*;
use crate::ports::CgroupLimits;

/// The steps of the next sync as text.
fn steps(resize: &PodResize) -> Vec<String> {
    planned(resize).iter().map(text).collect()
}

fn planned(resize: &PodResize) -> Vec<Step> {
    let actuated = resize.actuated.as_ref().unwrap();
    let (pod, runs) = (&actuated.allocated, status(&[("a", Is::Running)]));
    let plan = plan(pod, &runs, &ProbeSnapshot::new());
    ResizeChanges::plan(actuated, pod, &runs, &plan).map(|changes| changes.steps()).unwrap_or_default()
}

fn text(step: &Step) -> String {
    match step {
        Step::Container { name, resources, .. } => {
            let limits = resources.limits.as_ref().unwrap();
            format!("{name} {} {}", limits["cpu"].0, limits["memory"].0)
        }
        Step::Cgroup(CgroupLimits { memory_limit: Some(bytes), .. }) => format!("memory {}Mi", bytes >> 20),
        Step::Cgroup(limits) => format!("cpu {:?} {:?}", limits.cpu_limit, limits.cpu_request),
    }
}

/// Begins the steps of the next sync one after another, and does not end the last one.
fn interrupt_in(resize: &mut PodResize, last: &str) {
    let pod = resize.actuated.as_ref().unwrap().allocated.clone();
    for step in planned(resize) {
        assert_eq!(resize.begin(&pod, &step), Ok(true));
        if text(&step) == last {
            return;
        }
        resize.done(&step);
    }
    panic!("no step {last}");
}

fn finish(resize: &mut PodResize) {
    let pod = resize.actuated.as_ref().unwrap().allocated.clone();
    for step in planned(resize) {
        resize.begin(&pod, &step).unwrap();
        resize.done(&step);
    }
    assert!(resize.settle(&pod, &status(&[("a", Is::Running)]), true).is_some());
}

#[test]
fn call_with_an_older_allocation_is_not_begun() {
    let (one_cpu, two, three) = (one("1", "1Mi"), one("2", "1Mi"), one("3", "1Mi"));
    let mut resize = resized(&one_cpu, &two);
    let step = planned(&resize).pop().unwrap();
    resize.allocate(&two, &three);
    assert_eq!(resize.begin(&two, &step), Err(Superseded));
    assert_eq!(resize.starts(&two, "a"), Err(Superseded));
    assert_eq!(resize.starts(&two, "other"), Ok(false), "another container has no resources that change");
    let other_text = one("3000m", "1Mi");
    assert_eq!(resize.starts(&other_text, "a"), Ok(true), "equal amounts with other texts are the same allocation");
    assert_eq!(PodResize::default().begin(&two, &step), Err(Superseded));
}

#[test]
fn call_of_unknown_result_is_made_again_although_its_resize_was_taken_back() {
    let (old, new) = (one("1", "1Mi"), one("2", "1Mi"));
    let mut resize = resized(&old, &new);
    interrupt_in(&mut resize, "a 2 1Mi");
    assert_eq!(resize.settle(&new, &status(&[("a", Is::Running)]), true), None);
    resize.allocate(&new, &old);
    assert_eq!(resize.settle(&old, &status(&[("a", Is::Running)]), true), None);
    assert_eq!(steps(&resize), ["a 1 1Mi", "cpu Some(1000) Some(1000)"]);
    finish(&mut resize);
    assert!(resize.is_over());
}

#[test]
fn limit_of_a_cgroup_that_may_be_too_low_grows_first() {
    let (small, middle, large) = (one("1", "1Mi"), one("2", "1Mi"), one("3", "1Mi"));
    // The limit may be 1 or 3.
    let unknown = || {
        let mut resize = resized(&small, &large);
        interrupt_in(&mut resize, "cpu Some(3000) Some(3000)");
        resize
    };
    let mut resize = unknown();
    resize.allocate(&large, &middle);
    assert_eq!(steps(&resize), ["cpu Some(2000) Some(2000)", "a 2 1Mi"]);
    finish(&mut resize);

    let mut resize = unknown();
    resize.allocate(&large, &small);
    assert_eq!(steps(&resize), ["cpu Some(1000) Some(1000)"], "the limit may be too high");
    finish(&mut resize);
}

#[test]
fn container_that_may_have_more_counts_with_the_larger_resources() {
    let (old, new) = (one("1", "1Mi"), one("2", "1Mi"));
    let mut resize = resized(&old, &new);
    interrupt_in(&mut resize, "a 2 1Mi");
    resize.allocate(&new, &old);
    let largest = resize.actuated.as_ref().unwrap().containers["a"].largest();
    assert_eq!(Some(&largest), new.containers()[0].resources.as_ref());
}

#[test]
fn container_that_may_have_no_limit_counts_without_a_limit() {
    let of = |resources: Value| with(json!([{"name": "a", "image": IMAGE, "resources": resources}]));
    let old = of(json!({"requests": {"cpu": "1"}}));
    let new = of(json!({"requests": {"cpu": "2"}, "limits": {"cpu": "4"}}));
    let mut resize = resized(&old, &new);
    let step = planned(&resize).pop().unwrap();
    assert_eq!(resize.begin(&new, &step), Ok(true));
    let largest = resize.actuated.as_ref().unwrap().containers["a"].largest();
    assert_eq!(serde_json::to_value(largest).unwrap(), json!({"requests": {"cpu": "2"}}));
}

// Each resize adds a value while the calls of a pod fail.
#[test]
fn calls_that_always_fail_keep_a_bounded_record() {
    let small = one("1", "1Mi");
    let mut resize = PodResize::default();
    let mut last = small.clone();
    for cpu in (2..100).rev().chain([200, 3]) {
        let next = one(&cpu.to_string(), "1Mi");
        resize.allocate(&last, &next);
        for step in planned(&resize) {
            resize.begin(&next, &step).unwrap();
        }
        last = next;
    }
    let actuated = resize.actuated.as_ref().unwrap();
    let (container, cgroup) = (&actuated.containers["a"], &actuated.cgroup);
    assert!(container.begun.len() <= 5 && cgroup.begun.len() <= 5, "{container:?} {cgroup:?}");
    let of = |pod: &PodObject| pod.containers()[0].resources.clone().unwrap();
    assert_eq!(container.largest(), of(&one("200", "1Mi")));
    let least = container.values().map(|value| value.limits.as_ref().unwrap()["cpu"].0.clone()).min();
    assert_eq!(least.as_deref(), Some("1"));
    assert_eq!(cgroup.largest(), Bounds::of(&one("200", "1Mi")));
    // Once calls succeed, only the allocated resources are in use.
    finish(&mut resize);
    assert!(resize.is_over());
}

#[test]
fn call_that_the_runtime_does_not_have_changes_nothing() {
    let (old, new) = (one("1", "1Mi"), one("2", "1Mi"));
    let mut resize = resized(&old, &new);
    interrupt_in(&mut resize, "a 2 1Mi");
    resize.refused(&"a".into(), new.containers()[0].resources.as_ref().unwrap());
    resize.allocate(&new, &old);
    assert_eq!(steps(&resize), ["cpu Some(1000) Some(1000)"]);
}

#[test]
fn container_that_starts_again_has_known_resources() {
    let (old, new) = (one("1", "1Mi"), one("2", "1Mi"));
    let mut resize = resized(&old, &new);
    interrupt_in(&mut resize, "a 2 1Mi");
    resize.allocate(&new, &old);
    assert_eq!(resize.starts(&old, "a"), Ok(true));
    assert!(resize.actuated.as_ref().unwrap().containers.is_empty());
}

// The first call of the memory's step has all resources of the container. Its CPU must not exceed what the pod may have.
#[test]
fn memory_changes_with_the_least_cpu_that_the_container_may_have() {
    let (old, new) = (one("3", "1Mi"), one("2", "1Mi"));
    let mut resize = resized(&old, &new);
    interrupt_in(&mut resize, "a 2 1Mi");
    resize.allocate(&new, &one("3", "2Mi"));
    assert_eq!(steps(&resize), ["memory 2Mi", "a 2 2Mi", "a 3 2Mi"]);
}

#[test]
fn limit_of_a_cgroup_stays_above_what_the_containers_may_have() {
    let (small, middle, large) = (one("1", "1Mi"), one("2", "1Mi"), one("3", "1Mi"));
    let mut resize = resized(&large, &small);
    // The cgroup shrinks while the container is created and does not run. It then starts with its old resources.
    let shrinks =
        Step::Cgroup(CgroupLimits { cpu_limit: Some(1000), cpu_request: Some(1000), ..CgroupLimits::default() });
    assert_eq!(resize.begin(&small, &shrinks), Ok(true));
    resize.allocate(&small, &middle);
    assert_eq!(steps(&resize), ["cpu Some(3000) Some(3000)", "a 2 1Mi", "cpu Some(2000) Some(2000)"]);
    finish(&mut resize);
}
