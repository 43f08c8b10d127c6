//! What a rule has beside its limits: what it warms up by, and what it does about overload.

use super::{Gathered, Met};
use crate::engine::overload::GateCheck;
use crate::engine::rules::{Applied, Rules};
use crate::limits::RequestKey;
use crate::matcher::Known;
use crate::policy::Mode;

impl<'a> Gathered<'a> {
    /// Adds what a rule has beside its limits.
    #[cold]
    pub(super) fn ask_more(
        &mut self,
        rule: &'a Applied,
        (met, mode): (Met, Mode),
        own: (RequestKey<'a>, u64),
        known: &Known<'_, '_>,
    ) {
        let is_changed = self.is_changed(met.number);
        if rule.warm.is_some() && !is_changed {
            self.ask_gates(rule, (met.number, mode), own);
        }
        let Some(overload) = &rule.overload else {
            return;
        };
        let class = overload.class(|by| known.text(by));
        // What an operator has put in the place of slots is for all alike.
        if let Some(part) = overload.part(class).filter(|_| !is_changed) {
            let group = match mode {
                Mode::Enforce => &mut self.enforced,
                Mode::Shadow | Mode::Off => &mut self.shadow,
            };
            let checks = group.checks.as_mut_slice().iter_mut();
            let whole = checks.rev().find(|check| check.limit.id == part.id);
            if let Some(check) = whole {
                check.limit = part;
            }
        }
        if let Some(adapting) = &overload.adaptive
            && let Some(gate) = &adapting.gate
        {
            self.gates.get_or_insert_default().push(GateCheck {
                met,
                mode,
                adapting,
                gate,
                class,
            });
        }
    }
}

/// Whether another rule that applies takes its place. A rule in shadow takes only the place of others
/// in shadow.
#[inline]
pub(super) fn is_replaced(rules: &Rules, met: &[(Met, Mode)], (number, mode): (u32, Mode)) -> bool {
    met.iter()
        .any(|(other, its_mode)| replaces(rules, (other.number, *its_mode), (number, mode)))
}

/// Whether a rule that applies takes the place of another.
pub(super) fn replaces(
    rules: &Rules,
    (other, its_mode): (u32, Mode),
    (number, mode): (u32, Mode),
) -> bool {
    let other = &rules.applied[other as usize];
    its_mode <= mode && other.replaces.contains(&number)
}
