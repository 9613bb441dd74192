//! Makes the comparison independent of the speed of the machine. In the recording, some containers ended or changed after a short time,
//! and some time limits were short. Here, these containers wait until the test has observed that they run, and the time limits are long.
//! The recorded statuses and events contain neither the commands nor the limits.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::super::containerd::Containerd;

/// The grace period of pods and the time limit of probes, in seconds. No test run reaches it.
const LONG: u32 = 60;
/// The deadline of a pod until its action, in seconds. No test run reaches it.
const LATER: u32 = 3600;
/// The bit of SIGTERM in a signal mask of `/proc/PID/status`.
const TERM: u64 = 1 << 14;

/// Pods, their containers, and the commands that the containers run instead of the recorded ones. `WAIT` waits for [`permit`].
const COMMANDS: [(&str, &str, &str); 8] = [
    ("onfailure", "a", "n=$(cat /d/n 2>/dev/null || echo 0); n=$((n+1)); echo $n > /d/n; WAIT; [ $n -ge 2 ]"),
    ("crashloop", "a", "WAIT; exit 1"),
    ("always-exit0", "a", "WAIT; exit 0"),
    ("init-ok", "i1", "WAIT"),
    ("init-ok", "i2", "WAIT"),
    ("sidecar-job", "a", "WAIT; exit 0"),
    (
        "readiness",
        "a",
        "trap 'exit 0' TERM; sleep 3; touch /tmp/r; WAIT; rm /tmp/r; while true; do sleep 0.2 & wait $!; done",
    ),
    ("liveness", "a", "trap 'exit 0' TERM; WAIT; touch /tmp/dead; while true; do sleep 0.2 & wait $!; done"),
];

const WAIT: &str = "until [ -e /tmp/go ]; do sleep 0.2 & wait $!; done";

/// The command of a container that waits for [`permit`]. `None` if the container runs its recorded command.
fn command(pod: &Value, container: &Value) -> Option<&'static str> {
    let (pod, container) = (pod["metadata"]["name"].as_str()?, container["name"].as_str()?);
    COMMANDS.iter().find(|(name, of, _)| (*name, *of) == (pod, container)).map(|(_, _, command)| *command)
}

/// The pod of the recording with commands that wait for the test, and with long time limits.
pub(super) fn paced(recorded: &Value) -> Value {
    let mut pod = recorded.clone();
    let spec = &mut pod["spec"];
    spec["terminationGracePeriodSeconds"] = LONG.into();
    if let Some(deadline) = spec.get_mut("activeDeadlineSeconds") {
        *deadline = LATER.into();
    }
    for list in ["initContainers", "containers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(command) = command(recorded, container) {
                container["command"] = json!(["/bin/sh", "-c", command.replace("WAIT", WAIT)]);
            }
            for probe in ["readinessProbe", "livenessProbe"] {
                if let Some(probe) = container.get_mut(probe) {
                    probe["timeoutSeconds"] = LONG.into();
                }
            }
        }
    }
    pod
}

/// Lets the waiting containers of a pod continue if the status of the pod shows them as running. A container that is no init container
/// must also be ready.
pub(super) fn permit(containerd: &Containerd, pod: &Value) {
    for list in ["initContainerStatuses", "containerStatuses"] {
        for container in pod["status"][list].as_array().into_iter().flatten() {
            let is_init = list == "initContainerStatuses";
            let is_seen = container["state"].get("running").is_some() && (is_init || container["ready"] == true);
            if !is_seen || command(pod, container).is_none() {
                continue;
            }
            if let Some(process) = process(containerd, container["containerID"].as_str().unwrap_or_default()) {
                // The container may have ended in the meantime.
                let _ = fs::write(process.join("root/tmp/go"), "");
            }
        }
    }
}

/// Whether the first process of a container handles or ignores SIGTERM. A shell that has not set its trap does not run the trap.
pub(super) fn handles_stop(containerd: &Containerd, container: &str) -> bool {
    let status = process(containerd, container).and_then(|process| fs::read_to_string(process.join("status")).ok());
    let status = status.unwrap_or_default();
    let mut sets = status.lines().filter_map(|line| {
        let set = line.strip_prefix("SigCgt:").or_else(|| line.strip_prefix("SigIgn:"))?;
        u64::from_str_radix(set.trim(), 16).ok()
    });
    sets.any(|set| set & TERM != 0)
}

/// The directory of a container's first process in `/proc`. `None` if the container does not run.
fn process(containerd: &Containerd, container: &str) -> Option<PathBuf> {
    let container = container.strip_prefix("containerd://")?;
    let tasks = containerd.ctr(&["tasks", "list"]);
    let task = tasks.lines().find_map(|line| line.strip_prefix(container))?;
    Some(PathBuf::from("/proc").join(task.split_whitespace().next()?))
}
