//! The calls to drivers, with a time limit, metrics and typed errors.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use podwright_dra_api::v1::dra_plugin_client::DraPluginClient;
use podwright_dra_api::v1beta1::dra_plugin_client::DraPluginClient as V1Beta1Client;
use podwright_dra_api::{v1, v1beta1};
use podwright_grpc_socket::code_name;
use podwright_metrics::DraMetrics;
use podwright_model::ids::DriverName;
use podwright_model::text::{error_chain, plain};
use podwright_ports::{ClaimDrivers, ClaimRef, DriverError, DriverFuture, PreparedDevice};
use tokio::time::{Instant, timeout};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use super::MAX_TEXT;
use super::answers::{self, Answers, claims, claims_v1beta1, prepared_v1beta1, unprepared_v1beta1};
use super::registry::{ApiVersion, CurrentChannel, Instance, Registry};

/// The longest answer that the agent accepts, in bytes (the default of `google.golang.org/grpc`).
const MAX_ANSWER: usize = 4 << 20;

const PREPARE_V1: &str = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources";
const UNPREPARE_V1: &str = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources";
const PREPARE_V1BETA1: &str = "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources";
const UNPREPARE_V1BETA1: &str = "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources";

/// Why a call to a driver failed. The source of [`DriverError::Failed`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// A claim names no driver.
    #[error("the name of the DRA driver is empty")]
    NoName,
    /// No instance of the driver can be reached. Nothing was sent. The source of [`DriverError::Unreachable`].
    #[error("DRA driver {driver} cannot be reached: {why}")]
    Unreachable {
        /// The driver.
        driver: DriverName,
        /// Why the last attempt to connect failed.
        why: String,
    },
    /// The connection ended during the call. The driver may have performed it.
    #[error("the connection to DRA driver {driver} ended during the call: {why}")]
    Unavailable {
        /// The driver.
        driver: DriverName,
        /// How the connection ended.
        why: String,
    },
    /// The driver did not answer in time. It may still perform the call.
    #[error("DRA driver {driver} did not answer within {limit:?} (DeadlineExceeded)")]
    DeadlineExceeded {
        /// The driver.
        driver: DriverName,
        /// The time limit.
        limit: Duration,
    },
    /// The driver answered with an error.
    #[error("DRA driver {driver} answered with {code}: {text}")]
    Status {
        /// The driver.
        driver: DriverName,
        /// The name of the gRPC code.
        code: &'static str,
        /// The driver's text.
        text: String,
    },
}

impl CallError {
    /// The name of the gRPC code as Go's gRPC library prints it.
    pub fn code(&self) -> &'static str {
        match self {
            CallError::NoName => code_name(Code::InvalidArgument),
            CallError::Unreachable { .. } | CallError::Unavailable { .. } => code_name(Code::Unavailable),
            CallError::DeadlineExceeded { .. } => code_name(Code::DeadlineExceeded),
            CallError::Status { code, .. } => code,
        }
    }
}

/// The drivers of the node, for calls.
#[derive(Clone, Debug)]
pub(super) struct DriverClient {
    pub(super) registry: Arc<Registry>,
    pub(super) metrics: DraMetrics,
    /// The time limit of a call.
    pub(super) limit: Duration,
}

impl ClaimDrivers for DriverClient {
    fn is_registered(&self, driver: &DriverName) -> bool {
        self.registry.choose(driver).is_some()
    }

    fn reach<'a>(&'a self, driver: &'a DriverName) -> BoxFuture<'a, Result<(), DriverError>> {
        async move {
            let instance = self.instance(driver)?;
            match timeout(self.limit, instance.current()).await {
                Ok(CurrentChannel::Connected(_)) => Ok(()),
                Ok(CurrentChannel::Unreachable(why)) => Err(DriverError::unreachable(unreachable(driver, &why))),
                Err(_) => Err(DriverError::unreachable(unreachable(
                    driver,
                    &format!("it did not accept a connection within {:?}", self.limit),
                ))),
            }
        }
        .boxed()
    }

    fn prepare<'a>(&'a self, driver: &'a DriverName, claims: &'a [ClaimRef]) -> DriverFuture<'a, Vec<PreparedDevice>> {
        self.prepare_claims(driver, claims).boxed()
    }

    fn unprepare<'a>(&'a self, driver: &'a DriverName, claims: &'a [ClaimRef]) -> DriverFuture<'a, ()> {
        self.unprepare_claims(driver, claims).boxed()
    }
}

impl DriverClient {
    async fn prepare_claims(
        &self,
        driver: &DriverName,
        refs: &[ClaimRef],
    ) -> Result<Answers<Vec<PreparedDevice>>, DriverError> {
        let instance = self.instance(driver)?;
        let claims = claims(refs);
        let answer = match instance.services().api {
            ApiVersion::V1 => {
                let request = v1::NodePrepareResourcesRequest { claims };
                self.call(&instance, PREPARE_V1, request, async |channel, request| {
                    let mut client = DraPluginClient::new(channel).max_decoding_message_size(MAX_ANSWER);
                    client.node_prepare_resources(request).await
                })
                .await?
            }
            ApiVersion::V1Beta1 => {
                let request = v1beta1::NodePrepareResourcesRequest { claims: claims_v1beta1(claims) };
                let answer = self.call(&instance, PREPARE_V1BETA1, request, async |channel, request| {
                    let mut client = V1Beta1Client::new(channel).max_decoding_message_size(MAX_ANSWER);
                    client.node_prepare_resources(request).await
                });
                prepared_v1beta1(answer.await?)
            }
        };
        Ok(answers::prepared(answer))
    }

    async fn unprepare_claims(&self, driver: &DriverName, refs: &[ClaimRef]) -> Result<Answers<()>, DriverError> {
        let instance = self.instance(driver)?;
        let claims = claims(refs);
        let answer = match instance.services().api {
            ApiVersion::V1 => {
                let request = v1::NodeUnprepareResourcesRequest { claims };
                self.call(&instance, UNPREPARE_V1, request, async |channel, request| {
                    let mut client = DraPluginClient::new(channel).max_decoding_message_size(MAX_ANSWER);
                    client.node_unprepare_resources(request).await
                })
                .await?
            }
            ApiVersion::V1Beta1 => {
                let request = v1beta1::NodeUnprepareResourcesRequest { claims: claims_v1beta1(claims) };
                let answer = self.call(&instance, UNPREPARE_V1BETA1, request, async |channel, request| {
                    let mut client = V1Beta1Client::new(channel).max_decoding_message_size(MAX_ANSWER);
                    client.node_unprepare_resources(request).await
                });
                unprepared_v1beta1(answer.await?)
            }
        };
        Ok(answers::unprepared(answer))
    }

    fn instance(&self, driver: &DriverName) -> Result<Arc<Instance>, DriverError> {
        if driver.as_str().is_empty() {
            return Err(DriverError::failed(CallError::NoName));
        }
        self.registry.choose(driver).ok_or_else(|| DriverError::NotRegistered(driver.clone()))
    }

    /// Makes one call within the time limit, and counts it. The limit includes an attempt to connect.
    async fn call<Message, Answer>(
        &self,
        instance: &Instance,
        method: &'static str,
        message: Message,
        send: impl AsyncFnOnce(Channel, Request<Message>) -> Result<Response<Answer>, Status>,
    ) -> Result<Answer, DriverError> {
        let (start, driver) = (Instant::now(), instance.driver());
        let call = async {
            let channel = match instance.current().await {
                CurrentChannel::Connected(channel) => channel,
                CurrentChannel::Unreachable(why) => return Err(unreachable(driver, &why)),
            };
            let mut request = Request::new(message);
            // The driver reads from the request how long the agent waits.
            request.set_timeout(self.limit.saturating_sub(start.elapsed()));
            tokio::select! {
                answer = send(channel, request) => answer.map_err(|status| self.classify(driver, start, &status)),
                () = instance.removed() => Err(unavailable(driver, "it deregistered")),
            }
        };
        let deadline = || CallError::DeadlineExceeded { driver: driver.clone(), limit: self.limit };
        let answer = timeout(self.limit, call).await.unwrap_or_else(|_| Err(deadline()));
        let code = answer.as_ref().map_or_else(CallError::code, |_| code_name(Code::Ok));
        self.metrics.called(driver.as_str(), method, code, start.elapsed());
        answer.map(Response::into_inner).map_err(|error| match error {
            CallError::Unreachable { .. } => DriverError::unreachable(error),
            _ => DriverError::failed(error),
        })
    }

    /// The error of a call that began at `start` and ended with `status`.
    fn classify(&self, driver: &DriverName, start: Instant, status: &Status) -> CallError {
        // The gRPC libraries of both sides end a call at its deadline too, and name this `Cancelled`.
        let is_late = start.elapsed() >= self.limit;
        match (status.code(), std::error::Error::source(status)) {
            (Code::Cancelled | Code::DeadlineExceeded, _) if is_late => {
                CallError::DeadlineExceeded { driver: driver.clone(), limit: self.limit }
            }
            // A status with a source was created by this process: the connection failed.
            (Code::Unknown | Code::Unavailable, Some(source)) => unavailable(driver, &error_chain(source).to_string()),
            (code, _) => CallError::Status {
                driver: driver.clone(),
                code: code_name(code),
                text: plain(status.message(), MAX_TEXT).into_owned(),
            },
        }
    }
}

fn unreachable(driver: &DriverName, why: &str) -> CallError {
    CallError::Unreachable { driver: driver.clone(), why: plain(why, MAX_TEXT).into_owned() }
}

fn unavailable(driver: &DriverName, why: &str) -> CallError {
    CallError::Unavailable { driver: driver.clone(), why: plain(why, MAX_TEXT).into_owned() }
}
