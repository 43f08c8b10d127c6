//! What limiters are called where they are counted: short names, of which none is taken for another.

use std::borrow::Cow;
use std::fmt::Write;
use std::hash::BuildHasher;

use foldhash::fast::FixedState;

/// The longest name that is kept as it is, in bytes.
const MAX_NAME_BYTES: usize = 160;

/// What a rule, a tier or a limit of a tree is called in a [`LimiterCounts`](super::LimiterCounts): by its name. One that begins with a
/// parenthesis has another before it, as names in parentheses are of what has no rule. Of one that is longer than
/// 160 bytes that much is kept, and a hash of all of it.
///
/// ```
/// use tollgate_engine::counters::limiter_name;
///
/// assert_eq!(limiter_name("per-user"), "per-user");
/// assert_eq!(limiter_name("(none)"), "((none)");
/// assert!(limiter_name(&"long".repeat(1_000)).len() < 200);
/// ```
pub fn limiter_name(name: &str) -> Cow<'_, str> {
    let mut own = Cow::Borrowed(name);
    if name.len() > MAX_NAME_BYTES {
        let mut short = truncate_at_char(name, MAX_NAME_BYTES).to_owned();
        let hash = FixedState::with_seed(0).hash_one(name);
        // Writing to a text doesn't fail.
        let _ = write!(short, "…{hash:016x}");
        own = Cow::Owned(short);
    }
    if own.starts_with('(') {
        own.to_mut().insert(0, '(');
    }
    own
}

/// As many whole characters of a text as so many bytes have.
pub(crate) fn truncate_at_char(text: &str, most: usize) -> &str {
    let mut ends = (0..=most.min(text.len())).rev();
    let whole = ends.find(|end| text.is_char_boundary(*end));
    &text[..whole.unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_stay_apart_and_whole_characters() {
        let (one, two) = (format!("{}1", "ü".repeat(5_000)), "ü".repeat(5_000));
        assert_ne!(limiter_name(&one), limiter_name(&two));
        assert!(limiter_name(&one).len() <= MAX_NAME_BYTES + '…'.len_utf8() + 16);
        assert!(limiter_name(&format!("({one}")).starts_with("((ü"));
    }
}
