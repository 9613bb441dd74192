//! Texts of images. All are from `images/image_manager.go`; each names the function.

use std::time::Duration;

use super::format::{duration, quoted};

/// The event before a pull (`pullImage`).
pub fn pulling(image: &str) -> String {
    format!("Pulling image {}", quoted(image))
}

/// The event after a pull. `took` is without, `waited` with the wait for the pull's turn (`pullImage`). Durations are in whole
/// milliseconds.
pub fn pulled(image: &str, took: Duration, waited: Duration, size: u64) -> String {
    let millis = |time: Duration| duration(Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)));
    format!(
        "Successfully pulled image {} in {} ({} including waiting). Image size: {size} bytes.",
        quoted(image),
        millis(took),
        millis(waited)
    )
}

/// The event of an image that needs no pull (`EnsureImageExists`).
pub fn present(image: &str) -> String {
    format!("Container image {} already present on machine and can be accessed by the pod", quoted(image))
}

/// The event of a failed pull (`pullImage`).
pub fn pull_failed(image: &str, error: &str) -> String {
    format!("Failed to pull image {}: {error}", quoted(image))
}

/// The event of an image in pull backoff (`pullImage`).
pub fn backoff_event(image: &str) -> String {
    format!("Back-off pulling image {}", quoted(image))
}

/// The waiting message of an image in pull backoff, with the reason and the message of the last pull (`pullImage`).
pub fn backoff(image: &str, reason: &str, message: &str) -> String {
    format!("Back-off pulling image {}: {reason}: {message}", quoted(image))
}

/// The event and waiting message of an image that is absent and may not be pulled (`imageNotPresentOnNeverPolicyError`).
pub fn never_pull(image: &str) -> String {
    format!("Container image {} is not present with pull policy of Never", quoted(image))
}

/// The event and waiting message of an image that cannot be looked up. The kubelet prints an empty image name
/// (`imagePullPrecheck`).
pub fn inspect_failed(error: &str) -> String {
    format!("Failed to inspect image \"\": {error}")
}

/// The event and waiting message of an image name that cannot be parsed (`EnsureImageExists`; `pkg/util/parsers`,
/// `ParseImageName`).
pub fn invalid_name(image: &str) -> String {
    let (image, why) = (quoted(image), unparsable(image));
    format!("Failed to apply default image tag {image}: couldn't parse image name {image}: {why}")
}

/// Why an image name cannot be parsed (`github.com/distribution/reference`, `ParseNormalizedNamed`).
fn unparsable(image: &str) -> String {
    if image.len() == 64 && image.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return format!("invalid repository name ({image}), cannot specify 64-byte hexadecimal strings");
    }
    let is_host = |host: &str| host.contains(['.', ':']) || host == "localhost" || host.to_lowercase() != host;
    let rest = match image.split_once('/') {
        Some((host, rest)) if is_host(host) => rest.to_owned(),
        Some(_) => image.to_owned(),
        None => format!("library/{image}"),
    };
    let repository = rest.split(':').next().unwrap_or_default();
    if repository.to_lowercase() == repository {
        "invalid reference format".to_owned()
    } else {
        format!("invalid reference format: repository name ({repository}) must be lowercase")
    }
}

/// The start of the error text of a runtime whose registry does not answer (`cri-api/pkg/errors`).
pub const REGISTRY_UNAVAILABLE: &str = "RegistryUnavailable";
/// The start of the error text of a runtime that refuses an image's signature (`cri-api/pkg/errors`).
pub const SIGNATURE_VALIDATION_FAILED: &str = "SignatureValidationFailed";

/// The waiting message of a registry that does not answer. `rest` follows [`REGISTRY_UNAVAILABLE`] in the runtime's error
/// (`evalCRIPullErr`).
pub fn registry_unavailable(image: &str, rest: &str) -> String {
    format!("image pull failed for {image} because the registry is unavailable{rest}")
}

/// The waiting message of a signature that the runtime refuses. `rest` follows [`SIGNATURE_VALIDATION_FAILED`] in the runtime's
/// error (`evalCRIPullErr`).
pub fn signature_validation_failed(image: &str, rest: &str) -> String {
    format!("image pull failed for {image} because the signature validation failed{rest}")
}

/// The event of pull secrets that cannot be read (`kubelet_pods.go`, `getPullSecretsForPod`).
pub fn no_secrets(names: &[String]) -> String {
    let names = names.join(", ");
    format!("Unable to retrieve some image pull secrets ({names}); attempting to pull the image may not succeed.")
}

/// The event of an image disk whose capacity is zero (`images/image_gc_manager.go`, `GarbageCollect`).
pub const NO_CAPACITY: &str = "invalid capacity 0 on image filesystem";

/// The event of an image disk on which too little space could be freed. `used` is in percent; `capacity` and `freed` are in
/// bytes (`images/image_gc_manager.go`, `GarbageCollect`).
pub fn not_enough_freed(used: u8, capacity: u64, freed: u64) -> String {
    format!(
        "Insufficient free disk space on the node's image filesystem ({used}% of {} used). Failed to free sufficient space by \
         deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used by active images, logs, \
         volumes, or other data.",
        size(capacity)
    )
}

/// A number of bytes with one decimal, in the largest unit up to TiB (`formatSize`).
fn size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let power = (bytes.ilog2() / 10).clamp(1, 4);
    format!("{:.1} {}", bytes as f64 / (1_u64 << (10 * power)) as f64, units[power as usize - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_an_image_name_says_what_is_wrong() {
        let hex = "0123456789abcdef".repeat(4);
        for (image, why) in [
            ("A", "invalid reference format: repository name (library/A) must be lowercase"),
            ("example.com/App:1", "invalid reference format: repository name (App) must be lowercase"),
            ("a b", "invalid reference format"),
            ("", "invalid reference format"),
            ("a:B C", "invalid reference format"),
            (&hex, &*format!("invalid repository name ({hex}), cannot specify 64-byte hexadecimal strings")),
        ] {
            assert_eq!(unparsable(image), why, "{image}");
        }
    }

    #[test]
    fn sizes_have_one_decimal() {
        let gib = 1_u64 << 30;
        for (bytes, text) in
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (10 * gib, "10.0 GiB"), (gib << 12, "4.0 TiB")]
        {
            assert_eq!(size(bytes), text);
        }
    }
}
