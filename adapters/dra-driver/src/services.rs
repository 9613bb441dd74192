//! The gRPC services of a driver.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use futures_util::stream::{self, StreamExt};
use podwright_dra_api::{PLUGIN_TYPE, health, registration, v1, v1beta1};
use podwright_model::ids::ClaimName;
use podwright_ports::{ClaimRef, PreparedDevice};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::Registration;
use super::calls::{Answers, Calls};
use super::driver::{DeviceHealth, Driver, Health};

/// The service on the registration socket.
pub(super) struct RegistrationService {
    pub(super) info: registration::PluginInfo,
    pub(super) result: watch::Sender<Registration>,
}

impl RegistrationService {
    pub(super) fn info(name: String, endpoint: String, services: Vec<String>) -> registration::PluginInfo {
        registration::PluginInfo { r#type: PLUGIN_TYPE.to_owned(), name, endpoint, supported_versions: services }
    }
}

#[tonic::async_trait]
impl registration::registration_server::Registration for RegistrationService {
    async fn get_info(
        &self,
        _: Request<registration::InfoRequest>,
    ) -> Result<Response<registration::PluginInfo>, Status> {
        tracing::debug!("the node reads the registration");
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<registration::RegistrationStatus>,
    ) -> Result<Response<registration::RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            tracing::info!(driver = self.info.name, "the driver is registered");
            self.result.send_replace(Registration::Registered);
            return Ok(Response::new(registration::RegistrationStatusResponse {}));
        }
        tracing::error!(driver = self.info.name, error = status.error, "the node refuses the driver");
        let refusal = Status::unknown(format!("the registration failed: {}", status.error));
        self.result.send_replace(Registration::Refused(status.error));
        Err(refusal)
    }
}

/// The calls to the driver, in each version.
pub(super) struct PluginService<D>(pub(super) Arc<Calls<D>>);

impl<D> Clone for PluginService<D> {
    fn clone(&self) -> Self {
        PluginService(self.0.clone())
    }
}

/// Implements the service of one version. The versions differ in the fields of a device.
macro_rules! plugin_service {
    ($version:ident, $device:expr) => {
        #[tonic::async_trait]
        impl<D: Driver> $version::dra_plugin_server::DraPlugin for PluginService<D> {
            async fn node_prepare_resources(
                &self,
                request: Request<$version::NodePrepareResourcesRequest>,
            ) -> Result<Response<$version::NodePrepareResourcesResponse>, Status> {
                let claims = request.into_inner().claims;
                let claims = claims.into_iter().map(|claim| claim_ref(&claim.namespace, &claim.name, &claim.uid));
                let answers: Answers<_> = self.0.prepare(claims.collect()).await?;
                let answer = |(uid, answer): (String, Result<Vec<PreparedDevice>, String>)| {
                    let (devices, error) = split(answer);
                    let devices = devices.into_iter().map($device).collect();
                    (uid, $version::NodePrepareResourceResponse { devices, error })
                };
                let claims = answers.into_iter().map(answer).collect();
                Ok(Response::new($version::NodePrepareResourcesResponse { claims }))
            }

            async fn node_unprepare_resources(
                &self,
                request: Request<$version::NodeUnprepareResourcesRequest>,
            ) -> Result<Response<$version::NodeUnprepareResourcesResponse>, Status> {
                let claims = request.into_inner().claims;
                let claims = claims.into_iter().map(|claim| claim_ref(&claim.namespace, &claim.name, &claim.uid));
                let answers: Answers<_> = self.0.unprepare(claims.collect()).await?;
                let answer = |(uid, answer)| {
                    let ((), error) = split(answer);
                    (uid, $version::NodeUnprepareResourceResponse { error })
                };
                let claims = answers.into_iter().map(answer).collect();
                Ok(Response::new($version::NodeUnprepareResourcesResponse { claims }))
            }
        }
    };
}

plugin_service!(v1, |device: PreparedDevice| v1::Device {
    request_names: device.requests,
    pool_name: device.pool,
    device_name: device.device,
    cdi_device_ids: device.cdi_devices,
    share_id: device.share_id,
});
plugin_service!(v1beta1, |device: PreparedDevice| v1beta1::Device {
    request_names: device.requests,
    pool_name: device.pool,
    device_name: device.device,
    cdi_device_ids: device.cdi_devices,
});

fn claim_ref(namespace: &str, name: &str, uid: &str) -> ClaimRef {
    ClaimRef { name: ClaimName::new(namespace, name), uid: uid.into() }
}

/// The result and the error of an answer, of which one is empty.
fn split<T: Default>(answer: Result<T, String>) -> (T, String) {
    match answer {
        Ok(result) => (result, String::new()),
        Err(error) => (T::default(), error),
    }
}

/// The health of the devices, as a stream.
pub(super) struct HealthService {
    pub(super) health: watch::Receiver<Vec<DeviceHealth>>,
    /// Ends the streams when the driver stops.
    pub(super) stop: CancellationToken,
}

#[tonic::async_trait]
impl health::dra_resource_health_server::DraResourceHealth for HealthService {
    async fn node_watch_resources(
        &self,
        _: Request<health::NodeWatchResourcesRequest>,
    ) -> Result<Response<BoxStream<health::NodeWatchResourcesResponse>>, Status> {
        let mut devices = self.health.clone();
        devices.mark_changed();
        let lists = stream::unfold(devices, |mut devices| async {
            // The stream ends when the driver has dropped its sender.
            devices.changed().await.ok()?;
            let list = devices.borrow_and_update().iter().map(to_wire).collect();
            Some((Ok(health::NodeWatchResourcesResponse { devices: list }), devices))
        });
        Ok(Response::new(lists.take_until(self.stop.clone().cancelled_owned()).boxed()))
    }
}

fn to_wire(device: &DeviceHealth) -> health::DeviceHealth {
    let seconds = device.updated.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let health = match device.health {
        Health::Unknown => health::HealthStatus::Unknown,
        Health::Healthy => health::HealthStatus::Healthy,
        Health::Unhealthy => health::HealthStatus::Unhealthy,
    };
    health::DeviceHealth {
        device: Some(health::DeviceIdentifier { pool_name: device.pool.clone(), device_name: device.device.clone() }),
        health: health.into(),
        last_updated_time: i64::try_from(seconds).unwrap_or(i64::MAX),
        health_check_timeout_seconds: i64::try_from(device.timeout.as_secs()).unwrap_or(i64::MAX),
        message: device.message.clone(),
    }
}
