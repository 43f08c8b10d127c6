//! What Envoy asks, decided: by trees of descriptors, by rules, or by both.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use smallvec::SmallVec;
use tollgate::Decision;
use tollgate_engine::Facts;
use tollgate_engine::engine::DescriptorsPassed;
use tollgate_engine::facts::{Descriptor, Unit};
use tollgate_engine::verdict::{DenyReason, Permits};
use tollgate_http::{Dialect, retry_after};

use super::decided::{by_rule, by_tree, unlimited};
use super::facts::{Sets, Texts};
use crate::answers::{Answered, LimitText};
use crate::bounds::Bounds;
use crate::decider::{LimitsTold, Store, name_of};
use crate::holds::{Full, Room};
use crate::log::Level;
use crate::rls_closed::RlsClosed;
use crate::service::Service;
use crate::settings::ShadowAnswers;

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
    /// Why it was refused, and by which limit of the rule.
    pub(crate) reason: Option<DenyReason>,
    pub(crate) limited_by: Option<LimitText>,
    /// Limits in shadow that would have refused it, if an operator wants clients to see them.
    pub(crate) shadow: Vec<String>,
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

    /// What rules are charged or given back, once a request: what the first of its descriptors says that isn't zero.
    /// None if nothing is said: it is one then, or what the rule says.
    pub(super) fn cost(&self) -> Option<u64> {
        let whole = self.whole_cost();
        let gives_back = self.gives_back();
        let such = self
            .descriptors
            .iter()
            .filter(|one| one.refund == gives_back);
        let mut costs = such.map(|one| one.cost.or(whole));
        costs.find(|cost| *cost != Some(0)).unwrap_or(Some(0))
    }

    /// What each descriptor costs that says nothing else.
    pub(super) fn whole_cost(&self) -> Option<u64> {
        (self.hits_addend > 0).then(|| u64::from(self.hits_addend))
    }

    /// Whether a descriptor brings a limit along.
    fn brings_limit(&self) -> bool {
        self.descriptors.iter().any(|one| one.limit.is_some())
    }

    /// All of it is given back.
    pub(super) fn gives_back(&self) -> bool {
        self.descriptors.iter().all(|one| one.refund)
    }

    /// Nothing is taken: who looks or gives back holds no slot afterwards.
    fn takes_nothing(&self) -> bool {
        let takes = |one: &Descriptor<'_>| !one.refund && one.cost != Some(0);
        !self.descriptors.iter().any(takes)
    }

    /// The same with the part of limits that come along, where several count apart.
    fn parts(&self, by: u32) -> Option<Vec<Descriptor<'_>>> {
        if by <= 1 || !self.brings_limit() {
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
        if back.is_empty() {
            return;
        }
        let asked =
            (service.decider.engine).decide_descriptors_async(self.domain, &back, self.hits_addend);
        let Ok(_) = asked.await;
    }

    /// Keeps what a request holds that passed, by rules and by trees. If that can't be, it can't run, and what the rules
    /// took comes back.
    async fn keep<B: Store>(
        &self,
        service: &Service<B>,
        facts: &Facts<'_>,
        (by_rules, by_trees): (Option<Permits>, Option<Permits>),
        room: Option<Room<'_>>,
    ) -> Result<(), Undecided> {
        let by_trees = by_trees.filter(|permits| !permits.is_empty() && !self.takes_nothing());
        if by_rules.is_none() && by_trees.is_none() {
            return Ok(());
        }
        let name = self.name();
        let is_by_trees = by_trees.is_some();
        let mut kept =
            by_trees.map_or(Ok(()), |permits| service.decider.lend(&name, permits, None));
        match by_rules {
            Some(permits) if kept.is_ok() => {
                kept = service.decider.lend(&name_of(facts), permits, room);
                if kept.is_err() && is_by_trees {
                    // The oldest may be another's, but slots are alike.
                    drop(service.decider.holds.take(&name));
                }
            }
            Some(permits) => permits.cancel(),
            None => {}
        }
        if kept.is_err() && service.decider.engine.decides_by_facts() {
            service.decider.take_back(facts).await;
        }
        kept.map_err(Undecided::Full)
    }

    /// Frees what a request holds whose client has left: it doesn't run. The oldest may be another's, but slots are alike.
    #[cold]
    pub(crate) fn release<B: Store>(&self, service: &Service<B>) {
        if service.decider.holds.count() > 0 && !self.takes_nothing() {
            drop(service.decider.holds.take(&self.name()));
            let texts = Texts::of(self, &service.decider.engine.facts_asked());
            if let Ok(Sets { first, .. }) = texts.sets(self) {
                drop(service.decider.holds.take(&name_of(&first)));
            }
        }
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
    match ask(service, question, &service.answers.rls_headers).await {
        Err(why) => could_not_decide(service, question.descriptors.len(), why),
        Ok(mut decided) => {
            decided.tell_wait(&service.answers.rls_headers);
            Ok(decided)
        }
    }
}

/// What is told of a request of so many descriptors that can't be decided: what the operator has chosen. It is counted as that.
#[cold]
pub(super) fn could_not_decide<B: Store>(
    service: &Service<B>,
    descriptors: usize,
    why: Undecided,
) -> Result<Decided, Undecided> {
    service
        .monitor
        .measured
        .could_not_decide(service.answers.rls_closed);
    if service.answers.rls_closed == RlsClosed::Error {
        return Err(why);
    }
    let mut refused = unlimited(descriptors);
    refused.refuse();
    refused.failure = Some(match why {
        Undecided::Unavailable(limit) => {
            refused.reason = Some(DenyReason::Store);
            ("store_failure", limit)
        }
        Undecided::Invalid(_) | Undecided::Full(_) => ("failure", why.to_string()),
    });
    Ok(refused)
}

/// Counts a request of a domain that the policy doesn't know, and says so once.
#[cold]
fn note_unknown_domain<B: Store>(service: &Service<B>, domain: &str) {
    if service.monitor.measured.is_new_unknown_domain(domain) {
        let fields: [(&str, &dyn fmt::Display); 2] = [
            ("domain", &domain),
            (
                "help",
                &"the policy has no limit for this domain, so its requests pass: add it, or send another domain",
            ),
        ];
        service
            .monitor
            .log
            .say(Level::Warn, "unknown_domain", &fields);
    }
}

/// Decides about a request, or says why it can't. The header fields are in these dialects.
pub(crate) async fn ask<B: Store>(
    service: &Service<B>,
    question: &Question<'_>,
    dialects: &[Dialect],
) -> Result<Decided, Undecided> {
    question.check(&service.decider.bounds)?;
    if !service.decider.engine.knows_domain(question.domain) {
        note_unknown_domain(service, question.domain);
    }
    let parts = question.parts(service.decider.replicas);
    let question = &Question {
        descriptors: parts.as_deref().unwrap_or(question.descriptors),
        ..*question
    };
    if question
        .descriptors
        .iter()
        .any(|descriptor| descriptor.refund)
    {
        drop(service.decider.holds.take(&question.name()));
    }
    let texts = Texts::of(question, &service.decider.engine.facts_asked());
    let Sets { first, others } = texts.sets(question)?;
    let given_back = texts.given_back(question)?;
    let facts = first.also(&others);
    if service.decider.engine.decides_by_facts() {
        for part in &given_back {
            service.decider.refund(part).await;
        }
    }
    ask_both(service, question, &facts, dialects).await
}

/// What trees and rules decide, whichever there are: a request is charged to both or to neither.
async fn ask_both<B: Store>(
    service: &Service<B>,
    question: &Question<'_>,
    facts: &Facts<'_>,
    dialects: &[Dialect],
) -> Result<Decided, Undecided> {
    let takes = !question.takes_nothing() && !question.gives_back();
    let room = if takes && service.decider.engine.decides_by_facts() {
        service.decider.room_for(facts).map_err(Undecided::Full)?
    } else {
        None
    };
    let trees = if service.decider.engine.decides_by_descriptors() || question.brings_limit() {
        Some(ask_trees(service, question, dialects).await?)
    } else {
        None
    };
    let trees = match trees {
        Some(trees) if !trees.decided.is_allowed => return Ok(trees.decided),
        trees => trees,
    };
    let by_rules = if service.decider.engine.decides_by_facts() {
        ask_rules(service, question, facts, dialects).await
    } else {
        Ok((None, None))
    };
    let passes = |decided: &Option<Decided>| decided.as_ref().is_none_or(|one| one.is_allowed);
    let (by_rules, held) = match by_rules {
        Ok((decided, held)) if passes(&decided) => (decided, held),
        refused => {
            // Of all limits or of none: what the trees took comes back, which they have told to the unit.
            if let Some(trees) = trees {
                if let Some(permits) = trees.permits {
                    permits.cancel();
                }
                question.give_back_trees(service, &trees.charged).await;
            }
            let (decided, _) = refused?;
            return Ok(decided.unwrap_or_else(|| unlimited(question.descriptors.len())));
        }
    };
    let Some(trees) = trees else {
        question.keep(service, facts, (held, None), room).await?;
        return Ok(by_rules.unwrap_or_else(|| unlimited(question.descriptors.len())));
    };
    let held = (held, trees.permits);
    if let Err(full) = question.keep(service, facts, held, room).await {
        question.give_back_trees(service, &trees.charged).await;
        return Err(full);
    }
    // What limits is told before what doesn't.
    let (mut told, other) = match by_rules {
        Some(by_rules) if trees.decided.limits_nothing() => (by_rules, Some(trees.decided)),
        by_rules => (trees.decided, by_rules),
    };
    told.shadow
        .extend(other.into_iter().flat_map(|other| other.shadow));
    Ok(told)
}

/// What the trees of descriptors made of a request.
struct ByTrees {
    decided: Decided,
    /// What they took for each descriptor: all of it comes back if the rules deny the request.
    charged: Vec<u64>,
    permits: Option<Permits>,
}

/// What the trees of descriptors decide. They are asked before the rules, because they tell what they have charged: what
/// rules were charged can't be told from what they weren't, and would be given back all the same.
async fn ask_trees<B: Store>(
    service: &Service<B>,
    question: &Question<'_>,
    dialects: &[Dialect],
) -> Result<ByTrees, Undecided> {
    let Question {
        domain,
        descriptors,
        hits_addend,
    } = *question;
    let asked = service
        .decider
        .engine
        .decide_descriptors_async(domain, descriptors, hits_addend);
    let Ok(verdict) = asked.await;
    let mut decided = by_tree((domain, descriptors.len()), &verdict, dialects)?;
    if decided.is_allowed && service.answers.shadow == ShadowAnswers::Shown {
        let shadows = verdict.statuses.iter().filter(|one| one.would_refuse);
        decided.shadow = shadows.filter_map(|one| one.limit.clone()).collect();
    }
    let charged = verdict.statuses.iter().map(|one| one.charged).collect();
    let permits = verdict.passed().map(DescriptorsPassed::into_permits);
    Ok(ByTrees {
        decided,
        charged,
        permits,
    })
}

/// What rules say, and what a request holds by them that passes; nothing to one that only gives back.
async fn ask_rules<B: Store>(
    service: &Service<B>,
    question: &Question<'_>,
    facts: &Facts<'_>,
    dialects: &[Dialect],
) -> Result<(Option<Decided>, Option<Permits>), Undecided> {
    if question.gives_back() {
        service.decider.refund(facts).await;
        return Ok((None, None));
    }
    let places = question.descriptors.len();
    let tell = |answered: &Answered<'_>| {
        let mut decided = by_rule(places, answered, dialects)?;
        if decided.is_allowed && service.answers.shadow == ShadowAnswers::Shown {
            decided.shadow = answered.shadow_rules().collect();
        }
        Ok(decided)
    };
    let (decided, held) = if question.takes_nothing() {
        (service.decider.peek(facts, tell).await, None)
    } else {
        service
            .decider
            .decide(facts, LimitsTold::by(dialects), tell)
            .await
    };
    Ok((Some(decided?), held))
}

impl Decided {
    /// What the proxy can tell others of the decision: names and texts.
    pub(crate) fn metadata(&self) -> SmallVec<[(&'static str, Cow<'_, str>); 4]> {
        let rule = self.rule.iter().map(|rule| ("rule", rule.as_str()));
        let reason = self.reason.iter().map(|reason| ("reason", reason.name()));
        let limit = self.limited_by.iter();
        let limit = limit.map(|limit| ("limited_by", limit.as_str()));
        let failure = self.failure.iter();
        let failure = failure.map(|(name, text)| (*name, text.as_str()));
        let borrowed = rule.chain(reason).chain(limit).chain(failure);
        let all = borrowed.map(|(name, text)| (name, Cow::Borrowed(text)));
        let shadow = (!self.shadow.is_empty()).then(|| Cow::Owned(self.shadow.join(", ")));
        all.chain(shadow.map(|rules| ("shadow", rules))).collect()
    }

    pub(super) fn refuse(&mut self) {
        self.is_allowed = false;
        for status in &mut self.statuses {
            status.is_allowed = false;
        }
    }

    /// Tells the client of a request that is denied when to come again, if it is told anything by header fields: Envoy adds them
    /// to its 429.
    fn tell_wait(&mut self, dialects: &[Dialect]) {
        let wait = self.decision.as_ref().and_then(retry_after);
        if let (false, false, Some(seconds)) = (self.is_allowed, dialects.is_empty(), wait) {
            self.headers.push(("retry-after", seconds.to_string()));
        }
    }

    fn limits_nothing(&self) -> bool {
        self.is_allowed && self.statuses.iter().all(|status| status.limit.is_none())
    }
}
