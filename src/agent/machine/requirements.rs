//! What an operator requires of the machine before the agent starts.

use std::fmt;
use std::fs;

/// The kernel parameters of a node, and their values (upstream `setupKernelTunables`, kubelet 1.36).
const KERNEL_PARAMETERS: [(&str, &str); 6] = [
    ("vm.overcommit_memory", "1"),
    ("vm.panic_on_oom", "0"),
    ("kernel.panic", "10"),
    ("kernel.panic_on_oops", "1"),
    ("kernel.keys.root_maxkeys", "1000000"),
    ("kernel.keys.root_maxbytes", "25000000"),
];

/// The requirements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requirements {
    /// The kernel parameters have the values of a node.
    pub(crate) kernel_parameters: bool,
    /// Swap space is off.
    pub(crate) no_swap: bool,
}

impl Requirements {
    /// Checks the machine.
    ///
    /// # Errors
    /// [`UnfitMachine`] for the first requirement that it does not meet.
    pub(crate) fn check(self) -> Result<(), UnfitMachine> {
        let read = |parameter: &str| fs::read_to_string(format!("/proc/sys/{}", parameter.replace('.', "/"))).ok();
        let wrong = if self.kernel_parameters { wrong_parameters(read) } else { Vec::new() };
        if !wrong.is_empty() {
            return Err(UnfitMachine::KernelParameters(wrong));
        }
        // A kernel without swap space does not have the file.
        let swaps = if self.no_swap { fs::read_to_string("/proc/swaps").unwrap_or_default() } else { String::new() };
        let areas = swap_areas(&swaps);
        if areas.is_empty() { Ok(()) } else { Err(UnfitMachine::Swap(areas.join(", "))) }
    }
}

/// The machine does not meet a requirement.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnfitMachine {
    #[error(
        "the kernel parameters of this machine are not those of a node: set {} with sysctl, or leave out \
         --protect-kernel-defaults (protectKernelDefaults of the configuration)",
        list(.0)
    )]
    KernelParameters(Vec<WrongParameter>),
    #[error(
        "the machine has swap space on {0}: turn it off with `swapoff --all`, or permit it with --fail-swap-on=false (failSwapOn of the \
         configuration)"
    )]
    Swap(String),
}

fn list(parameters: &[WrongParameter]) -> String {
    parameters.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A kernel parameter with another value than a node needs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WrongParameter {
    name: &'static str,
    needed: &'static str,
    /// `None` if the kernel does not have the parameter.
    found: Option<String>,
}

impl fmt::Display for WrongParameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WrongParameter { name, needed, found } = self;
        match found {
            Some(found) => write!(f, "{name}={needed} (it is {found})"),
            None => write!(f, "{name}={needed} (it cannot be read)"),
        }
    }
}

/// The kernel parameters whose values differ. `read` returns the value of a parameter.
fn wrong_parameters(read: impl Fn(&str) -> Option<String>) -> Vec<WrongParameter> {
    let wrong = |(name, needed): (&'static str, &'static str)| {
        let found = read(name).map(|value| value.trim().to_owned());
        (found.as_deref() != Some(needed)).then_some(WrongParameter { name, needed, found })
    };
    KERNEL_PARAMETERS.into_iter().filter_map(wrong).collect()
}

/// The files and devices in a list of the kernel, whose first line is a head.
fn swap_areas(swaps: &str) -> Vec<&str> {
    swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_area_of_swap_space_is_named() {
        let head = "Filename\t\t\tType\t\tSize\tUsed\tPriority\n";
        assert!(swap_areas("").is_empty() && swap_areas(head).is_empty());
        let on = format!("{head}/dev/sda2   partition\t1048572\t0\t-2\n/swapfile   file\t1048572\t0\t-3\n");
        assert_eq!(swap_areas(&on), ["/dev/sda2", "/swapfile"]);
    }

    #[test]
    fn each_kernel_parameter_that_differs_is_named() {
        let kernel = |other: Option<&'static str>| {
            move |name: &str| match name {
                "kernel.panic" => other.map(|value| format!("{value}\n")),
                "vm.panic_on_oom" if other != Some("10") => Some("2\n".to_owned()),
                _ => KERNEL_PARAMETERS.iter().find(|(own, _)| *own == name).map(|(_, value)| format!("{value}\n")),
            }
        };
        assert_eq!(wrong_parameters(kernel(Some("10"))), []);
        for (value, text) in [
            (Some("0"), "set vm.panic_on_oom=0 (it is 2), kernel.panic=10 (it is 0) with sysctl"),
            (None, "kernel.panic=10 (it cannot be read) with sysctl, or leave out --protect-kernel-defaults"),
        ] {
            let error = UnfitMachine::KernelParameters(wrong_parameters(kernel(value))).to_string();
            assert!(error.contains(text), "{error}");
        }
        assert_eq!(Requirements::default().check(), Ok(()), "nothing is required without a flag");
    }
}
