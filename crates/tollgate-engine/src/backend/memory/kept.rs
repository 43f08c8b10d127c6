//! What a memory has counted of quotas, and whether their file could be written.

use tollgate::Clock;
use tollgate::quota::{self, FileError};

use super::Memory;

impl<C: Clock + 'static, W: Clock + 'static> Memory<C, W> {
    /// What quotas have counted, and whether their file could be written, if they have one.
    ///
    /// ```
    /// use tollgate_engine::backend::Memory;
    ///
    /// assert_eq!(Memory::new().quota_stats().failed_flushes, 0);
    /// ```
    pub fn quota_stats(&self) -> quota::Stats {
        self.quotas.stats()
    }

    /// Saves what quotas have counted, now and on this thread. Without a file it does nothing. It is done every
    /// second, and when the memory is dropped.
    ///
    /// # Errors
    /// If the file can't be written; the next time tries again.
    ///
    /// ```
    /// use tollgate_engine::backend::Memory;
    ///
    /// Memory::new().flush_quotas()?;
    /// # Ok::<(), tollgate::quota::FileError>(())
    /// ```
    pub fn flush_quotas(&self) -> Result<(), FileError> {
        self.quotas.flush()
    }
}
