//! The local storage of containers, as the runtime measures it.

use super::containerd::Containerd;
use super::image::BUSYBOX;
use crate::agent::harness::{AgentHome, eventually};

/// The mebibytes, rounded down, that a line of an explanation reports.
fn mebibytes(text: &str, start: &str) -> Option<u64> {
    let used = text.lines().find_map(|line| line.trim_start().strip_prefix(start))?.split(' ').next()?;
    match used.strip_suffix("Ki") {
        Some(kibibytes) => Some(kibibytes.parse::<u64>().ok()? >> 10),
        None => used.strip_suffix("Mi")?.parse().ok(),
    }
}

#[tokio::test]
async fn cri_writable_layers_and_volumes_count_for_their_limits() {
    let Some(containerd) = Containerd::turn().await else { return };
    let home = AgentHome::new();
    home.put(
        "writes.yaml",
        &format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: writes\nspec:\n  terminationGracePeriodSeconds: 1\n  \
             volumes: [{{name: data, emptyDir: {{sizeLimit: 4Mi}}}}]\n  containers:\n  - name: main\n    image: {BUSYBOX}\n    \
             volumeMounts: [{{name: data, mountPath: /data}}]\n    resources: {{limits: {{ephemeral-storage: 64Mi}}}}\n    \
             command: [/bin/sh, -c, 'dd if=/dev/zero of=/layer bs=1M count=7; dd if=/dev/zero of=/data/file bs=1M count=5; \
             exec sleep 1000']\n"
        ),
    );
    let agent = containerd.agent(&home).await;
    agent.ready("writes-n1").await;
    let measured = || async {
        let text = agent.explain("writes-n1");
        let (layer, volume) = (mebibytes(&text, "container main: ")?, mebibytes(&text, "emptyDir data: ")?);
        (layer == 7 && volume == 5 && text.contains(" of 64Mi")).then_some(text)
    };
    let text = eventually("the runtime measures the layer", measured).await;
    assert!(text.contains("exceeds the limit; a static or critical pod is not evicted"), "{text}");
}
