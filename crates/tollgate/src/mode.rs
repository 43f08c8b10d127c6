//! The emergency switch of a limiter.

/// Whether a limiter limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// It does.
    #[default]
    Enforce,
    /// Everything passes and nothing is charged; what was spent before drains as usual.
    Bypass,
}
