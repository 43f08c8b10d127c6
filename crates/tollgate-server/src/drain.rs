//! Graceful shutdown: clients are sent elsewhere, requests in flight are answered, and connections still open at the
//! timeout are cut.
//!
//! All protocols share one shutdown notice. While a service runs, the notice costs a connection one atomic load, and a
//! check of the waker registration when the connection waits.

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

/// The grace period for new clients to send a request, and for idle HTTP clients to send one more.
pub(crate) const GRACE: Duration = Duration::from_millis(250);
/// How long a client has to close its side after ours is closed. Its bytes are read meanwhile, as a reset could destroy
/// answers that are still on their way.
const LINGER: Duration = Duration::from_millis(500);
/// How many bytes are read from the client meanwhile.
const LINGER_BYTES: usize = 1 << 20;
/// Waiters get an error this long before they are cut, or a quarter of the whole timeout if that is shorter.
const SHUTDOWN_NOTICE: Duration = Duration::from_secs(1);
/// The grace period of operators' connections, after all clients' connections have closed.
const OPERATOR_GRACE: Duration = Duration::from_secs(2);
/// The error of a request that still waits when the service stops.
pub(crate) const SHUTTING_DOWN: &str =
    "the service ends before it is the request's turn: ask again";

/// The delays of a graceful shutdown.
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
    /// How long new clients are still accepted while health checks already fail, so that load balancers move on.
    pub delay: Duration,
    /// After the delay: how long requests in flight may take.
    pub timeout: Duration,
}

/// The outcome of a graceful shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DrainOutcome {
    /// Connections that were still open at the timeout, and were cut.
    pub aborted: usize,
}

/// The stages of a shutdown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    #[default]
    Serving,
    /// Clients should go elsewhere, but are still accepted.
    Draining,
    /// Listeners are closed. Open connections close as soon as their requests are answered.
    Closing,
    /// Requests that still wait get an error.
    Aborting,
}

/// Sets the stage for all connections of some listeners. Clones share one stage.
#[derive(Clone, Default)]
pub(crate) struct ShutdownSignal(watch::Sender<Stage>);

/// A connection's view of the shutdown stage.
pub(crate) struct ShutdownNotice {
    stages: watch::Receiver<Stage>,
    stage: Stage,
    /// Waits for the next change of the stage; created when a connection first waits.
    next_change: Option<StageChange>,
}

/// Ready at the next change of the stage.
type StageChange = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Listeners that stop together, with all their connections.
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

    /// A notice for a new connection.
    pub(crate) fn notice(&self) -> ShutdownNotice {
        let mut told = self.0.subscribe();
        // A stage that was set before the subscription counts as a change.
        told.mark_changed();
        ShutdownNotice {
            stages: told,
            next_change: None,
            stage: Stage::Serving,
        }
    }
}

/// Waits until the stage changes from the last seen one.
fn stage_change(told: &watch::Receiver<Stage>) -> StageChange {
    let mut told = told.clone();
    // Unconstrained: when tokio's coop budget is used up, a constrained future would return without registering its
    // waker.
    Box::pin(unconstrained(async move {
        if told.changed().await.is_err() {
            // The sender is gone, so the stage never changes again.
            std::future::pending::<()>().await;
        }
    }))
}

impl ShutdownNotice {
    /// The current stage.
    pub(crate) fn stage(&mut self) -> Stage {
        if self.stages.has_changed().unwrap_or(true) {
            self.stage = *self.stages.borrow_and_update();
            self.next_change = None;
        }
        self.stage
    }

    /// Ready once the stage is at least `stage`.
    pub(crate) fn poll_stage(&mut self, cx: &mut Context<'_>, stage: Stage) -> Poll<()> {
        loop {
            if self.stage() >= stage {
                return Poll::Ready(());
            }
            let next = self
                .next_change
                .get_or_insert_with(|| stage_change(&self.stages));
            // In a loop: a change just before the waker is registered completes the future without a later stage, and
            // it must wait again.
            if next.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Ready with the current stage, once it is beyond `stage`.
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

/// Closes our side of a connection, and reads what the client still sends until it closes its side.
pub(crate) async fn discard_until_closed(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    notice: &mut ShutdownNotice,
) {
    // The side may be closed already.
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
    // A client that doesn't close in time is cut anyway.
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

    /// Serves a listener, whose open connections are counted.
    pub(crate) fn spawn(
        &mut self,
        open: Arc<ListenerConnections>,
        taking: impl Future<Output = ()> + Send + 'static,
    ) {
        self.open.push(open);
        self.tasks.spawn(taking);
    }

    /// Stops all listeners and connections immediately.
    pub(crate) async fn abort(&mut self) {
        self.tasks.shutdown().await;
    }

    fn connections(&self) -> usize {
        self.open.iter().map(|open| open.count()).sum()
    }

    async fn wait_until_empty(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }

    /// Closes the listeners, lets connections finish, and cuts those still open at the timeout. Returns how many were
    /// cut.
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
    /// Closes the clients' connections, then the operators': operators can watch until the clients are gone.
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

/// A duration in seconds, for the log.
#[derive(derive_more::Display)]
#[display("{}s", _0.as_secs_f64())]
struct Seconds(Duration);
