//! The exposition as a scraper sees it, in both formats, against a table of facts.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests, but do not look like it")]

mod scrape;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use podwright_metrics::{
    BySource, CgroupOperation, ContainerType, EvictionSignal, Format, Lifecycle, Metrics, OldestPhases, OperationType,
    PodConfig, RunningContainers, RuntimeOperation, WorkingPods,
};
use scrape::{Family, Scrape, scrape};

const FORMATS: [Format; 2] = [Format::Classic, Format::OpenMetrics];

/// Calls every method at least once.
fn touch_everything(metrics: &Metrics) {
    const TOOK: Duration = Duration::from_millis(30);

    let actor = metrics.actors.of("pod_worker");
    actor.received();
    actor.refused();
    actor.handled(TOOK);
    metrics.actors.hook_panicked();
    metrics.actors.worker_rebuilt();

    metrics.admission.rejected("OutOfcpu");
    metrics.admission.evicted(EvictionSignal::MemoryAvailable);
    metrics.admission.eviction_stats_age(EvictionSignal::MemoryAvailable, TOOK);
    metrics.admission.preempted("cpu");

    metrics.containers.pod_started(true);
    metrics.containers.pod_start_failed(true);
    metrics.containers.ephemeral_containers(1);
    metrics.containers.sandbox_run("", TOOK, true);
    metrics.containers.http_fallback();
    metrics.containers.sleep_cut_short();
    metrics.containers.image_pulled(5 << 20, TOOK);
    for container_type in ContainerType::ALL {
        metrics.containers.container_started(container_type);
        metrics.containers.container_start_failed(container_type, "RunContainerError");
        metrics.status.container_terminated(container_type, 137, "Error");
    }

    metrics.governor.starts(3, 8);
    metrics.governor.waited(TOOK);

    let pods = BySource { static_pods: 1, api_pods: 2 };
    metrics.housekeeping.desired_pods(pods);
    metrics.housekeeping.active_pods(pods);
    metrics.housekeeping.mirror_pods(1);
    metrics.housekeeping.working_pods(&WorkingPods::default());
    metrics.housekeeping.restarted(true);
    metrics.housekeeping.orphaned_runtime_pod();
    metrics.housekeeping.cleaned_volumes(2, 1);
    metrics.housekeeping.admission_pods(3);
    metrics.housekeeping.zombie_containers(1);
    metrics.housekeeping.oldest_phases(&OldestPhases { terminating: TOOK, ..OldestPhases::default() });

    metrics.node.name("node1");
    metrics.node.cgroup(CgroupOperation::Create, TOOK);

    metrics.pleg.relisted(TOOK);
    metrics.pleg.relist_interval(TOOK);
    metrics.pleg.pod_relisted(TOOK);
    metrics.pleg.discarded();
    metrics.pleg.last_seen(Duration::from_secs(1_763_712_345));
    metrics.pleg.stream_failed();
    metrics.pleg.stream_connected();
    metrics.pleg.stream_latency(TOOK);
    metrics.pleg.running_pods(1);
    metrics.pleg.running_containers(RunningContainers { running: 1, ..RunningContainers::default() });

    for operation in OperationType::ALL {
        metrics.pod_worker.worked(operation, TOOK);
    }
    metrics.pod_worker.started(TOOK);
    metrics.pod_worker.allowed_to_start(2);

    for operation in RuntimeOperation::ALL {
        metrics.runtime.called(operation, TOOK, true);
    }

    metrics.shutdown.started(Duration::from_secs(10));
    metrics.shutdown.ended(Duration::from_secs(20));

    metrics.start.running(TOOK);
    metrics.start.sli(TOOK);
    metrics.start.total(TOOK);
    metrics.start.first_network_pod(TOOK);

    metrics.status.synced(TOOK);
}

#[derive(Debug, PartialEq)]
struct Facts {
    kind: String,
    labels: BTreeSet<String>,
    bounds: Vec<f64>,
}

/// By the name that a scraper of the classic format sees.
fn facts() -> BTreeMap<String, Facts> {
    let lines = include_str!("families.txt").lines().filter(|line| !line.starts_with('#'));
    let facts = lines.map(|line| {
        let mut words = line.split(' ');
        let (name, kind, labels) = (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
        let labels = labels.split(',').filter(|label| *label != "-").map(str::to_owned).collect();
        let bounds = words.map(|bound| bound.parse().unwrap()).collect();
        (name.to_owned(), Facts { kind: kind.to_owned(), labels, bounds })
    });
    facts.collect()
}

/// What one family of a scrape shows; panics where its series differ among themselves.
fn shown(family: &Family) -> Facts {
    let labels: BTreeSet<BTreeSet<String>> = family
        .samples
        .iter()
        .map(|sample| sample.labels.iter().map(|(name, _)| name.clone()).filter(|name| name != "le").collect())
        .collect();
    assert_eq!(labels.len(), 1, "one set of labels in {family:?}");
    let mut bounds: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for sample in &family.samples {
        if let Some(le) = sample.label("le") {
            bounds.entry(sample.series()).or_default().push(le.parse().unwrap());
        }
    }
    let bounds: Vec<Vec<f64>> = bounds.into_values().collect();
    assert!(bounds.windows(2).all(|pair| pair[0] == pair[1]), "one list of bounds in {family:?}");
    let mut bounds = bounds.into_iter().next().unwrap_or_default();
    assert_eq!(bounds.pop().unwrap_or(f64::INFINITY), f64::INFINITY);
    Facts { kind: family.kind.clone(), labels: labels.into_iter().next().unwrap(), bounds }
}

fn scraped(metrics: &Metrics, format: Format) -> Scrape {
    scrape(&metrics.encode(format), format)
}

/// The value of one series in the classic format; `series` as a scraper writes it.
fn value(metrics: &Metrics, series: &str) -> f64 {
    let text = metrics.encode(Format::Classic);
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in\n{text}")).parse().unwrap()
}

#[test]
fn families_are_those_of_the_table_in_both_formats() {
    let metrics = Metrics::new();
    touch_everything(&metrics);
    for format in FORMATS {
        let shown: BTreeMap<String, Facts> = scraped(&metrics, format)
            .families
            .iter()
            .map(|family| {
                // In OpenMetrics the family of a counter is named without the suffix that its samples have.
                let without_total = ["kubelet_evictions", "kubelet_preemptions", "kubelet_pleg_discard_events"];
                let bare = without_total.contains(&family.name.as_str()) || family.name.ends_with("_count");
                let suffixed = format == Format::OpenMetrics && family.kind == "counter" && !bare;
                let name = if suffixed { format!("{}_total", family.name) } else { family.name.clone() };
                (name, shown(family))
            })
            .collect();
        let facts = facts();
        assert_eq!(shown.keys().collect::<Vec<_>>(), facts.keys().collect::<Vec<_>>(), "{format:?}");
        for (name, fact) in &facts {
            assert_eq!(&shown[name], fact, "{name} in {format:?}");
        }
    }
}

#[test]
fn samples_are_named_as_each_format_demands() {
    let metrics = Metrics::new();
    touch_everything(&metrics);
    for format in FORMATS {
        for family in scraped(&metrics, format).families {
            let names: BTreeSet<&str> = family.samples.iter().map(|sample| sample.name.as_str()).collect();
            let expected: Vec<String> = match (family.kind.as_str(), format) {
                ("counter", Format::OpenMetrics) => vec![format!("{}_total", family.name)],
                ("histogram", _) => ["_bucket", "_count", "_sum"].map(|s| format!("{}{s}", family.name)).to_vec(),
                _ => vec![family.name.clone()],
            };
            assert!(names.iter().eq(&expected), "{format:?}: {names:?}, not {expected:?}");
        }
    }
}

#[test]
fn families_and_series_are_sorted_and_series_are_unique() {
    let metrics = Metrics::new();
    touch_everything(&metrics);
    for format in FORMATS {
        let scrape = scraped(&metrics, format);
        assert!(scrape.families.is_sorted_by(|a, b| a.name < b.name));
        for family in &scrape.families {
            assert!(family.samples.is_sorted_by_key(|sample| sample.series()), "{family:?}");
            let unique: BTreeSet<String> = family.samples.iter().map(|s| format!("{}{:?}", s.name, s.labels)).collect();
            assert_eq!(unique.len(), family.samples.len(), "{family:?}");
            for sample in &family.samples {
                let names: Vec<&str> = sample.labels.iter().map(|(name, _)| name.as_str()).collect();
                let own = names.strip_suffix(&["le"]).unwrap_or(&names);
                assert!(own.is_sorted(), "{sample:?}");
            }
        }
    }
}

#[test]
fn help_carries_the_stability_of_the_kubelets_families_only() {
    let metrics = Metrics::new();
    touch_everything(&metrics);
    for format in FORMATS {
        for family in scraped(&metrics, format).families {
            let tag = match family.name.as_str() {
                "kubelet_first_network_pod_start_sli_duration_seconds" => "[INTERNAL] ",
                name if name.starts_with("podwright_") => "",
                _ => "[ALPHA] ",
            };
            let text = family.help.strip_prefix(tag).unwrap_or_else(|| panic!("{}: {}", family.name, family.help));
            assert!(text.starts_with(|c: char| c.is_ascii_uppercase()) && text.ends_with('.'), "{text}");
            // Help is written as it is: what would need an escape has no place in it.
            assert!(!text.contains(['\\', '"', '\n']), "{text}");
        }
    }
}

#[test]
fn a_counter_and_a_histogram_read_as_from_a_go_client() {
    let metrics = Metrics::new();
    touch_everything(&metrics);
    let text = metrics.encode(Format::Classic);
    for expected in [
        "# TYPE kubelet_restarted_pods_total counter\n\
         kubelet_restarted_pods_total{static=\"\"} 0\n\
         kubelet_restarted_pods_total{static=\"true\"} 1\n",
        "# TYPE kubelet_evictions counter\nkubelet_evictions{eviction_signal=\"memory.available\"} 1\n",
        "# TYPE kubelet_containers_per_pod_count histogram\n\
         kubelet_containers_per_pod_count_bucket{le=\"1\"} 0\n\
         kubelet_containers_per_pod_count_bucket{le=\"2\"} 1\n\
         kubelet_containers_per_pod_count_bucket{le=\"4\"} 1\n\
         kubelet_containers_per_pod_count_bucket{le=\"8\"} 1\n\
         kubelet_containers_per_pod_count_bucket{le=\"16\"} 1\n\
         kubelet_containers_per_pod_count_bucket{le=\"+Inf\"} 1\n\
         kubelet_containers_per_pod_count_sum 2\n\
         kubelet_containers_per_pod_count_count 1\n",
        "kubelet_runtime_operations_duration_seconds_bucket{operation_type=\"version\",le=\"0.0125\"} 0\n",
        "kubelet_pleg_last_seen_seconds 1.763712345e+09\n",
    ] {
        assert!(text.contains(expected), "no\n{expected}in\n{text}");
    }
    let text = metrics.encode(Format::OpenMetrics);
    for expected in [
        "# TYPE kubelet_evictions counter\nkubelet_evictions_total{eviction_signal=\"memory.available\"} 1\n",
        "# TYPE kubelet_restarted_pods counter\nkubelet_restarted_pods_total{static=\"\"} 0\n",
        "kubelet_containers_per_pod_count_bucket{le=\"1.0\"} 0\n",
    ] {
        assert!(text.contains(expected), "no\n{expected}in\n{text}");
    }
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
    // W17: a state without a container is written as zero.
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
