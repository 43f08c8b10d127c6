//! A policy decides: facts of the request in, what its rules say out.

use std::fmt::{self, Write};
use std::net::IpAddr;
use std::sync::Arc;

use tollgate::clock::Clock;
use tollgate_engine::backend::{Backend, Memory};
use tollgate_engine::verdict::Permits;
use tollgate_engine::{Conditions, Engine, Facts, FactsAsked, Verdict};

use super::answers::Answers;
use super::denial::Denial;
use super::hooks;
use super::host;
use super::keys::Address;
use super::request::{MoreFacts, Request, Tenant, Tier, User};
use super::{Asked, Judged, Limits, Settles, Terms};
use crate::Answered;
use crate::json::digit_bytes;

/// The limits of a policy, whoever keeps the counts.
///
/// Of a request it fills in `method`, `path`, `route`, `host`, `ip`, `user`, `tenant` and `tier` (what an earlier layer has put into
/// its extensions as [`User`], [`Tenant`], [`Tier`] and [`MoreFacts`]), and those headers that the policy in force names: no
/// others are read. If another policy comes into force while a request waits, and asks for something else, that is looked for then.
///
/// ```
/// use tollgate_engine::backend::Memory;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::{Engine, Policy};
/// use tollgate_http::guard::ByPolicy;
///
/// let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 10/s}]", Format::Yaml)?.policy;
/// let limits = ByPolicy::in_memory(Engine::new(policy, Memory::new())?);
/// # let _ = limits;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ByPolicy<B: Backend> {
    engine: Arc<Engine<B>>,
    address: Address,
    /// Decides at once; none for a backend that takes its time.
    now: Option<Now<B>>,
}

type Now<B> = for<'f> fn(&Engine<B>, &'f Facts<'f>) -> Verdict<'f>;

/// What is asked of a backend that takes its time: facts that outlive their request.
#[derive(Debug)]
pub struct Question {
    /// Which were looked for.
    asked: FactsAsked,
    /// Those that were found, by their number among these.
    facts: Vec<(usize, Box<str>)>,
    cost: Option<u64>,
}

impl<C: Clock + 'static, W: Clock + 'static> ByPolicy<Memory<C, W>> {
    /// By an engine that counts in this process.
    pub fn in_memory(engine: impl Into<Arc<Engine<Memory<C, W>>>>) -> Self {
        Self {
            now: Some(|engine, facts| engine.decide(facts)),
            ..Self::new(engine)
        }
    }
}

impl<B: Backend> ByPolicy<B> {
    /// By an engine that takes its time, as one that counts in a store.
    pub fn new(engine: impl Into<Arc<Engine<B>>>) -> Self {
        Self {
            engine: engine.into(),
            address: Address::new(),
            now: None,
        }
    }

    /// How the fact `ip` is found: by the address of the connection, unless this says which proxies are believed.
    ///
    /// ```
    /// use tollgate_engine::backend::Memory;
    /// use tollgate_engine::document::Format;
    /// use tollgate_engine::{Engine, Policy};
    /// use tollgate_http::client::Trust;
    /// use tollgate_http::guard::{ByPolicy, keys::Address};
    ///
    /// let policy = Policy::from_text("limits: [{name: per-client, key: ip, rate: 10/s}]", Format::Yaml)?.policy;
    /// let limits = ByPolicy::in_memory(Engine::new(policy, Memory::new())?)
    ///     .address(Address::new().behind(Trust::proxies(["10.0.0.0/8".parse()?])));
    /// # let _ = limits;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn address(mut self, address: Address) -> Self {
        self.address = address;
        self
    }
}

/// Facts that aren't in a request as they are written there.
#[derive(Clone, Copy)]
struct Found<'r> {
    ip: Option<&'r str>,
    host: Option<&'r str>,
}

/// The facts that a policy asks for, each with its number, as far as the request has them.
fn facts<'r, R: Request + ?Sized>(
    request: &'r R,
    found: Found<'r>,
    asked: &'r [Box<str>],
) -> impl Iterator<Item = (usize, &'r str, &'r str)> {
    let more = request.extension::<MoreFacts>();
    asked.iter().enumerate().filter_map(move |(number, name)| {
        let told = more.and_then(|more| more.get(name));
        let value = told.or_else(|| fact(request, found, name))?;
        Some((number, &**name, value))
    })
}

/// What a request says of a fact.
fn fact<'r, R: Request + ?Sized>(
    request: &'r R,
    found: Found<'r>,
    name: &'r str,
) -> Option<&'r str> {
    match name {
        "method" => Some(request.method()),
        "path" => Some(request.path()),
        "route" => request.route(),
        "host" => found.host,
        "ip" => found.ip,
        "user" => request.extension::<User>().map(|user| &*user.0),
        "tenant" => request.extension::<Tenant>().map(|tenant| &*tenant.0),
        "tier" => request.extension::<Tier>().map(|tier| &*tier.0),
        _ => str::from_utf8(request.line(name.strip_prefix("header.")?)?).ok(),
    }
}

/// What becomes of a request that was decided so.
fn judged(mut verdict: Verdict<'_>, answers: &Answers) -> Judged<Option<Permits>> {
    let held = match &mut verdict {
        Verdict::Passed(passed) => Some(passed.take_permits()),
        Verdict::Refused(_) => None,
    };
    let answered = Answered::of(&verdict, held.is_some());
    if let Some(rule) = answered.rule() {
        let key = || verdict.key().map_or(0, |key| key.fingerprint()[0]);
        hooks::passed_or_not(rule, key, &answered.decision);
    }
    match held {
        Some(held) => Judged::Passed {
            held,
            fields: answers.passed(|| answered.shown()),
        },
        None => {
            let rule = answered.rule().unwrap_or_default();
            let denial = Denial::new(answered.kind(), rule, answered.decision);
            let denial = denial.showing(answered.shown());
            Judged::Refused(Box::new(match verdict.key() {
                Some(key) => denial.key(key.fingerprint()[0]),
                None => denial,
            }))
        }
    }
}

/// The text of an address, without memory of its own.
struct AddressText {
    bytes: [u8; 40],
    used: usize,
}

impl AddressText {
    fn of(address: IpAddr) -> Self {
        let mut text = Self {
            bytes: [0; 40],
            used: 0,
        };
        let written = match address {
            // Most are these, and `fmt` takes several times as long.
            IpAddr::V4(four) => four.octets().iter().enumerate().try_for_each(|(at, part)| {
                if at > 0 {
                    text.put(b".")?;
                }
                text.put(digit_bytes(u64::from(*part), &mut [0; 20]))
            }),
            // The longest address has 39 signs.
            IpAddr::V6(six) => write!(text, "{six}"),
        };
        debug_assert!(written.is_ok());
        text
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) -> fmt::Result {
        let end = self.used + bytes.len();
        let room = self.bytes.get_mut(self.used..end).ok_or(fmt::Error)?;
        room.copy_from_slice(bytes);
        self.used = end;
        Ok(())
    }

    fn as_str(&self) -> &str {
        str::from_utf8(&self.bytes[..self.used]).unwrap_or_default()
    }
}

impl Write for AddressText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.put(text.as_bytes())
    }
}

impl<R: Request + ?Sized, B: Backend + 'static> Limits<R> for ByPolicy<B> {
    type Held = Option<Permits>;
    type Question = Question;

    fn ask(&self, request: &R, terms: &Terms<'_>) -> Asked<Judged<Self::Held>, Question> {
        let asked = self.engine.facts_asked();
        let now = self
            .now
            .filter(|_| !(self.engine.lets_wait() && terms.may_wait));
        let is_asked = |fact: &str| asked.iter().any(|name| &**name == fact);
        let ip = is_asked("ip").then(|| self.address.client(request));
        let ip = ip.flatten().map(AddressText::of);
        let host = is_asked("host").then(|| request.host()).flatten();
        let host = host.map(host::name);
        let found = Found {
            ip: ip.as_ref().map(AddressText::as_str),
            host: host.as_deref(),
        };
        let each = facts(request, found, &asked);
        let Some(now) = now else {
            let own = |(number, _, value): (usize, &str, &str)| (number, value.into());
            let facts = each.map(own).collect();
            return Asked::Later(Question {
                facts,
                asked: asked.kept(),
                cost: terms.cost,
            });
        };
        let mut facts: Facts<'_> = each.map(|(_, name, value)| (name, value)).collect();
        if let Some(cost) = terms.cost {
            facts.set_cost(cost);
        }
        Asked::Now(judged(now(&self.engine, &facts), terms.answers))
    }

    async fn answer(&self, question: Question, terms: &Terms<'_>) -> Judged<Self::Held> {
        let Question { asked, facts, cost } = question;
        let each = facts.iter();
        let each = each.map(|(number, value)| (&*asked[*number], &**value));
        let mut facts: Facts<'_> = each.collect();
        if let Some(cost) = cost {
            facts.set_cost(cost);
        }
        let mut on = Conditions::new().knowing(&asked);
        if !terms.may_wait {
            on = on.at_once();
        }
        match self.engine.decide_on(on, &facts).await {
            Ok(Some(verdict)) => judged(verdict, terms.answers),
            Ok(None) => Judged::Outdated,
            Err(error) => Judged::Refused(Box::new(Denial::unasked(&error))),
        }
    }
}

/// Of rules whose cost is an estimate (`settle_within`); of others the cost stays charged.
impl<B: Backend> Settles for ByPolicy<B> {}

impl<B: Backend> fmt::Debug for ByPolicy<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByPolicy")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
