//! What Envoy asks, decided: by trees of descriptors, by rules, or by both.

use std::fmt;
use std::time::Duration;

use smallvec::SmallVec;
use tollgate::Decision;
use tollgate_engine::Facts;
use tollgate_engine::backend::LimitKind;
use tollgate_engine::engine::{DescriptorStatus, DescriptorVerdict, DescriptorsPassed};
use tollgate_engine::envoy::StatusCode;
use tollgate_engine::facts::{Descriptor, Unit};
use tollgate_engine::policy::OnStoreFailure;
use tollgate_engine::verdict::Permits;
use tollgate_http::{Dialect, Shown, fields};

use super::closed::RlsClosed;
use crate::bounds::Bounds;
use crate::holds::Full;
use crate::service::{self, Answered, Service, Store, unix_now};

/// What is asked: a domain, its descriptors, and what the whole request costs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question<'a> {
    pub(crate) domain: &'a str,
    pub(crate) descriptors: &'a [Descriptor<'a>],
    /// Envoy sends zero and means one.
    pub(crate) hits_addend: u32,
}

/// What was decided.
#[derive(Debug, PartialEq)]
pub(crate) struct Decided {
    pub(crate) is_allowed: bool,
    /// One for each descriptor.
    pub(crate) statuses: Vec<Status>,
    /// What decided, and what it said: nothing if nothing limits.
    pub(crate) rule: Option<String>,
    pub(crate) decision: Option<Decision>,
    /// Why it was refused if nothing was decided: a name, and what is told by it.
    pub(crate) failure: Option<(&'static str, String)>,
    /// Header fields for the client.
    pub(crate) headers: Vec<(&'static str, String)>,
}

/// What is told of one descriptor.
#[derive(Debug, PartialEq)]
pub(crate) struct Status {
    pub(crate) is_allowed: bool,
    pub(crate) limit: Option<Limit>,
    pub(crate) remaining: u32,
}

/// A limit, as Envoy is told of it.
#[derive(Debug, PartialEq)]
pub(crate) struct Limit {
    pub(crate) requests: u32,
    pub(crate) unit: Option<Unit>,
    pub(crate) name: Option<String>,
    pub(crate) reset_after: Duration,
}

/// Why nothing was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Undecided {
    /// The question makes no sense.
    Invalid(String),
    /// The store can't be asked about this limit, and nothing passes without it.
    Unavailable(String),
    /// What it would hold can't be kept.
    Full(Full),
}

impl fmt::Display for Undecided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(why) => f.write_str(why),
            Self::Unavailable(limit) => write!(
                f,
                "the store can't be asked about {limit:?}, and nothing passes without it"
            ),
            Self::Full(full) => full.fmt(f),
        }
    }
}

impl Question<'_> {
    /// What a request like this is known by: its domain and its entries.
    fn name(&self) -> Vec<u8> {
        let mut name = vec![b'd'];
        let entries = self.descriptors.iter().flat_map(|one| one.entries);
        let texts = entries.flat_map(|(key, value)| [*key, *value]);
        for text in std::iter::once(self.domain).chain(texts) {
            name.extend((text.len() as u64).to_le_bytes());
            name.extend(text.as_bytes());
        }
        name
    }

    /// What is known of a request: the entries of all its descriptors, of which the first of a name counts.
    fn facts(&self) -> Facts<'_> {
        let mut facts = Facts::new();
        let entries = self
            .descriptors
            .iter()
            .rev()
            .flat_map(|one| one.entries.iter().rev());
        for (name, value) in entries {
            facts.set(name, value);
        }
        match self.cost() {
            Some(cost) => facts.costing(cost),
            None => facts,
        }
    }

    /// What rules are charged or given back, once a request: what the first of its descriptors says that isn't zero.
    /// None if nothing is said: it is one then, or what the rule says.
    fn cost(&self) -> Option<u64> {
        let whole = (self.hits_addend > 0).then(|| u64::from(self.hits_addend));
        let gives_back = self.gives_back();
        let such = self
            .descriptors
            .iter()
            .filter(|one| one.refund == gives_back);
        let mut costs = such.map(|one| one.cost.or(whole));
        costs.find(|cost| *cost != Some(0)).unwrap_or(Some(0))
    }

    /// All of it is given back.
    fn gives_back(&self) -> bool {
        self.descriptors.iter().all(|one| one.refund)
    }

    /// Nothing is taken: who looks or gives back holds no slot afterwards.
    fn takes_nothing(&self) -> bool {
        let takes = |one: &Descriptor<'_>| !one.refund && one.cost != Some(0);
        !self.descriptors.iter().any(takes)
    }

    /// The same with the part of limits that come along, where several count apart.
    fn parts(&self, by: u32) -> Option<Vec<Descriptor<'_>>> {
        let brings_any = || self.descriptors.iter().any(|one| one.limit.is_some());
        if by <= 1 || !brings_any() {
            return None;
        }
        let part = |requests: u32| (requests / by).max(requests.min(1));
        let each = self.descriptors.iter().map(|one| Descriptor {
            limit: one.limit.map(|(requests, unit)| (part(requests), unit)),
            ..*one
        });
        Some(each.collect())
    }

    /// Gives back what the trees were charged, of a request that can't run.
    #[cold]
    async fn give_back_trees<B: Store>(&self, service: &Service<B>, charged: &[u64]) {
        let taken = self.descriptors.iter().zip(charged);
        let taken = taken.filter(|(_, charged)| **charged > 0);
        let back: Vec<_> = taken
            .map(|(one, charged)| Descriptor {
                refund: true,
                cost: Some(*charged),
                ..*one
            })
            .collect();
        let asked = (service.engine).decide_descriptors_async(self.domain, &back, self.hits_addend);
        let Ok(_) = asked.await;
    }

    /// Keeps what a request holds that passed, by rules and by trees. If that can't be, it can't run, and what the rules
    /// took comes back.
    async fn keep<B: Store>(
        &self,
        service: &Service<B>,
        (by_rules, by_trees): (Option<Permits>, Option<Permits>),
    ) -> Result<(), Undecided> {
        let by_trees = by_trees.filter(|permits| !permits.is_empty() && !self.takes_nothing());
        if by_rules.is_none() && by_trees.is_none() {
            return Ok(());
        }
        let (name, facts) = (self.name(), self.facts());
        let is_by_trees = by_trees.is_some();
        let mut kept = by_trees.map_or(Ok(()), |permits| service.lend(&name, permits));
        match by_rules {
            Some(permits) if kept.is_ok() => {
                kept = service.lend(&service::name_of(&facts), permits);
                if kept.is_err() && is_by_trees {
                    // The oldest may be another's, but slots are alike.
                    drop(service.holds.take(&name));
                }
            }
            Some(permits) => permits.cancel(),
            None => {}
        }
        if kept.is_err() && service.engine.decides_by_facts() {
            service.take_back(&facts).await;
        }
        kept.map_err(Undecided::Full)
    }

    fn check(&self, bounds: &Bounds) -> Result<(), Undecided> {
        let (found, most) = (self.descriptors.len(), bounds.descriptors);
        let entries: usize = self.descriptors.iter().map(|one| one.entries.len()).sum();
        let wrong = match (self.domain, found) {
            ("", _) => "the domain is empty".to_owned(),
            (_, 0) => "there are no descriptors".to_owned(),
            _ if found > most => {
                format!("{found} descriptors, more than the {most} that are taken")
            }
            _ if entries > bounds.arguments => {
                let most = bounds.arguments;
                format!("{entries} entries, more than the {most} that are taken")
            }
            _ => return Ok(()),
        };
        Err(Undecided::Invalid(wrong))
    }
}

/// Decides about a request. Where it can't, the settings say whether that is an answer.
pub(crate) async fn decide<B: Store>(
    service: &Service<B>,
    question: &Question<'_>,
) -> Result<Decided, Undecided> {
    let undecided = match ask(service, question, &service.rls_headers).await {
        Err(undecided) if service.rls_closed == RlsClosed::Deny => undecided,
        decided => return decided,
    };
    let failure = match undecided {
        Undecided::Invalid(_) => return Err(undecided),
        Undecided::Unavailable(limit) => ("store_failure", limit),
        Undecided::Full(full) => ("failure", full.to_string()),
    };
    let mut refused = unlimited(question.descriptors.len());
    refused.refuse();
    refused.failure = Some(failure);
    Ok(refused)
}

/// Decides about a request, or says why it can't. The header fields are in these dialects.
pub(crate) async fn ask<B: Store>(
    service: &Service<B>,
    question: &Question<'_>,
    dialects: &[Dialect],
) -> Result<Decided, Undecided> {
    question.check(&service.bounds)?;
    let parts = question.parts(service.replicas);
    let question = &Question {
        descriptors: parts.as_deref().unwrap_or(question.descriptors),
        ..*question
    };
    if question
        .descriptors
        .iter()
        .any(|descriptor| descriptor.refund)
    {
        drop(service.holds.take(&question.name()));
    }
    let (mut by_rules, held) = if service.engine.decides_by_facts() {
        ask_rules(service, question, dialects).await?
    } else {
        (None, None)
    };
    if !service.engine.decides_by_descriptors() {
        question.keep(service, (held, None)).await?;
        return Ok(by_rules.unwrap_or_else(|| unlimited(question.descriptors.len())));
    }
    if let Some(refused) = by_rules.take_if(|decided| !decided.is_allowed) {
        return Ok(refused);
    }
    let Question {
        domain,
        descriptors,
        hits_addend,
    } = *question;
    let asked = service
        .engine
        .decide_descriptors_async(domain, descriptors, hits_addend);
    let Ok(verdict) = asked.await;
    let mut decided = by_tree(domain, &verdict, dialects);
    let passes = decided.as_ref().is_ok_and(|decided| decided.is_allowed);
    if passes {
        let charged: Vec<_> = verdict.statuses.iter().map(|one| one.charged).collect();
        let permits = verdict.passed().map(DescriptorsPassed::into_permits);
        if let Err(full) = question.keep(service, (held, permits)).await {
            question.give_back_trees(service, &charged).await;
            decided = Err(full);
        }
    } else if by_rules.is_some() && !question.takes_nothing() {
        // Of all limits or of none: what the rules took comes back.
        if let Some(held) = held {
            held.cancel();
        }
        service.take_back(&question.facts()).await;
    }
    let decided = decided?;
    // What limits is told before what doesn't.
    Ok(match by_rules {
        Some(by_rules) if decided.limits_nothing() => by_rules,
        _ => decided,
    })
}

/// What rules say, and what a request holds by them that passes; nothing to one that only gives back.
async fn ask_rules<B: Store>(
    service: &Service<B>,
    question: &Question<'_>,
    dialects: &[Dialect],
) -> Result<(Option<Decided>, Option<Permits>), Undecided> {
    let facts = question.facts();
    if question.gives_back() {
        service.refund(&facts).await;
        return Ok((None, None));
    }
    let places = question.descriptors.len();
    let tell = |answered: &Answered<'_>| by_rule(places, answered, dialects);
    let (decided, held) = if question.takes_nothing() {
        (service.peek(&facts, tell).await, None)
    } else {
        service.decide(&facts, tell).await
    };
    Ok((Some(decided?), held))
}

impl Decided {
    /// What the proxy can tell others of the decision: names and texts.
    pub(crate) fn metadata(&self) -> SmallVec<[(&'static str, &str); 2]> {
        let rule = self.rule.iter().map(|rule| ("rule", rule.as_str()));
        let failure = self.failure.iter();
        rule.chain(failure.map(|(name, text)| (*name, text.as_str())))
            .collect()
    }

    fn refuse(&mut self) {
        self.is_allowed = false;
        for status in &mut self.statuses {
            status.is_allowed = false;
        }
    }

    fn limits_nothing(&self) -> bool {
        self.is_allowed && self.statuses.iter().all(|status| status.limit.is_none())
    }
}

/// The fields that show a limit, in the dialects that were chosen.
fn headers(dialects: &[Dialect], shown: Option<Shown<'_>>) -> Vec<(&'static str, String)> {
    let mut written = Vec::new();
    if let (Some(shown), false) = (shown, dialects.is_empty()) {
        fields::write(dialects, &[shown], unix_now(dialects), |name, value| {
            written.push((name, value.to_owned()));
        });
    }
    written
}

/// What is told where nothing limits.
fn unlimited(descriptors: usize) -> Decided {
    let open = || Status {
        is_allowed: true,
        limit: None,
        remaining: 0,
    };
    Decided {
        is_allowed: true,
        statuses: std::iter::repeat_with(open).take(descriptors).collect(),
        rule: None,
        decision: None,
        failure: None,
        headers: Vec::new(),
    }
}

/// What rules have said: the first descriptor tells the limit.
fn by_rule(
    descriptors: usize,
    answered: &Answered<'_>,
    dialects: &[Dialect],
) -> Result<Decided, Undecided> {
    if let Some(rule) = answered.failure() {
        return Err(Undecided::Unavailable(rule.to_owned()));
    }
    if let Some(what) = answered.too_much() {
        return Err(Undecided::Invalid(what.to_string()));
    }
    let is_allowed = answered.is_allowed;
    let mut decided = unlimited(descriptors);
    if !is_allowed {
        decided.refuse();
    }
    let decision = &answered.decision;
    let small = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    if let Some(first) = decided
        .statuses
        .first_mut()
        .filter(|_| !decision.is_unlimited())
    {
        let kind = answered.limit();
        first.limit = Some(Limit {
            requests: small(kind.and_then(LimitKind::quota).unwrap_or(decision.limit)),
            unit: kind.and_then(unit_of),
            name: answered.rule().map(str::to_owned),
            reset_after: decision.reset_after,
        });
        first.remaining = if is_allowed {
            small(decision.remaining)
        } else {
            0
        };
    }
    Ok(Decided {
        rule: answered.rule().map(str::to_owned),
        decision: Some(answered.decision),
        headers: headers(dialects, answered.shown()),
        ..decided
    })
}

/// The unit of a limit, if it is by one of theirs.
fn unit_of(kind: &LimitKind) -> Option<Unit> {
    let window = kind.window()?;
    let units = [
        Unit::Second,
        Unit::Minute,
        Unit::Hour,
        Unit::Day,
        Unit::Week,
        Unit::Month,
        Unit::Year,
    ];
    units
        .into_iter()
        .find(|unit| Duration::from_secs(unit.seconds()) == window)
}

/// What trees have said.
fn by_tree(
    domain: &str,
    verdict: &DescriptorVerdict,
    dialects: &[Dialect],
) -> Result<Decided, Undecided> {
    if let Some(what) = verdict.too_much {
        return Err(Undecided::Invalid(what.to_string()));
    }
    let is_allowed = verdict.refused().is_none();
    let decider = verdict
        .decider
        .and_then(|place| verdict.statuses.get(place));
    let rule = decider.and_then(|status| status.limit.as_deref());
    if !is_allowed && verdict.fallback == Some(OnStoreFailure::Closed) {
        return Err(Undecided::Unavailable(rule.unwrap_or(domain).to_owned()));
    }
    let status = |status: &DescriptorStatus| Status {
        is_allowed: status.code == StatusCode::Ok,
        limit: status.current_limit.as_ref().map(|limit| Limit {
            requests: limit.requests_per_unit,
            unit: limit.unit,
            name: limit.name.clone(),
            reset_after: status
                .decision
                .map_or(Duration::ZERO, |decision| decision.reset_after),
        }),
        remaining: status.remaining,
    };
    Ok(Decided {
        is_allowed,
        statuses: verdict.statuses.iter().map(status).collect(),
        rule: rule.map(str::to_owned),
        decision: decider.and_then(|status| status.decision),
        failure: None,
        headers: headers(dialects, decider.and_then(|status| shown(domain, status))),
    })
}

/// What header fields show of a descriptor's limit. One that the request brought along has no name but its domain's.
fn shown<'a>(domain: &'a str, status: &'a DescriptorStatus) -> Option<Shown<'a>> {
    let (limit, decision) = (status.current_limit.as_ref()?, status.decision.as_ref()?);
    let name = limit.name.as_deref().or(status.limit.as_deref());
    let shown = Shown::of(name.unwrap_or(domain), decision);
    Some(match limit.unit {
        Some(unit) => shown.window(Duration::from_secs(unit.seconds())),
        None => shown,
    })
}
