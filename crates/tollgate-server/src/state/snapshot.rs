//! The snapshot: all rates of a service in one file.
//!
//! # Format, version 1
//! | words | what |
//! |---|---|
//! | 1 | wall time, nanoseconds since 1970 |
//! | 1 · 1 · … | 1 if the uptime of the machine is known; the uptime in nanoseconds; the boot id, as bytes |
//! | … | the engine's section |
//! | … | the keys of `CL.THROTTLE` |

use std::io;
use std::path::Path;
use std::time::Duration;

use tollgate::clock::Clock;
use tollgate::snapshot::{SnapshotError, SnapshotReader, SnapshotTimes, SnapshotWriter};
use tollgate::{LimitError, Timestamp};
use tollgate_engine::backend::Memory;
use tollgate_engine::{Engine, RestoreError, RestoreOptions, RestoreReport};

use super::state_folder::Folder;
use super::{StateOpener, Uptime};
use crate::throttle_keys::LocalThrottleKeys;

const KIND: &[u8; 8] = b"tollserv";
const VERSION: u64 = 1;

/// The restored state of a service.
pub(crate) struct RestoredState<C: Clock + 'static, W: Clock + 'static> {
    pub(crate) engine: Engine<Memory<C, W>>,
    pub(crate) cells: LocalThrottleKeys<C>,
    /// `None` without a snapshot.
    pub(crate) restored: Option<RestoreReport>,
}

/// Why the state can't be restored.
#[derive(Debug)]
pub(super) enum RestoreFailure {
    Restore(RestoreError),
    Throttle(LimitError),
}

impl From<SnapshotError> for RestoreFailure {
    fn from(error: SnapshotError) -> Self {
        Self::Restore(error.into())
    }
}

/// Saves all active keys. Returns how many. Decisions continue meanwhile.
pub(crate) fn save<C: Clock + 'static, W: Clock + 'static>(
    engine: &Engine<Memory<C, W>>,
    cells: &LocalThrottleKeys<C>,
    path: &Path,
    uptime: fn() -> Option<Uptime>,
) -> Result<u64, SnapshotError> {
    let mut file = SnapshotWriter::create(path, KIND, VERSION)?;
    // The wall clock is read before the uptime: the time between both reads then counts as not passed, so no tokens
    // come back too early.
    file.word(engine.backend().times().wall.as_nanos())?;
    let (is_known, up) = match uptime() {
        Some(up) => (1, up),
        None => (0, Uptime::default()),
    };
    let since = u64::try_from(up.elapsed.as_nanos()).unwrap_or(u64::MAX);
    file.words(&[is_known, since])?;
    file.bytes(&up.boot_id.to_le_bytes())?;
    let keys = engine.save(&mut file)?;
    let of_cells = cells.save(&mut file, engine.backend().times())?;
    file.finish()?;
    Ok(keys + of_cells)
}

/// Restores the state from the files of a folder, or begins with none.
pub(super) fn restore<C: Clock + Clone + 'static, W: Clock + Clone + 'static>(
    opening: &StateOpener<'_, C, W>,
    folder: &Folder,
) -> Result<RestoredState<C, W>, RestoreFailure> {
    let (policy, builder) = (opening.policy.clone(), opening.builder.clone());
    let (quotas, keys) = (folder.quotas(), opening.throttle_keys);
    let clock = builder.rate_clock().clone();
    let mut file = match SnapshotReader::open(folder.snapshot(), KIND, VERSION) {
        Ok(file) => file,
        Err(SnapshotError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            let cells = LocalThrottleKeys::new(keys, clock).map_err(RestoreFailure::Throttle)?;
            let memory = builder.quota_file(quotas);
            let memory =
                memory.map_err(|error| RestoreFailure::Restore(RestoreError::Quotas(error)))?;
            let engine = Engine::new(policy, memory);
            let engine =
                engine.map_err(|error| RestoreFailure::Restore(RestoreError::Policy(error)))?;
            return Ok(RestoredState {
                engine,
                cells,
                restored: None,
            });
        }
        Err(error) => return Err(error.into()),
    };
    let unset_wall = unset_wall(&mut file, (opening.options.uptime)())?;
    let shown = builder.times();
    let times = SnapshotTimes {
        wall: unset_wall.unwrap_or(shown.wall),
        ..shown
    };
    let resume = RestoreOptions {
        quotas: Some(&quotas),
        unset_wall,
    };
    let restored = Engine::restore(policy, builder, resume, &mut file);
    let (engine, mut restored) = restored.map_err(RestoreFailure::Restore)?;
    let (cells, loaded) = LocalThrottleKeys::load(keys, clock, &mut file, times)?;
    file.end()?;
    restored.keys += loaded.keys;
    restored.dropped_keys += loaded.skipped;
    Ok(RestoredState {
        engine,
        cells,
        restored: Some(restored),
    })
}

/// The time that the wall clock would show if nobody had set it since the snapshot; `None` if the machine's uptime is
/// unknown.
fn unset_wall(
    file: &mut SnapshotReader,
    now: Option<Uptime>,
) -> Result<Option<Timestamp>, SnapshotError> {
    let [wall, is_known, since] = file.words()?;
    let boot = file.bytes()?.as_slice().try_into();
    let earlier = Uptime {
        boot_id: u128::from_le_bytes(boot.map_err(|_| file.corrupt_error())?),
        elapsed: Duration::from_nanos(since),
    };
    let earlier = (is_known == 1).then_some(earlier);
    Ok(Uptime::wall_now(now, earlier, Timestamp::from_nanos(wall)))
}
