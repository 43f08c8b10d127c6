//! Saves the state of a service every few seconds and at shutdown, on a thread of its own.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::sync::oneshot;
use tollgate::Timestamp;
use tollgate::clock::{Clock, Monotonic};
use tollgate_engine::Policy;
use tollgate_engine::backend::Memory;

use crate::health::Concern;
use crate::service::Service;
use crate::start_error::StartError;
use crate::state::{Folder, StateOptions, Uptime, save_snapshot};

/// Starts to save the state of a service, just before it serves clients.
pub(crate) type StartSaver<B> =
    Box<dyn FnOnce(&Arc<Service<B>>) -> Result<StateSaver, StartError> + Send>;

/// Starts to save the state in this folder. The first snapshot is written before the first client is served, so that an
/// unwritable folder is a start error.
pub(super) fn begin<C: Clock + 'static, W: Clock + 'static>(
    folder: Folder,
    options: StateOptions,
    lost: Vec<String>,
) -> StartSaver<Memory<C, W>> {
    Box::new(move |service| {
        let mut saver = SnapshotSaver {
            service: Arc::clone(service),
            folder,
            uptime: options.uptime,
            clock: Monotonic::new(),
            saved: None,
            failing: None,
            failed_flushes: 0,
        };
        saver.save().map_err(StartError::State)?;
        if let Some(why) = lost.first() {
            // The concern stays until the next start, as the lost state doesn't return.
            let why = format!(
                "state couldn't be read at the start, so what was spent before is forgotten: {why}"
            );
            service.monitor.health.raise_concern(Concern::Restore, why);
            service
                .state
                .update(|told| told.damaged_files = lost.len() as u64);
        }
        let thread = StateSaver::start(options.save_interval, move |turn| saver.save_if_due(turn));
        thread.map_err(|error| StartError::State(format!("no thread to save state: {error}")))
    })
}

/// Why the state is saved.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SaveReason {
    /// The save interval has passed.
    Interval,
    /// The service stops: there are no more decisions.
    End,
}

/// The thread that saves the state. On drop it saves once more and is joined.
pub(crate) struct StateSaver {
    /// Dropped to request the last save.
    end: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Closed by the thread when it ends.
    over: oneshot::Receiver<()>,
}

impl StateSaver {
    fn start(
        every: Duration,
        mut save: impl FnMut(SaveReason) + Send + 'static,
    ) -> io::Result<Self> {
        let (end, waited) = mpsc::channel();
        let (ends, over) = oneshot::channel::<()>();
        let thread = thread::Builder::new().name("tollgate-state".to_owned());
        let thread = thread.spawn(move || {
            loop {
                let turn = match waited.recv_timeout(every) {
                    Err(RecvTimeoutError::Timeout) => SaveReason::Interval,
                    // The sender never sends: it was dropped.
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => SaveReason::End,
                };
                save(turn);
                if turn == SaveReason::End {
                    return drop(ends);
                }
            }
        })?;
        Ok(Self {
            end: Some(end),
            thread: Some(thread),
            over,
        })
    }

    /// Saves once more, on the saver's thread. If the caller stops waiting and drops the saver, the drop blocks until
    /// the snapshot is written: a partly written one would be useless.
    pub(crate) async fn save_the_last(&mut self) {
        self.end = None;
        // The sender never sends: it was dropped.
        let _ = (&mut self.over).await;
    }
}

impl Drop for StateSaver {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // The thread doesn't panic. If it did, nobody is left to report it to.
            let _ = thread.join();
        }
    }
}

/// Saves one service.
struct SnapshotSaver<C: Clock + 'static, W: Clock + 'static> {
    service: Arc<Service<Memory<C, W>>>,
    folder: Folder,
    uptime: fn() -> Option<Uptime>,
    /// Measures how long a save takes.
    clock: Monotonic,
    /// The state of the counters in the latest snapshot.
    saved: Option<SavedMark>,
    /// Why the latest save failed.
    failing: Option<String>,
    /// The number of failed quota flushes that were already reported.
    failed_flushes: u64,
}

/// What is compared to find out whether there is something new to save.
struct SavedMark {
    policy: Arc<Policy>,
    changes: u64,
    /// Operators' overrides: the id, the expiry and the number of uses of each. A changed override has another id, or
    /// another expiry after the clock was set back.
    orders: Vec<(u64, Timestamp, u64)>,
}

impl<C: Clock + 'static, W: Clock + 'static> SnapshotSaver<C, W> {
    /// Saves if something has changed, and logs the outcome.
    fn save_if_due(&mut self, turn: SaveReason) {
        let quotas = match turn {
            SaveReason::Interval => self.quotas(),
            SaveReason::End => {
                let flushed = self.service.decider.engine.backend().flush_quotas();
                flushed.map_err(|error| error.to_string())
            }
        };
        let is_due = turn == SaveReason::End || self.failing.is_some() || self.has_changed();
        // Another process may have replaced the folder: then nothing may be written there.
        let saved = match self.folder.is_own() {
            Ok(()) if is_due => self.save(),
            other => other,
        };
        self.log_outcome(saved.and(quotas), turn);
    }

    /// The outcome of saving quotas, which have their own journal.
    fn quotas(&mut self) -> Result<(), String> {
        let stats = self.service.decider.engine.backend().quota_stats();
        let more = stats.failed_flushes - self.failed_flushes;
        self.failed_flushes = stats.failed_flushes;
        if more > 0 {
            self.service.state.update(|told| told.failures += more);
        }
        stats.last_error.map_or(Ok(()), Err)
    }

    fn mark(&self) -> SavedMark {
        let (engine, cells) = (
            &self.service.decider.engine,
            &self.service.decider.throttle_keys,
        );
        // Read before the snapshot: a decision or settlement from here on counts as a change for the next save.
        let decided = engine.backend().changes() + cells.allowed_count();
        SavedMark {
            changes: decided + self.service.decider.reservations.settled(),
            policy: engine.policy(),
            orders: engine
                .overrides()
                .iter()
                .map(|order| (order.id, order.until, order.used_count))
                .collect(),
        }
    }

    fn has_changed(&self) -> bool {
        let now = self.mark();
        let is_same = |saved: &SavedMark| {
            saved.changes == now.changes
                && saved.orders == now.orders
                && Arc::ptr_eq(&saved.policy, &now.policy)
        };
        !self.saved.as_ref().is_some_and(is_same) || !self.folder.snapshot().exists()
    }

    /// Writes a snapshot.
    fn save(&mut self) -> Result<(), String> {
        let (service, mark, begun) = (&self.service, self.mark(), self.clock.now());
        let path = self.folder.snapshot();
        let saved = save_snapshot(
            &service.decider.engine,
            &service.decider.throttle_keys,
            &path,
            self.uptime,
        );
        let keys = saved.map_err(|error| {
            service.state.update(|told| told.failures += 1);
            error.to_string()
        })?;
        let bytes = std::fs::metadata(&path).map_or(0, |file| file.len());
        let took = self.clock.now() - begun;
        let wall = service.decider.engine.backend().times().wall;
        service.state.update(|told| {
            told.last_saved_unix = (wall - Timestamp::ZERO).as_secs();
            (told.keys, told.bytes, told.save_duration) = (keys, bytes, took);
            told.saves += 1;
        });
        self.saved = Some(mark);
        Ok(())
    }

    /// Logs the outcome of a save, once for each new reason of failure.
    fn log_outcome(&mut self, saved: Result<(), String>, turn: SaveReason) {
        let (log, health) = (&self.service.monitor.log, &self.service.monitor.health);
        let why = saved.err();
        match (&why, turn) {
            (None, _) if self.failing.is_some() => {
                health.clear_concern(Concern::State);
                log.info("state is saved again", &[]);
            }
            (None, SaveReason::Interval) => {}
            (None, SaveReason::End) => log.info("state is saved", &[]),
            (Some(why), SaveReason::End) => {
                let event =
                    "state not saved at the end: what was decided since it was saved last is lost";
                log.error(event, &[("why", why)]);
            }
            (Some(why), SaveReason::Interval) if self.failing.as_ref() != Some(why) => {
                health.raise_concern(Concern::State, why.as_str());
                let event = "state not saved: decisions go on, and it is tried again";
                log.error(event, &[("why", why)]);
            }
            (Some(_), SaveReason::Interval) => {}
        }
        self.failing = why;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_last_save_that_nobody_waits_for_any_more_is_done_before_it_is_dropped() {
        let ((begun, begins), (go, wait)) = (mpsc::channel(), mpsc::channel::<()>());
        let is_saved = Arc::new(AtomicBool::new(false));
        let own = Arc::clone(&is_saved);
        let save = move |turn| {
            assert!(turn == SaveReason::End);
            begun.send(()).expect("a test that waits");
            let _ = wait.recv();
            own.store(true, Ordering::Relaxed);
        };
        let mut keeper = StateSaver::start(Duration::from_secs(3_600), save).expect("a thread");
        let mut ending = Box::pin(async move { keeper.save_the_last().await });
        assert!(ending.as_mut().now_or_never().is_none());
        begins.recv().expect("it has begun");
        // A second signal: the waiting caller drops the saver.
        let dropped = thread::spawn(move || drop(ending));
        drop(go);
        dropped.join().expect("no panic");
        assert!(is_saved.load(Ordering::Relaxed));
    }
}
