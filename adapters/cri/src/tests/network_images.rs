//! Tests of the images of the sandboxes that hold the networks of pods.

use podwright_host::stats::PodNetwork;
use podwright_model::ids::{PodUid, SandboxId};
use podwright_model::time::Time;
use tonic::Status;

use super::fake::FakeRuntime;
use super::{PATIENCE, run_sandbox};
use crate::stats::NetworkImages;

fn network(sandbox: &SandboxId) -> PodNetwork {
    PodNetwork {
        pod: PodUid::new("u"),
        sandbox: sandbox.clone(),
        cgroup: None,
        image: None,
        at: Time::ZERO,
        default: None,
        interfaces: Vec::new(),
    }
}

#[tokio::test]
async fn image_of_a_sandbox_is_read_until_it_is_known() {
    let fake = FakeRuntime::start(1).await;
    let (client, images) = (fake.client(), NetworkImages::default());
    let sandboxes = [run_sandbox(&fake).await.unwrap(), run_sandbox(&fake).await.unwrap()];
    let found = async |sandboxes: &[SandboxId]| {
        let mut networks: Vec<PodNetwork> = sandboxes.iter().map(network).collect();
        images.add(&client, &mut networks, PATIENCE).await;
        networks.into_iter().map(|network| network.image).collect::<Vec<_>>()
    };
    let pause = Some("pause.example/pause:1".to_owned());
    let broken = Some((&sandboxes[0], Status::unknown("it has no task")));
    fake.fail_sandbox_status(broken.clone());
    assert_eq!(found(&sandboxes[..]).await, [None, pause.clone()]);
    fake.fail_sandbox_status(None);
    assert_eq!(found(&sandboxes[..]).await, [pause.clone(), pause.clone()], "a failed call is repeated");
    fake.fail_sandbox_status(broken);
    assert_eq!(found(&sandboxes[..]).await, [pause.clone(), pause.clone()], "a known image is kept");
    // The second sandbox is gone, and so is its image.
    assert_eq!(found(&sandboxes[..1]).await, [pause]);
    fake.fail_sandbox_status(Some((&sandboxes[1], Status::unknown("it has no task"))));
    assert_eq!(found(&sandboxes[1..]).await, [None]);
}

#[tokio::test]
async fn images_of_many_sandboxes_are_read() {
    let fake = FakeRuntime::start(1).await;
    let mut networks: Vec<PodNetwork> = (0..40).map(|number| network(&SandboxId::from(format!("s{number}")))).collect();
    NetworkImages::default().add(&fake.client(), &mut networks, PATIENCE).await;
    assert!(networks.iter().all(|network| network.image.is_some()), "{networks:?}");
}
