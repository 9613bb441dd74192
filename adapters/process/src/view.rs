//! Decides which part of the node's file system a container may change and see, and which processes it sees. This module does no
//! I/O. Pure.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::VolumeMount;
use podwright_host::mounts;
use podwright_host::sub_path::volume;
use podwright_model::texts::containers::config::unknown_propagation;
use podwright_ports::{Mount, RuntimeError};

use super::record::{Confinement, Processes, Propagation, View, ViewMount};
use super::security::AgentRights;

/// The settings that the view of one container depends on.
#[derive(Clone, Debug)]
pub(super) struct ViewRequest<'a> {
    pub(super) uid: &'a str,
    pub(super) name: &'a str,
    pub(super) mounts: &'a [Mount],
    /// The container's `volumeMounts`, which have the `mountPropagation`.
    pub(super) volume_mounts: &'a [VolumeMount],
    /// The container's `readOnlyRootFilesystem`.
    pub(super) read_only_root: bool,
    pub(super) privileged: bool,
    /// Whether the pod has `hostPID`.
    pub(super) node_processes: bool,
    /// The agent's directory with one directory per pod.
    pub(super) pods: &'a Path,
    /// The absolute path of the container's termination log; `None` if it is in a mount.
    pub(super) termination_log: Option<PathBuf>,
}

impl ViewRequest<'_> {
    /// The path at which the container finds a mount. A `subPath` is mounted outside of its volume, because other containers can
    /// replace each directory of the volume by a link. Only the agent can write to this path.
    pub(super) fn place(&self, number: usize) -> PathBuf {
        let mount = &self.mounts[number];
        match mount.sub_path.as_os_str().is_empty() {
            true => mount.host_path.clone(),
            false => mounts::sub_path(self.pods, self.uid, &mount.volume, self.name, number),
        }
    }
}

/// Adds the container's view to its confinement. A container without a view sees the file system as the agent does.
///
/// # Errors
/// [`RuntimeError::Config`] with the field and the remedy, if the container has a read-only mount or a read-only root and the
/// agent may not create mount namespaces, or if a `mountPropagation` does not exist.
pub(super) fn confine(
    request: &ViewRequest<'_>,
    agent: AgentRights,
    confinement: Confinement,
) -> Result<Confinement, RuntimeError> {
    let read_only_mount = request.mounts.iter().find(|mount| mount.read_only);
    let field = match (request.read_only_root, read_only_mount) {
        (true, _) => Some("readOnlyRootFilesystem".to_owned()),
        (false, Some(mount)) => Some(format!("volumeMounts[{}].readOnly", mount.volume)),
        (false, None) => None,
    };
    if !agent.namespaces.mounts {
        let remedy = match agent.is_root {
            true => "run the agent with CAP_SYS_ADMIN and CAP_SYS_CHROOT",
            false => "run the agent as root, or allow user namespaces (user.max_user_namespaces)",
        };
        return field.map_or(Ok(confinement), |field| {
            Err(RuntimeError::config(format!(
                "container {}: `{field}` needs a mount namespace, and this node does not let the agent create one: remove it, or \
                 {remedy}",
                request.name
            )))
        });
    }
    // Privileged containers may mount file systems for the node and see its processes.
    if field.is_none() && request.privileged {
        return Ok(confinement);
    }
    let own_processes = agent.namespaces.processes && !request.privileged && !request.node_processes;
    let view = View { pods: request.pods.to_owned(), mounts: mounts(request)?, read_only_root: request.read_only_root };
    let processes = if own_processes { Processes::Own } else { Processes::Node };
    Ok(Confinement { view: Some(view), processes, ..confinement })
}

fn mounts(request: &ViewRequest<'_>) -> Result<Vec<ViewMount>, RuntimeError> {
    let of = |(number, mount): (usize, &Mount)| {
        Ok(ViewMount {
            at: request.place(number),
            volume: volume(&mount.host_path, &mount.sub_path).to_owned(),
            sub_path: mount.sub_path.clone(),
            read_only: mount.read_only,
            propagation: propagation(mount, request.volume_mounts)?,
        })
    };
    let mut mounts = request.mounts.iter().enumerate().map(of).collect::<Result<Vec<_>, RuntimeError>>()?;
    if let Some(log) = request.termination_log.as_ref().filter(|_| request.read_only_root) {
        mounts.push(ViewMount { at: log.clone(), volume: log.clone(), ..ViewMount::default() });
    }
    Ok(in_order(mounts))
}

fn propagation(mount: &Mount, specs: &[VolumeMount]) -> Result<Propagation, RuntimeError> {
    let is_same_path = |path: &str| path.trim_start_matches('/') == mount.container_path.trim_start_matches('/');
    let spec = specs.iter().find(|spec| spec.name == mount.volume && is_same_path(&spec.mount_path));
    match spec.and_then(|spec| spec.mount_propagation.as_deref()) {
        None | Some("" | "None") => Ok(Propagation::None),
        Some("HostToContainer") => Ok(Propagation::HostToContainer),
        Some("Bidirectional") => Ok(Propagation::Bidirectional),
        Some(other) => Err(RuntimeError::config(unknown_propagation(other))),
    }
}

/// The mounts with outer paths first and one mount for each path. A path that is mounted twice can be written through one of the
/// mounts, so it is writable. Later mounts appear in it if one of the mounts requests that.
pub(super) fn in_order(mut mounts: Vec<ViewMount>) -> Vec<ViewMount> {
    mounts.sort_by(|a, b| a.at.cmp(&b.at).then(a.read_only.cmp(&b.read_only)));
    mounts.dedup_by(|later, first| {
        let is_same = later.at == first.at;
        if is_same {
            first.propagation = first.propagation.max(later.propagation);
        }
        is_same
    });
    mounts
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rustix::thread::CapabilitySet;

    use super::super::security::Namespaces;
    use super::*;

    fn agent(mounts: bool, processes: bool) -> AgentRights {
        let namespaces = Namespaces { mounts, processes };
        AgentRights { is_root: true, capabilities: CapabilitySet::empty(), namespaces }
    }

    fn mount(path: &str, sub_path: &str, read_only: bool) -> Mount {
        Mount {
            volume: "data".into(),
            host_path: path.into(),
            sub_path: sub_path.into(),
            container_path: "/x".into(),
            read_only,
            image: None,
        }
    }

    fn request(mounts: &[Mount]) -> ViewRequest<'_> {
        ViewRequest {
            uid: "u",
            name: "main",
            mounts,
            volume_mounts: &[],
            read_only_root: false,
            privileged: false,
            node_processes: false,
            pods: Path::new("/root/pods"),
            termination_log: Some("/log".into()),
        }
    }

    fn decide(request: ViewRequest<'_>, agent: AgentRights) -> Result<Confinement, RuntimeError> {
        confine(&request, agent, Confinement::default())
    }

    #[test]
    fn container_has_its_own_files_and_processes_where_the_node_allows_it() {
        let (ro, rw) = ([mount("/v", "", true)], [mount("/v", "", false)]);
        let (ro, rw) = (request(&ro), request(&rw));
        let privileged = |request| ViewRequest { privileged: true, ..request };
        let root = |request| ViewRequest { read_only_root: true, ..request };
        let node_processes = |request| ViewRequest { node_processes: true, ..request };
        for (request, agent, view, own) in [
            (rw.clone(), agent(true, true), true, true),
            (rw.clone(), agent(true, false), true, false),
            (rw.clone(), agent(false, false), false, false),
            (ro.clone(), agent(true, true), true, true),
            (node_processes(rw.clone()), agent(true, true), true, false),
            (privileged(rw.clone()), agent(true, true), false, false),
            (privileged(ro.clone()), agent(true, true), true, false),
            (root(privileged(rw.clone())), agent(true, true), true, false),
        ] {
            let found = decide(request.clone(), agent).unwrap();
            let processes = if own { Processes::Own } else { Processes::Node };
            assert_eq!((found.view.is_some(), found.processes), (view, processes), "{request:?} {agent:?}");
        }
    }

    #[test]
    fn path_with_a_writable_mount_is_writable_and_outer_paths_come_first() {
        let mounts =
            [mount("/v/a/b", "a/b", false), mount("/v", "", true), mount("/w", "", true), mount("/w", "", false)];
        let found = decide(ViewRequest { read_only_root: true, ..request(&mounts) }, agent(true, true)).unwrap();
        let view = found.view.unwrap();
        let expected = [
            ("/log", "/log", "", false),
            ("/root/pods/u/volume-subpaths/data/main/0", "/v", "a/b", false),
            ("/v", "/v", "", true),
            ("/w", "/w", "", false),
        ];
        let expected = expected.map(|(at, volume, sub_path, read_only)| ViewMount {
            at: PathBuf::from(at),
            volume: volume.into(),
            sub_path: sub_path.into(),
            read_only,
            propagation: Propagation::None,
        });
        assert_eq!(view.mounts, expected);
        assert_eq!(view.root(), Path::new("/root"));
    }

    #[test]
    fn termination_log_in_a_mount_gets_no_mount_of_its_own() {
        let request = ViewRequest { read_only_root: true, termination_log: None, ..request(&[]) };
        assert_eq!(decide(request, agent(true, true)).unwrap().view.unwrap().mounts, []);
    }

    #[test]
    fn mount_propagation_is_that_of_the_volume_mount() {
        let mounts = [mount("/v", "", true)];
        let decided = |mode: Option<&str>| {
            let (mount_propagation, mount_path) = (mode.map(str::to_owned), "x".to_owned());
            let spec = VolumeMount { name: "data".into(), mount_path, mount_propagation, ..VolumeMount::default() };
            let decided = decide(ViewRequest { volume_mounts: &[spec], ..request(&mounts) }, agent(true, true));
            decided.map(|it| it.view.unwrap().mounts[0].propagation)
        };
        for (mode, expected) in [
            (None, Propagation::None),
            (Some("None"), Propagation::None),
            (Some("HostToContainer"), Propagation::HostToContainer),
            (Some("Bidirectional"), Propagation::Bidirectional),
        ] {
            assert_eq!(decided(mode).unwrap(), expected, "{mode:?}");
        }
        assert!(matches!(decided(Some("x")), Err(RuntimeError::Config(_))));
        let mount = |read_only, propagation| ViewMount { read_only, propagation, ..ViewMount::default() };
        let both = in_order(vec![mount(true, Propagation::HostToContainer), mount(false, Propagation::None)]);
        assert_eq!(both, [mount(false, Propagation::HostToContainer)]);
    }

    #[test]
    fn read_only_settings_without_mount_namespaces_are_refused_by_name() {
        let ro = [mount("/v", "", true)];
        for (request, field) in [
            (request(&ro), "volumeMounts[data].readOnly"),
            (ViewRequest { read_only_root: true, ..request(&[]) }, "readOnlyRootFilesystem"),
        ] {
            let without_root = decide(request.clone(), AgentRights { is_root: false, ..agent(false, false) });
            assert!(without_root.unwrap_err().to_string().contains("user namespaces"));
            match decide(request, agent(false, false)) {
                Err(RuntimeError::Config(text)) => {
                    let text = text.to_string();
                    assert!(text.contains(field) && text.contains("CAP_SYS_CHROOT"), "{text}");
                }
                other => panic!("not refused: {other:?}"),
            }
        }
    }
}
