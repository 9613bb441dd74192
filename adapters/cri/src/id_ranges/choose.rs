//! Chooses the range of IDs of a pod among those that nobody else has. Pure.
//!
//! Subordinate IDs (`subuid(5)`, `subgid(5)`) belong to users of the machine, for example for rootless containers. A kubelet takes its
//! ranges from those of the user `kubelet`, if that user has any (`kubeletMappings`, `pkg/kubelet/kubelet_pods.go`, kubelet 1.36).

use crate::config::HostIdRange;

/// The user whose subordinate IDs are for pods.
const KUBELET: &str = "kubelet";
/// The numbers of the ranges that pods can get: all ranges of 32-bit IDs except the first, which has the node's own IDs, and the
/// last, which contains the reserved ID 4294967295.
const RANGES: std::ops::Range<u32> = 1..65_535;

/// IDs of the node from `first` up to `end`, without `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IdSpan {
    first: u64,
    end: u64,
}

impl IdSpan {
    /// A number of IDs.
    pub(super) fn new(first: u32, length: u32) -> Self {
        IdSpan { first: first.into(), end: u64::from(first) + u64::from(length) }
    }

    fn overlaps(self, other: IdSpan) -> bool {
        self.first < other.end && other.first < self.end
    }

    fn contains(self, other: IdSpan) -> bool {
        self.first <= other.first && other.end <= self.end
    }
}

impl From<HostIdRange> for IdSpan {
    fn from(ids: HostIdRange) -> Self {
        IdSpan::new(ids.first, HostIdRange::LENGTH)
    }
}

/// The subordinate IDs in one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SubordinateIds {
    kubelet: Vec<IdSpan>,
    others: Vec<IdSpan>,
}

impl SubordinateIds {
    /// Reads `USER:FIRST:COUNT` from each line. Lines of another form have no effect, as for the programs that use the file.
    pub(super) fn parse(text: &str) -> Self {
        let mut found = SubordinateIds::default();
        for line in text.lines() {
            let mut fields = line.trim().split(':');
            let user = fields.next().unwrap_or_default();
            let mut number = || fields.next()?.parse::<u32>().ok();
            if let (Some(first), Some(count @ 1..)) = (number(), number()) {
                let spans = if user == KUBELET { &mut found.kubelet } else { &mut found.others };
                spans.push(IdSpan::new(first, count));
            }
        }
        found
    }

    fn permits(&self, ids: IdSpan, only_of_kubelet: bool) -> bool {
        let is_of_kubelet = || self.kubelet.iter().any(|own| own.contains(ids));
        !self.others.iter().any(|other| other.overlaps(ids)) && (!only_of_kubelet || is_of_kubelet())
    }
}

/// The first range that no pod has and that is not for a user of the machine. A pod has the same range of users and of groups. If the user
/// `kubelet` has subordinate IDs, only these are for pods.
pub(super) fn choose(taken: &[IdSpan], users: &SubordinateIds, groups: &SubordinateIds) -> Option<HostIdRange> {
    let only_of_kubelet = !users.kubelet.is_empty() || !groups.kubelet.is_empty();
    RANGES.map(|range| HostIdRange { first: range * HostIdRange::LENGTH }).find(|ids| {
        let ids = IdSpan::from(*ids);
        users.permits(ids, only_of_kubelet)
            && groups.permits(ids, only_of_kubelet)
            && !taken.iter().any(|other| other.overlaps(ids))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(taken: &[(u32, u32)], users: &str, groups: &str) -> Option<u32> {
        let taken: Vec<IdSpan> = taken.iter().map(|(first, length)| IdSpan::new(*first, *length)).collect();
        let ids = choose(&taken, &SubordinateIds::parse(users), &SubordinateIds::parse(groups))?;
        assert_eq!(ids.first % HostIdRange::LENGTH, 0);
        Some(ids.first / HostIdRange::LENGTH)
    }

    #[test]
    fn the_first_range_that_nobody_has_is_chosen() {
        const ONE: u32 = HostIdRange::LENGTH;
        for (taken, users, groups, expected) in [
            (&[][..], "", "", Some(1)),
            (&[(ONE, ONE), (3 * ONE, ONE)], "", "", Some(2)),
            (&[(ONE, 3 * ONE)], "", "", Some(4)),
            // The range of a person begins in the middle of one range and ends in the next one.
            (&[], "eve:100000:65536\n", "eve:100000:65536\n", Some(3)),
            (&[], "", "eve:100000:65536", Some(3)),
            (&[], "1000:65536:1", "", Some(2)),
            (&[(ONE, ONE)], "eve:231072:1\n# a comment\neve:x:1\neve:65536:0\n\neve\n", "", Some(2)),
            (&[], "kubelet:655360:131072\n", "kubelet:655360:131072\n", Some(10)),
            (&[(10 * ONE, ONE)], "kubelet:655360:131072\n", "kubelet:655360:131072\n", Some(11)),
            (&[(10 * ONE, 2 * ONE)], "kubelet:655360:131072\n", "kubelet:655360:131072\n", None),
            // The IDs of users and of groups differ.
            (&[], "kubelet:655360:131072\n", "", None),
            (&[], "kubelet:655360:131072\n", "kubelet:720896:131072\n", Some(11)),
            (&[], "kubelet:655360:131072\neve:655360:10\n", "kubelet:655360:131072\n", Some(11)),
            (&[], "eve:65536:4294901760\n", "", None),
        ] {
            assert_eq!(chosen(taken, users, groups), expected, "{taken:?} {users:?} {groups:?}");
        }
    }

    #[test]
    fn the_last_range_is_no_range_of_a_pod() {
        let all_but_the_last = u32::MAX - 2 * HostIdRange::LENGTH + 1;
        assert_eq!(chosen(&[(0, all_but_the_last)], "", ""), Some(65_534));
        assert_eq!(chosen(&[(0, all_but_the_last), (65_534 * HostIdRange::LENGTH, 1)], "", ""), None);
    }
}
