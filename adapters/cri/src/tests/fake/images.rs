//! The image service of the fake runtime.

use std::collections::BTreeMap;

use tonic::{Request, Response, Status};

use super::FakeService;
use crate::v1;
use crate::v1::image_service_server::ImageService;

/// Counts a cancelled pull when it is dropped before the pull has succeeded.
struct CountCancelledPull(Option<FakeService>);

impl Drop for CountCancelledPull {
    fn drop(&mut self) {
        if let Some(service) = self.0.take() {
            service.change(|state| state.cancelled_pulls += 1);
        }
    }
}

#[tonic::async_trait]
impl ImageService for FakeService {
    async fn image_status(
        &self,
        request: Request<v1::ImageStatusRequest>,
    ) -> Result<Response<v1::ImageStatusResponse>, Status> {
        let name = request.into_inner().image.unwrap().image;
        let state = self.state.lock();
        if state.image_status_fails {
            return Err(Status::unknown("out of order"));
        }
        let image = v1::Image { id: "sha256:1".into(), size: 5, ..Default::default() };
        let image = state.images.contains(&name).then_some(image);
        Ok(Response::new(v1::ImageStatusResponse { image, ..Default::default() }))
    }

    async fn pull_image(
        &self,
        request: Request<v1::PullImageRequest>,
    ) -> Result<Response<v1::PullImageResponse>, Status> {
        let v1::PullImageRequest { image, auth, sandbox_config } = request.into_inner();
        let pod = sandbox_config.and_then(|config| config.metadata).unwrap_or_default();
        let annotations = image.as_ref().map(|image| &image.annotations).into_iter().flatten();
        let for_whom = format!("{}/{} {:?}", pod.namespace, pod.name, annotations.collect::<BTreeMap<_, _>>());
        self.change(|state| state.last_pull_pod = for_whom);
        let name = image.unwrap().image;
        let auth = auth.unwrap_or_default();
        self.change(|state| state.pull_users.push(format!("{}{}", auth.username, auth.identity_token)));
        if auth.username.starts_with("bad") {
            // A careless runtime puts the password into the error text.
            return Err(Status::unknown(format!("{}: wrong password {}", auth.username, auth.password)));
        }
        let mut early = CountCancelledPull(Some(self.clone()));
        self.change(|state| state.pulls += 1);
        self.until(|state| state.images.contains(&name)).await;
        early.0 = None;
        Ok(Response::new(v1::PullImageResponse { image_ref: "sha256:1".into() }))
    }

    async fn list_images(&self, _: Request<v1::ListImagesRequest>) -> Result<Response<v1::ListImagesResponse>, Status> {
        Ok(Response::new(v1::ListImagesResponse { images: self.state.lock().listed.clone() }))
    }

    async fn remove_image(
        &self,
        request: Request<v1::RemoveImageRequest>,
    ) -> Result<Response<v1::RemoveImageResponse>, Status> {
        let id = request.into_inner().image.unwrap().image;
        self.change(|state| {
            state.listed.retain(|image| image.id != id);
            state.removed.push(id);
        });
        Ok(Response::new(v1::RemoveImageResponse {}))
    }

    async fn image_fs_info(
        &self,
        _: Request<v1::ImageFsInfoRequest>,
    ) -> Result<Response<v1::ImageFsInfoResponse>, Status> {
        let fs_id = Some(v1::FilesystemIdentifier { mountpoint: "/".to_owned() });
        let usage = v1::FilesystemUsage { fs_id, ..Default::default() };
        Ok(Response::new(v1::ImageFsInfoResponse { image_filesystems: vec![usage], ..Default::default() }))
    }
}
