//! The task that keeps the connection and sends what waits.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::OptionFuture;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, sleep_until};

use super::Shared;
use super::link::{AfterFailure, Connector, Failure, Link};
use super::queue::Batch;
use crate::error::StoreError;
use crate::failure::FailureKind;

/// Between attempts to connect: so long at first, twice as long each time, and no longer than this. A part
/// of it is left to chance, so that a fleet doesn't come back all at once.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// After so many calls in a row that failed, a cluster is looked for anew.
const LOST_CALLS: u32 = 16;

/// How the connection is.
enum State {
    /// None was made yet; who asks waits as long as he may.
    New,
    Up(Link),
    /// There is none, and none can be made now; who asks is told so at once.
    Down(StoreError),
}

/// What came of a call.
type Done = (Batch, u64, Result<Vec<i64>, Failure>);

pub(crate) struct Driver {
    shared: Arc<Shared>,
    connector: Arc<Connector>,
    state: State,
    pause: Duration,
    retry_at: Instant,
    lost: u32,
    /// Connections so far.
    links: u64,
    /// What sort of failure to connect was told last, since there was a connection.
    told: Option<FailureKind>,
}

impl Driver {
    pub(crate) fn new(shared: Arc<Shared>, connector: Connector) -> Self {
        Self {
            shared,
            connector: Arc::new(connector),
            state: State::New,
            pause: FIRST_PAUSE,
            retry_at: Instant::now(),
            lost: 0,
            links: 0,
            told: None,
        }
    }

    /// Runs until the store is dropped.
    pub(crate) async fn run(mut self) {
        let mut calls = FuturesUnordered::new();
        type Connecting<'a> = Pin<Box<dyn Future<Output = Result<Link, StoreError>> + Send + 'a>>;
        let connector = Arc::clone(&self.connector);
        let mut connecting: Option<Connecting<'_>> = None;
        loop {
            if self.shared.queue.is_closed() {
                return;
            }
            if !matches!(self.state, State::New) {
                while let Some(batch) = self.shared.queue.take() {
                    match &self.state {
                        State::Up(link) => calls.push(call(link.clone(), batch, self.links)),
                        State::Down(error) => {
                            let lane = batch.lane;
                            self.shared
                                .stats
                                .failed_calls
                                .fetch_add(1, Ordering::Relaxed);
                            batch.fail(error);
                            self.shared.queue.done(lane, Vec::new());
                        }
                        State::New => {}
                    }
                }
            }
            let is_up = matches!(self.state, State::Up(_));
            if !is_up && connecting.is_none() && Instant::now() >= self.retry_at {
                connecting = Some(Box::pin(connector.connect()));
            }
            let waits = !is_up && connecting.is_none();
            // In this order, so that a simulated run is repeatable. None can keep another from its turn: what
            // may be sent is taken above, before each.
            tokio::select! {
                biased;
                Some(done) = calls.next(), if !calls.is_empty() => self.finish(done, connector.is_cluster()),
                Some(link) = OptionFuture::from(connecting.as_mut()), if connecting.is_some() => {
                    connecting = None;
                    self.connected(link);
                }
                () = sleep_until(self.retry_at), if waits => {}
                () = self.shared.queue.changed.notified() => {}
            }
        }
    }

    fn connected(&mut self, link: Result<Link, StoreError>) {
        match link {
            Ok(link) => {
                self.shared.stats.connects.fetch_add(1, Ordering::Relaxed);
                self.state = State::Up(link);
                self.links += 1;
                self.pause = FIRST_PAUSE;
                self.lost = 0;
                self.told = None;
            }
            Err(error) => {
                self.tell(&error);
                self.pause_for();
                self.state = State::Down(error);
            }
        }
    }

    /// Says why there is no connection, whether or not anybody has asked for one: at once, and again only
    /// once there is another reason.
    fn tell(&mut self, error: &StoreError) {
        let kind = error.kind();
        if self.told.replace(kind) != Some(kind) {
            tracing::warn!(target: "tollgate", kind = kind.name(), "no rate-limit store: {error}");
        }
    }

    /// Waits before the next attempt: from half to all of the pause.
    fn pause_for(&mut self) {
        let half = self.pause / 2;
        let chance = self.shared.chance(half.as_nanos());
        self.retry_at = Instant::now() + half + chance;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }

    fn finish(&mut self, (batch, number, result): Done, is_cluster: bool) {
        let (lane, stats) = (batch.lane, &self.shared.stats);
        stats.calls.fetch_add(1, Ordering::Relaxed);
        let questions = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        stats.questions.fetch_add(questions, Ordering::Relaxed);
        let mut again = Vec::new();
        match result {
            Ok(numbers) => {
                self.lost = 0;
                stats.is_failing.store(false, Ordering::Relaxed);
                match batch.deliver(numbers) {
                    Ok(0) => {}
                    Ok(strange) => {
                        stats.strange_keys.fetch_add(strange, Ordering::Relaxed);
                    }
                    Err(_) => {
                        stats.failed_calls.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            Err(Failure { error, link }) => {
                stats.is_failing.store(true, Ordering::Relaxed);
                stats.failed_calls.fetch_add(1, Ordering::Relaxed);
                match link {
                    AfterFailure::Keep => batch.fail(&error),
                    AfterFailure::Lost => again = batch.again(&error),
                    AfterFailure::Wrong => batch.fail(&error),
                }
                // What a connection before this one left behind says nothing of it.
                let is_lost = link != AfterFailure::Keep && number == self.links;
                self.lost += u32::from(is_lost);
                // A cluster's connection looks after its nodes by itself, unless it has lost them all.
                let gives_up = !is_cluster || self.lost >= LOST_CALLS;
                if is_lost && gives_up && matches!(self.state, State::Up(_)) {
                    self.lost = 0;
                    if link == AfterFailure::Wrong {
                        self.pause_for();
                        self.state = State::Down(error);
                    } else {
                        self.state = State::New;
                        self.retry_at = Instant::now();
                    }
                }
            }
        }
        self.shared.queue.done(lane, again);
    }
}

/// With the runtime it lives in, or by a fault: who asks is told so at once.
impl Drop for Driver {
    fn drop(&mut self) {
        self.shared.queue.close();
    }
}

async fn call(mut link: Link, batch: Batch, number: u64) -> Done {
    let result = {
        let call = batch.call();
        let mut args: Vec<&[u8]> = vec![&call.questions, call.at.as_bytes()];
        args.extend(&call.holders);
        link.run(call.script, &call.keys, &args).await
    };
    (batch, number, result)
}
