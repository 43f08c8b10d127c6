//! A policy decides: facts of the request in, what its rules say out.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use tollgate::clock::Clock;
use tollgate_engine::backend::{Backend, Memory};
use tollgate_engine::verdict::Permits;
use tollgate_engine::{Engine, Facts, Verdict};

use super::answers::{Answers, Speaks};
use super::keys::Address;
use super::request::{MoreFacts, Request, Tenant, Tier, User};
use super::{Admission, Asked, Limits};
use crate::Answered;

/// The limits of a policy, whoever keeps the counts.
///
/// Of a request it fills in `method`, `path`, `route`, `host`, `ip`, `user`, `tenant` and `tier` (what an earlier layer has put into
/// its extensions as [`User`], [`Tenant`], [`Tier`] and [`MoreFacts`]), and those headers that the policy in force names: no
/// others are read.
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

/// What is asked of a backend that takes its time.
#[derive(Debug)]
pub struct Question {
    facts: Vec<(Box<str>, Box<str>)>,
    speaks: Speaks,
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

    /// How the fact `ip` is found.
    #[must_use]
    pub fn address(mut self, address: Address) -> Self {
        self.address = address;
        self
    }
}

/// The facts that a policy asks for, as far as the request has them.
fn facts<'r, R: Request>(
    request: &'r R,
    ip: Option<&'r str>,
    asked: &'r [Box<str>],
) -> impl Iterator<Item = (&'r str, &'r str)> {
    let more = request.extension::<MoreFacts>();
    asked.iter().filter_map(move |name| {
        let told = more.and_then(|more| more.get(name));
        Some((&**name, told.or_else(|| fact(request, ip, name))?))
    })
}

/// What a request says of a fact.
fn fact<'r, R: Request>(request: &'r R, ip: Option<&'r str>, name: &'r str) -> Option<&'r str> {
    match name {
        "method" => Some(request.method()),
        "path" => Some(request.path()),
        "route" => request.route(),
        "host" => request.host(),
        "ip" => ip,
        "user" => request.extension::<User>().map(|user| &*user.0),
        "tenant" => request.extension::<Tenant>().map(|tenant| &*tenant.0),
        "tier" => request.extension::<Tier>().map(|tier| &*tier.0),
        _ => str::from_utf8(request.line(name.strip_prefix("header.")?)?).ok(),
    }
}

/// What becomes of a request that was decided so.
fn admission(
    mut verdict: Verdict<'_>,
    speaks: impl FnOnce() -> Speaks,
    answers: &Answers,
) -> Admission<Option<Permits>> {
    let held = match &mut verdict {
        Verdict::Passed(passed) => Some(passed.take_permits()),
        Verdict::Refused(_) => None,
    };
    let answered = Answered::of(&verdict, held.is_some());
    let shown = || answered.shown();
    match held {
        Some(held) => Admission::Passed {
            held,
            fields: answers.passed(shown),
        },
        None => {
            let refusal = (answered.kind(), answered.rule().unwrap_or_default());
            Admission::Refused(answers.refused(speaks(), refusal, &answered.decision, shown))
        }
    }
}

impl<R: Request, B: Backend + 'static> Limits<R> for ByPolicy<B> {
    type Held = Option<Permits>;
    type Question = Question;

    fn ask(&self, request: &R, answers: &Answers) -> Asked<Self::Held, Question> {
        let asked = self.engine.facts_asked();
        let ip = asked.iter().any(|name| &**name == "ip");
        let ip = ip.then(|| self.address.client(request).address).flatten();
        let ip = ip.map(|ip: IpAddr| ip.to_string());
        let ip = ip.as_deref();
        let Some(now) = self.now.filter(|_| !self.engine.lets_wait()) else {
            let own = |(name, value): (&str, &str)| (name.into(), value.into());
            return Asked::Later(Question {
                facts: facts(request, ip, &asked).map(own).collect(),
                speaks: Speaks::of(request),
            });
        };
        let facts: Facts<'_> = facts(request, ip, &asked).collect();
        let verdict = now(&self.engine, &facts);
        Asked::Now(admission(verdict, || Speaks::of(request), answers))
    }

    async fn answer(&self, question: Question, answers: &Answers) -> Admission<Self::Held> {
        let Question { facts, speaks } = question;
        let facts: Facts<'_> = facts
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        match self.engine.decide_async(&facts).await {
            Ok(verdict) => admission(verdict, || speaks, answers),
            Err(error) => {
                tracing::error!(%error, "the limits can't be asked");
                Admission::Refused(answers.unavailable(speaks))
            }
        }
    }
}

impl<B: Backend> fmt::Debug for ByPolicy<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByPolicy")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
