//! What a node knows of the tokens of one key: how many it had, how many of those were noted as spent, and which
//! are held for requests.

use std::collections::BTreeMap;

use tollgate::Timestamp;

/// What is known of tokens that were spent, which leaves no other trace, and of those that are held for requests.
#[derive(Debug, Default)]
pub(super) struct TokenAccounts {
    /// All that came, less what was returned, dropped or worth nothing in the end: what isn't here any more of
    /// it was spent, or is out.
    pub(super) had: u64,
    /// So much of it was noted as spent.
    pub(super) noted: u64,
    /// What requests hold until it is known what they cost: the store is told of it as of what is here.
    pub(super) out: u64,
    pub(super) estimates: BTreeMap<u64, HeldEstimate>,
    /// No estimate ends before this.
    over_from: Timestamp,
    /// The number of the next.
    next: u64,
    /// What was spent beyond estimates, and the store doesn't know of.
    pub(super) owed: u64,
    /// What the store was told was spent, and wasn't in the end; and since when it may have drained there.
    pub(super) late: u64,
    late_since: Timestamp,
    /// Whether less is out than the store was told: what was spent of it drains once the store knows.
    pub(super) is_less: bool,
}

/// What one request holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldEstimate {
    pub(super) tokens: u64,
    /// Then it is spent.
    until: Timestamp,
}

impl TokenAccounts {
    pub(super) fn open(&mut self, tokens: u64, until: Timestamp) -> u64 {
        let number = self.next;
        self.next += 1;
        self.out += tokens;
        let is_first = self.estimates.is_empty() || until < self.over_from;
        self.over_from = if is_first { until } else { self.over_from };
        self.estimates
            .insert(number, HeldEstimate { tokens, until });
        number
    }

    /// Estimates whose time is over are spent.
    pub(super) fn expire(&mut self, now: Timestamp) {
        if now < self.over_from {
            return;
        }
        let mut out = self.out;
        self.estimates.retain(|_, estimate| {
            let stays = now < estimate.until;
            out -= if stays { 0 } else { estimate.tokens };
            stays
        });
        self.out = out;
        let first = self.estimates.values().map(|estimate| estimate.until).min();
        self.over_from = first.unwrap_or(Timestamp::MAX);
    }

    /// An estimate ends then. None ends sooner by that, so the first end that is known stays right.
    pub(super) fn prolong(&mut self, number: u64, until: Timestamp) {
        if let Some(estimate) = self.estimates.get_mut(&number) {
            estimate.until = estimate.until.max(until);
        }
    }

    /// The store counts all that was out as spent.
    pub(super) fn lapse(&mut self) {
        self.estimates.clear();
        (self.out, self.late) = (0, 0);
    }

    /// What was told as spent since then came back.
    pub(super) fn add_late(&mut self, tokens: u64, since: Timestamp) {
        self.late_since = match self.late {
            0 => since,
            _ => since.min(self.late_since),
        };
        self.late += tokens;
        // What was noted of it wasn't spent, and it isn't here.
        self.lose(tokens);
    }

    pub(super) fn take_late(&mut self) -> (u64, Timestamp) {
        (std::mem::take(&mut self.late), self.late_since)
    }

    /// Tokens were lost that nobody spent. What was noted of them isn't noted of those to come.
    pub(super) fn lose(&mut self, tokens: u64) {
        self.had = self.had.saturating_sub(tokens);
        self.noted = self.noted.min(self.had);
    }

    /// How much more than was noted before.
    pub(super) fn note(&mut self, spent: u64) -> u64 {
        let more = spent.saturating_sub(self.noted);
        self.noted += more;
        more
    }
}
