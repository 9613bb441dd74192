//! Pod settings beyond image and command, as the containers see them.

use std::fs;
use std::path::Path;

use k8s_openapi::api::core::v1::Pod;

use super::containerd::Containerd;
use super::image::BUSYBOX;
use crate::agent::harness::{Agent, AgentHome, container, eventually, phase};

/// A pod that runs a script once. The output of the script is the termination message.
fn manifest(name: &str, spec: &str, of_container: &str, script: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  restartPolicy: Never\n  {spec}\n  containers:\n  \
         - name: main\n    image: {BUSYBOX}\n    terminationMessagePath: /last/words\n    {of_container}\n    \
         command: [/bin/sh, -c, {:?}]\n",
        format!("{{ {script}; }} > /last/words 2>&1")
    )
}

/// The output of a pod's script.
async fn output(agent: &Agent, name: &str) -> String {
    let pod = agent.until(name, "ends", |pod| matches!(phase(pod), "Succeeded" | "Failed")).await;
    container(&pod).unwrap().state.as_ref().unwrap().terminated.clone().unwrap().message.unwrap_or_default()
}

/// The cgroups of a pod in all hierarchies and QoS classes.
fn cgroups(uid: &str) -> Vec<String> {
    fn walk(dir: &Path, depth: u32, expected: &str, found: &mut Vec<String>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_name().to_str() == Some(expected) {
                found.push(entry.path().display().to_string());
            } else if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                walk(&entry.path(), depth - 1, expected, found);
            }
        }
    }
    let mut found = vec![];
    walk(Path::new("/sys/fs/cgroup"), 4, &format!("pod{uid}"), &mut found);
    found
}

#[tokio::test]
async fn cri_containers_get_the_security_and_limits_of_their_pod() {
    let Some(containerd) = Containerd::turn().await else { return };
    let home = AgentHome::new();
    let spec = "shareProcessNamespace: true\n  hostAliases: [{ip: 10.1.2.3, hostnames: [foo, bar]}]\n  \
                securityContext: {runAsUser: 1000, runAsGroup: 1001, fsGroup: 2000}";
    let limits = "resources: {limits: {cpu: 500m, memory: 64Mi}}\n    \
                  securityContext: {readOnlyRootFilesystem: true, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}";
    let script = "id -u; id -g; id -G; grep -E 'CapBnd|NoNewPrivs' /proc/self/status; touch /new || echo read-only; \
                  cut -d ' ' -f 1 /proc/1/comm; grep foo /etc/hosts; cat /proc/self/oom_score_adj; \
                  cd /sys/fs/cgroup; cat memory.max cpu.max memory/memory.limit_in_bytes cpu/cpu.cfs_quota_us 2> /dev/null";
    home.put("limits.yaml", &manifest("limits", spec, limits, script));
    let own = std::process::id();
    home.put("node.yaml", &manifest("node", "hostPID: true", "stdin: false", &format!("cat /proc/{own}/comm")));
    home.put("root.yaml", &manifest("root", "securityContext: {runAsNonRoot: true}", "stdin: false", "id -u"));
    home.put("class.yaml", &manifest("class", "runtimeClassName: plain", "stdin: false", "echo by its class"));
    home.put("no-class.yaml", &manifest("no-class", "runtimeClassName: other", "stdin: false", "true"));
    let agent = containerd.agent_with(&home, &["--runtime-class=plain=runc"]).await;

    agent.until("no-class-n1", "is known", |_| true).await;
    let unknown = || async { agent.explain("no-class-n1").contains("--runtime-class other=HANDLER").then_some(()) };
    eventually("an unknown runtime class is reported with a remedy", unknown).await;
    assert_eq!(output(&agent, "class-n1").await, "by its class\n");
    let refused = |pod: &Pod| {
        let waiting = container(pod).and_then(|it| it.state.as_ref()?.waiting.clone()).unwrap_or_default();
        waiting.reason.as_deref() == Some("CreateContainerConfigError")
            && waiting
                .message
                .unwrap_or_default()
                .starts_with("container has runAsNonRoot and image will run as root (pod:")
    };
    agent.until("root-n1", "is refused with the text of a kubelet", refused).await;
    let remedy =
        || async { agent.explain("root-n1").contains("runAsUser is set to a number other than 0").then_some(()) };
    eventually("the explanation names a remedy", remedy).await;
    let comm = fs::read_to_string("/proc/self/comm").unwrap();
    assert_eq!(output(&agent, "node-n1").await, comm, "the container sees the processes of the node");

    let text = output(&agent, "limits-n1").await;
    for line in ["1000", "1001", "1001 2000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "read-only", "sleep"] {
        assert!(text.lines().any(|printed| printed == line), "{line}: {text}");
    }
    assert!(text.contains("10.1.2.3\tfoo\tbar\n") && text.contains("67108864\n"), "{text}");
    assert!(text.contains("50000\n") || text.contains("50000 100000\n"), "{text}");
    assert!(agent.logged().contains("MissingClusterDNS"), "the event reports the missing cluster DNS");

    let pods = agent.pods();
    let uid = |name: &str| {
        pods.iter()
            .find_map(|pod| (pod.metadata.name.as_deref() == Some(name)).then(|| pod.metadata.uid.clone())?)
            .unwrap()
    };
    let of_pod = [uid("limits-n1"), uid("root-n1")];
    ["limits", "node", "root", "class", "no-class"].iter().for_each(|name| home.remove(&format!("{name}.yaml")));
    eventually("the pods are gone", || async { agent.pods().is_empty().then_some(()) }).await;
    let left = || async { of_pod.iter().all(|uid| cgroups(uid).is_empty()).then_some(()) };
    eventually("the cgroups of the pods are removed", left).await;
}
