//! The live table on a terminal, and an agent whose terminal closes.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::process::Child;
use tokio::time::timeout;

use super::harness::{AgentHome, eventually, manifest};
use crate::support::processes::{PATIENCE, kill};

/// A terminal of 100 by 20 characters, and what was written to it.
struct Tty {
    _controller: OwnedFd,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Tty {
    /// Returns the terminal and the end that the program uses.
    fn open() -> (Tty, File) {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&controller).unwrap();
        unlockpt(&controller).unwrap();
        tcsetwinsize(&controller, Winsize { ws_row: 20, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        let name = ptsname(&controller, Vec::new()).unwrap();
        let end = File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
        let written = Arc::new(Mutex::new(Vec::new()));
        let (kept, mut reader) = (written.clone(), File::from(controller.try_clone().unwrap()));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = reader.read(&mut bytes) {
                kept.lock().unwrap().extend(&bytes[..n]);
            }
        });
        (Tty { _controller: controller, written }, end)
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    async fn shows(&self, what: &str) {
        eventually(what, || async { self.text().contains(what).then_some(()) }).await;
    }
}

fn start(home: &AgentHome, end: File) -> Child {
    let mut command = home.command(&[]);
    command.env("TERM", "xterm").env("NO_COLOR", "1").stdout(Stdio::from(end)).spawn().unwrap()
}

#[tokio::test]
async fn live_table_shows_pods_and_restores_the_terminal() {
    let home = AgentHome::new();
    home.put("web.yaml", &manifest("web", "exec sleep 1000", ""));
    home.put("crash.yaml", &manifest("crash", "exit 1", ""));
    home.put("broken.yaml", "kind: [\n");
    let (tty, end) = Tty::open();
    let mut agent = start(&home, end);
    for what in ["\x1b[?1049h", "WAITS FOR", "web-n1", "the crash backoff", "! ", "broken.yaml", "Container started"] {
        tty.shows(what).await;
    }
    let link = std::fs::read_to_string(home.root().join("admin.link")).unwrap();
    tty.shows(&format!("page: {}", link.trim())).await;
    let frame = tty.text();
    let frame = frame.rsplit("\x1b[?2026h\x1b[H").next().unwrap();
    assert!(frame.lines().count() <= 20, "{frame}");

    kill(agent.id().unwrap(), Signal::TERM);
    assert_eq!(timeout(PATIENCE, agent.wait()).await.unwrap().unwrap().code(), Some(0));
    tty.shows("\x1b[?25h\x1b[?1049l").await;
    let after = || tty.text().rsplit("\x1b[?1049l").next().unwrap().to_owned();
    eventually("the last table stays on the terminal", || async { after().contains("web-n1").then_some(()) }).await;
    assert!(!after().contains('\x1b'), "{:?}", after());
}

#[tokio::test]
async fn closed_terminal_stops_the_agent_and_its_pods() {
    let home = AgentHome::new();
    home.put("web.yaml", &manifest("web", "exec sleep 1000", ""));
    let (tty, end) = Tty::open();
    let mut agent = start(&home, end);
    tty.shows("Container started").await;
    kill(agent.id().unwrap(), Signal::HUP);
    drop(tty);
    let ended = timeout(PATIENCE, agent.wait()).await.unwrap().unwrap();
    assert_eq!(ended.code(), Some(0));
    assert_eq!(home.processes(), Vec::<String>::new());
}
