//! The flags for images of a container runtime.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use podwright_actors::image_gc::{ImageGcPolicy, InvalidImageGcPolicy};

use super::time::whole_seconds;
use crate::adapters::cri::{ImageListEntry, VerificationPolicy};

/// How images are pulled and removed.
#[derive(Args, Debug)]
#[command(next_help_heading = super::CRI_ONLY)]
pub(crate) struct ImageArgs {
    /// The maximum number of images that the container runtime pulls at a time.
    #[arg(long, value_name = "COUNT", default_value = "5", value_parser = at_least_one)]
    pub(crate) max_parallel_image_pulls: NonZeroUsize,
    /// A file with registry credentials, as docker login writes it: a config.json or a .dockercfg. The agent reads it again
    /// when it changes.
    #[arg(long, value_name = "FILE")]
    pub(crate) registry_config: Option<PathBuf>,
    /// The configuration of credential provider plugins, which give the credentials of registries: a CredentialProviderConfig, or a
    /// directory of such files. Only root and the agent's user may be able to change it. The agent reads it at its start.
    #[arg(long, value_name = "FILE|DIR", requires = "image_credential_provider_bin_dir")]
    image_credential_provider_config: Option<PathBuf>,
    /// The directory of the credential provider plugins. Only root and the agent's user may be able to change it.
    #[arg(long, value_name = "DIR", requires = "image_credential_provider_config")]
    image_credential_provider_bin_dir: Option<PathBuf>,
    /// Remove unused images when the image disk is this full, in percent; 100 for never.
    #[arg(long, value_name = "PERCENT", default_value_t = 85)]
    image_gc_high_threshold: u8,
    /// Remove unused images until the image disk is this full, in percent, the least recently used ones first.
    #[arg(long, value_name = "PERCENT", default_value_t = 80)]
    image_gc_low_threshold: u8,
    /// Keep an unused image for at least this many seconds.
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = whole_seconds)]
    image_minimum_gc_age: Duration,
    /// Remove an image that was not used for this many seconds, even if the disk has free space; 0 for never.
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = whole_seconds)]
    image_maximum_gc_age: Duration,
    /// For which images on the node the agent verifies that a pod may use them: NeverVerify (none), NeverVerifyPreloadedImages
    /// (those that were pulled, and not those that were put on the node in another way), NeverVerifyAllowlistedImages (all but those of
    /// --preloaded-images-verification-allowlist) or AlwaysVerify (all). If no earlier pull with the same credentials shows that the pod
    /// may use the image, the image is pulled again.
    #[arg(long, value_name = "POLICY", value_enum, default_value_t, hide_possible_values = true)]
    image_pull_credentials_verification_policy: VerificationPolicyName,
    /// The images for which NeverVerifyAllowlistedImages verifies nothing: HOST/PATH, or HOST/PATH/* for all images below a path.
    #[arg(long, value_name = "IMAGE,...", value_delimiter = ',')]
    preloaded_images_verification_allowlist: Vec<ImageListEntry>,
}

/// The names of the policies in the kubelet's configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum VerificationPolicyName {
    #[value(name = "NeverVerify")]
    NeverVerify,
    #[default]
    #[value(name = "NeverVerifyPreloadedImages")]
    NeverVerifyPreloadedImages,
    #[value(name = "NeverVerifyAllowlistedImages")]
    NeverVerifyAllowlistedImages,
    #[value(name = "AlwaysVerify")]
    AlwaysVerify,
}

fn at_least_one(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| "not a number of pulls: write a whole number of at least 1".to_owned())
}

impl ImageArgs {
    /// The fields of `KubeletConfiguration`.
    pub(crate) fn configuration(&self) -> serde_json::Value {
        use podwright_model::texts::format::duration;
        serde_json::json!({
            "serializeImagePulls": self.max_parallel_image_pulls == NonZeroUsize::MIN,
            "maxParallelImagePulls": self.max_parallel_image_pulls,
            "imageGCHighThresholdPercent": self.image_gc_high_threshold,
            "imageGCLowThresholdPercent": self.image_gc_low_threshold,
            "imageMinimumGCAge": duration(self.image_minimum_gc_age),
            "imageMaximumGCAge": duration(self.image_maximum_gc_age),
            "imagePullCredentialsVerificationPolicy": self.verification_policy_name(),
            "preloadedImagesVerificationAllowlist": self.verification_allowlist(),
        })
    }

    /// The configuration and the directory of credential provider plugins.
    pub(crate) fn credential_providers(&self) -> Option<(PathBuf, PathBuf)> {
        self.image_credential_provider_config.clone().zip(self.image_credential_provider_bin_dir.clone())
    }

    fn verification_policy_name(&self) -> Option<String> {
        let value = self.image_pull_credentials_verification_policy.to_possible_value();
        value.map(|value| value.get_name().to_owned())
    }

    /// The entries of the list. `None` if it is empty.
    fn verification_allowlist(&self) -> Option<Vec<String>> {
        let entries = &self.preloaded_images_verification_allowlist;
        (!entries.is_empty()).then(|| entries.iter().map(ImageListEntry::to_string).collect())
    }

    /// For which images on the node a pod must have access.
    pub(crate) fn verification(&self) -> VerificationPolicy {
        let listed = self.preloaded_images_verification_allowlist.iter().cloned();
        match self.image_pull_credentials_verification_policy {
            VerificationPolicyName::NeverVerify => VerificationPolicy::Never,
            VerificationPolicyName::NeverVerifyPreloadedImages => VerificationPolicy::NeverPreloaded,
            VerificationPolicyName::NeverVerifyAllowlistedImages => VerificationPolicy::NeverListed(listed.collect()),
            VerificationPolicyName::AlwaysVerify => VerificationPolicy::Always,
        }
    }

    /// What is wrong with the flags together, with the remedy.
    pub(super) fn fault(&self) -> Option<String> {
        let has_list = !self.preloaded_images_verification_allowlist.is_empty();
        let uses_list = matches!(
            self.image_pull_credentials_verification_policy,
            VerificationPolicyName::NeverVerifyAllowlistedImages
        );
        (has_list && !uses_list).then(|| {
            "--preloaded-images-verification-allowlist has no effect with this policy: add \
             --image-pull-credentials-verification-policy NeverVerifyAllowlistedImages, or leave out the list"
                .to_owned()
        })
    }

    /// The policy of image garbage collection.
    ///
    /// # Errors
    /// [`InvalidImageGcPolicy`] if the flags contradict each other.
    pub(crate) fn gc_policy(&self) -> Result<ImageGcPolicy, InvalidImageGcPolicy> {
        let (high, low) = (self.image_gc_high_threshold, self.image_gc_low_threshold);
        ImageGcPolicy::new(high, low, self.image_minimum_gc_age, Some(self.image_maximum_gc_age))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        images: ImageArgs,
    }

    #[test]
    fn image_gc_defaults_are_the_kubelets() {
        let policy = |args: &[&str]| Flags::parse_from(["run"].iter().chain(args)).images.gc_policy();
        assert_eq!(policy(&[]), Ok(ImageGcPolicy::default()));
        assert!(policy(&["--image-gc-high-threshold=70"]).unwrap_err().to_string().contains("lower it"));
    }

    #[test]
    fn credential_providers_need_a_configuration_and_a_directory() {
        let images = |args: &[&str]| Flags::try_parse_from(["run"].iter().chain(args)).map(|flags| flags.images);
        let (config, directory) = ("--image-credential-provider-config=/c", "--image-credential-provider-bin-dir=/d");
        assert_eq!(images(&[]).unwrap().credential_providers(), None);
        assert_eq!(images(&[config, directory]).unwrap().credential_providers(), Some(("/c".into(), "/d".into())));
        for one in [config, directory] {
            assert!(images(&[one]).unwrap_err().to_string().contains("--image-credential-provider-"), "{one}");
        }
    }

    #[test]
    fn verification_policies_have_the_kubelets_names() {
        let images = |args: &[&str]| Flags::parse_from(["run"].iter().chain(args)).images;
        let of = |name: &str| images(&["--image-pull-credentials-verification-policy", name]);
        assert_eq!(images(&[]).verification(), VerificationPolicy::NeverPreloaded);
        assert_eq!(of("NeverVerify").verification(), VerificationPolicy::Never);
        assert_eq!(of("NeverVerifyPreloadedImages").verification(), VerificationPolicy::NeverPreloaded);
        assert_eq!(of("AlwaysVerify").verification(), VerificationPolicy::Always);
        assert_eq!(of("AlwaysVerify").configuration()["imagePullCredentialsVerificationPolicy"], "AlwaysVerify");

        let list = "--preloaded-images-verification-allowlist=r.example/a,q.example/*";
        let listed = images(&["--image-pull-credentials-verification-policy=NeverVerifyAllowlistedImages", list]);
        let entries = ["r.example/a", "q.example/*"];
        let expected = entries.iter().map(|entry| entry.parse::<ImageListEntry>().unwrap()).collect();
        assert_eq!(listed.verification(), VerificationPolicy::NeverListed(expected));
        assert_eq!(listed.configuration()["preloadedImagesVerificationAllowlist"], serde_json::json!(entries));
        assert_eq!(listed.fault(), None);
        assert!(images(&[list]).fault().unwrap().contains("leave out the list"));
    }
}
