//! Texts of API objects that pods refer to.

use super::format::quoted;

/// An object that does not exist. `resource` is its resource in the singular (`apimachinery/pkg/api/errors/errors.go`,
/// `NewNotFound`).
pub fn not_found(resource: &str, name: &str) -> String {
    format!("{resource} {} not found", quoted(name))
}

/// The API server has not sent the object yet (`util/manager/watch_based_manager.go`, `Get`).
pub fn not_synced(resource: &str) -> String {
    format!("failed to sync {resource} cache: timed out waiting for the condition")
}

/// A volume has an item for a key that its secret does not have (`pkg/volume/secret/secret.go`, `MakePayload`).
pub fn no_secret_key(key: &str) -> String {
    format!("references non-existent secret key: {key}")
}

/// A volume has an item for a key that its config map does not have (`pkg/volume/configmap/configmap.go`, `MakePayload`).
pub fn no_config_map_key(key: &str) -> String {
    format!("configmap references non-existent config key: {key}")
}

/// A variable names a key that its object does not have. `kind` is `ConfigMap` or `Secret` (`kubelet_pods.go`,
/// `makeEnvironmentVariables`).
pub fn no_key(key: &str, kind: &str, namespace: &str, name: &str) -> String {
    format!("couldn't find key {key} in {kind} {namespace}/{name}")
}

/// A token cannot be requested (`token/token_manager.go`, `GetServiceAccountToken`).
pub fn no_token(error: &str) -> String {
    format!("failed to fetch token: {error}")
}

/// The services are not known yet (`kubelet_pods.go`, `getServiceEnvVarMap`).
pub const NO_SERVICES: &str = "services have not yet been read at least once, cannot construct envvars";
