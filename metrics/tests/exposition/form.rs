//! Names, types, labels, buckets and help, against a table of facts and the rules of both formats.

use std::collections::{BTreeMap, BTreeSet};

use podwright_metrics::{Format, Metrics};

use crate::scrape::{Family, Scrape, scrape};
use crate::touch::touch_everything;
use crate::{FORMATS, scraped};

#[derive(Debug, PartialEq)]
pub(crate) struct Facts {
    kind: String,
    labels: BTreeSet<String>,
    bounds: Vec<f64>,
}

/// By the name that a scraper of the classic format sees.
pub(crate) fn facts(table: &str) -> BTreeMap<String, Facts> {
    let lines = table.lines().filter(|line| !line.starts_with('#'));
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
pub(crate) fn shown(family: &Family) -> Facts {
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
                let ends = ["_count", "_renew_errors"].iter().any(|end| family.name.ends_with(end));
                let of_endpoint = family.name.strip_prefix("kubelet_pod_resources_endpoint_");
                let of_endpoint = of_endpoint.is_some_and(|name| name != "requests");
                let bare = without_total.contains(&family.name.as_str()) || ends || of_endpoint;
                let suffixed = format == Format::OpenMetrics && family.kind == "counter" && !bare;
                let name = if suffixed { format!("{}_total", family.name) } else { family.name.clone() };
                (name, shown(family))
            })
            .collect();
        let facts = facts(include_str!("families.txt"));
        assert_eq!(shown.keys().collect::<Vec<_>>(), facts.keys().collect::<Vec<_>>(), "{format:?}");
        for (name, fact) in &facts {
            assert_eq!(&shown[name], fact, "{name} in {format:?}");
        }
    }
}

#[test]
fn families_that_name_pods_or_the_node_can_be_left_out() {
    let metrics = Metrics::new();
    touch_everything(&metrics);
    for format in FORMATS {
        let (all, rest) = (scraped(&metrics, format), scrape(&metrics.encode_without_names(format), format));
        let names = |scrape: &Scrape| -> BTreeSet<String> {
            scrape.families.iter().map(|family| family.name.clone()).collect()
        };
        let left_out: Vec<String> = names(&all).difference(&names(&rest)).cloned().collect();
        let probes = if format == Format::Classic { "prober_probe_total" } else { "prober_probe" };
        let mut expected =
            ["kubelet_node_name", "plugin_manager_total_plugins", "prober_probe_duration_seconds", probes];
        expected.sort_unstable();
        assert_eq!(left_out, expected, "{format:?}");
    }
}

/// A new label may name a pod of a tenant. Then it belongs to the names that are left out.
#[test]
fn labels_have_values_of_closed_sets_or_are_known_to_name_something() {
    const KNOWN: [&str; 42] = [
        "actor",
        "code",
        "config",
        "container",
        "container_state",
        "container_type",
        "driver_name",
        "eviction_signal",
        "exit_code",
        "grpc_status_code",
        "hash",
        "image_size_in_bytes",
        "is_error",
        "lifecycle",
        "limit",
        "method_name",
        "name",
        "namespace",
        "node",
        "operation",
        "operation_name",
        "operation_type",
        "outcome",
        "part",
        "plugin_name",
        "pod",
        "pod_uid",
        "preemption_signal",
        "probe_type",
        "reason",
        "reason_detail",
        "requirement",
        "resource",
        "result",
        "retry_trigger",
        "runtime_handler",
        "server_api_version",
        "socket_path",
        "state",
        "static",
        "subresource",
        "success",
    ];
    let facts = facts(include_str!("families.txt"));
    let labels: BTreeSet<&str> = facts.values().flat_map(|fact| &fact.labels).map(String::as_str).collect();
    assert_eq!(labels.into_iter().collect::<Vec<_>>(), KNOWN);
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
                "prober_probe" | "prober_probe_total" => "[BETA] ",
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
