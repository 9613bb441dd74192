//! The steps that read the API objects that a pod refers to.

use std::sync::Arc;

use futures_util::future::join_all;

use super::NodeSyncer;
use crate::container_manager::read_objects;
use crate::ids::PodUid;
use crate::objects::{ProjectionError, VolumeNeeds, VolumeObjects, files, needs};
use crate::pod::PodObject;
use crate::ports::{ApiObjects, ErrorSource, VolumeFiles};

impl NodeSyncer {
    /// Follows the objects that the pod refers to, before they are read (upstream `SyncPod`, kubelet 1.36). A static pod refers to
    /// none.
    pub(super) fn register_objects(&self, pod: &Arc<PodObject>) {
        if let Some(api) = self.objects.as_ref().filter(|_| !pod.is_static()) {
            api.register(pod);
        }
    }

    /// Ends the watches of the objects that no other pod refers to.
    pub(super) fn unregister_objects(&self, uid: &PodUid) {
        if let Some(api) = &self.objects {
            api.unregister(uid);
        }
    }

    /// The content of the pod's volumes that are made of API objects. Empty if the pod has none, or without an API server. All objects are
    /// read at once.
    pub(super) async fn volume_files(&self, pod: &PodObject) -> VolumeFiles {
        let Some(api) = self.objects.as_ref().filter(|_| !pod.is_static()) else { return VolumeFiles::new() };
        let volumes = pod.spec().volumes.iter().flatten().filter_map(|volume| Some((volume, needs(volume)?)));
        let volumes = volumes.map(|(volume, needs)| async move {
            let objects = read(&**api, pod, needs).await;
            let files = files(pod, volume, &objects, &self.allocatable);
            (volume.name.clone(), files.map_err(source))
        });
        join_all(volumes).await.into_iter().collect()
    }
}

fn source(error: ProjectionError) -> ErrorSource {
    Box::<dyn std::error::Error + Send + Sync>::from(error).into()
}

async fn read(api: &dyn ApiObjects, pod: &PodObject, needs: VolumeNeeds) -> VolumeObjects {
    let VolumeNeeds { objects, tokens, bundles } = needs;
    let tokens = tokens.into_iter().map(|need| async move {
        let token = api.token(pod, &need).await;
        (need, token)
    });
    let bundles = bundles.into_iter().map(|need| async move {
        let bundle = api.trust_bundle(pod, &need).await;
        (need, bundle)
    });
    let objects = read_objects(api, pod.full_name().namespace(), objects);
    let ((config_maps, secrets), tokens, bundles) = tokio::join!(objects, join_all(tokens), join_all(bundles));
    VolumeObjects { config_maps, secrets, tokens: tokens.into_iter().collect(), bundles }
}
