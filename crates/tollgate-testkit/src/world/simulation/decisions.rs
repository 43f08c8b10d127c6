//! An engine's decision about a request: by its facts, by its descriptors, or by both.

use std::convert::Infallible;

use tollgate_core::Decision;
use tollgate_engine::backend::{Backend, RefundResult as Given};
use tollgate_engine::engine::{
    DescriptorDecision, DescriptorFindings, DescriptorRequest, MixedDecision, ResetScope,
};
use tollgate_engine::facts::Descriptor;
use tollgate_engine::overrides::Target;
use tollgate_engine::verdict::{DecisionDetails, Permits};
use tollgate_engine::{DecideOptions, Engine, Facts, RequestDecision};

use crate::world::Rule;
use crate::world::http_guard::{EngineDecision, rule_of};
use crate::world::scenario::{LimitSort, RefundEvent, Request, ScenarioSettings};

/// The domain of the trees.
const DOMAIN: &str = "edge";

/// An engine's decision about a request.
pub(super) struct DecisionOutcome {
    pub(super) said: EngineDecision,
    /// The limits of trees that were charged, as bits by their numbers.
    pub(super) charged: u8,
    /// The permits of a request that passed.
    pub(super) passed: Option<Permits>,
}

/// The descriptors of a request: the limits of trees that they name, and their entries.
struct DescriptorQuery {
    numbers: Vec<usize>,
    entries: Vec<(String, String)>,
}

impl DescriptorQuery {
    fn new(setting: &ScenarioSettings, ask: &Request) -> Self {
        let rules = setting.rules.iter().enumerate();
        let named = rules.filter(|(number, rule)| rule.leaf.is_some() && rule.meets(*number, ask));
        let entry = |(number, rule): (usize, &Rule)| {
            let value = if rule.is_shared {
                "all".to_owned()
            } else {
                ask.who.to_string()
            };
            (number, (format!("r{number}"), value))
        };
        let (numbers, entries) = named.map(entry).unzip();
        Self { numbers, entries }
    }

    /// The decision of the descriptor that decided, with its rule; `None` in shadow mode, which decides
    /// nothing.
    fn reported_decision(
        &self,
        setting: &ScenarioSettings,
        findings: &DescriptorFindings,
    ) -> EngineDecision {
        let is_shadow = |number: &usize| setting.rules[self.numbers[*number]].is_shadow();
        let decider = findings.decider.filter(|number| !is_shadow(number));
        let decision = |number: usize| findings.statuses[number].decision;
        EngineDecision {
            rule: decider.map(|number| self.numbers[number]),
            decision: decider.and_then(decision).unwrap_or(Decision::UNLIMITED),
            fallback: findings.fallback.filter(|_| decider.is_some()),
        }
    }

    fn charged(&self, findings: &DescriptorFindings) -> u8 {
        let statuses = findings.statuses.iter().zip(&self.numbers);
        let charged = statuses.filter(|(status, _)| status.charged > 0);
        charged.fold(0, |all, (_, number)| all | 1 << number)
    }
}

/// A descriptor that names the limit of a rule, and carries the request's own limit if it has one.
fn descriptor<'a>(
    rule: &Rule,
    version: usize,
    ask: &Request,
    entries: &'a [(&'a str, &'a str)],
) -> Descriptor<'a> {
    let limit = rule.adjusted_cost(version, ask.brings);
    Descriptor {
        limit: limit.map(|(count, unit)| (u32::try_from(count).unwrap_or(u32::MAX), unit)),
        // A request takes one permit, whatever it costs.
        cost: (rule.sort == LimitSort::Slots).then_some(1),
        ..Descriptor::new(entries)
    }
}

/// An engine's decision about a request, by this version of the policy.
pub(super) async fn decide<B: Backend<Error = Infallible>>(
    engine: &Engine<B>,
    setting: &ScenarioSettings,
    version: usize,
    ask: &Request,
) -> DecisionOutcome {
    let (who, cost) = (ask.who.to_string(), ask.cost.to_string());
    let facts: Facts<'_> = [("key", &*who), ("cost", &*cost), ("all", "all")]
        .into_iter()
        .collect();
    let described = DescriptorQuery::new(setting, ask);
    let entries: Vec<[(&str, &str); 1]> = described
        .entries
        .iter()
        .map(|(key, value)| [(&**key, &**value)])
        .collect();
    let descriptors: Vec<_> = (described.numbers.iter().zip(&entries))
        .map(|(number, entries)| descriptor(&setting.rules[*number], version, ask, entries))
        .collect();
    let request = DescriptorRequest {
        domain: DOMAIN,
        descriptors: &descriptors,
        hits_addend: u32::try_from(ask.cost).unwrap_or(u32::MAX),
    };
    if !ask.has_facts {
        let deciding = engine.decide_descriptors_async(DOMAIN, &descriptors, request.hits_addend);
        let Ok(verdict) = deciding.await;
        return by_descriptors(setting, &described, verdict);
    }
    if descriptors.is_empty() {
        let Ok(verdict) = engine.decide_async(&facts).await;
        return match verdict {
            RequestDecision::Allowed(passed) => DecisionOutcome {
                said: reported_decision(&passed),
                charged: 0,
                passed: Some(passed.into_permits()),
            },
            RequestDecision::Denied(refused) => denied_by_rule(&refused, 0),
        };
    }
    let Ok(verdict) = engine
        .decide_with_descriptors(DecideOptions::new(), &facts, request)
        .await;
    match verdict.expect("a verdict, as no facts are missing") {
        MixedDecision::Passed(passed, findings) => DecisionOutcome {
            said: reported_decision(&passed),
            charged: described.charged(&findings),
            passed: Some(passed.into_permits()),
        },
        // Trees that charge each limit by itself had allowed it.
        MixedDecision::DeniedByRule(refused) => {
            let charged = if setting.charges_each {
                ask.descriptors & setting.leaves_in_force(version)
            } else {
                0
            };
            denied_by_rule(&refused, charged)
        }
        MixedDecision::DeniedByDescriptor(findings) => {
            by_descriptors(setting, &described, DescriptorDecision::Denied(findings))
        }
    }
}

fn reported_decision(findings: &DecisionDetails<'_>) -> EngineDecision {
    EngineDecision {
        rule: rule_of(&findings.cause()),
        decision: *findings.decision(),
        fallback: findings.fallback(),
    }
}

fn denied_by_rule(findings: &DecisionDetails<'_>, charged: u8) -> DecisionOutcome {
    DecisionOutcome {
        said: reported_decision(findings),
        charged,
        passed: None,
    }
}

fn by_descriptors(
    setting: &ScenarioSettings,
    described: &DescriptorQuery,
    verdict: DescriptorDecision,
) -> DecisionOutcome {
    let (findings, passed) = match verdict {
        DescriptorDecision::Allowed(passed) => {
            let (findings, permits) = passed.into_parts();
            (findings, Some(permits))
        }
        DescriptorDecision::Denied(findings) => (findings, None),
    };
    DecisionOutcome {
        said: described.reported_decision(setting, &findings),
        charged: described.charged(&findings),
        passed,
    }
}

/// Refunds what was spent of a limit of a tree, as proxies and operators do. Returns whether the refund is
/// confirmed: proxies get no confirmation.
pub(super) async fn refund<B: Backend<Error = Infallible>>(
    engine: &Engine<B>,
    gift: RefundEvent,
) -> bool {
    let (key, who) = (format!("r{}", gift.rule), gift.who.to_string());
    if let Some(units) = gift.units {
        let entries = [(&*key, &*who)];
        let descriptor = Descriptor {
            cost: Some(units),
            refund: true,
            ..Descriptor::new(&entries)
        };
        let Ok(_) = engine
            .decide_descriptors_async(DOMAIN, &[descriptor], 0)
            .await;
        return false;
    }
    let target = Target::descriptor(DOMAIN, [(key, who)]);
    let Ok(reset) = engine
        .reset_async(&target, ResetScope::RatesAndQuotas)
        .await;
    reset.is_ok_and(|reset| reset.refund_result == Given::Refunded)
}
