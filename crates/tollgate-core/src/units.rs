//! The unit of time in GCRA's word: 1/64 ns. Code that stores such words converts only with these functions, so that
//! no other crate depends on the size of the unit.

use crate::Timestamp;

/// One nanosecond in units, as a shift.
const SHIFT: u32 = 6;

/// The units in a nanosecond.
pub const PER_NANO: u64 = 1 << SHIFT;

/// The last nanosecond that a word can represent: nine years after the origin.
pub const LAST_NANO: u64 = (1 << (u64::BITS - SHIFT)) - 1;

/// A time in units. It saturates at [`LAST_NANO`].
///
/// ```
/// use tollgate_core::{Timestamp, units};
///
/// assert_eq!(units::from_time(Timestamp::from_nanos(2)), 2 * units::PER_NANO);
/// assert_eq!(units::from_time(Timestamp::MAX), units::from_nanos(units::LAST_NANO));
/// ```
#[inline]
pub const fn from_time(time: Timestamp) -> u64 {
    from_nanos(time.as_nanos())
}

/// Nanoseconds in units. They saturate at [`LAST_NANO`].
#[inline]
pub const fn from_nanos(nanos: u64) -> u64 {
    let nanos = if nanos < LAST_NANO { nanos } else { LAST_NANO };
    nanos << SHIFT
}

/// Units in whole nanoseconds, rounded up, so that a wait of this length is long enough.
///
/// ```
/// use tollgate_core::units;
///
/// assert_eq!(units::to_nanos(units::from_nanos(3)), 3);
/// assert_eq!(units::to_nanos(units::from_nanos(3) + 1), 4);
/// assert_eq!(units::to_nanos_floor(units::from_nanos(3) + 1), 3);
/// ```
#[inline]
pub const fn to_nanos(units: u64) -> u64 {
    units.div_ceil(PER_NANO)
}

/// Units in whole nanoseconds, rounded down: the time that has certainly passed.
#[inline]
pub const fn to_nanos_floor(units: u64) -> u64 {
    units >> SHIFT
}

/// The units from one time to another, negative if the other is earlier.
///
/// ```
/// use tollgate_core::{Timestamp, units};
///
/// let (early, late) = (Timestamp::from_nanos(1), Timestamp::from_nanos(3));
/// assert_eq!(units::signed_difference(early, late), 128);
/// assert_eq!(units::signed_difference(late, early), -128);
/// ```
#[inline]
pub fn signed_difference(from: Timestamp, to: Timestamp) -> i128 {
    i128::from(PER_NANO) * (i128::from(to.as_nanos()) - i128::from(from.as_nanos()))
}
