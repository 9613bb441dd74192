//! An agent in a directory of its own.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::SystemTime;

use k8s_openapi::List;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use rustix::process::Signal;
use tokio::process::{Child, Command};
use tokio::time::timeout;

pub(crate) use crate::support::polling::eventually;
use crate::support::processes::{PATIENCE, Root, kill};

/// The root directory and manifest directory of an agent. Containers in it are killed when the test ends.
pub(crate) struct AgentHome {
    root: Root,
}

impl AgentHome {
    pub(crate) fn new() -> Self {
        let home = AgentHome { root: Root::create() };
        fs::create_dir(home.manifests()).unwrap();
        home
    }

    /// A home with the kubeconfig of a node of this API server.
    pub(crate) fn of_node(server: &podwright_stand_in::StandIn, node: &str) -> Self {
        let home = AgentHome::new();
        fs::write(home.kubeconfig(), server.kubeconfig(&server.node_token(node))).unwrap();
        home
    }

    /// The path of the kubeconfig.
    pub(crate) fn kubeconfig(&self) -> String {
        self.root().join("kubeconfig").to_str().unwrap().to_owned()
    }

    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    /// A directory for files that containers share with the test.
    pub(crate) fn shared(&self) -> &Path {
        self.root.shared()
    }

    pub(crate) fn manifests(&self) -> PathBuf {
        self.root.path().join("manifests")
    }

    /// Writes a manifest atomically. An agent that starts does not wait for its writer, because the manifest is old.
    pub(crate) fn put(&self, name: &str, text: &str) {
        let written = self.root.path().join("written");
        fs::write(&written, text).unwrap();
        File::options().write(true).open(&written).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        fs::rename(written, self.manifests().join(name)).unwrap();
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.manifests().join(name)).unwrap();
    }

    /// The command that starts an agent here.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_podwright"));
        command.arg("run").arg("--root").arg(self.root()).args(["--node-name", "n1"]);
        if !args.contains(&"--manifests") {
            command.arg("--manifests").arg(self.manifests());
        }
        // The disk of the machine that runs the tests may be full.
        if !args.contains(&"--eviction-hard") {
            command.args(["--eviction-hard", ""]);
        }
        if !args.contains(&"--admin") {
            command.args(["--admin", "127.0.0.1:0"]);
        }
        // Agents of other tests would use the same port.
        if args.contains(&"--kubeconfig") && !args.contains(&"--node-api") {
            command.args(["--node-api", "off"]);
        }
        // The pods of most tests run as processes of the user of the tests, who may be root.
        let names = |flag: &str| args.iter().any(|arg| arg.starts_with(flag));
        if names("--kubeconfig") && !names("--runtime") && !names("--process-root-pods") {
            command.args(["--process-root-pods", "allow"]);
        }
        command.args(args).env_remove("RUST_LOG").stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Starts an agent that finds the system bus at this address.
    pub(crate) async fn start_on_bus(&self, args: &[&str], bus: &str) -> Agent {
        let mut command = self.command(args);
        command.env("DBUS_SYSTEM_BUS_ADDRESS", bus);
        Self::until_it_answers(self.spawn(command)).await
    }

    /// Starts controllers of the control plane, and waits until their admin endpoints answer.
    pub(crate) async fn start_controllers(&self, args: &[&str]) -> Agent {
        let mut command = Command::new(env!("CARGO_BIN_EXE_podwright"));
        command.arg("controllers").arg("--root").arg(self.root()).args(["--admin", "127.0.0.1:0"]).args(args);
        command.env_remove("RUST_LOG").stdin(Stdio::null()).kill_on_drop(true);
        Self::until_it_answers(self.spawn(command)).await
    }

    /// Starts an agent with the flags of a kubelet, and waits until its admin endpoints answer.
    pub(crate) async fn start_kubelet(&self, args: &[&str]) -> Agent {
        let mut command = Command::new(env!("CARGO_BIN_EXE_podwright"));
        command.arg("kubelet").args(args).env_remove("RUST_LOG").stdin(Stdio::null()).kill_on_drop(true);
        Self::until_it_answers(self.spawn(command)).await
    }

    /// Starts an agent and waits until its admin endpoints answer.
    pub(crate) async fn start(&self, args: &[&str]) -> Agent {
        Self::until_it_answers(self.start_without_waiting(args)).await
    }

    /// Starts an agent that inherits this file as descriptor 9, and waits until its admin endpoints answer.
    pub(crate) async fn start_with_open_file(&self, file: &Path) -> Agent {
        self.start_below(&format!("exec 9<{} && exec \"$0\" \"$@\"", file.display())).await
    }

    /// Starts an agent with this soft limit on open files and waits until its admin endpoints answer.
    pub(crate) async fn start_with_open_files(&self, limit: u32) -> Agent {
        self.start_below(&format!("ulimit -Sn {limit} && exec \"$0\" \"$@\"")).await
    }

    /// Starts an agent by a shell script, whose arguments are the command line of the agent, and waits until its admin endpoints answer.
    pub(crate) async fn start_below(&self, script: &str) -> Agent {
        let command = self.command(&[]);
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", script]).arg(command.as_std().get_program()).args(command.as_std().get_args());
        shell.env_remove("RUST_LOG").stdin(Stdio::null()).kill_on_drop(true);
        Self::until_it_answers(self.spawn(shell)).await
    }

    async fn until_it_answers(mut agent: Agent) -> Agent {
        let prefix = "admin endpoints are served address=";
        let line = eventually("the agent answers", || async { agent.line(prefix) }).await;
        agent.wait_for_line("admin socket is served").await;
        let address = line.split(prefix).nth(1).unwrap();
        agent.admin = Some(address.trim().parse().unwrap());
        agent
    }

    /// Starts an agent without waiting for its admin endpoints.
    pub(crate) fn start_without_waiting(&self, args: &[&str]) -> Agent {
        self.spawn(self.command(args))
    }

    fn spawn(&self, mut command: Command) -> Agent {
        let log = (0..).map(|n| self.root().join(format!("log-{n}"))).find(|path| !path.exists()).unwrap();
        let child = command.stdout(File::create(&log).unwrap()).spawn().unwrap();
        Agent { child, log, root: self.root().to_owned(), admin: None }
    }

    /// Runs an agent to its end.
    pub(crate) async fn run(&self, args: &[&str]) -> Output {
        timeout(PATIENCE, self.command(args).output()).await.expect("the agent does not end").unwrap()
    }

    /// The command lines of processes that name this directory, without the agent.
    pub(crate) fn processes(&self) -> Vec<String> {
        let root = self.root().to_str().unwrap().as_bytes();
        let has = |bytes: &[u8]| bytes.windows(root.len()).any(|window| window == root);
        let mut found = Vec::new();
        for process in fs::read_dir("/proc").unwrap().flatten() {
            let read = |file: &str| fs::read(process.path().join(file)).unwrap_or_default();
            let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
            if (has(&read("cmdline")) || has(&read("environ"))) && !command.contains("podwright run") {
                found.push(command);
            }
        }
        found
    }
}

/// A running agent. It is killed when dropped, and its pods continue.
pub(crate) struct Agent {
    child: Child,
    log: PathBuf,
    root: PathBuf,
    admin: Option<SocketAddr>,
}

impl Agent {
    pub(crate) fn admin(&self) -> SocketAddr {
        self.admin.expect("the agent was started without admin address")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("the agent runs")
    }

    /// The number of open files and sockets of the agent.
    pub(crate) fn open_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id().expect("the agent runs"))).unwrap().count()
    }

    /// The number of sockets of the agent that a table of `/proc/net`, such as `tcp`, lists.
    pub(crate) fn sockets(&self, table: &str) -> usize {
        let process = format!("/proc/{}", self.child.id().expect("the agent runs"));
        let open: Vec<String> = fs::read_dir(format!("{process}/fd"))
            .unwrap()
            .filter_map(|fd| fs::read_link(fd.unwrap().path()).ok()?.to_str().map(str::to_owned))
            .collect();
        let listed = fs::read_to_string(format!("{process}/net/{table}")).unwrap();
        let inodes = listed.lines().skip(1).filter_map(|line| line.split_whitespace().nth(9));
        inodes.filter(|inode| open.contains(&format!("socket:[{inode}]"))).count()
    }

    /// The whole log so far.
    pub(crate) fn logged(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// The first log line that contains the text.
    pub(crate) fn line(&self, text: &str) -> Option<String> {
        self.logged().lines().find(|line| line.contains(text)).map(str::to_owned)
    }

    /// Waits for a log line that contains the text.
    pub(crate) async fn wait_for_line(&self, text: &str) -> String {
        eventually(text, || async { self.line(text) }).await
    }

    /// Waits until at least this many log lines contain a text. It does not pause between two reads, so that the caller can act
    /// right after the last of these lines.
    pub(crate) async fn wait_for_lines(&self, text: &str, count: usize) {
        let lines = || self.logged().lines().filter(|line| line.contains(text)).count();
        let wait = async {
            while lines() < count {
                tokio::task::yield_now().await;
            }
        };
        let waited = timeout(PATIENCE, wait).await;
        assert!(waited.is_ok(), "{} of {count} lines contain {text:?}", lines());
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.child.id().expect("the agent runs"), signal);
    }

    /// Waits until the agent ends and returns its exit code.
    pub(crate) async fn ended(&mut self) -> Option<i32> {
        timeout(PATIENCE, self.child.wait()).await.expect("the agent does not end").unwrap().code()
    }

    /// Kills the agent with SIGKILL.
    pub(crate) async fn crash(mut self) {
        self.child.kill().await.unwrap();
    }

    /// The socket that serves everything.
    pub(crate) fn socket(&self) -> PathBuf {
        self.root.join("admin.sock")
    }

    /// The link to the page, with its token.
    pub(crate) fn link(&self) -> String {
        fs::read_to_string(self.root.join("admin.link")).unwrap().trim().to_owned()
    }

    /// The header that carries the token of the link.
    pub(crate) fn authorization(&self) -> String {
        format!("Authorization: Bearer {}\r\n", self.link().split_once("#token=").unwrap().1)
    }

    /// Sends a GET request to the socket and returns status code and body.
    pub(crate) fn get(&self, path: &str, headers: &str) -> (u16, String) {
        get(UnixStream::connect(self.socket()).unwrap(), path, headers)
    }

    /// Sends a GET request to the loopback port and returns status code and body.
    pub(crate) fn get_from_port(&self, path: &str, headers: &str) -> (u16, String) {
        let stream = TcpStream::connect(self.admin()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        get(stream, path, headers)
    }

    /// Sends a GET request to the socket and returns a binary body.
    pub(crate) fn fetch(&self, path: &str) -> Vec<u8> {
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let head = answer.windows(4).position(|end| end == b"\r\n\r\n").unwrap();
        assert!(answer.starts_with(b"HTTP/1.0 200"), "{}", String::from_utf8_lossy(&answer[..head]));
        answer.split_off(head + 4)
    }

    /// The pods of `/pods`.
    pub(crate) fn pods(&self) -> Vec<Pod> {
        let (code, body) = self.get("/pods", "");
        assert_eq!(code, 200, "{body}");
        serde_json::from_str::<List<Pod>>(&body).unwrap().items
    }

    /// The pods with a name. There are several while an earlier one stops.
    pub(crate) fn named(&self, name: &str) -> Vec<Pod> {
        self.pods().into_iter().filter(|pod| pod.metadata.name.as_deref() == Some(name)).collect()
    }

    /// Waits until a pod with this name meets the condition, and returns it.
    pub(crate) async fn until(&self, name: &str, what: &str, expected: impl Fn(&Pod) -> bool) -> Pod {
        eventually(&format!("{name} {what}"), || async { self.named(name).into_iter().find(&expected) }).await
    }

    /// Waits until a pod with this name is ready, and returns it.
    pub(crate) async fn ready(&self, name: &str) -> Pod {
        self.until(name, "is ready", is_ready).await
    }

    pub(crate) fn explain(&self, name: &str) -> String {
        let (code, body) = self.get(&format!("/explain/default/{name}"), "");
        assert_eq!(code, 200, "{body}");
        body
    }

    /// Runs a command of the binary for the agent of this root directory.
    pub(crate) async fn run_client(&self, args: &[&str]) -> Output {
        podwright(&[args, &["--root", self.root.to_str().unwrap()]].concat()).await
    }
}

/// Sends a GET request and returns status code and body. It does not wait for the end of an event stream.
fn get(mut stream: impl Read + Write, path: &str, headers: &str) -> (u16, String) {
    write!(stream, "GET {path} HTTP/1.0\r\n{headers}\r\n").unwrap();
    let mut answer = Vec::new();
    let mut part = [0; 8192];
    while let Ok(read @ 1..) = stream.read(&mut part) {
        answer.extend(&part[..read]);
        if String::from_utf8_lossy(&answer).contains("text/event-stream") {
            break;
        }
    }
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Runs a command of the binary to its end.
pub(crate) async fn podwright(args: &[&str]) -> Output {
    let run = Command::new(env!("CARGO_BIN_EXE_podwright")).args(args).output();
    timeout(PATIENCE, run).await.expect("the command does not end").unwrap()
}

/// A pod with one container, `main`, that runs a shell script.
pub(crate) fn manifest(name: &str, script: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  {spec}\n  containers:\n  - name: main\n    image: i\n    command: [/bin/sh, -c, {script:?}]\n"
    )
}

/// The status of the pod's first container, if it has one.
pub(crate) fn container(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().filter_map(|status| status.conditions.as_ref()).flatten();
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
