//! The request limiter and its settings.

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

/// Paths of health checks and metrics. They have to be served even when clients use up all limits.
const PROBES: [&str; 4] = ["/healthz", "/readyz", "/livez", "/metrics"];

/// The default rate of logged denials.
const LOGGED: Rate = Rate::per_second(10);

/// The default number of allowed requests that may wait for the service.
const MAX_WAITING: usize = 10_000;

/// Limits requests before a service: limits, and what surrounds them (exemptions, costs, blocks, a tarpit,
/// responses).
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
    /// Boxed together, as most request limiters have none of these and then do a single check.
    pub(super) before: Option<Arc<Prechecks<R>>>,
    pub(super) after: Option<Arc<Settlement>>,
    pub(super) mode: Mode,
    pub(super) handler: Option<Handler<R>>,
    pub(super) spread: Option<Arc<RetryJitter>>,
    pub(super) log: Arc<DenialLog>,
    /// Allowed requests that wait for the service to become ready.
    pub(super) service_waiters: Arc<WaiterLimit>,
    clock: AnyClock,
}

/// Where the limits are, so that request limiters with different settings can share them.
enum LimitsRef<R: ?Sized, L> {
    Own(L),
    /// In this request limiter, which was shared when its settings were changed for a copy.
    With(Arc<RequestLimiter<R, L>>),
}

/// The checks before the limits: exemptions, deny lists, blocks, the tarpit, and the cost of a request.
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
    /// Checks every request by these limits.
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

    /// Changes settings. If others share the request limiter, it stays as it is for them, and both share their
    /// counters.
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
            // Always the first one, which owns the limits: a chain of references would keep every version in memory.
            limits: LimitsRef::With(match &shared.limits {
                LimitsRef::With(first) => Arc::clone(first),
                LimitsRef::Own(_) => shared,
            }),
        });
        Arc::new(change(own))
    }

    /// Sets the format of responses.
    pub fn response_format(mut self, answers: ResponseFormat) -> Self {
        self.answers = answers;
        self
    }

    /// Sets the clock of blocks, tarpit and log. Call it before those are configured.
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = Arc::new(clock);
        self.denial_log_rate(LOGGED)
    }

    /// Exempts requests for which `is_exempt` is true from all limits, in addition to earlier exemptions.
    pub fn exempt(mut self, is_exempt: impl Fn(&R) -> bool + Send + Sync + 'static) -> Self {
        self.before().exempt.push(Arc::new(is_exempt));
        self
    }

    /// Exempts GET and HEAD of exactly `/healthz`, `/readyz`, `/livez` and `/metrics`.
    pub fn exempt_probes(self) -> Self {
        self.exempt(|request: &R| {
            matches!(request.method(), "GET" | "HEAD") && PROBES.contains(&request.path())
        })
    }

    /// Allows the requests of a list whatever the limits and deny lists say. The same as [`exempt`](Self::exempt).
    pub fn allow(self, is_listed: impl Fn(&R) -> bool + Send + Sync + 'static) -> Self {
        self.exempt(is_listed)
    }

    /// Denies the requests of a list, unless they are exempt or on an allow list.
    pub fn deny(mut self, is_listed: impl Fn(&R) -> bool + Send + Sync + 'static) -> Self {
        self.before().deny.push(Arc::new(is_listed));
        self
    }

    /// Sets the cost of each request: 1 by default. A request with cost 0 passes, and its response shows the
    /// remaining quota.
    pub fn cost(mut self, cost: impl Fn(&R) -> u64 + Send + Sync + 'static) -> Self {
        self.before().cost = Some(Arc::new(cost));
        self
    }

    /// Sets the cost of requests by a table.
    pub fn cost_table(self, cost: Cost) -> Self {
        self.cost(move |request| cost.of(request))
    }

    /// Shadow mode: no request is denied or waits, not even one without a key. Only the log reports what would be
    /// denied.
    pub fn shadow(mut self) -> Self {
        self.mode = Mode::Shadow;
        self
    }

    /// Blocks a key for a while after too many denials.
    ///
    /// # Errors
    /// If the durations are invalid.
    pub fn block(
        mut self,
        block: BlockAfter,
        key: impl KeyExtractor<R>,
    ) -> Result<Self, LimitError> {
        let blocks = BlockList::new(block, key, Arc::clone(&self.clock))?;
        self.before().blocks = Some(Arc::new(blocks));
        Ok(self)
    }

    /// Delays the denial of a client that retries before its `Retry-After`, by this key.
    pub fn tarpit(mut self, tarpit: Tarpit, key: impl KeyExtractor<R>) -> Self {
        let pit = TarpitState::new(tarpit, key, Arc::clone(&self.clock));
        self.before().pit = Some(Arc::new(pit));
        self
    }

    /// The most allowed requests that wait for the service to become ready, all together: 10,000 by default. Others
    /// get 503.
    ///
    /// This counts only behind limits that [take time](RequestLimits::takes_time). Requests that wait for a limit are
    /// bounded by that limit.
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

    /// Adds a random time to `Retry-After`, so that clients that were denied together don't retry together. The time
    /// is up to the limit's window, or up to what all recently denied requests need if that is longer, and never more
    /// than `most`.
    pub fn jitter(mut self, most: Duration) -> Self {
        self.spread = Some(Arc::new(RetryJitter::new(most, Arc::clone(&self.clock))));
        self
    }

    /// Changes denials before they are sent: status, fields and body. The function gets the request and the
    /// [reason](Denial).
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

    /// The most denials that are logged (as `tracing` events with the target `tollgate`): 10 a second by default.
    /// Each event has the number of denials before it that weren't logged.
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

    /// A separate function, because a recursive one isn't inlined.
    #[cold]
    fn shared_limits(&self) -> &L {
        self.limits()
    }
}

impl<R: Request + ?Sized, L: RequestLimits<R> + SettleCosts> RequestLimiter<R, L> {
    /// Charges only for these responses. Until the response, the request holds its cost.
    ///
    /// This needs limits that [settle](SettleCosts): a [`SettlingRatePerKey`](super::SettlingRatePerKey) or a policy.
    /// A [`RatePerKey`](super::RatePerKey) can't.
    pub fn count_responses(mut self, counts: CountedResponses) -> Self {
        Arc::make_mut(self.after.get_or_insert_default()).counts = counts;
        self
    }

    /// Settles the cost after the response; until then the cost of the request is an estimate.
    ///
    /// This needs limits that [settle](SettleCosts): a [`SettlingRatePerKey`](super::SettlingRatePerKey) or a policy.
    /// A [`RatePerKey`](super::RatePerKey) can't.
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
