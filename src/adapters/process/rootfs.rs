//! The directory that stands for a container's root.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, chown, symlink};
use std::path::{Component, Path, PathBuf};

use podwright_actors::ports::{Mount, RuntimeError};

use crate::adapters::sub_path;

use super::files::make_dir;
use super::record::{RunRecord, User};

/// A link to make: where, relative to the root, and to what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) at: PathBuf,
    pub(super) to: PathBuf,
    /// The end of `to` that is made if it is missing.
    pub(super) sub_path: PathBuf,
}

/// A path of the container, relative to its root; `None` for the root itself and for paths that lead out of it.
pub(super) fn relative(path: &str) -> Option<PathBuf> {
    let path = Path::new(path);
    let rest = path.strip_prefix("/").unwrap_or(path);
    let inside = rest.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let rest: PathBuf = rest.components().filter(|part| matches!(part, Component::Normal(_))).collect();
    (inside && rest != Path::new("")).then_some(rest)
}

/// The links for a container's mounts.
///
/// # Errors
/// When a path cannot be a link, or lies in another one.
pub(super) fn links(container: &str, mounts: &[Mount]) -> Result<Vec<Link>, RuntimeError> {
    let mut links: Vec<Link> = Vec::with_capacity(mounts.len());
    for mount in mounts {
        let path = &mount.container_path;
        let at = relative(path).ok_or_else(|| {
            RuntimeError::Config(format!(
                "container {container}: volume {:?} cannot be mounted at {path:?}: use a path below / without `..`",
                mount.volume
            ))
        })?;
        if let Some(other) = links.iter().find(|other| other.at.starts_with(&at) || at.starts_with(&other.at)) {
            return Err(RuntimeError::Config(format!(
                "container {container}: the mount at {path:?} and the one at \"/{}\" overlap, which the process runtime \
                 cannot do because mounts are links: use separate paths",
                other.at.display()
            )));
        }
        links.push(Link { at, to: mount.host_path.clone(), sub_path: mount.sub_path.clone() });
    }
    Ok(links)
}

/// Makes the directory with its links and the empty termination log.
pub(super) fn make(run: &RunRecord, links: &[Link]) -> io::Result<()> {
    make_dir(&run.rootfs, 0o755)?;
    for link in links {
        let at = run.rootfs.join(&link.at);
        make_parent(&at)?;
        if link.sub_path.as_os_str().is_empty() {
            symlink(&link.to, &at)?;
        } else {
            // Not by the name that the volume has for it: that may be a link to anywhere.
            symlink(sub_path::resolve(sub_path::volume(&link.to, &link.sub_path), &link.sub_path)?, &at)?;
        }
    }
    // A mount that covers it would make us write into the volume.
    if !links.iter().any(|link| run.termination_log.starts_with(&link.at)) {
        let path = run.rootfs.join(&run.termination_log);
        make_parent(&path)?;
        let file: File = OpenOptions::new().create_new(true).write(true).mode(0o666).open(&path)?;
        if let Some(User { uid, gid, .. }) = run.user {
            std::os::unix::fs::fchown(&file, Some(uid), Some(gid))?;
        }
    }
    match run.user {
        Some(User { uid, gid, .. }) => chown(&run.rootfs, Some(uid), Some(gid)),
        None => Ok(()),
    }
}

/// Removes the directory and those above it that are empty then, up to the pod's.
pub(super) fn remove(rootfs: &Path) -> io::Result<()> {
    crate::adapters::tree::remove(rootfs)?;
    for dir in rootfs.ancestors().skip(1).take(2) {
        // Other runs may be there, or storage was faster.
        let _ = fs::remove_dir(dir);
    }
    Ok(())
}

/// The variable that names a volume's place on the host.
pub(super) fn mount_variable(volume: &str) -> String {
    let letters = volume.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' });
    format!("PODWRIGHT_MOUNT_{}", letters.collect::<String>())
}

/// Where a command starts: in the container's root by default; in a mount if the path leads there; else at that path of
/// the node.
pub(super) fn working_dir(rootfs: &Path, wanted: Option<&str>, links: &[Link]) -> PathBuf {
    let Some(wanted) = wanted.filter(|path| !path.is_empty() && *path != "/") else {
        return rootfs.to_owned();
    };
    match relative(wanted) {
        Some(inside) if !wanted.starts_with('/') || links.iter().any(|link| inside.starts_with(&link.at)) => {
            rootfs.join(inside)
        }
        _ => rootfs.join(OsStr::new(wanted)),
    }
}

fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |dir| make_dir(dir, 0o755))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(path: &str) -> Mount {
        Mount {
            volume: "v".into(),
            host_path: "/host".into(),
            sub_path: "".into(),
            container_path: path.into(),
            read_only: false,
        }
    }

    #[test]
    fn mounts_become_links_below_the_root() {
        for (path, at) in [("/data", "data"), ("/var//lib/x/", "var/lib/x"), ("rel", "rel"), ("/a/./b", "a/b")] {
            let links = links("c", &[mount(path)]).unwrap();
            assert_eq!(links, [Link { at: at.into(), to: "/host".into(), sub_path: "".into() }], "{path}");
        }
    }

    #[test]
    fn mounts_that_lead_out_or_overlap_are_refused() {
        for paths in [&["/"][..], &["/../etc"], &["/a/../../b"], &["/a", "/a/b"], &["/a/b", "/a"], &["/a", "/a/"]] {
            let mounts: Vec<Mount> = paths.iter().map(|path| mount(path)).collect();
            assert!(matches!(links("c", &mounts), Err(RuntimeError::Config(_))), "{paths:?}");
        }
        assert!(links("c", &[mount("/a"), mount("/ab")]).is_ok());
    }

    #[test]
    fn the_working_directory_is_the_root_a_mount_or_a_path_of_the_node() {
        let root = Path::new("/r");
        let links = links("c", &[mount("/data")]).unwrap();
        for (wanted, dir) in [
            (None, "/r"),
            (Some(""), "/r"),
            (Some("/"), "/r"),
            (Some("/data"), "/r/data"),
            (Some("/data/sub"), "/r/data/sub"),
            (Some("/database"), "/database"),
            (Some("/tmp"), "/tmp"),
            (Some("sub"), "/r/sub"),
        ] {
            assert_eq!(working_dir(root, wanted, &links), Path::new(dir), "{wanted:?}");
        }
    }

    #[test]
    fn a_volume_name_becomes_a_variable_name() {
        assert_eq!(mount_variable("my-data.2"), "PODWRIGHT_MOUNT_MY_DATA_2");
    }
}
