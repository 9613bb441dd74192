//! What the controller knows of the number of evictions that the server has stored.

use super::*;

/// A rule with the limit 20 for five pods. Further pods wait while two evictions are not stored. The watch shows what the test says.
struct Lagging {
    core: Core,
    now: Time,
    rule: DeviceTaintRule,
    id: RuleId,
    pods: Vec<(PodId, Eviction)>,
}

impl Lagging {
    /// The rule after two evictions, which the status has. The watch has shown that.
    fn new() -> Self {
        let World { core, now, .. } = limited(20);
        let pods = core.pending().into_iter().collect();
        let id = RuleId { name: "r".into(), uid: "r-uid".into() };
        let mut this = Lagging { core, now, rule: rule(), id, pods };
        this.take(&[0, 1]);
        let mut pass = this.pass();
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
        self.core.take_effects().rules_now
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
    assert_eq!(message(lower).as_deref(), Some("1 eviction counted"));
    lagging.stored(&mut pass);
    lagging.take(&[2]);
    lagging.now = lagging.now + Duration::from_secs(10);
    let mut pass = lagging.pass();
    let write = lagging.begin(&mut pass);
    assert_eq!(message(write).as_deref(), Some("2 evictions counted"), "the watch still shows the first write");
}

#[test]
fn a_late_write_with_a_lower_number_is_corrected_before_further_pods_get_slots() {
    let mut lagging = Lagging::new();
    lagging.show(None);
    assert_eq!(lagging.effects(), [lagging.id.clone()]);
    assert!(!lagging.core.may_evict(&lagging.id, &lagging.pods[2].0));
    let mut pass = lagging.pass();
    let write = lagging.begin(&mut pass);
    assert_eq!(message(write).as_deref(), Some("2 evictions counted"));
    lagging.stored(&mut pass);
    assert!(lagging.core.may_evict(&lagging.id, &lagging.pods[2].0));
}

#[test]
fn a_write_that_lowers_the_stored_number_is_followed_by_another_one() {
    let mut lagging = Lagging::new();
    lagging.free(1);
    lagging.now = lagging.now + Duration::from_secs(10);
    let mut pass = lagging.pass();
    assert_eq!(message(lagging.begin(&mut pass)).as_deref(), Some("1 eviction counted"));
    lagging.take(&[2, 3]);
    assert_eq!(lagging.effects(), [], "one of three evictions is not stored");
    lagging.stored(&mut pass);
    assert_eq!(lagging.effects(), [lagging.id.clone()], "two of three evictions are not stored");
}
