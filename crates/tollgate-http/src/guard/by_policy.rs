//! Limits of a policy file: the facts of a request decide which rules apply.

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

/// The limits of a policy, with counters in any backend.
///
/// For each request it collects the facts of [`COMMON_FACTS`](tollgate_engine::facts::COMMON_FACTS) that the policy
/// in force names, and reads nothing else.
///
/// | fact | source |
/// |---|---|
/// | `method`, `path`, `host` | the request |
/// | `route` | the route of the request, if the adapter knows it |
/// | `ip` | the connection, or the field of [trusted proxies](Self::client_address) |
/// | `user`, `tenant`, `tier` | extensions: [`User`](super::User), [`Tenant`](super::Tenant), [`Tier`](super::Tier) |
/// | `api_key` | the header `x-api-key`, `api-key` or `apikey`, or `Authorization: ApiKey …` |
/// | `header.<name>` | this header, [as text](tollgate_engine::facts::text_of_bytes) |
/// | `domain`, `descriptor`, others | the extension [`ExtraFacts`](super::ExtraFacts), which overrides all of these |
///
/// A layer further out sets the extensions.
///
/// A header with several values is compared with each value, and with all of them joined. A `block`, or the `match`
/// of a rule, holds if any of them matches; an `exempt` holds only if each does. Several hosts and API keys are
/// compared in the same way.
///
/// If the value is used, as in a key, the request gets 400, because the service might read any of the values. The
/// values of a list (`accept`, `cookie`, `via` …) are joined instead. An outer layer that knows the right value can
/// set it by [`ExtraFacts`](super::ExtraFacts).
///
/// If the policy is replaced while a request waits, the facts that the new one needs are collected then.
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
    /// Decides without waiting; none for a backend that takes time, such as a store.
    #[debug(skip)]
    decide_now: Option<DecideNow<B>>,
}

type DecideNow<B> = for<'f> fn(&Engine<B>, &'f Facts<'f>, &ResponseFormat) -> RequestDecision<'f>;

/// A request for a decision of a backend that takes time, with facts that outlive the HTTP request.
#[derive(Debug)]
pub struct PolicyQuery {
    facts: OwnedFacts,
    cost: Option<u64>,
    /// How many leading bits of an IPv4 and an IPv6 address identify a client.
    bits: (u8, u8),
}

impl<C: Clock + 'static, W: Clock + 'static> PolicyLimits<Memory<C, W>> {
    /// Limits of an engine that counts in this process.
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
    /// Limits of an engine whose backend takes time, such as a store.
    ///
    /// A warning is logged once (target `tollgate`) for each rule that finds no key in its first hundred requests,
    /// and for a policy whose rules apply to none of them. It names the facts of the last request, and the fact that
    /// the rule needs.
    pub fn new(engine: impl Into<Arc<Engine<B>>>) -> Self {
        let engine = engine.into();
        engine.log_warnings(events::policy_warning);
        Self {
            engine,
            address: ClientAddress::new(),
            decide_now: None,
        }
    }

    /// Sets how the fact `ip` is found: by default it is the address of the connection. Behind proxies, state which
    /// ones are trusted.
    ///
    /// A rule with `key: ip` counts by the leading bits that [`ipv6_bits`](ClientAddress::ipv6_bits) and
    /// [`ipv4_bits`](ClientAddress::ipv4_bits) set: by default 64 and 32. Conditions see the whole address.
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
    /// The first combination of facts for the engine.
    fn first(&self) -> Facts<'_> {
        self.on_terms(self.facts.first())
    }

    /// All other combinations of facts, for facts with several values; nearly always none.
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

/// Turns a decision of the engine into an outcome.
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

/// A buffer for the text of any address: the longest has 39 characters.
type AddressBuffer = [u8; 40];

/// Writes an address into the buffer.
fn address_text(address: IpAddr, room: &mut AddressBuffer) -> &str {
    let mut rest = &mut room[..];
    let written = match address {
        // Most addresses are IPv4, and `fmt` takes several times as long.
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
        // Without copies, if no fact has several values: that is nearly every request.
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

/// Settles rules whose cost is an estimate (`settle_within`). The cost of other rules stays charged.
impl<B: Backend> SettleCosts for PolicyLimits<B> {}
