//! The text of `/metrics/resource`. Pure.
//!
//! Names, types, labels and help texts are those of a kubelet (`pkg/kubelet/metrics/collectors/resource_metrics.go`, 1.36).

use std::fmt::Write;

use super::fields::{ResourceUsage, Summary};

/// A series: its labels, its value, and the time of the measurement in milliseconds since the epoch.
type Series = (String, f64, Option<i64>);

/// The metrics. Without a summary, they report an error only.
pub(super) fn text(summary: Option<&Summary>) -> String {
    let mut text = String::new();
    if let Some(summary) = summary {
        families(&mut text, summary);
    }
    let error = if summary.is_some() { 0.0 } else { 1.0 };
    let help = "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise";
    family(&mut text, "resource_scrape_error", "gauge", help, vec![(String::new(), error, None)]);
    text
}

fn families(text: &mut String, summary: &Summary) {
    let (mut container_cpu, mut container_memory, mut container_swap) = (vec![], vec![], vec![]);
    let (mut starts, mut swap_limits) = (vec![], vec![]);
    let (mut pod_cpu, mut pod_memory, mut pod_swap) = (vec![], vec![], vec![]);
    for pod in &summary.pods {
        let of_pod = format!("namespace=\"{}\",pod=\"{}\"", pod.pod_ref.namespace, pod.pod_ref.name);
        for container in &pod.containers {
            let labels = format!("{{container=\"{}\",{of_pod}}}", container.name);
            starts.push((labels.clone(), container.started, None));
            if let Some(swap) = &container.used.swap
                && let Some(available) = swap.swap_available_bytes
            {
                let limit = available.saturating_add(swap.swap_usage_bytes);
                swap_limits.push((labels.clone(), limit as f64, Some(swap.at)));
            }
            add(&container.used, &labels, &mut container_cpu, &mut container_memory, &mut container_swap);
        }
        add(&pod.used, &format!("{{{of_pod}}}"), &mut pod_cpu, &mut pod_memory, &mut pod_swap);
    }
    let (mut node_cpu, mut node_memory, mut node_swap) = (vec![], vec![], vec![]);
    add(&summary.node.used, "", &mut node_cpu, &mut node_memory, &mut node_swap);
    for (of, cpu, memory, swap) in [
        ("container", container_cpu, container_memory, container_swap),
        ("node", node_cpu, node_memory, node_swap),
        ("pod", pod_cpu, pod_memory, pod_swap),
    ] {
        let help = format!("[STABLE] Cumulative cpu time consumed by the {of} in core-seconds");
        family(text, &format!("{of}_cpu_usage_seconds_total"), "counter", &help, cpu);
        let help = format!("[STABLE] Current working set of the {of} in bytes");
        family(text, &format!("{of}_memory_working_set_bytes"), "gauge", &help, memory);
        let help = match of {
            "container" => {
                "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems"
            }
            "pod" => "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems",
            _ => "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems",
        };
        family(text, &format!("{of}_swap_usage_bytes"), "gauge", help, swap);
    }
    let help = "[ALPHA] Current amount of the container swap limit in bytes. Reported only on non-windows systems";
    family(text, "container_swap_limit_bytes", "gauge", help, swap_limits);
    let help = "[STABLE] Start time of the container since unix epoch in seconds";
    family(text, "container_start_time_seconds", "gauge", help, starts);
}

fn add(used: &ResourceUsage, labels: &str, cpu: &mut Vec<Series>, memory: &mut Vec<Series>, swap: &mut Vec<Series>) {
    if let Some(found) = &used.cpu
        && let Some(nanos) = found.usage_core_nano_seconds
    {
        cpu.push((labels.to_owned(), nanos as f64 / 1e9, Some(found.at)));
    }
    if let Some(found) = &used.memory
        && let Some(bytes) = found.working_set_bytes
    {
        memory.push((labels.to_owned(), bytes as f64, Some(found.at)));
    }
    if let Some(found) = &used.swap {
        swap.push((labels.to_owned(), found.swap_usage_bytes as f64, Some(found.at)));
    }
}

/// Appends a family. A family without series is left out.
fn family(text: &mut String, name: &str, kind: &str, help: &str, series: Vec<Series>) {
    if series.is_empty() {
        return;
    }
    let mut line = |line: String| {
        text.push_str(&line);
        text.push('\n');
    };
    line(format!("# HELP {name} {help}"));
    line(format!("# TYPE {name} {kind}"));
    for (labels, value, at) in series {
        let mut found = format!("{name}{labels} {value}");
        if let Some(at) = at {
            write!(found, " {at}").expect("a string takes any text");
        }
        line(found);
    }
}

#[cfg(test)]
mod tests {
    use super::super::assembly::tests::{pod, used};
    use super::*;
    use podwright_host::stats::{MemoryUsage, RuntimeUsage};

    #[test]
    fn containers_and_pods_have_the_metrics_of_a_kubelet() {
        let memory = MemoryUsage { working_set: Some(4096), ..MemoryUsage::default() };
        let summary = |memory| {
            let containers = vec![used("main", 1_500_000_000, memory)];
            Summary { pods: vec![pod(&RuntimeUsage { containers, ..RuntimeUsage::default() })], ..Summary::default() }
        };
        let found = text(Some(&summary(memory)));
        for line in [
            "# TYPE container_cpu_usage_seconds_total counter",
            "container_cpu_usage_seconds_total{container=\"main\",namespace=\"shop\",pod=\"web\"} 1.5 10000",
            "container_memory_working_set_bytes{container=\"main\",namespace=\"shop\",pod=\"web\"} 4096 10000",
            "container_start_time_seconds{container=\"main\",namespace=\"shop\",pod=\"web\"} 7",
            "pod_cpu_usage_seconds_total{namespace=\"shop\",pod=\"web\"} 1.5 10000",
            "pod_memory_working_set_bytes{namespace=\"shop\",pod=\"web\"} 4096 10000",
            "resource_scrape_error 0",
        ] {
            assert!(found.lines().any(|found| found == line), "{line} is missing in\n{found}");
        }
        assert!(!found.contains("swap"), "a family without series is left out");
        let swapped = text(Some(&summary(MemoryUsage { swap: Some(30), swap_available: Some(70), ..memory })));
        for line in [
            "container_swap_usage_bytes{container=\"main\",namespace=\"shop\",pod=\"web\"} 30 10000",
            "container_swap_limit_bytes{container=\"main\",namespace=\"shop\",pod=\"web\"} 100 10000",
            "pod_swap_usage_bytes{namespace=\"shop\",pod=\"web\"} 30 10000",
        ] {
            assert!(swapped.lines().any(|found| found == line), "{line} is missing in\n{swapped}");
        }
        let unlimited = text(Some(&summary(MemoryUsage { swap: Some(30), ..memory })));
        assert!(unlimited.contains("container_swap_usage_bytes") && !unlimited.contains("limit"), "{unlimited}");
        assert!(text(None).ends_with("resource_scrape_error 1\n"));
    }
}
