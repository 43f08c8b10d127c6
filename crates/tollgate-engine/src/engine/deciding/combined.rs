//! Requests of facts and of descriptors at once: rules and trees are charged together, all or none.

use tollgate::Timestamp;

use super::{Attempt, CombinedRequest, Trial, Tried};
use crate::backend::Backend;
use crate::engine::descriptors::{
    Decider, DescriptorFindings, DescriptorRequest, DescriptorVerdict, Lookups, Telling,
    TreeCharge, TreeRequest,
};
use crate::engine::gather::TreeMatch;
use crate::engine::orders::{Held, InForce};
use crate::engine::{Conditions, Engine};
use crate::envoy::StatusCode;
use crate::facts::Facts;
use crate::policy::Charging;
use crate::verdict::{Passed, Permits, Refused, Verdict};

/// The answer to a request that rules decide by its facts and trees by its descriptors: see
/// [`Engine::decide_with_descriptors`].
///
/// ```
/// use tollgate_engine::engine::CombinedVerdict;
///
/// fn status(verdict: &CombinedVerdict<'_>) -> u16 {
///     match verdict {
///         CombinedVerdict::Passed(..) => 200,
///         CombinedVerdict::DeniedByRule(_) | CombinedVerdict::DeniedByDescriptor(_) => 429,
///     }
/// }
/// ```
#[derive(Debug)]
#[must_use = "a request that passed releases its permits when this is dropped: match on it, and keep it while the request runs"]
pub enum CombinedVerdict<'f> {
    /// All limits have room, and were charged. The first part holds the permits of rules and trees.
    Passed(Passed<'f>, DescriptorFindings),
    /// A rule denies the request. No limit was charged, but for those of a domain that [charges
    /// each](crate::policy::Charging).
    DeniedByRule(Refused<'f>),
    /// A tree denies the request, and no rule was charged.
    DeniedByDescriptor(DescriptorFindings),
}

impl<B: Backend> Engine<B> {
    /// Decides a request that a proxy describes by lists of entries, and of which facts are known: the rules decide by the
    /// facts, the trees by the descriptors, and the backend is asked about all of their limits at once. So a limit is charged if
    /// all of them have room, and none is charged otherwise, in memory and on a store alike. Of several limits that deny, the
    /// one that takes longest to have room again is reported. None on the same condition as
    /// [`decide_on`](Self::decide_on).
    ///
    /// Where a rule says `over: wait`, the request waits for that rule, charged to nothing meanwhile. A tree never lets
    /// requests wait. A domain that [charges each](crate::policy::Charging) limit by itself does so before the rules are asked,
    /// and stays charged if a rule denies.
    ///
    /// # Errors
    /// If the backend couldn't be asked.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use std::{pin::pin, task::{Context, Poll, Waker}};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// use tollgate_engine::engine::{CombinedVerdict, DescriptorRequest};
    /// use tollgate_engine::facts::Descriptor;
    /// use tollgate_engine::{Conditions, Engine, Facts, Policy};
    ///
    /// let mut policy = Policy::from_text("limits: [{name: calls, key: user, rate: 2/h}]", Format::Yaml)?.policy;
    /// let tree = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 9}}]";
    /// policy.domains = Policy::from_text(tree, Format::Yaml)?.policy.domains;
    /// let engine = Engine::new(policy, memory)?;
    /// let decide = async || {
    ///     let facts = Facts::new().with("user", "ada");
    ///     let descriptors = [Descriptor::new(&[("user", "ada")])];
    ///     let request = DescriptorRequest { domain: "edge", descriptors: &descriptors, hits_addend: 1 };
    ///     let verdict = engine.decide_with_descriptors(Conditions::new(), &facts, request).await?;
    ///     Ok::<_, std::convert::Infallible>(matches!(verdict, Some(CombinedVerdict::Passed(..))))
    /// };
    /// # let decide = || match pin!(decide()).poll(&mut Context::from_waker(Waker::noop())) {
    /// #     Poll::Ready(Ok(passed)) => passed,
    /// #     _ => unreachable!("memory answers at once"),
    /// # };
    /// assert!(decide() && decide());
    /// assert!(!decide()); // The rule denies it, and the tree isn't charged.
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn decide_with_descriptors<'f>(
        &self,
        on: Conditions<'_>,
        facts: &'f Facts<'f>,
        descriptors: DescriptorRequest<'_>,
    ) -> Result<Option<CombinedVerdict<'f>>, B::Error> {
        let started = self.recorder.started(&self.backend);
        let mut request = CombinedRequest {
            facts,
            descriptors: Some(descriptors),
            trees: TreeMatch::None,
            started,
        };
        let (mut by_trees, mut held) = (DescriptorFindings::default(), Permits::default());
        let first = self.decide_trees_first(&descriptors, on, started).await?;
        if let Some((verdict, tree_match)) = first {
            match verdict {
                DescriptorVerdict::Refused(findings) => {
                    return Ok(Some(CombinedVerdict::DeniedByDescriptor(findings)));
                }
                DescriptorVerdict::Passed(passed) => (by_trees, held) = passed.into_parts(),
            }
            (request.descriptors, request.trees) = (None, tree_match);
        }
        let mut attempt: Attempt = self.attempts(&request, on).await?;
        if attempt.is_outdated {
            return Ok(None);
        }
        if let Some(trees) = attempt.trees.take() {
            let (code, findings) = *trees;
            if code == StatusCode::OverLimit {
                return Ok(Some(CombinedVerdict::DeniedByDescriptor(findings)));
            }
            by_trees = findings;
        }
        attempt.is_by_trees = by_trees.decider.is_some() || by_trees.too_much.is_some();
        Ok(Some(match self.concluded(facts, attempt, started) {
            Verdict::Passed(mut passed) => {
                passed.hold(held);
                CombinedVerdict::Passed(passed, by_trees)
            }
            Verdict::Refused(refused) => CombinedVerdict::DeniedByRule(refused),
        }))
    }

    /// Decides a request by its trees before the rules, if its domain charges each limit by itself, or if it has too many
    /// descriptors; none if trees and rules are to be asked together.
    async fn decide_trees_first(
        &self,
        request: &DescriptorRequest<'_>,
        on: Conditions<'_>,
        started: Option<Timestamp>,
    ) -> Result<Option<(DescriptorVerdict, TreeMatch)>, B::Error> {
        let rules = self.rules.load_full();
        let telling = (started, Decider::TreesThenRules);
        if let Some(what) = self.too_much(request.descriptors) {
            let verdict = self.exceeded(rules.mode, what, telling);
            return Ok(Some((verdict, TreeMatch::Some)));
        }
        let charges_each = rules.trees.compiled.charging(request.domain) == Charging::Each;
        if !charges_each || on.lacks_facts_of(&rules) {
            return Ok(None);
        }
        let deciding = Box::pin(self.decide_trees(&rules, request, telling));
        deciding.await.map(Some)
    }

    /// Tries a request by its rules and its trees, with the statuses of its descriptors if it passes or the trees deny it.
    pub(super) async fn try_with_trees(
        &self,
        trial: &Trial<'_>,
        request: &CombinedRequest<'_>,
        tried: &mut Tried,
        trees: &mut Option<Box<(StatusCode, DescriptorFindings)>>,
    ) -> Result<(), B::Error> {
        let Some(descriptors) = &request.descriptors else {
            return self.try_once(trial, tried, None).await;
        };
        let rules = trial.rules;
        let lookups = Lookups::new(&rules.trees, descriptors);
        let keys = lookups.keys(&rules.trees, descriptors);
        // One that waits and asks again is the same request.
        let is_first = trial.standing.is_none();
        let mut orders = trial.orders.map(Held::in_force);
        if !is_first {
            orders = orders.map(InForce::uncounted);
        }
        let met = self.match_trees(rules, descriptors, (&lookups, &keys), orders);
        if is_first {
            self.note_tree_match(rules, descriptors, &met);
            self.give_back_first(&met).await?;
        }
        let tree_request = TreeRequest {
            rules,
            found: &lookups.found,
            met: &met,
        };
        let mut charge = TreeCharge::new(&tree_request, descriptors.domain);
        // A policy that charges each since the request began to wait would charge it again with every attempt.
        charge.charging = Charging::AllOrNone;
        self.try_once(trial, tried, Some(&mut charge)).await?;
        if tried.is_denied_by_trees {
            let mut nothing = Permits::default();
            (charge.settle_shadows(&self.backend, &mut nothing, &[])).await;
        } else if !tried.said.allowed {
            // A rule denies it, so nothing was charged to the trees.
            return Ok(());
        }
        let telling = Telling {
            started: request.started,
            counts_request: tried.is_denied_by_trees,
        };
        let statuses = self.descriptor_findings(&tree_request, charge.decided(), telling);
        *trees = Some(Box::new(statuses));
        Ok(())
    }
}
