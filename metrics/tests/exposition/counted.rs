//! What is counted is what is shown.

use std::collections::BTreeSet;
use std::time::Duration;

use podwright_metrics::{
    BySource, ContainerType, Format, Lifecycle, Metrics, OldestPhases, OperationType, PodConfig, RunningContainers,
    RuntimeOperation, WorkingPods,
};

use crate::{FORMATS, scraped};

/// The value of one series in the classic format; `series` as a scraper writes it.
fn value(metrics: &Metrics, series: &str) -> f64 {
    let text = metrics.encode(Format::Classic);
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in\n{text}")).parse().unwrap()
}

#[test]
fn series_that_are_set_every_pass_exist_before_the_first() {
    let scrape = scraped(&Metrics::new(), Format::Classic);
    let series = |name: &str| -> Vec<(String, f64)> {
        let family = scrape.families.iter().find(|family| family.name == name).unwrap_or_else(|| panic!("no {name}"));
        family.samples.iter().map(|sample| (sample.series(), sample.value)).collect()
    };
    let mut working = BTreeSet::new();
    for lifecycle in ["sync", "terminating", "terminated"] {
        for (config, is_static) in
            [("desired", ""), ("desired", "true"), ("orphan", ""), ("orphan", "true"), ("runtime_only", "unknown")]
        {
            working.insert(format!("config={config},lifecycle={lifecycle},static={is_static}"));
        }
    }
    let zeros = |names: BTreeSet<String>| names.into_iter().map(|name| (name, 0.0)).collect::<Vec<_>>();
    assert_eq!(series("kubelet_working_pods"), zeros(working));
    for name in ["kubelet_desired_pods", "kubelet_active_pods", "kubelet_restarted_pods_total"] {
        assert_eq!(series(name), zeros(["static=".to_owned(), "static=true".to_owned()].into()), "{name}");
    }
    let states = ["created", "exited", "running", "unknown"].map(|state| format!("container_state={state}"));
    assert_eq!(series("kubelet_running_containers"), zeros(states.into()));
}

#[test]
fn a_pass_sets_all_working_pods_and_forgets_the_last_one() {
    let metrics = Metrics::new();
    let mut pods = WorkingPods::default();
    pods.add(PodConfig::Desired { is_static: true }, Lifecycle::Sync);
    pods.add(PodConfig::Desired { is_static: true }, Lifecycle::Sync);
    pods.add(PodConfig::Orphan { is_static: false }, Lifecycle::Terminated);
    pods.add(PodConfig::RuntimeOnly, Lifecycle::Terminating);
    metrics.housekeeping.working_pods(&pods);
    let non_zero = || -> Vec<(String, f64)> {
        let scrape = scraped(&metrics, Format::Classic);
        let family = scrape.families.iter().find(|family| family.name == "kubelet_working_pods").unwrap();
        assert_eq!(family.samples.len(), 15);
        family.samples.iter().filter(|s| s.value != 0.0).map(|s| (s.series(), s.value)).collect()
    };
    assert_eq!(
        non_zero(),
        [
            ("config=desired,lifecycle=sync,static=true".to_owned(), 2.0),
            ("config=orphan,lifecycle=terminated,static=".to_owned(), 1.0),
            ("config=runtime_only,lifecycle=terminating,static=unknown".to_owned(), 1.0),
        ]
    );
    metrics.housekeeping.working_pods(&WorkingPods::default());
    assert_eq!(non_zero(), []);
}

#[test]
fn each_field_reaches_its_own_series() {
    let metrics = Metrics::new();
    metrics.housekeeping.desired_pods(BySource { static_pods: 1, api_pods: 2 });
    metrics.housekeeping.active_pods(BySource { static_pods: 3, api_pods: 4 });
    metrics.housekeeping.cleaned_volumes(5, 6);
    metrics.housekeeping.restarted(false);
    metrics.housekeeping.oldest_phases(&OldestPhases {
        waiting: Duration::from_secs(7),
        sync: Duration::from_secs(8),
        terminating: Duration::from_secs(9),
        terminated: Duration::from_millis(10_500),
    });
    // POD-W17: a state without a container is written as zero.
    metrics.pleg.running_containers(RunningContainers { running: 1, exited: 2, created: 3, unknown: 4 });
    metrics.pleg.running_containers(RunningContainers { running: 5, exited: 6, created: 0, unknown: 7 });
    metrics.pod_worker.worked(OperationType::Kill, Duration::from_millis(250));
    metrics.containers.pod_started(false);
    metrics.containers.pod_started(true);
    metrics.shutdown.started(Duration::from_secs(1));
    metrics.shutdown.ended(Duration::from_secs(2));
    metrics.shutdown.started(Duration::from_secs(3));
    metrics.node.name("old");
    metrics.node.name("new");
    for (series, expected) in [
        ("kubelet_desired_pods{static=\"true\"}", 1.0),
        ("kubelet_desired_pods{static=\"\"}", 2.0),
        ("kubelet_active_pods{static=\"true\"}", 3.0),
        ("kubelet_active_pods{static=\"\"}", 4.0),
        ("kubelet_orphan_pod_cleaned_volumes", 5.0),
        ("kubelet_orphan_pod_cleaned_volumes_errors", 6.0),
        ("kubelet_restarted_pods_total{static=\"\"}", 1.0),
        ("kubelet_restarted_pods_total{static=\"true\"}", 0.0),
        ("podwright_oldest_phase_seconds{lifecycle=\"waiting\"}", 7.0),
        ("podwright_oldest_phase_seconds{lifecycle=\"sync\"}", 8.0),
        ("podwright_oldest_phase_seconds{lifecycle=\"terminating\"}", 9.0),
        ("podwright_oldest_phase_seconds{lifecycle=\"terminated\"}", 10.5),
        ("kubelet_running_containers{container_state=\"running\"}", 5.0),
        ("kubelet_running_containers{container_state=\"exited\"}", 6.0),
        ("kubelet_running_containers{container_state=\"created\"}", 0.0),
        ("kubelet_running_containers{container_state=\"unknown\"}", 7.0),
        ("kubelet_pod_worker_duration_seconds_bucket{operation_type=\"kill\",le=\"0.1\"}", 0.0),
        ("kubelet_pod_worker_duration_seconds_bucket{operation_type=\"kill\",le=\"0.25\"}", 1.0),
        ("kubelet_pod_worker_duration_seconds_sum{operation_type=\"kill\"}", 0.25),
        ("kubelet_pod_worker_duration_seconds_count{operation_type=\"terminated\"}", 0.0),
        ("kubelet_started_pods_total", 2.0),
        ("kubelet_started_user_namespaced_pods_total", 1.0),
        ("kubelet_graceful_shutdown_start_time_seconds", 3.0),
        ("kubelet_graceful_shutdown_end_time_seconds", 0.0),
        ("kubelet_node_name{node=\"new\"}", 1.0),
    ] {
        assert_eq!(value(&metrics, series), expected, "{series}");
    }
    assert!(!metrics.encode(Format::Classic).contains("\"old\""));
}

#[test]
fn refusals_are_counted_under_a_bounded_set_of_reasons() {
    for (reason, label) in [
        ("OutOfcpu", "OutOfcpu"),
        ("OutOfephemeral-storage", "OutOfephemeral-storage"),
        ("OutOfexample.com/fpga", "OutOfExtendedResources"),
        ("OutOf", "OutOfExtendedResources"),
        ("NodeShutdown", "NodeShutdown"),
        ("node(s) had taints that the pod didn't tolerate", "node(s) had taints that the pod didn't tolerate"),
        ("nodeshutdown", "Other"),
        ("SomethingNew", "Other"),
        ("", "Other"),
    ] {
        let metrics = Metrics::new();
        metrics.admission.rejected(reason);
        let series = format!("kubelet_admission_rejections_total{{reason=\"{label}\"}}");
        assert_eq!(value(&metrics, &series), 1.0, "{reason:?}");
    }
}

#[test]
fn any_label_value_survives_the_trip() {
    let nasty = ["a\"b", "back\\slash", "line\nbreak", "cr\rlf\r\n", "}, x=\"1\"} 3", "# HELP", "\\\"", "naïve λ", ""];
    let metrics = Metrics::new();
    for text in nasty {
        metrics.status.container_terminated(ContainerType::Container, -1, text);
    }
    for format in FORMATS {
        let scrape = scraped(&metrics, format);
        let family = scrape.families.iter().find(|f| f.name.starts_with("kubelet_terminated_containers")).unwrap();
        let reasons: BTreeSet<&str> = family.samples.iter().map(|sample| sample.label("reason").unwrap()).collect();
        assert_eq!(reasons, nasty.into());
    }
}

#[test]
fn nothing_counted_from_many_threads_is_lost_while_scrapes_run() {
    const THREADS: usize = 4;
    const EACH: usize = 5_000;
    let metrics = Metrics::new();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let metrics = metrics.clone();
            scope.spawn(move || {
                let actor = metrics.actors.of("pod_worker");
                for _ in 0..EACH {
                    metrics.pod_worker.worked(OperationType::Sync, Duration::from_millis(1));
                    metrics.runtime.called(RuntimeOperation::Status, Duration::from_millis(1), false);
                    actor.received();
                }
            });
        }
        for _ in 0..20 {
            scraped(&metrics, Format::Classic);
        }
    });
    for series in [
        "kubelet_pod_worker_duration_seconds_count{operation_type=\"sync\"}",
        "kubelet_pod_worker_duration_seconds_bucket{operation_type=\"sync\",le=\"0.005\"}",
        "kubelet_runtime_operations_total{operation_type=\"status\"}",
        "podwright_actor_messages_total{actor=\"pod_worker\"}",
    ] {
        assert_eq!(value(&metrics, series), (THREADS * EACH) as f64, "{series}");
    }
    let sum = value(&metrics, "kubelet_pod_worker_duration_seconds_sum{operation_type=\"sync\"}");
    assert_eq!(sum, (THREADS * EACH) as f64 / 1000.0);
}
