//! The permits and estimates that a request holds while it runs, and how they end.

use std::mem;
use std::time::Duration;

use tollgate::concurrency::PermitOutcome;
use tollgate::stack::{ExpireScope, HeldPermits, SettlementTiming};

/// What a request holds while it runs: permits of concurrency limits, released when this is dropped, and estimated
/// costs, until [`settle`](Self::settle) reports the actual cost. An estimate that nobody settles is charged or
/// refunded, as the rule sets ([`UnsettledAction`](crate::policy::UnsettledAction)).
///
/// It survives a reload of the policy: what it holds counts under the next one.
///
/// ```
/// # use tollgate::concurrency::PermitOutcome;
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Facts, Policy, RequestDecision};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// let text = "limits: [{name: exports, concurrency: 1}]";
/// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
/// let facts = Facts::new();
/// let RequestDecision::Allowed(passed) = engine.decide(&facts) else { panic!("the first") };
/// let permits = passed.into_permits();
/// assert!(engine.decide(&facts).denied().is_some());
/// permits.end(PermitOutcome::Success);
/// assert!(engine.decide(&facts).allowed().is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
#[must_use = "permits that are dropped give back their slots, and settle nothing"]
pub struct Permits(pub(crate) HeldPermits);

impl Permits {
    /// Reports the actual cost of the request, for rules whose cost is an estimate: the difference is refunded or
    /// owed. Only the first report counts. Permits are held until this is dropped or [ends](Self::end).
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy, RequestDecision};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// let text = "limits: [{name: tokens, rate: 10000/h, cost: {fact: max_tokens, settle_within: 60s}}]";
    /// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
    /// let facts = Facts::new().with("max_tokens", "4000");
    /// let RequestDecision::Allowed(passed) = engine.decide(&facts) else { panic!("the first") };
    /// let mut permits = passed.into_permits(); // Move it into the task that streams the response.
    /// assert_eq!(engine.peek(&facts).decision().remaining, 6_000);
    /// permits.settle(1_500);
    /// assert_eq!(engine.peek(&facts).decision().remaining, 8_500);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// After the rule's `settle_within`, an unsettled estimate is charged or refunded, as the rule sets. A later
    /// report is [late](SettlementTiming::Late): it charges what the request cost beyond the amount that is still
    /// charged, and refunds nothing.
    pub fn settle(&mut self, spent: u64) -> SettlementTiming {
        self.0.settle(spent)
    }

    /// How long until the next estimate expires. `None` if no estimate is unsettled.
    pub fn time_left(&self) -> Option<Duration> {
        self.0.time_left()
    }

    /// Ends expired estimates, as their rules set for unsettled ones. Their actual cost may still be
    /// [reported](Self::settle). A rule that charges unsettled estimates needs no call. For a rule that refunds them,
    /// the caller has to call this or drop the permits.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy, RequestDecision};
    /// use tollgate::stack::SettlementTiming;
    ///
    /// # let clock = Manual::new();
    /// # let memory = Memory::builder().clock(clock.clone()).wall(Manual::new()).build();
    /// let text = "limits: [{name: drafts, rate: 100/day, cost: {default: 40, settle_within: 60s, unsettled: refund}}]";
    /// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
    /// let facts = Facts::new();
    /// let RequestDecision::Allowed(passed) = engine.decide(&facts) else { panic!("the first") };
    /// let mut permits = passed.into_permits();
    /// # clock.advance(Duration::from_secs(60));
    /// // A minute later:
    /// assert_eq!(permits.time_left(), Some(Duration::ZERO));
    /// permits.expire();
    /// assert_eq!(engine.peek(&facts).decision().remaining, 100);
    /// assert_eq!(permits.settle(70), SettlementTiming::Late);
    /// assert_eq!(engine.peek(&facts).decision().remaining, 30);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn expire(&mut self) {
        self.0.expire(ExpireScope::Due);
    }

    /// The request continues: the durations of estimates that haven't expired start again.
    pub fn renew(&mut self) {
        self.0.renew();
    }

    /// Ends the request without its actual cost: permits are released, and estimates end as their rules set. The
    /// returned rest may still be [settled](Self::settle), which is late then.
    pub fn end_unsettled(self) -> Self {
        Self(self.0.end_unsettled())
    }

    /// Reports the outcome and latency of the request to adaptive limits, and keeps its permits. Use it when the head
    /// of a response states the outcome and the body is still to be sent. Only the first report counts, including the
    /// one by [`end`](Self::end).
    ///
    /// ```
    /// # use tollgate::concurrency::PermitOutcome;
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy, RequestDecision};
    /// # let clock = Manual::new();
    /// # let memory = Memory::builder().clock(clock.clone()).wall(Manual::new()).build();
    /// let text = "limits: [{name: api, concurrency: {adaptive: aimd, max: 200}}]";
    /// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
    /// let facts = Facts::new();
    /// let RequestDecision::Allowed(passed) = engine.decide(&facts) else { panic!("the first") };
    /// let mut permits = passed.into_permits();
    /// # clock.advance(std::time::Duration::from_millis(1));
    /// permits.report_ending(PermitOutcome::Dropped); // A 503.
    /// let now = engine.limiter_states()[0].adaptive.expect("it adapts");
    /// assert_eq!((now.limit, now.in_flight), (18, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn report_ending(&mut self, ending: PermitOutcome) {
        self.0.report(ending);
    }

    /// Charges the estimates as the actual cost, whatever the rules set for unsettled ones (`unsettled: refund`).
    /// Only the first report counts. Permits stay held.
    pub fn charge(&mut self) {
        self.0.charge();
    }

    /// Whether it holds nothing but expired estimates that were [ended](Self::expire): only a late
    /// [`settle`](Self::settle) can follow.
    ///
    /// ```
    /// assert!(tollgate_engine::verdict::Permits::default().is_expired());
    /// ```
    pub fn is_expired(&self) -> bool {
        self.0.is_expired()
    }

    /// Whether it holds nothing, so that dropping it has no effect.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Cancels a request that never ran: estimates are refunded, whatever the rule sets, and permits are released.
    pub fn cancel(self) {
        self.0.cancel();
    }

    /// Ends the request with this outcome: served, dropped for overload, or neither.
    pub fn end(self, ending: PermitOutcome) {
        self.0.end(ending);
    }

    /// Holds these permits as well, from rules in shadow mode or from trees.
    pub(crate) fn hold(&mut self, pass: HeldPermits) {
        let own = mem::take(&mut self.0);
        self.0 = own.merge(pass);
    }
}
