//! The additional cost of a log line whose call site is limited: one that passes, and one that is suppressed.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::Rate;
use tollgate_shape::LogThrottle;
use tracing::subscriber::with_default;
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

use super::settled_measurement;
use crate::report::{Line, Report};
use crate::runner::OneThread;

/// The common subscriber: it counts.
#[derive(Clone, Default)]
struct Counts(Arc<AtomicU64>);

impl<S: Subscriber> Layer<S> for Counts {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        black_box(event);
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Nanoseconds for one line.
fn line(subscriber: impl Subscriber + Send + Sync + 'static) -> (f64, usize) {
    with_default(subscriber, || {
        settled_measurement(&mut OneThread::new(|calls| {
            for call in 0..calls {
                tracing::warn!(call, "no connection");
            }
        }))
    })
}

/// The cost of the subscriber for a line that doesn't reach it, like a suppressed one.
fn without_it() -> (f64, usize) {
    line(tracing_subscriber::registry().with(Counts::default()))
}

pub(super) fn run(report: &mut Report) {
    for (case, rate, most) in [
        (
            "log-pass",
            Rate::per_second(1_000_000_000).burst(1_000_000_000),
            30.0,
        ),
        ("log-suppressed", Rate::per_hour(1), 20.0),
    ] {
        let Ok(throttle) = LogThrottle::new(rate) else {
            report.note(format!("{case}: no limit at this rate"));
            continue;
        };
        let subscriber = tracing_subscriber::registry()
            .with(Counts::default())
            .with(throttle);
        let (with, disturbed) = line(subscriber);
        let (without, _) = without_it();
        let more = (with - without).max(0.0);
        let mut line = Line::new(case, "target", (more, most, "ns"), more / most).target(Some(1.0));
        line.disturbed = disturbed;
        report.add(line);
        report.note(format!(
            "{case}: {with:.1} ns with the layer, {without:.1} ns without it"
        ));
    }
}
