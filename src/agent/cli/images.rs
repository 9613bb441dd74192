//! The flags for images of a container runtime.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use crate::actors::image_gc::{BadPolicy, ImageGcPolicy};
use clap::Args;

use super::whole_seconds;

#[derive(Args, Debug)]
pub(crate) struct ImageArgs {
    /// How many images a container runtime pulls at once.
    #[arg(long, value_name = "COUNT", default_value = "5")]
    pub(crate) max_parallel_image_pulls: NonZeroUsize,
    /// Logins at registries, as docker login writes them: a config.json, or a .dockercfg. Read again when it changes.
    #[arg(long, value_name = "FILE")]
    pub(crate) registry_config: Option<PathBuf>,
    /// From how full a disk on images that nothing uses are removed; 100 for never.
    #[arg(long, value_name = "PERCENT", default_value_t = 85)]
    image_gc_high_threshold: u8,
    /// Down to how full a disk they are removed, least recently used first.
    #[arg(long, value_name = "PERCENT", default_value_t = 80)]
    image_gc_low_threshold: u8,
    /// How long an image stays at the least.
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = whole_seconds)]
    image_minimum_gc_age: Duration,
    /// After how long without use an image is removed however empty the disk is; 0 for never.
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = whole_seconds)]
    image_maximum_gc_age: Duration,
}

impl ImageArgs {
    /// When images are removed.
    ///
    /// # Errors
    /// [`BadPolicy`] if the flags contradict each other.
    pub(crate) fn gc_policy(&self) -> Result<ImageGcPolicy, BadPolicy> {
        let (high, low) = (self.image_gc_high_threshold, self.image_gc_low_threshold);
        ImageGcPolicy::new(high, low, self.image_minimum_gc_age, Some(self.image_maximum_gc_age))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn the_defaults_are_a_kubelets() {
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
