//! A cache of texts. `RateLimit-Policy` is the same in all responses that show a limit, and a client that floods a
//! service gets the same denial again and again.

use std::cell::RefCell;
use std::thread::LocalKey;
use std::time::Duration;

use bytes::Bytes;

use super::response::DenialBodyFormat;
use crate::{DenialBody, DenyReason, ShownLimit};

/// The number of cached limits of each thread. A power of two.
const PLACES: usize = 64;

thread_local! {
    /// One cache for each thread: a shared one would make threads wait for each other's reference counts.
    static POLICIES: CacheSlots<LimitKey, PolicyTexts> = const { RefCell::new([const { None }; PLACES]) };
    static REFUSALS: CacheSlots<DenialKey, DenialTexts> = const { RefCell::new([const { None }; PLACES]) };
    static EMPTY: CacheSlots<(Box<str>, u64), Bytes> = const { RefCell::new([const { None }; PLACES]) };
}

/// Texts, each with the key for which it was written.
type CacheSlots<K, T> = RefCell<[Option<(K, T)>; PLACES]>;

/// A limit: its name, quota and window.
type LimitKey = (Box<str>, u64, Option<Duration>);

/// A denial: the name of its limit, its format and reason, and the retry delay.
type DenialKey = (Box<str>, DenialBodyFormat, DenyReason, Option<u64>);

/// The parts of a denial that don't depend on the client.
#[derive(Clone)]
pub(super) struct DenialTexts {
    pub(super) body: Bytes,
    /// The value of `Retry-After`.
    pub(super) retry_after: Bytes,
}

/// The parts that are the same in all responses that show a limit.
pub(super) struct PolicyTexts {
    /// The value of `RateLimit-Policy`.
    pub(super) policy: Bytes,
    /// The start of the value of `RateLimit`.
    pub(super) name: Bytes,
}

/// Takes the cached text at this index if it has the right key; otherwise writes it there first.
#[inline]
fn cached<K, T, R>(
    places: &'static LocalKey<CacheSlots<K, T>>,
    place: usize,
    is_it: impl FnOnce(&K) -> bool,
    write: impl Fn() -> (K, T),
    mut take: impl FnMut(&T) -> R,
) -> R {
    let taken = places.try_with(|places| {
        let place = &mut places.borrow_mut()[place];
        match place {
            Some((of, text)) if is_it(of) => take(text),
            _ => take(put(place, write())),
        }
    });
    // While a thread ends its cache is gone, and it may still have responses to write.
    taken.unwrap_or_else(|_| take(&write().1))
}

#[cold]
fn put<K, T>(place: &mut Option<(K, T)>, written: (K, T)) -> &T {
    &place.insert(written).1
}

/// Takes the texts of a limit that don't depend on the remaining quota; `write` writes them if they aren't cached.
#[inline]
pub(super) fn policy_texts<R>(
    limit: &ShownLimit<'_>,
    write: impl Fn() -> PolicyTexts,
    take: impl FnMut(&PolicyTexts) -> R,
) -> R {
    let &ShownLimit {
        name,
        quota,
        window,
        ..
    } = limit;
    cached(
        &POLICIES,
        cache_index(name, quota),
        |of| (&*of.0, of.1, of.2) == (name, quota, window),
        || ((name.into(), quota, window), write()),
        take,
    )
}

/// The texts of a denial; `write` writes them if they aren't cached.
pub(super) fn denial_texts(
    form: DenialBodyFormat,
    refusal: &DenialBody<'_>,
    write: impl Fn() -> DenialTexts,
) -> DenialTexts {
    let &DenialBody {
        reason,
        limit,
        retry_after,
    } = refusal;
    cached(
        &REFUSALS,
        cache_index(limit, retry_after.unwrap_or(u64::MAX)),
        |of| (&*of.0, of.1, of.2, of.3) == (limit, form, reason, retry_after),
        || ((limit.into(), form, reason, retry_after), write()),
        DenialTexts::clone,
    )
}

/// The value of `RateLimit` while nothing of this limit remains, with this time until the refill; `write` writes it
/// if it isn't cached.
pub(super) fn exhausted_text(name: &str, seconds: u64, write: impl Fn() -> Bytes) -> Bytes {
    cached(
        &EMPTY,
        cache_index(name, seconds),
        |of| (&*of.0, of.1) == (name, seconds),
        || ((name.into(), seconds), write()),
        Bytes::clone,
    )
}

/// The cache index of a limit and one of its numbers. Limits with the same index replace each other.
#[inline]
fn cache_index(name: &str, number: u64) -> usize {
    let name = name.as_bytes();
    let last = name.last().copied().unwrap_or_default();
    // The last byte is enough of the name, as rules are often numbered and differ at the end.
    let mixed = number ^ (u64::from(last) << 3) ^ (name.len() as u64);
    (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % PLACES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HeaderDialect;
    use crate::fields::write;
    use tollgate::{Decision, Outcome};

    #[test]
    fn limits_that_share_a_place_are_told_apart() {
        // More limits than fit into the cache, in an order in which each returns after all the others.
        for round in 0..3 {
            for number in 0..3 * PLACES as u64 {
                let name = format!("rule-{}", number % 100);
                let window = Duration::from_secs(1 + number % 2);
                // With remaining quota, and without it for more refill times than fit into the cache.
                let full = Duration::from_secs(number % 150);
                let decision =
                    Decision::new(Outcome::Allowed, number, round % 2, Duration::ZERO, full);
                let shown = ShownLimit::of(&name, &decision).window(window);
                let mut written = super::super::fields::FieldWriter::default();
                crate::fields::write_to(&[HeaderDialect::Draft8], &[shown], 0, &mut written);
                let fields = super::super::HeaderFields::from(written);
                let mut plain = Vec::new();
                write(&[HeaderDialect::Draft8], &[shown], 0, |name, value| {
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
                for (reason, form) in reasons.into_iter().zip([
                    DenialBodyFormat::Problem,
                    DenialBodyFormat::Plain,
                    DenialBodyFormat::Empty,
                ]) {
                    let limit = format!("rule-{}", number % 50);
                    let one = DenialBody {
                        reason,
                        limit: &limit,
                        retry_after: (reason != DenyReason::TooLarge).then_some(number % 70),
                    };
                    let write = || DenialTexts {
                        body: format!("{form:?} {one:?}").into(),
                        retry_after: format!("{:?}", one.retry_after).into(),
                    };
                    let (found, fresh) = (denial_texts(form, &one, write), write());
                    assert_eq!(found.body, fresh.body, "{number} in round {round}");
                    assert_eq!(found.retry_after, fresh.retry_after);
                }
            }
        }
    }
}
