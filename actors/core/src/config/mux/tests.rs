use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proptest::prelude::*;

use super::*;
use crate::time::Time;

/// The fields of a pod that the mux compares.
#[derive(Clone, Debug, PartialEq)]
struct Draft {
    uid: u8,
    name: u8,
    image: u8,
    label: u8,
    note: u8,
    seen: u64,
    deleting: bool,
    generation: i64,
    phase: u8,
}

impl Draft {
    fn new(id: u8) -> Self {
        Draft { uid: id, name: id, image: 0, label: 0, note: 0, seen: 100, deleting: false, generation: 1, phase: 0 }
    }

    fn object(&self) -> Arc<PodObject> {
        let text = |key: &str, value: String| (key.to_owned(), value);
        PodObject::new(Pod {
            metadata: ObjectMeta {
                name: Some(format!("foo{}", self.name)),
                namespace: Some("default".into()),
                uid: Some(format!("uid-{}", self.uid)),
                labels: Some(BTreeMap::from([text("l", self.label.to_string())])),
                annotations: Some(BTreeMap::from([
                    text("note", self.note.to_string()),
                    text(SOURCE_ANNOTATION, "file".into()),
                    text(SEEN_ANNOTATION, Time::from_secs(self.seen).to_timestamp().to_string()),
                ])),
                deletion_timestamp: self.deleting.then(|| Time::from_secs(7).to_api()),
                generation: Some(self.generation),
                ..ObjectMeta::default()
            },
            spec: Some(PodSpec {
                containers: vec![Container { image: Some(self.image.to_string()), ..Container::default() }],
                ..PodSpec::default()
            }),
            status: Some(PodStatus { phase: Some(self.phase.to_string()), ..PodStatus::default() }),
        })
        .unwrap()
    }
}

fn objects(drafts: &[Draft]) -> Vec<Arc<PodObject>> {
    drafts.iter().map(Draft::object).collect()
}

/// Formats each change in one line: `ADD foo1 foo2`.
fn lines(changes: &Changes) -> Vec<String> {
    changes
        .changes
        .iter()
        .map(|change| {
            let (word, pods) = match change {
                Change::Remove(pods) => ("REMOVE", pods),
                Change::Add(pods) => ("ADD", pods),
                Change::Update(pods) => ("UPDATE", pods),
                Change::Delete(pods) => ("DELETE", pods),
                Change::Reconcile(pods) => ("RECONCILE", pods),
            };
            pods.iter().fold(word.to_owned(), |line, pod| line + " " + pod.full_name().name())
        })
        .collect()
}

// POD-S93
#[test]
fn changes_of_one_source_set_are_in_order() {
    let mut config = SourceConfig::new();
    let all = [1, 2, 3, 5].map(Draft::new);
    assert_eq!(lines(&config.apply(objects(&all))), ["ADD foo1 foo2 foo3 foo5"]);

    let changed = Draft { image: 1, ..Draft::new(2) };
    let going = Draft { deleting: true, ..Draft::new(3) };
    let status = Draft { phase: 1, ..Draft::new(5) };
    let changes = config.apply(objects(&[status, Draft::new(4), going, changed]));
    assert_eq!(lines(&changes), ["REMOVE foo1", "ADD foo4", "UPDATE foo2", "DELETE foo3", "RECONCILE foo5"]);
}

// POD-S93
#[test]
fn a_first_empty_source_set_is_reported_once() {
    let mut config = SourceConfig::new();
    assert!(!config.has_delivered());
    assert_eq!(lines(&config.apply(vec![])), ["ADD"]);
    assert!(config.has_delivered());
    assert!(lines(&config.apply(vec![])).is_empty());
}

// POD-S93: the fields that make a change, and the kind of the change.
#[test]
fn each_kind_of_pod_difference_gives_its_change() {
    let old = Draft::new(1);
    type Edit = fn(&mut Draft);
    let cases: [(&str, Edit, &[&str]); 9] = [
        ("nothing", |_| {}, &[]),
        ("spec", |pod| pod.image = 1, &["UPDATE foo1"]),
        ("labels", |pod| pod.label = 1, &["UPDATE foo1"]),
        ("foreign annotation", |pod| pod.note = 1, &["UPDATE foo1"]),
        ("spec that was changed and changed back", |pod| pod.generation = 3, &["UPDATE foo1"]),
        ("first-seen time", |pod| pod.seen = 200, &[]),
        ("status", |pod| pod.phase = 1, &["RECONCILE foo1"]),
        ("deletion", |pod| pod.deleting = true, &["DELETE foo1"]),
        ("spec and status", |pod| (pod.image, pod.phase) = (1, 1), &["UPDATE foo1"]),
    ];
    for (what, edit, expected) in cases {
        let mut config = SourceConfig::new();
        let _ = config.apply(objects(std::slice::from_ref(&old)));
        let mut new = old.clone();
        edit(&mut new);
        assert_eq!(lines(&config.apply(objects(&[new]))), expected, "{what}");
    }
}

#[test]
fn the_first_seen_time_is_kept_over_updates() {
    let mut config = SourceConfig::new();
    let _ = config.apply(objects(&[Draft::new(1)]));
    for image in 1..4 {
        let later = Draft { image, seen: 100 + u64::from(image), ..Draft::new(1) };
        assert_eq!(lines(&config.apply(objects(&[later]))), ["UPDATE foo1"]);
    }
    let held = config.pods().next().unwrap();
    assert_eq!(held.first_seen(), Some(Time::from_secs(100)));
    assert_eq!(held.containers()[0].image.as_deref(), Some("3"));
}

// An edited manifest without a fixed UID removes the old pod and adds a new one with the same name.
#[test]
fn a_new_uid_under_the_same_name_is_remove_and_add() {
    let mut config = SourceConfig::new();
    let _ = config.apply(objects(&[Draft::new(1)]));
    let changes = config.apply(objects(&[Draft { uid: 9, image: 1, ..Draft::new(1) }]));
    assert_eq!(lines(&changes), ["REMOVE foo1", "ADD foo1"]);
}

#[test]
fn a_renamed_pod_with_a_fixed_uid_is_remove_and_add() {
    let mut config = SourceConfig::new();
    let _ = config.apply(objects(&[Draft::new(1)]));
    let changes = config.apply(objects(&[Draft { name: 2, ..Draft::new(1) }]));
    assert_eq!(lines(&changes), ["REMOVE foo1", "ADD foo2"]);
}

#[test]
fn the_later_of_two_pods_with_one_name_or_uid_is_rejected_once() {
    let mut config = SourceConfig::new();
    let same_name = Draft { uid: 8, ..Draft::new(1) };
    let same_uid = Draft { uid: 1, ..Draft::new(7) };
    let set = [Draft::new(1), same_name, same_uid, Draft::new(2)];
    let changes = config.apply(objects(&set));
    assert_eq!(lines(&changes), ["ADD foo1 foo2"]);
    let messages: Vec<_> = changes.refused.iter().map(|refused| refused.message.as_str()).collect();
    assert_eq!(messages.len(), 2);
    assert!(messages[0].contains("foo1_default(uid-8)") && messages[0].contains("duplicate"), "{}", messages[0]);
    assert!(messages[1].contains("default/foo7") && messages[1].contains("default/foo1"), "{}", messages[1]);

    assert!(config.apply(objects(&set)).refused.is_empty());
    let _ = config.apply(objects(&[Draft::new(1)]));
    assert_eq!(config.apply(objects(&set)).refused.len(), 2, "reported again after the conflict was resolved");
}

#[test]
fn the_same_pod_object_again_is_no_change() {
    let mut config = SourceConfig::new();
    let _ = config.apply(objects(&[Draft::new(1)]));
    let changed = Draft { image: 1, seen: 200, ..Draft::new(1) }.object();
    assert_eq!(lines(&config.apply(vec![changed.clone()])), ["UPDATE foo1"]);
    let passed_on = Arc::as_ptr(config.pods().next().unwrap());
    assert!(lines(&config.apply(vec![changed])).is_empty());
    assert_eq!(Arc::as_ptr(config.pods().next().unwrap()), passed_on);
}

prop_compose! {
    fn draft()(
        uid in 0u8..6, name in 0u8..5, image in 0u8..2, label in 0u8..2, note in 0u8..2,
        seen in 100u64..104, deleting in proptest::bool::weighted(0.2), phase in 0u8..2,
        generation in 1i64..3,
    ) -> Draft {
        Draft { uid, name, image, label, note, seen, deleting, generation, phase }
    }
}

proptest! {
    #![proptest_config(podwright_random::cases(256))]

    // A follower that applies every change has the pods of the last set, without the rejected ones.
    #[test]
    fn applying_all_changes_gives_the_last_source_set(sets in proptest::collection::vec(proptest::collection::vec(draft(), 0..6), 1..12)) {
        let mut config = SourceConfig::new();
        let mut follower: BTreeMap<PodUid, Arc<PodObject>> = BTreeMap::new();
        let mut first_seen: BTreeMap<PodUid, Option<Time>> = BTreeMap::new();
        for set in sets {
            let given = objects(&set);
            for change in config.apply(given.clone()).changes {
                match change {
                    Change::Remove(pods) => for pod in pods {
                        prop_assert!(follower.remove(pod.uid()).is_some());
                        first_seen.remove(pod.uid());
                    },
                    Change::Add(pods) => for pod in pods {
                        first_seen.insert(pod.uid().clone(), pod.first_seen());
                        prop_assert!(follower.insert(pod.uid().clone(), pod).is_none());
                    },
                    Change::Update(pods) | Change::Delete(pods) | Change::Reconcile(pods) => for pod in pods {
                        prop_assert!(follower.insert(pod.uid().clone(), pod).is_some());
                    },
                }
            }
            let mut names = BTreeSet::new();
            let mut uids = BTreeSet::new();
            let mut expected = BTreeMap::new();
            for pod in given {
                if names.contains(pod.full_name()) || uids.contains(pod.uid()) {
                    continue;
                }
                names.insert(pod.full_name().clone());
                uids.insert(pod.uid().clone());
                expected.insert(pod.uid().clone(), pod);
            }
            prop_assert_eq!(follower.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
            for (uid, pod) in &follower {
                let sent = &expected[uid];
                prop_assert_eq!(pod.first_seen(), first_seen[uid]);
                prop_assert_eq!(pod.full_name(), sent.full_name());
                prop_assert_eq!(pod.spec(), sent.spec());
                prop_assert_eq!(pod.status(), sent.status());
                prop_assert_eq!(&pod.metadata().labels, &sent.metadata().labels);
                prop_assert_eq!(pod.annotation("note"), sent.annotation("note"));
                prop_assert_eq!(pod.is_deleting(), sent.is_deleting());
            }
        }
    }
}
