//! Volumes as containers see them, the cgroups of their pods, and what is left of both.

use std::fs;
use std::path::{Path, PathBuf};

use super::containerd::{CGROUP_ROOT, Containerd};
use super::image::BUSYBOX;
use crate::agent::harness::{Agent, Place, eventually};

/// A pod that says what a script says, then runs on.
fn manifest(name: &str, spec: &str, mounts: &str, script: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  labels: {{app: {name}}}\nspec:\n  \
         terminationGracePeriodSeconds: 1\n  {spec}\n  containers:\n  - name: main\n    image: {BUSYBOX}\n    {mounts}\n    \
         resources: {{limits: {{cpu: 500m, memory: 64Mi}}}}\n    command: [/bin/sh, -c, {:?}]\n",
        format!("{{ {script}; }} > /data/said 2>&1; touch /data/done; exec sleep 1000")
    )
}

fn pod_dir(place: &Place, uid: &str) -> PathBuf {
    place.root().join("pods").join(uid)
}

/// What is mounted below a directory.
fn mounted(dir: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let at = table.lines().filter_map(|line| line.split(' ').nth(4)).filter(|at| Path::new(at).starts_with(dir));
    at.map(str::to_owned).collect()
}

/// What the cgroups of a pod hold, by file, in whichever version.
fn limits(uid: &str) -> Vec<String> {
    let trees = ["", "cpu", "memory"].map(|tree| Path::new("/sys/fs/cgroup").join(tree));
    let mut found = vec![];
    for tree in trees {
        let dir = tree.join(CGROUP_ROOT.trim_start_matches('/')).join("kubepods").join(format!("pod{uid}"));
        for file in ["cpu.shares", "cpu.cfs_quota_us", "memory.limit_in_bytes", "cpu.weight", "cpu.max", "memory.max"] {
            found.extend(fs::read_to_string(dir.join(file)).map(|text| format!("{file}={}", text.trim_end())));
        }
    }
    found
}

async fn said(agent: &Agent, place: &Place, name: &str) -> (String, String) {
    let pod = agent.ready(name).await;
    let uid = pod.metadata.uid.unwrap();
    let data = pod_dir(place, &uid).join("volumes/kubernetes.io~empty-dir/data");
    let said = || async { data.join("done").exists().then(|| fs::read_to_string(data.join("said")).unwrap()) };
    (uid, eventually("it has looked around", said).await)
}

#[tokio::test]
async fn cri_volumes_and_limits_exist_while_their_pod_exists() {
    let Some(containerd) = Containerd::turn().await else { return };
    let place = Place::new();
    let host = place.root().join("host");
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
    place.put("vols.yaml", &manifest("vols", &volumes, mounts, script));
    let mut agent = containerd.agent(&place).await;

    let (uid, text) = said(&agent, &place, "vols-n1").await;
    for line in ["full", "read-only", "through", "app=\"vols\"", "special"] {
        assert!(text.lines().any(|said| said == line), "{line}: {text}");
    }
    assert!(text.contains("tmpfs /ram tmpfs rw") && text.contains("size=1024k"), "{text}");
    assert!(!host.join("made/dir/x").exists() && fs::read_to_string(host.join("made/file")).unwrap() == "y\n");
    let dir = pod_dir(&place, &uid);
    assert_eq!(mounted(&dir).len(), 3, "memory, and two parts of volumes: {:?}", mounted(&dir));
    let limits_are = limits(&uid);
    for (v1, v2) in [
        ("cpu.shares=512", "cpu.weight=20"),
        ("cpu.cfs_quota_us=50000", "cpu.max=50000 100000"),
        ("memory.limit_in_bytes=67108864", "memory.max=67108864"),
    ] {
        assert!(limits_are.iter().any(|limit| limit == v1 || limit == v2), "{v1}: {limits_are:?}");
    }

    // What a pod had is gone also if it went away while no agent ran.
    agent.crash().await;
    place.remove("vols.yaml");
    agent = containerd.agent(&place).await;
    let gone = || async { (!dir.exists() && mounted(&dir).is_empty() && limits(&uid).is_empty()).then_some(()) };
    eventually("nothing is left of it", gone).await;
    assert!(host.join("made/file").exists() && containerd.socket().exists(), "what was the node's is still there");

    // And if an agent saw it go.
    place.put("vols.yaml", &manifest("vols", &volumes, mounts, script));
    let (uid, _) = said(&agent, &place, "vols-n1").await;
    let dir = pod_dir(&place, &uid);
    place.remove("vols.yaml");
    let gone = || async { (!dir.exists() && mounted(&dir).is_empty() && limits(&uid).is_empty()).then_some(()) };
    eventually("nothing is left of it", gone).await;
}
