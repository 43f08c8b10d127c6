//! What a request holds while it runs, and how that ends.

use std::mem;
use std::time::Duration;

use tollgate::concurrency::PermitOutcome;
use tollgate::stack::{ExpireScope, HeldPermits, SettlementTiming};

/// What a request holds while it runs: slots of concurrency limits, given back when this is dropped, and costs
/// that are estimates, until [`settle`](Self::settle) tells what the request did cost. Estimates of which nothing
/// is said are charged, or given back, as the rule has chosen ([`UnsettledAction`](crate::policy::UnsettledAction)).
///
/// It outlives a change of the policy, and what it holds counts in the next one.
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
    /// The request cost so much, by rules whose cost is an estimate: the rest of that comes back, or what was
    /// underestimated is owed. Said once; slots are held on until this is dropped or [ends](Self::end).
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
    /// let mut permits = passed.into_permits(); // Moved into the task that streams the answer.
    /// assert_eq!(engine.peek(&facts).decision().remaining, 6_000);
    /// permits.settle(1_500);
    /// assert_eq!(engine.peek(&facts).decision().remaining, 8_500);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// After the time that its rule gives it (`settle_within`), the estimate is charged, or given back, as the rule says of one
    /// that nobody settles; what is said then is [late](SettlementTiming::Late): it charges what the request cost beyond what is
    /// still charged, and gives nothing back.
    pub fn settle(&mut self, spent: u64) -> SettlementTiming {
        self.0.settle(spent)
    }

    /// How long it takes until the time of an estimate is over; none if none is waiting to be settled.
    pub fn time_left(&self) -> Option<Duration> {
        self.0.time_left()
    }

    /// Ends estimates whose time is over, as their rules say of ones that nobody settles. What they did cost may still be
    /// [said](Self::settle). A rule that charges them does so by itself; for one that gives them back, somebody has to call
    /// this, or drop them.
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

    /// The request runs on: the time of estimates that isn't over begins anew.
    pub fn renew(&mut self) {
        self.0.renew();
    }

    /// The request is over, and nobody says what it cost: slots are free, and estimates end as their rules say. What is left
    /// may still be [settled](Self::settle), which is late then.
    pub fn end_unsettled(self) -> Self {
        Self(self.0.end_unsettled())
    }

    /// Tells limits that adapt how the request ended and how long it took, while its slots are held on: the head of an
    /// answer says so, but its body is still to be sent. Said once; what is said later, also by [`end`](Self::end), is too
    /// late.
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

    /// The request cost what its rules say, whatever they say of one that nobody settles (`unsettled: refund`): each what it
    /// estimated. Said once; slots are held on.
    pub fn charge(&mut self) {
        self.0.charge();
    }

    /// Whether it holds nothing but estimates whose time is over and which were [ended](Self::expire): all that may still come
    /// is a late [`settle`](Self::settle).
    ///
    /// ```
    /// assert!(tollgate_engine::verdict::Permits::default().is_expired());
    /// ```
    pub fn is_expired(&self) -> bool {
        self.0.is_expired()
    }

    /// Whether nothing is held: then it makes no difference when this is dropped.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The request never ran: estimates come back, whatever the rule has chosen, and slots are free.
    pub fn cancel(self) {
        self.0.cancel();
    }

    /// The request ended like this: served, dropped for overload, or neither.
    pub fn end(self, ending: PermitOutcome) {
        self.0.end(ending);
    }

    /// Holds this as well: what rules in shadow give to the request, or trees.
    pub(crate) fn hold(&mut self, pass: HeldPermits) {
        let own = mem::take(&mut self.0);
        self.0 = own.merge(pass);
    }
}
