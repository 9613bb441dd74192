//! Which taints a toleration matches, and which devices a rule selects.

use serde_json::{Value, json};

use super::*;

fn is_tolerated(taint: k8s_openapi::api::resource::v1::DeviceTaint, by: Value) -> bool {
    let claim = tolerating(claim(), &[toleration(by)]);
    World::after([Change::Slice(slice_with(vec![taint])), Change::Claim(claim)]).claim_eviction().is_none()
}

/// TAINT-S50.
#[test]
fn exists_matches_a_taint_with_and_without_a_value() {
    let exists = || json!({ "key": "t", "operator": "Exists", "effect": "NoExecute" });
    let mut without = evicting();
    without.value = None;
    assert!(is_tolerated(without, exists()));
    assert!(is_tolerated(evicting(), exists()));
}

/// TAINT-S51.
#[test]
fn exists_without_a_key_matches_any_key_and_value() {
    let exists = || json!({ "operator": "Exists", "effect": "NoExecute" });
    assert!(is_tolerated(evicting(), exists()));
    assert!(is_tolerated(taint("other", "x", "NoExecute"), exists()));
}

/// TAINT-S52 to TAINT-S53.
#[test]
fn equal_compares_key_and_value_and_an_empty_operator_is_equal() {
    for operator in [json!("Equal"), Value::Null] {
        let equal = |value: &str| json!({ "key": "t", "operator": operator, "value": value, "effect": "NoExecute" });
        assert!(is_tolerated(evicting(), equal("v")));
        assert!(!is_tolerated(evicting(), equal("w")));
        assert!(!is_tolerated(taint("u", "v", "NoExecute"), equal("v")));
    }
    assert!(is_tolerated(taint("any", "v", "NoExecute"), json!({ "value": "v", "effect": "NoExecute" })), "no key");
}

#[test]
fn an_unknown_operator_and_another_effect_match_nothing() {
    assert!(!is_tolerated(evicting(), json!({ "key": "t", "operator": "Like", "value": "v", "effect": "NoExecute" })));
    assert!(!is_tolerated(evicting(), json!({ "key": "t", "operator": "Exists", "effect": "NoSchedule" })));
}

/// TAINT-S54 to TAINT-S55.
#[test]
fn each_field_of_a_selector_must_fit() {
    let selects = |selector: Value| {
        World::after([Change::Rule(rule_with("NoExecute", selector)), Change::Claim(claim())])
            .claim_eviction()
            .is_some()
    };
    let fields = [("driver", "d"), ("pool", "w"), ("device", "i")];
    for (field, name) in fields {
        assert!(selects(json!({ field: name })), "{field}");
        assert!(!selects(json!({ field: "another" })), "{field}");
        let mut all = json!({ "driver": "d", "pool": "w", "device": "i" });
        assert!(selects(all.clone()));
        all[field] = json!("another");
        assert!(!selects(all), "{field}");
    }
    assert!(selects(json!({})), "a selector without fields selects all");
    assert!(!selects(Value::Null), "no selector selects nothing");
}
