//! The numbers of claims for metrics.

use super::*;
use crate::resource_claim::api::EXTENDED_RESOURCE_ANNOTATION;
use crate::resource_claim::counts::{ClaimLabels, has_admin_access};

fn counts(cluster: &Cluster) -> Vec<String> {
    let counts = cluster.core.claim_counts();
    let distinct: std::collections::BTreeSet<ClaimLabels> = counts.iter().map(|(labels, _)| *labels).collect();
    assert_eq!(distinct.len(), 12, "each combination is always reported");
    let some = counts.into_iter().filter(|(_, count)| *count > 0);
    let text = |(labels, count): (ClaimLabels, u64)| {
        format!("{},{},{:?}: {count}", labels.allocated, labels.admin_access, labels.source.as_str())
    };
    some.map(text).collect()
}

/// CLAIM-S43, CLAIM-S44: the numbers follow the claims.
#[test]
fn numbers_follow_the_claims() {
    let mut by_template = generated("t", &pod_owner(&pod("p", &[])));
    by_template.spec.devices = Some(requests(Some(true)));
    let mut extended = generated("x", &pod_owner(&pod("p", &[])));
    let annotation = (EXTENDED_RESOURCE_ANNOTATION.to_owned(), "true".to_owned());
    extended.metadata.annotations.get_or_insert_default().extend([annotation]);
    for (object, labels) in [
        (claim("c"), r#"false,"""#),
        (by_template, r#"true,"resource_claim_template""#),
        (extended, r#"false,"extended_resource""#),
    ] {
        let mut cluster = Cluster::new(Features::default());
        assert!(counts(&cluster).is_empty());
        for (next, is_allocated) in [
            (object.clone(), false),
            (object.clone(), false),
            (allocated(object.clone()), true),
            (object.clone(), false),
        ] {
            cluster.put(next);
            assert_eq!(counts(&cluster), [format!("{is_allocated},{labels}: 1")]);
        }
        cluster.remove(object);
        assert!(counts(&cluster).is_empty());
    }
}

/// CLAIM-S45: only a request with admin access counts.
#[test]
fn admin_access_is_that_of_exact_requests() {
    let mut claim = claim("c");
    assert!(!has_admin_access(&claim.spec));
    for (devices, expected) in
        [(requests(None), false), (requests(Some(false)), false), (requests(Some(true)), true), (prioritized(), false)]
    {
        claim.spec.devices = Some(devices);
        assert_eq!(has_admin_access(&claim.spec), expected);
    }
}
