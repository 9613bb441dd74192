//! The defaults of `core/v1` that an API server applies (`pkg/apis/core/v1/defaults.go`, 1.36).

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, DownwardAPIVolumeFile, EnvVar, EphemeralContainer, HTTPGetAction, LifecycleHandler,
    ObjectFieldSelector, Pod, Probe, ResourceRequirements, Volume,
};

/// Applies the API server's defaults to unset fields. Idempotent.
pub fn apply_api_defaults(pod: &mut Pod) {
    let Some(spec) = pod.spec.as_mut() else { return };
    text(&mut spec.restart_policy, "Always");
    text(&mut spec.dns_policy, "ClusterFirst");
    text(&mut spec.scheduler_name, "default-scheduler");
    let grace = spec.termination_grace_period_seconds.get_or_insert(30);
    // An API server stores a negative grace period as one second (upstream `normalizeTerminationGracePeriod`, 1.36).
    if *grace < 0 {
        *grace = 1;
    }
    spec.enable_service_links.get_or_insert(true);
    spec.security_context.get_or_insert_default();
    // Both names of the field carry the same value.
    if spec.service_account_name.is_none() {
        spec.service_account_name = spec.service_account.clone();
    }
    let host_network = spec.host_network.unwrap_or(false);

    for each in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        container(each, host_network);
    }
    for each in spec.ephemeral_containers.iter_mut().flatten() {
        ephemeral(each);
    }
    spec.volumes.iter_mut().flatten().for_each(volume);
}

fn text(field: &mut Option<String>, default: &str) {
    if field.as_deref().is_none_or(str::is_empty) {
        *field = Some(default.to_owned());
    }
}

fn container(container: &mut Container, host_network: bool) {
    text(&mut container.termination_message_path, "/dev/termination-log");
    text(&mut container.termination_message_policy, "File");
    text(&mut container.image_pull_policy, pull_policy(container.image.as_deref().unwrap_or_default()));
    container.env.iter_mut().flatten().for_each(env);
    for port in container.ports.iter_mut().flatten() {
        port_defaults(port, host_network);
    }
    for each in [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe] {
        each.iter_mut().for_each(probe);
    }
    if let Some(lifecycle) = &mut container.lifecycle {
        lifecycle.post_start.iter_mut().chain(&mut lifecycle.pre_stop).for_each(handler);
    }
    container.resources.iter_mut().for_each(requests_from_limits);
}

fn ephemeral(container: &mut EphemeralContainer) {
    text(&mut container.termination_message_path, "/dev/termination-log");
    text(&mut container.termination_message_policy, "File");
    text(&mut container.image_pull_policy, pull_policy(container.image.as_deref().unwrap_or_default()));
    container.env.iter_mut().flatten().for_each(env);
}

/// `Always` for the tag `latest`, explicit or implied.
fn pull_policy(image: &str) -> &'static str {
    let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    // A colon before the last slash belongs to a registry's port.
    let tag = name.rsplit('/').next().and_then(|last| last.split_once(':')).map(|(_, tag)| tag);
    match (tag, digest) {
        (Some("latest"), _) | (None, None) => "Always",
        _ => "IfNotPresent",
    }
}

fn env(env: &mut EnvVar) {
    if let Some(field) = env.value_from.as_mut().and_then(|from| from.field_ref.as_mut()) {
        field_ref(field);
    }
}

fn field_ref(field: &mut ObjectFieldSelector) {
    text(&mut field.api_version, "v1");
}

fn port_defaults(port: &mut ContainerPort, host_network: bool) {
    text(&mut port.protocol, "TCP");
    if host_network && port.host_port.unwrap_or(0) == 0 {
        port.host_port = Some(port.container_port);
    }
}

fn probe(probe: &mut Probe) {
    for (field, default) in [
        (&mut probe.timeout_seconds, 1),
        (&mut probe.period_seconds, 10),
        (&mut probe.success_threshold, 1),
        (&mut probe.failure_threshold, 3),
    ] {
        // In this field, zero means unset.
        if field.unwrap_or(0) == 0 {
            *field = Some(default);
        }
    }
    probe.http_get.iter_mut().for_each(http_get);
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn handler(handler: &mut LifecycleHandler) {
    handler.http_get.iter_mut().for_each(http_get);
}

fn http_get(action: &mut HTTPGetAction) {
    text(&mut action.path, "/");
    text(&mut action.scheme, "HTTP");
}

fn requests_from_limits(resources: &mut ResourceRequirements) {
    for (name, limit) in resources.limits.iter().flatten() {
        resources.requests.get_or_insert_default().entry(name.clone()).or_insert_with(|| limit.clone());
    }
}

fn volume(volume: &mut Volume) {
    // A volume that names no source is an emptyDir. Compared as a whole, because there are thirty sources.
    if *volume == (Volume { name: volume.name.clone(), ..Volume::default() }) {
        volume.empty_dir = Some(Default::default());
    }
    const MODE: i32 = 0o644;
    if let Some(host_path) = &mut volume.host_path {
        host_path.type_.get_or_insert_default();
    }
    if let Some(source) = &mut volume.downward_api {
        source.default_mode.get_or_insert(MODE);
        source.items.iter_mut().flatten().for_each(downward_item);
    }
    if let Some(source) = &mut volume.secret {
        source.default_mode.get_or_insert(MODE);
    }
    if let Some(source) = &mut volume.config_map {
        source.default_mode.get_or_insert(MODE);
    }
    if let Some(source) = &mut volume.projected {
        source.default_mode.get_or_insert(MODE);
        for part in source.sources.iter_mut().flatten() {
            if let Some(downward) = &mut part.downward_api {
                downward.items.iter_mut().flatten().for_each(downward_item);
            }
            if let Some(token) = &mut part.service_account_token {
                token.expiration_seconds.get_or_insert(3600);
            }
        }
    }
}

fn downward_item(item: &mut DownwardAPIVolumeFile) {
    item.field_ref.iter_mut().for_each(field_ref);
}
