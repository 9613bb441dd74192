//! The metrics of the controllers.

use std::collections::BTreeMap;
use std::time::Duration;

use podwright_metrics::{ClaimSeries, ControllersMetrics, EventOutcome, Format, WorkQueueNumbers};

use crate::form::{Facts, facts, shown};
use crate::scrape::scrape;

#[test]
fn families_of_controllers_are_those_of_the_table() {
    let metrics = ControllersMetrics::new();
    metrics.resource_claims.created(true, false);
    metrics.resource_claims.count_claims(|| vec![(ClaimSeries::new(true, false, "extended_resource"), 3)]);
    metrics.work_queues.observe("resource_claim", || WorkQueueNumbers {
        depth: 1,
        adds: 2,
        retries: 3,
        unfinished: Duration::from_millis(4500),
        longest: Duration::from_millis(2500),
    });
    metrics.panics.caught();
    metrics.panics.part_begins("resourceclaim-controller");
    metrics.panics.part_panicked("resourceclaim-controller");
    metrics.panics.part_begins("watch");
    metrics.events.ended(EventOutcome::Written);
    metrics.leader_election.leads("resourceclaim-controller", true);
    metrics.watches.fails("resourceclaim-controller", "pods", false);
    metrics.watches.fails("resourceclaim-controller", "resourceclaims", true);
    metrics.device_taint_evictions.deleted(Duration::from_millis(20));
    let durations = metrics.work_queues.durations("resource_claim");
    durations.taken(Duration::from_millis(1));
    durations.worked(Duration::from_millis(2));

    let text = metrics.encode(Format::Classic);
    let families = scrape(&text, Format::Classic).families;
    let shown: BTreeMap<String, Facts> = families.iter().map(|family| (family.name.clone(), shown(family))).collect();
    assert_eq!(shown, facts(include_str!("controllers.txt")));
    for family in families.iter().filter(|family| !family.name.starts_with("podwright_")) {
        assert!(family.help.starts_with("[ALPHA] ") && family.help.ends_with('.'), "{}", family.help);
    }
    for expected in [
        "device_taint_eviction_controller_pod_deletions_total 1\n",
        "device_taint_eviction_controller_pod_deletion_duration_seconds_bucket{le=\"0.025\"} 1\n",
        "leader_election_master_status{name=\"resourceclaim-controller\"} 1\n",
        "podwright_hook_panics_total 2\n",
        "podwright_part_panics_total{part=\"resourceclaim-controller\"} 1\n",
        "podwright_part_panics_total{part=\"watch\"} 0\n",
        "podwright_watch_failing{controller=\"resourceclaim-controller\",resource=\"pods\"} 0\n",
        "podwright_watch_failing{controller=\"resourceclaim-controller\",resource=\"resourceclaims\"} 1\n",
        "resourceclaim_controller_creates_total{admin_access=\"false\",status=\"success\"} 1\n",
        "resourceclaim_controller_resource_claims{admin_access=\"false\",allocated=\"true\",source=\"extended_resource\"} 3\n",
        "workqueue_depth{name=\"resource_claim\"} 1\n",
        "workqueue_adds_total{name=\"resource_claim\"} 2\n",
        "workqueue_retries_total{name=\"resource_claim\"} 3\n",
        "workqueue_unfinished_work_seconds{name=\"resource_claim\"} 4.5\n",
        "workqueue_longest_running_processor_seconds{name=\"resource_claim\"} 2.5\n",
        "workqueue_queue_duration_seconds_bucket{name=\"resource_claim\",le=\"9.999999999999999e-06\"} 0\n",
        "workqueue_queue_duration_seconds_bucket{name=\"resource_claim\",le=\"0.001\"} 1\n",
        "workqueue_work_duration_seconds_sum{name=\"resource_claim\"} 0.002\n",
    ] {
        assert!(text.contains(expected), "no\n{expected}in\n{text}");
    }
    scrape(&metrics.encode(Format::OpenMetrics), Format::OpenMetrics);
}
