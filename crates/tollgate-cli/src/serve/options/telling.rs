//! The options of `tollgate serve` about what it tells of itself: metrics, and its log.

use std::io;

use clap::Args;
use tollgate_server::{Address, DenialLog, Level, Log, LogForm, Settings, ShadowAnswers, Share};

use super::at_least_one;

/// Metrics and logs.
#[derive(Args, Clone, Debug)]
pub struct Telling {
    /// Where Prometheus is answered (/metrics), and probes, as for --http; --admin answers it too.
    #[arg(
        long,
        env = "TOLLGATE_METRICS",
        value_name = "ADDR",
        default_value = "off"
    )]
    pub metrics: Address,
    /// How many limiters metrics show by name; the others are counted together.
    #[arg(
        long,
        env = "TOLLGATE_METRICS_LIMITERS",
        value_name = "N",
        default_value = "1000",
        value_parser = at_least_one::<usize>
    )]
    pub metrics_limiters: usize,
    /// How lines of the log are written: text, or json.
    #[arg(
        long,
        env = "TOLLGATE_LOG_FORMAT",
        value_name = "FORM",
        default_value = "text"
    )]
    pub log_format: LogForm,
    /// What is written to the log, from this on: error, warning, info or debug.
    #[arg(
        long,
        env = "TOLLGATE_LOG_LEVEL",
        value_name = "LEVEL",
        default_value = "info"
    )]
    pub log_level: Level,
    /// How many of the refusals are in the log, as 1%; 0 for none.
    #[arg(
        long,
        env = "TOLLGATE_LOG_DENIALS",
        value_name = "SHARE",
        default_value = "1%"
    )]
    pub log_denials: Share,
    /// But no more of them in any second.
    #[arg(
        long,
        env = "TOLLGATE_LOG_DENIALS_PER_SECOND",
        value_name = "N",
        default_value = "10",
        value_parser = at_least_one::<u32>
    )]
    pub log_denials_per_second: u32,
    /// Name the rules in shadow that would have refused in answers of /v1/check and /v1/peek, by the field "shadow".
    #[arg(long, env = "TOLLGATE_SHOW_SHADOW")]
    pub show_shadow: bool,
}

impl Telling {
    /// The log, on standard error.
    pub(in crate::serve) fn log(&self) -> io::Result<Log> {
        let log = Log::queued(io::stderr(), self.log_format)?;
        log.set_level(self.log_level);
        Ok(log)
    }

    /// Adds it to what the service is told.
    pub(in crate::serve) fn put_into(&self, settings: &mut Settings) {
        settings.metrics = self.metrics.clone();
        settings.limiters = self.metrics_limiters;
        settings.log_denials = DenialLog {
            share: self.log_denials,
            most_a_second: self.log_denials_per_second,
        };
        settings.shadow_answers = if self.show_shadow {
            ShadowAnswers::Shown
        } else {
            ShadowAnswers::Hidden
        };
    }
}
