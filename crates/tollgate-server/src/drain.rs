//! How a service ends: clients are told to go elsewhere, what was asked is answered, and what isn't over in time is cut.
//!
//! Connections look at one notice, whatever is spoken on them. While a service runs that costs them one load, and a look at
//! where they are written down to be woken when they wait.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::watch;
use tokio::task::{JoinSet, unconstrained};
use tokio::time::timeout;

use crate::connection_limit::ListenerConnections;
use crate::health::{Concern, Health};
use crate::log::Log;

/// What clients who have just come are given to say what they want, and those of HTTP to ask once more.
pub(crate) const GRACE: Duration = Duration::from_millis(250);
/// A client that was told the end is given so long to close its side: what it sends until then is read, as a reset could
/// take answers from it that are on their way.
const LINGER: Duration = Duration::from_millis(500);
/// So many bytes are read of it meanwhile.
const LINGER_BYTES: usize = 1 << 20;
/// Whoever still waits is told so long before it is cut, or a quarter of the whole time.
const SHUTDOWN_NOTICE: Duration = Duration::from_secs(1);
/// What operators' connections are given once all others are over.
const OPERATOR_GRACE: Duration = Duration::from_secs(2);
/// What is said to a client that waits for an answer that it won't get.
pub(crate) const SHUTTING_DOWN: &str =
    "the service ends before it is the request's turn: ask again";

/// How long a service takes to end.
///
/// ```
/// use std::time::Duration;
/// use tollgate_server::DrainSettings;
///
/// // In Kubernetes others hear of the end a little after the service does.
/// let drain = DrainSettings { delay: Duration::from_secs(5), ..DrainSettings::default() };
/// assert_eq!(drain.timeout, Duration::from_secs(10));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainSettings {
    /// Clients are still taken for so long, while probes are told that they should go elsewhere.
    pub delay: Duration,
    /// After that, what was asked has so long to be answered.
    pub timeout: Duration,
}

/// What came of draining.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DrainOutcome {
    /// Connections that weren't over in time.
    pub aborted: usize,
}

/// How far a service is on its way to the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    #[default]
    Serving,
    /// Clients should go elsewhere, and are still taken.
    Draining,
    /// No more are taken, and those that are there end as soon as they are answered.
    Closing,
    /// Who still waits is told that there will be no answer.
    Aborting,
}

/// Says to all connections of some listeners how far it is. Clones say it to the same.
#[derive(Clone, Default)]
pub(crate) struct ShutdownSignal(watch::Sender<Stage>);

/// What one connection is told of it.
pub(crate) struct ShutdownNotice {
    stages: watch::Receiver<Stage>,
    stage: Stage,
    /// The next that is told, once that is waited for.
    next_change: Option<StageChange>,
}

/// Ready when something else is told.
type StageChange = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Listeners that end together, with all who came by them.
pub(crate) struct ListenerGroup {
    shutdown: ShutdownSignal,
    tasks: JoinSet<()>,
    open: Vec<Arc<ListenerConnections>>,
}

impl ShutdownSignal {
    pub(crate) fn set_stage(&self, stage: Stage) {
        self.0.send_replace(stage);
    }

    pub(crate) fn stage(&self) -> Stage {
        *self.0.borrow()
    }

    /// For a connection that begins.
    pub(crate) fn notice(&self) -> ShutdownNotice {
        let mut told = self.0.subscribe();
        // What was told before is new to it.
        told.mark_changed();
        ShutdownNotice {
            stages: told,
            next_change: None,
            stage: Stage::Serving,
        }
    }
}

/// Waits until something is told that this hasn't seen.
fn stage_change(told: &watch::Receiver<Stage>) -> StageChange {
    let mut told = told.clone();
    // It mustn't be put off when a task has done much: whoever waits would be written down nowhere.
    Box::pin(unconstrained(async move {
        if told.changed().await.is_err() {
            // Nobody is left who could tell.
            std::future::pending::<()>().await;
        }
    }))
}

impl ShutdownNotice {
    /// How far it is.
    pub(crate) fn stage(&mut self) -> Stage {
        if self.stages.has_changed().unwrap_or(true) {
            self.stage = *self.stages.borrow_and_update();
            self.next_change = None;
        }
        self.stage
    }

    /// Ready once it is as far as that.
    pub(crate) fn poll_stage(&mut self, cx: &mut Context<'_>, stage: Stage) -> Poll<()> {
        loop {
            if self.stage() >= stage {
                return Poll::Ready(());
            }
            let next = self
                .next_change
                .get_or_insert_with(|| stage_change(&self.stages));
            // Each time: what is told as this begins to wait wakes it once for nothing, and it has to wait again.
            if next.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Ready once it is farther than this.
    pub(crate) fn poll_next_stage(&mut self, cx: &mut Context<'_>, stage: Stage) -> Poll<Stage> {
        let next = match stage {
            Stage::Serving => Stage::Draining,
            Stage::Draining => Stage::Closing,
            Stage::Closing => Stage::Aborting,
            Stage::Aborting => return Poll::Pending,
        };
        self.poll_stage(cx, next).map(|()| self.stage)
    }

    pub(crate) async fn wait_for_stage(&mut self, stage: Stage) {
        poll_fn(|cx| self.poll_stage(cx, stage)).await;
    }
}

/// Tells a client the end, if it wasn't, and reads what it still sends until it closes its side.
pub(crate) async fn discard_until_closed(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    notice: &mut ShutdownNotice,
) {
    // It may be told already.
    let _ = timeout(LINGER, stream.shutdown()).await;
    let mut left = LINGER_BYTES;
    let rest = poll_fn(|cx| {
        let mut bytes = [0; 4_096];
        loop {
            let mut bytes = ReadBuf::new(&mut bytes);
            match Pin::new(&mut *stream).poll_read(cx, &mut bytes) {
                Poll::Pending => return notice.poll_stage(cx, Stage::Aborting),
                Poll::Ready(Ok(())) if !bytes.filled().is_empty() && left > 0 => {
                    left = left.saturating_sub(bytes.filled().len());
                }
                Poll::Ready(_) => return Poll::Ready(()),
            }
        }
    });
    // One that stays is closed anyway.
    let _ = timeout(LINGER, rest).await;
}

impl ListenerGroup {
    pub(crate) fn new(closing: ShutdownSignal) -> Self {
        Self {
            shutdown: closing,
            tasks: JoinSet::new(),
            open: Vec::new(),
        }
    }

    pub(crate) fn closing(&self) -> ShutdownSignal {
        self.shutdown.clone()
    }

    /// Serves a listener, whose connections are counted.
    pub(crate) fn spawn(
        &mut self,
        open: Arc<ListenerConnections>,
        taking: impl Future<Output = ()> + Send + 'static,
    ) {
        self.open.push(open);
        self.tasks.spawn(taking);
    }

    /// Ends all at once.
    pub(crate) async fn abort(&mut self) {
        self.tasks.shutdown().await;
    }

    fn connections(&self) -> usize {
        self.open.iter().map(|open| open.count()).sum()
    }

    async fn wait_until_empty(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    /// Closes listeners, lets connections end, and cuts those that don't: how many.
    async fn close(&mut self, time: Duration) -> usize {
        self.shutdown.set_stage(Stage::Closing);
        let goodbye = SHUTDOWN_NOTICE.min(time / 4);
        if timeout(time - goodbye, self.wait_until_empty())
            .await
            .is_err()
        {
            self.shutdown.set_stage(Stage::Aborting);
            let _ = timeout(goodbye, self.wait_until_empty()).await;
        }
        let left = self.connections();
        self.abort().await;
        left
    }
}

impl DrainSettings {
    /// Ends clients' connections, then operators': they may look on until the others are gone.
    pub(crate) async fn run(
        self,
        clients: &mut ListenerGroup,
        operators: &mut ListenerGroup,
        health: &Health,
        log: &Log,
    ) -> DrainOutcome {
        health.raise_concern(Concern::Draining, "the service ends");
        let (delay, time) = (Seconds(self.delay), Seconds(self.timeout));
        log.info(
            "draining: clients should go elsewhere",
            &[
                ("delay", &delay),
                ("time", &time),
                ("connections", &clients.connections()),
            ],
        );
        if !self.delay.is_zero() {
            for group in [&*clients, &*operators] {
                group.shutdown.set_stage(Stage::Draining);
            }
            tokio::time::sleep(self.delay).await;
        }
        let connections = clients.connections();
        let event = "draining: no more clients are taken";
        log.info(event, &[("connections", &connections)]);
        let cut = clients.close(self.timeout).await;
        operators.close(OPERATOR_GRACE).await;
        if cut == 0 {
            log.info("drained: all clients were answered", &[]);
        } else {
            let event = "drained: the time is over, and some were cut";
            log.warn(event, &[("time", &time), ("connections", &cut)]);
        }
        DrainOutcome { aborted: cut }
    }
}

impl Default for DrainSettings {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            timeout: Duration::from_secs(10),
        }
    }
}

/// A time as people read it.
#[derive(derive_more::Display)]
#[display("{}s", _0.as_secs_f64())]
struct Seconds(Duration);
