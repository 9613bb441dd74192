//! DRA drivers that are slow, fail, give wrong answers, disappear and come back, and the ResourceClaims of the API server.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use k8s_openapi::api::resource::v1::ResourceClaim;
use podwright_actors::claims::{ClaimFeatures, ClaimManager, ClaimPorts, ClaimTasks};
use podwright_metrics::Metrics;
use podwright_model::ids::{ClaimName, ClaimUid, DriverName, PodUid};
use podwright_ports::{
    ApiError, ApiFuture, ClaimApi, ClaimDrivers, ClaimRef, DriverError, DriverFuture, PreparedDevice,
};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::devices::{Absence, stored_claims};
use super::disk::Disk;
use super::faulty_ports::{NODE, SimulatedError};
use super::machine::{CallDetail, Machine};
use super::rng::Rng;
use super::scenario::{Fault, Moment, Op};

/// How long a call without a fault takes.
const LATENCY: Duration = Duration::from_millis(5);
/// When the client gives a call up.
const CALL_LIMIT: Duration = Duration::from_secs(45);

impl SimulatedError for ApiError {
    fn failed(_: bool) -> Self {
        ApiError::unavailable("simulated", None)
    }
}

/// The claims of the API server.
struct SimClaims(Arc<Machine>);

impl ClaimApi for SimClaims {
    fn claim<'a>(&'a self, name: &'a ClaimName) -> ApiFuture<'a, Arc<ResourceClaim>> {
        let work = async { self.read(name).ok_or(ApiError::NotFound) };
        self.0.call(Op::ReadClaim, &NODE, CallDetail::Claims(name.to_string()), work).boxed()
    }
}

impl SimClaims {
    /// A claim that is allocated, and reserved for the pods that have it now.
    fn read(&self, name: &ClaimName) -> Option<Arc<ResourceClaim>> {
        let scenario = &self.0.scenario;
        let plan = scenario.claims.iter().find(|plan| plan.name == name.name())?;
        let which = scenario.claims.iter().position(|other| other.name == plan.name)?;
        let users = scenario.pods.iter().enumerate().filter(|(_, pod)| pod.claims.contains(&which));
        let pods: Vec<PodUid> =
            self.0.with_devices(|devices| users.map(|(pod, _)| devices.pod(pod, scenario)).collect());
        let uid = plan.uid(pods.first()?);
        self.0.with_devices(|devices| devices.claim_is_read(&uid));
        let result =
            |driver: DriverName| json!({"request": "r", "driver": driver.as_str(), "pool": "p", "device": "g"});
        let consumer = |uid: &PodUid| json!({"resource": "pods", "name": "a-pod", "uid": uid.to_string()});
        let claim = json!({
            "metadata": {"name": plan.name, "namespace": "sim", "uid": uid.to_string()},
            "spec": {},
            "status": {
                "allocation": {"devices": {"results": plan.drivers().map(result).collect::<Vec<_>>()}},
                "reservedFor": pods.iter().map(consumer).collect::<Vec<_>>(),
            },
        });
        Some(Arc::new(serde_json::from_value(claim).unwrap()))
    }
}

struct SimDrivers {
    machine: Arc<Machine>,
    disk: Arc<Disk>,
}

type Answers = BTreeMap<ClaimUid, Result<Vec<PreparedDevice>, String>>;

impl SimDrivers {
    fn absence(&self, driver: &DriverName) -> Option<Absence> {
        let now = self.machine.clock.steady();
        self.machine.with_devices(|devices| devices.absence(driver, now))
    }

    async fn call(&self, op: Op, driver: &DriverName, claims: &[ClaimRef]) -> Result<Answers, DriverError> {
        let machine = &self.machine;
        let names = claims.iter().map(|claim| claim.uid.to_string()).collect::<Vec<_>>().join(",");
        if self.absence(driver) == Some(Absence::Deregistered) {
            machine.note(format!("{driver} {op:?} {names}: it is not registered"));
            let now = machine.clock.steady();
            machine.with_devices(|devices| devices.refused(op, driver, claims, now));
            return Err(DriverError::NotRegistered(driver.clone()));
        }
        if op == Op::Unprepare
            && let Err(what) = machine.nobody_uses(claims)
        {
            machine.violated(format!("{driver} {op:?} {what}"));
        }
        let guard = machine.begin(op, &PodUid::new(driver.as_str()), CallDetail::Claims(names));
        let file = stored_claims(&self.disk.claims().records());
        let number = machine.with_devices(|devices| devices.begin(op, driver, claims, &file)).unwrap_or_else(|what| {
            machine.violated(format!("{driver} {op:?} {what}"));
            0
        });
        let mut call = DriverCall { drivers: self, op, driver, claims, number, is_done: false, has_ended: false };
        let late = || Err(DriverError::failed(format!("DRA driver {driver} did not answer")));
        let (result, succeeded) = match timeout(CALL_LIMIT, call.answer(guard.fault)).await {
            Ok(Ok((answers, succeeded))) => (Ok(answers), succeeded),
            Ok(Err(error)) => (Err(DriverError::failed(format!("DRA driver {driver}: {error}"))), BTreeMap::new()),
            Err(_) => {
                call.done_or_not();
                (late(), BTreeMap::new())
            }
        };
        call.has_ended = true;
        let now = machine.clock.steady();
        machine.with_devices(|devices| devices.end(op, driver, claims, &succeeded, now));
        guard.answered(if succeeded.len() == claims.len() { "ok" } else { "failed" });
        result
    }
}

impl ClaimDrivers for SimDrivers {
    fn is_registered(&self, driver: &DriverName) -> bool {
        self.absence(driver) != Some(Absence::Deregistered)
    }

    fn prepare<'a>(&'a self, driver: &'a DriverName, claims: &'a [ClaimRef]) -> DriverFuture<'a, Vec<PreparedDevice>> {
        self.call(Op::Prepare, driver, claims).boxed()
    }

    fn unprepare<'a>(&'a self, driver: &'a DriverName, claims: &'a [ClaimRef]) -> DriverFuture<'a, ()> {
        let no_devices = |answers: Answers| answers.into_iter().map(|(uid, answer)| (uid, answer.map(drop))).collect();
        self.call(Op::Unprepare, driver, claims).map(move |answers| answers.map(no_devices)).boxed()
    }
}

/// A call in progress. If the agent dies or the call panics, the driver may do its work nevertheless.
struct DriverCall<'a> {
    drivers: &'a SimDrivers,
    op: Op,
    driver: &'a DriverName,
    claims: &'a [ClaimRef],
    number: u64,
    is_done: bool,
    has_ended: bool,
}

impl Drop for DriverCall<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            let machine = &self.drivers.machine;
            let (now, is_done) = (machine.clock.steady(), self.is_done || self.coin());
            machine.with_devices(|devices| devices.interrupted(self.op, self.driver, self.claims, is_done, now));
        }
    }
}

impl DriverCall<'_> {
    fn coin(&self) -> bool {
        let seed = self.drivers.machine.scenario.seed;
        Rng::of(seed, &[self.driver.as_str().as_bytes(), &self.number.to_le_bytes()]).percent(50)
    }

    fn perform(&mut self, claims: &[ClaimRef]) {
        self.drivers.machine.with_devices(|devices| devices.perform(self.op, self.driver, claims));
        self.is_done = true;
    }

    fn done_or_not(&mut self) {
        if !self.is_done && self.coin() {
            self.perform(self.claims);
        }
    }

    /// The answer, which a fault may make wrong, and the CDI devices of the claims for which the agent may accept it.
    async fn answer(
        &mut self,
        fault: Option<Fault>,
    ) -> Result<(Answers, BTreeMap<ClaimUid, Vec<String>>), &'static str> {
        let (drivers, op, claims) = (self.drivers, self.op, self.claims);
        drivers.machine.reach(op, Moment::Begin).await;
        if drivers.absence(self.driver) == Some(Absence::Unreachable) {
            sleep(LATENCY).await;
            return Err("unavailable");
        }
        sleep(if let Some(Fault::Slow(time)) = fault { time.max(LATENCY) } else { LATENCY }).await;
        let refused = match fault {
            Some(Fault::Error) => return Err("simulated"),
            Some(Fault::Panic) => resume_unwind(Box::new("simulated")),
            Some(Fault::Refuses) => claims.first(),
            _ => None,
        };
        let performed: Vec<_> = claims.iter().filter(|claim| Some(*claim) != refused).cloned().collect();
        self.perform(&performed);
        drivers.machine.reach(op, Moment::End).await;
        match fault {
            Some(Fault::ErrorAfter) => return Err("simulated"),
            Some(Fault::PanicAfter) => resume_unwind(Box::new("simulated")),
            Some(Fault::Late(time)) => sleep(time).await,
            _ => {}
        }
        if drivers.absence(self.driver).is_some() {
            return Err("the connection broke");
        }
        let devices = |claim: &ClaimRef| self.devices(claim, fault == Some(Fault::OtherDevices));
        let mut answers: Answers = performed.iter().map(|claim| (claim.uid.clone(), Ok(devices(claim)))).collect();
        answers.extend(refused.map(|claim| (claim.uid.clone(), Err("it refuses".to_owned()))));
        match fault {
            Some(Fault::Omits) => drop(answers.pop_first()),
            Some(Fault::OtherClaim) => drop(answers.insert("another-claim".into(), Ok(Vec::new()))),
            _ => {}
        }
        let names = |devices: &Vec<PreparedDevice>| devices.iter().flat_map(|d| d.cdi_devices.clone()).collect();
        let succeeded = answers.iter().filter_map(|(uid, answer)| Some((uid.clone(), names(answer.as_ref().ok()?))));
        // The agent accepts nothing from an answer with another claim.
        let succeeded = if fault == Some(Fault::OtherClaim) { BTreeMap::new() } else { succeeded.collect() };
        Ok((answers, succeeded))
    }

    /// A device of the claim, or two that are not allocated to it and differ in each call.
    fn devices(&self, claim: &ClaimRef, others: bool) -> Vec<PreparedDevice> {
        let device = |name: String| PreparedDevice {
            pool: "p".to_owned(),
            cdi_devices: vec![format!("{}/gpu={name}", self.driver)],
            device: name,
            ..PreparedDevice::default()
        };
        match others {
            false => vec![device(claim.uid.to_string())],
            true => ["a", "b"].map(|which| device(format!("other-{}-{which}", self.number))).into(),
        }
    }
}

/// Opens the claims of an agent that starts. What an earlier one left must be in the file.
pub(super) fn open_claims(
    machine: &Arc<Machine>,
    disk: &Arc<Disk>,
    metrics: &Metrics,
) -> (Arc<ClaimManager>, ClaimTasks) {
    let file = stored_claims(&disk.claims().records());
    let stored = machine.with_devices(|devices| {
        devices.agent_started(&file);
        devices.are_stored(&file)
    });
    if let Err(what) = stored {
        machine.violated(what);
    }
    let ports = ClaimPorts {
        api: Some(Arc::new(SimClaims(machine.clone()))),
        drivers: Arc::new(SimDrivers { machine: machine.clone(), disk: disk.clone() }),
        checkpoint: disk.claims().clone(),
        clock: machine.clock.clone(),
        metrics: metrics.dra.clone(),
    };
    ClaimManager::open(ports, ClaimFeatures::default()).unwrap()
}
