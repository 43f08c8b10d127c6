//! Events that should wait, merge or fire once.

mod coalesce;
mod debounce;
mod keyed;
#[cfg(all(feature = "log", not(any(loom, shuttle))))]
mod log;
#[cfg(not(any(loom, shuttle)))]
mod pacer;
#[cfg(not(any(loom, shuttle)))]
mod place;
mod setup;
mod sync;
mod timeline;
mod work;

#[cfg(not(any(loom, shuttle)))]
pub use coalesce::Adding;
pub use coalesce::{AddError, Batch, Coalesce, Coalescer, Flushed, NotAdded};
pub use debounce::{Debounce, Debouncer, Throttle, WeakDebouncer};
pub use keyed::{KeyedDebounce, KeyedDebouncer, NoRoom, WhenFull};
#[cfg(all(feature = "log", not(any(loom, shuttle))))]
pub use log::{LogThrottle, LogThrottleBuilder};
#[cfg(not(any(loom, shuttle)))]
pub use pacer::{Gone, Pace, PaceRefused, Paced, Pacer, PacerBuilder, Pacing, Submitted};
#[cfg(not(any(loom, shuttle)))]
pub use setup::Driver;
pub use timeline::Edge;
pub use work::{Stats, StillRunning};
