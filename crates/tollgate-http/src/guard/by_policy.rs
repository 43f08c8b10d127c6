//! A policy decides: facts of the request in, what its rules say out.

use std::borrow::Cow;
use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;

use derive_more::Debug;
use tollgate::clock::Clock;
use tollgate_engine::backend::{Backend, Memory};
use tollgate_engine::verdict::Permits;
use tollgate_engine::{DecideOptions, Engine, Facts, RequestDecision};

use super::denial::Denial;
use super::events;
use super::facts::{self, FactValue, OwnedFacts};
use super::fields::HeaderFields;
use super::keys::ClientAddress;
use super::request::Request;
use super::response::ResponseFormat;
use super::{AskOutcome, LimitOutcome, RequestLimits, SettleCosts, Terms};
use crate::DecisionAnswer;

/// The limits of a policy, whoever keeps the counts.
///
/// Of a request it fills in every fact of [`COMMON_FACTS`](tollgate_engine::facts::COMMON_FACTS) that the policy in force names; nothing else
/// is read.
///
/// | fact | where it comes from |
/// |---|---|
/// | `method`, `path`, `host` | the request |
/// | `route` | the route that serves it, if the carrier knows it |
/// | `ip` | the connection, or what trusted proxies tell ([`address`](Self::address)) |
/// | `user`, `tenant`, `tier` | the extensions [`User`](super::User), [`Tenant`](super::Tenant), [`Tier`](super::Tier), which a layer further out sets |
/// | `api_key` | the header `x-api-key`, `api-key` or `apikey`, or `Authorization: ApiKey …` |
/// | `header.<name>` | that header, with bytes that are no text as [`text_of_bytes`](tollgate_engine::facts::text_of_bytes) writes them |
/// | `domain`, `descriptor` and any other | the extension [`ExtraFacts`](super::ExtraFacts), which also comes before all of these |
///
/// A header in several lines is compared line by line and as one text: a `block`, or the `match` of a rule, holds if it holds for any of
/// them, and an `exempt` if it holds for each line. So are several hosts and API keys. If the value is used, as that of a key is, the request
/// is answered 400, as nobody knows which line the service reads; lines of a list (`accept`, `cookie`, `via` …) are put together. A layer
/// outside that knows which line counts says so by [`ExtraFacts`](super::ExtraFacts).
///
/// If another policy comes into force while a request waits, and asks for something else, that is looked for then.
///
/// ```
/// use tollgate_engine::backend::Memory;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::{Engine, Policy};
/// use tollgate_http::guard::PolicyLimits;
///
/// let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 10/s}]", Format::Yaml)?.policy;
/// let limits = PolicyLimits::in_memory(Engine::new(policy, Memory::new())?);
/// # let _ = limits;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PolicyLimits<B: Backend> {
    #[debug(skip)]
    engine: Arc<Engine<B>>,
    address: ClientAddress,
    /// Decides at once; none for a backend that takes its time.
    #[debug(skip)]
    decide_now: Option<DecideNow<B>>,
}

type DecideNow<B> = for<'f> fn(&Engine<B>, &'f Facts<'f>, &ResponseFormat) -> RequestDecision<'f>;

/// What is asked of a backend that takes its time: facts that outlive their request.
#[derive(Debug)]
pub struct PolicyQuery {
    facts: OwnedFacts,
    cost: Option<u64>,
    /// How many bits of an address are one client's, of IPv4 and IPv6.
    bits: (u8, u8),
}

impl<C: Clock + 'static, W: Clock + 'static> PolicyLimits<Memory<C, W>> {
    /// By an engine that counts in this process.
    pub fn in_memory(engine: impl Into<Arc<Engine<Memory<C, W>>>>) -> Self {
        Self {
            decide_now: Some(|engine, facts, answers| {
                if answers.are_silent() {
                    engine.decide(facts)
                } else {
                    engine.decide_listing_limits(facts)
                }
            }),
            ..Self::new(engine)
        }
    }
}

impl<B: Backend> PolicyLimits<B> {
    /// By an engine that takes its time, as one that counts in a store.
    ///
    /// A rule that finds its key in none of its first hundred requests, and a policy of which no rule is for any of them, is logged
    /// once at WARN (target `tollgate`), with what the last request had and what the rule wants.
    pub fn new(engine: impl Into<Arc<Engine<B>>>) -> Self {
        let engine = engine.into();
        engine.log_warnings(events::policy_warning);
        Self {
            engine,
            address: ClientAddress::new(),
            decide_now: None,
        }
    }

    /// How the fact `ip` is found: by the address of the connection, unless this says which proxies are believed. A rule with `key: ip`
    /// counts by as many bits of it as [`ipv6_bits`](Address::ipv6_bits) and [`ipv4_bits`](Address::ipv4_bits) say, which is 64 and 32
    /// unless said otherwise; conditions see the whole address.
    ///
    /// ```
    /// use tollgate_engine::backend::Memory;
    /// use tollgate_engine::document::Format;
    /// use tollgate_engine::{Engine, Policy};
    /// use tollgate_http::client::Trust;
    /// use tollgate_http::guard::{PolicyLimits, keys::ClientAddress};
    ///
    /// let policy = Policy::from_text("limits: [{name: per-client, key: ip, rate: 10/s}]", Format::Yaml)?.policy;
    /// let limits = PolicyLimits::in_memory(Engine::new(policy, Memory::new())?)
    ///     .client_address(ClientAddress::new().trust(Trust::proxies(["10.0.0.0/8".parse()?])));
    /// # let _ = limits;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn client_address(mut self, address: ClientAddress) -> Self {
        self.address = address;
        self
    }
}

impl PolicyQuery {
    /// The first set of facts that the engine is asked about.
    fn first(&self) -> Facts<'_> {
        self.on_terms(self.facts.first())
    }

    /// All other sets of facts that the request stands for; nearly always none.
    fn others(&self) -> Vec<Facts<'_>> {
        let others = self.facts.others().into_iter();
        others.map(|facts| self.on_terms(facts)).collect()
    }

    fn on_terms<'f>(&self, facts: Facts<'f>) -> Facts<'f> {
        let mut facts = facts.with_client_prefixes(self.bits.0, self.bits.1);
        if let Some(cost) = self.cost {
            facts.set_cost(cost);
        }
        facts
    }
}

/// What becomes of a request that was decided so.
fn outcome_of(
    mut verdict: RequestDecision<'_>,
    answers: &ResponseFormat,
) -> LimitOutcome<Option<Permits>> {
    let held = match &mut verdict {
        RequestDecision::Allowed(passed) => Some(passed.take_permits()),
        RequestDecision::Denied(_) => None,
    };
    let answered = DecisionAnswer::of(&verdict, held.is_some());
    if let Some(rule) = answered.rule() {
        let key = || verdict.key().map_or(0, |key| key.fingerprint()[0]);
        events::trace_decision(rule, key, &answered.decision);
    }
    match held {
        Some(held) => LimitOutcome::Passed {
            held,
            fields: if answers.are_silent() {
                HeaderFields::new()
            } else {
                answered.with_limits(|limits| answers.listed(limits))
            },
        },
        None => {
            let rule = answered.rule().unwrap_or_default();
            let denial = Denial::new(answered.reason(), rule, answered.decision);
            let denial = denial.with_shown_limit(answered.shown());
            let denial = answered.with_limits(|limits| denial.with_shown_limits(limits));
            LimitOutcome::Denied(Box::new(match verdict.key() {
                Some(key) => denial.key(key.fingerprint()[0]),
                None => denial,
            }))
        }
    }
}

/// Room for the text of any address: the longest has 39 signs.
type AddressBuffer = [u8; 40];

/// The text of an address, written into this room.
fn address_text(address: IpAddr, room: &mut AddressBuffer) -> &str {
    let mut rest = &mut room[..];
    let written = match address {
        // Most are these, and `fmt` takes several times as long.
        IpAddr::V4(four) => four.octets().iter().enumerate().try_for_each(|(at, part)| {
            let dot: &[u8] = if at > 0 { b"." } else { b"" };
            rest.write_all(dot)?;
            rest.write_all(itoa::Buffer::new().format(*part).as_bytes())
        }),
        IpAddr::V6(six) => write!(rest, "{six}"),
    };
    debug_assert!(written.is_ok());
    let left = rest.len();
    let used = room.len() - left;
    str::from_utf8(&room[..used]).unwrap_or_default()
}

impl<R: Request + ?Sized, B: Backend + 'static> RequestLimits<R> for PolicyLimits<B> {
    type Held = Option<Permits>;
    type Question = PolicyQuery;

    fn ask(
        &self,
        request: &R,
        terms: &Terms<'_>,
    ) -> AskOutcome<LimitOutcome<Self::Held>, PolicyQuery> {
        let asked = self.engine.required_facts();
        let now = self
            .decide_now
            .filter(|_| !(self.engine.has_waiting_rules() && terms.may_wait));
        let is_asked = |fact: &str| asked.iter().any(|name| &**name == fact);
        let ip = is_asked("ip").then(|| self.address.client(request));
        let mut room = [0; 40];
        let ip = ip.flatten().map(|ip| address_text(ip, &mut room));
        let bits = self.address.bits();
        let decide = |now: DecideNow<B>, facts: &Facts<'_>| {
            let verdict = now(&self.engine, facts, terms.answers);
            AskOutcome::Now(outcome_of(verdict, terms.answers))
        };
        if let Some(now) = now {
            let mut known = Facts::new().with_client_prefixes(bits.0, bits.1);
            let is_known = facts::facts(request, ip, &asked).all(|(_, name, value)| {
                if let FactValue::One(Cow::Borrowed(text)) = value {
                    known.set(name, text);
                    return true;
                }
                value == FactValue::Absent
            });
            if is_known {
                if let Some(cost) = terms.cost {
                    known.set_cost(cost);
                }
                return decide(now, &known);
            }
        }
        let question = match OwnedFacts::of(request, ip, asked) {
            Ok(facts) => PolicyQuery {
                facts,
                cost: terms.cost,
                bits,
            },
            Err(missing) => return AskOutcome::Now(LimitOutcome::missing_key("", missing)),
        };
        match now {
            Some(now) => {
                let others = question.others();
                decide(now, &question.first().with_other_sets(&others))
            }
            None => AskOutcome::Later(question),
        }
    }

    fn takes_time(&self) -> bool {
        self.decide_now.is_none() || self.engine.has_waiting_rules()
    }

    async fn answer(&self, question: PolicyQuery, terms: &Terms<'_>) -> LimitOutcome<Self::Held> {
        let others = question.others();
        let facts = question.first().with_other_sets(&others);
        let mut on = DecideOptions::new().with_known_facts(&question.facts.asked);
        if !terms.may_wait {
            on = on.without_waiting();
        }
        if !terms.answers.are_silent() {
            on = on.listing_limits();
        }
        match self.engine.decide_with_conditions(on, &facts).await {
            Ok(Some(verdict)) => outcome_of(verdict, terms.answers),
            Ok(None) => LimitOutcome::Outdated,
            Err(error) => LimitOutcome::Denied(Box::new(Denial::store_unreachable(&error))),
        }
    }
}

/// Of rules whose cost is an estimate (`settle_within`); of others the cost stays charged.
impl<B: Backend> SettleCosts for PolicyLimits<B> {}
