//! What was written before: `RateLimit-Policy` is the same in all answers that show a limit, and who floods a service is
//! refused in the same words again and again.

use std::cell::RefCell;
use std::time::Duration;

use bytes::Bytes;

use super::answers::Form;
use crate::{DenyReason, Refusal, Shown};

/// So many limits are remembered by each thread. A power of two.
const PLACES: usize = 64;

thread_local! {
    /// Of each thread its own, so that nobody waits for the count of who shares a text.
    static POLICIES: RefCell<[Option<Memo>; PLACES]> = const { RefCell::new([const { None }; PLACES]) };
    static REFUSALS: RefCell<[Option<Words>; PLACES]> = const { RefCell::new([const { None }; PLACES]) };
    static EMPTY: RefCell<[Option<Empty>; PLACES]> = const { RefCell::new([const { None }; PLACES]) };
}

/// What `RateLimit` says of a limit of which nothing is left for so many seconds.
struct Empty {
    name: Box<str>,
    seconds: u64,
    value: Bytes,
}

/// The words of a refusal.
struct Words {
    form: Form,
    reason: DenyReason,
    limit: Box<str>,
    retry_after: Option<u64>,
    text: Texts,
}

/// What a refusal says that doesn't depend on who is refused.
#[derive(Clone)]
pub(super) struct Texts {
    pub(super) body: Bytes,
    /// The value of `Retry-After`.
    pub(super) retry_after: Bytes,
}

struct Memo {
    name: Box<str>,
    quota: u64,
    window: Option<Duration>,
    same: Same,
}

/// What all answers say that show a limit.
pub(super) struct Same {
    /// The value of `RateLimit-Policy`.
    pub(super) policy: Bytes,
    /// What the value of `RateLimit` begins with.
    pub(super) name: Bytes,
}

/// Takes what is written of this limit whatever is left, by the first function if it isn't remembered.
#[inline]
pub(super) fn same<T>(
    limit: &Shown<'_>,
    write: impl Fn() -> Same,
    mut take: impl FnMut(&Same) -> T,
) -> T {
    let taken = POLICIES.try_with(|places| {
        let mut places = places.borrow_mut();
        let place = &mut places[place_of(limit.name, limit.quota)];
        match place {
            Some(memo) if memo.is_of(limit) => take(&memo.same),
            _ => take(&place.insert(Memo::new(limit, write())).same),
        }
    });
    // A thread that ends remembers nothing, and may still have something to answer.
    taken.unwrap_or_else(|_| take(&write()))
}

/// What is written of a refusal, by this function if it isn't remembered.
pub(super) fn refusal(form: Form, refusal: &Refusal<'_>, write: impl Fn() -> Texts) -> Texts {
    let texts = REFUSALS.try_with(|places| {
        let seconds = refusal.retry_after.unwrap_or(u64::MAX);
        let mut places = places.borrow_mut();
        let place = &mut places[place_of(refusal.limit, seconds)];
        match place {
            Some(words) if words.are_of(form, refusal) => words.text.clone(),
            _ => place
                .insert(Words::new(form, refusal, write()))
                .text
                .clone(),
        }
    });
    texts.unwrap_or_else(|_| write())
}

/// The value of `RateLimit` while nothing is left of the limit with this name for so many seconds, by this function if it isn't
/// remembered.
pub(super) fn empty(name: &str, seconds: u64, write: impl Fn() -> Bytes) -> Bytes {
    let value = EMPTY.try_with(|places| {
        let mut places = places.borrow_mut();
        let place = &mut places[place_of(name, seconds)];
        match place {
            Some(empty) if empty.seconds == seconds && *empty.name == *name => empty.value.clone(),
            _ => place
                .insert(Empty::new(name, seconds, write()))
                .value
                .clone(),
        }
    });
    value.unwrap_or_else(|_| write())
}

/// Where what is known of a limit is kept, with this number of its. Those that share a place take turns.
#[inline]
fn place_of(name: &str, number: u64) -> usize {
    let name = name.as_bytes();
    let last = name.last().copied().unwrap_or_default();
    // Names of rules are often numbered, and differ at their end.
    let mixed = number ^ (u64::from(last) << 3) ^ (name.len() as u64);
    (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % PLACES
}

impl Empty {
    #[cold]
    fn new(name: &str, seconds: u64, value: Bytes) -> Self {
        Self {
            name: name.into(),
            seconds,
            value,
        }
    }
}

impl Words {
    #[cold]
    fn new(form: Form, refusal: &Refusal<'_>, text: Texts) -> Self {
        let &Refusal {
            reason,
            limit,
            retry_after,
        } = refusal;
        Self {
            form,
            reason,
            limit: limit.into(),
            retry_after,
            text,
        }
    }

    #[inline]
    fn are_of(&self, form: Form, refusal: &Refusal<'_>) -> bool {
        let own = (self.form, self.reason, self.retry_after);
        own == (form, refusal.reason, refusal.retry_after) && *self.limit == *refusal.limit
    }
}

impl Memo {
    #[cold]
    fn new(limit: &Shown<'_>, same: Same) -> Self {
        Self {
            name: limit.name.into(),
            quota: limit.quota,
            window: limit.window,
            same,
        }
    }

    #[inline]
    fn is_of(&self, limit: &Shown<'_>) -> bool {
        self.quota == limit.quota && self.window == limit.window && *self.name == *limit.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dialect;
    use crate::fields::write;
    use tollgate::{Decision, Outcome};

    #[test]
    fn limits_that_share_a_place_are_told_apart() {
        // More than there are places, in an order in which each comes again after the others.
        for round in 0..3 {
            for number in 0..3 * PLACES as u64 {
                let name = format!("rule-{}", number % 100);
                let window = Duration::from_secs(1 + number % 2);
                // With something left, and with nothing for more times than there are places.
                let full = Duration::from_secs(number % 150);
                let decision =
                    Decision::new(Outcome::Allowed, number, round % 2, Duration::ZERO, full);
                let shown = Shown::of(&name, &decision).window(window);
                let mut written = super::super::fields::Written::default();
                crate::fields::write_to(&[Dialect::Draft8], &[shown], 0, &mut written);
                let fields = super::super::Fields::from(written);
                let mut plain = Vec::new();
                write(&[Dialect::Draft8], &[shown], 0, |name, value| {
                    plain.push((name, value.to_owned()));
                });
                let found: Vec<_> = fields
                    .iter()
                    .map(|(name, value)| (name, value.to_owned()))
                    .collect();
                assert_eq!(found, plain, "{number} in round {round}");
            }
        }
    }

    #[test]
    fn refusals_that_share_a_place_are_told_apart() {
        let reasons = [DenyReason::Rate, DenyReason::Quota, DenyReason::TooLarge];
        for round in 0..3 {
            for number in 0..3 * PLACES as u64 {
                for (reason, form) in
                    reasons
                        .into_iter()
                        .zip([Form::Problem, Form::Plain, Form::Empty])
                {
                    let limit = format!("rule-{}", number % 50);
                    let one = Refusal {
                        reason,
                        limit: &limit,
                        retry_after: (reason != DenyReason::TooLarge).then_some(number % 70),
                    };
                    let write = || Texts {
                        body: format!("{form:?} {one:?}").into(),
                        retry_after: format!("{:?}", one.retry_after).into(),
                    };
                    let (found, fresh) = (refusal(form, &one, write), write());
                    assert_eq!(found.body, fresh.body, "{number} in round {round}");
                    assert_eq!(found.retry_after, fresh.retry_after);
                }
            }
        }
    }
}
