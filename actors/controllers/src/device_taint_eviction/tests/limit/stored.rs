//! What the controller knows of the number of evictions that the server has stored.

use super::*;

/// A rule with the limit 20 for five pods. The status reserves two further evictions. The watch shows what the test says.
struct Lagging {
    core: Core,
    now: Time,
    rule: DeviceTaintRule,
    id: RuleId,
    pods: Vec<(PodId, Eviction)>,
}

impl Lagging {
    /// The rule after two evictions. The status reserves two more. The watch has shown that.
    fn new() -> Self {
        let World { core, now, .. } = limited(20);
        let pods = core.pending().into_iter().collect();
        let id = RuleId { name: "r".into(), uid: "r-uid".into() };
        let mut this = Lagging { core, now, rule: rule(), id, pods };
        this.store();
        this.take(&[0, 1]);
        let mut pass = this.pass();
        this.now = this.now + Duration::from_secs(10);
        let write = this.begin(&mut pass).unwrap();
        this.show(Some(write));
        this.stored(&mut pass);
        this.effects();
        assert!(!this.core.must_store_count(&this.id));
        this
    }

    /// These pods take a slot.
    fn take(&mut self, pods: &[usize]) {
        for pod in pods {
            let (pod, eviction) = &self.pods[*pod];
            self.core.take_slots(pod, eviction);
        }
    }

    fn free(&mut self, pod: usize) {
        self.core.free_slots(&self.pods[pod].0, self.now, self.now);
    }

    /// A pass of the rule writes the status.
    fn store(&mut self) {
        let mut pass = self.pass();
        assert!(self.begin(&mut pass).is_some());
        self.stored(&mut pass);
    }

    /// Whether a pod has a slot, or would get one.
    fn may_evict(&self, pod: usize) -> bool {
        let (pod, eviction) = &self.pods[pod];
        self.core.may_evict(&self.id, pod, eviction)
    }

    /// These pods wait for a slot.
    fn hold(&mut self, pods: &[usize]) {
        for pod in pods {
            let (pod, eviction) = &self.pods[*pod];
            self.core.hold(pod, eviction, std::slice::from_ref(&self.id), self.now);
        }
    }

    fn pass(&self) -> Pass {
        self.core.begin(&Item::Rule(self.id.clone()))
    }

    /// The conditions that a pass writes.
    fn begin(&mut self, pass: &mut Pass) -> Option<RuleConditions> {
        match pass.step(&mut self.core, None, self.now) {
            Step::Call(Request::ApplyRuleStatus(write)) => Some(write),
            Step::Call(_) | Step::Done(_) => None,
        }
    }

    fn stored(&mut self, pass: &mut Pass) {
        let step = pass.step(&mut self.core, Some(Ok(Answer::Done)), self.now);
        assert!(matches!(step, Step::Done(Report { outcome: Outcome::Finished, .. })), "{step:?}");
    }

    /// The watch shows the rule with these conditions.
    fn show(&mut self, write: Option<RuleConditions>) {
        let mut rule = self.rule.clone();
        rule.status.get_or_insert_default().conditions = write.map(|write| write.conditions);
        self.core.rule_event(WatchEvent::Apply(Arc::new(rule)), self.now);
    }

    /// The rules whose status is due now, since the last call of this function.
    fn effects(&mut self) -> Vec<RuleId> {
        self.core.take_effects().rules_now.into_keys().collect()
    }
}

fn message(write: Option<RuleConditions>) -> Option<String> {
    write?.conditions.pop().map(|condition| condition.message)
}

#[test]
fn a_number_that_only_the_watch_has_is_written() {
    let mut lagging = Lagging::new();
    lagging.free(1);
    lagging.now = lagging.now + Duration::from_secs(10);
    let mut pass = lagging.pass();
    let lower = lagging.begin(&mut pass);
    assert_eq!(message(lower).as_deref(), Some("1 eviction counted; 2 more reserved"));
    lagging.stored(&mut pass);
    lagging.take(&[2]);
    lagging.now = lagging.now + Duration::from_secs(10);
    let mut pass = lagging.pass();
    let write = lagging.begin(&mut pass);
    let expected = "2 evictions counted; 2 more reserved";
    assert_eq!(message(write).as_deref(), Some(expected), "the watch still shows the first write");
}

#[test]
fn a_late_write_with_a_lower_number_is_corrected_before_further_pods_get_slots() {
    let mut lagging = Lagging::new();
    lagging.show(None);
    assert_eq!(lagging.effects(), [lagging.id.clone()]);
    assert!(!lagging.may_evict(2));
    let detail = lagging.core.explain_rule("r", lagging.now).detail;
    assert!(!detail.contains("held"), "no pod waits: {detail}");
    let mut pass = lagging.pass();
    let write = lagging.begin(&mut pass);
    assert_eq!(message(write).as_deref(), Some("2 evictions counted; 2 more reserved"));
    lagging.stored(&mut pass);
    assert!(lagging.may_evict(2));
}

#[test]
fn a_write_that_lowers_the_number_counts_from_its_beginning() {
    for is_answered in [true, false] {
        let mut lagging = Lagging::new();
        lagging.free(1);
        lagging.now = lagging.now + Duration::from_secs(10);
        let mut pass = lagging.pass();
        assert_eq!(message(lagging.begin(&mut pass)).as_deref(), Some("1 eviction counted; 2 more reserved"));
        lagging.take(&[2, 3]);
        assert!(!lagging.may_evict(4), "the server may have the number 3");
        if is_answered {
            lagging.stored(&mut pass);
        } else {
            let lost = Err(ApiError::new(ApiErrorKind::Unknown, "lost by the test"));
            let _retried = pass.step(&mut lagging.core, Some(lost), lagging.now);
        }
        assert!(!lagging.may_evict(4));
        let _before = lagging.effects();
        lagging.hold(&[4]);
        assert_eq!(lagging.effects(), [lagging.id.clone()], "a pod waits for a higher number");
    }
}

#[test]
fn a_write_without_an_answer_gives_no_slots() {
    let mut lagging = Lagging::new();
    lagging.take(&[2, 3]);
    lagging.hold(&[4]);
    let mut pass = lagging.pass();
    assert_eq!(message(lagging.begin(&mut pass)).as_deref(), Some("4 evictions counted; 2 more reserved"));
    assert!(!lagging.may_evict(4));
    let lost = Err(ApiError::new(ApiErrorKind::Unknown, "lost by the test"));
    let _retried = pass.step(&mut lagging.core, Some(lost), lagging.now);
    assert!(!lagging.may_evict(4));
    lagging.store();
    assert!(lagging.may_evict(4));
}

#[test]
fn pods_that_wait_come_before_those_that_are_due_later() {
    let mut lagging = Lagging::new();
    lagging.hold(&[2, 3]);
    assert_eq!([2, 3, 4].map(|pod| lagging.may_evict(pod)), [true, true, false], "two slots are free");
    let (pod, eviction) = lagging.pods[2].clone();
    lagging.core.leave_rules(&pod, &eviction, lagging.now);
    assert!(lagging.may_evict(4), "one pod waits for two slots");
}

/// A write of an earlier leader with a lower number reaches the server after the write of this one, and the watch shows it before the
/// answer.
#[test]
fn a_lower_number_that_is_shown_during_a_write_is_corrected() {
    for shown in ["3 evictions counted", "4 evictions counted"] {
        let mut lagging = Lagging::new();
        lagging.take(&[2, 3]);
        lagging.hold(&[4]);
        let mut pass = lagging.pass();
        let write = lagging.begin(&mut pass).unwrap();
        assert_eq!(message(Some(write.clone())).as_deref(), Some("4 evictions counted; 2 more reserved"));
        lagging.show(Some(write.clone()));
        let mut late = write;
        late.conditions.last_mut().unwrap().message = shown.to_owned();
        lagging.show(Some(late));
        let _before = lagging.effects();
        lagging.stored(&mut pass);
        assert!(!lagging.may_evict(4), "{shown}");
        assert_eq!(lagging.effects(), [lagging.id.clone()], "{shown}");
        lagging.store();
        assert!(lagging.may_evict(4), "{shown}");
    }
}

/// Two pods give their slots back, and one stops waiting. Two others are left.
#[test]
fn pods_that_leave_together_queue_the_others_once() {
    let mut lagging = Lagging::new();
    lagging.hold(&[2, 3, 4]);
    let _before = lagging.effects();
    for pod in [0, 1, 2] {
        let (pod, eviction) = lagging.pods[pod].clone();
        lagging.core.leave_rules(&pod, &eviction, lagging.now);
    }
    let queued: Vec<_> = lagging.core.take_effects().pods.into_iter().map(|(_, pod, _)| pod.key.name).collect();
    assert_eq!(queued, ["p4", "p5"], "each pod that waits");
    assert!(!lagging.core.has_work());
}

/// The answers to the reads of pods may come in any order.
#[test]
fn a_pod_takes_its_slot_before_it_is_read() {
    let mut world = limited(1);
    let rule = world.queue.take(world.now).unwrap();
    let mut pass = world.core.begin(&rule);
    assert!(matches!(pass.step(&mut world.core, None, world.now), Step::Call(_)));
    let _finished = pass.step(&mut world.core, Some(Ok(Answer::Done)), world.now);
    let mut passes = ["p1", "p2"].map(|name| {
        let pod = world.core.pending().into_keys().find(|pod| pod.key.name == name).unwrap();
        world.core.begin(&Item::Pod(pod))
    });
    assert!(matches!(passes[0].step(&mut world.core, None, world.now), Step::Call(Request::GetPod(_))));
    assert!(matches!(passes[1].step(&mut world.core, None, world.now), Step::Done(_)), "the pod waits");
    let gone = Err(ApiError::new(ApiErrorKind::NotFound, "gone in the test"));
    assert!(matches!(passes[0].step(&mut world.core, Some(gone), world.now), Step::Done(_)));
    let waiting: Vec<_> = world.core.take_effects().pods.into_iter().map(|(_, pod, _)| pod.key.name).collect();
    assert_eq!(waiting, ["p2"], "the pod that is gone gives its slot back");
}
