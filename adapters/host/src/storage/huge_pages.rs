//! emptyDir volumes on huge pages.

use std::ffi::CString;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use podwright_model::quantity::Amount;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use super::fs_group::{FsGroup, volume_mode};
use crate::mounts;
use crate::step_error::StepError;

/// The file system whose files consist of huge pages.
pub(super) const HUGETLBFS: &str = "hugetlbfs";
/// The medium with the page size that the pod requests (`core/v1`, `StorageMediumHugePages`).
const MEDIUM: &str = "HugePages";
/// The prefix of a medium with a page size, such as `HugePages-2Mi`.
const MEDIUM_OF_SIZE: &str = "HugePages-";
/// The prefix of the resource of a page size, such as `hugepages-2Mi`.
const RESOURCE: &str = "hugepages-";

/// Whether a medium is one of huge pages.
pub(super) fn is_medium(medium: &str) -> bool {
    medium == MEDIUM || medium.starts_with(MEDIUM_OF_SIZE)
}

/// The page size of a volume in bytes. The pod has to request huge pages of this size, because the kernel takes the pages of the volume
/// from the limit of the pod (upstream `getPageSizeMountOption`, kubelet 1.36).
///
/// # Errors
/// The reason, with the remedy.
pub(super) fn page_size(medium: &str, spec: &PodSpec) -> Result<u64, String> {
    let mut requested = requested_sizes(spec);
    requested.sort_unstable();
    requested.dedup();
    match medium.strip_prefix(MEDIUM_OF_SIZE) {
        Some(size) => {
            let size = bytes(size).ok_or_else(|| format!("{medium} is not a medium: write it like HugePages-2Mi"))?;
            let remedy = || {
                format!("medium {medium} needs a container that requests {RESOURCE}{}", &medium[MEDIUM_OF_SIZE.len()..])
            };
            requested.into_iter().find(|own| *own == size).ok_or_else(remedy)
        }
        None => match *requested {
            [size] => Ok(size),
            [] => Err(format!("medium {medium} needs a container that requests huge pages, such as {RESOURCE}2Mi")),
            _ => Err(format!(
                "medium {medium} has no page size, and the pod requests several: write it like {MEDIUM_OF_SIZE}2Mi"
            )),
        },
    }
}

/// The sizes of the huge pages that the containers of a pod, or the pod itself, request.
fn requested_sizes(spec: &PodSpec) -> Vec<u64> {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let resources = containers.map(|container| container.resources.as_ref()).chain([spec.resources.as_ref()]);
    // A request of huge pages is equal to its limit, and either may be absent in a manifest.
    let lists = resources.flatten().flat_map(|resources| [&resources.requests, &resources.limits]).flatten();
    lists.flat_map(|list| list.keys()).filter_map(|name| bytes(name.strip_prefix(RESOURCE)?)).collect()
}

/// A size in bytes, if it is positive.
fn bytes(size: &str) -> Option<u64> {
    let amount = Amount::of(&Quantity(size.to_owned())).ok()?;
    u64::try_from(amount.units()).ok().filter(|bytes| *bytes > 0)
}

/// The most bytes that a volume may hold, if its spec names any.
///
/// # Errors
/// The reason, if `sizeLimit` is not a quantity of 0 or more.
pub(super) fn limit(source: &EmptyDirVolumeSource) -> Result<Option<u64>, String> {
    let Some(quantity) = &source.size_limit else { return Ok(None) };
    match Amount::of(quantity) {
        Ok(amount) if !amount.is_negative() => Ok(u64::try_from(amount.units()).ok().filter(|bytes| *bytes > 0)),
        _ => Err(format!("emptyDir.sizeLimit is {:?}: use a quantity of 0 or more", quantity.0)),
    }
}

/// Mounts huge pages at the directory of a volume, unless an earlier call has done so.
///
/// # Errors
/// The step that failed, with the remedy. A volume on the disk would not give what the pod requests, so there is no fallback.
pub(super) fn set_up(path: &Path, page_size: u64, limit: Option<u64>, group: Option<FsGroup>) -> Result<(), StepError> {
    let inspected = |error| StepError::new("cannot inspect the volume", error);
    let is_mounted = mounts::exactly_at(path).map_err(inspected)?.is_some_and(|mounted| mounted.kind == HUGETLBFS);
    if !is_mounted {
        mount_pages(path, page_size, limit, group).map_err(|error| not_mounted(page_size, error))?;
    }
    // The kernel ignores the setgid bit in the options of a mount. So the volume has no mode until it is set here, also by the agent that
    // follows one that was killed in between.
    if fs::metadata(path).map_err(inspected)?.mode() & 0o7777 == 0 {
        let mode = Permissions::from_mode(volume_mode(group));
        fs::set_permissions(path, mode).map_err(|error| StepError::new("cannot set the mode of the volume", error))?;
    }
    Ok(())
}

fn mount_pages(path: &Path, page_size: u64, limit: Option<u64>, group: Option<FsGroup>) -> Result<(), Errno> {
    let options = [
        Some(format!("pagesize={page_size},mode=0")),
        limit.map(|bytes| format!("size={bytes}")),
        group.map(|group| format!("gid={}", group.id())),
    ];
    let options = options.into_iter().flatten().collect::<Vec<_>>().join(",");
    mount(HUGETLBFS, path, HUGETLBFS, MountFlags::NODEV, Some(&*CString::new(options).map_err(|_| Errno::INVAL)?))
}

fn not_mounted(page_size: u64, error: Errno) -> StepError {
    let remedy = match error {
        Errno::PERM | Errno::ACCESS => "run the agent as root, or use another medium".to_owned(),
        Errno::NODEV => "the kernel has no hugetlbfs, use another medium".to_owned(),
        Errno::INVAL => format!("check whether the kernel has pages of {page_size} bytes in /sys/kernel/mm/hugepages"),
        _ => "check the kernel's log".to_owned(),
    };
    StepError::new(format!("cannot mount huge pages, {remedy}"), io::Error::from(error))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn page_size_is_that_of_the_medium_or_the_only_one_that_the_pod_requests() {
        let limits = |sizes: &[&str]| -> Value {
            let sizes = sizes.iter().map(|size| (format!("hugepages-{size}"), json!("1Gi")));
            json!({"limits": Value::Object(sizes.chain([("memory".to_owned(), json!("1Gi"))]).collect())})
        };
        let of = |medium: &str, sizes: &[&str], of_init: &[&str], whole: Value| {
            let spec = json!({
                "containers": [{"name": "a", "resources": limits(sizes)}, {"name": "b"}],
                "initContainers": [{"name": "i", "resources": limits(of_init)}],
                "resources": whole,
            });
            page_size(medium, &serde_json::from_value(spec).unwrap())
        };
        let none = || json!(null);
        assert_eq!(of("HugePages", &["2Mi"], &["2048Ki"], none()), Ok(2 << 20));
        assert_eq!(of("HugePages", &[], &["1Gi"], none()), Ok(1 << 30));
        assert_eq!(of("HugePages", &[], &[], limits(&["1Gi"])), Ok(1 << 30));
        assert_eq!(of("HugePages-2Mi", &["2Mi", "1Gi"], &[], none()), Ok(2 << 20));
        assert_eq!(of("HugePages-1Gi", &["2Mi", "1Gi"], &[], none()), Ok(1 << 30));
        for (medium, sizes, says) in [
            ("HugePages", &[][..], "requests huge pages"),
            ("HugePages", &["2Mi", "1Gi"], "requests several"),
            ("HugePages-2Mi", &["1Gi"], "requests hugepages-2Mi"),
            ("HugePages-big", &["1Gi"], "not a medium"),
            ("HugePages-0", &["1Gi"], "not a medium"),
        ] {
            let error = of(medium, sizes, &[], none()).unwrap_err();
            assert!(error.contains(says), "{medium}: {error}");
        }
        assert!(
            is_medium("HugePages") && is_medium("HugePages-2Mi") && !is_medium("HugePagesX") && !is_medium("Memory")
        );
    }
}
