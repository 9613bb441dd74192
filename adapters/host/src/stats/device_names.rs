//! The names of block devices.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

/// Finds the names of block devices, and keeps them. A device that is added later may get the numbers of another one, so a value is used
/// for one measurement only.
#[derive(Debug)]
pub struct DeviceNames {
    links: PathBuf,
    names: HashMap<(u32, u32), String>,
}

impl Default for DeviceNames {
    fn default() -> Self {
        DeviceNames { links: "/sys/dev/block".into(), names: HashMap::new() }
    }
}

impl DeviceNames {
    /// The path of the device with these numbers, such as `/dev/sda`; `0:50` if it is not a device of the machine. Blocks.
    pub fn name(&mut self, major: u32, minor: u32) -> &str {
        self.names.entry((major, minor)).or_insert_with(|| name(&self.links, major, minor))
    }

    /// The path of the device of a file system (`st_dev` of stat(2)). Blocks.
    pub fn of_file_system(&mut self, device: u64) -> &str {
        self.name(major(device), minor(device))
    }
}

fn name(links: &Path, major: u32, minor: u32) -> String {
    let numbers = format!("{major}:{minor}");
    // The link leads to the directory of the device, which has its name.
    let target = fs::read_link(links.join(&numbers)).ok();
    let name = target.as_ref().and_then(|target| target.file_name()?.to_str());
    name.map_or(numbers, |name| format!("/dev/{name}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn device_has_the_name_of_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        symlink("../../devices/virtual/block/dm-0", dir.path().join("253:0")).unwrap();
        symlink("../../devices/pci/block/sda/sda1", dir.path().join("8:1")).unwrap();
        let mut names = DeviceNames { links: dir.path().to_owned(), names: HashMap::new() };
        assert_eq!(names.name(253, 0), "/dev/dm-0");
        assert_eq!(names.of_file_system(rustix::fs::makedev(8, 1)), "/dev/sda1");
        assert_eq!(names.name(0, 50), "0:50");
        fs::remove_file(dir.path().join("8:1")).unwrap();
        assert_eq!(names.name(8, 1), "/dev/sda1", "it is kept");
    }
}
