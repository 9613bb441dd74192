//! Decides the user and groups of a container. Pure.

use k8s_openapi::api::core::v1::{PodSecurityContext, SecurityContext};
use podwright_core::config::linux_id::linux_id;
use podwright_host::pod_group;
use podwright_ports::RuntimeError;

use super::record::User;

/// The users and groups of the agent and of the node, which the identity of a container depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeAccounts<'a> {
    /// The agent's effective user.
    pub(super) user: u32,
    /// The agent's effective group.
    pub(super) group: u32,
    /// The agent's supplementary groups.
    pub(super) groups: &'a [u32],
    /// The content of the node's `/etc/passwd`.
    pub(super) passwd: &'a str,
    /// The content of the node's `/etc/group`.
    pub(super) group_file: &'a str,
}

/// The user and groups that a container runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) user: User,
    /// Whether the primary group is the pod's own group instead of that of `user`.
    pub(super) in_pod_group: bool,
}

/// The user and groups that a manifest names for a container.
pub(super) struct RequestedIdentity {
    user: Option<u32>,
    group: Option<u32>,
    /// The supplementary groups, each with the field that names it.
    groups: Vec<(&'static str, u32)>,
    /// Whether the container must not run as root.
    non_root: bool,
}

/// The user and groups that a manifest names for a container.
///
/// # Errors
/// [`RuntimeError::Config`] with the field and the remedy, if no agent can run the container with them.
pub(super) fn requested(
    name: &str,
    of_pod: Option<&PodSecurityContext>,
    security: Option<&SecurityContext>,
) -> Result<RequestedIdentity, RuntimeError> {
    let id = |field: &str, value: i64| checked(name, field, value);
    let user = security.and_then(|it| it.run_as_user).or(of_pod.and_then(|it| it.run_as_user));
    let user = user.map(|value| id("runAsUser", value)).transpose()?;
    let group = security.and_then(|it| it.run_as_group).or(of_pod.and_then(|it| it.run_as_group));
    let group = group.map(|value| id("runAsGroup", value)).transpose()?;
    let mut groups = Vec::new();
    for value in of_pod.and_then(|it| it.supplemental_groups.as_deref()).unwrap_or_default() {
        groups.push(("supplementalGroups", id("supplementalGroups", *value)?));
    }
    if let Some(value) = of_pod.and_then(|it| it.fs_group) {
        groups.push(("fsGroup", id("fsGroup", value)?));
    }
    let non_root = security.and_then(|it| it.run_as_non_root).or(of_pod.and_then(|it| it.run_as_non_root));
    let non_root = non_root == Some(true);
    if non_root && user == Some(0) {
        return Err(RuntimeError::config(format!(
            "container {name} has runAsNonRoot and `runAsUser` 0, which is root: use another user, or remove one of the two"
        )));
    }
    Ok(RequestedIdentity { user, group, groups, non_root })
}

/// The user and groups that the container runs as. The groups do not include the pod's own group.
///
/// Without `runAsGroup`, the group is the user's primary group on this node, or the group with the user's number. If the node's group
/// file has a group with that number, the container gets the pod's own group instead: a group of the node may have access to the
/// sockets and directories of daemons. For the same reason, a user other than root gets group 0 only from `runAsGroup`. The
/// supplementary groups are those of the pod, never those of the agent.
///
/// # Errors
/// [`RuntimeError::Config`] with the field and the remedy, if an id is out of range or if the agent may not change to it.
pub(super) fn resolve(
    name: &str,
    of_pod: Option<&PodSecurityContext>,
    security: Option<&SecurityContext>,
    node: &NodeAccounts<'_>,
) -> Result<Identity, RuntimeError> {
    let RequestedIdentity { user, group: requested_group, groups, non_root } = requested(name, of_pod, security)?;
    let uid = user.unwrap_or(node.user);
    if non_root && uid == 0 {
        return Err(RuntimeError::config(format!(
            "container {name} has runAsNonRoot and would run as root: set `runAsUser`, or run the agent as another user"
        )));
    }
    if node.user == 0 {
        let default = || default_group(uid, node.passwd, node.group_file);
        let (gid, in_pod_group) = match requested_group.or_else(default) {
            Some(gid) => (gid, false),
            None => (uid, true),
        };
        let mut groups: Vec<u32> = groups.into_iter().map(|(_, group)| group).collect();
        groups.sort_unstable();
        groups.dedup();
        return Ok(Identity { user: User { uid, gid, groups }, in_pod_group });
    }
    let gid = requested_group.unwrap_or(node.group);
    if (uid, gid) != (node.user, node.group) {
        return Err(RuntimeError::config(format!(
            "container {name} requests user {uid} and group {gid}, but the agent runs as user {} and group {} and only root \
             can change them: remove `runAsUser` and `runAsGroup`, or run the agent as root",
            node.user, node.group
        )));
    }
    if let Some((field, group)) = groups.iter().find(|(_, it)| *it != node.group && !node.groups.contains(it)) {
        return Err(RuntimeError::config(format!(
            "container {name} requests group {group} by `{field}`, but the agent's user {} is not in that group and only \
             root can change groups: remove `{field}`, add the user to the group, or run the agent as root",
            node.user
        )));
    }
    // Without root, the container keeps the agent's groups: the kernel lets no other process change them.
    Ok(Identity { user: User { uid, gid, groups: node.groups.to_vec() }, in_pod_group: false })
}

/// Checks an id of a manifest: an id of the Kubernetes API, without the groups that the agent gives to pods.
fn checked(name: &str, field: &str, value: i64) -> Result<u32, RuntimeError> {
    let id = linux_id(value).map_err(|error| RuntimeError::config(format!("container {name}: `{field}` {error}")))?;
    if pod_group::RANGE.contains(&id) {
        return Err(RuntimeError::config(format!(
            "container {name}: `{field}` {id} is one of the groups that the agent gives to pods ({} to {}): use another \
             number",
            pod_group::RANGE.start,
            pod_group::RANGE.end - 1
        )));
    }
    Ok(id)
}

/// The group of a user for whom the manifest sets no group. `None` if the user has no primary group on the node, and the user's
/// number is that of a group of the node.
fn default_group(uid: u32, passwd: &str, group_file: &str) -> Option<u32> {
    let own = primary_group(uid, passwd).filter(|gid| uid == 0 || *gid != 0);
    own.or_else(|| (uid == 0 || !has_group(uid, group_file)).then_some(uid))
}

/// Whether the text of a group file has a group with this number: the third field of a line.
fn has_group(gid: u32, group_file: &str) -> bool {
    group_file.lines().any(|line| line.split(':').nth(2).is_some_and(|group| group.parse() == Ok(gid)))
}

/// The primary group of a user in the text of a passwd file: the fourth field of the first line with the user's number.
fn primary_group(uid: u32, passwd: &str) -> Option<u32> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':').skip(2);
        let (user, group) = (fields.next()?, fields.next()?);
        (user.parse() == Ok(uid)).then(|| group.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nold:x:11:0::/:\nweb:x:1000:100:Web:/home/web:/bin/sh\n\
                          broken:x:1001\n# text\n";
    const GROUPS: &str = "root:x:0:\nusers:x:100:web\ndocker:x:999:\nbroken:x\n# text\n";

    fn root() -> NodeAccounts<'static> {
        // The agent's own groups, which no container may inherit.
        NodeAccounts { user: 0, group: 0, groups: &[0, 27, 998], passwd: PASSWD, group_file: GROUPS }
    }

    fn of_pod(user: Option<i64>, group: Option<i64>) -> PodSecurityContext {
        PodSecurityContext { run_as_user: user, run_as_group: group, ..Default::default() }
    }

    fn refusal(pod: &PodSecurityContext, node: &NodeAccounts<'_>) -> String {
        match resolve("main", Some(pod), None, node) {
            Err(RuntimeError::Config(text)) => text.to_string(),
            other => panic!("not refused: {other:?}"),
        }
    }

    #[test]
    fn user_without_run_as_group_never_gets_the_agents_group() {
        for (user, group, uid, gid) in [
            (None, None, 0, 0),
            (Some(0), None, 0, 0),
            (Some(1000), None, 1000, 100),
            (Some(1000), Some(7), 1000, 7),
            // A user without a line, with a broken line, and with primary group 0.
            (Some(5000), None, 5000, 5000),
            (Some(1001), None, 1001, 1001),
            (Some(11), None, 11, 11),
            (Some(1000), Some(0), 1000, 0),
            (None, Some(7), 0, 7),
        ] {
            let found = resolve("main", Some(&of_pod(user, group)), None, &root()).unwrap();
            let expected = Identity { user: User { uid, gid, groups: vec![] }, in_pod_group: false };
            assert_eq!(found, expected, "{user:?} {group:?}");
        }
    }

    #[test]
    fn user_whose_number_is_that_of_a_group_of_the_node_gets_the_group_of_the_pod() {
        for (user, group, in_pod_group) in
            [(999, None, true), (100, None, true), (999, Some(999), false), (998, None, false), (1000, None, false)]
        {
            let found = resolve("main", Some(&of_pod(Some(user), group)), None, &root()).unwrap();
            assert_eq!(found.in_pod_group, in_pod_group, "{user} {group:?}");
        }
    }

    #[test]
    fn containers_own_ids_override_those_of_the_pod() {
        let own = SecurityContext { run_as_user: Some(5), run_as_group: Some(6), ..SecurityContext::default() };
        let found = resolve("main", Some(&of_pod(Some(1000), Some(100))), Some(&own), &root()).unwrap();
        assert_eq!((found.user.uid, found.user.gid), (5, 6));
    }

    #[test]
    fn supplementary_groups_are_those_of_the_pod() {
        let groups = |groups: Option<Vec<i64>>, fs_group| PodSecurityContext {
            supplemental_groups: groups,
            fs_group,
            ..of_pod(Some(1000), None)
        };
        for (pod, found) in [
            (groups(None, None), vec![]),
            (groups(Some(vec![9, 8, 9]), Some(8)), vec![8, 9]),
            (groups(None, Some(2000)), vec![2000]),
        ] {
            assert_eq!(resolve("main", Some(&pod), None, &root()).unwrap().user.groups, found);
        }
        let agent = NodeAccounts { user: 1000, group: 100, groups: &[27], passwd: "", group_file: "" };
        let member = PodSecurityContext { fs_group: Some(27), ..PodSecurityContext::default() };
        assert_eq!(resolve("main", Some(&member), None, &agent).unwrap().user.groups, [27]);
        let text = refusal(&groups(Some(vec![28]), None), &agent);
        assert!(text.contains("supplementalGroups") && text.contains("28"), "{text}");
        assert!(refusal(&groups(None, Some(29)), &agent).contains("fsGroup"));
    }

    #[test]
    fn ids_out_of_range_are_refused() {
        let pod_group = i64::from(pod_group::RANGE.start);
        for bad in [-1, -5, i64::from(i32::MAX) + 1, i64::from(u32::MAX), 1 << 32, i64::MIN, pod_group] {
            for pod in [
                of_pod(Some(bad), None),
                of_pod(None, Some(bad)),
                PodSecurityContext { fs_group: Some(bad), ..PodSecurityContext::default() },
                PodSecurityContext { supplemental_groups: Some(vec![bad]), ..PodSecurityContext::default() },
            ] {
                assert!(refusal(&pod, &root()).contains(&format!("{bad} is")), "{pod:?}");
            }
        }
    }

    #[test]
    fn only_an_agent_of_root_changes_the_user() {
        let agent = NodeAccounts { user: 1000, group: 100, groups: &[], passwd: PASSWD, group_file: GROUPS };
        let same = resolve("main", Some(&of_pod(Some(1000), None)), None, &agent).unwrap();
        assert_eq!(same.user, User { uid: 1000, gid: 100, groups: vec![] });
        assert!(refusal(&of_pod(Some(0), None), &agent).contains("run the agent as root"));
        assert!(refusal(&of_pod(None, Some(5)), &agent).contains("run the agent as root"));
        let non_root = PodSecurityContext { run_as_non_root: Some(true), ..PodSecurityContext::default() };
        assert!(refusal(&non_root, &root()).contains("runAsNonRoot"));
        assert!(resolve("main", Some(&non_root), None, &agent).is_ok());
    }
}
