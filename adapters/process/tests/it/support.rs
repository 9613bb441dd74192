//! A process runtime on a directory of its own.

use std::ops::Deref;
use std::path::Path;

use podwright_fixtures::processes;
use podwright_process::{OpenError, ProcessConfig, ProcessRuntime};

/// The program of all shims.
pub(crate) const SHIM: &str = env!("CARGO_BIN_EXE_podwright-process-shim");

/// The settings of every test.
pub(crate) fn config(root: &Path) -> ProcessConfig {
    let mut config = ProcessConfig::new(root);
    config.shim[0] = SHIM.into();
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
