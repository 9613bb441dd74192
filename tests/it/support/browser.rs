//! A browser without a window, driven over the DevTools protocol through pipes.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout};

use super::processes::PATIENCE;
use super::required::{Program, found_or_skip};

/// Names under which Chromium is found.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
const FLAGS: [&str; 9] = [
    "--headless",
    // The browser's sandbox does not work for root. The pages come only from the test's own agent.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];
/// The DevTools pipes are file descriptors 3 and 4.
const START: &str = "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1";

/// The pause between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// One browser with one page.
pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    from: ChildStdout,
    read: Vec<u8>,
    events: VecDeque<Value>,
    session: Option<String>,
    calls: u64,
    _profile: TempDir,
}

/// A key that can be pressed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key(pub(crate) &'static str, pub(crate) u32);

impl Browser {
    /// Starts a browser. `None` if none is installed and none is required: the test is skipped.
    pub(crate) async fn start() -> Option<Self> {
        let missing = || format!("no browser is installed ({}): the page is not tested", NAMES.join(", "));
        let program = found_or_skip(Program::Browser, installed().ok_or_else(missing))?;
        let profile = tempfile::tempdir().unwrap();
        let mut child = Command::new("sh")
            .args(["-c", START, "sh"])
            .arg(program)
            .args(FLAGS)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .args(["--remote-debugging-pipe", "about:blank"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (read, events) = (Vec::new(), VecDeque::new());
        let mut browser = Browser { child, to, from, read, events, session: None, calls: 0, _profile: profile };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"})).await;
        let attached = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", attached).await;
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({})).await;
        }
        Some(browser)
    }

    /// Calls a method of the protocol.
    pub(crate) async fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let id = self.calls;
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).await.unwrap();
        loop {
            let message = timeout(PATIENCE, self.message()).await.unwrap_or_else(|_| panic!("no answer to {method}"));
            if message["id"] == id {
                assert!(message.get("error").is_none(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            self.events.push_back(message);
        }
    }

    async fn message(&mut self) -> Value {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == 0) {
                let message: Vec<u8> = self.read.drain(..=end).collect();
                return serde_json::from_slice(&message[..end]).unwrap();
            }
            let read = self.from.read_buf(&mut self.read).await.unwrap();
            assert!(read > 0, "the browser has ended");
        }
    }

    pub(crate) async fn open(&mut self, url: &str) {
        let opened = self.call("Page.navigate", json!({"url": url})).await;
        assert_eq!(opened["errorText"], Value::Null, "{url}");
    }

    /// The value of an expression, which may be a promise.
    pub(crate) async fn eval(&mut self, expression: &str) -> Value {
        self.try_eval(expression).await.unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    async fn try_eval(&mut self, expression: &str) -> Result<Value, String> {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", params).await;
        match answer.get("exceptionDetails") {
            Some(exception) => Err(exception.to_string()),
            None => Ok(answer["result"]["value"].clone()),
        }
    }

    /// Waits until an expression is true. An expression that throws, for example while the page loads, counts as false.
    pub(crate) async fn until(&mut self, what: &str, expression: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.try_eval(&format!("Boolean({expression})")).await != Ok(Value::Bool(true)) {
            if Instant::now() >= deadline {
                let visible = self.try_eval("document.body.innerText").await.unwrap_or_default();
                panic!("did not happen: {what}\n{}", visible.as_str().unwrap_or_default());
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    pub(crate) async fn size(&mut self, width: u32, height: u32) {
        let mobile = width < 600;
        let params = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile});
        self.call("Emulation.setDeviceMetricsOverride", params).await;
    }

    /// `light` or `dark`.
    pub(crate) async fn scheme(&mut self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features})).await;
    }

    pub(crate) async fn press(&mut self, Key(key, code): Key) {
        for kind in ["keyDown", "keyUp"] {
            let text = if key == "Enter" { "\r" } else { "" };
            let params = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text});
            self.call("Input.dispatchKeyEvent", params).await;
        }
    }

    /// The page's errors and log messages so far, and its requests to other origins.
    pub(crate) fn complaints(&self, origin: &str) -> Vec<String> {
        let params = |event: &Value| event["params"].to_string();
        self.events
            .iter()
            .filter_map(|event| match event["method"].as_str()? {
                "Runtime.exceptionThrown" | "Runtime.consoleAPICalled" => Some(params(event)),
                "Log.entryAdded" => Some(params(event)),
                "Network.requestWillBeSent" => {
                    let url = event["params"]["request"]["url"].as_str()?;
                    (!url.starts_with(origin) && !url.starts_with("data:")).then(|| url.to_owned())
                }
                _ => None,
            })
            .collect()
    }

    /// Ends the browser.
    pub(crate) async fn close(mut self) {
        self.session = None;
        self.call("Browser.close", json!({})).await;
        timeout(PATIENCE, self.child.wait()).await.expect("the browser does not end").unwrap();
    }
}

fn installed() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut programs = std::env::split_paths(&path).flat_map(|folder| NAMES.map(|name| folder.join(name)));
    programs.find(|program| program.is_file())
}
