//! A process runtime on a directory of its own.

use std::ops::Deref;
use std::path::Path;

use podwright::adapters::process::{OpenError, ProcessConfig, ProcessRuntime};
pub(crate) use podwright_fixtures::polling::PATIENCE;
use podwright_fixtures::processes;
pub(crate) use podwright_fixtures::processes::{
    ended, host_pod, is_alive, kill, parent, pod, run, sandbox, script, status,
};

/// The settings of every test. The shim is the real binary.
pub(crate) fn config(root: &Path) -> ProcessConfig {
    let mut config = ProcessConfig::new(root);
    config.shim[0] = env!("CARGO_BIN_EXE_podwright").into();
    config
}

/// A root directory on which a test opens runtimes.
pub(crate) struct Root(processes::Root);

impl Root {
    pub(crate) fn new() -> Self {
        Root(processes::Root::create())
    }

    pub(crate) async fn open(&self) -> ProcessRuntime {
        self.try_open().await.unwrap()
    }

    pub(crate) async fn open_with(&self, edit: impl FnOnce(&mut ProcessConfig)) -> ProcessRuntime {
        let mut config = config(self.path());
        edit(&mut config);
        ProcessRuntime::open(config).await.unwrap()
    }

    pub(crate) async fn try_open(&self) -> Result<ProcessRuntime, OpenError> {
        ProcessRuntime::open(config(self.path())).await
    }
}

impl Deref for Root {
    type Target = processes::Root;

    fn deref(&self) -> &processes::Root {
        &self.0
    }
}
