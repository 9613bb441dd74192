//! The steps that read the API objects that a pod refers to.

use std::sync::Arc;

use super::NodeSyncer;
use crate::ids::PodUid;
use crate::objects::{ObjectRef, ProjectionError, VolumeNeeds, VolumeObjects, files, needs};
use crate::pod::PodObject;
use crate::ports::{ApiObjects, ErrorSource, ObjectKind, VolumeFiles};

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

    /// The content of the pod's volumes that are made of API objects. Empty if the pod has none, or without an API server.
    pub(super) async fn volume_files(&self, pod: &PodObject) -> VolumeFiles {
        let mut all = VolumeFiles::new();
        let Some(api) = self.objects.as_ref().filter(|_| !pod.is_static()) else { return all };
        for volume in pod.spec().volumes.iter().flatten() {
            let Some(needs) = needs(volume) else { continue };
            let objects = read(&**api, pod, needs).await;
            let files = files(pod, volume, &objects, &self.allocatable);
            all.insert(volume.name.clone(), files.map_err(source));
        }
        all
    }
}

fn source(error: ProjectionError) -> ErrorSource {
    Box::<dyn std::error::Error + Send + Sync>::from(error).into()
}

async fn read(api: &dyn ApiObjects, pod: &PodObject, needs: VolumeNeeds) -> VolumeObjects {
    let namespace = pod.full_name().namespace();
    let mut objects = VolumeObjects::default();
    for ObjectRef { kind, name } in needs.objects {
        if kind == ObjectKind::ConfigMap {
            objects.config_maps.insert(name.clone(), api.config_map(namespace, &name).await);
        } else {
            objects.secrets.insert(name.clone(), api.secret(namespace, &name).await);
        }
    }
    for need in needs.tokens {
        let token = api.token(pod, &need).await;
        objects.tokens.insert(need, token);
    }
    for need in needs.bundles {
        let bundle = api.trust_bundle(pod, &need).await;
        objects.bundles.push((need, bundle));
    }
    objects
}
