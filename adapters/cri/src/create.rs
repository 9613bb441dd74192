//! Creates sandboxes and containers, and creates none of them twice.
//!
//! If the answer to a create call is lost, the runtime may have created the object, or may still do so. A second call with the
//! same name then fails, and keeps failing, because the name is taken. So after a lost answer the adapter looks for an object of
//! that name. It keeps the object if it matches the request, and removes it otherwise. If the runtime lists no such object
//! although the name is taken, the next attempt uses another name.

use std::sync::Arc;

use podwright_model::ids::{ContainerId, SandboxId};
use podwright_model::pod::PodObject;
use podwright_model::text::error_chain;
use podwright_model::texts::pods as texts;
use podwright_ports::{ContainerConfig, PodEvent, RuntimeError, SandboxConfig};

use super::client::is_name_taken;
use super::config::{
    CdiFields, CdiSupport, ContainerLookups, DnsWarning, NodeFacts, container_config, dns_warnings, labels,
    sandbox_config, target_name,
};
use super::inner::CriRuntimeInner;
use super::inspect::PodFilter;
use super::tasks::blocking;
use super::{files, read, v1};

/// How many names one creation tries.
const MAX_NAMES: u32 = 4;

/// A container that was created or found.
#[derive(Clone, Debug)]
pub(super) struct CreatedContainer {
    pub(super) id: ContainerId,
    /// The hash of its definition.
    pub(super) spec_hash: u64,
}

/// The configuration of a pod's first sandbox.
pub(super) async fn first_sandbox_config(
    inner: &Arc<CriRuntimeInner>,
    pod: &Arc<PodObject>,
) -> Result<v1::PodSandboxConfig, RuntimeError> {
    let facts = inner.facts.current().await?;
    let assignments = inner.assignments(&facts, pod).await?;
    Ok(sandbox_config(&facts, &assignments, pod, 0)?)
}

/// Creates a sandbox, or finds the one that an earlier call created.
pub(super) async fn sandbox(inner: Arc<CriRuntimeInner>, config: SandboxConfig) -> Result<SandboxId, RuntimeError> {
    let pod = config.pod;
    let (facts, pod_of_logs) = (inner.facts.current().await?, Arc::clone(&pod));
    let layout = facts.layout.clone();
    blocking(move || files::make_log_dir(&layout, &pod_of_logs)).await?;
    let assignments = inner.assignments(&facts, &pod).await?;
    let mut attempt = config.attempt;
    for _ in 0..MAX_NAMES {
        let request = v1::RunPodSandboxRequest {
            config: Some(sandbox_config(&facts, &assignments, &pod, attempt)?),
            runtime_handler: assignments.handler.clone(),
        };
        let error = match inner.client.run_pod_sandbox(request).await {
            Ok(answer) => {
                record_warnings(&inner, &facts, &pod);
                return Ok(answer.pod_sandbox_id.into());
            }
            Err(error) if !may_have_created(&error) => return Err(error),
            Err(error) => error,
        };
        tracing::warn!(pod.uid = %pod.uid(), attempt, error = %error_chain(&error), "looking for a sandbox that may have been created");
        match find_sandbox(&inner, &pod, attempt).await {
            Ok(Some((id, true))) => return Ok(id),
            Ok(Some((id, false))) => inner.remove_sandbox(&id).await?,
            Ok(None) => {}
            // The engine retries the creation, which looks for the sandbox again.
            Err(_) => return Err(error),
        }
        if !is_name_taken(&error) {
            return Err(error);
        }
        attempt += 1;
    }
    Err(RuntimeError::failed(format!(
        "the runtime says that the names of sandboxes {} to {} of pod {} are taken, and lists none of them: see the log of \
         the container runtime",
        config.attempt,
        attempt - 1,
        pod.full_name()
    )))
}

/// Records events for the DNS settings that the pod requests and does not get. Called once a sandbox is created, so that a
/// failing creation does not repeat the events.
fn record_warnings(inner: &CriRuntimeInner, facts: &NodeFacts, pod: &Arc<PodObject>) {
    for warning in dns_warnings(facts, pod) {
        let event = match warning {
            DnsWarning::NoClusterDns => {
                let reason = "MissingClusterDNS";
                inner.events.record_of_node(PodEvent::warning(reason, texts::NO_CLUSTER_DNS));
                PodEvent::warning(reason, texts::no_cluster_dns_of(pod))
            }
            DnsWarning::Servers(used) => PodEvent::warning("DNSConfigForming", texts::nameserver_limits(&used)),
            DnsWarning::Searches(used) => PodEvent::warning("DNSConfigForming", texts::search_limits(&used)),
        };
        inner.events.record(pod, event);
    }
}

/// The sandbox of one attempt, and whether it is ready.
async fn find_sandbox(
    inner: &CriRuntimeInner,
    pod: &PodObject,
    attempt: u32,
) -> Result<Option<(SandboxId, bool)>, RuntimeError> {
    let of_attempt = |sandbox: &v1::PodSandbox| sandbox.metadata.as_ref().is_some_and(|it| it.attempt == attempt);
    let found = inner.sandboxes(PodFilter::OfPod(&pod.uid().to_string())).await?.into_iter().find(of_attempt);
    Ok(found.map(|sandbox| {
        let ready = sandbox.state() == v1::PodSandboxState::SandboxReady;
        (sandbox.id.into(), ready)
    }))
}

/// Creates a container, or finds the one that an earlier call created.
pub(super) async fn container(
    inner: Arc<CriRuntimeInner>,
    config: ContainerConfig,
) -> Result<CreatedContainer, RuntimeError> {
    let sandbox_id = config.sandbox.as_str().to_owned();
    let request = v1::PodSandboxStatusRequest { pod_sandbox_id: sandbox_id.clone(), verbose: false };
    let sandbox = inner.client.pod_sandbox_status(request).await?.status;
    let sandbox = sandbox.ok_or_else(|| RuntimeError::NotFound(format!("sandbox {sandbox_id}")))?;
    let sandbox = read::sandbox(&sandbox);
    let facts = inner.facts.current().await?;

    let config = Arc::new(config);
    let lookups = lookups(&inner, &config).await?;
    let assignments = inner.assignments(&facts, &config.pod).await?;
    let mut requested = container_config(&facts, &assignments, &config, &lookups)?;
    if facts.cdi == CdiSupport::Agent && !config.cdi_devices.is_empty() {
        let (specs, devices) = (inner.cdi.clone(), config.cdi_devices.clone());
        let fields = blocking(move || CdiFields::resolve(&specs, &devices).map_err(RuntimeError::from)).await?;
        fields.apply(&assignments, &mut requested);
    }
    let sandbox_config = sandbox_config(&facts, &assignments, &config.pod, sandbox.attempt)?;
    let (facts_of_files, config_of_files, ips) = (Arc::clone(&facts), Arc::clone(&config), sandbox.ips);
    blocking(move || files::prepare(&facts_of_files, &config_of_files, &ips)).await?;
    let id = create_or_find(&inner, &config, requested, sandbox_config).await?;
    let (layout, config_of_link, id_of_link) = (facts.layout.clone(), Arc::clone(&config), id.clone());
    blocking(move || {
        files::link_log(&layout, &config_of_link, &id_of_link);
        Ok(())
    })
    .await?;
    Ok(CreatedContainer { id: id.into(), spec_hash: config.spec_hash })
}

/// Creates a container, or finds the one that an earlier call created. Returns its ID.
async fn create_or_find(
    inner: &CriRuntimeInner,
    config: &ContainerConfig,
    mut requested: v1::ContainerConfig,
    sandbox_config: v1::PodSandboxConfig,
) -> Result<String, RuntimeError> {
    for name in 0..MAX_NAMES {
        let attempt = config.restart_count + name;
        requested.metadata.get_or_insert_default().attempt = attempt;
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: config.sandbox.as_str().to_owned(),
            config: Some(requested.clone()),
            sandbox_config: Some(sandbox_config.clone()),
        };
        let error = match inner.client.create_container(request).await {
            Ok(answer) => return Ok(answer.container_id),
            Err(error) if !may_have_created(&error) => return Err(error),
            Err(error) => error,
        };
        let (uid, container) = (config.pod.uid(), &config.name);
        tracing::warn!(pod.uid = %uid, %container, attempt, error = %error_chain(&error), "looking for a container that may have been created");
        match find_container(inner, config, attempt).await {
            Ok(Some(found)) if is_as_requested(&found, &requested) => return Ok(found.id),
            Ok(Some(found)) => inner.remove_container(found.id).await?,
            Ok(None) => {}
            Err(_) => return Err(error),
        }
        if !is_name_taken(&error) {
            return Err(error);
        }
    }
    Err(RuntimeError::failed(format!(
        "the runtime says that {MAX_NAMES} names of container {} are taken, and lists none of these containers: see the log \
         of the container runtime",
        config.name
    )))
}

/// Whether the runtime may have created the object although the call failed: the answer was lost, or the name is taken.
fn may_have_created(error: &RuntimeError) -> bool {
    error.is_open() || is_name_taken(error)
}

/// Looks up the user of the image, and the target container if one is named.
async fn lookups(inner: &CriRuntimeInner, config: &ContainerConfig) -> Result<ContainerLookups, RuntimeError> {
    let user = inner.image_user(&config.image_id).await?;
    let target = match target_name(config) {
        Some(name) => running_container(inner, config, name).await?,
        None => None,
    };
    Ok(ContainerLookups { user, target })
}

/// The running container of this name in the same sandbox.
async fn running_container(
    inner: &CriRuntimeInner,
    config: &ContainerConfig,
    name: &str,
) -> Result<Option<ContainerId>, RuntimeError> {
    let containers = inner.containers(PodFilter::OfPod(&config.pod.uid().to_string())).await?;
    let is_it = |container: &v1::Container| {
        container.pod_sandbox_id == config.sandbox.as_str()
            && container.state() == v1::ContainerState::ContainerRunning
            && container.metadata.as_ref().is_some_and(|metadata| metadata.name == name)
    };
    Ok(containers.into_iter().find(is_it).map(|container| container.id.into()))
}

/// Whether a container was created from the requested definition for the requested run, and was not started.
fn is_as_requested(found: &v1::Container, requested: &v1::ContainerConfig) -> bool {
    let same = |name: &str| v1::value(&found.annotations, name) == requested.annotations.get(name).map(String::as_str);
    found.state() == v1::ContainerState::ContainerCreated && same(labels::HASH) && same(labels::RESTART_COUNT)
}

async fn find_container(
    inner: &CriRuntimeInner,
    config: &ContainerConfig,
    attempt: u32,
) -> Result<Option<v1::Container>, RuntimeError> {
    let mut containers = inner.containers(PodFilter::OfPod(&config.pod.uid().to_string())).await?;
    containers.retain(|container| {
        container.pod_sandbox_id == config.sandbox.as_str()
            && container.metadata.as_ref().is_some_and(|it| it.name == config.name.as_str() && it.attempt == attempt)
    });
    Ok(containers.pop())
}
