//! Claims of containers of containerd.

use super::containerd::Containerd;
use super::image;
use crate::dra::claim_cluster::ClaimCluster;
use crate::dra::end_to_end::pods_have_their_device_until_they_end_or_are_deleted;

#[tokio::test]
async fn container_has_the_device_of_its_claim_until_it_ends_or_is_deleted() {
    let Some(containerd) = Containerd::turn().await else { return };
    let mut cluster = ClaimCluster::start().await;
    // A containerd with CDI reads the same files.
    cluster.cdi = containerd.cdi_directory();
    cluster.image = image::BUSYBOX;
    let flags = cluster.flags();
    let agent = containerd.agent_with(&cluster.home, &flags.iter().map(String::as_str).collect::<Vec<_>>()).await;
    pods_have_their_device_until_they_end_or_are_deleted(&cluster, &agent).await;
}
