//! The root directory of a container, with one symbolic link per volume mount.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, chown, symlink};
use std::path::{Component, Path, PathBuf};

use podwright_host::cdi::CdiError;
use podwright_host::sub_path::{self, SubPathError};
use podwright_ports::{Mount, RuntimeError};

use super::files::make_dir;
use super::record::{RunRecord, User, ViewMount};
use super::view;

/// The symbolic link of one volume mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// The name of the volume.
    pub(super) volume: String,
    /// The link's path, relative to the container's root directory.
    pub(super) at: PathBuf,
    pub(super) target: LinkTarget,
}

/// What the link of a volume mount points to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LinkTarget {
    /// The volume at this path of the node.
    Volume(PathBuf),
    /// A file or directory of a volume, by its path in the volume, for a container without mounts of its own.
    InVolume { volume: PathBuf, sub_path: PathBuf },
    /// A file or directory of a volume, which the container has mounted at `at`.
    Mounted { volume: PathBuf, sub_path: PathBuf, at: PathBuf },
}

impl LinkTarget {
    fn of(mount: &Mount) -> Self {
        if mount.sub_path.as_os_str().is_empty() {
            return LinkTarget::Volume(mount.host_path.clone());
        }
        let volume = sub_path::volume(&mount.host_path, &mount.sub_path).to_owned();
        LinkTarget::InVolume { volume, sub_path: mount.sub_path.clone() }
    }

    /// The target for a container that has its `subPath` mounted at `place`.
    pub(super) fn mounted(self, place: PathBuf) -> Self {
        match self {
            LinkTarget::InVolume { volume, sub_path } => LinkTarget::Mounted { volume, sub_path, at: place },
            other @ (LinkTarget::Volume(_) | LinkTarget::Mounted { .. }) => other,
        }
    }

    /// The path that the container gets in a variable of its environment.
    pub(super) fn path(&self) -> PathBuf {
        match self {
            LinkTarget::Volume(path) | LinkTarget::Mounted { at: path, .. } => path.clone(),
            LinkTarget::InVolume { volume, sub_path } => volume.join(sub_path),
        }
    }
}

/// A path in the container, relative to the container's root. `None` for the root itself and for a path that leads out of
/// the root.
pub(super) fn relative(path: &str) -> Option<PathBuf> {
    let path = Path::new(path);
    let rest = path.strip_prefix("/").unwrap_or(path);
    let inside = rest.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let rest: PathBuf = rest.components().filter(|part| matches!(part, Component::Normal(_))).collect();
    (inside && rest != Path::new("")).then_some(rest)
}

/// The paths of mounts, relative to the container's root. Each mount is the name of a volume and a path in the container.
///
/// # Errors
/// [`RuntimeError::Config`] if a mount path leads out of the root, or if two mount paths overlap.
pub(super) fn mount_points<'a>(
    container: &str,
    mounts: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<Vec<PathBuf>, RuntimeError> {
    let mut points: Vec<PathBuf> = Vec::new();
    for (volume, path) in mounts {
        let at = relative(path).ok_or_else(|| {
            RuntimeError::config(format!(
                "container {container}: volume {volume:?} cannot be mounted at {path:?}: use a path below / without `..`"
            ))
        })?;
        if let Some(other) = points.iter().find(|other| other.starts_with(&at) || at.starts_with(other)) {
            return Err(RuntimeError::config(format!(
                "container {container}: the mounts at {path:?} and \"/{}\" overlap, and the process runtime cannot nest \
                 mounts, which are links: use separate paths",
                other.display()
            )));
        }
        points.push(at);
    }
    Ok(points)
}

/// The links for a container's mounts.
///
/// # Errors
/// As [`mount_points`].
pub(super) fn links(container: &str, mounts: &[Mount]) -> Result<Vec<Link>, RuntimeError> {
    let paths = mounts.iter().map(|mount| (mount.volume.as_str(), mount.container_path.as_str()));
    let points = mount_points(container, paths)?;
    let link =
        |(mount, at): (&Mount, PathBuf)| Link { volume: mount.volume.clone(), at, target: LinkTarget::of(mount) };
    Ok(mounts.iter().zip(points).map(link).collect())
}

/// Whether a path, relative to the container's root, is in a mount.
pub(super) fn is_in_mount(path: &Path, links: &[Link]) -> bool {
    links.iter().any(|link| path.starts_with(&link.at))
}

/// The files of a container cannot be created.
#[derive(Debug, thiserror::Error)]
pub(super) enum MakeError {
    /// The file system refused an operation.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The `subPath` of a mount cannot be used.
    #[error("subPath of volume {volume:?}")]
    SubPath {
        /// The volume's name.
        volume: String,
        /// Why it cannot be used.
        source: SubPathError,
    },
    /// A device node of a CDI device cannot be created.
    #[error(transparent)]
    Device(#[from] CdiError),
}

/// The root directory of a container while it belongs to the agent's user. Files may be created in the directory by their paths only as
/// long as this value exists: once the directory belongs to the container's user, another container of that user can put links into it.
#[derive(Debug)]
#[must_use = "the root directory belongs to the agent until it is handed over"]
pub(super) struct NewRoot<'a> {
    path: &'a Path,
    user: &'a User,
}

impl NewRoot<'_> {
    pub(super) fn path(&self) -> &Path {
        self.path
    }

    /// The user that gets the directory.
    pub(super) fn user(&self) -> &User {
        self.user
    }

    /// Gives the directory to the container's user.
    pub(super) fn hand_over(self) -> io::Result<()> {
        chown(self.path, Some(self.user.uid), Some(self.user.gid))
    }
}

/// Creates the root directory of the agent's user with its links and an empty termination log. The view's mounts of whole volumes
/// get the paths of the volumes without links. No mount depends on a path in a volume: containers can replace it by a link that
/// leads anywhere.
pub(super) fn make<'a>(run: &'a mut RunRecord, links: &[Link]) -> Result<NewRoot<'a>, MakeError> {
    make_dir(&run.rootfs, 0o755)?;
    let mut mounts = run.confinement.view.as_mut().map(|view| &mut view.mounts);
    for link in links {
        let at = run.rootfs.join(&link.at);
        make_parent(&at)?;
        let refused = |source| MakeError::SubPath { volume: link.volume.clone(), source };
        let to = match &link.target {
            LinkTarget::Volume(path) => {
                if let Some(mounts) = &mut mounts {
                    resolve(mounts, path);
                }
                path.clone()
            }
            LinkTarget::InVolume { volume, sub_path } => sub_path::resolve(volume, sub_path).map_err(refused)?,
            LinkTarget::Mounted { volume, sub_path, at } => {
                if let Some(mounts) = &mut mounts {
                    let resolved = fs::canonicalize(volume).map_err(SubPathError::Prepare).map_err(refused)?;
                    mounts
                        .iter_mut()
                        .filter(|mount| mount.at == *at)
                        .for_each(|mount| mount.volume.clone_from(&resolved));
                }
                sub_path::make_point(at, &sub_path::open(volume, sub_path).map_err(refused)?)?;
                at.clone()
            }
        };
        symlink(&to, &at)?;
    }
    if let Some(mounts) = mounts {
        *mounts = view::in_order(std::mem::take(mounts));
    }
    // If the termination log is in a mount, the container creates it: the agent must not write into a volume.
    if !is_in_mount(&run.termination_log, links) {
        let path = run.rootfs.join(&run.termination_log);
        make_parent(&path)?;
        let file: File = OpenOptions::new().create_new(true).write(true).mode(0o666).open(&path)?;
        std::os::unix::fs::fchown(&file, Some(run.user.uid), Some(run.user.gid))?;
    }
    Ok(NewRoot { path: &run.rootfs, user: &run.user })
}

/// Removes the links from the path of the mounts of a whole volume. A volume that does not exist is not mounted, so the link in the
/// container's root directory leads nowhere.
fn resolve(mounts: &mut Vec<ViewMount>, path: &Path) {
    let is_of_volume = |mount: &ViewMount| mount.sub_path.as_os_str().is_empty() && mount.at == path;
    match fs::canonicalize(path) {
        Ok(resolved) => {
            mounts.iter_mut().filter(|mount| is_of_volume(mount)).for_each(|mount| mount.at.clone_from(&resolved));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => mounts.retain(|mount| !is_of_volume(mount)),
        // The mount fails with the reason.
        Err(_) => {}
    }
}

/// Removes the root directory, and the two directories above it if they are empty then.
pub(super) fn remove(rootfs: &Path) -> io::Result<()> {
    podwright_host::tree::remove(rootfs)?;
    for dir in rootfs.ancestors().skip(1).take(2) {
        // The directory may contain other containers, or the storage may have removed it already.
        let _ = fs::remove_dir(dir);
    }
    Ok(())
}

/// The name of the environment variable with a volume's path on the host.
pub(super) fn mount_variable(volume: &str) -> String {
    let letters = volume.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' });
    format!("PODWRIGHT_MOUNT_{}", letters.collect::<String>())
}

/// The working directory of the command. The default is the container's root. A relative path, or a path in a mount, is
/// resolved in the container's root. Any other path is a path on the node.
pub(super) fn working_dir(rootfs: &Path, requested: Option<&str>, links: &[Link]) -> PathBuf {
    let Some(requested) = requested.filter(|path| !path.is_empty() && *path != "/") else {
        return rootfs.to_owned();
    };
    match relative(requested) {
        Some(inside) if !requested.starts_with('/') || is_in_mount(&inside, links) => rootfs.join(inside),
        _ => rootfs.join(OsStr::new(requested)),
    }
}

pub(super) fn make_parent(path: &Path) -> io::Result<()> {
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
            image: None,
        }
    }

    #[test]
    fn volume_mounts_become_links_below_the_root() {
        for (path, at) in [("/data", "data"), ("/var//lib/x/", "var/lib/x"), ("rel", "rel"), ("/a/./b", "a/b")] {
            let links = links("c", &[mount(path)]).unwrap();
            assert_eq!(
                links,
                [Link { volume: "v".into(), at: at.into(), target: LinkTarget::Volume("/host".into()) }],
                "{path}"
            );
        }
    }

    #[test]
    fn volume_mounts_that_leave_the_root_or_overlap_are_refused() {
        for paths in [&["/"][..], &["/../etc"], &["/a/../../b"], &["/a", "/a/b"], &["/a/b", "/a"], &["/a", "/a/"]] {
            let mounts: Vec<Mount> = paths.iter().map(|path| mount(path)).collect();
            assert!(matches!(links("c", &mounts), Err(RuntimeError::Config(_))), "{paths:?}");
        }
        assert!(links("c", &[mount("/a"), mount("/ab")]).is_ok());
    }

    #[test]
    fn working_directory_is_the_root_or_a_mount_or_a_node_path() {
        let root = Path::new("/r");
        let links = links("c", &[mount("/data")]).unwrap();
        for (requested, dir) in [
            (None, "/r"),
            (Some(""), "/r"),
            (Some("/"), "/r"),
            (Some("/data"), "/r/data"),
            (Some("/data/sub"), "/r/data/sub"),
            (Some("/database"), "/database"),
            (Some("/tmp"), "/tmp"),
            (Some("sub"), "/r/sub"),
        ] {
            assert_eq!(working_dir(root, requested, &links), Path::new(dir), "{requested:?}");
        }
    }

    #[test]
    fn volume_name_becomes_an_environment_variable_name() {
        assert_eq!(mount_variable("my-data.2"), "PODWRIGHT_MOUNT_MY_DATA_2");
    }
}
