//! Administration of an engine: counters, limiters, keys and overrides; and snapshots, which outlive the process.

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
    /// Counts the decisions of up to `limiters` limiters by name; those of further limiters are counted together. See
    /// [`counters`](Self::counters) for what is counted. By default, an engine counts nothing.
    ///
    /// Each limiter takes 104 bytes in each of as many stripes as there are cores, plus four.
    #[must_use]
    pub fn with_counters(mut self, limiters: usize) -> Self {
        let (pipeline, tallies) = (&self.pipeline, Tallies::new(limiters));
        let rules = pipeline.rules.load_full();
        // A caller may still hold a decision by the rules in force, so they can't be changed in place. Compiling them
        // again succeeds, since it did before.
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

    /// The decisions of each limiter since the engine was created. Empty unless the engine
    /// [counts](Self::with_counters).
    ///
    /// An allowed request counts as allowed for each enforced rule that applies to it. A denied request counts as
    /// denied for the rule that denied it. A rule in shadow mode counts what it would have decided. A limit of a tree
    /// counts each descriptor with a cost. Counts never decrease while a limiter is listed. One that is gone from the
    /// policy stays listed until another limiter takes its row; from then on its counts are part of `(other)`.
    pub fn counters(&self) -> Vec<LimiterCounts> {
        let tallies = self.pipeline.recorder.tallies.as_ref();
        tallies.map_or_else(Vec::new, Tallies::all)
    }

    /// How many requests were allowed and denied, each counted once, however many limiters applied. Zero unless the
    /// engine [counts](Self::with_counters).
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

    /// How long requests waited in queues, because a rule has `over: wait`, whether they were allowed or not. `None`
    /// unless the engine [counts](Self::with_counters).
    pub fn wait_times(&self) -> Option<&Histogram> {
        let tallies = self.pipeline.recorder.tallies.as_ref();
        tallies.map(|tallies| &tallies.waits)
    }

    /// Counts a decision that no policy made, about a key that brought its own limit, as `CL.THROTTLE` does. It
    /// counts for the limiter `(throttle)`, and a denial also among the [keys with the most denials](Self::top_keys).
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

    /// Warnings about the policy in force: rules whose first hundred requests all lacked the key or the cost fact,
    /// tiers without tenants, and requests that no rule matches. Each is listed once, in the order of detection.
    /// [`reload`](Self::reload) starts a new list. [`Observer::on_warning`](crate::observer::Observer::on_warning)
    /// gets them immediately.
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

    /// Logs each warning by this function from now on, unless a function was set before. It is for code that gets a
    /// shared engine, and so can't set an observer. Middleware calls this itself.
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

    /// Each limiter of the policy in force, in the order of the file: rules that aren't off, tiers, and limits of
    /// trees.
    ///
    /// The number of active keys isn't known for each limiter, because all rules share their tables. The tables state
    /// the total.
    pub fn limiter_states(&self) -> Vec<LimiterState> {
        limiters::states(&self.pipeline)
    }

    /// Tracks the `keys` keys with the most denials, for [`top_keys`](Self::top_keys). By default, an engine tracks
    /// none.
    ///
    /// It takes memory for eight times as many keys, whatever the number of denials.
    #[must_use]
    pub fn with_top_keys(mut self, keys: usize) -> Self {
        self.pipeline.recorder.top = Some(TopDenials::new(keys, self.pipeline.clocks.wall.now()));
        self
    }

    /// The keys with the most denials since the engine was created, or since
    /// [`reset_top_keys`](Self::reset_top_keys). `None` unless the engine [tracks them](Self::with_top_keys). Denials
    /// in shadow mode are marked. Denials by no rule aren't counted.
    pub fn top_keys(&self) -> Option<TopKeys> {
        self.pipeline.recorder.top.as_ref().map(TopDenials::keys)
    }

    /// Clears the tracked keys, and starts again.
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

    /// Adds an override, in force until it expires: a key or a rule is [blocked](OverrideAction::Block),
    /// [bypassed](OverrideAction::Bypass), or has [another limit](OverrideAction::Limit). It replaces an override
    /// with the same kind of action on the same target.
    ///
    /// Overrides take precedence over the policy. A [reload](Self::reload) keeps them: they apply to the rule with
    /// their name, and are idle while there is none. They apply to requests of facts and of descriptors. A block
    /// precedes a bypass, and a bypass precedes a limit. An override for a key precedes one for the whole rule.
    /// Overrides expire by the wall clock. If that is set back, their durations start again, so none is extended by
    /// the difference. There are at most [10,000](crate::overrides::MAX_OVERRIDES), for at most [30
    /// days](crate::overrides::MAX_OVERRIDE_DURATION) each.
    ///
    /// Each engine has its own overrides: with a shared store, an override applies only to requests that this process
    /// decides.
    ///
    /// # Errors
    /// If the override has no effect under the policy in force, or there are too many.
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

    /// Removes an override before it expires. `None` if no override has this number.
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

    /// Removes the override with this kind of action and exactly this target before it expires. `None` if there is
    /// none. The limits of a limit override don't matter.
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

    /// All overrides that haven't expired, the oldest first, with the effect of each under the policy in force.
    pub fn overrides(&self) -> Vec<Override> {
        let mut book = self.pipeline.lock_overrides();
        if book.remove_expired(self.pipeline.clocks.wall.now()) {
            book.apply_to_policy(&self.pipeline.override_context(&self.pipeline.rules.load()));
        }
        book.list(|_| true)
    }

    /// The state of the keys that a target names: the key of its rule, or those of all rules whose keys its facts
    /// make. For a backend that may take time to answer. Charges nothing.
    ///
    /// # Errors
    /// If the backend is unavailable. The inner error: if there is no such key under the policy in force.
    pub async fn find_async(
        &self,
        target: &Target,
    ) -> Result<Result<Vec<KeyState>, OverrideError>, B::Error> {
        key_state::find_keys(&self.pipeline, target).await
    }

    /// Clears what the keys of [`find_async`](Self::find_async) have spent from the limits in `scope`. Permits that
    /// are held stay held. Other clients of the same store may repeat a cached denial for as long as it was reported
    /// to hold.
    ///
    /// # Errors
    /// If the backend is unavailable. The inner error: if there is no such key under the policy in force.
    pub async fn reset_async(
        &self,
        target: &Target,
        scope: ResetScope,
    ) -> Result<Result<ResetReport, OverrideError>, B::Error> {
        key_state::reset_keys(&self.pipeline, target, scope).await
    }
}

impl<C: Clock + 'static, W: Clock + 'static> Engine<Memory<C, W>> {
    /// The state of the keys that a target names: the key of its rule, or those of all rules whose keys its facts
    /// make. Charges nothing.
    ///
    /// # Errors
    /// If there is no such key under the policy in force.
    pub fn find(&self, target: &Target) -> Result<Vec<KeyState>, OverrideError> {
        poll_ready(self.find_async(target))
    }

    /// Clears what the keys of [`find`](Self::find) have spent from the limits in `scope`. Permits that are held stay
    /// held.
    ///
    /// # Errors
    /// If there is no such key under the policy in force.
    pub fn reset(&self, target: &Target, scope: ResetScope) -> Result<ResetReport, OverrideError> {
        poll_ready(self.reset_async(target, scope))
    }

    /// Writes what keys have spent of rates as a section of a snapshot, with the operators'
    /// [overrides](crate::overrides), and returns the number of keys. Decisions continue meanwhile: a key that is
    /// charged during the call is saved as before or after the charge. A reload waits.
    ///
    /// Quotas aren't saved: [`MemoryBuilder::quota_file`] keeps them. Permits aren't either, since they end with the
    /// process. Estimates are saved as spent.
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
        // No policy may come into force meanwhile: the tables would have keys of counters that the saved list lacks,
        // and a restored engine would assign these numbers again.
        let _reloading = self
            .reload_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        snapshot::save_engine(&self.pipeline, file)
    }
}

impl<C: Clock + Clone + 'static, W: Clock + Clone + 'static> Engine<Memory<C, W>> {
    /// Creates an engine that continues from a previous process, whose engine wrote this section with
    /// [`save`](Self::save). As with a [reload](Self::reload), a limit with the same name and algorithm keeps what
    /// its keys have spent, and the counters of limits that are gone are kept for their return. The usage of quotas
    /// is read from their file, if one is given.
    ///
    /// The time in between counts, by the wall clock unless the options state a better one. If the clock went back,
    /// no time has passed. Overrides continue until they expire. Rules that [warm up](crate::policy::Rule::warm_up)
    /// do so again, as after every start.
    ///
    /// # Errors
    /// If the snapshot, the policy or the quotas' file can't be used.
    ///
    /// See [`save`](Self::save) for an example.
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
