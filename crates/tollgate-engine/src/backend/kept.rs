//! What a backend has made of a limit, kept with the limit: found without a look-up, and gone with it.

use std::any::Any;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Limit;

/// A backend that limits keep something for: what it has made of them, to be found again with each check.
///
/// ```
/// use std::convert::Infallible;
/// use tollgate::{Algorithm, Rate};
/// use tollgate_engine::backend::{Keeper, LimitKind, SoleLimit};
///
/// let kind = LimitKind::Rate { rate: Rate::per_second(2), algorithm: Algorithm::Gcra };
/// let limit = SoleLimit::new("logins", kind)?;
/// let (mine, others) = (Keeper::new(), Keeper::new());
/// let made = limit.limit().kept_or_make(&mine, || Ok::<_, Infallible>("in my words".to_owned()));
/// assert_eq!(made.as_deref(), Ok("in my words"));
/// assert!(limit.limit().kept::<String>(&mine).is_some());
/// assert!(limit.limit().kept::<String>(&others).is_none());
/// # Ok::<(), tollgate::LimitError>(())
/// ```
#[derive(Debug)]
pub struct Keeper(u64);

impl Keeper {
    /// One that is told from all others of this process.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl Default for Keeper {
    fn default() -> Self {
        Self::new()
    }
}

/// For whom, and what.
#[derive(Default)]
pub(crate) struct Kept(OnceLock<(u64, Box<dyn Any + Send + Sync>)>);

/// A copy keeps nothing: it is made to be changed.
impl Clone for Kept {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

impl Limit {
    /// What a backend has made of this limit, if it has.
    #[inline]
    pub fn kept<T: Send + Sync + 'static>(&self, keeper: &Keeper) -> Option<&T> {
        let (owner, kept) = self.told.kept.0.get()?;
        kept.downcast_ref().filter(|_| *owner == keeper.0)
    }

    /// The same, made now if need be. It is kept for the first backend that asks; others make it each time.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn kept_or_make<T: Clone + Send + Sync + 'static, E>(
        &self,
        keeper: &Keeper,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        if let Some(kept) = self.kept::<T>(keeper) {
            return Ok(kept.clone());
        }
        let made = make()?;
        // Another one may have been faster, with the same.
        let _ = self.told.kept.0.set((keeper.0, Box::new(made.clone())));
        Ok(made)
    }
}
