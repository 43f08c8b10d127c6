//! Connections on which nothing happens: one without calls is ended, and of one with calls the client is asked whether it
//! is still there.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::{Instant, Sleep, sleep};

use crate::bounds::Bounds;

/// How long nothing has happened, and what was done about it.
pub(crate) struct Quiet {
    timer: Pin<Box<Sleep>>,
    asked: Asked,
    /// None if the connection has given it to somebody else, which it hasn't.
    pings: Option<PingPong>,
    idle: Duration,
    /// The time that a client has to answer, or to leave.
    patience: Duration,
}

/// What the client was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Nothing,
    /// Whether it is there.
    Presence,
    /// To finish what it has, and to leave.
    ToLeave,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// Tell the client that no more calls are taken.
    SayGoodbye,
    /// Close, whatever is open.
    Close,
}

impl Quiet {
    pub(crate) fn new(pings: Option<PingPong>, bounds: &Bounds) -> Self {
        Self {
            timer: Box::pin(sleep(bounds.idle_time)),
            asked: Asked::Nothing,
            pings,
            idle: bounds.idle_time,
            patience: bounds.request_time,
        }
    }

    /// A call came in. One that was told to leave has no more time for that.
    pub(crate) fn heard(&mut self) {
        if self.asked != Asked::ToLeave {
            self.ask(Asked::Nothing, self.idle);
        }
    }

    fn ask(&mut self, what: Asked, time: Duration) {
        self.asked = what;
        self.timer.as_mut().reset(Instant::now() + time);
    }

    /// Ready if something is to be done about a connection on which nothing happens.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, has_no_calls: bool) -> Poll<Then> {
        if let (Asked::Presence, Some(pings)) = (self.asked, &mut self.pings)
            && let Poll::Ready(Ok(_)) = pings.poll_pong(cx)
        {
            self.ask(Asked::Nothing, self.idle);
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            if self.asked != Asked::Nothing {
                return Poll::Ready(Then::Close);
            }
            if has_no_calls {
                self.ask(Asked::ToLeave, self.patience);
                return Poll::Ready(Then::SayGoodbye);
            }
            self.ask(Asked::Presence, self.patience);
            if let Some(pings) = &mut self.pings {
                // One that is still under way is as good as another.
                let _ = pings.send_ping(Ping::opaque());
                // Whoever is told that there is an answer has asked for it before.
                if let Poll::Ready(Ok(_)) = pings.poll_pong(cx) {
                    self.ask(Asked::Nothing, self.idle);
                }
            }
        }
        Poll::Pending
    }
}
