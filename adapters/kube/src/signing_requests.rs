//! Certificate signing requests.

use futures_util::{FutureExt, StreamExt};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::PostParams;
use kube::{Api, Client};
use podwright_ports::{ApiError, ApiFuture};

use super::call::limited;
use super::listing;

/// The certificate signing requests of an API server.
#[derive(Clone)]
pub struct KubeSigningRequests(Api<CertificateSigningRequest>);

impl KubeSigningRequests {
    /// The requests that a client can create and read.
    pub fn new(client: Client) -> Self {
        KubeSigningRequests(Api::all(client))
    }

    /// Creates a request.
    ///
    /// # Errors
    /// [`ApiError`], which is a conflict if a request has the name.
    pub fn create<'a>(&'a self, request: &'a CertificateSigningRequest) -> ApiFuture<'a, ()> {
        async move { limited(self.0.create(&PostParams::default(), request)).await.map(drop) }.boxed()
    }

    /// Waits until a request meets a condition. Waits without a limit. Cancel safe.
    ///
    /// # Errors
    /// [`ApiError::NotFound`] if the request does not exist, or if it is deleted.
    pub fn wait_until<'a>(
        &'a self,
        name: &'a str,
        is_met: fn(&CertificateSigningRequest) -> bool,
    ) -> ApiFuture<'a, CertificateSigningRequest> {
        async move {
            let mut states = std::pin::pin!(listing::watch_object(self.0.clone(), name));
            while let Some(state) = states.next().await {
                match state {
                    Ok(Some(request)) if is_met(&request) => return Ok(request),
                    Ok(Some(_)) => {}
                    Ok(None) => return Err(ApiError::NotFound),
                    Err(error) => tracing::debug!(%error, name, "cannot watch the certificate signing request"),
                }
            }
            Err(ApiError::NotFound)
        }
        .boxed()
    }
}
