//! The devices of claims as their drivers really have them. They outlive the agents. Each call to a driver is checked here.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::FutureExt;
use podwright_model::ids::{ClaimName, ClaimUid, DriverName, PodUid};
use podwright_model::time::Time;
use podwright_ports::{ClaimRef, ContainerConfig, ContainerRuntime, ContainerState};
use serde_json::Value;

use super::checks::CheckResult;
use super::machine::Machine;
use super::scenario::{ClaimPlan, Kind, Op, PodIndex, Scenario};

/// The part of a claim that one driver prepares.
pub(super) type Part = (ClaimUid, DriverName);

/// A claim in the file of claims.
#[derive(Debug)]
pub(super) struct StoredClaim {
    pub(super) uid: ClaimUid,
    pub(super) pods: BTreeSet<PodUid>,
    /// The CDI devices by driver.
    pub(super) devices: BTreeMap<DriverName, Vec<String>>,
}

/// The claims of a file, as a later agent reads them.
pub(super) fn stored_claims(records: &[String]) -> BTreeMap<ClaimName, StoredClaim> {
    let mut claims = BTreeMap::new();
    for record in records {
        let record: Value = serde_json::from_str(record).expect("a record of the file of claims is JSON");
        let text = |key: &str| record[key].as_str().unwrap_or_default();
        let name = ClaimName::new(text("Namespace"), text("ClaimName"));
        if record["Removed"] == true {
            claims.remove(&name);
            continue;
        }
        let pods = record["PodUIDs"].as_object().into_iter().flatten().map(|(uid, _)| PodUid::new(uid)).collect();
        let cdi = |driver: &Value| {
            let devices = driver["Devices"].as_array().into_iter().flatten();
            let names = devices.flat_map(|device| device["CDIDeviceIDs"].as_array().into_iter().flatten());
            names.filter_map(|name| Some(name.as_str()?.to_owned())).collect()
        };
        let drivers = record["DriverState"].as_object().into_iter().flatten();
        let devices = drivers.map(|(driver, state)| (driver.as_str().into(), cdi(state))).collect();
        claims.insert(name, StoredClaim { uid: text("ClaimUID").into(), pods, devices });
    }
    claims
}

/// The last call for a claim failed.
#[derive(Clone, Debug)]
pub(super) struct FailedCall {
    pub(super) op: Op,
    pub(super) driver: DriverName,
    pub(super) at: Time,
}

/// How a driver is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Absence {
    /// Its plugin has deregistered.
    Deregistered,
    /// It is registered, and does not answer.
    Unreachable,
}

#[derive(Default)]
pub(super) struct Devices {
    /// What drivers have prepared.
    prepared: BTreeSet<Part>,
    /// The calls in progress.
    calls: BTreeMap<Part, Op>,
    /// The CDI devices that the agent knows: of the last answer, or of the file when the agent started.
    known: BTreeMap<Part, Vec<String>>,
    /// The drivers that have to be called before a claim counts as released.
    duties: BTreeMap<ClaimUid, BTreeSet<DriverName>>,
    /// The parts whose last call released them.
    released: BTreeSet<Part>,
    failed: BTreeMap<ClaimUid, FailedCall>,
    away: BTreeMap<DriverName, (Time, Absence)>,
    /// The UIDs that the pods have in their sources.
    pods: BTreeMap<PodIndex, PodUid>,
    /// The number of calls.
    count: u64,
}

impl Devices {
    /// A new agent has read the file.
    pub(super) fn agent_started(&mut self, file: &BTreeMap<ClaimName, StoredClaim>) {
        self.calls.clear();
        self.released.clear();
        self.failed.clear();
        self.known.clear();
        self.duties.clear();
        for claim in file.values() {
            for (driver, devices) in &claim.devices {
                self.duties.entry(claim.uid.clone()).or_default().insert(driver.clone());
                self.known.insert((claim.uid.clone(), driver.clone()), devices.clone());
            }
        }
    }

    pub(super) fn set_pod(&mut self, which: PodIndex, uid: PodUid) {
        self.pods.insert(which, uid);
    }

    /// The UID that a pod has in its source.
    pub(super) fn pod(&self, which: PodIndex, scenario: &Scenario) -> PodUid {
        let first = || PodUid::new(&format!("{}-0", scenario.pods[which].name));
        self.pods.get(&which).cloned().unwrap_or_else(first)
    }

    pub(super) fn leave(&mut self, driver: DriverName, until: Time, absence: Absence) {
        self.away.insert(driver, (until, absence));
    }

    pub(super) fn all_return(&mut self) {
        self.away.clear();
    }

    pub(super) fn absence(&self, driver: &DriverName, now: Time) -> Option<Absence> {
        self.away.get(driver).filter(|(until, _)| *until > now).map(|(_, absence)| *absence)
    }

    /// The agent reads a claim from the API server, because it tries to prepare it.
    pub(super) fn claim_is_read(&mut self, uid: &ClaimUid) {
        self.failed.remove(uid);
    }

    pub(super) fn failed_calls(&self) -> &BTreeMap<ClaimUid, FailedCall> {
        &self.failed
    }

    /// A call begins. Returns its number.
    pub(super) fn begin(
        &mut self,
        op: Op,
        driver: &DriverName,
        claims: &[ClaimRef],
        file: &BTreeMap<ClaimName, StoredClaim>,
    ) -> Result<u64, String> {
        let mut result = Ok(());
        for claim in claims {
            let part = (claim.uid.clone(), driver.clone());
            result = result.and_then(|()| self.may_begin(op, &part, claim, file));
            self.failed.remove(&claim.uid);
            self.released.remove(&part);
            self.calls.insert(part, op);
            if op == Op::Prepare {
                self.duties.entry(claim.uid.clone()).or_default().insert(driver.clone());
            }
        }
        self.count += 1;
        result.map(|()| self.count)
    }

    fn may_begin(&self, op: Op, part: &Part, claim: &ClaimRef, file: &BTreeMap<ClaimName, StoredClaim>) -> CheckResult {
        let (uid, driver) = part;
        let other = self.calls.iter().find(|((other, by), active)| other == uid && (by == driver || **active != op));
        if let Some(((_, by), active)) = other {
            return Err(format!("{uid}: while {active:?} of {by} has not ended"));
        }
        match op {
            // The reference is on disk before a driver is called.
            Op::Prepare => match file.get(&claim.name) {
                Some(stored)
                    if stored.uid == *uid && !stored.pods.is_empty() && stored.devices.contains_key(driver) =>
                {
                    Ok(())
                }
                stored => Err(format!("{uid}: although the file has {stored:?}")),
            },
            _ if self.duties.get(uid).is_some_and(|drivers| drivers.contains(driver)) => Ok(()),
            _ => Err(format!("{uid}: although it is released, or was never prepared")),
        }
    }

    /// The driver does what it was called for.
    pub(super) fn perform(&mut self, op: Op, driver: &DriverName, claims: &[ClaimRef]) {
        for claim in claims {
            let part = (claim.uid.clone(), driver.clone());
            match op {
                Op::Prepare => self.prepared.insert(part),
                _ => self.prepared.remove(&part),
            };
        }
    }

    /// A call has ended. `succeeded` has the CDI devices of the claims that succeeded.
    pub(super) fn end(
        &mut self,
        op: Op,
        driver: &DriverName,
        claims: &[ClaimRef],
        succeeded: &BTreeMap<ClaimUid, Vec<String>>,
        at: Time,
    ) {
        for claim in claims {
            let part = (claim.uid.clone(), driver.clone());
            self.calls.remove(&part);
            match (succeeded.get(&claim.uid), op) {
                (None, _) => {
                    self.failed.insert(claim.uid.clone(), FailedCall { op, driver: driver.clone(), at });
                }
                (Some(devices), Op::Prepare) => {
                    self.known.insert(part, devices.clone());
                }
                (Some(_), _) => {
                    self.released.insert(part);
                    self.forget_if_released(&claim.uid);
                }
            }
        }
    }

    /// A claim is released when the last call of each of its drivers has released it.
    fn forget_if_released(&mut self, uid: &ClaimUid) {
        let is_released = |driver: &DriverName| self.released.contains(&(uid.clone(), driver.clone()));
        if self.duties.get(uid).is_some_and(|drivers| drivers.iter().all(is_released)) {
            self.duties.remove(uid);
            self.released.retain(|(of, _)| of != uid);
            self.known.retain(|(of, _), _| of != uid);
        }
    }

    /// The agent is killed, or its call panics. The driver has done what it was called for or has not.
    pub(super) fn interrupted(&mut self, op: Op, driver: &DriverName, claims: &[ClaimRef], is_done: bool, at: Time) {
        if is_done {
            self.perform(op, driver, claims);
        }
        self.end(op, driver, claims, &BTreeMap::new(), at);
    }

    /// The agent calls a driver that is not registered.
    pub(super) fn refused(&mut self, op: Op, driver: &DriverName, claims: &[ClaimRef], at: Time) {
        for claim in claims {
            self.released.remove(&(claim.uid.clone(), driver.clone()));
            self.failed.insert(claim.uid.clone(), FailedCall { op, driver: driver.clone(), at });
        }
    }

    pub(super) fn is_prepared(&self, part: &Part) -> bool {
        self.prepared.contains(part)
    }

    /// The CDI devices that a container with these claims has to get, each once.
    pub(super) fn expected<'a>(&self, parts: impl Iterator<Item = &'a Part>) -> Vec<String> {
        let mut devices: Vec<String> = Vec::new();
        for device in parts.flat_map(|part| self.known.get(part).into_iter().flatten()) {
            if !devices.contains(device) {
                devices.push(device.clone());
            }
        }
        devices
    }

    /// Nothing leaks: what a driver has prepared is in the file, so that an agent will release it.
    pub(super) fn are_stored(&self, file: &BTreeMap<ClaimName, StoredClaim>) -> CheckResult {
        let is_stored = |(uid, driver): &&Part| {
            file.values().any(|claim| claim.uid == *uid && !claim.pods.is_empty() && claim.devices.contains_key(driver))
        };
        match self.prepared.iter().find(|part| !is_stored(part)) {
            Some((uid, driver)) => {
                Err(format!("{uid}: {driver} has prepared it, and the file of claims does not have it"))
            }
            None => Ok(()),
        }
    }

    /// After the last pod, no driver has anything prepared.
    pub(super) fn are_all_released(&self) -> CheckResult {
        match self.prepared.first() {
            Some((uid, driver)) => Err(format!("{uid}: {driver} has it still prepared")),
            None => Ok(()),
        }
    }
}

impl Machine {
    /// No container of a pod runs with one of the claims, which are to be released.
    pub(super) fn nobody_uses(&self, claims: &[ClaimRef]) -> CheckResult {
        for pod in self.runtime.list_pods().now_or_never().unwrap().unwrap() {
            let of_pod = self.scenario.claims_of(&pod.uid).into_iter().map(|plan| plan.uid(&pod.uid));
            let used = of_pod.into_iter().find(|uid| claims.iter().any(|claim| claim.uid == *uid));
            let may_run = |state| matches!(state, ContainerState::Running | ContainerState::Unknown);
            // A sandbox uses no device, and one may appear long after its creation was given up.
            if let Some(uid) = used.filter(|_| pod.containers.iter().any(|container| may_run(container.state))) {
                return Err(format!("{uid}: while {} runs with it", pod.uid));
            }
        }
        Ok(())
    }

    /// A container is created or started: the drivers have prepared the claims of its pod, and it has exactly their devices.
    pub(super) fn check_devices(&self, pod: &PodUid, created: Option<&ContainerConfig>) {
        let parts: Vec<Part> = self.scenario.claims_of(pod).iter().flat_map(|plan| plan.parts(pod)).collect();
        let first = self.plan_of(pod).and_then(|plan| plan.of(Kind::Regular).next());
        let (unprepared, expected) = self.with_devices(|devices| {
            let unprepared = parts.iter().find(|part| !devices.is_prepared(part)).cloned();
            (unprepared, devices.expected(parts.iter()))
        });
        if let Some((claim, driver)) = unprepared {
            self.violated(format!("{pod}: a container starts although {driver} has not prepared {claim}"));
        }
        let Some(config) = created else { return };
        let is_user = first.is_some_and(|plan| plan.name == config.name.as_str());
        let expected = if is_user { expected } else { Vec::new() };
        if config.cdi_devices != expected {
            let (name, devices) = (&config.name, &config.cdi_devices);
            self.violated(format!("{pod}: {name} gets the devices {devices:?} and not {expected:?}"));
        }
    }
}

impl Scenario {
    /// The claims of a pod.
    pub(super) fn claims_of(&self, uid: &PodUid) -> Vec<&ClaimPlan> {
        let uid = uid.to_string();
        let plan = self.pods.iter().find(|plan| uid.split('-').next() == Some(plan.name.as_str()));
        plan.into_iter().flat_map(|plan| &plan.claims).map(|which| &self.claims[*which]).collect()
    }
}

impl ClaimPlan {
    /// The claim that a pod has. A claim of its own is replaced together with the pod, under the same name.
    pub(super) fn uid(&self, pod: &PodUid) -> ClaimUid {
        if self.owner.is_some() { format!("{}-of-{pod}", self.name).as_str().into() } else { self.name.as_str().into() }
    }

    pub(super) fn claim_name(&self) -> ClaimName {
        ClaimName::new("sim", &self.name)
    }

    /// The drivers in the order of their names.
    pub(super) fn drivers(&self) -> impl Iterator<Item = DriverName> {
        self.drivers.iter().copied().map(driver_name)
    }

    pub(super) fn parts(&self, pod: &PodUid) -> Vec<Part> {
        let uid = self.uid(pod);
        self.drivers().map(|driver| (uid.clone(), driver)).collect()
    }
}

pub(super) fn driver_name(which: usize) -> DriverName {
    format!("d{which}.example").as_str().into()
}
