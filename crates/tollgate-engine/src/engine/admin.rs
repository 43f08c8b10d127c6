//! What operators ask of an engine and change of it: counts, limiters, keys and overrides; and how it outlives its process.

use std::sync::{Arc, PoisonError};

use tollgate::Clock;
use tollgate::snapshot::{SnapshotError, SnapshotReader, SnapshotWriter};

use super::Engine;
use super::key_state::{self, KeyState, ResetReport, ResetScope};
use super::limiters::{self, LimiterState, ThrottleDecision};
use super::overrides::{OverrideBook, OverrideContext};
use super::pipeline::poll_ready;
use super::rules::{CompiledPolicy, PreviousState};
use super::snapshot::{self, RestoreError, RestoreOptions, RestoreReport};
use crate::backend::{Backend, Memory, MemoryBuilder};
use crate::counters::{Histogram, LimiterCounts, RequestCounts, Tallies};
use crate::overrides::{NewOverride, Override, OverrideAction, OverrideError, Target};
use crate::policy::{Mode, Policy};
use crate::top_keys::{DeniedKey, TopDenials, TopKeys};
use crate::warning::Warning;

impl<B: Backend> Engine<B> {
    /// Counts what each limiter decides, of so many by name; what others decide is counted together. See
    /// [`tallies`](Self::tallies) for what is counted. An engine without counts nothing.
    ///
    /// Each limiter takes 104 bytes for each core and four more.
    #[must_use]
    pub fn with_counters(mut self, limiters: usize) -> Self {
        let (pipeline, tallies) = (&self.pipeline, Tallies::new(limiters));
        let rules = pipeline.rules.load_full();
        // Somebody may hold a verdict by the rules in force, so they are compiled once more, which went well before.
        let (policy, now) = (Policy::clone(&rules.policy), pipeline.backend.now());
        if let Ok(mut counted) = CompiledPolicy::new(policy, PreviousState::Rules(&rules), now) {
            counted.open_gates(Some(&rules), &pipeline.clocks);
            (counted.active_since, counted.version) = (rules.active_since, rules.version);
            counted.assign_tallies(&tallies);
            pipeline
                .lock_overrides()
                .apply_to_policy(&pipeline.override_context(&counted));
            pipeline.rules.store(Arc::new(counted));
        }
        self.pipeline.recorder.tallies = Some(tallies);
        self
    }

    /// What each limiter has decided since the engine was made: nothing unless it [counts](Self::with_counters).
    ///
    /// Each rule in force that applies to a request that passes counts it as allowed, and the one that refuses it as
    /// denied. A rule in shadow counts what it would have said. A limit of a tree counts each descriptor that takes
    /// something. Counts never fall while a limiter is listed; one that is gone from the policy is listed on until its
    /// place is another's, and what it had counted is in `(other)` from then on.
    pub fn counters(&self) -> Vec<LimiterCounts> {
        let tallies = self.pipeline.recorder.tallies.as_ref();
        tallies.map_or_else(Vec::new, Tallies::all)
    }

    /// How many requests passed and were refused, each counted once, however many limiters it met: none unless it
    /// [counts](Self::with_counters).
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// let policy = Policy::from_text("limits: [{name: a, rate: 2/h}, {name: b, rate: 9/h}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?.with_counters(1_000);
    /// for _ in 0..5 {
    ///     let _ = engine.decide(&Facts::new());
    /// }
    /// assert_eq!((engine.requests().passed, engine.requests().denied), (2, 3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn requests(&self) -> RequestCounts {
        let tallies = self.pipeline.recorder.tallies.as_ref();
        tallies.map_or_else(RequestCounts::default, Tallies::requests)
    }

    /// How long requests waited for their turn, because a rule says `over: wait`, whether they passed in the end or
    /// not: none unless it [counts](Self::with_counters).
    pub fn wait_times(&self) -> Option<&Histogram> {
        let tallies = self.pipeline.recorder.tallies.as_ref();
        tallies.map(|tallies| &tallies.waits)
    }

    /// Counts a decision on a key that brought its limit along, as `CL.THROTTLE` does, which no policy has decided: by the
    /// limiter `(throttle)`, and a denial among the [keys that are denied most](Self::top).
    ///
    /// ```
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::engine::ThrottleDecision;
    /// # use tollgate_engine::verdict::DenyReason;
    /// # use tollgate_engine::{Engine, Policy};
    /// let engine = Engine::new(Policy::default(), Memory::new())?.with_counters(10).with_top_keys(10);
    /// engine.count_throttle(ThrottleDecision { key: b"ada", denied: None });
    /// engine.count_throttle(ThrottleDecision { key: b"ada", denied: Some(DenyReason::Rate) });
    /// assert_eq!((engine.requests().passed, engine.requests().denied), (1, 1));
    /// assert_eq!(engine.top_keys().expect("counted").keys[0].limiter, "(throttle)");
    /// # Ok::<(), tollgate_engine::PolicyError>(())
    /// ```
    pub fn count_throttle(&self, decision: ThrottleDecision<'_>) {
        let ThrottleDecision { key, denied } = decision;
        if let Some(tallies) = &self.pipeline.recorder.tallies {
            tallies.throttled(denied);
        }
        if let (Some(top), Some(_)) = (&self.pipeline.recorder.top, denied) {
            let denial = DeniedKey {
                limiter: Tallies::throttle_name(),
                fingerprint: self.pipeline.hashers.feed(|put| put(key)),
                mode: Mode::Enforce,
            };
            top.add(denial, String::from_utf8_lossy(key));
        }
    }

    /// What operators should know of the policy in force: rules that found their key, or the fact that says a cost, in
    /// none of their first hundred requests, tiers that nobody is in, and requests that no rule is for. Each is listed once, in the order in which it was
    /// noticed; [`reload`](Self::reload) begins anew. See [`Observer::warned`](crate::observer::Observer::warned) to be told
    /// at once.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 1/h}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?;
    /// for _ in 0..100 {
    ///     let _ = engine.decide(&Facts::new());
    /// }
    /// assert_eq!(engine.warnings()[0].rule(), Some("per-user"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn warnings(&self) -> Vec<Warning> {
        self.pipeline.recorder.warnings.all().clone()
    }

    /// Has each warning logged by this function from now on, unless one was given before: for those who are handed an engine that is
    /// shared already, and so can't give it an observer. Middleware does this by itself.
    ///
    /// ```
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Policy};
    /// let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 1/h}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, Memory::new())?;
    /// engine.log_warnings(|warning| eprintln!("{warning}"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn log_warnings(&self, log: fn(&Warning)) {
        self.pipeline.recorder.warnings.log_by(log);
    }

    /// Each limiter of the policy in force, in the order of the file: rules that aren't off, tiers, and limits of trees.
    ///
    /// How many keys are active isn't known of each: all rules share their tables, which tell it of all.
    pub fn limiter_states(&self) -> Vec<LimiterState> {
        limiters::states(&self.pipeline)
    }

    /// Counts the keys that are refused most, so many of them, to be [told](Self::top). An engine without counts none.
    ///
    /// It takes memory for eight times as many keys, however many are refused.
    #[must_use]
    pub fn with_top_keys(mut self, keys: usize) -> Self {
        self.pipeline.recorder.top = Some(TopDenials::new(keys, self.pipeline.clocks.wall.now()));
        self
    }

    /// The keys that were refused most since the engine was made, or since [`reset_top_keys`](Self::reset_top_keys); none unless it
    /// [counts](Self::with_top_keys). What rules in shadow would have refused is marked; what no rule refuses isn't counted.
    pub fn top_keys(&self) -> Option<TopKeys> {
        self.pipeline.recorder.top.as_ref().map(TopDenials::keys)
    }

    /// Counts anew from now on.
    ///
    /// ```
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// let policy = Policy::from_text("limits: [{name: all, rate: 1/h}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?.with_top_keys(10);
    /// let _ = (engine.decide(&Facts::new()), engine.decide(&Facts::new()));
    /// assert_eq!(engine.top_keys().expect("it is counted").keys.len(), 1);
    /// engine.reset_top_keys();
    /// assert_eq!(engine.top_keys().expect("it is counted").keys.len(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reset_top_keys(&self) {
        if let Some(top) = &self.pipeline.recorder.top {
            top.reset(self.pipeline.clocks.wall.now());
        }
    }

    /// Carries out an order from now on, until it ends: a key or a rule is [blocked](OverrideAction::Block),
    /// [let through](OverrideAction::Bypass), or has [another limit](OverrideAction::Limit). One of the same sort for the same target takes
    /// the place of that.
    ///
    /// Orders lie over the policy. A [reload](Self::reload) keeps them: they are for the rule of their name, and idle while
    /// there is none. They are for requests of facts and of descriptors. Of a block, a bypass and an override of one
    /// request the first decides, and an override for its key before one for all of the rule. They end by the wall
    /// clock; if that is set back, no later than as if they were made then. There are at most
    /// [10,000](crate::orders::MAX_OVERRIDES), for at most [30 days](crate::orders::MAX_OVERRIDE_DURATION) each.
    ///
    /// Each engine has its own: with a shared store, an order is for the requests that this process decides.
    ///
    /// # Errors
    /// If it can't be carried out by the policy in force, or there are too many.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// use tollgate_engine::overrides::{OverrideAction, NewOverride, Target};
    /// use tollgate_engine::verdict::DenyReason;
    ///
    /// # let wall = Manual::new();
    /// # let memory = Memory::builder().clock(Manual::new()).wall(wall.clone()).build();
    /// let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 5/s}]", Format::Yaml)?.policy;
    /// let engine = Engine::new(policy, memory)?;
    /// let hour = Duration::from_secs(3_600);
    /// engine.add_override(NewOverride::new(OverrideAction::Block, Target::key("per-user", [("user", "mallory")]), hour).author("ada"))?;
    ///
    /// let mallory = Facts::new().with("user", "mallory");
    /// let verdict = engine.decide(&mallory);
    /// assert_eq!(verdict.reason(), Some(DenyReason::Blocked));
    /// assert_eq!(verdict.decision().wait_or_max(), hour);
    /// assert!(engine.decide(&Facts::new().with("user", "bob")).allowed().is_some());
    /// # wall.advance(hour);
    /// // An hour later:
    /// assert!(engine.decide(&mallory).allowed().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add_override(&self, new: NewOverride) -> Result<Override, OverrideError> {
        let made = |book: &mut OverrideBook, context: &OverrideContext<'_, B>, now| {
            book.add(new, context, now)
        };
        self.pipeline.change_overrides(made)
    }

    /// Ends an order before its time; none if there is none with this number.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::document::Format;
    /// # use tollgate_engine::{Engine, Facts, Policy};
    /// # use tollgate_engine::overrides::{OverrideAction, NewOverride, Target};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// # let engine = Engine::new(Policy::default(), memory)?;
    /// let target = Target::facts([("ip", "203.0.113.7")]);
    /// let order = engine.add_override(NewOverride::new(OverrideAction::Block, target, Duration::from_secs(60)))?;
    /// let facts = Facts::new().with("ip", "203.0.113.7");
    /// assert!(engine.decide(&facts).denied().is_some());
    /// assert!(engine.remove_override(order.id).is_some());
    /// assert!(engine.decide(&facts).denied().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove_override(&self, id: u64) -> Option<Override> {
        self.withdraw_where(|order| order.id == id)
    }

    /// Ends the order of this sort for exactly this target before its time; none if there is none. What an override says
    /// makes no difference.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::clock::Manual;
    /// # use tollgate_engine::backend::Memory;
    /// # use tollgate_engine::{Engine, Policy};
    /// # use tollgate_engine::overrides::{OverrideAction, NewOverride, Target};
    /// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
    /// # let engine = Engine::new(Policy::default(), memory)?;
    /// let target = Target::facts([("ip", "203.0.113.7")]);
    /// engine.add_override(NewOverride::new(OverrideAction::Block, target.clone(), Duration::from_secs(60)))?;
    /// assert!(engine.remove_override_for(&target, &OverrideAction::Bypass).is_none());
    /// assert!(engine.remove_override_for(&target, &OverrideAction::Block).is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove_override_for(&self, target: &Target, act: &OverrideAction) -> Option<Override> {
        self.withdraw_where(|order| order.target == *target && order.act.name() == act.name())
    }

    fn withdraw_where(&self, is_meant: impl Fn(&Override) -> bool) -> Option<Override> {
        let withdrawn = |book: &mut OverrideBook, _: &OverrideContext<'_, B>, _| {
            book.withdraw(is_meant).ok_or(())
        };
        self.pipeline.change_overrides(withdrawn).ok()
    }

    /// All orders that haven't ended, from the oldest, and what each does by the policy in force.
    pub fn overrides(&self) -> Vec<Override> {
        let mut book = self.pipeline.lock_overrides();
        if book.remove_expired(self.pipeline.clocks.wall.now()) {
            book.apply_to_policy(&self.pipeline.override_context(&self.pipeline.rules.load()));
        }
        book.list(|_| true)
    }

    /// The key of a rule that a target names, or those of all rules whose keys its facts make, by a backend that may take
    /// its time. Nothing is charged.
    ///
    /// # Errors
    /// If the backend couldn't be asked; inside, if there is no such key by the policy in force.
    pub async fn find_async(
        &self,
        target: &Target,
    ) -> Result<Result<Vec<KeyState>, OverrideError>, B::Error> {
        key_state::find_keys(&self.pipeline, target).await
    }

    /// Forgets what the keys that [`find_async`](Self::find_async) finds have spent of these limits. Slots that are held stay held. Of a store
    /// that others ask too, they may repeat what they were refused before, as long as that was said to hold.
    ///
    /// # Errors
    /// If the backend couldn't be asked; inside, if there is no such key by the policy in force.
    pub async fn reset_async(
        &self,
        target: &Target,
        scope: ResetScope,
    ) -> Result<Result<ResetReport, OverrideError>, B::Error> {
        key_state::reset_keys(&self.pipeline, target, scope).await
    }
}

impl<C: Clock + 'static, W: Clock + 'static> Engine<Memory<C, W>> {
    /// The key of a rule that a target names, or those of all rules whose keys its facts make. Nothing is charged.
    ///
    /// # Errors
    /// If there is no such key by the policy in force.
    pub fn find(&self, target: &Target) -> Result<Vec<KeyState>, OverrideError> {
        poll_ready(self.find_async(target))
    }

    /// Forgets what the keys that [`find`](Self::find) finds have spent of these limits. Slots that are held stay held.
    ///
    /// # Errors
    /// If there is no such key by the policy in force.
    pub fn reset(&self, target: &Target, scope: ResetScope) -> Result<ResetReport, OverrideError> {
        poll_ready(self.reset_async(target, scope))
    }

    /// Writes what keys have spent of rates as a section of a snapshot, and returns how many there are; with them operators'
    /// [orders](crate::orders). Decisions go on meanwhile, and a key that is charged meanwhile may be in it as before or after; a reload waits.
    ///
    /// Quotas aren't in it: [`MemoryBuilder::quota_file`] keeps them. Nor is what is held, which ends with the process that
    /// holds it: estimates are in it as spent.
    ///
    /// # Errors
    /// If the file can't be written.
    ///
    /// ```
    /// use tollgate::snapshot::{SnapshotReader, SnapshotWriter};
    /// use tollgate_engine::backend::Memory;
    /// use tollgate_engine::document::Format;
    /// use tollgate_engine::{Engine, Facts, Policy, RestoreOptions};
    /// # use tollgate_testkit::temp_folder::TempFolder;
    /// # let folder = TempFolder::new("engine-save");
    /// # let path = folder.path("state");
    ///
    /// let policy = Policy::from_text("limits: [{name: per-user, key: user, rate: 2/h}]", Format::Yaml)?.policy;
    /// let facts = Facts::new().with("user", "ada");
    /// let engine = Engine::new(policy.clone(), Memory::new())?;
    /// assert_eq!(engine.decide(&facts).decision().remaining, 1);
    /// let mut file = SnapshotWriter::create(&path, b"examples", 1)?;
    /// assert_eq!(engine.save(&mut file)?, 1);
    /// file.finish()?;
    /// drop(engine);
    ///
    /// let mut file = SnapshotReader::open(&path, b"examples", 1)?;
    /// let (engine, restored) = Engine::restore(policy, Memory::builder(), RestoreOptions::default(), &mut file)?;
    /// assert_eq!((restored.keys, restored.retired.len()), (1, 0));
    /// assert_eq!(engine.decide(&facts).decision().remaining, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn save(&self, file: &mut SnapshotWriter) -> Result<u64, SnapshotError> {
        // No policy comes into force meanwhile: keys of its counters would be in the tables, and their numbers free.
        let _reloading = self
            .reload_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        snapshot::save_engine(&self.pipeline, file)
    }
}

impl<C: Clock + Clone + 'static, W: Clock + Clone + 'static> Engine<Memory<C, W>> {
    /// Puts a policy in force that follows the one of a process before, of which [`save`](Self::save) wrote this section: as
    /// by a [reload](Self::reload), a limit that has the same name and algorithm goes on with what its keys have spent,
    /// and what matches none is kept for its return. What was used of quotas is in the file that is given, if any.
    ///
    /// The time between counts, by the wall clock unless something better is known; if that went back, none has passed.
    /// Operators' orders go on until they end. Rules that
    /// [warm up](crate::policy::Rule::warm_up) do so anew, as after every start.
    ///
    /// # Errors
    /// If the snapshot, the policy or the quotas' file can't be used.
    ///
    /// [`save`](Self::save) has an example.
    pub fn restore(
        policy: Policy,
        builder: MemoryBuilder<C, W>,
        resume: RestoreOptions<'_>,
        file: &mut SnapshotReader,
    ) -> Result<(Self, RestoreReport), RestoreError> {
        let (pipeline, restored) = snapshot::restore_engine(policy, builder, resume, file)?;
        Ok((Self::from_pipeline(pipeline), restored))
    }
}
