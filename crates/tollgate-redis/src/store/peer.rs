//! A server that is connected to: the store, or a node of a cluster, each of which is up or down by itself.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::batch::Batch;
use super::link::{AskingMode, FailureAction, StoreConnection};
use super::shared_state::DriverState;
use crate::address::Node;
use crate::error::{FailureKind, StoreError};

/// Between attempts to connect: so long at first, twice as long each time, and no longer than this. A part
/// of it is left to chance, so that a fleet doesn't come back all at once.
pub(super) const MIN_RECONNECT_PAUSE: Duration = Duration::from_millis(10);
const MAX_RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// Twice as long, within bounds; and from half to all of the pause from now.
pub(super) fn next_attempt_at(pause: &mut Duration, shared: &DriverState) -> Instant {
    let half = *pause / 2;
    let chance = shared.random_part(half.as_nanos());
    *pause = (*pause * 2).min(MAX_RECONNECT_PAUSE);
    Instant::now() + half + chance
}

/// The number of a server that is connected to.
pub(super) type PeerId = u32;

/// How the connection is.
pub(super) enum PeerState {
    /// There is none, and one is being made; a request waits for it as long as its patience lasts.
    New,
    Up(ConnectedPeer),
    /// There is none, and none can be made now; a request is told so at once.
    Down(StoreError),
}

/// A connection.
pub(super) struct ConnectedPeer {
    pub(super) link: StoreConnection,
    /// Which one it is, of all to this peer.
    pub(super) number: u64,
    has_answered: bool,
    /// Its calls end with it.
    ended: watch::Sender<Option<StoreError>>,
}

impl ConnectedPeer {
    /// Tells a call when the connection is given up.
    pub(super) fn subscribe_end(&self) -> watch::Receiver<Option<StoreError>> {
        self.ended.subscribe()
    }
}

pub(super) struct Peer {
    /// None if there is but one.
    pub(super) node: Option<Node>,
    pub(super) state: PeerState,
    /// What waits for the first connection.
    pub(super) parked: Vec<(Batch, AskingMode)>,
    pub(super) is_connecting: bool,
    pub(super) retry_at: Instant,
    pause: Duration,
    /// Whether the connection before this one was lost without an answer to any call.
    previous_unanswered: bool,
    /// Connections so far.
    connection_count: u64,
    /// What sort of failure to connect was told last, since a call was answered.
    last_logged_kind: Option<FailureKind>,
}

impl Peer {
    pub(super) fn new(node: Option<Node>) -> Self {
        Self {
            node,
            state: PeerState::New,
            parked: Vec::new(),
            is_connecting: false,
            retry_at: Instant::now(),
            pause: MIN_RECONNECT_PAUSE,
            previous_unanswered: false,
            connection_count: 0,
            last_logged_kind: None,
        }
    }

    pub(super) const fn is_up(&self) -> bool {
        matches!(self.state, PeerState::Up(_))
    }

    /// It is up by this connection; who waits for what is told sees the end of it.
    pub(super) fn mark_connected(
        &mut self,
        link: StoreConnection,
    ) -> watch::Receiver<Option<StoreError>> {
        self.connection_count += 1;
        self.is_connecting = false;
        let (ended, end) = watch::channel(None);
        self.state = PeerState::Up(ConnectedPeer {
            link,
            number: self.connection_count,
            has_answered: false,
            ended,
        });
        end
    }

    pub(super) fn mark_unreachable(&mut self, error: StoreError, shared: &DriverState) {
        self.is_connecting = false;
        self.log_failure(&error);
        self.mark_down(error, shared);
    }

    /// Whether calls of the connection that there is were answered.
    pub(super) const fn has_answered(&self) -> bool {
        matches!(&self.state, PeerState::Up(up) if up.has_answered)
    }

    /// A call was answered: if the connection breaks, another is made at once. Returns whether it is the first answer.
    pub(super) fn record_answer(&mut self, number: u64) -> bool {
        if let PeerState::Up(up) = &mut self.state
            && up.number == number
            && !up.has_answered
        {
            up.has_answered = true;
            self.pause = MIN_RECONNECT_PAUSE;
            self.previous_unanswered = false;
            self.last_logged_kind = None;
            return true;
        }
        false
    }

    /// A connection is of no use any more, if it is still this one. Whether it was.
    pub(super) fn handle_loss(
        &mut self,
        number: u64,
        why: &FailureAction,
        error: &StoreError,
        shared: &DriverState,
    ) -> bool {
        let up = match &self.state {
            // What a connection before this one left behind says nothing of it.
            PeerState::Up(up) if up.number == number => up,
            _ => return false,
        };
        // All that wait for it are told at once.
        up.ended.send_replace(Some(error.clone()));
        let is_fruitless = !up.has_answered;
        let mark_down =
            *why == FailureAction::WrongNode || (is_fruitless && self.previous_unanswered);
        self.previous_unanswered = is_fruitless;
        if mark_down {
            self.log_failure(error);
            self.mark_down(error.clone(), shared);
        } else {
            self.state = PeerState::New;
            self.retry_at = Instant::now();
        }
        true
    }

    fn mark_down(&mut self, error: StoreError, shared: &DriverState) {
        self.retry_at = next_attempt_at(&mut self.pause, shared);
        self.state = PeerState::Down(error);
    }

    /// Says why there is no connection, whether or not anybody has asked for one: at once, and again only
    /// once there is another reason.
    fn log_failure(&mut self, error: &StoreError) {
        let kind = error.kind();
        if self.last_logged_kind.replace(kind) == Some(kind) {
            return;
        }
        let kind = kind.name();
        match &self.node {
            None => tracing::warn!(target: "tollgate", kind, "no rate-limit store: {error}"),
            Some(node) => {
                tracing::warn!(target: "tollgate", kind, "no node {node} of the rate-limit store: {error}");
            }
        }
    }
}
