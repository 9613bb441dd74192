//! The deletions of one leader and of all leaders, for the limit of the rule.

use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::super::super::limit::CountedEvictions;
use super::super::*;
use super::laws::{Law, holds};

/// What a leader must count for the limit of the rule. Each leader begins with nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct LimitCounts {
    /// The largest number of an earlier leader that a watch has shown.
    earlier: u64,
    /// The largest number that this leader has written.
    written: u64,
    /// The number of deletions of each pod that the server may have performed.
    deletions: BTreeMap<PodId, u8>,
}

impl LimitCounts {
    /// A watch shows the rule. Returns whether its number is from an earlier leader: it is larger than each number of this leader.
    pub(super) fn shown(&mut self, rule: &DeviceTaintRule) -> bool {
        let counted = counted(rule.status.iter().flat_map(|status| status.conditions.iter().flatten()));
        let is_earlier = counted > self.written;
        if is_earlier {
            self.earlier = self.earlier.max(counted);
        }
        is_earlier
    }

    /// A call of the leader begins. The leader begins no deletion of another pod if its deletions and those of earlier leaders, as far as
    /// it knows them, have reached the limit.
    pub(super) fn begun(&mut self, request: &Request, limit: Option<u64>) -> Law {
        match request {
            Request::ApplyRuleStatus(write) => self.written = self.written.max(counted(&write.conditions)),
            Request::DeletePod(pod) => {
                let deletions = self.deletions.entry(pod.clone()).or_default();
                *deletions += 1;
                let is_first = *deletions == 1;
                let count = self.earlier + self.deletions.len() as u64;
                return holds(!is_first || limit.is_none_or(|limit| count <= limit), || {
                    format!("{:?} is deleted beyond the limit {limit:?}: {self:?}", pod.uid)
                });
            }
            Request::GetPod(_) | Request::PatchPodStatus(_) => {}
        }
        Ok(())
    }

    /// The server has certainly not performed a deletion.
    pub(super) fn refused(&mut self, pod: &PodId) {
        if let Some(deletions) = self.deletions.get_mut(pod) {
            *deletions -= 1;
            if *deletions == 0 {
                self.deletions.remove(pod);
            }
        }
    }
}

/// The number of evictions in the condition of the limit.
fn counted<'a>(conditions: impl IntoIterator<Item = &'a Condition>) -> u64 {
    let limit = conditions.into_iter().find(|condition| condition.type_ == LIMIT_CONDITION);
    limit.and_then(|limit| CountedEvictions::read(&limit.message)).map_or(0, CountedEvictions::all)
}

/// The leaders have deleted no more pods than the limit permits, all together, also by writes that the server has performed late.
pub(super) fn is_within_limit(deleted: &[PodId], limit: Option<u64>) -> Law {
    holds(limit.is_none_or(|limit| deleted.len() as u64 <= limit), || {
        format!("{BEYOND_LIMIT}: {} pods were deleted, and the limit is {limit:?}", deleted.len())
    })
}

/// The beginning of the text of this law.
pub(super) const BEYOND_LIMIT: &str = "all leaders together exceed the limit";

/// Removes the condition of the limit.
pub(super) fn remove_limit(rule: &mut DeviceTaintRule) {
    let conditions = rule.status.as_mut().and_then(|status| status.conditions.as_mut());
    conditions.into_iter().for_each(|conditions| conditions.retain(|condition| condition.type_ != LIMIT_CONDITION));
}
