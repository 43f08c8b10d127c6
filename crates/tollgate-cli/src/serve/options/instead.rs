//! The options of `tollgate serve` that show or check something, and end.

use clap::Args;

/// What is done in place of serving. They are for the command line alone.
#[derive(Args, Clone, Debug)]
pub struct Instead {
    /// Check all that a start needs (policy, certificates, secrets, store, ports, state), and end.
    #[arg(long, conflicts_with_all = ["print_config", "print_policy"])]
    pub check: bool,
    /// Show what all settings are, and where each is from, and end.
    #[arg(long, conflicts_with = "print_policy")]
    pub print_config: bool,
    /// Show the policy that would be in force, with all that it includes, and end.
    #[arg(long)]
    pub print_policy: bool,
}
