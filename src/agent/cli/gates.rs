//! Parses feature gates.

/// A feature gate: its name, and the field of the features that it sets.
type Gate<F> = (&'static str, fn(&mut F) -> &mut bool);

/// Parses `NAME=BOOL` with the name of one of the gates.
///
/// # Errors
/// The text of the error, with the known names.
pub(super) fn parse<F>(text: &str, gates: &[Gate<F>]) -> Result<(Gate<F>, bool), String> {
    let known = || gates.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let (name, state) =
        text.split_once('=').ok_or_else(|| format!("use NAME=true or NAME=false, with a NAME of {}", known()))?;
    let gate = gates.iter().find(|(known, _)| *known == name);
    let gate = *gate.ok_or_else(|| format!("this agent has no feature gate {name:?}, but {}", known()))?;
    let is_on = state.parse().map_err(|_| format!("the state {state:?} must be true or false"))?;
    Ok((gate, is_on))
}
