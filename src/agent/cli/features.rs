//! The flag that turns optional behaviour on or off, with the names of the kubelet's feature gates.

use clap::Args;

use super::gates::{FeatureGate, Gate, Gated};
use podwright_actors::claims::ClaimFeatures;

impl Gated for ClaimFeatures {
    const GATES: &'static [Gate<Self>] = &[
        ("DRAExtendedResource", |features| &mut features.extended_resources),
        ("DRAWorkloadResourceClaims", |features| &mut features.pod_groups),
        ("ResourceHealthStatus", |features| &mut features.health),
        ("ResourceHealthStatusMessage", |features| &mut features.health_message),
    ];
    const COMMAND: &'static str = "this agent";
}

/// Optional behaviour.
#[derive(Args, Debug)]
pub(crate) struct FeatureArgs {
    /// Turn optional behaviour on or off. The names are those of the kubelet's feature gates: DRAExtendedResource (true),
    /// DRAWorkloadResourceClaims (false), ResourceHealthStatus (true) and ResourceHealthStatusMessage (true). If a name appears
    /// twice, the last value applies.
    #[arg(long, value_name = "NAME=BOOL,...", value_delimiter = ',')]
    feature_gates: Vec<FeatureGate<ClaimFeatures>>,
}

impl From<&FeatureArgs> for ClaimFeatures {
    fn from(args: &FeatureArgs) -> Self {
        FeatureGate::features(&args.feature_gates)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Command, parse};
    use super::*;

    fn features(flags: &[&str]) -> Result<ClaimFeatures, String> {
        let cli = parse(["podwright", "run"].iter().chain(flags)).map_err(|error| error.to_string())?;
        let Command::Run(run) = cli.command else { panic!("the command is run") };
        Ok((&run.features).into())
    }

    #[test]
    fn feature_gates_have_the_names_of_the_kubelet() {
        assert_eq!(features(&[]), Ok(ClaimFeatures::default()));
        let found = features(&[
            "--feature-gates=DRAExtendedResource=false,DRAWorkloadResourceClaims=true",
            "--feature-gates=ResourceHealthStatusMessage=false",
        ]);
        let mut expected = ClaimFeatures::default();
        (expected.extended_resources, expected.pod_groups, expected.health_message) = (false, true, false);
        assert_eq!(found, Ok(expected));
        for (flag, part) in [
            (
                "--feature-gates=ResourceHealth=true",
                "\"ResourceHealth\" is no feature gate of this agent; known gates: DRAExtendedResource, ",
            ),
            ("--feature-gates=ResourceHealthStatus", "use NAME=true or NAME=false"),
            ("--feature-gates=ResourceHealthStatus=yes", "must be true or false"),
        ] {
            let error = features(&[flag]).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
