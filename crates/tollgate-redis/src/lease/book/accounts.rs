//! What a node knows of the tokens of one key: how many it had, how many of those were noted as spent, and which
//! are held for requests.

use std::collections::BTreeMap;

use tollgate::Timestamp;

/// What is known of tokens that were spent, which leaves no other trace, and of those that are held for requests.
#[derive(Debug, Default)]
pub(super) struct TokenAccounts {
    /// All that came, less what was returned, dropped or worth nothing in the end: what isn't here any more of
    /// it was spent, or is out.
    pub(super) received: u64,
    /// So much of it was noted as spent.
    pub(super) recorded_as_spent: u64,
    /// What requests hold until it is known what they cost: the store is told of it as of what is here.
    pub(super) held_for_requests: u64,
    pub(super) estimates: BTreeMap<u64, HeldEstimate>,
    /// No estimate ends before this.
    first_expiry: Timestamp,
    /// The number of the next.
    next: u64,
    /// What was spent beyond estimates, and the store doesn't know of.
    pub(super) owed: u64,
    /// What the store was told was spent, and wasn't in the end; and since when it may have drained there.
    pub(super) returned_after_report: u64,
    returned_since: Timestamp,
    /// Whether less is out than the store was told: what was spent of it drains once the store knows.
    pub(super) has_settled_estimates: bool,
}

/// What one request holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldEstimate {
    pub(super) tokens: u64,
    /// Then it is spent.
    until: Timestamp,
}

impl TokenAccounts {
    pub(super) fn open_estimate(&mut self, tokens: u64, until: Timestamp) -> u64 {
        let number = self.next;
        self.next += 1;
        self.held_for_requests += tokens;
        let is_first = self.estimates.is_empty() || until < self.first_expiry;
        self.first_expiry = if is_first { until } else { self.first_expiry };
        self.estimates
            .insert(number, HeldEstimate { tokens, until });
        number
    }

    /// Estimates whose time is over are spent.
    pub(super) fn expire_estimates(&mut self, now: Timestamp) {
        if now < self.first_expiry {
            return;
        }
        let mut out = self.held_for_requests;
        self.estimates.retain(|_, estimate| {
            let stays = now < estimate.until;
            out -= if stays { 0 } else { estimate.tokens };
            stays
        });
        self.held_for_requests = out;
        let first = self.estimates.values().map(|estimate| estimate.until).min();
        self.first_expiry = first.unwrap_or(Timestamp::MAX);
    }

    /// An estimate ends then. None ends sooner by that, so the first end that is known stays right.
    pub(super) fn extend_estimate(&mut self, number: u64, until: Timestamp) {
        if let Some(estimate) = self.estimates.get_mut(&number) {
            estimate.until = estimate.until.max(until);
        }
    }

    /// The store counts all that was out as spent.
    pub(super) fn drop_all_estimates(&mut self) {
        self.estimates.clear();
        (self.held_for_requests, self.returned_after_report) = (0, 0);
    }

    /// What was told as spent since then came back.
    pub(super) fn add_late(&mut self, tokens: u64, since: Timestamp) {
        self.returned_since = match self.returned_after_report {
            0 => since,
            _ => since.min(self.returned_since),
        };
        self.returned_after_report += tokens;
        // What was noted of it wasn't spent, and it isn't here.
        self.remove_received(tokens);
    }

    pub(super) fn take_late(&mut self) -> (u64, Timestamp) {
        (
            std::mem::take(&mut self.returned_after_report),
            self.returned_since,
        )
    }

    /// Tokens were lost that nobody spent. What was noted of them isn't noted of those to come.
    pub(super) fn remove_received(&mut self, tokens: u64) {
        self.received = self.received.saturating_sub(tokens);
        self.recorded_as_spent = self.recorded_as_spent.min(self.received);
    }

    /// How much more than was noted before.
    pub(super) fn record_spent(&mut self, spent: u64) -> u64 {
        let more = spent.saturating_sub(self.recorded_as_spent);
        self.recorded_as_spent += more;
        more
    }
}
