//! A peer: the store, or a node of a cluster. Each is connected by itself.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::batch::Batch;
use super::link::{AskingMode, FailureAction, StoreConnection};
use super::shared_state::DriverState;
use crate::address::Node;
use crate::error::{FailureKind, StoreError};

/// The pause between attempts to connect: this at first, doubled each time up to `MAX_RECONNECT_PAUSE`. A part
/// of it is random, so that a fleet doesn't reconnect all at the same moment.
pub(super) const MIN_RECONNECT_PAUSE: Duration = Duration::from_millis(10);
const MAX_RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// Doubles the pause, within bounds. The next attempt is half to all of the pause from now.
pub(super) fn next_attempt_at(pause: &mut Duration, shared: &DriverState) -> Instant {
    let half = *pause / 2;
    let chance = shared.random_part(half.as_nanos());
    *pause = (*pause * 2).min(MAX_RECONNECT_PAUSE);
    Instant::now() + half + chance
}

/// The number of a peer.
pub(super) type PeerId = u32;

/// The state of the connection.
pub(super) enum PeerState {
    /// Not connected, and a connection is being made. Requests wait for it until their deadline.
    New,
    Up(ConnectedPeer),
    /// Not connected, and no connection can be made now. Requests fail immediately.
    Down(StoreError),
}

/// A connection.
pub(super) struct ConnectedPeer {
    pub(super) link: StoreConnection,
    /// The number of the connection, among all to this peer.
    pub(super) number: u64,
    has_answered: bool,
    /// Ends the calls of this connection.
    ended: watch::Sender<Option<StoreError>>,
}

impl ConnectedPeer {
    /// Notifies a call when the connection ends.
    pub(super) fn subscribe_end(&self) -> watch::Receiver<Option<StoreError>> {
        self.ended.subscribe()
    }
}

pub(super) struct Peer {
    /// `None` if there is only one server.
    pub(super) node: Option<Node>,
    pub(super) state: PeerState,
    /// Calls that wait for the first connection.
    pub(super) parked: Vec<(Batch, AskingMode)>,
    pub(super) is_connecting: bool,
    pub(super) retry_at: Instant,
    pause: Duration,
    /// Whether the previous connection was lost before any reply.
    previous_unanswered: bool,
    /// The number of connections so far.
    connection_count: u64,
    /// The kind of connection failure that was logged last, since a call was answered.
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

    /// Records a new connection. Subscribers of the old one see its end.
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

    /// Whether the present connection has replied to any call.
    pub(super) const fn has_answered(&self) -> bool {
        matches!(&self.state, PeerState::Up(up) if up.has_answered)
    }

    /// Records a reply: if the connection breaks later, another is made immediately. Returns whether it was the
    /// first reply.
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

    /// Handles the loss of a connection. Returns whether it was the present one.
    pub(super) fn handle_loss(
        &mut self,
        number: u64,
        why: &FailureAction,
        error: &StoreError,
        shared: &DriverState,
    ) -> bool {
        let up = match &self.state {
            // The failure of an earlier connection says nothing about this one.
            PeerState::Up(up) if up.number == number => up,
            _ => return false,
        };
        // All calls in flight fail immediately.
        up.ended.send_replace(Some(error.clone()));
        let is_fruitless = !up.has_answered;
        // After one loss without a reply it reconnects immediately. After two in a row it backs off, because a
        // server that closes every connection must not be flooded with new ones.
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

    /// Logs why there is no connection, even without requests: immediately, and again only for another kind of
    /// failure.
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
