//! Rate-limited logging: each call site separately, a summary, and no more memory than configured.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::Rate;
use tollgate::clock::Manual;
use tollgate_shape::LogThrottle;
use tracing::subscriber::with_default;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::Layer;
use tracing_subscriber::prelude::*;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn take(&self) -> Vec<String> {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap());
        let text = String::from_utf8(bytes).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn layer<S>(&self) -> impl Layer<S>
    where
        S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
    {
        let lines = self.clone();
        let writer = move || lines.clone();
        fmt::layer()
            .without_time()
            .with_ansi(false)
            .with_writer(writer)
    }
}

fn fails(times: usize, tenant: &str) {
    for _ in 0..times {
        tracing::warn!(tenant, "no connection");
    }
}

#[test]
fn each_place_has_its_burst_and_one_summary() {
    let (clock, lines) = (Manual::new(), Lines::default());
    let throttle = LogThrottle::builder(Rate::per_second(1).burst(3))
        .clock(clock.clone())
        .build()
        .unwrap();
    let subscriber = tracing_subscriber::registry()
        .with(throttle.clone())
        .with(lines.layer());
    with_default(subscriber, || {
        fails(12_434, "a");
        tracing::info!("another place");
        assert_eq!(lines.take().len(), 4);
        clock.advance(Duration::from_secs(10));
        let summary = lines.take();
        assert_eq!(summary.len(), 1, "{summary:?}");
        let text = " WARN tollgate::suppressed: suppressed 12,431 similar events in 10 s suppressed=12431 place=shape::log at ";
        assert!(summary[0].starts_with(text), "{summary:?}");
        assert_eq!(
            clock.parked(),
            0,
            "nothing ticks when nothing is suppressed"
        );
        // The limit goes on from there: ten seconds later there is a burst again.
        fails(5, "a");
        assert_eq!(lines.take().len(), 3);
        assert_eq!(throttle.suppressed(), 12_433);
    });
}

#[test]
fn fields_can_tell_events_apart_and_as_a_filter_it_is_for_one_layer() {
    let clock = Manual::new();
    let (limited, all) = (Lines::default(), Lines::default());
    let throttle = LogThrottle::builder(Rate::per_second(1).burst(2))
        .by_fields(["tenant"])
        .clock(clock.clone())
        .build()
        .unwrap();
    let subscriber = tracing_subscriber::registry()
        .with(limited.layer().with_filter(throttle.clone()))
        .with(all.layer());
    with_default(subscriber, || {
        fails(5, "a");
        fails(5, "b");
        assert_eq!((limited.take().len(), all.take().len()), (4, 10));
        clock.advance(Duration::from_secs(10));
        assert_eq!(limited.take().len(), 2, "a summary for each");
    });
}

#[test]
fn places_beyond_the_bound_share_one_limit() {
    let (clock, lines) = (Manual::new(), Lines::default());
    let throttle = LogThrottle::builder(Rate::per_second(1).burst(1))
        .by_fields(["tenant"])
        .places(8)
        .clock(clock.clone())
        .build()
        .unwrap();
    let subscriber = tracing_subscriber::registry()
        .with(throttle)
        .with(lines.layer());
    with_default(subscriber, || {
        for tenant in 0..1_000 {
            fails(1, &tenant.to_string());
        }
        // Eight by themselves, and one for all others.
        assert_eq!(lines.take().len(), 9);
        clock.advance(Duration::from_secs(10));
        let summaries = lines.take();
        assert_eq!(summaries.len(), 1);
        assert!(summaries[0].contains("suppressed 991 events of many places in 10 s"));
    });
}

#[test]
fn a_runtime_that_ends_takes_no_summary_with_it() {
    let lines = Lines::default();
    let throttle = LogThrottle::builder(Rate::per_hour(1))
        .summary_every(Duration::from_secs(3600))
        .build()
        .unwrap();
    let subscriber = tracing_subscriber::registry()
        .with(throttle.clone())
        .with(lines.layer());
    with_default(subscriber, || {
        for _ in 0..2 {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .build()
                .unwrap();
            runtime.block_on(async { fails(6, "a") });
            drop(runtime);
            let told = lines.take();
            let last = told.last().unwrap();
            assert!(last.contains("suppressed"), "{told:?}");
        }
    });
    assert_eq!(throttle.suppressed(), 11);
}
