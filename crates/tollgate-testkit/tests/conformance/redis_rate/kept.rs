//! One key as Redis keeps it: its expiry is in whole milliseconds, inclusive, and the first access after that deletes
//! it.

mod tests;

/// A key that may be there, with a value and the millisecond in which it expires.
#[derive(Clone, Debug)]
pub(crate) struct Kept<T>(Option<(T, u64)>);

impl<T: Copy> Kept<T> {
    /// No key yet.
    pub(crate) const fn nothing() -> Self {
        Self(None)
    }

    /// `DESCRIPTOR_SET key value EX seconds`.
    pub(crate) fn set(&mut self, now_us: u64, value: T, seconds: u64) {
        self.set_until(now_us / 1_000 + seconds * 1_000, value);
    }

    /// `DESCRIPTOR_SET key value PXAT milliseconds`.
    fn set_until(&mut self, expires_ms: u64, value: T) {
        self.0 = Some((value, expires_ms));
    }

    /// `DEL key`.
    pub(crate) fn delete(&mut self) {
        self.0 = None;
    }

    /// What any command does first: a key that has expired is deleted, and is not there again when
    /// the clock steps back. Returns what it held.
    pub(crate) fn delete_expired(&mut self, now_us: u64) -> Option<T> {
        self.0
            .take_if(|(_, expires_ms)| now_us / 1_000 > *expires_ms)
            .map(|(value, _)| value)
    }

    /// `GET key`.
    pub(crate) fn get(&mut self, now_us: u64) -> Option<T> {
        self.delete_expired(now_us);
        self.0.map(|(value, _)| value)
    }

    /// `PTTL key`: the milliseconds left, or -2 without a key.
    pub(crate) fn pttl(&mut self, now_us: u64) -> i64 {
        self.delete_expired(now_us);
        self.0.map_or(-2, |(_, expires_ms)| {
            (expires_ms - now_us / 1_000).cast_signed()
        })
    }
}
