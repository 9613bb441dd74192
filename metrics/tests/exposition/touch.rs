//! One use of everything that can be counted.

use std::time::Duration;

use podwright_metrics::{
    BySource, CgroupOperation, ClaimOperation, ClaimsInUse, ContainerType, EventOutcome, EvictionSignal, Metrics,
    NodeApiLimit, NodeApiResource, OldestPhases, OperationType, PodResourcesMethod, ProbeType, ProbedContainer,
    PullCheck, RetryTrigger, RunningContainers, RuntimeOperation, SliceWrite, StreamSubresource, WorkQueueNumbers,
    WorkingPods,
};

/// Calls every method at least once.
pub(crate) fn touch_everything(metrics: &Metrics) {
    const TOOK: Duration = Duration::from_millis(30);

    let actor = metrics.actors.of("pod_worker");
    actor.received();
    actor.refused();
    actor.handled(TOOK);
    metrics.actors.hook_panicked();
    metrics.actors.panics().part_begins("status_writer");
    metrics.actors.panics().part_panicked("status_writer");
    metrics.actors.worker_rebuilt();

    metrics.admission.rejected("OutOfcpu");
    metrics.admission.evicted(EvictionSignal::MemoryAvailable);
    metrics.admission.eviction_stats_age(EvictionSignal::MemoryAvailable, TOOK);
    metrics.admission.preempted("cpu");

    for subresource in StreamSubresource::ALL {
        metrics.streaming.websocket_request(subresource);
    }
    for resource in NodeApiResource::ALL {
        for limit in NodeApiLimit::ALL {
            metrics.node_api.refused(resource, limit);
        }
    }

    metrics.certificates.client_ttl(3600.0);
    metrics.certificates.server_ttl(f64::INFINITY);
    metrics.certificates.client_request_failed();
    metrics.certificates.server_request_failed();
    metrics.certificates.server_rotated(TOOK);

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

    let probed = |pod: &str| ProbedContainer {
        probe: ProbeType::Readiness,
        container: "main".into(),
        pod: pod.into(),
        workload: pod.into(),
        namespace: "default".into(),
        pod_uid: "u".into(),
    };
    metrics.probes.passed(&probed("web"), TOOK);
    metrics.probes.failed(&probed("web"));
    metrics.probes.failed(&probed("gone"));
    metrics.probes.ended(&probed("gone"));

    metrics.dra.operated(ClaimOperation::Prepare, TOOK, true);
    metrics.dra.called("gpu.example.com", "/v1.DRAPlugin/NodePrepareResources", "OK", TOOK);
    metrics.dra.count_claims_in_use(|| ClaimsInUse { all: 1, by_driver: [("gpu.example.com".into(), 1)].into() });
    metrics.slices.wrote(SliceWrite::Create);
    metrics.slices.wiped(true);
    metrics.slices.received(true);
    metrics.work_queues.observe("node_resource_slices", || WorkQueueNumbers { adds: 1, ..WorkQueueNumbers::default() });
    let queue = metrics.work_queues.durations("node_resource_slices");
    queue.taken(TOOK);
    queue.worked(TOOK);
    metrics.plugins.set("/plugins_registry/gpu.sock", true, true);
    for method in [PodResourcesMethod::List, PodResourcesMethod::Get, PodResourcesMethod::GetAllocatable] {
        metrics.pod_resources.answered(method, false);
    }

    metrics.events.ended(EventOutcome::Written);

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

    metrics.image_credentials.checked(PullCheck::RecordFound);
    metrics.image_credentials.plugin_called(&"ecr".into(), TOOK, false);
    metrics.image_credentials.configured("sha256:1");

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

    metrics.resize.requested("cpu", "limits", "increase");
    metrics.resize.applied(TOOK, true);
    metrics.resize.set_current(1, 1, 1);
    metrics.resize.infeasible("static_pod");
    metrics.resize.deferred_accepted(RetryTrigger::PeriodicRetry);
}
