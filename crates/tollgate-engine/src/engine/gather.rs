//! From facts to checks: which rules a request meets, and what each asks.
//!
//! A match is a rule's number, its limits, a key and a cost, wherever it came from: everything after
//! this file knows no more of it.

use tollgate::{Timestamp, prefetch};

use super::key::{Key, KeyHashers};
use super::rules::{Applied, Rules};
use crate::backend::Check;
use crate::facts::Facts;
use crate::matcher::few::Few;
use crate::matcher::{Known, Numbers};
use crate::policy::Mode;
use crate::verdict::By;

/// Checks that need no memory.
const INLINE: usize = 8;

/// What is to be asked about a request.
pub(crate) struct Gathered<'a> {
    /// Decided without any check.
    pub(crate) settled: Option<By>,
    /// What would be blocked, if the policy were enforced.
    pub(crate) shadow_block: Option<usize>,
    pub(crate) enforced: Group<'a>,
    /// Each rule by itself.
    pub(crate) shadow: Group<'a>,
    /// The first rule that applies, if none asks anything.
    pub(crate) unasked: Option<Met>,
}

/// A rule that applies to a request, by number, and the fingerprint of its key there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Met {
    pub(crate) number: u32,
    pub(crate) fingerprint: [u64; 2],
}

/// The checks of some rules.
pub(crate) struct Group<'a> {
    pub(crate) checks: Few<Check<'a>, INLINE>,
    /// Which rule asks each.
    pub(crate) askers: Few<u32, INLINE>,
}

impl Group<'_> {
    const fn new() -> Self {
        Self {
            checks: Few::new(),
            askers: Few::new(),
        }
    }
}

impl<'a> Gathered<'a> {
    pub(crate) const fn new() -> Self {
        Self {
            settled: None,
            shadow_block: None,
            enforced: Group::new(),
            shadow: Group::new(),
            unasked: None,
        }
    }

    /// Fills what is empty.
    #[inline]
    pub(crate) fn fill(
        &mut self,
        rules: &'a Rules,
        facts: &'a Facts<'a>,
        hashers: &KeyHashers,
        now: impl FnOnce() -> Timestamp,
    ) {
        let known = rules.matcher.slots().look_up(facts);
        let mut matching = Numbers::new();
        // What a rule asks is likely in no cache: it is fetched while the conditions are checked.
        rules.matcher.find(&known, &mut matching, |number| {
            let rule = (number as usize).checked_sub(rules.block + rules.exempt);
            if let Some(applied) = rule.and_then(|rule| rules.applied.get(rule)) {
                prefetch(applied);
            }
        });
        let mut met = Few::<Met, INLINE>::new();
        for number in matching.as_slice() {
            let number = *number as usize;
            let Some(after_block) = number.checked_sub(rules.block) else {
                if rules.mode == Mode::Enforce {
                    self.settled = Some(By::Block(number));
                    return;
                }
                self.shadow_block.get_or_insert(number);
                continue;
            };
            let Some(rule) = after_block.checked_sub(rules.exempt) else {
                self.settled = Some(By::Exempt(after_block));
                return;
            };
            let key = &rules.applied[rule].key;
            if let Some(fingerprint) = key.fingerprint(&known, hashers) {
                let number = u32::try_from(rule).unwrap_or(u32::MAX);
                met.push(Met {
                    number,
                    fingerprint,
                });
            }
        }
        if let Some(tier) = tier(rules, &known)
            && let Some(fingerprint) = rules.applied[tier as usize]
                .key
                .fingerprint(&known, hashers)
        {
            met.push(Met {
                number: tier,
                fingerprint,
            });
        }
        let formers = rules.former_until > Timestamp::ZERO;
        let now = formers.then(now);
        let met = met.as_slice();
        for one in met {
            if !is_replaced(rules, met, one.number) {
                self.ask(
                    &rules.applied[one.number as usize],
                    *one,
                    &known,
                    facts,
                    now,
                );
            }
        }
    }

    /// Adds the checks of one rule.
    #[inline]
    fn ask(
        &mut self,
        rule: &'a Applied,
        met: Met,
        known: &Known<'_, '_>,
        facts: &'a Facts<'a>,
        now: Option<Timestamp>,
    ) {
        self.unasked.get_or_insert(met);
        let cost = rule.cost.and_then(|slot| known.text(slot)?.parse().ok());
        let cost = cost.unwrap_or(rule.default_cost);
        let key = Key::new(&rule.key, facts, met.fingerprint);
        let group = match rule.mode {
            Mode::Enforce => &mut self.enforced,
            Mode::Shadow => &mut self.shadow,
            Mode::Off => return,
        };
        for limit in &rule.limits {
            // A limit is likely in no cache: it isn't waited for here unless it has to be.
            if now.is_some_and(|now| limit.until.is_some_and(|until| until <= now)) {
                continue;
            }
            let check = Check { limit, key, cost };
            // Rules that share a counter charge it once, if they agree on what it is.
            let same = |other: &Check<'_>| {
                other.limit.id == limit.id
                    && other.limit.kind() == limit.kind()
                    && other.key.fingerprint() == met.fingerprint
            };
            if rule.shares && group.checks.as_slice().iter().any(same) {
                continue;
            }
            group.checks.push(check);
            group.askers.push(met.number);
        }
    }
}

#[inline]
fn tier(rules: &Rules, known: &Known<'_, '_>) -> Option<u32> {
    let tenant = known.text(rules.tiers.tenant?)?;
    rules.tiers.number(tenant, |slot| known.text(slot))
}

/// Whether another rule that applies takes its place. A rule in shadow takes only the place of others
/// in shadow.
#[inline]
fn is_replaced(rules: &Rules, met: &[Met], number: u32) -> bool {
    let mode = rules.applied[number as usize].mode;
    met.iter().any(|other| {
        let other = &rules.applied[other.number as usize];
        other.mode <= mode && other.replaces.contains(&number)
    })
}
