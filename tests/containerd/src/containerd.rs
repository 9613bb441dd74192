//! The containerds of the tests. A containerd serves one test at a time, and has no pods when a test begins.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use podwright_cri::adoption::AdoptedPods;
use podwright_cri::{CriConfig, CriRuntime, NodeSettings, VerificationPolicy};
use podwright_fixtures::fake_ports::Events;
use podwright_fixtures::polling::eventually;
use podwright_fixtures::required::{Program, found_or_skip};
use podwright_metrics::Metrics;
use podwright_ports::{NamedRuntimeClasses, NoCredentialProviders, NoPullSecrets, RuntimeName};

use crate::instance::Instance;
use crate::{calls, image};

/// A containerd, while a test holds its lock.
pub struct Containerd(Instance);

impl Containerd {
    /// Waits for a containerd that no other test uses. `None` if containerd cannot run and is not required. Then the test is skipped.
    pub async fn turn() -> Option<Self> {
        let instance = tokio::task::spawn_blocking(Instance::turn).await.unwrap();
        let missing = |missing| format!("pods are not run as containers: {missing}");
        let containerd = Containerd(found_or_skip(Program::Containerd, instance.map_err(missing))?);
        if !containerd.0.runs() {
            containerd.0.prepare();
            containerd.start().await;
            containerd.import(&[image::BUSYBOX, image::PAUSE]);
            containerd.0.watch();
        }
        // An earlier test may have ended during a call. containerd completes the call before it can remove the container.
        let runtime = calls::connect(&containerd.socket()).unwrap();
        eventually("containerd has no pods of an earlier test", || async {
            containerd.end_stray_tasks();
            calls::empty(&runtime).await.ok()
        })
        .await;
        Some(containerd)
    }

    /// The socket on which it answers.
    pub fn socket(&self) -> PathBuf {
        self.0.socket()
    }

    /// The root of the cgroups of its pods.
    pub fn cgroup_root(&self) -> String {
        self.0.cgroup_root()
    }

    /// The directories in which the cgroups of a guaranteed pod may be, for cgroup v1 and v2.
    pub fn cgroups_of(&self, uid: &str) -> [PathBuf; 3] {
        let pod = format!("{}/kubepods/pod{uid}", self.cgroup_root());
        ["", "/cpu", "/memory"].map(|tree| PathBuf::from(format!("/sys/fs/cgroup{tree}{pod}")))
    }

    /// The flags with which an agent uses this containerd.
    pub fn flags(&self) -> [String; 2] {
        [format!("--runtime=cri=unix://{}", self.socket().display()), format!("--cgroup-root={}", self.cgroup_root())]
    }

    /// A client of this containerd.
    pub fn open(&self, root: &Path) -> CriRuntime {
        let config = CriConfig {
            endpoint: self.socket().to_str().unwrap().parse().unwrap(),
            root: root.to_owned(),
            logs: root.join("log/pods"),
            log_links: root.join("log/containers"),
            registry_config: None,
            verification: VerificationPolicy::default(),
            pull_secrets: Arc::new(NoPullSecrets),
            credential_providers: Arc::new(NoCredentialProviders),
            parallel_pulls: 5.try_into().unwrap(),
            name: RuntimeName::default(),
            metrics: Metrics::new(),
            settings: NodeSettings { cgroup_root: self.cgroup_root(), ..NodeSettings::default() },
            runtime_classes: Arc::new(NamedRuntimeClasses::default()),
            events: Arc::new(Events::default()),
            adopted: Arc::new(AdoptedPods::none()),
            cdi_directories: vec![self.cdi_directory()],
        };
        CriRuntime::open(config).unwrap()
    }

    /// The directory with the specifications of CDI devices, which containerd reads too if it can.
    pub fn cdi_directory(&self) -> PathBuf {
        self.0.directory().join("cdi")
    }

    /// Runs `ctr` and returns its output.
    pub fn ctr(&self, args: &[&str]) -> String {
        self.0.ctr(args)
    }

    /// Deletes tasks that were never started or have ended. containerd 1.6 keeps a task whose creator died, and
    /// does not remove its container. CRI has no call that deletes the task.
    pub fn end_stray_tasks(&self) {
        for line in self.ctr(&["tasks", "list"]).lines() {
            if let [id, _, "CREATED" | "STOPPED"] = line.split_whitespace().collect::<Vec<_>>()[..] {
                // The task may be gone by now.
                self.0.try_ctr(&["tasks", "delete", "--force", id]);
            }
        }
    }

    /// Kills containerd. Its containers continue.
    pub fn crash(&self) {
        self.0.crash();
    }

    /// Starts containerd on its present state.
    pub async fn start(&self) {
        self.0.start();
        eventually("containerd answers", || async { self.0.runs().then_some(()) }).await;
        let runtime = calls::connect(&self.socket()).unwrap();
        eventually("the plugins of containerd have started", || async {
            calls::is_ready(&runtime).await.then_some(())
        })
        .await;
    }

    /// Imports images.
    pub fn import(&self, images: &[&str]) {
        self.0.import(images);
    }
}

impl Drop for Containerd {
    /// Fails the test if a container runs outside of its cgroup root: only the cgroups below it are removed after the tests.
    fn drop(&mut self) {
        let root = format!("{}/", self.cgroup_root());
        let outside: Vec<String> = self.0.cgroups().into_iter().filter(|path| !path.starts_with(&root)).collect();
        assert!(
            outside.is_empty() || std::thread::panicking(),
            "start agents with Containerd::flags: these cgroups would stay after the tests: {outside:?}"
        );
    }
}

/// Waits until the log of a container has a line that ends with this word. A container runs before its shell has set its traps, so a test
/// waits for a line of the shell before it stops the container.
pub async fn until_logged(log: &Path, word: &str) {
    let has_line =
        || async { fs::read_to_string(log).unwrap_or_default().lines().any(|line| line.ends_with(word)).then_some(()) };
    eventually(&format!("{} has the line {word:?}", log.display()), has_line).await;
}
