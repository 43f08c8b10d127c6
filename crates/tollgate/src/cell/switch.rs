//! The emergency switch of a limiter.

/// Whether a limiter limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Switch {
    /// It does.
    #[default]
    Enforce,
    /// Everything passes and nothing is charged; what was spent before drains as usual.
    Bypass,
}
