//! What all protocols share: the engine, the keys that bring their limits along, and the bounds.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use tollgate::clock::{Clock, Wall};
use tollgate::{Algorithm, Decision, Outcome};
use tollgate_engine::backend::{Backend, Gift, Limit, LimitKind, Memory};
use tollgate_engine::verdict::{Cause, Findings, Permits, TooMuch};
use tollgate_engine::{Engine, Facts, Verdict};
use tollgate_http::{Dialect, Kind, Shown};
use tollgate_redis::Redis;

use crate::bounds::Bounds;
use crate::cells::{Cells, Here, There};
use crate::holds::{Full, Holds};
use crate::rls::RlsClosed;
use crate::secret::Secret;

/// What decides, for every protocol.
pub(crate) struct Service<B: Store> {
    pub(crate) engine: Engine<B>,
    pub(crate) cells: B::Cells,
    pub(crate) bounds: Bounds,
    pub(crate) holds: Holds,
    /// The header fields that tell what is left.
    pub(crate) dialects: Vec<Dialect>,
    /// The same for Envoy to add.
    pub(crate) rls_headers: Vec<Dialect>,
    /// What Envoy is told of a decision that could not be made.
    pub(crate) rls_closed: RlsClosed,
    /// How many count apart: limits that come along with a request are divided by it, as those of the policy are.
    pub(crate) replicas: u32,
    /// What an operator has to tell on RESP.
    pub(crate) password: Option<Secret>,
    /// What an operator has to tell on HTTP.
    pub(crate) token: Option<Secret>,
}

/// Who answers: memory, or a store.
pub(crate) trait Store: Backend<Error = Infallible> + Sized + 'static {
    /// Who keeps keys that bring their limits along.
    type Cells: Cells;

    /// It answers at once, if no rule lets requests wait.
    const IS_HERE: bool;

    /// Decides a request. It waits where its rule says so.
    fn decide<'f>(
        engine: &Engine<Self>,
        facts: &'f Facts<'f>,
    ) -> impl Future<Output = Verdict<'f>> + Send;
}

impl<C: Clock + 'static, W: Clock + 'static> Store for Memory<C, W> {
    type Cells = Here<C>;
    const IS_HERE: bool = true;

    #[inline]
    async fn decide<'f>(engine: &Engine<Self>, facts: &'f Facts<'f>) -> Verdict<'f> {
        if !engine.lets_wait() {
            return engine.decide(facts);
        }
        let Ok(verdict) = engine.decide_async(facts).await;
        verdict
    }
}

impl Store for Redis {
    type Cells = There;
    const IS_HERE: bool = false;

    async fn decide<'f>(engine: &Engine<Self>, facts: &'f Facts<'f>) -> Verdict<'f> {
        let Ok(verdict) = engine.decide_async(facts).await;
        verdict
    }
}

impl<B: Store> Service<B> {
    /// Decides a request, and keeps what it holds for as long as nobody gives it back. If no more may be held, it is
    /// not decided: a slot that nobody keeps would be free at once.
    pub(crate) async fn check<R>(
        &self,
        facts: &Facts<'_>,
        tell: impl FnOnce(&Answered<'_>) -> R,
    ) -> Result<R, Full> {
        let mut verdict = B::decide(&self.engine, facts).await;
        if let Verdict::Passed(passed) = &mut verdict
            && let Some(permits) = passed.take_permits()
            && let Err(full) = self.lend(&name_of(facts), permits)
        {
            self.take_back(facts).await;
            return Err(full);
        }
        Ok(tell(&Answered::of(&verdict, verdict.refused().is_none())))
    }

    /// Decides a request, and leaves it to the caller to keep what it holds.
    pub(crate) async fn decide<R>(
        &self,
        facts: &Facts<'_>,
        tell: impl FnOnce(&Answered<'_>) -> R,
    ) -> (R, Option<Permits>) {
        let mut verdict = B::decide(&self.engine, facts).await;
        let permits = match &mut verdict {
            Verdict::Passed(passed) => passed.take_permits(),
            Verdict::Refused(_) => None,
        };
        let told = tell(&Answered::of(&verdict, verdict.refused().is_none()));
        (told, permits)
    }

    /// What a request would be told.
    pub(crate) async fn peek<R>(
        &self,
        facts: &Facts<'_>,
        tell: impl FnOnce(&Answered<'_>) -> R,
    ) -> R {
        let Ok(findings) = self.engine.peek_async(facts).await;
        tell(&Answered::of(&findings, findings.decision().is_allowed()))
    }
}

impl<B: Store> Service<B> {
    /// Keeps what a request holds, for a caller that has no name for it but what it asked.
    #[cold]
    pub(crate) fn lend(&self, name: &[u8], permits: Permits) -> Result<(), Full> {
        self.holds.keep(name, permits, self.bounds.hold_time)
    }

    /// Takes back what a request was charged that can't run, and whose permits were cancelled. What others hold isn't
    /// touched.
    #[cold]
    pub(crate) async fn take_back(&self, facts: &Facts<'_>) {
        let Ok(_) = self.engine.refund_cancelled_async(facts).await;
    }

    /// Gives back what a request like this cost, and ends the oldest that one holds without a name.
    pub(crate) async fn refund(&self, facts: &Facts<'_>) -> Gift {
        let Ok(gift) = match self.holds.take(&name_of(facts)) {
            Some(permits) => {
                drop(permits);
                self.engine.refund_dropped_async(facts).await
            }
            None => self.engine.refund_async(facts).await,
        };
        gift
    }

    /// Forgets what requests like this have spent.
    pub(crate) async fn reset(&self, facts: &Facts<'_>) -> Gift {
        let Ok(gift) = self.engine.forget_async(facts).await;
        gift
    }
}

/// What an operator is told whose gift a store couldn't be told of.
pub(crate) const LOST: &str =
    "the store can't be asked, so not all of it was given: ask again once it can";

/// What a request without a name is known by: its facts, in one order whatever order they come in.
pub(crate) fn name_of(facts: &Facts<'_>) -> Vec<u8> {
    let mut pairs: Vec<_> = facts.iter().collect();
    pairs.sort_unstable();
    let mut name = vec![b'f'];
    for text in pairs.into_iter().flat_map(|(fact, value)| [fact, value]) {
        name.extend((text.len() as u64).to_le_bytes());
        name.extend(text.as_bytes());
    }
    name
}

/// What a client is told of a request.
#[derive(Debug)]
pub(crate) struct Answered<'a> {
    pub(crate) is_allowed: bool,
    pub(crate) cause: Cause<'a>,
    pub(crate) decision: Decision,
    findings: &'a Findings<'a>,
}

impl<'a> Answered<'a> {
    pub(crate) fn of(findings: &'a Findings<'a>, is_allowed: bool) -> Self {
        Self {
            is_allowed,
            cause: findings.cause(),
            decision: *findings.decision(),
            findings,
        }
    }

    /// The name of what decided; none if nothing that has one did.
    pub(crate) fn rule(&self) -> Option<&'a str> {
        match self.cause {
            Cause::Rule(name) | Cause::Tier(name) | Cause::StoreFailure(name) => Some(name),
            _ => None,
        }
    }

    /// What header fields show of the limit that decided.
    pub(crate) fn shown(&self) -> Option<Shown<'a>> {
        let (name, kind) = (self.rule()?, self.findings.limit()?.kind());
        let shown = Shown::of(name, &self.decision);
        let LimitKind::Rate { rate, algorithm } = kind else {
            return Some(match kind.window() {
                Some(window) => shown.window(window),
                None => shown,
            });
        };
        let (Some(period), count) = (rate.period(), rate.count()) else {
            return Some(shown);
        };
        let limit = self.decision.limit;
        let of = |tokens: u64| {
            let nanos = period.as_nanos() * u128::from(tokens) / u128::from(count.max(1));
            Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
        };
        let is_bucket = matches!(
            algorithm,
            Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket
        );
        // All but the last token that is missing come back after the first of them does.
        let later = limit
            .saturating_sub(self.decision.remaining)
            .saturating_sub(1);
        let shown = shown.window(of(limit));
        Some(if is_bucket && self.is_allowed {
            shown.more_after(self.decision.reset_after.saturating_sub(of(later)))
        } else {
            shown
        })
    }

    /// What refused.
    pub(crate) fn kind(&self) -> Kind {
        match self.cause {
            Cause::StoreFailure(_) => return Kind::Unavailable,
            Cause::Block(_) => return Kind::Blocked,
            Cause::TooMuch(_) => return Kind::TooLarge,
            _ => {}
        }
        if self.decision.outcome == Outcome::Never {
            return Kind::TooLarge;
        }
        match self.findings.limit().map(Limit::kind) {
            Some(LimitKind::Quota(_)) => Kind::Quota,
            Some(LimitKind::Concurrency(_)) => Kind::Concurrency,
            _ => Kind::Rate,
        }
    }

    /// The limit that decided.
    pub(crate) fn limit(&self) -> Option<&'a LimitKind> {
        self.findings.limit().map(Limit::kind)
    }

    /// What the request has more of than is taken: no decision of a limit, either.
    pub(crate) fn too_much(&self) -> Option<TooMuch<'a>> {
        match self.cause {
            Cause::TooMuch(what) if !self.is_allowed => Some(what),
            _ => None,
        }
    }

    /// Why nothing could be decided: another answer than a refusal.
    pub(crate) fn failure(&self) -> Option<&'a str> {
        match self.cause {
            Cause::StoreFailure(name) if !self.is_allowed => Some(name),
            _ => None,
        }
    }
}

/// The time, for the one dialect that tells it.
pub(crate) fn unix_now(dialects: &[Dialect]) -> u64 {
    if dialects.contains(&Dialect::Github) {
        Wall.now().as_nanos() / 1_000_000_000
    } else {
        0
    }
}
