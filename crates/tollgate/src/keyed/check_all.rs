//! Several keys of one table, charged all or none: what a `CompositeLimiter` does, in fewer steps.

use std::time::Duration;

use tollgate_core::{Decision, Outcome, TatState, Timestamp};

use super::anchor::TableTime;
use super::shard::Shard;
use super::slot::{KeyWord, Slot};
use super::table::Candidates;
use super::{Key, KeyedLimiter};
use crate::cell::ChargeTicket;
use crate::clock::Clock;
use crate::key_handle::sealed::KeyTarget as _;
use crate::queued_limit::sealed::QueuedLimit;

/// How many keys are prefetched.
const PREFETCHED_KEYS: usize = 8;

/// The keys' words after they were charged, in the order of the keys. Most requests need no allocation for it.
struct ChargedWords {
    inline: [KeyWord; PREFETCHED_KEYS],
    overflow: Vec<KeyWord>,
}

impl ChargedWords {
    const NOTHING: Self = Self {
        inline: [KeyWord::NEW; PREFETCHED_KEYS],
        overflow: Vec::new(),
    };

    #[inline]
    fn put(&mut self, number: usize, word: KeyWord) {
        match self.inline.get_mut(number) {
            Some(place) => *place = word,
            None => self.overflow.push(word),
        }
    }

    fn of(&self, number: usize) -> Option<KeyWord> {
        let others = || self.overflow.get(number.checked_sub(PREFETCHED_KEYS)?);
        self.inline.get(number).or_else(others).copied()
    }
}

/// The result for several keys of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CombinedDecision {
    /// The key that decided: of an allowed request, the key with the fewest such requests remaining; of a denied one,
    /// the key with the longest wait. `None` if there were no keys.
    pub decided_by: Option<usize>,
    /// The decision of that key.
    pub decision: Decision,
    /// Whether all keys had room at first, and another request took tokens before all were charged.
    pub lost_race: bool,
}

impl CombinedDecision {
    const fn by_decider(decider: Option<usize>, decision: Decision) -> Self {
        Self {
            decided_by: decider,
            decision,
            lost_race: false,
        }
    }

    const fn by_lost_race(decider: usize, decision: Decision) -> Self {
        Self {
            lost_race: true,
            ..Self::by_decider(Some(decider), decision)
        }
    }
}

impl<C: Clock, T> KeyedLimiter<C, T> {
    /// Charges each of these keys of this limiter its cost, or none of them.
    ///
    /// As in a [`CompositeLimiter`](crate::CompositeLimiter), all keys are peeked before the first is charged, and
    /// charges are refunded if another request came between. If all pass, [`stats`](Self::stats) count each key with a
    /// cost as allowed; a denial counts once.
    ///
    /// ```
    /// use tollgate::{Algorithm, KeyedLimiter, Rate, Tier, clock::Manual};
    ///
    /// let limiter = KeyedLimiter::builder(Rate::per_hour(1), 100).clock(Manual::new()).build()?;
    /// let tenant = Tier::new(Algorithm::Gcra, Rate::per_hour(10))?;
    /// let keys = [(limiter.key("user"), 1), (limiter.key("tenant").at(&tenant)?, 4)];
    /// assert!(limiter.check_all(&keys).decision.is_allowed());
    /// let denied = limiter.check_all(&keys);
    /// assert_eq!((denied.decided_by, denied.decision.is_allowed()), (Some(0), false));
    /// assert_eq!(limiter.key("tenant").at(&tenant)?.peek().remaining, 6);
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    #[inline]
    pub fn check_all(&self, keys: &[(Key<'_, C, T>, u64)]) -> CombinedDecision {
        // All are prefetched first, so that the memory latencies overlap.
        let mut places: [Option<Candidates<'_>>; PREFETCHED_KEYS] = [None; PREFETCHED_KEYS];
        for (fetched, (key, _)) in places.iter_mut().zip(keys) {
            let place = self.table.candidates(key.0.fingerprint);
            place.prefetch();
            *fetched = Some(place);
        }
        let now = self.clock.now();
        if keys
            .iter()
            .any(|(key, _)| self.lines.is_marked(key.0.fingerprint))
            && let Some(refused) = self.denied_by_waiters(keys, now)
        {
            return refused;
        }
        let local = self.table.table_time(now);
        let mut slots: [Option<(&Shard, &Slot)>; PREFETCHED_KEYS] = [None; PREFETCHED_KEYS];
        for (number, (key, cost)) in keys.iter().enumerate() {
            let place = places.get(number).copied().flatten();
            let place = place.unwrap_or_else(|| self.table.candidates(key.0.fingerprint));
            let key = key.0.key();
            let slot = place.select(key.tagged());
            if let Some(found) = slots.get_mut(number) {
                *found = Some((place.shard, slot));
            }
            let judged = place.shard.peek(slot, &key.charge_request(local, *cost, 0));
            if judged.outcome != Outcome::Allowed {
                return self.denied(keys, local);
            }
        }
        self.charge_all(keys, &slots, now)
    }

    /// The denial with the longest wait, of keys that have waiters.
    #[cold]
    #[inline(never)]
    fn denied_by_waiters(
        &self,
        keys: &[(Key<'_, C, T>, u64)],
        now: Timestamp,
    ) -> Option<CombinedDecision> {
        let behind = keys.iter().enumerate().filter_map(|(number, (key, cost))| {
            let told = key.0.key().decision_behind_waiters(now, *cost)?;
            (!told.is_allowed()).then_some((number, told))
        });
        let (number, decision) = behind.max_by_key(|(_, told)| told.wait_or_max())?;
        self.counters.count(false);
        Some(CombinedDecision::by_decider(Some(number), decision))
    }

    /// The denial with the longest wait.
    #[cold]
    #[inline(never)]
    fn denied(&self, keys: &[(Key<'_, C, T>, u64)], local: TableTime) -> CombinedDecision {
        self.counters.count(false);
        let mut worst: Option<(usize, Decision)> = None;
        for (number, (key, cost)) in keys.iter().enumerate() {
            let key = key.0.key();
            let decision = key.report(&key.evaluate_request(local, *cost), 0);
            let graver = |other: &(usize, Decision)| decision.wait_or_max() > other.1.wait_or_max();
            if !decision.is_allowed() && worst.as_ref().is_none_or(graver) {
                worst = Some((number, decision));
            }
        }
        let Some((number, decision)) = worst else {
            // The key had no room a moment ago; the caller gets that denial, with a wait of zero.
            let wait = Duration::ZERO;
            let limit = keys
                .first()
                .map_or(0, |(key, _)| key.0.key().key.in_force.burst);
            let decision = Decision::new(Outcome::Denied, limit, 0, wait, wait);
            return CombinedDecision::by_lost_race(0, decision);
        };
        CombinedDecision::by_decider(Some(number), decision)
    }

    #[inline]
    fn charge_all(
        &self,
        keys: &[(Key<'_, C, T>, u64)],
        slots: &[Option<(&Shard, &Slot)>; PREFETCHED_KEYS],
        now: Timestamp,
    ) -> CombinedDecision {
        let local = self.table.table_time(now);
        let mut tightest: Option<(u64, usize, (KeyWord, Timestamp))> = None;
        let mut after = ChargedWords::NOTHING;
        let mut charged = 0;
        for (number, (key, cost)) in keys.iter().enumerate() {
            let key = key.0.key();
            let ask = key.charge_request(local, *cost, 0);
            // The slot of the first pass is tried again; `try_pass` detects whether it changed hands.
            let found = slots.get(number).copied().flatten();
            let passed = found.and_then(|(shard, slot)| shard.try_pass(slot, &ask));
            let (word, asked) = match passed {
                Some((true, word)) => (word, local.now),
                _ => {
                    let judged = key.charge(local, *cost);
                    if judged.outcome != Outcome::Allowed {
                        self.counters.count(false);
                        let decision = key.report(&judged, 0);
                        return self.cancel_all(&keys[..number], &after, now, decision);
                    }
                    let word = match cost {
                        0 => judged.before,
                        _ => judged.after,
                    };
                    (word, judged.now)
                }
            };
            charged += u64::from(*cost > 0);
            after.put(number, word);
            let pace = key.key.in_force.pace;
            let remaining = pace.remaining(TatState::from_word(word.0), asked);
            // Most costs are 1, and a division takes longer than all the code around it.
            let requests = if *cost > 1 {
                remaining / cost
            } else {
                remaining
            };
            if tightest.is_none_or(|(fewest, ..)| requests < fewest) {
                tightest = Some((requests, number, (word, asked)));
            }
        }
        // Counted only now, because a key whose charge was refunded hasn't passed.
        self.counters.count_allowed(charged);
        match tightest {
            None => CombinedDecision::by_decider(None, Decision::UNLIMITED),
            Some((_, number, (word, asked))) => {
                let key = keys[number].0.0.key();
                let left = key.decision_from_word(Outcome::Allowed, Duration::ZERO, word, asked);
                CombinedDecision::by_decider(Some(number), left)
            }
        }
    }

    /// Another request came between: refunds the charges, the latest first.
    #[cold]
    #[inline(never)]
    fn cancel_all(
        &self,
        charged: &[(Key<'_, C, T>, u64)],
        after: &ChargedWords,
        now: Timestamp,
        decision: Decision,
    ) -> CombinedDecision {
        for (number, (key, cost)) in charged.iter().enumerate().rev() {
            if let Some(word) = after.of(number)
                && *cost > 0
            {
                let key = key.0.key();
                let after = TatState::from_word(word.0);
                let charge = key.key.in_force.pace.charge_receipt(after, now, *cost);
                key.cancel_in_order(now, &ChargeTicket::Charged(charge));
            }
        }
        CombinedDecision::by_lost_race(charged.len(), decision)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;

    use tollgate_core::Rate;

    use super::*;
    use crate::clock::Manual;

    #[test]
    fn threads_that_ask_in_any_order_get_no_more_than_the_tightest_allows() {
        let clock = Manual::starting_at(Timestamp::from_secs(1));
        let limiter = KeyedLimiter::builder(Rate::per_hour(100), 1_000).clock(clock);
        let limiter = limiter.build().unwrap();
        let admitted = AtomicU64::new(0);
        thread::scope(|scope| {
            for order in [["a", "b"], ["b", "a"], ["a", "b"]] {
                let (limiter, admitted) = (&limiter, &admitted);
                scope.spawn(move || {
                    for _ in 0..200 {
                        let keys = order.map(|key| (limiter.key(key), 1));
                        if limiter.check_all(&keys).decision.is_allowed() {
                            admitted.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let admitted = admitted.load(Ordering::Relaxed);
        assert!(admitted <= 100);
        for key in ["a", "b"] {
            assert!(limiter.key(key).peek().remaining <= 100 - admitted);
        }
    }

    #[test]
    fn more_keys_than_are_fetched_ahead_are_charged_all_the_same() {
        let limiter = KeyedLimiter::builder(Rate::per_hour(2), 1_000).clock(Manual::new());
        let limiter = limiter.build().unwrap();
        let keys: Vec<_> = (0..20).map(|key| (limiter.key(&key), 1)).collect();
        assert!(limiter.check_all(&keys).decision.is_allowed());
        assert!(limiter.check(&13).is_allowed());
        let refused = limiter.check_all(&keys);
        assert_eq!(
            (refused.decided_by, refused.decision.is_allowed()),
            (Some(13), false)
        );
        assert!((0..20).all(|key| limiter.key(&key).peek().remaining == u64::from(key != 13)));
        assert_eq!(limiter.check_all(&[]).decision, Decision::UNLIMITED);
    }

    #[test]
    fn keys_that_pass_are_counted_each_and_a_denial_once() {
        let limiter = KeyedLimiter::builder(Rate::per_hour(2), 1_000).clock(Manual::new());
        let limiter = limiter.build().unwrap();
        let counts = || {
            let stats = limiter.stats();
            (stats.allowed, stats.denied)
        };
        let ask = |keys: &[(&str, u64)]| {
            let keys = keys.iter().map(|(key, cost)| (limiter.key(*key), *cost));
            let keys: Vec<_> = keys.collect();
            limiter.check_all(&keys).decision
        };
        assert!(ask(&[("a", 2), ("b", 1), ("looked at", 0)]).is_allowed());
        assert_eq!(counts(), (2, 0));
        // The peek shows it.
        assert!(!ask(&[("b", 1), ("a", 1)]).is_allowed());
        assert_eq!(counts(), (2, 1));
        // Only the charge of the second half of a key shows it.
        assert!(!ask(&[("c", 1), ("d", 2), ("d", 2)]).is_allowed());
        assert_eq!(counts(), (2, 2));
        assert!(ask(&[]).is_allowed());
        assert_eq!(counts(), (2, 2));
    }

    #[test]
    fn a_lost_race_gives_all_of_them_back_however_many() {
        let limiter = KeyedLimiter::builder(Rate::per_hour(2), 1_000).clock(Manual::new());
        let limiter = limiter.build().unwrap();
        for count in [3, PREFETCHED_KEYS, PREFETCHED_KEYS + 1, 100] {
            // One key twice, with room for each half alone: as if another request took the tokens in between.
            let twice = std::iter::once(count - 1);
            let keys = (0..count).chain(twice);
            let keys: Vec<_> = keys.map(|key| (limiter.key(&key), 2)).collect();
            let lost = limiter.check_all(&keys);
            assert!(lost.lost_race && !lost.decision.is_allowed());
            assert_eq!(lost.decided_by, Some(count));
            let charged = (0..count).filter(|key| limiter.key(key).peek().remaining < 2);
            assert_eq!(charged.count(), 0, "of {count}");
        }
    }
}
