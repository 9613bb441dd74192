//! The calls of the node, for all versions of the service.

use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join_all;
use k8s_openapi::api::resource::v1::ResourceClaim;
use podwright_model::ids::{DriverName, base_request};
use podwright_model::text::error_chain;
use podwright_ports::{ApiError, ClaimApi, ClaimRef, PreparedDevice};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;
use tracing::{Instrument, info_span};

use super::driver::{CallError, Claim, ClaimResults, Driver};
use super::lock::CallLock;
use super::metadata::MetadataStore;

/// The answer for each claim, by UID: its result or the text of its error.
pub(super) type Answers<T> = HashMap<String, Result<T, String>>;

/// Why the library does not pass a claim on to the driver.
#[derive(Debug, thiserror::Error)]
enum ClaimError {
    #[error("claim {0} does not exist")]
    Missing(ClaimRefText),
    #[error("claim {claim} was replaced: its UID is {found}")]
    Replaced { claim: ClaimRefText, found: String },
    #[error("claim {0} is not allocated")]
    NotAllocated(ClaimRefText),
    #[error("cannot read claim {0}")]
    Api(ClaimRefText, #[source] ApiError),
}

/// Prints a claim with its UID.
#[derive(Debug)]
struct ClaimRefText(ClaimRef);

impl std::fmt::Display for ClaimRefText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (UID {})", self.0.name, self.0.uid)
    }
}

/// Performs the calls of the node with the methods of a driver.
pub(super) struct Calls<D> {
    pub(super) driver: Arc<D>,
    pub(super) name: DriverName,
    /// Reads claims. `None` if the driver gets no objects.
    pub(super) claims: Option<Arc<dyn ClaimApi>>,
    pub(super) lock: CallLock,
    /// Aborts the running calls to the driver.
    pub(super) aborted: CancellationToken,
    /// The running calls to the driver, also those that the node has given up.
    pub(super) running: TaskTracker,
    pub(super) last_request: AtomicU64,
    /// The files with the metadata of devices.
    pub(super) metadata: Option<Arc<MetadataStore>>,
}

impl<D: Driver> Calls<D> {
    pub(super) async fn prepare(
        self: &Arc<Self>,
        claims: Vec<ClaimRef>,
    ) -> Result<Answers<Vec<PreparedDevice>>, Status> {
        let span = self.span("prepare");
        self.clone().prepare_in_span(claims).instrument(span).await
    }

    pub(super) async fn unprepare(self: &Arc<Self>, claims: Vec<ClaimRef>) -> Result<Answers<()>, Status> {
        let span = self.span("unprepare");
        self.clone().unprepare_in_span(claims).instrument(span).await
    }

    fn span(&self, call: &'static str) -> tracing::Span {
        let id = self.last_request.fetch_add(1, Ordering::Relaxed) + 1;
        info_span!("dra_call", request.id = id, call, driver = %self.name)
    }

    async fn prepare_in_span(
        self: Arc<Self>,
        requested: Vec<ClaimRef>,
    ) -> Result<Answers<Vec<PreparedDevice>>, Status> {
        // Before the lock, so that a slow API server delays no other call.
        let objects = join_all(requested.iter().map(|claim| self.object(claim))).await;
        let mut answers = Answers::new();
        let mut claims = Vec::new();
        for (claim, object) in requested.into_iter().zip(objects) {
            match object {
                Ok(object) => claims.push(Claim::new(claim, self.name.clone(), object)),
                Err(error) => {
                    let text = error_chain(&error).to_string();
                    tracing::warn!(claim = %claim.name, error = text, "cannot prepare a claim");
                    answers.insert(claim.uid.to_string(), Err(text));
                }
            }
        }
        if claims.is_empty() {
            return Ok(answers);
        }
        let asked: Vec<ClaimRef> =
            claims.iter().map(|claim| ClaimRef { name: claim.name().clone(), uid: claim.uid().clone() }).collect();
        let (this, described) = (self.clone(), claims.clone());
        let prepare = async move { this.driver.prepare(claims).await };
        let this = self.clone();
        let describe = move |mut results: ClaimResults<Vec<PreparedDevice>>| {
            let Some(metadata) = &this.metadata else { return results };
            for claim in &described {
                let describe = |device: &PreparedDevice| this.driver.metadata(claim, device);
                if let Some(result) = results.get_mut(claim.uid())
                    && let Ok(devices) = result
                    && let Err(error) = metadata.prepare(claim, devices, describe)
                {
                    *result = Err(error.into());
                }
            }
            results
        };
        let results = self.call(prepare, describe).await?;
        answers.extend(answers_of(&asked, results, |devices| devices.into_iter().map(checked).collect()));
        Ok(answers)
    }

    async fn unprepare_in_span(self: Arc<Self>, claims: Vec<ClaimRef>) -> Result<Answers<()>, Status> {
        let (this, asked, described) = (self.clone(), claims.clone(), claims.clone());
        let unprepare = async move { this.driver.unprepare(claims).await };
        let metadata = self.metadata.clone();
        let remove = move |mut results: ClaimResults<()>| {
            let Some(metadata) = metadata else { return results };
            for claim in &described {
                if let Some(result @ Ok(())) = results.get_mut(&claim.uid) {
                    *result = metadata.unprepare(claim).map_err(Into::into);
                }
            }
            results
        };
        let results = self.call(unprepare, remove).await?;
        Ok(answers_of(&asked, results, Ok))
    }

    /// Calls the driver under the lock, and then `files`, which may block. If the node gives up the call, it still runs to its end, so
    /// that the driver's state stays consistent.
    async fn call<T: Send + 'static>(
        &self,
        call: impl Future<Output = Result<T, CallError>> + Send + 'static,
        files: impl FnOnce(T) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let locked = self.lock.lock().await;
        let locked = locked.map_err(|error| Status::unavailable(format!("cannot lock the driver's calls: {error}")))?;
        let (aborted, has_files) = (self.aborted.clone(), self.metadata.is_some());
        let call = async move {
            let _locked = locked;
            let results = tokio::select! {
                result = call => result.map_err(|error| Status::unknown(error_chain(&*error).to_string())),
                () = aborted.cancelled() => Err(Status::unavailable("the driver stops")),
            }?;
            if !has_files {
                return Ok(results);
            }
            // This is not aborted: the next holder of the lock writes the same files.
            let span = tracing::Span::current();
            match spawn_blocking(move || span.in_scope(|| files(results))).await {
                Ok(results) => Ok(results),
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => resume_unwind(panic),
                    Err(_) => Err(Status::unavailable("the driver stops")),
                },
            }
        };
        match self.running.spawn(call.in_current_span()).await {
            Ok(result) => result,
            Err(error) if error.is_panic() => {
                tracing::error!("the driver panicked");
                Err(Status::internal("the driver panicked"))
            }
            Err(_) => Err(Status::unavailable("the driver stops")),
        }
        .inspect_err(|status| tracing::warn!(error = status.message(), "a call failed"))
    }

    /// Reads a claim and checks that it is the one that the node means.
    async fn object(&self, claim: &ClaimRef) -> Result<Option<Arc<ResourceClaim>>, ClaimError> {
        let Some(api) = &self.claims else { return Ok(None) };
        let text = || ClaimRefText(claim.clone());
        let object = match api.claim(&claim.name).await {
            Ok(object) => object,
            Err(ApiError::NotFound) => return Err(ClaimError::Missing(text())),
            Err(error) => return Err(ClaimError::Api(text(), error)),
        };
        let found = object.metadata.uid.as_deref().unwrap_or_default();
        if found != claim.uid.as_str() {
            return Err(ClaimError::Replaced { claim: text(), found: found.to_owned() });
        }
        if object.status.as_ref().is_none_or(|status| status.allocation.is_none()) {
            return Err(ClaimError::NotAllocated(text()));
        }
        Ok(Some(object))
    }
}

/// An answer for each claim. Results of other claims are dropped.
fn answers_of<T>(
    claims: &[ClaimRef],
    mut results: ClaimResults<T>,
    check: impl Fn(T) -> Result<T, String>,
) -> Answers<T> {
    let answer = |claim: &ClaimRef| {
        let answer = match results.remove(&claim.uid) {
            Some(Ok(result)) => check(result),
            Some(Err(error)) => Err(error_chain(&*error).to_string()),
            None => Err("the driver returned no result for the claim".to_owned()),
        };
        if let Err(error) = &answer {
            tracing::warn!(claim = %claim.name, error, "a claim failed");
        }
        // An empty text would mean success.
        let answer = answer.map_err(|text| if text.is_empty() { "unknown error".to_owned() } else { text });
        (claim.uid.to_string(), answer)
    };
    claims.iter().map(answer).collect()
}

/// A device with the names of requests that the node expects: those in the spec of the claim, without the names of subrequests.
fn checked(mut device: PreparedDevice) -> Result<PreparedDevice, String> {
    if device.pool.is_empty() || device.device.is_empty() {
        return Err(format!(
            "the driver returned a device without a name or a pool: {}/{}",
            device.pool, device.device
        ));
    }
    let mut requests: Vec<String> = Vec::with_capacity(device.requests.len());
    for request in device.requests {
        let request = base_request(&request);
        if !requests.iter().any(|known| known == request) {
            requests.push(request.to_owned());
        }
    }
    device.requests = requests;
    Ok(device)
}
