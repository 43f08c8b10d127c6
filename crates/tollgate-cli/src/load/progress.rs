//! A bar on standard error, if that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// How far a run is.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    pub(super) fn new(whole: Duration) -> Self {
        // It draws nothing where there is no terminal.
        let bar = ProgressBar::new(millis(whole));
        if let Ok(style) = ProgressStyle::with_template("{wide_bar} {msg}") {
            bar.set_style(style);
        }
        Self { bar }
    }

    pub(super) fn show(&self, passed: Duration, decided: u64) {
        self.bar.set_message(format!(
            "{:.1}s  {} decisions",
            passed.as_secs_f64(),
            super::text::thousands(decided)
        ));
        self.bar.set_position(millis(passed));
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
