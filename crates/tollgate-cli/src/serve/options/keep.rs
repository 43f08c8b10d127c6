//! The options of `tollgate serve` about state that outlives the process.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tollgate_server::StateOptions;

use super::some_time;

/// Where state is kept, in memory.
#[derive(Args, Clone, Debug)]
pub struct Keep {
    /// In memory, a folder that keeps what was counted across restarts: each process needs one of its own.
    #[arg(long, env = "TOLLGATE_STATE", value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// How often --state is saved: so much is lost at most if the process is killed.
    #[arg(long, env = "TOLLGATE_STATE_EVERY", value_name = "TIME", default_value = "5s", value_parser = some_time)]
    pub state_every: Duration,
}

impl Keep {
    /// What was asked for makes sense on a store; else what doesn't.
    pub(in crate::serve) fn check_on_store(&self) -> Result<(), String> {
        match &self.state {
            None => Ok(()),
            Some(folder) => Err(format!(
                "--state {} is for --backend memory: a store keeps what is counted there by itself",
                folder.display()
            )),
        }
    }

    /// What the service is told, if state is kept.
    pub(in crate::serve) fn options(&self) -> Option<StateOptions> {
        let folder = self.state.as_ref()?;
        Some(StateOptions {
            every: self.state_every,
            ..StateOptions::in_folder(folder)
        })
    }
}
