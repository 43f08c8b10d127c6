//! Overrides in a snapshot, so that those that haven't expired continue after a restart.
//!
//! | words | content |
//! |---|---|
//! | 2 | how many overrides were ever added, and how many there are; for each: |
//! | 4 | its number, when it was added and when it expires by the wall clock, and 0 for a block, 1 for a bypass, 2 for a limit |
//! | 2 | how many requests it has decided, and when it last did, or 0 |
//! | … | of a limit: how many rates, and each; 1 or 0 and the quota; 1 or 0 and the concurrency |
//! | … | 1 and the rule's name, or 0; 0 for all requests, 1 for facts, 2 and the domain for a descriptor, 3 for patterns; how many pairs, and each, of a pattern with 0 for a text, 1 for a glob, 2 for a network |
//! | … | the author, as bytes |

use std::sync::Arc;

use tollgate::Timestamp;
use tollgate::snapshot::{SnapshotError, SnapshotReader, SnapshotWriter};

use super::{MAX_AUTHOR_BYTES, MAX_TARGET_BYTES, OverrideBook, OverrideStats};
use crate::overrides::{
    FactPattern, MAX_OVERRIDE_DURATION, MAX_OVERRIDES, Override, OverrideAction, OverrideStatus,
    ReplacementLimits, Target, TargetKey,
};

const BLOCK: u64 = 0;
const BYPASS: u64 = 1;
const OVERRIDE: u64 = 2;

const EVERYBODY: u64 = 0;
const FACTS: u64 = 1;
const DESCRIPTOR: u64 = 2;
const PATTERNS: u64 = 3;

/// The most rates of a snapshot's override. No rule has more.
const MAX_RATES: u64 = 256;

/// The format of overrides in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum SnapshotForm {
    /// The format above.
    Now,
    /// The previous format: without the use, and with one rate of a limit, as 1 and the rate, or 0 and any.
    Before,
}

impl OverrideBook {
    /// Writes the overrides that haven't expired.
    pub(in crate::engine) fn save(
        &self,
        file: &mut SnapshotWriter,
        now: Timestamp,
    ) -> Result<(), SnapshotError> {
        let orders = || self.overrides.iter().filter(|order| order.until > now);
        file.words(&[self.last_id, orders().count() as u64])?;
        for order in orders() {
            let act = match order.act {
                OverrideAction::Block => BLOCK,
                OverrideAction::Bypass => BYPASS,
                OverrideAction::Limit(_) => OVERRIDE,
            };
            let times = [order.made_at, order.until].map(Timestamp::as_nanos);
            file.words(&[order.id, times[0], times[1], act])?;
            let acted = self.stats.get(&order.id).map(|acted| acted.read());
            let (acted, last) = acted.unwrap_or_default();
            file.words(&[acted, last.map_or(0, Timestamp::as_nanos)])?;
            if let OverrideAction::Limit(replacement) = &order.act {
                save_replacement(file, replacement)?;
            }
            save_target(file, &order.target)?;
            file.bytes(order.by.as_bytes())?;
        }
        Ok(())
    }

    /// Reads what [`save`](Self::save) wrote, and drops the overrides that have expired.
    pub(in crate::engine) fn load(
        file: &mut SnapshotReader,
        form: SnapshotForm,
        now: Timestamp,
    ) -> Result<Self, SnapshotError> {
        let [made, count] = file.words()?;
        if count > MAX_OVERRIDES as u64 {
            return Err(file.corrupt_error());
        }
        let mut book = Self::default();
        for _ in 0..count {
            let [id, made_at, until, act] = file.words()?;
            let [acted, last] = match form {
                SnapshotForm::Now => file.words()?,
                SnapshotForm::Before => [0, 0],
            };
            let last = (last > 0).then(|| Timestamp::from_nanos(last));
            book.stats
                .insert(id, Arc::new(OverrideStats::new(acted, last)));
            let act = match act {
                BLOCK => OverrideAction::Block,
                BYPASS => OverrideAction::Bypass,
                OVERRIDE => OverrideAction::Limit(load_replacement(file, form)?),
                _ => return Err(file.corrupt_error()),
            };
            let order = Override {
                id,
                act,
                target: load_target(file)?,
                by: text(file)?,
                made_at: Timestamp::from_nanos(made_at),
                until: Timestamp::from_nanos(until),
                effect: OverrideStatus::InForce,
                used_count: 0,
                last_used_at: None,
            };
            let is_bounded = order.until - order.made_at <= MAX_OVERRIDE_DURATION;
            let is_short =
                order.by.len() <= MAX_AUTHOR_BYTES && order.target.bytes() <= MAX_TARGET_BYTES;
            if id > made || !is_bounded || !is_short {
                return Err(file.corrupt_error());
            }
            book.overrides.push(order);
        }
        book.last_id = made;
        book.remove_expired(now);
        Ok(book)
    }
}

fn save_replacement(
    file: &mut SnapshotWriter,
    replacement: &ReplacementLimits,
) -> Result<(), SnapshotError> {
    file.word(replacement.rates.len() as u64)?;
    for rate in &replacement.rates {
        file.rate(*rate)?;
    }
    let slots = replacement.concurrency.map(u64::from);
    for number in [replacement.quota, slots] {
        file.words(&[u64::from(number.is_some()), number.unwrap_or_default()])?;
    }
    Ok(())
}

fn load_replacement(
    file: &mut SnapshotReader,
    form: SnapshotForm,
) -> Result<ReplacementLimits, SnapshotError> {
    let count = file.word()?;
    if count > MAX_RATES {
        return Err(file.corrupt_error());
    }
    let read = match form {
        SnapshotForm::Now => count,
        SnapshotForm::Before => 1,
    };
    let mut rates = (0..read)
        .map(|_| file.rate())
        .collect::<Result<Vec<_>, _>>()?;
    rates.truncate(usize::try_from(count).unwrap_or(0));
    let [has_quota, quota, has_slots, slots] = file.words()?;
    let slots = u32::try_from(slots).map_err(|_| file.corrupt_error())?;
    Ok(ReplacementLimits {
        rates,
        quota: (has_quota != 0).then_some(quota),
        concurrency: (has_slots != 0).then_some(slots),
    })
}

fn save_target(file: &mut SnapshotWriter, target: &Target) -> Result<(), SnapshotError> {
    file.word(u64::from(target.rule.is_some()))?;
    if let Some(rule) = &target.rule {
        file.bytes(rule.as_bytes())?;
    }
    let pairs = match &target.key {
        TargetKey::AllRequests => {
            file.word(EVERYBODY)?;
            &[][..]
        }
        TargetKey::Facts(facts) => {
            file.word(FACTS)?;
            facts
        }
        TargetKey::Descriptor { domain, entries } => {
            file.word(DESCRIPTOR)?;
            file.bytes(domain.as_bytes())?;
            entries
        }
        TargetKey::Patterns(facts) => {
            file.words(&[PATTERNS, facts.len() as u64])?;
            return facts.iter().try_for_each(|(name, pattern)| {
                let sort = match pattern {
                    FactPattern::Exact(_) => 0,
                    FactPattern::Glob(_) => 1,
                    FactPattern::Network(_) => 2,
                };
                file.bytes(name.as_bytes())?;
                file.word(sort)?;
                file.bytes(pattern.text().as_bytes())
            });
        }
    };
    file.word(pairs.len() as u64)?;
    pairs.iter().try_for_each(|(name, value)| {
        file.bytes(name.as_bytes())?;
        file.bytes(value.as_bytes())
    })
}

fn load_target(file: &mut SnapshotReader) -> Result<Target, SnapshotError> {
    let rule = match file.word()? {
        0 => None,
        _ => Some(text(file)?),
    };
    let sort = file.word()?;
    if sort == PATTERNS {
        let mut facts = Vec::new();
        for _ in 0..file.word()? {
            let name = text(file)?;
            let make = match file.word()? {
                0 => FactPattern::Exact,
                1 => FactPattern::Glob,
                2 => FactPattern::Network,
                _ => return Err(file.corrupt_error()),
            };
            facts.push((name, make(text(file)?)));
        }
        let key = TargetKey::Patterns(facts);
        return Ok(Target { rule, key });
    }
    let domain = match sort {
        DESCRIPTOR => text(file)?,
        _ => String::new(),
    };
    let mut pairs = Vec::new();
    for _ in 0..file.word()? {
        pairs.push((text(file)?, text(file)?));
    }
    let key = match sort {
        EVERYBODY => TargetKey::AllRequests,
        FACTS => TargetKey::Facts(pairs),
        DESCRIPTOR => TargetKey::Descriptor {
            domain,
            entries: pairs,
        },
        _ => return Err(file.corrupt_error()),
    };
    Ok(Target { rule, key })
}

fn text(file: &mut SnapshotReader) -> Result<String, SnapshotError> {
    String::from_utf8(file.bytes()?).map_err(|_| file.corrupt_error())
}
