//! Snapshots: an engine in memory that continues where another process stopped.
//!
//! The fingerprints of keys and the numbers of counters are valid in one process only. So the seeds and numbers are
//! written with the tables into one file: none is of use without the others.

use std::collections::HashSet;
use std::path::Path;

use tollgate::quota::FileError;
use tollgate::snapshot::{SnapshotError, SnapshotReader, SnapshotWriter};
use tollgate::{Clock, Timestamp};

use super::counters::Counters;
use super::overrides::{OverrideBook, SnapshotForm};
use super::pipeline::Pipeline;
use super::rules::{CompiledPolicy, PolicyError, PreviousState};
use crate::backend::{Memory, MemoryBuilder};
use crate::limits::KeyHashers;
use crate::policy::Policy;

/// The version of the section.
const VERSION: u64 = 3;
/// The previous version, which is read too. Its overrides have no use count, and one rate at most.
const PREVIOUS_VERSION: u64 = 2;
/// The counter of limits that proxies send, which is the same under every policy.
const REQUESTED_COUNTER: u64 = u64::MAX;

/// What is known beside a snapshot when an engine is restored.
///
/// ```
/// use tollgate_engine::RestoreOptions;
///
/// assert_eq!(RestoreOptions::default(), RestoreOptions { quotas: None, unset_wall: None });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestoreOptions<'a> {
    /// The file with the [quotas](MemoryBuilder::quota_file). Without it, quotas start again.
    pub quotas: Option<&'a Path>,
    /// The time that the wall clock would show now if it hadn't been set since the snapshot, if that is known. It
    /// determines how much rates have refilled.
    pub unset_wall: Option<Timestamp>,
}

/// What an engine has restored.
///
/// ```
/// use tollgate_engine::RestoreReport;
///
/// assert!(RestoreReport::default().retired.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreReport {
    /// The number of keys of rates that are still active, and continue.
    pub keys: u64,
    /// The number of active keys that found no room, because the tables are smaller than those of the saved engine.
    pub dropped_keys: u64,
    /// The rates that the policy has no more, or counts by another algorithm, in order: `rule/`, `tier/` or another
    /// kind, and the name. What their keys have spent is kept until they are idle, for a policy that has such a limit
    /// again.
    pub retired: Vec<String>,
}

/// Why an engine can't be restored from a snapshot.
///
/// ```
/// use tollgate_engine::RestoreError;
///
/// /// Whether it could without this snapshot.
/// fn is_of_the_snapshot(error: &RestoreError) -> bool {
///     matches!(error, RestoreError::Snapshot(_))
/// }
/// ```
#[derive(Debug, derive_more::Display, derive_more::From)]
#[non_exhaustive]
pub enum RestoreError {
    /// The snapshot can't be used.
    #[from]
    Snapshot(SnapshotError),
    /// The policy is rejected, independent of the snapshot.
    Policy(PolicyError),
    /// The quotas' file can't be used, independent of the snapshot.
    Quotas(FileError),
}

impl std::error::Error for RestoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Snapshot(error) => error.source(),
            Self::Policy(error) => error.source(),
            Self::Quotas(error) => error.source(),
        }
    }
}

/// Writes everything that outlives the process, and returns the number of keys of rates.
pub(super) fn save_engine<C: Clock + 'static, W: Clock + 'static>(
    pipeline: &Pipeline<Memory<C, W>>,
    file: &mut SnapshotWriter,
) -> Result<u64, SnapshotError> {
    file.word(VERSION)?;
    file.words(&pipeline.hashers.seeds())?;
    file.words(&pipeline.hashers.probes())?;
    pipeline.rules.load().counters.save(file)?;
    // Cloned, so that nobody waits for the lock while the file is written.
    let book = pipeline.lock_overrides().clone();
    book.save(file, pipeline.clocks.wall.now())?;
    pipeline.backend.save(file)
}

/// Restores what [`save_engine`] wrote.
pub(super) fn restore_engine<C: Clock + Clone + 'static, W: Clock + Clone + 'static>(
    policy: Policy,
    builder: MemoryBuilder<C, W>,
    resume: RestoreOptions<'_>,
    file: &mut SnapshotReader,
) -> Result<(Pipeline<Memory<C, W>>, RestoreReport), RestoreError> {
    let [version, seeds @ ..] = file.words::<5>()?;
    let hashers = KeyHashers::with_seeds(seeds);
    let is_known = matches!(version, VERSION | PREVIOUS_VERSION);
    if !is_known || file.words()? != hashers.probes() {
        return Err(file.different_hash_error().into());
    }
    let form = match version {
        PREVIOUS_VERSION => SnapshotForm::Before,
        _ => SnapshotForm::Now,
    };
    let counters = Counters::load(file)?;
    let book = OverrideBook::load(file, form, builder.wall_clock().now())?;
    let now = builder.rate_clock().now();
    let follows = PreviousState::Counters(&counters);
    let rules = CompiledPolicy::new(policy, follows, now).map_err(RestoreError::Policy)?;
    let live: HashSet<u64> = rules.counters.ids().chain([REQUESTED_COUNTER]).collect();
    let (tables, loaded) = builder.load(file, resume.unset_wall, |id| live.contains(&id))?;
    let retired = rules.counters.just_retired();
    let memory = builder.build_around(tables, resume.quotas);
    let memory = memory.map_err(RestoreError::Quotas)?;
    let pipeline = Pipeline::new(rules, memory, hashers).map_err(RestoreError::Policy)?;
    *pipeline.lock_overrides() = book;
    (pipeline.lock_overrides()).apply_to_policy(&pipeline.override_context(&pipeline.rules.load()));
    let restored = RestoreReport {
        keys: loaded.keys,
        dropped_keys: loaded.skipped,
        retired,
    };
    Ok((pipeline, restored))
}
