//! An engine in memory that goes on where another process stopped: what it writes down, and how it is read.
//!
//! Keys are known by fingerprints and counters by numbers, both of one process alone. So its seeds and numbers are written
//! with the tables, into one file: none of them is of use without the others.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use tollgate::quota::FileError;
use tollgate::snapshot::{SnapshotError, SnapshotReader, SnapshotWriter};
use tollgate::{Clock, Timestamp};

use super::Engine;
use super::counters::Counters;
use super::orders::{Book, BookForm};
use super::rules::{Before, PolicyError, Rules};
use crate::backend::{Memory, MemoryBuilder};
use crate::limits::KeyHashers;

/// The version of the section.
const VERSION: u64 = 3;
/// The one before, which is read too: its orders say neither what they did nor more than one rate.
const VERSION_BEFORE: u64 = 2;
/// The counter of limits that proxies ask for, whatever the policy.
const ASKED: u64 = u64::MAX;

/// What is known beside a snapshot when an engine goes on from it.
///
/// ```
/// use tollgate_engine::Resume;
///
/// assert_eq!(Resume::default(), Resume { quotas: None, unset_wall: None });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resume<'a> {
    /// The file that [quotas](MemoryBuilder::quota_file) are kept in; without, they begin anew.
    pub quotas: Option<&'a Path>,
    /// What the wall clock would show now had nobody set it since the snapshot, if that is known. It tells how much of
    /// rates has come back.
    pub unset_wall: Option<Timestamp>,
}

/// What an engine went on with.
///
/// ```
/// use tollgate_engine::Restored;
///
/// assert!(Restored::default().retired.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// Keys of rates that are active still, and go on.
    pub keys: u64,
    /// Keys that are active still and found no slot: there is less room than in the engine that was saved.
    pub left_out: u64,
    /// The rates that the policy has no more, or counts by another algorithm, in order: `rule/`, `tier/` or another sort,
    /// and the name. What their keys have spent is kept until they are idle: a policy that has such a limit again goes on with it.
    pub retired: Vec<String>,
}

/// Why an engine couldn't go on from a snapshot.
///
/// ```
/// use tollgate_engine::RestoreError;
///
/// /// Whether it could without this snapshot.
/// fn is_of_the_snapshot(error: &RestoreError) -> bool {
///     matches!(error, RestoreError::Snapshot(_))
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum RestoreError {
    /// The snapshot can't be used.
    Snapshot(SnapshotError),
    /// What the policy says can't be done, whatever the snapshot.
    Policy(PolicyError),
    /// The quotas' file can't be used, whatever the snapshot.
    Quotas(FileError),
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Snapshot(error) => error.fmt(f),
            Self::Policy(error) => error.fmt(f),
            Self::Quotas(error) => error.fmt(f),
        }
    }
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

impl From<SnapshotError> for RestoreError {
    fn from(error: SnapshotError) -> Self {
        Self::Snapshot(error)
    }
}

impl<C: Clock + 'static, W: Clock + 'static> Engine<Memory<C, W>> {
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
    /// use tollgate_engine::{Engine, Facts, Policy, Resume};
    /// # use tollgate_testkit::scratch::Scratch;
    /// # let folder = Scratch::new("engine-save");
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
    /// let (engine, restored) = Engine::restore(policy, Memory::builder(), Resume::default(), &mut file)?;
    /// assert_eq!((restored.keys, restored.retired.len()), (1, 0));
    /// assert_eq!(engine.decide(&facts).decision().remaining, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn save(&self, file: &mut SnapshotWriter) -> Result<u64, SnapshotError> {
        // No policy comes into force meanwhile: keys of its counters would be in the tables, and their numbers free.
        let _reloading = self
            .reloading
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        file.word(VERSION)?;
        file.words(&self.hashers.seeds())?;
        file.words(&self.hashers.probes())?;
        self.rules.load().counters.save(file)?;
        let book = self.book().clone();
        book.save(file, self.clocks.wall.now())?;
        self.backend.save(file)
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
        policy: crate::Policy,
        builder: MemoryBuilder<C, W>,
        resume: Resume<'_>,
        file: &mut SnapshotReader,
    ) -> Result<(Self, Restored), RestoreError> {
        let [version, seeds @ ..] = file.words::<5>()?;
        let hashers = KeyHashers::with_seeds(seeds);
        let is_known = matches!(version, VERSION | VERSION_BEFORE);
        if !is_known || file.words()? != hashers.probes() {
            return Err(file.other_build().into());
        }
        let form = match version {
            VERSION_BEFORE => BookForm::Before,
            _ => BookForm::Now,
        };
        let counters = Counters::load(file)?;
        let book = Book::load(file, form, builder.wall_clock().now())?;
        let now = builder.rate_clock().now();
        let follows = Before::Counters(&counters);
        let rules = Rules::new(policy, follows, now).map_err(RestoreError::Policy)?;
        let live: HashSet<u64> = rules.counters.ids().chain([ASKED]).collect();
        let (tables, loaded) = builder.load(file, resume.unset_wall, |id| live.contains(&id))?;
        let retired = rules.counters.just_retired();
        let memory = builder.around(tables, resume.quotas);
        let memory = memory.map_err(RestoreError::Quotas)?;
        let mut engine = Self::by(rules, memory, hashers).map_err(RestoreError::Policy)?;
        engine.orders = Mutex::new(book);
        engine.put_over(&engine.rules.load(), &mut engine.book());
        let restored = Restored {
            keys: loaded.keys,
            left_out: loaded.left_out,
            retired,
        };
        Ok((engine, restored))
    }
}
