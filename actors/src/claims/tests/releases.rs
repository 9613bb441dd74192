//! What a release waits for, and which drivers it must call.

use super::*;

/// POD-W21: a claim with a call that does not return delays neither the release of another claim nor those who wait for it.
#[test]
fn busy_claim_delays_the_release_of_no_other_claim() {
    let mut node = Node::default();
    let (cam, mic) = (needed("cam", "c-1", &["gpu"]), needed("mic", "c-2", &["nic"]));
    node.prepare("p-1", &[cam.clone(), mic.clone()]);
    node.answer("gpu", Ok("g0"));
    node.answer("nic", Ok("n0"));
    // After a restart, the next pod of a claim calls its drivers again.
    node.restart();
    let second = node.prepare("p-2", std::slice::from_ref(&cam));
    let release = node.release("p-1");
    assert_eq!(node.waiting(), ["gpu Prepare cam", "nic Unprepare mic"]);
    let third = node.prepare("p-3", &[mic]);
    node.answer("nic", Ok("n0"));
    assert_eq!(node.waiting(), ["gpu Prepare cam", "nic Prepare mic"]);
    node.answer("nic", Ok("n0"));
    assert!(node.succeeded(third) && !node.done.contains_key(&release));
    node.answer("gpu", Ok("g0"));
    assert!(node.succeeded(second) && node.succeeded(release) && !node.table.holds(&"p-1".into()));
    assert_eq!(node.table.records().len(), 2, "the other pods have the claims");
}

/// A prepare that waits for a busy claim does not delay the release of its other claims.
#[test]
fn release_overtakes_a_prepare_that_has_not_begun() {
    let mut node = Node::default();
    let (cam, mic) = (needed("cam", "c-1", &["gpu"]), needed("mic", "c-2", &["nic"]));
    node.prepare("p-1", std::slice::from_ref(&mic));
    node.answer("nic", Ok("n0"));
    node.prepare("p-2", std::slice::from_ref(&cam));
    let both = node.prepare("p-3", &[cam, mic]);
    let release = node.release("p-1");
    assert_eq!(node.waiting(), ["gpu Prepare cam", "nic Unprepare mic"]);
    node.answer("nic", Ok("n0"));
    assert!(node.succeeded(release));
    node.answer("gpu", Ok("g0"));
    assert_eq!(node.waiting(), ["nic Prepare mic"], "the claim was released, and is prepared again");
    node.answer("nic", Ok("n0"));
    assert!(node.succeeded(both));
}

/// After a prepare that fails, a driver that was given up is still not called to unprepare. After one that succeeds, it is.
#[test]
fn give_up_lasts_over_failed_prepares() {
    let mut node = Node::default();
    let cam = [needed("cam", "c-1", &["gpu"])];
    node.prepare("p-1", &cam);
    node.answer("gpu", Err("broken"));
    node.drive(Event::GiveUp { operation: 100, claim: claim_name("cam"), driver: driver("gpu") });
    node.prepare("p-1", &cam);
    node.answer("gpu", Err("broken"));
    let release = node.release("p-1");
    assert!(node.succeeded(release) && node.calls.is_empty() && node.table.records().is_empty());
    node.prepare("p-2", &cam);
    node.answer("gpu", Ok("g0"));
    node.drive(Event::GiveUp { operation: 101, claim: claim_name("cam"), driver: driver("gpu") });
    node.restart();
    node.prepare("p-2", &cam);
    node.answer("gpu", Ok("g0"));
    node.restart();
    node.release("p-2");
    assert_eq!(node.waiting(), ["gpu Unprepare cam"]);
}

fn give_up(node: &mut Node, operation: OperationId, claim: &str) {
    node.drive(Event::GiveUp { operation, claim: claim_name(claim), driver: driver("gpu") });
}

/// KF36: a driver that hangs delays neither the operator nor the release. No prepare runs beside its call, and its late answer has no
/// effect.
#[test]
fn given_up_driver_need_not_answer() {
    for late in [Ok("g0"), Err("deadline exceeded")] {
        let mut node = Node::default();
        let cam = [needed("cam", "c-1", &["gpu", "nic"])];
        node.prepare("p-1", &cam);
        node.answer("gpu", Ok("g0"));
        node.answer("nic", Ok("n0"));
        let release = node.release("p-1");
        give_up(&mut node, 100, "cam");
        assert!(node.succeeded(100) && !node.done.contains_key(&release), "the other driver has not answered");
        node.answer("nic", Ok("n0"));
        assert!(node.succeeded(release) && node.table.records().is_empty());
        assert_eq!(node.released, ["cam"]);
        let next = node.prepare("p-2", &cam);
        assert_eq!(node.waiting(), ["gpu Unprepare cam"], "the old call may still run");
        assert_eq!(node.table.running(&"p-2".into()), [(claim_name("cam"), Some(driver("gpu")))]);
        node.answer("gpu", late);
        assert_eq!(node.waiting(), ["gpu Prepare cam", "nic Prepare cam"]);
        node.answer("gpu", Ok("g0"));
        node.answer("nic", Ok("n0"));
        assert!(node.succeeded(next) && node.table.abandoned.is_empty());
    }
}

/// One call has several claims, and an operator gives the driver up for one of them.
#[test]
fn late_answer_counts_for_the_claims_that_still_wait_for_it() {
    let mut node = Node::default();
    let (cam, mic) = (needed("cam", "c-1", &["gpu"]), needed("mic", "c-2", &["gpu"]));
    node.prepare("p-1", &[cam, mic]);
    node.answer("gpu", Ok("g0"));
    let release = node.release("p-1");
    assert_eq!(node.waiting(), ["gpu Unprepare cam,mic"]);
    give_up(&mut node, 100, "cam");
    assert!(node.table.record(&claim_name("cam")).is_none() && !node.done.contains_key(&release));
    node.answer("gpu", Err("busy"));
    let [fault] = &node.done[&release][..] else { panic!("{:?}", node.done) };
    assert_eq!((fault.claims(), fault.driver()), (&[claim_name("mic")][..], Some(&driver("gpu"))));
    let again = node.release("p-1");
    assert_eq!(node.waiting(), ["gpu Unprepare mic"]);
    node.answer("gpu", Ok("g0"));
    assert!(node.succeeded(again) && node.table.records().is_empty());
}

/// A pod is deleted while the driver hangs in its prepare. Its release also goes before the prepare of another pod, which waits for the
/// end of the call.
#[test]
fn driver_that_hangs_in_a_prepare_can_be_given_up() {
    let mut node = Node::default();
    let cam = [needed("cam", "c-1", &["gpu"])];
    let first = node.prepare("p-1", &cam);
    let second = node.prepare("p-2", &cam);
    let release = node.release("p-1");
    give_up(&mut node, 100, "cam");
    assert!(node.succeeded(100));
    assert_eq!(node.fault(first), "ResourceClaim cam: DRA driver gpu was given up before it answered");
    assert!(node.succeeded(release) && node.table.records().is_empty());
    assert_eq!(node.waiting(), ["gpu Prepare cam"]);
    node.answer("gpu", Ok("g0"));
    assert_eq!(node.waiting(), ["gpu Prepare cam"], "the second pod makes its own call");
    node.answer("gpu", Ok("g0"));
    assert!(node.succeeded(second));
    node.release("p-2");
    assert_eq!(node.waiting(), ["gpu Unprepare cam"]);
}

/// A reference that the file still has is removed from it by the next release.
#[test]
fn unwritten_removal_of_a_reference_is_written_by_the_next_release() {
    let mut node = Node::default();
    let cam = [needed("cam", "c-1", &["gpu"])];
    node.prepare("p-1", &cam);
    node.answer("gpu", Ok("g0"));
    node.prepare("p-2", &cam);
    node.file_is_full = true;
    let refused = node.release("p-1");
    assert!(node.fault(refused).contains("no space left") && node.table.holds(&"p-1".into()));
    let again = node.release("p-1");
    assert!(node.fault(again).contains("no space left"));
    node.file_is_full = false;
    let writes = node.writes;
    let release = node.release("p-1");
    assert!(node.succeeded(release) && node.writes == writes + 1 && !node.table.holds(&"p-1".into()));
    assert!(node.table.holds(&"p-2".into()) && node.calls.is_empty());
}

/// KF38: a call that was not sent needs no release, and a call that failed does.
#[test]
fn call_that_was_not_sent_needs_no_release() {
    let mut node = Node::default();
    let cam = [needed("cam", "c-1", &["gpu", "nic"])];
    node.prepare("p-1", &cam);
    let unsent = [DriverError::NotRegistered(driver("gpu")), DriverError::unreachable("connection refused".to_owned())];
    for (name, error) in ["gpu", "nic"].into_iter().zip(unsent.clone()) {
        node.answer_with(name, Err(error));
    }
    let release = node.release("p-1");
    assert!(node.succeeded(release) && node.calls.is_empty() && node.table.records().is_empty());
    // An earlier call to `gpu` may have prepared the claim. A later call that was not sent does not change that.
    node.prepare("p-1", &cam);
    node.answer("gpu", Err("deadline exceeded"));
    node.answer_with("nic", Err(unsent[1].clone()));
    node.prepare("p-1", &cam);
    for (name, error) in ["gpu", "nic"].into_iter().zip(unsent) {
        node.answer_with(name, Err(error));
    }
    node.release("p-1");
    assert_eq!(node.waiting(), ["gpu Unprepare cam"]);
}

/// Somebody else wrote the record. Without a pod, nobody would release it, and a claim that replaces it would wait for ever.
#[test]
fn claim_without_a_pod_in_the_file_is_released() {
    let record =
        r#"{"ClaimUID":"c-0","ClaimName":"cam","Namespace":"shop","PodUIDs":{},"DriverState":{"gpu":{"Devices":[]}}}"#;
    let records = file::read(&[record.to_owned()]).unwrap();
    let mut node = Node { table: ClaimTable::restore(records), ..Node::default() };
    let held: Vec<_> = node.table.pods().map(ToString::to_string).collect();
    assert_eq!(held, ["unknown"], "the pass over ended pods releases it");
    let release = node.release("unknown");
    node.answer("gpu", Ok("g0"));
    assert!(node.succeeded(release) && node.table.records().is_empty());
}

/// KF38: the file distinguishes a call that was not sent from one that may have been sent.
#[test]
fn restarted_agent_knows_which_calls_were_not_sent() {
    let mut node = Node::default();
    let cam = [needed("cam", "c-1", &["gpu"])];
    let unsent = || Err(DriverError::unreachable("connection refused".to_owned()));
    let failed = node.prepare("p-1", &cam);
    node.answer_with("gpu", unsent());
    assert_eq!(node.fault(failed), "connection refused");
    node.restart();
    let release = node.release("p-1");
    assert!(node.succeeded(release) && node.calls.is_empty() && node.table.records().is_empty());
    // Before the next call, the file says that it may be sent.
    node.prepare("p-1", &cam);
    node.answer_with("gpu", unsent());
    node.restart();
    node.prepare("p-1", &cam);
    assert_eq!(node.waiting(), ["gpu Prepare cam"]);
    node.restart();
    node.release("p-1");
    assert_eq!(node.waiting(), ["gpu Unprepare cam"]);
}

/// A pod that was deleted by force may still use its devices when the control plane allocates others to the claim. The next pod
/// waits for the release of the earlier ones.
#[test]
fn claim_with_other_devices_waits_for_the_release_of_the_earlier_ones() {
    let mut node = Node::default();
    let earlier = allocated("cam", "c-1", &["gpu"], "g0");
    node.prepare("p-1", std::slice::from_ref(&earlier));
    node.answer("gpu", Ok("g0"));
    let later = [allocated("cam", "c-1", &["nic"], "n0")];
    let refused = node.prepare("p-2", &later);
    assert_eq!(node.fault(refused), "ResourceClaim cam: its earlier devices are not released yet");
    assert!(node.calls.is_empty() && !node.table.holds(&"p-2".into()));
    node.restart();
    let refused = node.prepare("p-2", &later);
    assert_eq!(node.fault(refused), "ResourceClaim cam: its earlier devices are not released yet", "after a restart");
    // The pod itself gets its new devices, and its former driver is released with the claim.
    let again = node.prepare("p-1", &later);
    node.answer("nic", Ok("n0"));
    assert!(node.succeeded(again));
    let record = node.table.record(&claim_name("cam")).unwrap();
    assert!(record.drivers[&driver("gpu")].devices.is_empty());
    node.release("p-1");
    assert_eq!(node.waiting(), ["gpu Unprepare cam", "nic Unprepare cam"]);
    node.answer("gpu", Ok("g0"));
    assert!(node.released.is_empty());
    node.answer("nic", Ok("n0"));
    assert_eq!(node.released, ["cam"], "the waiting pod is tried again");
    let next = node.prepare("p-2", &later);
    node.answer("nic", Ok("n0"));
    assert!(node.succeeded(next));
}
