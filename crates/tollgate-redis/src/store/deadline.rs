//! How long an answer is waited for: so long as this process could run.
//!
//! A process that was stopped, throttled or crowded out finds its timers over before it has looked at what came.
//! That time isn't held against the store, and whatever is there when time is up is taken.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use derive_more::Debug;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout, timeout_at};

use super::shared_state::DriverState;
use crate::error::StoreError;

/// The wait is looked at so many times.
const TIMER_CHECKS: u32 = 4;
/// A timer that is late by no more was on time: it ticks once a millisecond, and its thread has other work.
const TIMER_TOLERANCE: Duration = Duration::from_millis(2);
/// How often other tasks get a turn before time is up: the socket is read, the reply taken from the
/// connection, told to the driver, and by the driver to the request.
const FINAL_YIELDS: usize = 4;
/// The longest wait: 30 years, which every clock can count.
const MAX_WAIT: Duration = Duration::from_secs(30 * 365 * 86_400);

/// How long one decision waits, whatever it asks and how many.
#[derive(Debug)]
#[debug("Patience({timeout:?})")]
pub(crate) struct RequestDeadline {
    shared: Arc<DriverState>,
    timeout: Duration,
    /// When time is up; none before the first wait.
    deadline: Option<Instant>,
    /// When the wait that was answered last should have been looked at.
    last_check_due: Option<Instant>,
}

impl RequestDeadline {
    pub(super) fn new(shared: &Arc<DriverState>, timeout: Duration) -> Self {
        Self {
            shared: Arc::clone(shared),
            timeout,
            deadline: None,
            last_check_due: None,
        }
    }

    /// Waits for what is asked of the store, which isn't begun where there is no runtime. One without timers can't be told
    /// from one with, but by a panic.
    pub(crate) async fn wait<T>(
        &mut self,
        what: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let mut what = pin!(what);
        let mut now = Instant::now();
        let mut until = self
            .deadline
            .unwrap_or_else(|| instant_after(now, self.timeout));
        // One that was answered late: the next question of the decision has as long.
        if let Some(look) = self.last_check_due.take() {
            until += timer_delay(now, look);
        }
        loop {
            check_runtime()?;
            let look = instant_after(now, self.timeout / TIMER_CHECKS).min(until);
            let done = timeout_at(look, &mut what).await;
            if let Ok(done) = done {
                (self.deadline, self.last_check_due) = (Some(until), Some(look));
                return done;
            }
            now = Instant::now();
            until += timer_delay(now, look);
            if now >= until {
                break;
            }
        }
        self.deadline = Some(until);
        // What is there already wins, although it hasn't been looked at yet. The runtime that looks may be
        // another than this one, and be starved alone.
        let turns = self.shared.host.spawn(async {
            for _ in 0..FINAL_YIELDS {
                tokio::task::yield_now().await;
            }
        });
        check_runtime()?;
        let _ = timeout(self.timeout, turns).await;
        check_runtime()?;
        let what = timeout(Duration::ZERO, what).await;
        what.unwrap_or_else(|_| Err(self.shared.stats.record_timeout(self.timeout)))
    }
}

/// A timer can be made only within a runtime, and each poll may be in another one.
fn check_runtime() -> Result<(), StoreError> {
    let runtime = Handle::try_current();
    runtime.map(drop).map_err(|_| StoreError::NoRuntime)
}

/// So long from then, or as far off as a timer goes: `Duration::MAX` is to wait for as long as it takes.
fn instant_after(now: Instant, wait: Duration) -> Instant {
    now + wait.min(MAX_WAIT)
}

/// By how much a look came too late.
fn timer_delay(now: Instant, look: Instant) -> Duration {
    let late = now.saturating_duration_since(look);
    if late > TIMER_TOLERANCE {
        late
    } else {
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::host::Host;

    const TIMEOUT: Duration = Duration::from_millis(20);

    fn patience() -> RequestDeadline {
        let shared = DriverState::new(&Host::system().unwrap());
        RequestDeadline::new(&Arc::new(shared), TIMEOUT)
    }

    async fn answer(told: oneshot::Receiver<u8>) -> Result<u8, StoreError> {
        told.await.map_err(|_| StoreError::Stopped)
    }

    #[tokio::test(start_paused = true)]
    async fn who_gets_no_answer_is_told_so_when_time_is_up() {
        let began = Instant::now();
        let mut patience = patience();
        let never = std::future::pending::<Result<(), StoreError>>();
        let late = StoreError::TimedOut { after: TIMEOUT };
        assert_eq!(patience.wait(never).await, Err(late));
        let timeouts = &patience.shared.stats.timeouts;
        assert_eq!(timeouts.load(std::sync::atomic::Ordering::Relaxed), 1);
        assert!(
            began.elapsed() < TIMEOUT + 2 * TIMER_TOLERANCE,
            "{:?}",
            began.elapsed()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_the_process_could_not_run_is_not_counted() {
        let (tell, told) = oneshot::channel();
        let mut patience = patience();
        let waiting = tokio::spawn(async move { patience.wait(answer(told)).await });
        tokio::task::yield_now().await;
        // All at once, as for a process that was stopped: nothing ran meanwhile.
        tokio::time::advance(10 * TIMEOUT).await;
        // Then it takes half of its time.
        tokio::time::sleep(TIMEOUT / 2).await;
        tell.send(7).unwrap();
        assert_eq!(waiting.await.unwrap(), Ok(7));
    }

    #[tokio::test(start_paused = true)]
    async fn nor_is_it_counted_by_the_next_question_of_a_decision() {
        let (tell, told) = oneshot::channel();
        let (tell_next, next) = oneshot::channel();
        let mut patience = patience();
        let waiting = tokio::spawn(async move {
            assert_eq!(patience.wait(answer(told)).await, Ok(7));
            patience.wait(answer(next)).await
        });
        tokio::task::yield_now().await;
        // The first answer is there when it runs again, and then the next question is asked.
        tell.send(7).unwrap();
        tokio::time::advance(10 * TIMEOUT).await;
        tokio::time::sleep(TIMEOUT / 2).await;
        tell_next.send(8).unwrap();
        assert_eq!(waiting.await.unwrap(), Ok(8));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reply_that_is_there_when_time_is_up_wins() {
        let (tell, told) = oneshot::channel();
        let mut patience = patience();
        // It has come, and passes through others' hands at the very moment.
        let at = Instant::now() + TIMEOUT;
        tokio::spawn(async move {
            tokio::time::sleep_until(at).await;
            for _ in 0..FINAL_YIELDS - 1 {
                tokio::task::yield_now().await;
            }
            let _ = tell.send(7);
        });
        assert_eq!(patience.wait(answer(told)).await, Ok(7));
    }
}
