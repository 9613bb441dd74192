//! Making sandboxes and containers: never two at once of one name, and never twice what may have been made.
//!
//! A creation whose answer did not come may have happened, or may still happen. Asked for once more the runtime refuses,
//! because the name is taken, and it would go on refusing. So what there is of that name is looked up: what is as wanted is
//! kept, what is not is removed, and where nothing can be seen the next attempt has a name of its own.

use std::sync::Arc;

use podwright_actors::ids::{ContainerId, SandboxId};
use podwright_actors::pod::PodObject;
use podwright_actors::ports::{ContainerConfig, PodEvent, RuntimeError, SandboxConfig};

use super::client::is_name_taken;
use super::config::{DnsWarning, Facts, Seen, container_config, dns_warnings, labels, sandbox_config, target_name};
use super::inner::{Inner, Whose, blocking};
use super::{files, read, v1};

/// How many names are tried.
const NAMES: u32 = 4;

/// A container that was made, by id and hash of its definition.
pub(super) type Made = (ContainerId, u64);

/// What an answer that did not come leaves open.
fn may_have_happened(error: &RuntimeError) -> bool {
    error.is_open() || is_name_taken(error)
}

/// What the first sandbox of a pod is like.
pub(super) async fn description(
    inner: &Arc<Inner>,
    pod: &Arc<PodObject>,
) -> Result<v1::PodSandboxConfig, RuntimeError> {
    let facts = inner.facts().await?;
    let assigned = inner.assigned(&facts, pod).await?;
    Ok(sandbox_config(&facts, &assigned, pod, 0)?)
}

/// Makes a sandbox, or finds the one that was made.
pub(super) async fn sandbox(inner: Arc<Inner>, config: SandboxConfig) -> Result<SandboxId, RuntimeError> {
    let pod = config.pod;
    let (facts, of) = (inner.facts().await?, Arc::clone(&pod));
    let layout = facts.layout.clone();
    blocking(move || files::make_log_dir(&layout, &of)).await?;
    let assigned = inner.assigned(&facts, &pod).await?;
    let mut attempt = config.attempt;
    for _ in 0..NAMES {
        let request = v1::RunPodSandboxRequest {
            config: Some(sandbox_config(&facts, &assigned, &pod, attempt)?),
            runtime_handler: assigned.handler.clone(),
        };
        let error = match inner.client.run_pod_sandbox(request).await {
            Ok(made) => {
                tell_warnings(&inner, &facts, &pod);
                return Ok(made.pod_sandbox_id.into());
            }
            Err(error) if !may_have_happened(&error) => return Err(error),
            Err(error) => error,
        };
        tracing::warn!(pod.uid = %pod.uid(), attempt, %error, "looking for a sandbox that may have been made");
        match find_sandbox(&inner, &pod, attempt).await {
            Ok(Some((id, true))) => return Ok(id),
            Ok(Some((id, false))) => inner.remove_sandbox(&id).await?,
            Ok(None) => {}
            // What cannot be looked up now is seen by the next try.
            Err(_) => return Err(error),
        }
        if !is_name_taken(&error) {
            return Err(error);
        }
        attempt += 1;
    }
    Err(RuntimeError::Failed(format!(
        "the runtime holds the names of sandboxes {} to {} of pod {} and shows none of them: see its log",
        config.attempt,
        attempt - 1,
        pod.full_name()
    )))
}

/// Tells what a sandbox that was made does not do for its pod: once, and not with each try to make it.
fn tell_warnings(inner: &Inner, facts: &Facts, pod: &Arc<PodObject>) {
    for warning in dns_warnings(facts, pod) {
        let reason = match warning {
            DnsWarning::NoClusterDns => "MissingClusterDNS",
            DnsWarning::Servers(_) | DnsWarning::Searches(_) => "DNSConfigForming",
        };
        inner.events.record(pod, PodEvent::warning(reason, warning.to_string()));
    }
}

/// The sandbox of one attempt, and whether it is ready.
async fn find_sandbox(inner: &Inner, pod: &PodObject, attempt: u32) -> Result<Option<(SandboxId, bool)>, RuntimeError> {
    let of_attempt = |sandbox: &v1::PodSandbox| sandbox.metadata.as_ref().is_some_and(|it| it.attempt == attempt);
    let found = inner.sandboxes(Whose::Pod(&pod.uid().to_string())).await?.into_iter().find(of_attempt);
    Ok(found.map(|sandbox| {
        let ready = sandbox.state() == v1::PodSandboxState::SandboxReady;
        (sandbox.id.into(), ready)
    }))
}

/// Makes a container, or finds the one that was made.
pub(super) async fn container(inner: Arc<Inner>, config: ContainerConfig) -> Result<Made, RuntimeError> {
    let sandbox_id = config.sandbox.as_str().to_owned();
    let request = v1::PodSandboxStatusRequest { pod_sandbox_id: sandbox_id.clone(), verbose: false };
    let sandbox = inner.client.pod_sandbox_status(request).await?.status;
    let sandbox = sandbox.ok_or_else(|| RuntimeError::NotFound(format!("sandbox {sandbox_id}")))?;
    let sandbox = read::sandbox(&sandbox);
    let facts = inner.facts().await?;

    let config = Arc::new(config);
    let seen = seen(&inner, &config).await?;
    let assigned = inner.assigned(&facts, &config.pod).await?;
    let wanted = container_config(&facts, &assigned, &config, &seen)?;
    let sandbox_config = sandbox_config(&facts, &assigned, &config.pod, sandbox.attempt)?;
    let (known, of, ips) = (Arc::clone(&facts), Arc::clone(&config), sandbox.ips);
    blocking(move || files::prepare(&known, &of, &ips)).await?;
    let id = make_or_find(&inner, &config, wanted, sandbox_config).await?;
    let (layout, of, made) = (facts.layout.clone(), Arc::clone(&config), id.clone());
    blocking(move || {
        files::link_log(&layout, &of, &made);
        Ok(())
    })
    .await?;
    Ok((id.into(), config.spec_hash))
}

/// The id of a container that was made just now, or before by a call whose answer did not come.
async fn make_or_find(
    inner: &Inner,
    config: &ContainerConfig,
    mut wanted: v1::ContainerConfig,
    sandbox_config: v1::PodSandboxConfig,
) -> Result<String, RuntimeError> {
    for name in 0..NAMES {
        let attempt = config.restart_count + name;
        wanted.metadata.get_or_insert_default().attempt = attempt;
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: config.sandbox.as_str().to_owned(),
            config: Some(wanted.clone()),
            sandbox_config: Some(sandbox_config.clone()),
        };
        let error = match inner.client.create_container(request).await {
            Ok(answer) => return Ok(answer.container_id),
            Err(error) if !may_have_happened(&error) => return Err(error),
            Err(error) => error,
        };
        let (uid, container) = (config.pod.uid(), &config.name);
        tracing::warn!(pod.uid = %uid, %container, attempt, %error, "looking for a container that may have been made");
        match find_container(inner, config, attempt).await {
            Ok(Some(found)) if is_as_wanted(&found, &wanted) => return Ok(found.id),
            Ok(Some(found)) => inner.remove_container(found.id).await?,
            Ok(None) => {}
            Err(_) => return Err(error),
        }
        if !is_name_taken(&error) {
            return Err(error);
        }
    }
    Err(RuntimeError::Failed(format!(
        "the runtime holds the names of {NAMES} runs of container {} and shows none of them: see its log",
        config.name
    )))
}

/// What the translation has to know of the image and of other containers.
async fn seen(inner: &Inner, config: &ContainerConfig) -> Result<Seen, RuntimeError> {
    let user = inner.image_user(&config.image_id).await?;
    let target = match target_name(config) {
        Some(name) => running(inner, config, name).await?,
        None => None,
    };
    Ok(Seen { user, target })
}

/// The running container of this name in the same sandbox.
async fn running(inner: &Inner, config: &ContainerConfig, name: &str) -> Result<Option<ContainerId>, RuntimeError> {
    let containers = inner.containers(Whose::Pod(&config.pod.uid().to_string())).await?;
    let is_it = |container: &v1::Container| {
        container.pod_sandbox_id == config.sandbox.as_str()
            && container.state() == v1::ContainerState::ContainerRunning
            && container.metadata.as_ref().is_some_and(|metadata| metadata.name == name)
    };
    Ok(containers.into_iter().find(is_it).map(|container| container.id.into()))
}

/// Made from the same definition as the same run, and not started.
fn is_as_wanted(found: &v1::Container, wanted: &v1::ContainerConfig) -> bool {
    let same = |name: &str| v1::value(&found.annotations, name) == wanted.annotations.get(name).map(String::as_str);
    found.state() == v1::ContainerState::ContainerCreated && same(labels::HASH) && same(labels::RESTART_COUNT)
}

async fn find_container(
    inner: &Inner,
    config: &ContainerConfig,
    attempt: u32,
) -> Result<Option<v1::Container>, RuntimeError> {
    let mut containers = inner.containers(Whose::Pod(&config.pod.uid().to_string())).await?;
    containers.retain(|container| {
        container.pod_sandbox_id == config.sandbox.as_str()
            && container.metadata.as_ref().is_some_and(|it| it.name == config.name.as_str() && it.attempt == attempt)
    });
    Ok(containers.pop())
}
