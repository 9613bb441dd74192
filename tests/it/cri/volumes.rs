//! Volumes as containers see them, the cgroups of their pods, and the removal of both.

use std::fs;
use std::path::{Path, PathBuf};

use super::containerd::Containerd;
use super::image::BUSYBOX;
use crate::agent::harness::{Agent, AgentHome, eventually};

/// Puts a pod that prints the output of a script and then keeps running.
fn manifest(name: &str, spec: &str, mounts: &str, script: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  labels: {{app: {name}}}\nspec:\n  \
         terminationGracePeriodSeconds: 1\n  {spec}\n  containers:\n  - name: main\n    image: {BUSYBOX}\n    {mounts}\n    \
         resources: {{limits: {{cpu: 500m, memory: 64Mi}}}}\n    command: [/bin/sh, -c, {:?}]\n",
        format!("{{ {script}; }} > /data/output 2>&1; touch /data/done; exec sleep 1000")
    )
}

fn pod_dir(home: &AgentHome, uid: &str) -> PathBuf {
    home.root().join("pods").join(uid)
}

/// The mount points below a directory.
fn mounted(dir: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let at = table.lines().filter_map(|line| line.split(' ').nth(4)).filter(|at| Path::new(at).starts_with(dir));
    at.map(str::to_owned).collect()
}

/// The values in the cgroups of a pod by file name, for cgroup v1 and v2.
fn limits(containerd: &Containerd, uid: &str) -> Vec<String> {
    let mut found = vec![];
    for dir in containerd.cgroups_of(uid) {
        for file in ["cpu.shares", "cpu.cfs_quota_us", "memory.limit_in_bytes", "cpu.weight", "cpu.max", "memory.max"] {
            found.extend(fs::read_to_string(dir.join(file)).map(|text| format!("{file}={}", text.trim_end())));
        }
    }
    found
}

async fn uid_and_output(agent: &Agent, home: &AgentHome, name: &str) -> (String, String) {
    let pod = agent.ready(name).await;
    let uid = pod.metadata.uid.unwrap();
    let data = pod_dir(home, &uid).join("volumes/kubernetes.io~empty-dir/data");
    let output = || async { data.join("done").exists().then(|| fs::read_to_string(data.join("output")).unwrap()) };
    (uid, eventually("the script has printed its output", output).await)
}

#[tokio::test]
async fn cri_volumes_and_limits_exist_while_their_pod_exists() {
    let Some(containerd) = Containerd::turn().await else { return };
    let home = AgentHome::new();
    let host = home.root().join("host");
    let volumes = format!(
        "volumes: [{{name: data, emptyDir: {{}}}}, {{name: ram, emptyDir: {{medium: Memory, sizeLimit: 1Mi}}}}, \
         {{name: host, hostPath: {{path: {0}/made/dir, type: DirectoryOrCreate}}}}, \
         {{name: file, hostPath: {{path: {0}/made/file, type: FileOrCreate}}}}, \
         {{name: null, hostPath: {{path: /dev/null, type: CharDevice}}}}, \
         {{name: sock, hostPath: {{path: {1}, type: Socket}}}}, \
         {{name: info, downwardAPI: {{items: [{{path: labels, fieldRef: {{fieldPath: metadata.labels}}}}]}}}}]",
        host.display(),
        containerd.socket().display()
    );
    let mounts = "volumeMounts: [{name: data, mountPath: /data}, {name: ram, mountPath: /ram}, \
                  {name: host, mountPath: /host, readOnly: true}, {name: file, mountPath: /file}, {name: \"null\", \
                  mountPath: /null}, {name: sock, mountPath: /sock}, {name: data, mountPath: /sub, subPath: a/b}, \
                  {name: info, mountPath: /labels, subPath: labels}]";
    let volumes = volumes.replace("name: null", "name: \"null\"");
    let script = "grep ' /ram ' /proc/mounts; dd if=/dev/zero of=/ram/big bs=1M count=2 || echo full; \
                  touch /host/x || echo read-only; echo through > /sub/file; cat /data/a/b/file /labels; echo; \
                  echo y > /file; [ -c /null ] && [ -S /sock ] && echo special";
    home.put("vols.yaml", &manifest("vols", &volumes, mounts, script));
    let mut agent = containerd.agent(&home).await;

    let (uid, text) = uid_and_output(&agent, &home, "vols-n1").await;
    for line in ["full", "read-only", "through", "app=\"vols\"", "special"] {
        assert!(text.lines().any(|printed| printed == line), "{line}: {text}");
    }
    assert!(text.contains("tmpfs /ram tmpfs rw") && text.contains("size=1024k"), "{text}");
    assert!(!host.join("made/dir/x").exists() && fs::read_to_string(host.join("made/file")).unwrap() == "y\n");
    let dir = pod_dir(&home, &uid);
    assert_eq!(mounted(&dir).len(), 3, "memory, and two parts of volumes: {:?}", mounted(&dir));
    let limits_are = limits(&containerd, &uid);
    for (v1, v2) in [
        ("cpu.shares=512", "cpu.weight=20"),
        ("cpu.cfs_quota_us=50000", "cpu.max=50000 100000"),
        ("memory.limit_in_bytes=67108864", "memory.max=67108864"),
    ] {
        assert!(limits_are.iter().any(|limit| limit == v1 || limit == v2), "{v1}: {limits_are:?}");
    }

    // The next agent removes the mounts and directories of a pod whose manifest was removed while no agent ran.
    agent.crash().await;
    home.remove("vols.yaml");
    agent = containerd.agent(&home).await;
    let gone =
        || async { (!dir.exists() && mounted(&dir).is_empty() && limits(&containerd, &uid).is_empty()).then_some(()) };
    eventually("the mounts and directories of the pod are gone", gone).await;
    assert!(host.join("made/file").exists() && containerd.socket().exists(), "files of the node are not removed");

    // A running agent removes them too.
    home.put("vols.yaml", &manifest("vols", &volumes, mounts, script));
    let (uid, _) = uid_and_output(&agent, &home, "vols-n1").await;
    let dir = pod_dir(&home, &uid);
    home.remove("vols.yaml");
    let gone =
        || async { (!dir.exists() && mounted(&dir).is_empty() && limits(&containerd, &uid).is_empty()).then_some(()) };
    eventually("the mounts and directories of the pod are gone", gone).await;
}
