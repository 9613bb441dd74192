//! Chooses the pods that the node stops to make room for a critical pod.

use std::sync::Arc;

use super::capacity::Shortage;
use super::requests::{CPU, MEMORY, Requests};
use crate::config::pod_resources::qos_class;
use crate::pod::PodObject;

/// A pod that may be preempted, with its requests.
#[derive(Clone)]
struct Candidate {
    pod: Arc<PodObject>,
    requests: Requests,
}

/// The resources that the critical pod still lacks, with their amounts.
type Missing = Vec<(String, i64)>;

/// Chooses the pods that are stopped so that `pod` can start: as few as possible, best-effort pods before burstable and those
/// before guaranteed ones, and among equal pods the one with the smallest requests (upstream `getPodsToPreempt`, kubelet 1.36).
///
/// `candidates` are the pods that use the node. Only those that `pod` may preempt are chosen.
///
/// # Errors
/// The resources that remain short if all candidates are stopped, with the missing amounts.
pub(crate) fn choose_victims(
    pod: &PodObject,
    candidates: &[Arc<PodObject>],
    shortages: &[Shortage],
) -> Result<Vec<Arc<PodObject>>, Vec<(String, i64)>> {
    let missing: Missing = shortages.iter().map(|short| (short.resource.clone(), short.missing())).collect();
    let candidates = candidates.iter().filter(|other| may_preempt(pod, other));
    let candidates = candidates.map(|pod| Candidate { pod: pod.clone(), requests: Requests::of(pod) });
    let (mut best_effort, mut burstable, mut guaranteed) = (Vec::new(), Vec::new(), Vec::new());
    for candidate in candidates {
        match qos_class(&candidate.pod).as_str() {
            "Guaranteed" => guaranteed.push(candidate),
            "Burstable" => burstable.push(candidate),
            _ => best_effort.push(candidate),
        }
    }
    let left = without(&missing, best_effort.iter().chain(&burstable).chain(&guaranteed));
    if !left.is_empty() {
        return Err(left);
    }
    // Each class gives only what all pods of the lower classes and the chosen pods of the higher classes cannot give.
    let needed = without(&missing, best_effort.iter().chain(&burstable));
    let guaranteed = nearest(guaranteed, needed);
    let needed = without(&missing, best_effort.iter().chain(&guaranteed));
    let burstable = nearest(burstable, needed);
    let needed = without(&missing, burstable.iter().chain(&guaranteed));
    let best_effort = nearest(best_effort, needed);
    Ok([best_effort, burstable, guaranteed].into_iter().flatten().map(|candidate| candidate.pod).collect())
}

/// Whether `pod` may preempt `other`. A critical pod may preempt every pod that is not critical. Otherwise a pod may preempt a pod of
/// lower priority. Only a critical pod may preempt a pod without a priority (upstream `Preemptable`, kubelet 1.36).
fn may_preempt(pod: &PodObject, other: &PodObject) -> bool {
    (pod.is_critical() && !other.is_critical())
        || matches!((pod.spec().priority, other.spec().priority), (Some(own), Some(other)) if own > other)
}

/// Takes the pods that together give what is missing: in each round the one whose requests come nearest to it.
fn nearest(mut candidates: Vec<Candidate>, mut missing: Missing) -> Vec<Candidate> {
    let mut chosen = Vec::new();
    while !missing.is_empty() {
        let mut best: Option<(usize, f64)> = None;
        for (index, candidate) in candidates.iter().enumerate() {
            let distance = distance(&missing, &candidate.requests);
            let is_better = best.is_none_or(|(best, least)| {
                let is_smaller = || !is_larger(&candidate.requests, &candidates[best].requests);
                distance < least || (distance == least && is_smaller())
            });
            if is_better {
                best = Some((index, distance));
            }
        }
        // The caller has checked that all candidates together suffice.
        let Some((index, _)) = best else { break };
        let candidate = candidates.swap_remove(index);
        missing = without(&missing, [&candidate].into_iter());
        chosen.push(candidate);
    }
    chosen
}

/// The resources that are still missing after some pods have stopped.
fn without<'a>(missing: &Missing, pods: impl Iterator<Item = &'a Candidate> + Clone) -> Missing {
    let left = missing.iter().map(|(resource, amount)| {
        let given = pods.clone().fold(0i64, |sum, pod| sum.saturating_add(pod.requests.get(resource)));
        (resource.clone(), amount.saturating_sub(given))
    });
    left.filter(|(_, amount)| *amount > 0).collect()
}

/// How far requests are from what is missing: the sum of the squares of the fractions that stay missing.
fn distance(missing: &Missing, requests: &Requests) -> f64 {
    let fraction = |(resource, amount): &(String, i64)| {
        let left = amount.saturating_sub(requests.get(resource));
        if left > 0 { (left as f64 / *amount as f64).powi(2) } else { 0.0 }
    };
    missing.iter().map(fraction).sum()
}

/// Whether a pod requests more than another one. Memory counts before CPU.
fn is_larger(own: &Requests, other: &Requests) -> bool {
    let of = |requests: &Requests| (requests.get(MEMORY), requests.get(CPU));
    of(own) > of(other)
}

#[cfg(test)]
mod tests;
