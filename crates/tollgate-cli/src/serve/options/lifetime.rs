//! The options of `tollgate serve` about its life: when the policy is read again, and how it ends.

use std::time::Duration;

use clap::Args;
use tollgate_server::{Drain, Watch};

use super::{some_time, yes_or_no};
use crate::policy::duration;

/// When the policy is read again, and how the service ends.
#[derive(Args, Clone, Debug)]
pub struct Lifetime {
    /// Whether the policy is read again when its files change: on, or off. SIGHUP reads it in any case.
    #[arg(
        long,
        env = "TOLLGATE_WATCH",
        value_name = "ON|OFF",
        default_value = "on",
        value_parser = watch
    )]
    pub watch: Watch,
    /// After SIGTERM, how long clients are still taken while probes say that they should go elsewhere.
    #[arg(long, env = "TOLLGATE_DRAIN_DELAY", value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub drain_delay: Duration,
    /// After that, how long what was asked may take to be answered; what isn't is cut.
    #[arg(long, env = "TOLLGATE_DRAIN_TIME", value_name = "TIME", default_value = "10s", value_parser = some_time)]
    pub drain_time: Duration,
}

impl Lifetime {
    /// How it ends.
    pub(in crate::serve) const fn drain(&self) -> Drain {
        Drain {
            delay: self.drain_delay,
            time: self.drain_time,
        }
    }
}

fn watch(text: &str) -> Result<Watch, String> {
    match yes_or_no(text) {
        Ok(true) => Ok(Watch::On),
        Ok(false) => Ok(Watch::Off),
        Err(_) => Err("it should be on or off".to_owned()),
    }
}
