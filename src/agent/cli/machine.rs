//! The flags for what the agent requires of its machine.

use clap::{ArgAction, Args};

use crate::agent::machine::Requirements;

/// What the agent requires of its machine before it starts.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Options for the machine")]
pub(crate) struct MachineArgs {
    /// Refuse to start if the kernel parameters of the machine are not those of a node: vm.overcommit_memory, vm.panic_on_oom,
    /// kernel.panic, kernel.panic_on_oops, kernel.keys.root_maxkeys and kernel.keys.root_maxbytes. The agent never changes them.
    #[arg(long)]
    protect_kernel_defaults: bool,
    /// Whether to refuse to start while swap space is on: true or false.
    #[arg(
        long,
        value_name = "BOOL",
        action = ArgAction::Set,
        default_value_t = false,
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true
    )]
    fail_swap_on: bool,
}

impl MachineArgs {
    /// What the flags require.
    pub(crate) fn requirements(&self) -> Requirements {
        Requirements { kernel_parameters: self.protect_kernel_defaults, no_swap: self.fail_swap_on }
    }

    /// The fields of `KubeletConfiguration`.
    pub(crate) fn configuration(&self) -> serde_json::Value {
        serde_json::json!({"protectKernelDefaults": self.protect_kernel_defaults, "failSwapOn": self.fail_swap_on})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::cli::{self, Command};

    fn requirements(flags: &[&str]) -> Requirements {
        match cli::parse(["podwright", "run"].iter().chain(flags)).map(|cli| cli.command) {
            Ok(Command::Run(args)) => args.machine.requirements(),
            _ => panic!("{flags:?} are not parsed"),
        }
    }

    #[test]
    fn nothing_is_required_of_the_machine_without_a_flag() {
        assert_eq!(requirements(&[]), Requirements::default());
        assert!(requirements(&["--protect-kernel-defaults"]).kernel_parameters);
        assert!(requirements(&["--fail-swap-on"]).no_swap && !requirements(&["--fail-swap-on=false"]).no_swap);
    }
}
