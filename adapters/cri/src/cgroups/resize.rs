//! Changes the limits of pod cgroups in which containers run.

use podwright_model::pod::PodObject;
use podwright_ports::{CgroupError, CgroupLimits};

use super::{CgroupTrees, below, io_error, set};
use crate::config::limits::{changed_properties, changes};
use crate::config::{CgroupDriver, Cgroups};

impl CgroupTrees {
    /// Sets some of the limits of the pod's cgroup. Does nothing if the agent does not create the cgroups of pods.
    pub(crate) fn resize(&self, cgroups: &Cgroups, pod: &PodObject, limits: CgroupLimits) -> Result<(), CgroupError> {
        if !self.is_managed(cgroups) {
            return Ok(());
        }
        let path = cgroups.of_pod(pod);
        if cgroups.driver == CgroupDriver::Systemd {
            let name = path.rsplit('/').next().unwrap_or_default();
            return Ok(self.slices.change(name, &changed_properties(cgroups.version, limits))?);
        }
        for (controller, tree) in self.limited(cgroups.version) {
            let settings = changes(cgroups.version, limits);
            for setting in settings.iter().filter(|it| controller.is_none_or(|own| own == it.controller)) {
                set(&below(&tree, &path), setting).map_err(io_error)?;
            }
        }
        Ok(())
    }
}
