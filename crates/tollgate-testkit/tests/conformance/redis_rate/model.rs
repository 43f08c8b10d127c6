//! What redis_rate's two scripts do, in exact rational arithmetic instead of doubles.
//!
//! A time in nanoseconds times the rate is a whole number in which one token is the period.

/// One key of the peer.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    rate: i128,
    emission: i128,
    tolerance: i128,
    tat: Option<i128>,
    /// What the key held when it was dropped.
    dropped: Option<i128>,
    /// When the key is dropped, in nanoseconds.
    expires: i128,
}

/// What a script answers; times in nanoseconds, rounded up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) allowed: u64,
    pub(crate) remaining: u64,
    pub(crate) retry_after: Option<i128>,
    pub(crate) reset_after: i128,
}

impl Key {
    pub(crate) fn new(rate: u64, burst: u64, period_ns: u64) -> Self {
        let emission = i128::from(period_ns);
        Self {
            rate: i128::from(rate),
            emission,
            tolerance: emission * i128::from(burst),
            tat: None,
            dropped: None,
            expires: 0,
        }
    }

    pub(crate) fn reset(&mut self) {
        (self.tat, self.dropped) = (None, None);
    }

    pub(crate) fn allow(&mut self, now: i128, n: u64) -> Answer {
        let tat = self.tat_at(now);
        let free = now * self.rate - (tat - self.tolerance);
        let left = free - self.emission * i128::from(n);
        if left < 0 {
            return self.refused(now, tat, -left);
        }
        self.passed(now, tat, n, self.emission * i128::from(n), left)
    }

    pub(crate) fn allow_at_most(&mut self, now: i128, n: u64) -> Answer {
        let tat = self.tat_at(now);
        let free = now * self.rate - (tat - self.tolerance);
        if free < self.emission {
            return self.refused(now, tat, self.emission - free);
        }
        let whole = self.emission * i128::from(n);
        if free >= whole {
            return self.passed(now, tat, n, whole, free - whole);
        }
        // What is there is taken with its fraction, and reported without.
        let allowed = u64::try_from(free / self.emission).unwrap_or(0);
        self.passed(now, tat, allowed, free, 0)
    }

    /// What is owed at `now`, as (amount, the amount that is one token).
    pub(crate) fn owed(&mut self, now: i128) -> (u128, u128) {
        let owed = self.tat_at(now) - now * self.rate;
        (owed.unsigned_abs(), self.emission.unsigned_abs())
    }

    /// Whether the key was dropped as expired, and then time went back to before what it held.
    pub(crate) fn has_forgotten(&mut self, now: i128) -> bool {
        self.drop_expired(now);
        self.dropped.is_some_and(|tat| tat > now * self.rate)
    }

    fn drop_expired(&mut self, now: i128) {
        if now >= self.expires && self.tat.is_some() {
            self.dropped = self.tat.take();
        }
    }

    fn tat_at(&mut self, now: i128) -> i128 {
        self.drop_expired(now);
        let now = now * self.rate;
        self.tat.map_or(now, |tat| tat.max(now))
    }

    fn nanos(&self, amount: i128) -> i128 {
        -(-amount).div_euclid(self.rate)
    }

    fn refused(&self, now: i128, tat: i128, short: i128) -> Answer {
        Answer {
            allowed: 0,
            remaining: 0,
            retry_after: Some(self.nanos(short)),
            reset_after: self.nanos(tat - now * self.rate),
        }
    }

    fn passed(&mut self, now: i128, tat: i128, allowed: u64, cost: i128, left: i128) -> Answer {
        let tat = tat + cost;
        let reset_after = self.nanos(tat - now * self.rate);
        if reset_after > 0 {
            (self.tat, self.dropped) = (Some(tat), None);
            let seconds = -(-reset_after).div_euclid(1_000_000_000);
            self.expires = now + seconds * 1_000_000_000;
        }
        Answer {
            allowed,
            remaining: u64::try_from(left / self.emission).unwrap_or(0),
            retry_after: None,
            reset_after,
        }
    }
}
