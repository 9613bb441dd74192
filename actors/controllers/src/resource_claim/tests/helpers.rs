//! Names, ownership, reservations and keys.

use proptest::prelude::*;

use super::*;
use crate::resource_claim::memory::Uids;
use crate::resource_claim::names::{NameError, Named, generate_name};
use crate::resource_claim::ownership::{
    BindTarget, BindTargetError, belongs_to_group, belongs_to_pod, bind_target, is_reserved_for_pod,
};

/// CLAIM-S46, CLAIM-S47: a generated claim belongs to its pod, or to the group of the pod.
#[test]
fn claims_belong_to_their_owners() {
    let (p, q) = (pod("p", &[]), pod("q", &[]));
    let (g, h) = (group("g", &[]), group("h", &[]));
    let member = in_group(p.clone(), "g");
    let own = generated("c", &pod_owner(&p));
    assert_eq!(belongs_to_pod(&own, &p, Features::default()), Ok(()));
    for foreign in [generated("c", &pod_owner(&q)), claim("c"), generated("c", &group_owner(&g))] {
        for features in [Features::default(), GROUPS] {
            let error = belongs_to_pod(&foreign, &p, features).unwrap_err().to_string();
            assert_eq!(error, "ResourceClaim shop/c was not created for Pod shop/p");
        }
    }
    let of_group = generated("c", &group_owner(&g));
    assert_eq!(belongs_to_pod(&of_group, &member, GROUPS), Ok(()));
    assert!(belongs_to_pod(&of_group, &member, Features::default()).is_err());
    let error = belongs_to_pod(&generated("c", &group_owner(&h)), &member, GROUPS).unwrap_err();
    assert!(error.to_string().ends_with("or its PodGroup g"), "{error}");
    assert_eq!(belongs_to_group(&of_group, &g), Ok(()));
    assert!(belongs_to_group(&of_group, &h).is_err());
    assert!(belongs_to_group(&claim("c"), &g).is_err());
}

/// CLAIM-S48: a claim is reserved by UID, or for the group by name.
#[test]
fn reservations_are_found() {
    let p = in_group(pod("p", &[]), "g");
    let of = |consumers: &[ResourceClaimConsumerReference], features| {
        is_reserved_for_pod(&reserved(claim("c"), consumers), &p, features)
    };
    let (own, other) = (consumer(&p), consumer(&pod("q", &[])));
    let of_group = group_owner(&group("g", &[])).consumer();
    assert!(!of(&[], GROUPS));
    assert!(of(std::slice::from_ref(&own), GROUPS));
    assert!(!of(std::slice::from_ref(&other), GROUPS));
    assert!(of(&[other, own], GROUPS));
    assert!(of(std::slice::from_ref(&of_group), GROUPS));
    assert!(!of(std::slice::from_ref(&of_group), Features::default()));
}

/// CLAIM-S49: names are direct, recorded, not created, not needed or unsupported, for pods and groups.
#[test]
fn claims_have_names() {
    let name = |owner: Owner| owner.claims()[0].named(&owner.statuses());
    let named = |name: &str, is_generated| Ok(Named::Claim { name: name.to_owned(), is_generated });
    let not_created = Err(NameError::NotCreated("res".to_owned()));
    let p = pod("p", &[("res", "tpl")]);
    let g = group("g", &[("res", "tpl")]);
    assert_eq!(name(pod_owner(&pod_with_claim("p", "c"))), named("c", false));
    assert_eq!(name(pod_owner(&recorded(p.clone(), &[("res", Some("c"))]))), named("c", true));
    assert_eq!(name(pod_owner(&recorded(p.clone(), &[("res", None)]))), Ok(Named::NotNeeded));
    assert_eq!(name(pod_owner(&recorded(p.clone(), &[("other", Some("c"))]))), not_created);
    assert_eq!(name(group_owner(&group_recorded(g.clone(), "res", "c"))), named("c", true));
    assert_eq!(name(group_owner(&group_recorded(g, "other", "c"))), not_created);
    let mut unsupported = p;
    unsupported.spec.get_or_insert_default().resource_claims.get_or_insert_default()[0].resource_claim_template_name =
        None;
    assert_eq!(name(pod_owner(&unsupported)), Err(NameError::Unsupported("res".to_owned())));
}

/// CLAIM-S50: a claim that the group has too is bound to the group.
#[test]
fn bind_targets_follow_the_group() {
    let p = in_group(pod("p", &[("res", "tpl")]), "g");
    let entry = &pod_owner(&p).claims()[0];
    let target = |group: &PodGroup| bind_target(&p, Some(group), entry, GROUPS);
    assert_eq!(bind_target(&p, None, entry, Features::default()), Ok(BindTarget::Pod));
    assert_eq!(bind_target(&pod("p", &[]), None, entry, GROUPS), Ok(BindTarget::Pod));
    let by_name = pod_owner(&pod_with_claim("p", "c")).claims();
    assert_eq!(bind_target(&pod("p", &[]), None, &by_name[0], GROUPS), Ok(BindTarget::Pod));
    assert_eq!(target(&group("g", &[("res", "tpl")])), Ok(BindTarget::PodGroup));
    assert_eq!(target(&group("g", &[("res", "tpl-2")])), Ok(BindTarget::Pod));
    let mut with_name = group("g", &[("res", "")]);
    let claims = with_name.spec.resource_claims.get_or_insert_default();
    (claims[0].resource_claim_template_name, claims[0].resource_claim_name) = (None, Some("c".to_owned()));
    assert_eq!(bind_target(&p, Some(&with_name), &by_name[0], GROUPS), Ok(BindTarget::PodGroup));
    claims_unsupported(&mut with_name);
    assert!(matches!(target(&with_name), Err(BindTargetError::Name(NameError::Unsupported(_)))));
    assert!(matches!(target(&group("h", &[])), Err(BindTargetError::WrongGroup { .. })));
    let mut elsewhere = group("g", &[]);
    elsewhere.metadata.namespace = Some("other".to_owned());
    assert!(matches!(target(&elsewhere), Err(BindTargetError::WrongGroup { .. })));
    let mut unsupported = entry.clone();
    unsupported.template = None;
    assert!(bind_target(&p, Some(&group("g", &[])), &unsupported, GROUPS).is_err());
}

fn claims_unsupported(group: &mut PodGroup) {
    group.spec.resource_claims.get_or_insert_default()[0].resource_claim_name = None;
}

#[test]
fn keys_are_text() {
    for text in ["pod:shop/p", "claim:shop/c", "podgroup:shop/g"] {
        assert_eq!(text.parse::<Key>().unwrap().to_string(), text);
    }
    for text in ["job:shop/p", "pod:p", "pod:shop/", "pod:/p", "pod:a/b/c", "shop/p", ""] {
        assert!(text.parse::<Key>().is_err(), "{text}");
    }
}

#[test]
fn five_hundred_uids_are_remembered() {
    let mut uids = Uids::default();
    uids.insert("first");
    uids.insert("second");
    (0..498).for_each(|number| uids.insert(&number.to_string()));
    assert!(uids.contains("first"), "this counts as a use");
    uids.insert("last");
    assert!(uids.contains("first") && !uids.contains("second"));
}

#[test]
fn names_are_cut_in_proportion() {
    assert_eq!(generate_name("my-pod", "resource-1a"), "my-pod-resource-1a-");
    let base = generate_name(&"p".repeat(253), "res");
    assert_eq!(base, format!("{}--", "p".repeat(55)));
    assert_eq!(generate_name("p", &"c".repeat(63)), format!("p-{}-", "c".repeat(54)));
    let cut = generate_name(&format!("{}.bbb", "p".repeat(26)), &"c".repeat(30));
    assert_eq!(cut, format!("{}-{}-", "p".repeat(26), "c".repeat(27)), "a part does not end in a dot");
}

proptest! {
    #![proptest_config(podwright_random::cases(256))]

    #[test]
    fn base_of_a_name_is_valid(owner in "[a-z0-9]([a-z0-9.]{0,251}[a-z0-9])?", claim in "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?") {
        let base = generate_name(&owner, &claim);
        prop_assert!(base.len() <= 58 && base.ends_with('-'), "{base}");
        prop_assert!(base.starts_with(|c: char| c.is_ascii_alphanumeric()), "{base}");
        prop_assert!(!base.contains(".-"), "{base}");
    }
}
