//! The flag values that turn optional behaviour on or off.

use std::str::FromStr;

/// The name of a feature gate, and the field of the features that the gate sets.
pub(super) type Gate<F> = (&'static str, fn(&mut F) -> &mut bool);

/// Features that a command has gates for. The default is the state of each feature without a flag.
pub(super) trait Gated: Copy + Default + 'static {
    /// The feature gates (upstream `pkg/features`, Kubernetes 1.36).
    const GATES: &'static [Gate<Self>];
    /// The command that has the gates, for error texts.
    const COMMAND: &'static str;
}

/// A gate and its state.
#[derive(Clone, Copy, Debug)]
pub(super) struct FeatureGate<F> {
    gate: Gate<F>,
    is_on: bool,
}

impl<F: Gated> FeatureGate<F> {
    /// The features with the states of `gates`. The last state of a gate counts.
    pub(super) fn features(gates: &[Self]) -> F {
        let mut features = F::default();
        for FeatureGate { gate: (_, field), is_on } in gates {
            *field(&mut features) = *is_on;
        }
        features
    }
}

impl<F: Gated> FromStr for FeatureGate<F> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = || F::GATES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let (name, state) =
            text.split_once('=').ok_or_else(|| format!("use NAME=true or NAME=false, with a NAME of {}", known()))?;
        let gate = F::GATES.iter().find(|(known, _)| *known == name);
        let gate =
            *gate.ok_or_else(|| format!("{name:?} is no feature gate of {}; known gates: {}", F::COMMAND, known()))?;
        let is_on = state.parse().map_err(|_| format!("the state {state:?} must be true or false"))?;
        Ok(FeatureGate { gate, is_on })
    }
}
