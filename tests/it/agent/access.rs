//! Access to the endpoints. The agent's own user may read everything. Other users and machines may read only the endpoints that show no
//! pod.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use rustix::thread::{set_thread_gid, set_thread_uid};

use super::harness::{Agent, AgentHome, eventually, manifest, phase, podwright, text};
use crate::support::tls_files::{TOKEN, write_tls_files};

const SLEEPS: &str = "exec sleep 1000";
/// The endpoints that show specs, logs or recordings.
const PRIVATE: [&str; 6] =
    ["/pods", "/explain", "/explain/default/web-n1", "/logs/default/web-n1", "/recording", "/watch"];
const PUBLIC: [&str; 4] = ["/", "/healthz", "/readyz", "/metrics"];

/// Runs `work` as another user in a thread of its own. `None` if this process is not root.
fn as_other_user<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    let other = rustix::process::geteuid().is_root().then_some(65534)?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // On Linux, each thread has its own user.
            set_thread_gid(rustix::process::Gid::from_raw(other)).unwrap();
            set_thread_uid(rustix::process::Uid::from_raw(other)).unwrap();
            work()
        });
        Some(thread.join().unwrap())
    })
}

/// Lets every user pass through the root directory of a test, as through the default one.
fn open_to_all(home: &AgentHome) {
    fs::set_permissions(home.root(), fs::Permissions::from_mode(0o755)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o777
}

#[tokio::test]
async fn other_users_get_health_and_metrics_only() {
    let home = AgentHome::new();
    open_to_all(&home);
    home.put("web.yaml", &manifest("web", SLEEPS, ""));
    let agent = home.start(&[]).await;
    agent.ready("web-n1").await;
    let (right, wrong) = (agent.authorization(), format!("Authorization: Bearer {}\r\n", "x".repeat(43)));
    for path in PUBLIC {
        for headers in ["", &wrong, &right] {
            let (code, body) = agent.get_from_port(path, headers);
            assert!(code == 200 && !body.contains("web-n1"), "{path} {code}: {body}");
        }
    }
    let names_the_node = |headers: &str| agent.get_from_port("/metrics", headers).1.contains("kubelet_node_name{");
    assert!(!names_the_node("") && !names_the_node(&wrong) && names_the_node(&right));
    for path in PRIVATE {
        for headers in ["", &wrong, "Authorization: Basic eDp5\r\n", "Cookie: token=x\r\n"] {
            let (code, body) = agent.get_from_port(path, headers);
            assert_eq!(code, 401, "{path}: {body}");
            assert!(body.contains("podwright link") && !body.contains("web-n1"), "{body}");
        }
    }
    for path in ["/pods", "/explain", "/explain/default/web-n1", "/logs/default/web-n1", "/watch"] {
        assert_eq!(agent.get_from_port(path, &right).0, 200, "{path}");
    }

    let socket = agent.socket();
    assert!(fs::metadata(&socket).unwrap().file_type().is_socket());
    assert_eq!((mode(&socket), mode(&home.root().join("admin.link"))), (0o600, 0o600));
    let refused = as_other_user(|| UnixStream::connect(&socket).map_err(|error| error.kind()));
    if let Some(refused) = refused {
        assert_eq!(refused.unwrap_err(), ErrorKind::PermissionDenied);
        assert!(as_other_user(|| fs::read(home.root().join("admin.link"))).unwrap().is_err());
        // Even if somebody widens the mode, another user gets no answer.
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
        let answer = as_other_user(|| -> io::Result<usize> {
            let mut stream = UnixStream::connect(&socket)?;
            stream.write_all(b"GET /pods HTTP/1.0\r\n\r\n")?;
            stream.read(&mut [0; 100])
        });
        assert!(!matches!(answer.unwrap(), Ok(1..)));
    }
    assert!(!agent.logged().contains(agent.link().split_once("#token=").unwrap().1), "the log has no token");
}

/// The files and directories below `dir` that this thread's user can list or read.
fn readable(dir: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else {
        // The name of a file in a directory that cannot be listed may be known.
        return;
    };
    found.push(dir.to_owned());
    for entry in entries.flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => readable(&path, found),
            Ok(kind) if kind.is_file() && fs::File::open(&path).is_ok() => found.push(path),
            _ => {}
        }
    }
}

#[tokio::test]
async fn other_users_can_read_nothing_of_pods_in_the_root_directory() {
    let home = AgentHome::new();
    open_to_all(&home);
    let volume = "volumes: [{name: v, emptyDir: {}}]";
    let mount = "volumeMounts: [{name: v, mountPath: /v}]\n    env: [{name: SECRET, value: s3cr3t}]\n    command:";
    let script = "echo hello; exec sleep 1000";
    home.put("web.yaml", &manifest("web", script, volume).replace("command:", mount));
    home.put("job.yaml", &manifest("job", "exit 1", "restartPolicy: Never"));
    let agent = home.start(&[]).await;
    agent.ready("web-n1").await;
    agent.until("job-n1", "has failed", |pod| phase(pod) == "Failed").await;
    let root = home.root();
    let mut all = Vec::new();
    readable(root, &mut all);
    assert!(all.iter().any(|path| path.ends_with("0.log")) && all.len() > 20, "{all:?}");
    // Every directory is tried, also one in a directory that cannot be listed. Some directories must be passable.
    let other = as_other_user(|| {
        let mut found = Vec::new();
        for path in &all {
            if path.is_dir() {
                readable(path, &mut found)
            } else if fs::File::open(path).is_ok() {
                found.push(path.clone())
            }
        }
        found
    });
    let of_test = |path: &Path| {
        let first = path.strip_prefix(root).unwrap().iter().next().map(|name| name.to_string_lossy().into_owned());
        first.is_none_or(|name| name == "manifests" || name.starts_with("log-"))
    };
    let leaked: Vec<_> = other.into_iter().flatten().filter(|path| !of_test(path)).collect();
    assert_eq!(leaked, Vec::<PathBuf>::new());
}

#[tokio::test]
async fn commands_find_the_agent_by_its_root_directory() {
    let home = AgentHome::new();
    home.put("web.yaml", &manifest("web", "echo hello; exec sleep 1000", ""));
    let mut agent = home.start(&[]).await;
    agent.ready("web-n1").await;
    let port = agent.admin().to_string();
    let root = home.root().to_str().unwrap();
    let addresses: [&[&str]; 3] =
        [&["--root", root], &["--root", root, "--admin", &port], &["--admin", &format!("unix://{root}/admin.sock")]];
    for address in addresses {
        for command in [&["get", "pods"][..], &["explain", "default/web-n1"]] {
            let output = podwright(&[command, address].concat()).await;
            assert!(text(&output.stdout).contains("web-n1"), "{address:?}: {}", text(&output.stderr));
        }
        eventually("the log is printed", || async {
            let output = podwright(&[&["logs", "default/web-n1"], address].concat()).await;
            (text(&output.stdout) == "hello\n").then_some(())
        })
        .await;
    }
    // Without the root directory, a command has no token for the port.
    let elsewhere = tempfile::tempdir().unwrap();
    let output = podwright(&["get", "pods", "--admin", &port, "--root", elsewhere.path().to_str().unwrap()]).await;
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("podwright link"), "{output:?}");

    let link = agent.link();
    let origin = |link: &str| link.split_once("/#token=").unwrap().0.to_owned();
    let number = port.rsplit_once(':').unwrap().1;
    assert!(origin(&link).ends_with(&format!(".localhost:{number}")), "{link}");
    let host = format!("Host: {}\r\n", origin(&link).strip_prefix("http://").unwrap());
    assert_eq!(agent.get_from_port("/", &host).0, 200);
    let output = podwright(&["link", "--root", root]).await;
    assert_eq!(text(&output.stdout), format!("{link}\n"));
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().await, Some(0));
    for file in ["admin.sock", "admin.link"] {
        assert!(!home.root().join(file).exists(), "{file} remains");
    }

    let agent = home.start(&[]).await;
    assert_ne!(agent.link(), link, "each start makes a new token");
    let label = |link: &str| origin(link).split_once('.').unwrap().0.to_owned();
    assert_ne!(label(&agent.link()), label(&link), "no other program can know the origin of the page");
    assert_eq!(agent.get_from_port("/pods", &format!("Authorization: Bearer {}\r\n", &link[link.len() - 43..])).0, 401);
    agent.crash().await;
    let output = podwright(&["link", "--root", root]).await;
    assert_eq!(output.status.code(), Some(1), "the link of an agent that was killed is not printed");
    assert!(text(&output.stderr).contains("no agent listens at"), "{}", text(&output.stderr));
}

#[tokio::test]
async fn admin_off_serves_nothing() {
    let home = AgentHome::new();
    home.put("job.yaml", &manifest("web", SLEEPS, ""));
    // Files that an agent left that was killed.
    for file in ["admin.sock", "admin.link"] {
        fs::write(home.root().join(file), "").unwrap();
    }
    let agent = home.start_without_waiting(&["--admin", "off"]);
    agent.wait_for_line("Container started").await;
    for file in ["admin.sock", "admin.link"] {
        assert!(!home.root().join(file).exists(), "{file}");
    }
    assert!(!agent.logged().contains("served"), "{}", agent.logged());
    assert_eq!(agent.sockets("tcp"), 0);
    let output = agent.run_client(&["get", "pods"]).await;
    assert!(text(&output.stderr).contains("no agent listens at"), "{}", text(&output.stderr));
}

/// An agent with the files of a TLS listener below its root directory.
struct TlsHome {
    home: AgentHome,
    flags: [String; 3],
}

impl TlsHome {
    fn new() -> Self {
        let home = AgentHome::new();
        let flags = write_tls_files(home.root());
        TlsHome { home, flags }
    }

    fn path(&self, file: &str) -> String {
        self.home.root().join(file).to_str().unwrap().to_owned()
    }

    fn args(&self) -> [&str; 5] {
        let [cert, key, token] = self.flags.each_ref().map(String::as_str);
        ["--admin", "0.0.0.0:0", cert, key, token]
    }

    async fn start(&self) -> Agent {
        self.home.start(&self.args()).await
    }
}

#[tokio::test]
async fn other_machines_need_tls_and_the_token() {
    let tls = TlsHome::new();
    tls.home.put("web.yaml", &manifest("web", SLEEPS, ""));
    let agent = tls.start().await;
    agent.ready("web-n1").await;
    let url = format!("https://localhost:{}", agent.admin().port());
    let (cert, token) = (tls.path("cert.pem"), tls.path("token"));
    let command = ["get", "pods", "--admin", &url, "--admin-ca", &cert];
    let output = podwright(&[&command[..], &["--admin-token-file", &token]].concat()).await;
    assert!(text(&output.stdout).contains("web-n1"), "{}", text(&output.stderr));
    let output = podwright(&command).await;
    let refused = text(&output.stderr);
    let remedies = ["needs a token", "--root DIR", "--admin-token-file FILE"];
    assert!(output.status.code() == Some(1) && remedies.iter().all(|remedy| refused.contains(remedy)), "{output:?}");
    let output = podwright(&["get", "pods", "--admin", &url, "--admin-token-file", &token]).await;
    assert!(text(&output.stderr).contains("the request to https://"), "an unknown certificate is refused: {output:?}");

    let certificate = reqwest::Certificate::from_pem(&fs::read(&cert).unwrap()).unwrap();
    let _first = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().tls_certs_only([certificate]).no_proxy().build().unwrap();
    let status = async |path: &str, token: &str| {
        let request = client.get(format!("{url}{path}")).bearer_auth(token);
        request.send().await.unwrap().status().as_u16()
    };
    for path in PRIVATE.iter().chain(&PUBLIC) {
        assert_eq!(status(path, "wrong").await, if *path == "/" { 200 } else { 401 }, "{path}");
        if *path != "/watch" && *path != "/recording" {
            assert_eq!(status(path, TOKEN).await, 200, "{path}");
        }
    }
    // A client without TLS gets no HTTP answer.
    let mut plain = TcpStream::connect(("127.0.0.1", agent.admin().port())).unwrap();
    plain.write_all(b"GET /healthz HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _reset = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    assert!(agent.link().starts_with("https://"), "{}", agent.link());
}

#[tokio::test]
async fn unsafe_tls_and_token_files_stop_the_start_with_a_remedy() {
    let tls = TlsHome::new();
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    type Break<'a> = &'a dyn Fn(&Path);
    let readable: Break<'_> = &|file| fs::set_permissions(file, fs::Permissions::from_mode(0o644)).unwrap();
    let short: Break<'_> = &|file| fs::write(file, "short").unwrap();
    let absent: Break<'_> = &|file| fs::remove_file(file).unwrap();
    let foreign_key: Break<'_> = &|file| fs::write(file, other.signing_key.serialize_pem()).unwrap();
    for (file, make_bad, says) in [
        ("token", readable, "chmod 600"),
        ("token", short, "openssl rand"),
        ("token", absent, "cannot read"),
        ("key.pem", readable, "chmod 600"),
        ("key.pem", short, "no private key"),
        ("key.pem", foreign_key, "cannot be used together"),
        ("cert.pem", short, "no certificate"),
        ("cert.pem", absent, "cannot read the certificate"),
    ] {
        let path = tls.home.root().join(file);
        let (good, permissions) = (fs::read(&path).unwrap(), fs::metadata(&path).unwrap().permissions());
        make_bad(&path);
        let output = tls.home.run(&tls.args()).await;
        assert_eq!(output.status.code(), Some(1), "{file}");
        let printed = text(&output.stderr);
        assert!(printed.contains(says) && printed.contains(file), "{file}: {printed}");
        fs::write(&path, good).unwrap();
        fs::set_permissions(&path, permissions).unwrap();
    }
}

#[tokio::test]
async fn root_directory_that_others_can_change_is_refused() {
    let home = AgentHome::new();
    fs::set_permissions(home.root(), fs::Permissions::from_mode(0o777)).unwrap();
    let output = home.run(&[]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("chmod go-w"), "{}", text(&output.stderr));
    fs::set_permissions(home.root(), fs::Permissions::from_mode(0o755)).unwrap();
    if rustix::process::geteuid().is_root() {
        chown(home.root(), Some(65534), None).unwrap();
        let output = home.run(&[]).await;
        assert!(text(&output.stderr).contains("belongs to user 65534"), "{}", text(&output.stderr));
    }
}

#[tokio::test]
async fn token_is_new_once_the_port_of_another_program_is_free() {
    let home = AgentHome::new();
    let squatter = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = squatter.local_addr().unwrap().to_string();
    fs::write(home.root().join("admin.link"), format!("http://{address}/#token=of-an-earlier-agent\n")).unwrap();
    let agent = home.start_without_waiting(&["--admin", &address]);
    agent.wait_for_line("cannot listen for admin requests").await;
    assert!(!home.root().join("admin.link").exists(), "no token is made while another program has the port");
    agent.wait_for_line("admin socket is served").await;
    // The agent becomes healthy after it begins to watch the directory of plugins.
    eventually("the socket does not depend on the port", || async {
        (agent.get("/healthz", "").0 == 200).then_some(())
    })
    .await;
    let output = agent.run_client(&["link"]).await;
    assert!(text(&output.stderr).contains("serves no page"), "{}", text(&output.stderr));
}
