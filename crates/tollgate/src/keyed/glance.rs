//! What one look at a key tells.

use std::fmt;
use std::time::Duration;

use tollgate_core::{Decision, Outcome, Timestamp};

use super::OneRate;
use super::anchor::Moment;
use super::rated::Rated;
use super::word::KeyWord;
use crate::clock::{Clock, Monotonic};

/// What [one look](super::Key::check_at_a_glance) at a key told: whether a request passed, and all else if somebody wants to
/// know.
#[must_use = "a request that isn't allowed mustn't pass"]
pub struct Glance<'a, C: Clock = Monotonic, T = OneRate> {
    pub(super) rated: Rated<'a, C, T>,
    pub(super) allowed: bool,
    /// The key's, after the charge if there was one.
    pub(super) word: KeyWord,
    pub(super) moment: Moment,
    pub(super) cost: u64,
}

impl<C: Clock, T> Glance<'_, C, T> {
    /// Whether the request passed.
    #[inline(always)]
    pub const fn is_allowed(self) -> bool {
        self.allowed
    }

    /// How much is left, and when to come back.
    #[inline(always)]
    pub fn decision(self) -> Decision {
        let now = self.moment.now;
        if self.allowed {
            let none = Duration::ZERO;
            self.rated.left(Outcome::Allowed, none, self.word, now)
        } else {
            refusal(self.rated, self.word, now, self.cost)
        }
    }
}

/// What is said of a refusal by a key with this word. Apart, so that those who pass needn't have all this in memory.
#[inline(never)]
fn refusal<C: Clock, T>(
    rated: Rated<'_, C, T>,
    word: KeyWord,
    now: Timestamp,
    cost: u64,
) -> Decision {
    rated.report(&word.judge(rated.in_force.pace, now, cost), cost)
}

impl<C: Clock, T> Clone for Glance<'_, C, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C: Clock, T> Copy for Glance<'_, C, T> {}

impl<C: Clock, T> fmt::Debug for Glance<'_, C, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Glance").field(&self.decision()).finish()
    }
}
