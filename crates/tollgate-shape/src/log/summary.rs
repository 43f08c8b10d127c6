//! One line for what was suppressed, a while after it began.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tollgate::clock::sleep_until;
use tollgate::{Clock, Timestamp};
use tracing::dispatcher::WeakDispatch;
use tracing::{Level, Metadata, debug, error, info, trace, warn};

use super::Shared;
use crate::place;

/// What summaries are logged under, so that they can be told apart and aren't suppressed.
const TARGET: &str = "tollgate::suppressed";

/// When summaries are written.
#[derive(Debug)]
pub(super) struct Summaries {
    every: Duration,
    /// Whether one is on its way.
    is_due: AtomicBool,
}

impl Summaries {
    pub(super) const fn new(every: Duration) -> Self {
        Self {
            every,
            is_due: AtomicBool::new(false),
        }
    }
}

#[inline]
pub(super) fn is_summary(metadata: &Metadata<'_>) -> bool {
    let target = metadata.target();
    // Mostly it is told by its length alone.
    target.len() == TARGET.len() && target == TARGET
}

impl<C: Clock + Clone + 'static> Shared<C> {
    /// Something is suppressed: a summary is written in a while, if none is on its way.
    #[cold]
    pub(super) fn begin_summary(shared: &Arc<Self>) {
        if shared.summaries.is_due.swap(true, Ordering::AcqRel) {
            return;
        }
        let (clock, every) = (shared.clock.clone(), shared.summaries.every);
        let began = clock.now();
        let due = Due {
            shared: Arc::downgrade(shared),
            began,
        };
        let sleep = sleep_until(clock.clone(), began + every);
        place::run(&clock, async move {
            sleep.await;
            drop(due);
        });
    }
}

/// A summary that is on its way. It is written when this is dropped: when its time has come, or before that if
/// the runtime in which it waits ends, as nobody else would write it then.
struct Due<C: Clock + Clone + 'static> {
    /// It doesn't keep the layer alive: when that is gone there is nobody to tell.
    shared: Weak<Shared<C>>,
    began: Timestamp,
}

impl<C: Clock + Clone + 'static> Drop for Due<C> {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            let lasted = shared.clock.now() - self.began;
            tell(&shared, lasted.min(shared.summaries.every));
        }
    }
}

fn tell<C: Clock + Clone + 'static>(shared: &Shared<C>, every: Duration) {
    // Before the counts are taken: whoever suppresses from now on begins the next one.
    shared.summaries.is_due.store(false, Ordering::Release);
    match shared.dispatch.get().map(WeakDispatch::upgrade) {
        Some(Some(dispatch)) => {
            tracing::dispatcher::with_default(&dispatch, || tell_all(shared, every))
        }
        // Its subscriber is gone, and with it everybody who could be told.
        Some(None) => {}
        None => tell_all(shared, every),
    }
}

fn tell_all<C: Clock>(shared: &Shared<C>, every: Duration) {
    shared.table.take(|place, count| match place.metadata() {
        Some(metadata) => one(metadata, count, every),
        None => warn!(
            target: TARGET,
            suppressed = count,
            "suppressed {} events of many places in {} s",
            thousands(count),
            seconds(every)
        ),
    });
}

fn one(metadata: &Metadata<'_>, count: u64, every: Duration) {
    let (many, seconds) = (thousands(count), seconds(every));
    let (file, line) = (metadata.file().unwrap_or("?"), metadata.line().unwrap_or(0));
    let place = format_args!("{} at {file}:{line}", metadata.target());
    macro_rules! say {
        ($level:ident) => {
            $level!(
                target: TARGET,
                suppressed = count,
                %place,
                "suppressed {many} similar events in {seconds} s"
            )
        };
    }
    match *metadata.level() {
        Level::ERROR => say!(error),
        Level::WARN => say!(warn),
        Level::INFO => say!(info),
        Level::DEBUG => say!(debug),
        Level::TRACE => say!(trace),
    }
}

fn seconds(every: Duration) -> f64 {
    (every.as_secs_f64() * 1000.0).round() / 1000.0
}

/// A number as people read it: 12,431.
fn thousands(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        for (count, expect) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (12_431, "12,431"),
            (1_000_000, "1,000,000"),
        ] {
            assert_eq!(thousands(count), expect);
        }
    }
}
