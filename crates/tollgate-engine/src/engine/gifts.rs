//! What operators give: costs that come back, and keys that start anew.

use tollgate::Clock;

use super::gather::Group;
use super::turns::Spot;
use super::{Engine, ready};
use crate::backend::{Backend, Gift, Memory, Refund};
use crate::facts::Facts;
use crate::limits::Limit;
use crate::policy::{Settle, Unsettled};

impl<C: Clock + 'static, W: Clock + 'static> Engine<Memory<C, W>> {
    /// Forgets what a request like this has spent, of every rule that applies to it: an operator's
    /// gift. Slots that are held stay held.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// # let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 1/h}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?;
    /// let facts = Facts::new().with("user", "42");
    /// assert!(engine.decide(&facts).passed().is_some());
    /// engine.forget(&facts);
    /// assert!(engine.decide(&facts).passed().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn forget(&self, facts: &Facts<'_>) {
        ready(self.forget_async(facts));
    }
}

impl<B: Backend> Engine<B> {
    /// The same by a backend that may take its time.
    ///
    /// # Errors
    /// If the backend couldn't be asked.
    pub async fn forget_async(&self, facts: &Facts<'_>) -> Result<Gift, B::Error> {
        let rules = self.rules.load_full();
        let gathered = self.gather(self.match_input(&rules, None, facts));
        let mut gift = Gift::Given;
        for group in [&gathered.enforced, &gathered.shadow] {
            gift = gift.max(
                self.backend
                    .refund(group.checks.as_slice(), Refund::Everything)
                    .await?,
            );
        }
        self.tell_those_who_wait(&gathered.enforced);
        Ok(gift)
    }

    /// Gives back what a request like this cost, of every rule that applies to it, and at most what was spent: for
    /// one that passed and then wasn't served. Slots, and estimates that are still held, come back with what holds them.
    ///
    /// # Errors
    /// If the backend couldn't be asked.
    ///
    /// ```
    /// # use std::{pin::pin, task::{Context, Poll, Waker}};
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// # let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 5/h}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?;
    /// let facts = Facts::new().with("user", "42").costing(3);
    /// assert_eq!(engine.decide(&facts).decision().remaining, 2);
    /// # let refund = async || {
    /// engine.refund_async(&facts).await?;
    /// # Ok::<(), std::convert::Infallible>(()) };
    /// # assert_eq!(pin!(refund()).poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(())));
    /// assert_eq!(engine.decide(&facts).decision().remaining, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn refund_async(&self, facts: &Facts<'_>) -> Result<Gift, B::Error> {
        self.give_back(facts, |_| true).await
    }

    /// The same of a request that held something until now. An estimate that came back as that was dropped, as its rule
    /// says, isn't given back once more.
    ///
    /// # Errors
    /// If the backend couldn't be asked.
    ///
    /// ```
    /// # use std::{pin::pin, task::{Context, Poll, Waker}};
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// let text = "limits: [{name: tokens, rate: 100/h, cost: {default: 30, settle_within: 60s, unsettled: refund}}]";
    /// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
    /// let facts = Facts::new();
    /// engine.decide(&facts).passed().expect("the first").into_permits().settle(50);
    /// let permits = engine.decide(&facts).passed().expect("the second").into_permits();
    /// drop(permits);
    /// # let refund = async || {
    /// engine.refund_dropped_async(&facts).await?;
    /// # Ok::<(), std::convert::Infallible>(()) };
    /// # assert_eq!(pin!(refund()).poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(())));
    /// assert_eq!(engine.peek(&facts).decision().remaining, 50);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn refund_dropped_async(&self, facts: &Facts<'_>) -> Result<Gift, B::Error> {
        let comes_back = |settle: Settle| settle.unsettled == Unsettled::Refund;
        self.give_back(facts, |limit| !limit.settle().is_some_and(comes_back))
            .await
    }

    /// The same of a request whose permits were [cancelled](crate::verdict::Permits::cancel): its estimates came back
    /// with them.
    ///
    /// # Errors
    /// If the backend couldn't be asked.
    ///
    /// ```
    /// # use std::{pin::pin, task::{Context, Poll, Waker}};
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// let text = "limits: [{name: tokens, rate: 100/h, cost: {default: 30, settle_within: 60s}}]";
    /// let engine = Engine::new(Policy::from_text(text, Format::Yaml)?.policy, memory)?;
    /// let facts = Facts::new();
    /// engine.decide(&facts).passed().expect("the first").into_permits().settle(50);
    /// let permits = engine.decide(&facts).passed().expect("the second").into_permits();
    /// permits.cancel();
    /// # let refund = async || {
    /// engine.refund_cancelled_async(&facts).await?;
    /// # Ok::<(), std::convert::Infallible>(()) };
    /// # assert_eq!(pin!(refund()).poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(())));
    /// assert_eq!(engine.peek(&facts).decision().remaining, 50);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn refund_cancelled_async(&self, facts: &Facts<'_>) -> Result<Gift, B::Error> {
        self.give_back(facts, |limit| !limit.is_estimated()).await
    }

    async fn give_back(
        &self,
        facts: &Facts<'_>,
        is_meant: impl Fn(&Limit) -> bool + Send + Sync,
    ) -> Result<Gift, B::Error> {
        let rules = self.rules.load_full();
        let orders = self.ordered(&rules);
        let gathered = self.gather(self.match_input(&rules, orders.as_ref(), facts));
        let mut gift = Gift::Given;
        for group in [&gathered.enforced, &gathered.shadow] {
            let checks = group.checks.as_slice().iter().copied();
            let checks: Vec<_> = checks.filter(|check| is_meant(check.limit)).collect();
            gift = gift.max(self.backend.refund(&checks, Refund::Cost).await?);
        }
        self.tell_those_who_wait(&gathered.enforced);
        Ok(gift)
    }

    fn tell_those_who_wait(&self, group: &Group<'_>) {
        for check in group.checks.as_slice() {
            self.turns.poke(Spot::of(check));
        }
    }
}
