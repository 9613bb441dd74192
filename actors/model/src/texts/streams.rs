//! The texts of commands that clients run in containers (`staging/src/k8s.io/kubelet/pkg/cri/streaming`).

/// The reason of a status for a command that failed (`apimachinery/pkg/util/remotecommand`, `NonZeroExitCodeReason`).
pub const NON_ZERO_EXIT_CODE: &str = "NonZeroExitCode";

/// The type of the cause that holds the exit code (`apimachinery/pkg/util/remotecommand`, `ExitCodeCauseType`).
pub const EXIT_CODE: &str = "ExitCode";

/// The answer to a request without an upgrade (`apimachinery/pkg/util/proxy/upgradeaware.go`, `ServeHTTP`).
pub const UPGRADE_REQUIRED: &str = "Upgrade request required";

/// The status message of a command that failed (`remotecommand/exec.go`, `ServeExec`). The end of the text is that of containerd.
pub fn non_zero_exit(command: &[String], code: i32) -> String {
    let command = command.join(" ");
    format!("command terminated with non-zero exit code: error executing command [{command}], exit code {code}")
}

/// The status message of a command that could not be run (`remotecommand/exec.go`, `ServeExec`).
pub fn cannot_execute(reason: &str) -> String {
    format!("error executing command in container: {reason}")
}

/// The status message of a failed attach (`remotecommand/attach.go`, `ServeAttach`).
pub fn cannot_attach(reason: &str) -> String {
    format!("error attaching to container: {reason}")
}

/// The message of an internal error (`apimachinery/pkg/api/errors`, `NewInternalError`).
pub fn internal_error(reason: &str) -> String {
    format!("Internal error occurred: {reason}")
}

/// The answer to a client that offers no protocol of the server (`apimachinery/pkg/util/httpstream`, `Handshake`).
pub fn no_common_protocol(client: &[&str], server: &[&str]) -> String {
    let (client, server) = (client.join(" "), server.join(" "));
    format!("unable to upgrade: unable to negotiate protocol: client supports [{client}], server accepts [{server}]")
}

/// The error of one forwarded connection (`portforward/httpstream.go`, `portForward`).
pub fn cannot_forward(port: u16, pod: &str, uid: &str, reason: &str) -> String {
    format!("error forwarding port {port} to pod {pod}, uid {uid}: {reason}")
}
