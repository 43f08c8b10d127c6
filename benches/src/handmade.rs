//! Handwritten limiters: a bucket behind a mutex, and a channel that a ticker thread fills with tokens.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::peers::Gate;
use crate::runner::{Measure, Sample};
use crate::timing;

/// The textbook token bucket.
pub(crate) struct MutexBucket {
    rate: f64,
    burst: f64,
    state: Mutex<(f64, Instant)>,
}

impl MutexBucket {
    pub(crate) fn new(rate: f64, burst: f64) -> Self {
        Self {
            rate,
            burst,
            state: Mutex::new((burst, timing::std_now())),
        }
    }
}

impl Gate for MutexBucket {
    #[inline(always)]
    fn allow(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (tokens, last) = *state;
        let now = timing::std_now();
        let tokens = (tokens + (now - last).as_secs_f64() * self.rate).min(self.burst);
        let pass = tokens >= 1.0;
        *state = (if pass { tokens - 1.0 } else { tokens }, now);
        pass
    }
}

/// A bounded channel of tokens, and the thread that fills it every millisecond.
pub(crate) struct TickerBucket {
    stop: Arc<AtomicBool>,
    /// How often the channel was full.
    fills: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl TickerBucket {
    /// The number of calls in one measurement: few enough that each gets a token.
    pub(crate) const SAMPLE: u64 = 1 << 15;
    const TOKENS: usize = 1 << 17;

    pub(crate) fn start() -> (Self, Receiver<()>) {
        let (tokens, receiver) = mpsc::sync_channel(Self::TOKENS);
        let stop = Arc::new(AtomicBool::new(false));
        let fills = Arc::new(AtomicU64::new(0));
        let (stopped, filled) = (Arc::clone(&stop), Arc::clone(&fills));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                while tokens.try_send(()).is_ok() {}
                filled.fetch_add(1, Ordering::Release);
                timing::sleep(Duration::from_millis(1));
            }
        });
        let ticker = Self {
            stop,
            fills,
            thread: Some(thread),
        };
        (ticker, receiver)
    }

    /// Waits before each measurement until the channel is full.
    pub(crate) fn filled<M: Measure>(self, measure: M) -> FilledTokens<M> {
        FilledTokens {
            ticker: self,
            measure,
        }
    }
}

impl Drop for TickerBucket {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A measurement that starts with a full channel.
pub(crate) struct FilledTokens<M> {
    ticker: TickerBucket,
    measure: M,
}

impl<M: Measure> Measure for FilledTokens<M> {
    fn sample(&mut self) -> Sample {
        // A fill that began after this moment ends with a full channel, so wait for the second one.
        let fills = &self.ticker.fills;
        let full = fills.load(Ordering::Acquire) + 2;
        while fills.load(Ordering::Acquire) < full {
            timing::sleep(Duration::from_micros(200));
        }
        self.measure.sample()
    }
}

/// One receiver for several threads; std's channels need a mutex for that.
pub(crate) struct SharedTokens(pub(crate) Mutex<Receiver<()>>);

impl Gate for SharedTokens {
    #[inline(always)]
    fn allow(&self) -> bool {
        let tokens = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.try_recv().is_ok()
    }
}
