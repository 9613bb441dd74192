//! Creations that are repeated, and stops that are shortened.

use std::time::Duration;

use futures_util::FutureExt;
use podwright_containerd::image::BUSYBOX;
use podwright_containerd::{Containerd, until_logged};
use podwright_fixtures::polling::PATIENCE;
use podwright_fixtures::processes::script;
use podwright_model::pod::PodObject;
use podwright_ports::{ContainerConfig, ContainerRuntime, ContainerState, ImageRequest, RuntimeError, SandboxConfig};
use serde_json::json;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const STUBBORN: &str = "trap 'echo no' TERM; echo ready; while true; do sleep 0.1; done";

#[tokio::test]
async fn cri_creation_is_idempotent_and_a_shorter_grace_period_applies() {
    let Some(containerd) = Containerd::turn().await else { return };
    let root = tempfile::tempdir().unwrap();
    let runtime = containerd.open(root.path());
    let containers = json!([{"name": "main", "image": BUSYBOX}]);
    let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": containers}});
    let pod = PodObject::new(serde_json::from_value(pod).unwrap()).unwrap();

    // A dropped call does not interrupt the creation, and a repeated call returns the created sandbox.
    let config = || SandboxConfig { pod: pod.clone(), attempt: 0 };
    assert!(runtime.run_sandbox(config()).now_or_never().is_none());
    let sandbox = runtime.run_sandbox(config()).await.unwrap();
    let again = containerd.open(root.path());
    assert_eq!(again.run_sandbox(config()).await.unwrap(), sandbox, "a second agent gets the same sandbox");

    let never = CancellationToken::new();
    let request = ImageRequest { pod: &pod, container: None, image: BUSYBOX, pull_policy: None };
    let image_id = runtime.ensure_image(request, &never).await.unwrap();
    let config = || ContainerConfig { image_id: image_id.clone(), ..script(&pod, &sandbox, STUBBORN) };
    let id = runtime.create_container(config()).await.unwrap();
    assert_eq!(again.create_container(config()).await.unwrap(), id);
    let changed = again.create_container(ContainerConfig { spec_hash: 2, ..config() }).await.unwrap();
    assert_ne!(changed, id, "a container with another definition is replaced");
    runtime.start_container(&changed).await.unwrap();
    assert!(runtime.remove_container(&changed, false).await.is_err(), "a running container is not removed");
    let late = runtime.exec(&changed, &["sleep".into(), "100".into()], Duration::from_secs(1)).await;
    assert!(matches!(late, Err(RuntimeError::Timeout { .. })), "{late:?}");

    let log = root.path().join("log/pods/n_p_u/main/0.log");
    until_logged(&log, "ready").await;
    let slow = runtime.stop_container(&changed, Duration::from_secs(600));
    let fast = async {
        // Waits until the slow stop has sent its signal.
        until_logged(&log, "no").await;
        runtime.stop_container(&changed, Duration::from_secs(1)).await
    };
    // Without the shorter grace period both would wait for ten minutes.
    let both = timeout(PATIENCE, async { tokio::join!(slow, fast) }).await;
    assert_eq!(both, Ok((Ok(()), Ok(()))));
    let status = runtime.pod_status(pod.uid()).await.unwrap();
    assert_eq!(status.containers.len(), 1);
    assert_eq!((status.containers[0].state, status.containers[0].exit_code), (ContainerState::Exited, 137));
}
