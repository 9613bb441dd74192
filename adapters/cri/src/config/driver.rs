//! Which cgroup driver applies: the runtime's own, or the one that the operator names.

use std::collections::BTreeMap;

use podwright_ports::RuntimeError;
use serde::Deserialize;

use super::cgroup::CgroupDriver;

/// The prefix of the runtime types whose options hold the cgroup driver, such as `io.containerd.runc.v2`.
const RUNC: &str = "io.containerd.runc.";

/// The flag `--cgroup-driver` names another cgroup driver than the container runtime uses. Every sandbox would fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the container runtime uses the cgroup driver {reported}, and --cgroup-driver is {flag}: remove --cgroup-driver, or set the \
     driver {flag} in the configuration of the container runtime"
)]
pub(crate) struct DriverConflict {
    flag: CgroupDriver,
    reported: CgroupDriver,
}

impl From<DriverConflict> for RuntimeError {
    fn from(error: DriverConflict) -> Self {
        RuntimeError::config(error)
    }
}

/// The cgroup driver that applies. If the runtime does not report its driver, the flag's driver applies, and without a flag
/// the default of runtimes, [`CgroupDriver::Cgroupfs`].
///
/// # Errors
/// [`DriverConflict`] if the flag and the runtime disagree.
pub(crate) fn cgroup_driver(
    flag: Option<CgroupDriver>,
    reported: Option<CgroupDriver>,
) -> Result<CgroupDriver, DriverConflict> {
    match (flag, reported) {
        (Some(flag), Some(reported)) if flag != reported => Err(DriverConflict { flag, reported }),
        (flag, reported) => Ok(reported.or(flag).unwrap_or_default()),
    }
}

/// The cgroup driver in the configuration that containerd reports in the verbose answer to `Status`. The default runtime
/// decides, and then the other runtimes in the order of their names, as in containerd 2.0's answer to `RuntimeConfig`. `None` if
/// the text is not such a configuration or no runtime has a cgroup driver.
pub(crate) fn reported_driver(config: &str) -> Option<CgroupDriver> {
    let config: Config = serde_json::from_str(config).ok()?;
    if config.systemd_cgroup {
        return Some(CgroupDriver::Systemd);
    }
    let Containerd { default_runtime_name, mut runtimes } = config.containerd?;
    let default = runtimes.remove(&default_runtime_name);
    default.iter().chain(runtimes.values()).find_map(Runtime::driver)
}

/// The part of containerd's configuration that decides the cgroup driver.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Config {
    containerd: Option<Containerd>,
    /// For runtimes of containerd 1.2.
    #[serde(default)]
    systemd_cgroup: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Containerd {
    #[serde(default)]
    default_runtime_name: String,
    #[serde(default)]
    runtimes: BTreeMap<String, Runtime>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Runtime {
    #[serde(default)]
    runtime_type: String,
    options: Option<Options>,
}

#[derive(Deserialize)]
struct Options {
    #[serde(rename = "SystemdCgroup", default)]
    systemd_cgroup: bool,
}

impl Runtime {
    /// The driver in the runtime's options. `None` if the options are of another kind.
    fn driver(&self) -> Option<CgroupDriver> {
        self.runtime_type.starts_with(RUNC).then_some(match self.options {
            Some(Options { systemd_cgroup: true }) => CgroupDriver::Systemd,
            _ => CgroupDriver::Cgroupfs,
        })
    }
}
