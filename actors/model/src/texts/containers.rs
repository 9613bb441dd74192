//! Texts of containers: their events and their states.

use std::time::Duration;

use super::format::{self, quoted};
use crate::pod::PodObject;

/// The event after a container was created (`kuberuntime/kuberuntime_container.go`, `startContainer`).
pub const CREATED: &str = "Container created";
/// The event after a container was started (`kuberuntime/kuberuntime_container.go`, `startContainer`).
pub const STARTED: &str = "Container started";
/// The event of a post-start hook that failed. The output of its command may contain secrets, so only the waiting message has it
/// (`kuberuntime/kuberuntime_container.go`, `startContainer`).
pub const POST_START_FAILED: &str = "PostStartHook failed";
/// The event of a pre-stop hook that failed (`kuberuntime/kuberuntime_container.go`, `executePreStopHook`).
pub const PRE_STOP_FAILED: &str = "PreStopHook failed";

/// The error of a container with a volume mount that requires a recursive read-only mount, which the runtime does not support
/// (`kubelet_pods.go`, `makeMounts` and `resolveRecursiveReadOnly`).
pub fn no_recursive_read_only(volume: &str) -> String {
    format!(
        "failed to resolve recursive read-only mode: volume {} requested recursive read-only mode, but it is not supported by \
         the runtime",
        quoted(volume)
    )
}

/// The error of a variable from a file in a volume that the pod does not have (`kubelet_pods.go`, `makeEnvironmentVariables`).
pub fn no_env_volume(volume: &str) -> String {
    format!("cannot find the volume {} referenced by FileKeyRef", quoted(volume))
}

/// The error of a variable from a file that cannot be read or parsed (`kubelet_pods.go`, `makeEnvironmentVariables`).
pub const BAD_ENV_FILE: &str = "couldn't parse env file";

/// The error of a variable that its file does not set (`kubelet_pods.go`, `makeEnvironmentVariables`).
pub fn no_env_key(key: &str, path: &str) -> String {
    format!("environment variable key {} not found in file {}", quoted(key), quoted(path))
}

/// The event of a container that was not started (`kuberuntime/kuberuntime_container.go`, `startContainer`).
pub fn start_failed(error: &str) -> String {
    format!("Error: {error}")
}

/// The event of a container in crash backoff (`kuberuntime/kuberuntime_manager.go`, `doBackOff`).
pub fn crash_backoff_event(container: &str, pod: &PodObject) -> String {
    format!("Back-off restarting failed container {container} in pod {}", format::pod(pod))
}

/// The waiting message of a container in crash backoff (`kuberuntime/kuberuntime_manager.go`, `doBackOff`).
pub fn crash_backoff(delay: Duration, container: &str, pod: &PodObject) -> String {
    let (delay, pod) = (format::duration(delay), format::pod(pod));
    format!("back-off {delay} restarting failed container={container} pod={pod}")
}

/// The events of a container that is stopped. They have the reason `Killing`.
pub mod killing {
    /// The pod stops (`kuberuntime/kuberuntime_container.go`, `killContainer`).
    pub fn pod_stops(container: &str) -> String {
        format!("Stopping container {container}")
    }

    /// The post-start hook failed (`kuberuntime/kuberuntime_container.go`, `startContainer`).
    pub const POST_START_FAILED: &str = "FailedPostStartHook";

    /// All containers of the pod start again (`kuberuntime/kuberuntime_manager.go`, `SyncPod`).
    pub const RESTART_ALL: &str = "killing";

    /// The container's definition changed (`kuberuntime/kuberuntime_manager.go`, `computePodActions`; for an init container
    /// `kuberuntime/kuberuntime_container.go`, `computeInitContainerActions`).
    pub fn definition_changed(container: &str, init: bool) -> String {
        let restarts = if init { "" } else { WILL_BE_RESTARTED };
        format!("{} {container} definition changed{restarts}", noun(init))
    }

    /// A liveness or startup probe failed; `probe` is its name in small letters (the functions of
    /// [`definition_changed`]).
    pub fn probe_failed(container: &str, init: bool, probe: &str, restarts: bool) -> String {
        let restarts = if restarts && !init { WILL_BE_RESTARTED } else { "" };
        format!("{} {container} failed {probe} probe{restarts}", noun(init))
    }

    /// The runtime does not know the container's state (the functions of [`definition_changed`]).
    pub fn state_unknown(init: bool) -> String {
        format!("{} is in \"unknown\" state, try killing it before restart", noun(init))
    }

    const WILL_BE_RESTARTED: &str = ", will be restarted";

    fn noun(init: bool) -> &'static str {
        if init { "Init container" } else { "Container" }
    }
}

/// The waiting messages of a container that has `runAsNonRoot` and does not satisfy it
/// (`kuberuntime/security_context_others.go`, `verifyRunAsNonRoot`).
pub mod non_root {
    use super::format;
    use crate::pod::PodObject;

    /// The spec sets `runAsUser` to 0.
    pub fn user_is_root(pod: &PodObject, container: &str) -> String {
        format!("container's runAsUser breaks non-root policy {}", of(pod, container))
    }

    /// The user of the image is root.
    pub fn image_is_root(pod: &PodObject, container: &str) -> String {
        format!("container has runAsNonRoot and image will run as root {}", of(pod, container))
    }

    /// The image names its user by name, and the user's ID is not known.
    pub fn named_user(pod: &PodObject, container: &str, user: &str) -> String {
        format!(
            "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root {}",
            of(pod, container)
        )
    }

    /// The ID of the image's user is not valid.
    pub fn invalid_user(pod: &PodObject, container: &str, user: i64) -> String {
        let max = i32::MAX;
        format!(
            "container has runAsNonRoot and image has an invalid user id ({user}). (Must be 1-({max})): must be between 0 \
             and {max}, inclusive {}",
            of(pod, container)
        )
    }

    fn of(pod: &PodObject, container: &str) -> String {
        format!("(pod: {}, container: {container})", format::quoted(&format::pod(pod)))
    }
}

/// The terminated message of a container whose exit the runtime does not know (`kubelet_pods.go`, `convertContainerStatus`;
/// `status/status_manager.go`, `TerminatePod`).
pub const NOT_LOCATED: &str = "The container could not be located when the pod was terminated";
/// The terminated message of a container that ran and that the runtime no longer has. It has two spaces (`kubelet_pods.go`,
/// `convertToAPIContainerStatuses`).
pub const NOT_LOCATED_WAS_RUNNING: &str =
    "The container could not be located when the pod was deleted.  The container used to be Running";
/// The waiting and terminated message of a container that is removed because all containers of the pod start again
/// (`kubelet_pods.go`, `convertToAPIContainerStatuses`).
pub const RESTARTING_ALL: &str = "The container is removed because RestartAllContainers in place";
/// The terminated message of an init container that the runtime no longer has while a regular container exists
/// (`kubelet_pods.go`, `convertToAPIContainerStatuses`).
pub const INIT_EXITED: &str = "Unable to get init container status from container runtime and pod has been initialized, treat it as exited normally";

/// Messages of containers that cannot be configured. Their waiting reason is `CreateContainerConfigError`.
pub mod config {
    use super::quoted;

    /// A variable needs a config map or a secret, and the node has no API server. `kind` is `configMap` or `secret`
    /// (`kubelet_pods.go`, `makeEnvironmentVariables`).
    pub fn no_client(kind: &str, namespace: &str, name: &str) -> String {
        format!("couldn't get {kind} {namespace}/{name}, no kubeClient defined")
    }

    /// A mount names a volume that the pod does not have (`kubelet_pods.go`, `makeMounts`).
    pub fn no_volume(volume: &str, container: &str) -> String {
        format!("cannot find volume {} to mount into container {}", quoted(volume), quoted(container))
    }

    /// A `subPath` is absolute (`kubelet_pods.go`, `makeMounts`).
    pub fn absolute_sub_path(path: &str) -> String {
        format!("error SubPath `{path}` must not be an absolute path")
    }

    /// A `subPath` has the part `..` (`kubelet_pods.go`, `makeMounts`; `pkg/volume/validation`, `ValidatePathNoBacksteps`).
    pub fn sub_path_leads_out(path: &str) -> String {
        format!("unable to provision SubPath `{path}`: must not contain '..'")
    }

    /// A `subPathExpr` names variables that are empty or not set (`container/helpers.go`, `ExpandContainerVolumeMounts`).
    pub fn no_variable(names: &str) -> String {
        format!("missing value for {names}")
    }

    /// The directories of a `subPath` cannot be created. The cause is left out, because it describes files of the node
    /// (`kubelet_pods.go`, `makeMounts`).
    pub fn sub_path_not_created(volume: &str, container: &str) -> String {
        let (volume, container) = (quoted(volume), quoted(container));
        format!("failed to create subPath directory for volumeMount {volume} of container {container}")
    }

    /// A `subPath` cannot be mounted, for example because a link leads out of its volume. The cause is left out, because it
    /// describes files of the node (`kubelet_pods.go`, `makeMounts`).
    pub fn sub_path_not_prepared(volume: &str, container: &str) -> String {
        let (volume, container) = (quoted(volume), quoted(container));
        format!("failed to prepare subPath for volumeMount {volume} of container {container}")
    }

    /// A mount propagation that does not exist (`kubelet_pods.go`, `translateMountPropagation`).
    pub fn unknown_propagation(mode: &str) -> String {
        format!("invalid MountPropagation mode: {}", quoted(mode))
    }

    /// The directory of the container's logs cannot be created (`kuberuntime/kuberuntime_container.go`,
    /// `generateContainerConfig`).
    pub fn no_log_dir(container: &str, error: &str) -> String {
        format!("create container log directory for container {container} failed: {error}")
    }

    /// The target of an ephemeral container does not run (`kuberuntime/kuberuntime_container.go`, `getTargetID`).
    pub fn no_target(container: &str) -> String {
        format!("unable to find target container {container}")
    }

    /// A seccomp profile of the node without a name (`kuberuntime/helpers.go`, `fieldSeccompProfile`).
    pub const NO_SECCOMP_PROFILE: &str = "localhostProfile must be set if seccompProfile type is Localhost.";

    /// An AppArmor profile of the node without a name (`kuberuntime/helpers.go`, `getAppArmorProfile`).
    pub const NO_APP_ARMOR_PROFILE: &str = "missing localhost apparmor profile name";

    /// An AppArmor profile type that does not exist (`kuberuntime/helpers.go`, `getAppArmorProfile`).
    pub fn unknown_app_armor_type(kind: &str) -> String {
        format!("unknown apparmor profile type: {}", quoted(kind))
    }
}

/// Messages of terminated containers whose own termination message cannot be read.
pub mod termination {
    /// The container's message file cannot be read (`kuberuntime/kuberuntime_container.go`, `getTerminationMessage`).
    pub fn no_file(path: &std::path::Path, error: &str) -> String {
        format!("Error on reading termination log {}: {error}", path.display())
    }

    /// The container's log cannot be read (`kuberuntime/kuberuntime_container.go`, `readLastStringFromContainerLogs`).
    pub fn no_log(error: &str) -> String {
        format!("Error on reading termination message from logs: {error}")
    }
}

/// Messages of a failed post-start hook. Its waiting reason is `PostStartHookError`.
pub mod hooks {
    use super::{PodObject, format, quoted};

    /// A command failed (`lifecycle/handlers.go`, `Run`).
    pub fn exec_failed(command: &[String], container: &str, pod: &PodObject, error: &str, output: &str) -> String {
        let (command, container, pod) = (format::list(command), quoted(container), quoted(&format::pod(pod)));
        let output = quoted(output);
        format!(
            "Exec lifecycle hook ({command}) for Container {container} in Pod {pod} failed - error: {error}, message: {output}"
        )
    }

    /// The error of a command that ended with an exit code (`cri-client/pkg/remote_runtime.go`, `execSyncV1`).
    pub fn exit(command: &[String], code: i32, stderr: &str) -> String {
        format!("command '{}' exited with {code}: {stderr}", command.join(" "))
    }

    /// A request failed (`lifecycle/handlers.go`, `Run`).
    pub fn http_failed(path: &str, container: &str, pod: &PodObject, error: &str) -> String {
        let (container, pod) = (quoted(container), quoted(&format::pod(pod)));
        format!("HTTP lifecycle hook ({path}) for Container {container} in Pod {pod} failed - error: {error}")
    }

    /// The hook has no action (`lifecycle/handlers.go`, `Run`).
    pub const NO_ACTION: &str =
        "Cannot run handler: invalid handler: &LifecycleHandler{Exec:nil,HTTPGet:nil,TCPSocket:nil,Sleep:nil,}";
}
