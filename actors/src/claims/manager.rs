//! The hooks of pods with claims: checks the claims, and begins the operations on them.

use std::collections::{BTreeMap, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::FixedState;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use k8s_openapi::api::core::v1::PodStatus;
use parking_lot::Mutex;
use podwright_metrics::{ClaimOperation, ClaimsInUse, DraMetrics};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::devices::{DevicesError, cdi_devices};
use super::ended_pods::EndedPods;
use super::error::{ClaimsError, OpenClaimsError};
use super::fault::{ClaimFault, check_answer};
use super::file;
use super::health_store::HealthStore;
use super::record::NeededClaim;
use super::resolve::{ClaimFeatures, PodClaim, check, pod_claims};
use super::status::{ContainerClaim, StatusSources, container_claims};
use super::step::{Effect, Event};
use super::table::{ClaimTable, OperationId};
use super::tasks::{ClaimTasks, Work};
use super::tries::{Tries, UnblockingChange};
use crate::containers::definition::Definition;
use crate::ids::{ClaimName, DriverName, PodUid};
use crate::pod::PodObject;
use crate::ports::{
    Checkpoint, CheckpointWriter, ClaimApi, ClaimDrivers, ClaimRef, Clock, DeviceHealthSink, DeviceReport, DriverError,
    ResourceError, ResourceFuture, ResourcePhase, ResourceWait,
};
use crate::time::Time;

/// What [`ClaimManager`] uses.
#[derive(Clone)]
pub struct ClaimPorts {
    /// Reads claims; `None` without an API server.
    pub api: Option<Arc<dyn ClaimApi>>,
    /// The drivers of this node.
    pub drivers: Arc<dyn ClaimDrivers>,
    /// The file of claims.
    pub checkpoint: Arc<dyn Checkpoint>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Counts operations and claims.
    pub metrics: DraMetrics,
}

/// Prepares and releases the ResourceClaims of pods.
///
/// The table of claims changes only in [`ClaimTable::step`], under a lock that is never held during a call. Two tasks perform
/// what the steps ask for: one calls the drivers, one writes the file. Both end when the node stops.
pub struct ClaimManager {
    pub(super) table: Mutex<ClaimTable>,
    /// The callers that wait for the end of an operation; `None` after the node has stopped.
    pub(super) callers: Mutex<Option<Callers>>,
    tries: Mutex<Tries>,
    operations: AtomicU64,
    features: ClaimFeatures,
    api: Option<Arc<dyn ClaimApi>>,
    pub(super) drivers: Arc<dyn ClaimDrivers>,
    pub(super) writer: Box<dyn CheckpointWriter>,
    pub(super) save: Notify,
    work: mpsc::UnboundedSender<Work>,
    pub(super) health: HealthStore,
    pub(super) clock: Arc<dyn Clock>,
    metrics: DraMetrics,
    /// The pods whose claims are released without their workers.
    pub(super) ended_pods: Mutex<EndedPods>,
    /// Fires when the tasks have ended.
    pub(super) stopped: CancellationToken,
}

/// The waiting callers, by their operations.
pub(super) type Callers = HashMap<OperationId, oneshot::Sender<Vec<ClaimFault>>, FixedState>;

impl ClaimManager {
    /// Reads the claims that an earlier agent recorded. Blocks.
    ///
    /// # Errors
    /// [`OpenClaimsError`].
    pub fn open(ports: ClaimPorts, features: ClaimFeatures) -> Result<(Arc<Self>, ClaimTasks), OpenClaimsError> {
        let opened = ports.checkpoint.open()?;
        let records = file::read(&opened.records).map_err(|error| OpenClaimsError::Damaged(error.into()))?;
        let (sender, receiver) = mpsc::unbounded_channel();
        let manager = Arc::new(ClaimManager {
            table: Mutex::new(ClaimTable::restore(records)),
            callers: Mutex::new(Some(Callers::default())),
            tries: Mutex::default(),
            operations: AtomicU64::new(0),
            features,
            api: ports.api,
            drivers: ports.drivers,
            writer: opened.writer,
            save: Notify::new(),
            work: sender,
            health: HealthStore::default(),
            clock: ports.clock,
            metrics: ports.metrics,
            ended_pods: Mutex::default(),
            stopped: CancellationToken::new(),
        });
        let counted = Arc::downgrade(&manager);
        manager.metrics.count_claims_in_use(move || {
            counted.upgrade().map(|manager| claims_in_use(&manager.table.lock())).unwrap_or_default()
        });
        Ok((manager.clone(), ClaimTasks { manager, work: receiver, health_writer: None }))
    }

    /// The features that apply to claims.
    pub fn features(&self) -> ClaimFeatures {
        self.features
    }

    /// Waits until the tasks have ended and the file is written for the last time. Cancel safe.
    pub async fn stopped(&self) {
        self.stopped.cancelled().await;
    }

    /// Reads the table of claims. `read` must not block.
    pub fn read<T>(&self, read: impl FnOnce(&ClaimTable) -> T) -> T {
        read(&self.table.lock())
    }

    /// The claims that a container of a pod uses, with their devices.
    ///
    /// # Errors
    /// [`DevicesError`] if a claim is not prepared, or cannot be determined.
    pub fn container_claims(&self, pod: &PodObject, container: &str) -> Result<Vec<ContainerClaim>, DevicesError> {
        let Some(container) = Definition::find(pod, container) else { return Ok(Vec::new()) };
        container_claims(&self.table.lock(), pod, &container, self.features)
    }

    /// Gives a driver up for a claim: the claim is released without calling the driver. Its devices may stay prepared. Operations that wait
    /// for an answer of the driver continue at once, and the pods that refer to the claim try their operations again at once.
    ///
    /// # Errors
    /// [`ClaimsError::Failed`] if the file cannot be written.
    pub async fn give_up(&self, claim: &ClaimName, driver: &DriverName) -> Result<(), ClaimsError> {
        tracing::warn!(%claim, %driver, "an operator gives the driver up: the claim is released without it");
        let pods = self.read(|table| table.record(claim).map(|record| record.pods.iter().cloned().collect()));
        let (claim, driver) = (claim.clone(), driver.clone());
        self.operate(|operation| Event::GiveUp { operation, claim, driver }).await?;
        self.try_again(pods.unwrap_or_default());
        Ok(())
    }

    /// A driver can be called from now on. The pods whose claims wait for it are tried again at once.
    pub fn driver_usable(&self, driver: &DriverName) {
        self.unblock(UnblockingChange::DriverUsable(driver.clone()));
    }

    /// Tries the operations again that may succeed after the change.
    fn unblock(&self, change: UnblockingChange) {
        let pods = self.tries.lock().unblocked_by(change);
        self.try_again(pods);
    }

    /// Tries the operations of pods again at once: those of pods with workers by a sync, the others in a pass.
    fn try_again(&self, pods: Vec<PodUid>) {
        self.ended_pods.lock().try_again(&pods, self.clock.now());
        self.health.refresh(pods);
    }

    async fn try_prepare(&self, pod: &Arc<PodObject>) -> Result<(), ClaimsError> {
        let claims = pod_claims(pod, self.features)?;
        if claims.is_empty() {
            return Ok(());
        }
        let api = self.api.as_ref().ok_or(ClaimsError::NoApi)?;
        let needed = join_all(claims.iter().map(|claim| self.needed(&**api, pod, claim))).await;
        let needed = needed.into_iter().collect::<Result<Vec<_>, _>>()?;
        for claim in &needed {
            if let Some(driver) = claim.drivers.iter().find(|driver| !self.drivers.is_registered(driver)) {
                return Err(ClaimsError::NoDriver { claim: claim.name.clone(), driver: driver.clone() });
            }
        }
        let mut faults = self.reach(&needed).await;
        // The claims of other drivers are ready when the driver is back.
        let is_reached = |claim: &NeededClaim| !faults.iter().any(|fault| fault.claims().contains(&claim.name));
        let reached: Vec<_> = needed.into_iter().filter(is_reached).collect();
        if !reached.is_empty() {
            let pod = pod.uid().clone();
            match self.operate(|operation| Event::Prepare { operation, pod, claims: reached }).await {
                Ok(()) => {}
                Err(ClaimsError::Failed(others)) => faults.extend(others),
                Err(error) => return Err(error),
            }
        }
        if faults.is_empty() { Ok(()) } else { Err(ClaimsError::Failed(faults)) }
    }

    /// Checks that the drivers of claims that are not prepared can be called, before the pod refers to the claims. Returns why the
    /// others cannot.
    async fn reach(&self, needed: &[NeededClaim]) -> Vec<ClaimFault> {
        let mut calls: BTreeMap<&DriverName, Vec<ClaimRef>> = BTreeMap::new();
        {
            let table = self.table.lock();
            let is_prepared = |claim: &NeededClaim| {
                table.record(&claim.name).is_some_and(|record| record.is_prepared && record.uid == claim.uid)
            };
            for claim in needed.iter().filter(|claim| !is_prepared(claim)) {
                for driver in &claim.drivers {
                    let claim = ClaimRef { name: claim.name.clone(), uid: claim.uid.clone() };
                    calls.entry(driver).or_default().push(claim);
                }
            }
        }
        let reach = |(driver, claims): (_, Vec<ClaimRef>)| async move {
            let reached = AssertUnwindSafe(async { self.drivers.reach(driver).await }).catch_unwind().await;
            let panicked = || Err(DriverError::failed(format!("the client of DRA driver {driver} panicked")));
            let Err(error) = reached.unwrap_or_else(|_| panicked()) else { return Vec::new() };
            check_answer::<()>(driver, &claims, Err(error)).faults
        };
        join_all(calls.into_iter().map(reach)).await.concat()
    }

    async fn needed(&self, api: &dyn ClaimApi, pod: &PodObject, claim: &PodClaim) -> Result<NeededClaim, ClaimsError> {
        let object = api.claim(&claim.name).await;
        let object = object.map_err(|source| ClaimsError::Read { claim: claim.name.clone(), source })?;
        Ok(check(pod, claim, &object, self.features)?)
    }

    /// Begins an operation, and waits for its end.
    async fn operate(&self, event: impl FnOnce(OperationId) -> Event) -> Result<(), ClaimsError> {
        let operation = self.operations.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        match &mut *self.callers.lock() {
            Some(callers) => drop(callers.insert(operation, sender)),
            None => return Err(ClaimsError::Stopped),
        }
        self.drive(event(operation));
        match receiver.await {
            Ok(faults) if faults.is_empty() => Ok(()),
            Ok(faults) => Err(ClaimsError::Failed(faults)),
            Err(_) => Err(ClaimsError::Stopped),
        }
    }

    pub(super) fn drive(&self, event: Event) {
        let effects = self.table.lock().step(event);
        for effect in effects {
            match effect {
                Effect::Save => self.save.notify_one(),
                // The receiver is gone only if the node has stopped.
                Effect::Call { operation, driver, method, claims } => {
                    let _ = self.work.send(Work::Call { operation, driver, method, claims });
                }
                Effect::Released(claim) => self.unblock(UnblockingChange::ClaimReleased(claim)),
                Effect::Done { operation, faults } => {
                    let caller = self.callers.lock().as_mut().and_then(|callers| callers.remove(&operation));
                    if let Some(caller) = caller {
                        let _ = caller.send(faults);
                    }
                }
            }
        }
    }

    /// Records the end of an operation for [`ResourcePhase::waits`], and counts it.
    fn ended(
        &self,
        uid: &PodUid,
        operation: ClaimOperation,
        begin: Time,
        result: Result<(), ClaimsError>,
    ) -> Result<(), ResourceError> {
        let now = self.clock.now();
        self.metrics.operated(operation, now.since(begin), result.is_ok());
        if self.tries.lock().ended(uid, operation, &result) {
            self.try_again(vec![uid.clone()]);
        }
        result.map_err(ResourceError::new)
    }
}

/// The number of claims whose drivers have prepared them in the lifetime of this agent.
fn claims_in_use(table: &ClaimTable) -> ClaimsInUse {
    let mut in_use = ClaimsInUse::default();
    for record in table.records().values().filter(|record| record.is_prepared) {
        in_use.all += 1;
        for driver in record.drivers.keys() {
            *in_use.by_driver.entry(driver.as_str().into()).or_default() += 1;
        }
    }
    in_use
}

impl ResourcePhase for ClaimManager {
    fn prepare<'a>(&'a self, pod: &'a Arc<PodObject>) -> ResourceFuture<'a> {
        let begin = self.clock.now();
        self.tries.lock().begun(pod.uid(), ClaimOperation::Prepare, begin);
        self.try_prepare(pod).map(move |result| self.ended(pod.uid(), ClaimOperation::Prepare, begin, result)).boxed()
    }

    fn is_prepared(&self, pod: &PodObject) -> bool {
        let table = self.table.lock();
        let is_prepared = |claim: &PodClaim| {
            table.record(&claim.name).is_some_and(|record| record.is_prepared && record.pods.contains(pod.uid()))
        };
        pod_claims(pod, self.features).is_ok_and(|claims| claims.iter().all(is_prepared))
    }

    fn devices_lost(&self, pod: &PodObject) {
        self.drive(Event::DevicesLost { pod: pod.uid().clone() });
    }

    fn container_devices(&self, pod: &PodObject, container: &str) -> Result<Vec<String>, ResourceError> {
        let Some(container) = Definition::find(pod, container) else { return Ok(Vec::new()) };
        cdi_devices(&self.table.lock(), pod, &container, self.features).map_err(ResourceError::new)
    }

    fn release<'a>(&'a self, uid: &'a PodUid) -> ResourceFuture<'a> {
        let begin = self.clock.now();
        self.tries.lock().begun(uid, ClaimOperation::Unprepare, begin);
        let pod = uid.clone();
        let operation = self.operate(|operation| Event::Release { operation, pod });
        operation.map(move |result| self.ended(uid, ClaimOperation::Unprepare, begin, result)).boxed()
    }

    fn holds(&self, uid: &PodUid) -> bool {
        self.table.lock().holds(uid)
    }

    fn reconcile(&self, is_active: &dyn Fn(&PodUid) -> bool) -> Vec<PodUid> {
        let held: Vec<_> = self.table.lock().pods().cloned().collect();
        let (pods, released) = self.ended_pods.lock().pass(held, is_active, self.clock.now());
        if !pods.is_empty() {
            let _ = self.work.send(Work::Reconcile(pods));
        }
        released
    }

    fn ended_pods(&self) -> Vec<(PodUid, Option<Time>)> {
        self.ended_pods.lock().waiting()
    }

    fn waits(&self, uid: &PodUid) -> Vec<ResourceWait> {
        let running = self.table.lock().running(uid);
        self.tries.lock().waits(uid, &running)
    }

    fn fill_status(&self, pod: &PodObject, previous: Option<&PodStatus>, status: &mut PodStatus) {
        let (features, now) = (self.features, self.clock.now());
        let table = self.table.lock();
        self.health.read(|health| StatusSources { table: &table, health, features, now }.fill(pod, previous, status));
    }

    fn changed(&self) -> BoxFuture<'_, Vec<PodUid>> {
        self.health.changed_pods().boxed()
    }
}

impl DeviceHealthSink for ClaimManager {
    fn reported(&self, driver: &DriverName, devices: Vec<DeviceReport>) {
        if self.features.health {
            self.health.reported(&self.table, driver, devices, self.clock.now());
        }
    }

    fn ended(&self, driver: &DriverName) {
        self.health.ended(&self.table, driver);
    }
}
