//! The flags for images of a container runtime.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use podwright_actors::image_gc::{ImageGcPolicy, InvalidImageGcPolicy};

use super::time::whole_seconds;

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

    #[test]
    fn image_gc_defaults_are_the_kubelets() {
        #[derive(Parser)]
        struct Flags {
            #[command(flatten)]
            images: ImageArgs,
        }
        let policy = |args: &[&str]| Flags::parse_from(["run"].iter().chain(args)).images.gc_policy();
        assert_eq!(policy(&[]), Ok(ImageGcPolicy::default()));
        assert!(policy(&["--image-gc-high-threshold=70"]).unwrap_err().to_string().contains("lower it"));
    }
}
