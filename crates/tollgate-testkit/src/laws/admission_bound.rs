//! Law 2 and the laws that build on it: how much may pass in any window, whatever the times of the requests.

use tollgate_core::{Rate, Timestamp, WindowAlignment};

use super::{Adjustable, LawViolation, Subject, admitted, ensure, state_after};
use crate::oracle::{Hit, OracleKind, reduced_rate};
use crate::traffic::Arrival;

/// Law 2: no window holds more than the algorithm's bound.
///
/// Buckets: burst + rate · w in any w. Fixed window: the count in each of its windows, twice the
/// count in any trailing one. Log: the count in any trailing window. Sliding counter: count and
/// burst in any trailing window, and n counts and one loan in n aligned ones.
///
/// # Errors
/// The first window that holds too much.
pub fn law_2_bound<S: Subject>(
    kind: OracleKind,
    rate: Rate,
    make: impl Fn(Rate) -> S,
    asks: &[Arrival],
) -> Result<(), LawViolation> {
    check(2, kind, rate, &admitted(&mut make(rate), asks))
}

/// Law 2 at a live change of the rate: before and after it each rate keeps its own bound, and across it a
/// bucket admits no more than the larger burst and what refills.
///
/// # Errors
/// The first window that holds too much.
pub fn law_2_live_change<S: Adjustable>(
    kind: OracleKind,
    [old, new]: [Rate; 2],
    make: impl Fn(Rate) -> S,
    asks: &[Arrival],
) -> Result<(), LawViolation> {
    let (before, rest) = asks.split_at(asks.len() / 2);
    let mut subject = make(old);
    let mut hits = admitted(&mut subject, before);
    check(2, kind, old, &hits)?;
    let changed_at = rest.first().map_or(Timestamp::ZERO, |ask| ask.at);
    subject.set_rate_at(changed_at, new);
    let later = admitted(&mut subject, rest);
    check(2, kind, new, &later)?;
    hits.extend(later);
    let (Some(old_pace), Some(new_pace)) = (
        reduced_rate(old),
        reduced_rate(S::fastest_drain_rate(old, new)),
    ) else {
        return Ok(());
    };
    if !matches!(
        kind,
        OracleKind::TokenBucket | OracleKind::LeakyBucket | OracleKind::Gcra
    ) {
        return Ok(());
    }
    let burst = u128::from(old.burst_size().max(new.burst_size()));
    for_each_run(&hits, |first, last, total| {
        // In units of 1 / (both periods) of a token.
        let old_share = u128::from(changed_at.min(last).nanos_since(first)) * old_pace.0;
        let new_share = u128::from(last.nanos_since(changed_at.max(first))) * new_pace.0;
        let refilled = old_share * new_pace.1 + new_share * old_pace.1;
        let holds = total * old_pace.1 * new_pace.1 <= burst * old_pace.1 * new_pace.1 + refilled;
        ensure!(
            2,
            holds,
            "{old} to {new} at {changed_at}: {total} passed from {first} to {last}"
        );
        Ok(())
    })
}

/// Law 5: with times out of order, the bound of law 2 still holds if each hit counts at the latest admitted
/// time, and an old time never gets more than the latest one.
///
/// # Errors
/// The first time that grants extra.
pub fn law_5_stale_times_grant_nothing<S: Subject>(
    kind: OracleKind,
    rate: Rate,
    make: impl Fn(Rate) -> S,
    asks: &[Arrival],
) -> Result<(), LawViolation> {
    let hits = admitted(&mut make(rate), asks);
    check(5, kind, rate, &hits)?;
    let mut latest = Timestamp::ZERO;
    let mut subject = make(rate);
    for (index, ask) in asks.iter().enumerate() {
        if ask.at < latest {
            let left = |at| {
                state_after(&make, rate, &asks[..index])
                    .decide_at(at, 0)
                    .remaining
            };
            let (stale, fresh) = (left(ask.at), left(latest));
            let holds = stale <= fresh;
            ensure!(
                5,
                holds,
                "{rate}: {ask:?} finds {stale}, {latest} finds {fresh}"
            );
        }
        if subject.decide_at(ask.at, ask.cost).is_allowed() && ask.cost > 0 {
            latest = latest.max(ask.at);
        }
    }
    Ok(())
}

/// The bound of this algorithm for hits in order of time.
pub(super) fn check(
    law: u8,
    kind: OracleKind,
    rate: Rate,
    hits: &[Hit],
) -> Result<(), LawViolation> {
    if rate.is_unlimited() {
        return Ok(());
    }
    match kind {
        OracleKind::TokenBucket | OracleKind::LeakyBucket | OracleKind::Gcra => {
            bucket_bound(law, kind, rate, hits)
        }
        OracleKind::FixedWindow(align) => {
            if let WindowAlignment::Boundary(boundary) = align {
                window_bound(law, rate, boundary, hits)?;
            }
            sliding_bound(law, rate, 2 * u128::from(rate.count()), hits)
        }
        OracleKind::SlidingLog => sliding_bound(law, rate, u128::from(rate.count()), hits),
        OracleKind::SlidingCounter => {
            window_bound(law, rate, Timestamp::ZERO, hits)?;
            let most = u128::from(rate.count()) + u128::from(rate.burst_size());
            sliding_bound(law, rate, most, hits)
        }
    }
}

/// At most burst + rate · w from any hit to any later one.
fn bucket_bound(law: u8, kind: OracleKind, rate: Rate, hits: &[Hit]) -> Result<(), LawViolation> {
    let (drain, price) = reduced_rate(rate).unwrap_or((0, 1));
    let spends_once = kind == OracleKind::TokenBucket || !rate.is_zero();
    let burst = if spends_once { rate.burst_size() } else { 0 };
    // A reservation starts at the first whole nanosecond after its exact time, so two of them may be closer
    // together than their exact times, by less than one nanosecond.
    let rounding = u64::from(law == 9);
    for_each_run(hits, |first, last, total| {
        let refilled = drain * u128::from(last.nanos_since(first).saturating_add(rounding));
        let holds = total * price <= u128::from(burst) * price + refilled;
        ensure!(law, holds, "{rate}: {total} passed from {first} to {last}");
        Ok(())
    })
}

/// At most this many in any `(t − length, t]`.
fn sliding_bound(law: u8, rate: Rate, most: u128, hits: &[Hit]) -> Result<(), LawViolation> {
    for_each_run(hits, |first, last, total| {
        let holds = total <= most || u128::from(last.nanos_since(first)) >= window_length(rate);
        ensure!(law, holds, "{rate}: {total} passed from {first} to {last}");
        Ok(())
    })
}

/// At most n counts, and once the part of the burst above the count, in any n consecutive windows.
fn window_bound(
    law: u8,
    rate: Rate,
    boundary: Timestamp,
    hits: &[Hit],
) -> Result<(), LawViolation> {
    let count = u128::from(rate.count());
    let lent = u128::from(rate.burst_size()).saturating_sub(count);
    let phase = u128::from(boundary.as_nanos()) % window_length(rate);
    // The window before the first boundary is number 0, cut off by the origin.
    let number = |time: Timestamp| {
        let past = u128::from(time.as_nanos()).checked_sub(phase);
        past.map_or(0, |past| 1 + past / window_length(rate))
    };
    for_each_run(hits, |first, last, total| {
        let windows = number(last) - number(first) + 1;
        let holds = total <= windows * count + lent;
        ensure!(
            law,
            holds,
            "{rate}: {total} passed in {windows} windows from {first} to {last}"
        );
        Ok(())
    })
}

/// The length of a window in nanoseconds; any will do for a rate of zero.
fn window_length(rate: Rate) -> u128 {
    rate.period().map_or(1, |period| period.as_nanos())
}

/// Calls back with the first time, the last time and the sum of every run of hits.
fn for_each_run(
    hits: &[Hit],
    mut each: impl FnMut(Timestamp, Timestamp, u128) -> Result<(), LawViolation>,
) -> Result<(), LawViolation> {
    for (index, first) in hits.iter().enumerate() {
        let mut total = 0;
        for last in &hits[index..] {
            total += u128::from(last.cost);
            each(first.at, last.at, total)?;
        }
    }
    Ok(())
}
