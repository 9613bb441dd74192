use std::collections::BTreeMap;

use k8s_openapi::api::resource::v1::DeviceTaint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::resources::{InvalidPool, Owner};

const DRIVER: &str = "gpu.acme.test";

fn identity() -> Identity {
    let owner = Owner::node("n7", None).reference("u-7");
    Identity { driver: DRIVER.to_owned(), owner: Some(owner), node: Some("n7".to_owned()) }
}

fn device(name: &str) -> Device {
    Device { name: name.to_owned(), ..Device::default() }
}

/// A pool with the names of the devices of each slice.
fn pool(slices: &[&[&str]]) -> Pool {
    let slice =
        |names: &&[&str]| Slice { devices: names.iter().map(|name| device(name)).collect(), ..Slice::default() };
    Pool { slices: slices.iter().map(slice).collect(), ..Pool::default() }
}

/// What the API server has after a plan was performed.
fn after(plan: &Plan, seen: &[Arc<ResourceSlice>]) -> Vec<Arc<ResourceSlice>> {
    let mut stored: BTreeMap<String, Arc<ResourceSlice>> =
        seen.iter().map(|slice| (slice.metadata.name.clone().unwrap(), slice.clone())).collect();
    for (_, slice) in &plan.updates {
        stored.insert(slice.metadata.name.clone().unwrap(), Arc::new(slice.clone()));
    }
    for (_, slice) in &plan.creates {
        let mut slice = slice.clone();
        let name = format!("{}{}", slice.metadata.generate_name.clone().unwrap(), stored.len());
        slice.metadata.name = Some(name.clone());
        stored.insert(name, Arc::new(slice));
    }
    for slice in &plan.deletes {
        stored.remove(slice.metadata.name.as_ref().unwrap());
    }
    stored.into_values().collect()
}

fn published(pool: &Pool) -> Vec<Arc<ResourceSlice>> {
    after(&plan(&identity(), "p", Some(pool), &[]), &[])
}

/// The numbers of updates, creates and deletes, and the generation and count of the written slices.
fn summary(plan: &Plan) -> (usize, usize, usize, Option<(i64, i64)>) {
    let written = plan.updates.iter().chain(&plan.creates).map(|(_, slice)| &slice.spec.pool);
    let headers: Vec<_> = written.map(|pool| (pool.generation, pool.resource_slice_count)).collect();
    assert!(headers.windows(2).all(|pair| pair[0] == pair[1]), "{headers:?}");
    (plan.updates.len(), plan.creates.len(), plan.deletes.len(), headers.first().copied())
}

fn planned(desired: &Pool, seen: &[Arc<ResourceSlice>]) -> Plan {
    plan(&identity(), "p", Some(desired), seen)
}

/// DRA-S1
#[test]
fn empty_slice_is_created_with_its_owner() {
    let plan = planned(&pool(&[&[]]), &[]);
    assert_eq!(summary(&plan), (0, 1, 0, Some((1, 1))));
    let (_, slice) = &plan.creates[0];
    assert_eq!(slice.metadata.generate_name.as_deref(), Some("00000-gpu.acme.test-n7-"));
    let [owner] = &slice.metadata.owner_references.as_ref().unwrap()[..] else { panic!("one owner") };
    assert_eq!((owner.kind.as_str(), owner.uid.as_str(), owner.controller), ("Node", "u-7", Some(true)));
    assert_eq!(owner.block_owner_deletion, None);
    assert_eq!((slice.spec.node_name.as_deref(), &slice.spec.devices), (Some("n7"), &None));
}

/// Another client may have written any generation.
#[test]
fn generation_does_not_overflow() {
    let with_generation = |slice: &Arc<ResourceSlice>| {
        let mut slice = ResourceSlice::clone(slice);
        slice.spec.pool.generation = i64::MAX;
        Arc::new(slice)
    };
    let seen: Vec<_> = published(&pool(&[&["a"], &["b"]])).iter().map(with_generation).collect();
    let plan = planned(&pool(&[&["x"], &["y"]]), &seen);
    assert_eq!(summary(&plan), (2, 0, 0, Some((i64::MAX, 2))));
}

/// DRA-S2, DRA-S4, DRA-S5, DRA-S6, DRA-S7: the driver offers the second pool while the first one is published.
#[test]
fn as_little_as_possible_is_written() {
    let three: &[&[&str]] = &[&["a"], &["b"], &["c"]];
    type Case<'a> = (&'a str, &'a [&'a [&'a str]], &'a [&'a [&'a str]], (usize, usize, usize, Option<(i64, i64)>));
    let cases: &[Case<'_>] = &[
        ("nothing changed", three, three, (0, 0, 0, None)),
        ("one slice changed", &[&["a"]], &[&["b"]], (1, 0, 0, Some((1, 1)))),
        ("one of three changed", three, &[&["a"], &["x"], &["c"]], (1, 0, 0, Some((1, 3)))),
        ("two of three changed", three, &[&["a"], &["x"], &["y"]], (3, 0, 0, Some((2, 3)))),
        ("one of three removed", three, &[&["a"], &["b"]], (2, 0, 1, Some((2, 2)))),
        ("a fourth slice", three, &[&["a"], &["b"], &["c"], &["d"]], (3, 1, 0, Some((2, 4)))),
        ("another order of the devices", &[&["a", "b"]], &[&["b", "a"]], (1, 0, 0, Some((1, 1)))),
        ("a pool without slices", three, &[], (0, 0, 3, None)),
    ];
    for (what, before, desired, expected) in cases {
        assert_eq!(summary(&planned(&pool(desired), &published(&pool(before)))), *expected, "{what}");
    }
}

/// DRA-S4
#[test]
fn slices_of_a_pool_that_is_no_longer_offered_are_deleted() {
    let seen = published(&pool(&[&["a"]]));
    assert_eq!(summary(&plan(&identity(), "p", None, &seen)), (0, 0, 1, None));
}

fn renamed(slice: &Arc<ResourceSlice>, name: &str, generation: i64) -> Arc<ResourceSlice> {
    let mut slice = ResourceSlice::clone(slice);
    slice.metadata.name = Some(name.to_owned());
    slice.spec.pool.generation = generation;
    Arc::new(slice)
}

/// DRA-S7
#[test]
fn slices_that_cannot_be_reused_are_deleted() {
    let desired = pool(&[&["a"]]);
    let good = &published(&desired)[0];
    let obsolete = [
        ("an index that is too large", renamed(good, "00001-gpu.acme.test-n7-x", 1)),
        ("no index", renamed(good, "gpu-slice", 1)),
        ("an index of another width", renamed(good, "000000-gpu.acme.test-n7-x", 1)),
        ("an index twice", renamed(good, "00000-z", 1)),
        ("an older generation", renamed(good, "00000-a", 0)),
    ];
    for (what, slice) in obsolete {
        let mut seen = [good.clone(), slice.clone()];
        seen.sort_by_key(|slice| slice.metadata.name.clone());
        let plan = planned(&desired, &seen);
        assert_eq!(plan, Plan { deletes: vec![slice], ..Plan::default() }, "{what}");
    }
}

/// DRA-S8, DRA-S9
#[test]
fn slices_for_other_nodes_name_no_node() {
    let all = Pool { all_nodes: true, ..pool(&[&["a"]]) };
    let ownerless = Identity { owner: None, node: None, ..identity() };
    let plan = super::plan(&ownerless, "p", Some(&all), &[]);
    let (_, slice) = &plan.creates[0];
    assert_eq!(slice.metadata.generate_name.as_deref(), Some("00000-gpu.acme.test-"));
    assert_eq!((&slice.metadata.owner_references, &slice.spec.node_name), (&None, &None));
    assert_eq!(slice.spec.all_nodes, Some(true));
    let seen = after(&plan, &[]);
    assert_eq!(summary(&super::plan(&ownerless, "p", Some(&all), &seen)), (0, 0, 0, None));

    let selector = |value: &str| {
        let selector = json!({"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": [value]}]},
        ]});
        Pool { node_selector: Some(serde_json::from_value(selector).unwrap()), ..pool(&[&["a"]]) }
    };
    let seen = after(&super::plan(&ownerless, "p", Some(&selector("a")), &[]), &[]);
    assert_eq!(seen[0].spec.node_selector, selector("a").node_selector);
    assert_eq!(summary(&super::plan(&ownerless, "p", Some(&selector("b")), &seen)), (1, 0, 0, Some((1, 1))));
}

/// DRA-S9: the API server stores no empty lists, so an empty list is the same as none.
#[test]
fn empty_lists_are_no_change() {
    let selector = |lists: &str| {
        let requirement = json!({"key": "zone", "operator": "Exists"});
        let mut requirements = json!([requirement]);
        let mut term = json!({});
        if lists == "empty" {
            requirements[0]["values"] = json!([]);
            term["matchFields"] = json!([]);
        }
        term["matchExpressions"] = requirements;
        Some(serde_json::from_value(json!({"nodeSelectorTerms": [term]})).unwrap())
    };
    let offered = |lists: &str| {
        let devices = vec![Device { node_selector: selector(lists), ..device("a") }];
        let slice = Slice { devices, per_device_node_selection: true, ..Slice::default() };
        Pool { node_selector: selector(lists), slices: vec![slice], ..Pool::default() }
    };
    assert_eq!(summary(&planned(&offered("empty"), &published(&offered("none")))), (0, 0, 0, None));
}

#[test]
fn larger_generation_of_the_driver_rewrites_the_pool() {
    let before = pool(&[&["a"], &["b"]]);
    let seen = published(&before);
    let with = |generation| Pool { generation, ..before.clone() };
    assert_eq!(summary(&planned(&with(7), &seen)), (2, 0, 0, Some((7, 2))));
    assert_eq!(summary(&planned(&with(1), &seen)), (0, 0, 0, None));
}

/// A pool with one device, which has one taint.
fn tainted(value: &str, time: Option<&str>) -> Pool {
    let mut pool = pool(&[&["a"]]);
    let time_added = time.map(|time| Time(time.parse().unwrap()));
    let taint = DeviceTaint { key: "k".into(), value: Some(value.into()), effect: "NoExecute".into(), time_added };
    pool.slices[0].devices[0].taints = Some(vec![taint]);
    pool
}

/// DRA-S2
#[test]
fn times_of_a_taint_are_compared_if_both_sides_have_one() {
    let seen = published(&tainted("v", Some("2026-01-01T00:00:10Z")));
    for (time, updates) in [(None, 0), (Some("2026-01-01T00:00:11Z"), 0), (Some("2026-01-01T00:00:12Z"), 1)] {
        assert_eq!(planned(&tainted("v", time), &seen).updates.len(), updates, "{time:?}");
    }
    assert_eq!(planned(&tainted("v", Some("2026-01-01T00:00:12Z")), &published(&tainted("v", None))).updates.len(), 0);
}

#[test]
fn update_keeps_the_metadata_and_the_times_of_taints() {
    let mut seen = published(&tainted("v", Some("2026-01-01T00:00:10Z")));
    Arc::make_mut(&mut seen[0]).metadata.resource_version = Some("5".to_owned());
    let mut desired = tainted("v", None);
    desired.slices[0].devices.push(device("b"));
    let plan = planned(&desired, &seen);
    let (_, slice) = &plan.updates[0];
    assert_eq!(slice.metadata, seen[0].metadata);
    let taint = &slice.spec.devices.as_ref().unwrap()[0].taints.as_ref().unwrap()[0];
    assert_eq!(taint.time_added, Some(Time("2026-01-01T00:00:10Z".parse().unwrap())));

    let mut other = tainted("w", None);
    other.slices[0].devices.push(device("b"));
    let plan = planned(&other, &seen);
    let taint = &plan.updates[0].1.spec.devices.as_ref().unwrap()[0].taints.as_ref().unwrap()[0];
    assert_eq!(taint.time_added, None, "a taint with another value is new");
}

#[test]
fn one_quantity_in_two_forms_is_no_change() {
    let with = |text: &str| {
        let mut pool = pool(&[&["a"]]);
        let capacity = json!({"memory": {"value": text}});
        pool.slices[0].devices[0].capacity = Some(serde_json::from_value(capacity).unwrap());
        pool
    };
    let seen = published(&with("1Gi"));
    assert_eq!(summary(&planned(&with("1024Mi"), &seen)), (0, 0, 0, None));
    assert_eq!(planned(&with("1025Mi"), &seen).updates.len(), 1);
}

/// DRA-S10, DRA-S11
#[test]
fn validation_names_what_is_wrong() {
    let counters = |set: &str, name: &str| json!({"name": set, "counters": {name: {"value": "1"}}});
    let consumer = |set: &str, counter: &str| json!({"name": "g", "consumesCounters": [{"counterSet": set, "counters": {counter: {"value": "1"}}}]});
    let make = |sets: Vec<serde_json::Value>, devices: Vec<serde_json::Value>| Pool {
        slices: vec![
            Slice {
                shared_counters: sets.into_iter().map(|v| serde_json::from_value(v).unwrap()).collect(),
                ..Slice::default()
            },
            Slice {
                devices: devices.into_iter().map(|v| serde_json::from_value(v).unwrap()).collect(),
                ..Slice::default()
            },
        ],
        ..Pool::default()
    };
    let (device, set) = ("g".to_owned(), "s".to_owned());
    let cases = [
        (make(vec![counters("s", "c")], vec![consumer("s", "c")]), Ok(())),
        (
            make(vec![counters("s", "c"), counters("s", "d")], vec![]),
            Err(InvalidPool::DuplicateCounterSet(set.clone())),
        ),
        (
            make(vec![], vec![json!({"name": "g"}), json!({"name": "g"})]),
            Err(InvalidPool::DuplicateDevice(device.clone())),
        ),
        (
            make(vec![counters("t", "c")], vec![consumer("s", "c")]),
            Err(InvalidPool::UnknownCounterSet { device: device.clone(), set: set.clone() }),
        ),
        (
            make(vec![counters("s", "d")], vec![consumer("s", "c")]),
            Err(InvalidPool::UnknownCounter { device, set, counter: "c".to_owned() }),
        ),
    ];
    for (pool, expected) in cases {
        assert_eq!(pool.validate(true), expected);
    }
}

/// The API server accepts exactly one way to name the nodes with access.
#[test]
fn pool_names_the_nodes_with_access_in_one_way() {
    let of = |all_nodes, per_device_node_selection| {
        let slice = Slice { per_device_node_selection, ..Slice::default() };
        Pool { all_nodes, slices: vec![slice], ..Pool::default() }
    };
    assert_eq!(of(false, false).validate(true), Ok(()));
    for beside in [of(false, true), of(true, false)] {
        assert_eq!(beside.validate(true), Err(InvalidPool::BoundToNode));
        assert_eq!(beside.validate(false), Ok(()));
    }
    assert_eq!(of(false, false).validate(false), Err(InvalidPool::NoNodes));
    assert_eq!(of(true, true).validate(false), Err(InvalidPool::SeveralNodeSelections));
}

prop_compose! {
    /// A pool with up to five slices, each with up to three of six devices.
    fn any_pool()(slices in prop::collection::vec(prop::collection::vec(0_u8..6, 0..3), 0..5), generation in 0_i64..3) -> Pool {
        let slice = |devices: Vec<u8>| Slice {
            devices: devices.into_iter().map(|number| device(&format!("g{number}"))).collect(),
            ..Slice::default()
        };
        Pool { slices: slices.into_iter().map(slice).collect(), generation, ..Pool::default() }
    }
}

proptest! {
    #![proptest_config(podwright_random::cases(256))]

    /// After each plan the API server has what the driver offers, as consumers read it, and the next plan is empty.
    #[test]
    fn plans_lead_to_what_the_driver_offers(pools in prop::collection::vec(any_pool(), 1..6)) {
        let mut stored: Vec<Arc<ResourceSlice>> = Vec::new();
        let mut newest = 0;
        for desired in &pools {
            let plan = planned(desired, &stored);
            let touched: Vec<_> = plan.updates.iter().map(|(_, slice)| slice.metadata.name.clone()).collect();
            prop_assert!(plan.deletes.iter().all(|slice| !touched.contains(&slice.metadata.name)));
            stored = after(&plan, &stored);
            prop_assert_eq!(planned(desired, &stored), Plan::default());
            prop_assert_eq!(stored.len(), desired.slices.len());
            for (slice, offered) in stored.iter().zip(&desired.slices) {
                prop_assert_eq!(slice.spec.devices.clone().unwrap_or_default(), offered.devices.clone());
                prop_assert_eq!(slice.spec.pool.resource_slice_count as usize, desired.slices.len());
                prop_assert_eq!(slice.spec.pool.generation, stored[0].spec.pool.generation);
            }
            // An empty pool has no generation, and the next one starts over.
            let generation = stored.first().map_or(0, |slice| slice.spec.pool.generation);
            prop_assert!(stored.is_empty() || generation >= newest);
            newest = generation;
        }
    }

    #[test]
    fn times_are_rounded_to_seconds(nanoseconds in 0_i64..2_000_000_000_000) {
        let mut pool = tainted("v", None);
        let time = Time(k8s_openapi::jiff::Timestamp::from_nanosecond(nanoseconds.into()).unwrap());
        pool.slices[0].devices[0].taints.as_mut().unwrap()[0].time_added = Some(time);
        pool.round_taint_times();
        let Time(rounded) = pool.slices[0].devices[0].taints.as_ref().unwrap()[0].time_added.clone().unwrap();
        prop_assert_eq!(rounded.subsec_nanosecond(), 0);
    }
}
