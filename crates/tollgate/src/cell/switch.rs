//! The emergency switch of a limiter.

/// Whether a limiter enforces its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Switch {
    /// The limit is enforced.
    #[default]
    Enforce,
    /// Everything passes and nothing is charged. Earlier charges drain as usual.
    Bypass,
}
