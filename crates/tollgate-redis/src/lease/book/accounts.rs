//! What a node knows of the tokens of one key: how many it received, how many were recorded as spent, and which
//! are held for requests.

use std::collections::BTreeMap;

use tollgate::Timestamp;

/// Counts of tokens that were spent, which leave no other trace, and of tokens held for requests.
#[derive(Debug, Default)]
pub(super) struct TokenAccounts {
    /// All tokens received, less those that were returned, dropped or expired. Those that aren't here any more
    /// were spent or are held by requests.
    pub(super) received: u64,
    /// How many of these were recorded as spent.
    pub(super) recorded_as_spent: u64,
    /// Tokens held by requests until their actual cost is known. To the store, they count as held.
    pub(super) held_for_requests: u64,
    pub(super) estimates: BTreeMap<u64, HeldEstimate>,
    /// No estimate expires before this.
    first_expiry: Timestamp,
    /// The number of the next estimate.
    next: u64,
    /// Tokens spent beyond estimates, which the store doesn't know of.
    pub(super) owed: u64,
    /// Tokens that were reported as spent and came back, and when the store began to drain them.
    pub(super) returned_after_report: u64,
    returned_since: Timestamp,
    /// Whether less is out than was reported: the spent part of settled estimates drains once the store knows.
    pub(super) has_settled_estimates: bool,
}

/// The tokens that one request holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldEstimate {
    pub(super) tokens: u64,
    /// When the estimate counts as spent.
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

    /// Counts expired estimates as spent.
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

    /// Extends an estimate. No estimate expires sooner by that, so `first_expiry` stays a lower bound.
    pub(super) fn extend_estimate(&mut self, number: u64, until: Timestamp) {
        if let Some(estimate) = self.estimates.get_mut(&number) {
            estimate.until = estimate.until.max(until);
        }
    }

    /// Drops all estimates: the store counts all that was out as spent.
    pub(super) fn drop_all_estimates(&mut self) {
        self.estimates.clear();
        (self.held_for_requests, self.returned_after_report) = (0, 0);
    }

    /// Records tokens that were reported as spent since then, and came back.
    pub(super) fn add_late(&mut self, tokens: u64, since: Timestamp) {
        self.returned_since = match self.returned_after_report {
            0 => since,
            _ => since.min(self.returned_since),
        };
        self.returned_after_report += tokens;
        // They weren't spent, and aren't here either.
        self.remove_received(tokens);
    }

    pub(super) fn take_late(&mut self) -> (u64, Timestamp) {
        (
            std::mem::take(&mut self.returned_after_report),
            self.returned_since,
        )
    }

    /// Removes tokens that nobody spent. Otherwise tokens to come would count as recorded already.
    pub(super) fn remove_received(&mut self, tokens: u64) {
        self.received = self.received.saturating_sub(tokens);
        self.recorded_as_spent = self.recorded_as_spent.min(self.received);
    }

    /// Records a total as spent. Returns how much of it is new.
    pub(super) fn record_spent(&mut self, spent: u64) -> u64 {
        let more = spent.saturating_sub(self.recorded_as_spent);
        self.recorded_as_spent += more;
        more
    }
}
