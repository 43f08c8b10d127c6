//! Rules that have gates: how they are compiled, and opened when a policy comes into force.

use std::sync::Arc;
use std::time::Duration;

use tollgate_adaptive::shed::Criticality;

use super::{Applied, Draft, PolicyError, Rules, of};
use crate::backend::Clocks;
use crate::engine::overload::{self, Adapting, GatesBefore, Overload, RetiredGates};
use crate::limits::Limit;
use crate::policy::{Over, Rule};

impl Applied {
    /// The slots that a law finds, if it has such.
    pub(crate) fn adapting(&self) -> Option<&Adapting> {
        self.overload.as_ref()?.adaptive.as_ref()
    }

    /// Whether a refusal by this limit is for want of capacity.
    pub(crate) fn sheds(&self, limit: u64) -> bool {
        let overload = self.overload.as_ref();
        overload.is_some_and(|overload| overload.sheds(limit))
    }

    /// How critical a request is that asks for this limit, by the part of the slots that it may use.
    pub(super) fn class_of(&self, limit: &Limit) -> Criticality {
        let overload = self.overload.as_ref();
        overload.map_or(Criticality::Critical, |overload| overload.class_of(limit))
    }

    /// Whether a backend's answer isn't all there is to it.
    pub(super) fn is_more(&self) -> bool {
        self.waits.is_some() || self.adapting().is_some()
    }
}

impl Rules {
    /// Opens the gates of rules whose limit adapts: those that they had before, with all who are inside. It is to come into
    /// force then, as they go by it from now on.
    pub(crate) fn open_gates(&mut self, before: Option<&Self>, clocks: &Clocks) {
        let none = RetiredGates::default();
        let retired = before.map_or(&none, |before| &before.retired_gates);
        let open = before.into_iter().flat_map(|before| before.applied.iter());
        let open = open.filter_map(|rule| Some((rule.name.clone(), rule.adapting()?.kept()?)));
        let mut gates = GatesBefore::new(retired, open);
        for rule in &mut self.applied {
            if let Some(overload) = &mut rule.overload
                && overload.adaptive.is_some()
            {
                overload.open(gates.take(&rule.name), || Arc::clone(&clocks.timer));
            }
        }
        self.retired_gates = gates.retire();
    }
}

impl Draft<'_> {
    /// What a rule does about overload, if that makes sense.
    pub(super) fn overload(
        &mut self,
        rule: &Rule,
        limits: &[Limit],
    ) -> Result<Option<Box<Overload>>, PolicyError> {
        let wrong = |why: &str| PolicyError::Overload {
            rule: rule.name.clone(),
            why: why.to_owned(),
        };
        if let Some(own) = rule.adaptive {
            if rule.limits.concurrency.is_some() || rule.limits.unlimited {
                return Err(wrong(
                    "it has a limit that adapts and another of how many at once",
                ));
            }
            overload::law(own, 0).map_err(|error| wrong(&error.to_string()))?;
        } else if rule.shed.is_some() && rule.limits.concurrency.is_none() {
            return Err(wrong("there is nothing to shed by: give it a concurrency"));
        }
        if rule.shared.is_some() && (rule.adaptive.is_some() || rule.shed.is_some()) {
            return Err(wrong("a rule that adapts or sheds can't share its counter"));
        }
        let by = rule.shed.as_ref();
        let by = by.map(|shed| self.slots.number(&shed.by));
        let overload = Overload::of(rule, by, limits, &mut self.counters);
        overload.map_err(of(&rule.name))
    }
}

/// How long a request that is over may wait, if it may.
pub(super) fn patience(over: Over) -> Option<Duration> {
    match over {
        Over::Refuse => None,
        Over::Wait(longest) => Some(longest),
    }
}
