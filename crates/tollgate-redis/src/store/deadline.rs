//! The deadline of a request: only time in which this process could run counts.
//!
//! A process that was suspended, throttled or starved finds its timers expired before it has read what arrived.
//! That time doesn't count against the store, and replies that are there at the deadline are still taken.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use derive_more::Debug;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout, timeout_at};

use super::shared_state::DriverState;
use crate::error::StoreError;

/// How many timers a wait is divided into.
const TIMER_CHECKS: u32 = 4;
/// A timer that is late by no more counts as punctual: timers tick once a millisecond, and their thread has
/// other work.
const TIMER_TOLERANCE: Duration = Duration::from_millis(2);
/// How often other tasks run before the deadline counts: to read the socket, take the reply from the
/// connection, deliver it to the driver, and by the driver to the request.
const FINAL_YIELDS: usize = 4;
/// The longest wait: 30 years, which every clock can represent.
const MAX_WAIT: Duration = Duration::from_secs(30 * 365 * 86_400);

/// The deadline of one decision, for all of its queries together.
#[derive(Debug)]
#[debug("RequestDeadline({timeout:?})")]
pub(crate) struct RequestDeadline {
    shared: Arc<DriverState>,
    timeout: Duration,
    /// The deadline; `None` before the first wait.
    deadline: Option<Instant>,
    /// When the latest answered wait should have been polled.
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

    /// Waits for a query's result. Without a runtime the query isn't begun. A runtime without timers can't be
    /// recognized except by a panic.
    pub(crate) async fn wait<T>(
        &mut self,
        what: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let mut what = pin!(what);
        let mut now = Instant::now();
        let mut until = self
            .deadline
            .unwrap_or_else(|| instant_after(now, self.timeout));
        // If the previous reply was taken late, the next query of the decision gets that time back.
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
        // A reply that has arrived wins, even if it wasn't polled yet. The yields run on the client's runtime,
        // which may be starved while this one isn't.
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

/// Timers exist only within a runtime, and each poll may be in another one.
fn check_runtime() -> Result<(), StoreError> {
    let runtime = Handle::try_current();
    runtime.map(drop).map_err(|_| StoreError::NoRuntime)
}

/// A time this long after `now`, at most `MAX_WAIT`: `Duration::MAX` waits without an end.
fn instant_after(now: Instant, wait: Duration) -> Instant {
    now + wait.min(MAX_WAIT)
}

/// How late a timer fired.
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
        // In one step, as for a suspended process: nothing ran in between.
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
        // The first reply is there when the process runs again, and then the next query is sent.
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
        // The reply has arrived, and passes through other tasks at this moment.
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
