//! Decides which part of the node's file system a container may change and see. This module does no I/O.

use std::path::{Path, PathBuf};

use podwright_actors::ports::{Mount, RuntimeError};

use super::record::View;
use super::security::AgentRights;

/// The file system of one container.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) name: &'a str,
    pub(super) mounts: &'a [Mount],
    /// The container's `readOnlyRootFilesystem`.
    pub(super) read_only_root: bool,
    pub(super) privileged: bool,
    /// The agent's directory with one directory per pod.
    pub(super) pods: &'a Path,
    /// The agent's directory with the records of the containers.
    pub(super) records: &'a Path,
    /// The pod's UID.
    pub(super) uid: &'a str,
    /// The absolute path of the container's termination log.
    pub(super) termination_log: &'a Path,
}

/// The view of a container; `None` if the container has the view of the agent.
///
/// # Errors
/// [`RuntimeError::Config`] with the field and the remedy, if the container has a read-only mount or a read-only root and the
/// agent may not create mount namespaces.
pub(super) fn view(request: Request<'_>, agent: AgentRights) -> Result<Option<View>, RuntimeError> {
    let read_only_mount = request.mounts.iter().find(|mount| mount.read_only);
    let field = match (request.read_only_root, read_only_mount) {
        (true, _) => Some("readOnlyRootFilesystem".to_owned()),
        (false, Some(mount)) => Some(format!("volumeMounts[{}].readOnly", mount.volume)),
        (false, None) => None,
    };
    if !agent.can_mount && !agent.user_namespaces {
        return field.map_or(Ok(None), |field| {
            Err(RuntimeError::config(format!(
                "container {}: `{field}` needs a mount namespace, and this node does not let the agent create one: remove it, \
                 run the agent as root with CAP_SYS_ADMIN, or allow user namespaces (user.max_user_namespaces)",
                request.name
            )))
        });
    }
    // Privileged containers may mount file systems for the node. Without root, the pods' users are all the same.
    if field.is_none() && (request.privileged || !agent.can_mount) {
        return Ok(None);
    }
    let mut rules: Vec<(PathBuf, bool)> =
        request.mounts.iter().map(|mount| (mount.host_path.clone(), mount.read_only)).collect();
    if request.read_only_root {
        rules.push((request.termination_log.to_owned(), false));
    }
    // A path that is mounted twice can be written through one of the mounts, so it is writable. Outer paths come first.
    rules.sort();
    rules.dedup_by(|later, first| later.0 == first.0);
    Ok(Some(View {
        pods: request.pods.to_owned(),
        records: request.records.to_owned(),
        pod: request.pods.join(request.uid),
        rules,
        read_only_root: request.read_only_root,
        required: field,
    }))
}

#[cfg(test)]
mod tests {
    use rustix::thread::CapabilitySet;

    use super::*;

    fn agent(can_mount: bool, user_namespaces: bool) -> AgentRights {
        AgentRights { is_root: can_mount, capabilities: CapabilitySet::empty(), can_mount, user_namespaces }
    }

    fn mount(path: &str, read_only: bool) -> Mount {
        Mount {
            volume: "data".into(),
            host_path: path.into(),
            sub_path: "".into(),
            container_path: "/x".into(),
            read_only,
            image: None,
        }
    }

    fn decide(
        mounts: &[Mount],
        read_only_root: bool,
        privileged: bool,
        agent: AgentRights,
    ) -> Result<Option<View>, RuntimeError> {
        let request = Request {
            name: "main",
            mounts,
            read_only_root,
            privileged,
            pods: Path::new("/root/pods"),
            records: Path::new("/root/process"),
            uid: "u",
            termination_log: Path::new("/log"),
        };
        view(request, agent)
    }

    #[test]
    fn container_has_a_view_of_its_own_if_it_needs_one_or_if_root_gives_it() {
        let (ro, rw) = ([mount("/v", true)], [mount("/v", false)]);
        for (mounts, root, privileged, agent, some) in [
            (&rw, false, false, agent(true, true), true),
            (&rw, false, true, agent(true, true), false),
            (&ro, false, true, agent(true, true), true),
            (&rw, true, true, agent(true, true), true),
            (&rw, false, false, agent(false, true), false),
            (&ro, false, false, agent(false, true), true),
            (&rw, false, false, agent(false, false), false),
        ] {
            let found = decide(mounts, root, privileged, agent).unwrap();
            assert_eq!(found.is_some(), some, "{mounts:?} {root} {privileged} {agent:?}");
        }
    }

    #[test]
    fn path_with_a_writable_mount_is_writable_and_outer_paths_come_first() {
        let mounts = [mount("/v/sub", false), mount("/v", true), mount("/w", true), mount("/w", false)];
        let found = decide(&mounts, true, false, agent(true, true)).unwrap().unwrap();
        let expected = [("/log", false), ("/v", true), ("/v/sub", false), ("/w", false)];
        assert_eq!(found.rules, expected.map(|(path, read_only)| (PathBuf::from(path), read_only)));
        assert_eq!(found.pod, Path::new("/root/pods/u"));
    }

    #[test]
    fn read_only_settings_without_mount_namespaces_are_refused_by_name() {
        for (mounts, root, field) in
            [(vec![mount("/v", true)], false, "volumeMounts[data].readOnly"), (vec![], true, "readOnlyRootFilesystem")]
        {
            match decide(&mounts, root, false, agent(false, false)) {
                Err(RuntimeError::Config(text)) => assert!(text.to_string().contains(field), "{text}"),
                other => panic!("not refused: {other:?}"),
            }
        }
    }
}
