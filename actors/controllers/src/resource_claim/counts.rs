//! The numbers of claims for `resourceclaim_controller_resource_claims`.

use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimSpec};
use podwright_metrics::ClaimSeries;

use super::api::{EXTENDED_RESOURCE_ANNOTATION, POD_CLAIM_NAME_ANNOTATION};
use super::cache::Core;
use super::ownership::is_allocated;

/// Where a claim comes from: the label `source`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ClaimSource {
    /// A user, or another tool.
    Other,
    /// A template.
    Template,
    /// The extended resources of a pod.
    ExtendedResource,
}

impl ClaimSource {
    const ALL: [ClaimSource; 3] = [ClaimSource::Other, ClaimSource::Template, ClaimSource::ExtendedResource];

    /// The value of the label.
    pub const fn as_str(self) -> &'static str {
        match self {
            ClaimSource::Other => "",
            ClaimSource::Template => "resource_claim_template",
            ClaimSource::ExtendedResource => "extended_resource",
        }
    }
}

/// The labels of a claim in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimLabels {
    /// Whether devices are allocated to the claim.
    pub allocated: bool,
    /// Whether a request has admin access.
    pub admin_access: bool,
    /// Where the claim comes from.
    pub source: ClaimSource,
}

impl ClaimLabels {
    /// The labels of a claim.
    pub fn of(claim: &ResourceClaim) -> Self {
        let annotation = |name: &str| claim.metadata.annotations.as_ref().and_then(|annotations| annotations.get(name));
        let source = if annotation(EXTENDED_RESOURCE_ANNOTATION).is_some_and(|value| value == "true") {
            ClaimSource::ExtendedResource
        } else if annotation(POD_CLAIM_NAME_ANNOTATION).is_some_and(|value| !value.is_empty()) {
            ClaimSource::Template
        } else {
            ClaimSource::Other
        };
        let admin_access = has_admin_access(&claim.spec);
        ClaimLabels { allocated: is_allocated(claim), admin_access, source }
    }

    /// The series of the gauge.
    pub const fn series(self) -> ClaimSeries {
        ClaimSeries::new(self.allocated, self.admin_access, self.source.as_str())
    }

    fn index(self) -> usize {
        usize::from(self.allocated) * 6 + usize::from(self.admin_access) * 3 + self.source as usize
    }
}

/// The number of claims for each of the twelve combinations of labels, also those without a claim.
pub type ClaimCounts = [(ClaimLabels, u64); 12];

impl Core {
    /// Counts the known claims.
    pub fn claim_counts(&self) -> ClaimCounts {
        let mut counts = std::array::from_fn(|index| {
            let source = ClaimSource::ALL[index % 3];
            (ClaimLabels { allocated: index >= 6, admin_access: index % 6 >= 3, source }, 0)
        });
        self.claims().for_each(|claim| counts[ClaimLabels::of(claim).index()].1 += 1);
        counts
    }
}

/// Whether a request of a claim has admin access.
pub fn has_admin_access(spec: &ResourceClaimSpec) -> bool {
    let requests = spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
    requests
        .into_iter()
        .any(|request| request.exactly.as_ref().is_some_and(|exactly| exactly.admin_access == Some(true)))
}
