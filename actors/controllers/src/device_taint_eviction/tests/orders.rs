//! After any sequence of changes and passes, the pending evictions are those of a controller that sees only the last state, and each pass
//! evicts what that controller would evict.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use k8s_openapi::api::resource::v1beta2::DeviceTaintRule;
use proptest::prelude::*;
use serde_json::json;

use super::super::super::table::WatchEvent;
use super::*;

const SETTINGS: Settings = Settings { rules: true, pod_groups: true, max_evictions_per_rule: None };
const EFFECTS: [&str; 4] = ["NoExecute", "None", "NoSchedule", "NoExecute"];

#[derive(Clone, Debug)]
enum Action {
    /// `form` chooses the content. A name has at most one object.
    Pod {
        name: u8,
        form: u16,
    },
    Claim {
        name: u8,
        form: u16,
    },
    Slice {
        name: u8,
        form: u16,
    },
    Rule {
        name: u8,
        form: u8,
    },
    Delete {
        kind: u8,
        name: u8,
    },
    /// A watch lists its objects. `is_lost` objects were deleted without an event.
    List {
        kind: u8,
        lost: u8,
    },
    /// Some marked pods are evaluated.
    Evaluate(u8),
    /// A worker performs the pass of a pod. The server performs each call. The watch shows a deletion at once, or with the next change.
    Pass {
        name: u8,
        is_shown: bool,
    },
    Tick,
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let action = prop_oneof![
        4 => (0..3u8, any::<u16>()).prop_map(|(name, form)| Action::Pod { name, form }),
        5 => (0..3u8, any::<u16>()).prop_map(|(name, form)| Action::Claim { name, form }),
        4 => (0..3u8, any::<u16>()).prop_map(|(name, form)| Action::Slice { name, form }),
        3 => (0..2u8, any::<u8>()).prop_map(|(name, form)| Action::Rule { name, form }),
        2 => (0..4u8, 0..3u8).prop_map(|(kind, name)| Action::Delete { kind, name }),
        1 => (0..4u8, any::<u8>()).prop_map(|(kind, lost)| Action::List { kind, lost }),
        3 => (0..4u8).prop_map(Action::Evaluate),
        3 => (0..3u8, any::<bool>()).prop_map(|(name, is_shown)| Action::Pass { name, is_shown }),
        1 => Just(Action::Tick),
    ];
    proptest::collection::vec(action, 1..60)
}

/// The objects of the server.
#[derive(Default)]
struct Server {
    pods: BTreeMap<String, Pod>,
    claims: BTreeMap<String, ResourceClaim>,
    slices: BTreeMap<String, ResourceSlice>,
    rules: BTreeMap<String, DeviceTaintRule>,
}

fn make_pod(name: u8, form: u16) -> Pod {
    let claims = [&["c0"][..], &["c1", "c2"], &["c0", "c2"], &[]][usize::from(form & 3)];
    let mut pod = pod_of(&format!("p{name}"), claims);
    if form >> 8 & 1 == 1 {
        for entry in pod.spec.iter_mut().flat_map(|spec| spec.resource_claims.iter_mut().flatten()) {
            (entry.resource_claim_name, entry.resource_claim_template_name) = (None, Some("tpl".into()));
        }
    }
    let status = pod.status.get_or_insert_default();
    // Not created yet, not needed, or the claim of the same name.
    let recorded = |claim: &str| match form >> 9 & 3 {
        0 => None,
        1 => Some(json!({ "name": claim })),
        _ => Some(json!({ "name": claim, "resourceClaimName": claim })),
    };
    let recorded: Vec<_> = ["c0", "c1", "c2"].into_iter().filter_map(recorded).collect();
    status.resource_claim_statuses = serde_json::from_value(json!(recorded)).unwrap();
    if form >> 11 & 3 == 3 {
        let extended = json!({ "requestMappings": [], "resourceClaimName": "c1" });
        status.extended_resource_claim_status = serde_json::from_value(extended).unwrap();
    }
    if form >> 13 & 7 == 7 {
        pod.metadata.deletion_timestamp = Some(T0.to_api());
    }
    pod.metadata.uid = Some(format!("p{name}-uid{}", form >> 2 & 1));
    let spec = pod.spec.as_mut().unwrap();
    if form >> 3 & 3 == 0 {
        spec.node_name = None;
    }
    if form >> 5 & 1 == 1 {
        spec.scheduling_group = serde_json::from_value(json!({ "podGroupName": "g" })).unwrap();
    }
    if form >> 6 == 3 {
        pod.status.get_or_insert_default().phase = Some("Failed".into());
    }
    pod
}

fn make_claim(name: u8, form: u16) -> ResourceClaim {
    let devices = [&["i"][..], &["k", "x"], &["i", "x"], &["j"]][usize::from(form & 3)];
    let mut consumers = Vec::new();
    for pod in 0..3 {
        if form >> (2 + pod) & 1 == 1 {
            let uid = format!("p{pod}-uid{}", form >> 5 & 1);
            consumers.push(reserved("pods", &format!("p{pod}"), &uid));
        }
    }
    if form >> 6 & 1 == 1 {
        consumers.push(reserved("podgroups", "g", "g-uid"));
    }
    let mut claim = claim_of(&format!("c{name}"), devices, &consumers);
    claim.metadata.uid = Some(format!("c{name}-uid{}", form >> 7 & 1));
    let claim = match form >> 11 & 7 {
        0 | 1 => claim,
        2 => owned(claim, "scheduling.k8s.io/v1alpha2", "PodGroup", "g", "g-uid"),
        owner => {
            let owner = format!("p{}", owner % 3);
            owned(claim, "v1", "Pod", &owner, &format!("{owner}-uid{}", form >> 14 & 1))
        }
    };
    match form >> 8 & 7 {
        0 => without_allocation(claim),
        1 => tolerating(claim, &[for_seconds(30)]),
        2 => tolerating(claim, &[for_seconds(7), toleration(json!({ "key": "b", "operator": "Exists" }))]),
        _ => claim,
    }
}

fn make_slice(name: u8, form: u16) -> ResourceSlice {
    let device = |name, at: u16| {
        let taints = match form >> at & 7 {
            0..=2 => vec![],
            3 => vec![taint("t", "v", "NoSchedule"), evicting()],
            4 => vec![taint("b", "", "NoExecute")],
            _ => vec![evicting()],
        };
        (name, taints)
    };
    let devices = [device("i", 0), device("k", 3), device("j", 6)];
    let devices = &devices[..usize::from(form >> 9 & 3).min(3)];
    let pool = if form >> 11 & 7 == 0 { "w2" } else { POOL };
    slice_of(&format!("s{name}"), pool, i64::from(form >> 14), devices)
}

fn make_rule(name: u8, form: u8) -> DeviceTaintRule {
    let selector = [json!({ "device": "i" }), json!({}), json!(null), json!({ "pool": POOL, "device": "x" })];
    let mut rule = rule_with(EFFECTS[usize::from(form & 3)], selector[usize::from(form >> 2 & 3)].clone());
    rule.metadata.name = Some(format!("r{name}"));
    rule.metadata.uid = Some(format!("r{name}-uid{}", form >> 4 & 1));
    if form >> 5 & 1 == 1 {
        rule.spec.taint.time_added = Some(after(40).to_api());
    }
    rule
}

fn named<T>(objects: &mut BTreeMap<String, T>, name: &str, object: T) -> WatchEvent<T>
where
    T: Clone,
{
    objects.insert(name.to_owned(), object.clone());
    WatchEvent::Apply(Arc::new(object))
}

/// The events of a list, in which the objects whose bit is set are missing.
fn listed<T: Clone>(objects: &mut BTreeMap<String, T>, lost: u8) -> Vec<WatchEvent<T>> {
    let mut number = 0;
    objects.retain(|_, _| {
        number += 1;
        lost >> number & 1 == 0
    });
    let present = objects.values().cloned().map(|object| WatchEvent::InitApply(Arc::new(object)));
    std::iter::once(WatchEvent::Init).chain(present).chain([WatchEvent::InitDone]).collect()
}

impl Server {
    /// Performs an action. Returns the events of the watches.
    fn act(&mut self, core: &mut Core, action: &Action, now: Time) {
        match *action {
            Action::Pod { name, form } => {
                let mut pod = make_pod(name, form);
                let known = self.pods.get(&format!("p{name}")).filter(|known| known.metadata.uid == pod.metadata.uid);
                if let Some(known) = known.cloned() {
                    // A deletion cannot be taken back.
                    pod.metadata.deletion_timestamp =
                        known.metadata.deletion_timestamp.or(pod.metadata.deletion_timestamp);
                    if let (Some(known), Some(new)) = (known.spec, &mut pod.spec) {
                        // The claims and the group of a pod are immutable.
                        (new.resource_claims, new.scheduling_group) = (known.resource_claims, known.scheduling_group);
                    }
                }
                core.pod_event(named(&mut self.pods, &format!("p{name}"), pod), now);
            }
            Action::Claim { name, form } => {
                core.claim_event(named(&mut self.claims, &format!("c{name}"), make_claim(name, form)));
            }
            Action::Slice { name, form } => {
                core.slice_event(named(&mut self.slices, &format!("s{name}"), make_slice(name, form)), now);
            }
            Action::Rule { name, form } => {
                core.rule_event(named(&mut self.rules, &format!("r{name}"), make_rule(name, form)), now);
            }
            Action::Delete { kind, name } => self.delete(core, kind, name, now),
            Action::List { kind, lost } => self.list(core, kind, lost, now),
            Action::Evaluate(number) => (0..number).for_each(|_| {
                core.evaluate_next(now);
            }),
            Action::Pass { name, is_shown } => self.pass(core, &format!("p{name}"), is_shown, now),
            Action::Tick => {}
        }
    }

    /// Performs the pass of a pod, which evicts the pod if a controller that sees only this state would.
    fn pass(&mut self, core: &mut Core, name: &str, is_shown: bool, now: Time) {
        let Some(id) = self.pods.get(name).and_then(PodId::of) else { return };
        let is_due = self.fresh(now).pending().get(&id).is_some_and(|eviction| eviction.at <= now);
        let mut pass = core.begin(&Item::Pod(id));
        let (mut answer, mut deletions) = (None, 0);
        while let Step::Call(request) = pass.step(core, answer.take(), now) {
            let done = match request {
                Request::GetPod(_) => Answer::Pod(Box::new(self.pods[name].clone())),
                Request::PatchPodStatus(_) | Request::ApplyRuleStatus(_) => Answer::Done,
                Request::DeletePod(_) => {
                    deletions += 1;
                    self.pods.get_mut(name).unwrap().metadata.deletion_timestamp = Some(now.to_api());
                    Answer::Done
                }
            };
            answer = Some(Ok(done));
        }
        assert_eq!(deletions, u32::from(is_due), "the pass of {name}");
        if is_shown {
            core.pod_event(WatchEvent::Apply(Arc::new(self.pods[name].clone())), now);
        }
    }

    /// A controller that sees only the present objects.
    fn fresh(&mut self, now: Time) -> Core {
        let mut fresh = Core::new(SETTINGS);
        (0..4).rev().for_each(|kind| self.list(&mut fresh, kind, 0, now));
        evaluate_all(&mut fresh, now);
        fresh
    }

    fn delete(&mut self, core: &mut Core, kind: u8, name: u8, now: Time) {
        match kind {
            0 => self
                .pods
                .remove(&format!("p{name}"))
                .into_iter()
                .for_each(|o| core.pod_event(WatchEvent::Delete(o.into()), now)),
            1 => self
                .claims
                .remove(&format!("c{name}"))
                .into_iter()
                .for_each(|o| core.claim_event(WatchEvent::Delete(o.into()))),
            2 => self
                .slices
                .remove(&format!("s{name}"))
                .into_iter()
                .for_each(|o| core.slice_event(WatchEvent::Delete(o.into()), now)),
            _ => self
                .rules
                .remove(&format!("r{name}"))
                .into_iter()
                .for_each(|o| core.rule_event(WatchEvent::Delete(o.into()), now)),
        }
    }

    fn list(&mut self, core: &mut Core, kind: u8, lost: u8, now: Time) {
        match kind {
            0 => listed(&mut self.pods, lost).into_iter().for_each(|event| core.pod_event(event, now)),
            1 => listed(&mut self.claims, lost).into_iter().for_each(|event| core.claim_event(event)),
            2 => listed(&mut self.slices, lost).into_iter().for_each(|event| core.slice_event(event, now)),
            _ => listed(&mut self.rules, lost).into_iter().for_each(|event| core.rule_event(event, now)),
        }
    }
}

fn evaluate_all(core: &mut Core, now: Time) {
    while core.evaluate_next(now) {}
}

proptest! {
    #![proptest_config(podwright_random::cases(800))]

    #[test]
    fn pending_evictions_are_those_of_the_last_state_alone(actions in actions()) {
        let (mut core, mut server, mut now) = (Core::new(SETTINGS), Server::default(), T0);
        for action in &actions {
            if matches!(action, Action::Tick) {
                now = now + std::time::Duration::from_secs(3);
            }
            server.act(&mut core, action, now);
        }
        evaluate_all(&mut core, now);

        let fresh = server.fresh(now);
        prop_assert_eq!(core.claim_evictions(), fresh.claim_evictions());
        prop_assert_eq!(core.pending(), fresh.pending());
        prop_assert_eq!(core.pools(), fresh.pools());
    }
}
