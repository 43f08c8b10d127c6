//! A guard, and what can be chosen of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::Monotonic;
use tollgate::{Clock, LimitError, Rate};

use super::blocking::{AnyClock, BlockAfter, BlockList, Tarpit, TarpitState};
use super::denial::Denial;
use super::events::{self, DenialLog};
use super::keys::KeyExtractor;
use super::request::{Cost, Request};
use super::response::{DeniedResponse, ResponseFormat};
use super::retry_jitter::RetryJitter;
use super::ticket::{CountedResponses, Settle, Settlement};
use super::{Mode, RequestLimits, SettleCosts};
use crate::waiter_limit::WaiterLimit;

/// Paths that only machines ask, which should know whether a service lives however much it has to do.
const PROBES: [&str; 4] = ["/healthz", "/readyz", "/livez", "/metrics"];

/// How many refusals are logged, unless said otherwise.
const LOGGED: Rate = Rate::per_second(10);

/// How many requests that passed may wait for the service, unless said otherwise.
const MAX_WAITING: usize = 10_000;

/// A guard before a service.
///
/// ```
/// use std::time::Duration;
/// use tollgate::Rate;
/// use tollgate_http::guard::{RequestLimiter, RatePerKey, Request, Tarpit, keys::ClientAddress};
///
/// fn guard<R: Request + 'static>() -> Result<RequestLimiter<R, RatePerKey<ClientAddress>>, tollgate::LimitError> {
///     let limits = RatePerKey::new(Rate::per_second(10).burst(20), ClientAddress::new())?;
///     Ok(RequestLimiter::new(limits)
///         .exempt_probes()
///         .cost(|request: &R| if request.path() == "/search" { 5 } else { 1 })
///         .tarpit(Tarpit::new(Duration::from_secs(2), 100), ClientAddress::new()))
/// }
/// ```
#[must_use]
pub struct RequestLimiter<R: ?Sized, L> {
    limits: LimitsRef<R, L>,
    pub(super) answers: ResponseFormat,
    /// Most guards have none, and pay for a single check of that.
    pub(super) before: Option<Arc<Prechecks<R>>>,
    pub(super) after: Option<Arc<Settlement>>,
    pub(super) mode: Mode,
    pub(super) handler: Option<Handler<R>>,
    pub(super) spread: Option<Arc<RetryJitter>>,
    pub(super) log: Arc<DenialLog>,
    /// Requests that passed and wait for the service to become ready.
    pub(super) service_waiters: Arc<WaiterLimit>,
    clock: AnyClock,
}

/// Where a guard's limits are.
enum LimitsRef<R: ?Sized, L> {
    Own(L),
    /// In this guard, which was shared when the settings of the other one changed.
    With(Arc<RequestLimiter<R, L>>),
}

/// What is looked at before limits are asked: who is served whatever they say, who isn't and who waits for that, and what a
/// request costs.
#[derive_where::derive_where(Clone, Default)]
pub(super) struct Prechecks<R: ?Sized> {
    pub(super) exempt: Vec<Predicate<R>>,
    pub(super) cost: Option<CostOf<R>>,
    pub(super) deny: Vec<Predicate<R>>,
    pub(super) blocks: Option<Arc<BlockList<R>>>,
    pub(super) pit: Option<Arc<TarpitState<R>>>,
}

pub(super) type Predicate<R> = Arc<dyn Fn(&R) -> bool + Send + Sync>;
pub(super) type CostOf<R> = Arc<dyn Fn(&R) -> u64 + Send + Sync>;
pub(super) type Handler<R> = Arc<dyn Fn(&R, &Denial, &mut DeniedResponse) + Send + Sync>;

impl<R: Request + ?Sized, L: RequestLimits<R>> RequestLimiter<R, L> {
    /// A guard that asks these limits about every request.
    pub fn new(limits: L) -> Self {
        if limits.is_global() {
            tracing::warn!(
                target: events::TARGET,
                "all requests are counted as one client's: any of them can use up the limit of all others"
            );
        }
        let clock: AnyClock = Arc::new(Monotonic::new());
        Self {
            limits: LimitsRef::Own(limits),
            answers: ResponseFormat::new(),
            before: None,
            after: None,
            mode: Mode::Enforce,
            handler: None,
            spread: None,
            log: Arc::new(DenialLog::new(LOGGED, &clock)),
            service_waiters: Arc::new(WaiterLimit::new(MAX_WAITING)),
            clock,
        }
    }

    /// The same guard with other settings. If others share it, it stays as it is for them, and both count together.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tollgate_http::guard::{RequestLimiter, RequestLimits, Request};
    ///
    /// fn trial<R: Request, L: RequestLimits<R>>(guard: &Arc<RequestLimiter<R, L>>) -> Arc<RequestLimiter<R, L>> {
    ///     RequestLimiter::configure(Arc::clone(guard), RequestLimiter::shadow)
    /// }
    /// ```
    #[must_use]
    pub fn configure(this: Arc<Self>, change: impl FnOnce(Self) -> Self) -> Arc<Self> {
        let own = Arc::try_unwrap(this).unwrap_or_else(|shared| Self {
            answers: shared.answers.clone(),
            before: shared.before.clone(),
            after: shared.after.clone(),
            mode: shared.mode,
            handler: shared.handler.clone(),
            spread: shared.spread.clone(),
            log: Arc::clone(&shared.log),
            service_waiters: Arc::clone(&shared.service_waiters),
            clock: Arc::clone(&shared.clock),
            // The guard that has the limits, so that no guard in between is kept.
            limits: LimitsRef::With(match &shared.limits {
                LimitsRef::With(first) => Arc::clone(first),
                LimitsRef::Own(_) => shared,
            }),
        });
        Arc::new(change(own))
    }

    /// How clients are told.
    pub fn response_format(mut self, answers: ResponseFormat) -> Self {
        self.answers = answers;
        self
    }

    /// The clock of blocks, tarpit and log: said before those are.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Arc::new(clock);
        self.denial_log_rate(LOGGED)
    }

    /// No limit is for requests like this, either.
    pub fn exempt(mut self, is_exempt: impl Fn(&R) -> bool + Send + Sync + 'static) -> Self {
        self.before().exempt.push(Arc::new(is_exempt));
        self
    }

    /// No limit is for GET and HEAD of exactly `/healthz`, `/readyz`, `/livez` and `/metrics`.
    pub fn exempt_probes(self) -> Self {
        self.exempt(|request: &R| {
            matches!(request.method(), "GET" | "HEAD") && PROBES.contains(&request.path())
        })
    }

    /// Whoever is on this list is let in, whatever the limits say, and whoever else says otherwise: as
    /// [`exempt`](Self::exempt).
    pub fn allow(self, is_listed: impl Fn(&R) -> bool + Send + Sync + 'static) -> Self {
        self.exempt(is_listed)
    }

    /// Whoever is on this list, and on no other that lets it in, isn't served.
    pub fn deny(mut self, is_listed: impl Fn(&R) -> bool + Send + Sync + 'static) -> Self {
        self.before().deny.push(Arc::new(is_listed));
        self
    }

    /// What requests cost: one, unless said otherwise. What costs 0 passes, and is shown what is left.
    pub fn cost(mut self, cost: impl Fn(&R) -> u64 + Send + Sync + 'static) -> Self {
        self.before().cost = Some(Arc::new(cost));
        self
    }

    /// What requests cost, by a table.
    pub fn cost_table(self, cost: Cost) -> Self {
        self.cost(move |request| cost.of(request))
    }

    /// Nothing is refused or kept waiting for its turn, also what has no key, and nobody is told that it would be but the
    /// log.
    pub fn shadow(mut self) -> Self {
        self.mode = Mode::Shadow;
        self
    }

    /// Whoever is refused too often is blocked for a while, by this key.
    ///
    /// # Errors
    /// Times that can't be kept.
    pub fn block(
        mut self,
        block: BlockAfter,
        key: impl KeyExtractor<R>,
    ) -> Result<Self, LimitError> {
        let blocks = BlockList::new(block, key, Arc::clone(&self.clock))?;
        self.before().blocks = Some(Arc::new(blocks));
        Ok(self)
    }

    /// Whoever comes again before it was told to waits for its refusal, by this key.
    pub fn tarpit(mut self, tarpit: Tarpit, key: impl KeyExtractor<R>) -> Self {
        let pit = TarpitState::new(tarpit, key, Arc::clone(&self.clock));
        self.before().pit = Some(Arc::new(pit));
        self
    }

    /// How many requests that passed a limit which [takes time](RequestLimits::takes_time) may wait for the service behind it to become ready,
    /// all together: 10,000 unless said otherwise. Others are answered 503. Those who wait for a limit are bounded by that limit.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::Rate;
    /// use tollgate_http::guard::{RequestLimiter, RatePerKey, Request, keys::ClientAddress};
    ///
    /// fn guard<R: Request + 'static>() -> Result<RequestLimiter<R, RatePerKey<ClientAddress>>, tollgate::LimitError> {
    ///     let limits = RatePerKey::new(Rate::per_second(10), ClientAddress::new())?.max_wait(Duration::from_secs(1));
    ///     Ok(RequestLimiter::new(limits).max_waiters(100))
    /// }
    /// ```
    pub fn max_waiters(mut self, most: usize) -> Self {
        self.service_waiters = Arc::new(WaiterLimit::new(most));
        self
    }

    /// `Retry-SettlementTiming` is longer than it has to be by a random time, so that those who were refused together don't come again
    /// together: up to the limit's window, or the time that all who were refused lately need, if that is longer, and never
    /// more than this.
    pub fn jitter(mut self, most: Duration) -> Self {
        self.spread = Some(Arc::new(RetryJitter::new(most, Arc::clone(&self.clock))));
        self
    }

    /// Changes refusals before they are sent: status, fields and body. It is told the request, and [why](Denial) it is refused.
    ///
    /// ```
    /// use tollgate::Rate;
    /// use tollgate_http::guard::{RequestLimiter, RatePerKey, Request, keys::ClientAddress};
    ///
    /// fn guard<R: Request + 'static>() -> Result<RequestLimiter<R, RatePerKey<ClientAddress>>, tollgate::LimitError> {
    ///     let limits = RatePerKey::new(Rate::per_second(10), ClientAddress::new())?;
    ///     Ok(RequestLimiter::new(limits).on_denied(|_request, denial, refused| {
    ///         refused.fields.set("content-type", "text/plain");
    ///         refused.body = format!("too many requests: {}", denial.limit).into();
    ///     }))
    /// }
    /// ```
    pub fn on_denied(
        mut self,
        change: impl Fn(&R, &Denial, &mut DeniedResponse) + Send + Sync + 'static,
    ) -> Self {
        self.handler = Some(Arc::new(change));
        self
    }

    /// How many refusals are logged (as events of `tracing`, target `tollgate`): 10 a second unless said otherwise. Each tells
    /// how many came before it that weren't.
    pub fn denial_log_rate(mut self, rate: Rate) -> Self {
        self.log = Arc::new(DenialLog::new(rate, &self.clock));
        self
    }

    fn before(&mut self) -> &mut Prechecks<R> {
        Arc::make_mut(self.before.get_or_insert_default())
    }
}

impl<R: ?Sized, L> RequestLimiter<R, L> {
    /// The limits.
    #[inline(always)]
    pub fn limits(&self) -> &L {
        match &self.limits {
            LimitsRef::Own(limits) => limits,
            LimitsRef::With(other) => other.shared_limits(),
        }
    }

    /// Apart, as a function that calls itself isn't inlined.
    #[cold]
    fn shared_limits(&self) -> &L {
        self.limits()
    }
}

impl<R: Request + ?Sized, L: RequestLimits<R> + SettleCosts> RequestLimiter<R, L> {
    /// Only these answers count. Until the answer is there its request holds its cost. This is for limits that
    /// [settle](SettleCosts): an [`SettlingRatePerKey`](super::SettlingRatePerKey) or a policy, and not a [`RatePerKey`](super::RatePerKey).
    pub fn count_responses(mut self, counts: CountedResponses) -> Self {
        Arc::make_mut(self.after.get_or_insert_default()).counts = counts;
        self
    }

    /// What a request costs is known when it was answered: until then its cost is an estimate. This is for limits that
    /// [settle](SettleCosts): an [`SettlingRatePerKey`](super::SettlingRatePerKey) or a policy, and not a [`RatePerKey`](super::RatePerKey).
    pub fn settle(mut self, settle: Settle) -> Self {
        Arc::make_mut(self.after.get_or_insert_default()).settle = Some(settle);
        self
    }
}

impl<R: ?Sized, L: fmt::Debug> fmt::Debug for RequestLimiter<R, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before = self.before.as_deref();
        let blocks = before.and_then(|before| before.blocks.as_ref());
        let pit = before.and_then(|before| before.pit.as_ref());
        f.debug_struct("Guard")
            .field("limits", self.limits())
            .field("answers", &self.answers)
            .field("exempt", &before.map_or(0, |before| before.exempt.len()))
            .field("deny", &before.map_or(0, |before| before.deny.len()))
            .field("block", &blocks.map(|blocks| blocks.block))
            .field("tarpit", &pit.map(|pit| pit.tarpit))
            .field("after", &self.after)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}
