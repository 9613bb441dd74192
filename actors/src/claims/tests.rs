//! Tests of single steps, and of sequences of them.

mod model;
mod releases;

use std::collections::BTreeMap;

use super::fault::{ClaimFault, DriverAnswer, check_answer};
use super::file;
use super::record::{AllocatedDevice, NeededClaim};
use super::step::{Effect, Event, Method};
use super::table::{ClaimTable, OperationId};
use crate::ids::{ClaimName, ClaimUid, DriverName, PodUid};
use crate::ports::{ClaimRef, DriverError, PreparedDevice};

fn claim_name(name: &str) -> ClaimName {
    ClaimName::new("shop", name)
}

fn driver(name: &str) -> DriverName {
    name.into()
}

fn needed(name: &str, uid: &str, drivers: &[&str]) -> NeededClaim {
    allocated(name, uid, drivers, "g0")
}

/// A claim to which each driver has allocated a device of this name.
fn allocated(name: &str, uid: &str, drivers: &[&str], device: &str) -> NeededClaim {
    let result = |name: &&str| AllocatedDevice {
        driver: driver(name),
        pool: "n7".to_owned(),
        device: device.to_owned(),
        share_id: None,
    };
    NeededClaim {
        name: claim_name(name),
        uid: uid.into(),
        drivers: drivers.iter().map(|name| driver(name)).collect(),
        results: drivers.iter().map(result).collect(),
    }
}

fn device(name: &str) -> PreparedDevice {
    PreparedDevice {
        pool: "n7".into(),
        device: name.into(),
        cdi_devices: vec![format!("acme.test/gpu={name}")],
        ..PreparedDevice::default()
    }
}

/// A table whose file always works and whose drivers answer when the test says so.
#[derive(Default)]
struct Node {
    table: ClaimTable,
    operations: OperationId,
    calls: Vec<(OperationId, DriverName, Method, Vec<ClaimRef>)>,
    done: BTreeMap<OperationId, Vec<ClaimFault>>,
    /// The claims to which a pod no longer refers, in the order of their releases.
    released: Vec<String>,
    writes: usize,
    file_is_full: bool,
}

impl Node {
    fn drive(&mut self, event: Event) {
        let mut save = false;
        for effect in self.table.step(event) {
            match effect {
                Effect::Save => save = true,
                Effect::Call { operation, driver, method, claims } => {
                    self.calls.push((operation, driver, method, claims))
                }
                Effect::Released(claim) => self.released.push(claim.name().to_owned()),
                Effect::Done { operation, faults } => {
                    self.done.insert(operation, faults);
                }
            }
        }
        if save {
            self.writes += 1;
            let version = self.table.unsaved().0;
            let error = "no space left".to_owned();
            self.drive(if self.file_is_full { Event::NotSaved { version, error } } else { Event::Saved(version) });
        }
    }

    fn prepare(&mut self, pod: &str, claims: &[NeededClaim]) -> OperationId {
        self.operations += 1;
        let operation = self.operations;
        self.drive(Event::Prepare { operation, pod: PodUid::new(pod), claims: claims.to_vec() });
        operation
    }

    fn release(&mut self, pod: &str) -> OperationId {
        self.operations += 1;
        let operation = self.operations;
        self.drive(Event::Release { operation, pod: PodUid::new(pod) });
        operation
    }

    /// The calls that wait for an answer, as `DRIVER METHOD CLAIM,CLAIM`.
    fn waiting(&self) -> Vec<String> {
        let text = |(_, driver, method, claims): &(_, DriverName, Method, Vec<ClaimRef>)| {
            let names: Vec<_> = claims.iter().map(|claim| claim.name.name()).collect();
            format!("{driver} {method:?} {}", names.join(","))
        };
        self.calls.iter().map(text).collect()
    }

    /// Answers the oldest call of a driver, with a device of this name, or with an error.
    fn answer(&mut self, name: &str, answer: Result<&str, &str>) {
        self.answer_with(name, answer.map_err(|error| DriverError::failed(error.to_owned())));
    }

    fn answer_with(&mut self, name: &str, answer: Result<&str, DriverError>) {
        let at = self.calls.iter().position(|(_, driver, ..)| driver.as_str() == name).expect("the driver was called");
        let (operation, driver, _, claims) = self.calls.remove(at);
        let answer = match answer {
            Ok(name) => Ok(claims.iter().map(|claim| (claim.uid.clone(), Ok(vec![device(name)]))).collect()),
            Err(error) => Err(error),
        };
        let answer = check_answer(&driver, &claims, answer);
        self.drive(Event::Answered { operation, driver, claims, answer });
    }

    fn succeeded(&self, operation: OperationId) -> bool {
        self.done.get(&operation).is_some_and(Vec::is_empty)
    }

    fn fault(&self, operation: OperationId) -> String {
        self.done[&operation].iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }

    fn restart(&mut self) {
        let records: Vec<_> =
            self.table.saved_records().map(|(name, record)| file::write(name, Some(record))).collect();
        self.table = ClaimTable::restore(file::read(&records).unwrap());
        self.calls.clear();
    }
}

/// DRA-P8, DRA-P6: one call, and none for a claim that is prepared.
#[test]
fn claim_is_prepared_once() {
    let mut node = Node::default();
    let first = node.prepare("p-1", &[needed("cam", "c-1", &["gpu"])]);
    assert_eq!(node.waiting(), ["gpu Prepare cam"]);
    assert!(!node.done.contains_key(&first));
    node.answer("gpu", Ok("g0"));
    assert!(node.succeeded(first));
    let record = node.table.record(&claim_name("cam")).unwrap();
    assert!(record.is_prepared && node.table.holds(&"p-1".into()));
    assert_eq!(record.drivers[&driver("gpu")].devices, [device("g0")]);
    let writes = node.writes;
    let again = node.prepare("p-1", &[needed("cam", "c-1", &["gpu"])]);
    assert!(node.succeeded(again) && node.calls.is_empty());
    assert_eq!(node.writes, writes, "nothing has changed");
}

/// DRA-P13, DRA-U2 and KF39: the second pod calls only for its own claim, and the first release leaves the shared one alone.
#[test]
fn shared_claim_is_released_by_its_last_pod() {
    let mut node = Node::default();
    let cam = needed("cam", "c-1", &["gpu"]);
    node.prepare("p-1", std::slice::from_ref(&cam));
    node.answer("gpu", Ok("g0"));
    let second = node.prepare("p-2", &[cam, needed("mic", "c-2", &["gpu"])]);
    assert_eq!(node.waiting(), ["gpu Prepare mic"]);
    node.answer("gpu", Ok("g1"));
    assert!(node.succeeded(second));
    let release = node.release("p-1");
    assert!(node.succeeded(release) && node.calls.is_empty());
    let release = node.release("p-2");
    assert_eq!(node.waiting(), ["gpu Unprepare cam,mic"]);
    assert!(node.table.holds(&"p-2".into()));
    node.answer("gpu", Ok("g0"));
    assert!(node.succeeded(release) && node.table.records().is_empty());
}

/// Weakness 1 of upstream: a pod that merely names a claim releases nothing.
#[test]
fn pod_without_a_reference_releases_nothing() {
    let mut node = Node::default();
    node.prepare("p-1", &[needed("cam", "c-1", &["gpu"])]);
    node.answer("gpu", Ok("g0"));
    let release = node.release("p-2");
    assert!(node.succeeded(release) && node.calls.is_empty());
    assert!(node.table.record(&claim_name("cam")).unwrap().is_prepared);
}

/// DRA-P14, and POD-W21: all drivers are called at once, and a failed one is called again together with the others.
#[test]
fn claim_of_two_drivers_is_prepared_when_both_succeed() {
    let mut node = Node::default();
    let cam = needed("cam", "c-1", &["gpu", "nic"]);
    let first = node.prepare("p-1", std::slice::from_ref(&cam));
    assert_eq!(node.waiting(), ["gpu Prepare cam", "nic Prepare cam"]);
    node.answer("nic", Err("not ready"));
    node.answer("gpu", Ok("g0"));
    assert_eq!(node.fault(first), "not ready");
    let again = node.prepare("p-1", &[cam]);
    assert_eq!(node.waiting(), ["gpu Prepare cam", "nic Prepare cam"]);
    node.answer("gpu", Ok("g0"));
    node.answer("nic", Ok("n0"));
    assert!(node.succeeded(again));
    // KF42: the devices are replaced, and not appended.
    assert_eq!(node.table.record(&claim_name("cam")).unwrap().drivers[&driver("gpu")].devices, [device("g0")]);
}

/// POD-W21: a driver that does not answer keeps only its own claims.
#[test]
fn dead_driver_keeps_only_its_own_claims() {
    let mut node = Node::default();
    node.prepare("p-1", &[needed("cam", "c-1", &["gpu"]), needed("mic", "c-2", &["nic"])]);
    node.answer("gpu", Ok("g0"));
    node.answer("nic", Ok("n0"));
    let release = node.release("p-1");
    node.answer("nic", Ok("n0"));
    assert!(node.table.record(&claim_name("mic")).is_none(), "the claim of the other driver is released");
    node.answer("gpu", Err("unavailable"));
    assert_eq!(node.fault(release), "unavailable");
    assert!(node.table.holds(&"p-1".into()));
    let release = node.release("p-1");
    assert_eq!(node.waiting(), ["gpu Unprepare cam"]);
    node.answer("gpu", Ok("g0"));
    assert!(node.succeeded(release) && node.table.records().is_empty());
}

/// DRA-P11 and DRA-U6: a claim that replaced another one of its name waits until the old one is released.
#[test]
fn replaced_claim_waits_for_the_release_of_the_old_one() {
    let mut node = Node::default();
    node.prepare("p-1", &[needed("cam", "c-0", &["gpu"])]);
    node.answer("gpu", Ok("g0"));
    let new = [needed("cam", "c-1", &["gpu"])];
    let refused = node.prepare("p-2", &new);
    assert_eq!(node.fault(refused), "ResourceClaim cam: the earlier claim with UID c-0 is not released yet");
    assert!(node.calls.is_empty() && !node.table.holds(&"p-2".into()));
    node.release("p-1");
    let waiting = node.prepare("p-2", &new);
    assert_eq!(node.waiting(), ["gpu Unprepare cam"], "KF40: the prepare waits for the release");
    node.answer("gpu", Ok("g0"));
    assert_eq!(node.waiting(), ["gpu Prepare cam"]);
    node.answer("gpu", Ok("g0"));
    assert!(node.succeeded(waiting));
    assert_eq!(node.table.record(&claim_name("cam")).unwrap().uid, ClaimUid::from("c-1"));
}

/// A second pod waits for the call of the first one, and needs none of its own.
#[test]
fn second_pod_waits_for_the_call_of_the_first() {
    let mut node = Node::default();
    let cam = [needed("cam", "c-1", &["gpu"])];
    let first = node.prepare("p-1", &cam);
    let second = node.prepare("p-2", &cam);
    assert_eq!(node.calls.len(), 1);
    node.answer("gpu", Err("busy"));
    assert!(!node.succeeded(first));
    assert_eq!(node.waiting(), ["gpu Prepare cam"], "the second pod makes its own call");
    node.answer("gpu", Ok("g0"));
    assert!(node.succeeded(second));
}

/// KF40: a prepare that waits for a busy claim delays no prepare of its other claims, and is not delayed for ever.
#[test]
fn waiting_prepare_is_overtaken_on_claims_that_are_free() {
    let mut node = Node::default();
    let [cam, mic, net] = [("cam", "gpu"), ("mic", "nic"), ("net", "nic")].map(|(name, d)| needed(name, name, &[d]));
    node.prepare("p-1", std::slice::from_ref(&cam));
    let waiting = node.prepare("p-2", &[cam.clone(), mic.clone()]);
    let several = node.prepare("p-3", &[mic.clone(), net.clone()]);
    assert_eq!(node.waiting(), ["gpu Prepare cam", "nic Prepare mic,net"]);
    let queued = node.prepare("p-4", &[cam, net.clone()]);
    node.answer("nic", Ok("n0"));
    let alone = node.prepare("p-5", &[net]);
    assert!(node.succeeded(several) && node.succeeded(alone));
    node.answer("gpu", Ok("g0"));
    assert!(node.calls.is_empty() && node.succeeded(waiting) && node.succeeded(queued));
    assert_eq!(node.table.record(&claim_name("cam")).unwrap().pods.len(), 3);

    // After 16 prepares have overtaken it, it keeps its place.
    let [one, two] = ["one", "two"].map(|name| needed(name, name, &[name]));
    node.prepare("q-0", std::slice::from_ref(&one));
    let both = node.prepare("both", &[one, two.clone()]);
    let first = node.prepare("q-1", std::slice::from_ref(&two));
    node.answer("two", Ok("g0"));
    assert!(node.succeeded(first));
    for pod in 2..=16 {
        let next = node.prepare(&format!("q-{pod}"), std::slice::from_ref(&two));
        assert!(node.succeeded(next));
    }
    let last = node.prepare("q-17", &[two]);
    assert!(!node.done.contains_key(&last) && !node.done.contains_key(&both));
    node.answer("one", Ok("g0"));
    assert!(node.succeeded(both) && node.succeeded(last));
}

/// KF41: the reference is in the file before the call; a file that cannot be written undoes it.
#[test]
fn unwritable_file_calls_no_driver() {
    let mut node = Node { file_is_full: true, ..Node::default() };
    let cam = [needed("cam", "c-1", &["gpu"])];
    let refused = node.prepare("p-1", &cam);
    assert_eq!(node.fault(refused), "the file of claims cannot be written: no space left");
    assert!(node.calls.is_empty() && node.table.records().is_empty());
    assert_eq!(node.released, ["cam"], "another pod may have waited for this reference");
    node.file_is_full = false;
    node.prepare("p-1", &cam);
    assert_eq!(node.waiting(), ["gpu Prepare cam"]);
}

/// KF38: a pod for which no call was sent is released without its driver.
#[test]
fn release_does_not_call_a_driver_that_was_never_called() {
    let mut node = Node::default();
    let cam = [needed("cam", "c-1", &["gpu"])];
    let first = node.prepare("p-1", &cam);
    let queued = node.prepare("p-2", &cam);
    // The second pod stops while its prepare waits for the first one.
    let release = node.release("p-2");
    assert!(node.succeeded(release) && node.succeeded(queued));
    node.answer("gpu", Ok("g0"));
    assert!(node.succeeded(first) && node.calls.is_empty());
    assert!(!node.table.holds(&"p-2".into()));
}

/// A release waits for the prepare of the same pod that is under way.
#[test]
fn release_waits_for_a_prepare_under_way() {
    let mut node = Node::default();
    node.prepare("p-1", &[needed("cam", "c-1", &["gpu"])]);
    let release = node.release("p-1");
    assert_eq!(node.waiting(), ["gpu Prepare cam"]);
    node.answer("gpu", Err("deadline exceeded"));
    assert_eq!(node.waiting(), ["gpu Unprepare cam"], "the driver may have prepared the claim before its call failed");
    node.answer("gpu", Ok("g0"));
    assert!(node.succeeded(release) && node.table.records().is_empty());
}

/// DRA-K4, DRA-U4 and KF37: after a restart the claim is known from the file alone, and is prepared again or released.
#[test]
fn restarted_agent_releases_the_claims_of_the_file() {
    let mut node = Node::default();
    let cam = [needed("cam", "c-1", &["gpu"])];
    node.prepare("p-1", &cam);
    node.answer("gpu", Ok("g0"));
    node.restart();
    let record = node.table.record(&claim_name("cam")).unwrap();
    assert!(!record.is_prepared, "CDI files may not have survived (KF43)");
    assert_eq!(record.drivers[&driver("gpu")].devices, [device("g0")]);
    node.prepare("p-1", &cam);
    assert_eq!(node.waiting(), ["gpu Prepare cam"]);
    node.answer("gpu", Ok("g1"));
    let devices = &node.table.record(&claim_name("cam")).unwrap().drivers[&driver("gpu")].devices;
    assert_eq!(*devices, [device("g1")], "the devices are replaced (KF42)");
    node.restart();
    let release = node.release("p-1");
    assert_eq!(node.waiting(), ["gpu Unprepare cam"]);
    node.answer("gpu", Ok("g0"));
    assert!(node.succeeded(release) && node.table.records().is_empty());
}

/// After a successful unprepare, a crash or a full disk does not release a claim twice.
#[test]
fn unwritten_release_is_written_again_without_a_call() {
    let mut node = Node::default();
    node.prepare("p-1", &[needed("cam", "c-1", &["gpu"])]);
    node.answer("gpu", Ok("g0"));
    node.release("p-1");
    node.file_is_full = true;
    node.answer("gpu", Ok("g0"));
    assert!(node.table.holds(&"p-1".into()), "the file still has the claim");
    node.file_is_full = false;
    let release = node.release("p-1");
    assert!(node.succeeded(release) && node.calls.is_empty() && node.table.records().is_empty());
}

/// KF36: an operator gives a dead driver up.
#[test]
fn given_up_driver_is_not_called() {
    let mut node = Node::default();
    node.prepare("p-1", &[needed("cam", "c-1", &["gpu", "nic"])]);
    node.answer("gpu", Ok("g0"));
    node.answer("nic", Ok("n0"));
    node.drive(Event::GiveUp { operation: 100, claim: claim_name("cam"), driver: driver("gpu") });
    assert!(node.succeeded(100));
    node.restart();
    let release = node.release("p-1");
    assert_eq!(node.waiting(), ["nic Unprepare cam"]);
    node.answer("nic", Ok("n0"));
    assert!(node.succeeded(release) && node.table.records().is_empty());
}

/// The drivers of a pod that lost a device prepare its claims again, and no others.
#[test]
fn claims_of_a_pod_that_lost_a_device_are_prepared_again() {
    let mut node = Node::default();
    let [cam, mic] = ["cam", "mic"].map(|name| needed(name, name, &["gpu"]));
    for (pod, claim) in [("p-1", &cam), ("p-2", &mic)] {
        node.prepare(pod, std::slice::from_ref(claim));
        node.answer("gpu", Ok("g0"));
    }
    let shared = node.prepare("p-3", std::slice::from_ref(&cam));
    assert!(node.succeeded(shared) && node.calls.is_empty());
    let writes = node.writes;
    node.drive(Event::DevicesLost { pod: "p-1".into() });
    assert!(node.calls.is_empty() && node.writes == writes, "the pod has not asked for its devices yet");
    let is_prepared = |node: &Node, name| node.table.record(&claim_name(name)).unwrap().is_prepared;
    assert_eq!((is_prepared(&node, "cam"), is_prepared(&node, "mic")), (false, true));
    let again = node.prepare("p-1", std::slice::from_ref(&cam));
    assert_eq!(node.waiting(), ["gpu Prepare cam"]);
    node.answer("gpu", Ok("g1"));
    assert!(node.succeeded(again) && is_prepared(&node, "cam"));
    assert_eq!(node.table.record(&claim_name("cam")).unwrap().drivers[&driver("gpu")].devices, [device("g1")]);
    let other = node.prepare("p-3", &[cam]);
    assert!(node.succeeded(other) && node.calls.is_empty(), "the claim is prepared for both pods");

    // A pod that stops first releases its claims as usual.
    node.drive(Event::DevicesLost { pod: "p-2".into() });
    let release = node.release("p-2");
    assert_eq!(node.waiting(), ["gpu Unprepare mic"]);
    node.answer("gpu", Ok("g0"));
    assert!(node.succeeded(release) && !node.table.holds(&"p-2".into()));
}

/// An allocation without results needs no driver.
#[test]
fn claim_without_drivers_is_prepared_at_once() {
    let mut node = Node::default();
    let prepare = node.prepare("p-1", &[needed("cam", "c-1", &[])]);
    assert!(node.succeeded(prepare));
    let release = node.release("p-1");
    assert!(node.succeeded(release) && node.table.records().is_empty());
}

/// DRA-P3, DRA-U1: what an answer may look like.
#[test]
fn answers_are_checked() {
    let claims = [needed("cam", "c-1", &[]), needed("mic", "c-2", &[])]
        .map(|claim| ClaimRef { name: claim.name, uid: claim.uid });
    let check = |answer: &[(&str, Result<(), &str>)]| -> DriverAnswer<()> {
        let answers = answer.iter().map(|(uid, result)| ((*uid).into(), result.map_err(str::to_owned))).collect();
        check_answer(&driver("gpu"), &claims, Ok(answers))
    };
    let faults = |answer: DriverAnswer<()>| answer.faults.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert!(faults(check(&[("c-1", Ok(())), ("c-2", Ok(()))])).is_empty());
    let skipped = check(&[("c-1", Ok(()))]);
    assert_eq!(skipped.succeeded.keys().map(ClaimName::name).collect::<Vec<_>>(), ["cam"]);
    assert_eq!(faults(skipped), ["DRA driver gpu skipped 1 of 2 claims"]);
    let refused = check(&[("c-1", Ok(())), ("c-2", Err("no such device"))]);
    assert_eq!(faults(refused), ["ResourceClaim mic, DRA driver gpu: no such device"]);
    let foreign = check(&[("c-1", Ok(())), ("c-2", Ok(())), ("c-3", Ok(()))]);
    assert!(foreign.succeeded.is_empty());
    assert_eq!(faults(foreign), ["DRA driver gpu answered for the claim UID c-3, which was not in the call"]);
}

/// DRA-K1, DRA-K2: records survive the file, also those of older and newer agents.
#[test]
fn records_survive_the_file() {
    let mut node = Node::default();
    node.prepare("p-1", &[needed("cam", "c-1", &["gpu"])]);
    node.answer("gpu", Ok("g0"));
    let name = claim_name("cam");
    let record = node.table.record(&name).unwrap().clone();
    let lines = [file::write(&name, Some(&record)), file::write(&claim_name("mic"), Some(&record))];
    let read = file::read(&lines).unwrap();
    assert_eq!(read[&name].drivers, record.drivers);
    assert_eq!(read.len(), 2);
    let gone = file::read(&[lines[0].clone(), file::write(&name, None)]).unwrap();
    assert!(gone.is_empty());
    let old = r#"{"ClaimUID":"c","ClaimName":"n","Namespace":"s","PodUIDs":{"p":{}},"DriverState":{"d":{"Devices":[{"PoolName":"a","DeviceName":"b","CDIDeviceIDs":null}]},"e":{"Devices":null}},"New":1}"#;
    let old = file::read(&[old.to_owned()]).unwrap();
    assert_eq!(old[&ClaimName::new("s", "n")].drivers[&driver("d")].devices[0].requests, Vec::<String>::new());
    assert!(file::read(&["{".to_owned()]).is_err());
}

/// A kubelet writes an empty map, and reads `null` as an empty value of every kind.
#[test]
fn null_is_empty_in_the_file() {
    let null = r#"{"ClaimUID":"c","ClaimName":"n","Namespace":"s","PodUIDs":null,"DriverState":null}"#;
    let read = file::read(&[null.to_owned()]).unwrap();
    let record = &read[&ClaimName::new("s", "n")];
    assert!(record.pods.is_empty() && record.drivers.is_empty());
    let null = r#"{"ClaimUID":null,"ClaimName":"n","Namespace":null,"PodUIDs":{"p":null},
        "DriverState":{"d":null,"e":{"Devices":[{"PoolName":null,"DeviceName":"g0","RequestNames":[null]}]}}}"#;
    let read = file::read(&[null.to_owned()]).unwrap();
    let record = &read[&ClaimName::new("", "n")];
    assert!(record.pods.contains(&PodUid::new("p")) && record.drivers[&driver("d")].devices.is_empty());
    assert_eq!(record.drivers[&driver("e")].devices[0].device, "g0");
}
