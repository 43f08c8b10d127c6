//! Places in the files of a policy.

/// Where something stands in a file.
///
/// ```
/// use tollgate_engine::document::{Format, parse};
///
/// let file = parse("limits: 5", Format::Yaml, 0).expect("YAML");
/// assert_eq!((file.span.file, file.span.start.line), (0, 1));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// Which of a policy's files, in the order in which they were read.
    pub file: u32,
    /// Its first character.
    pub start: LineColumn,
    /// The first character after it.
    pub end: LineColumn,
}

/// A character of a file: line and column, both from 1 (0 where nothing is known).
///
/// ```
/// use tollgate_engine::document::LineColumn;
///
/// let (early, late) = (LineColumn { line: 2, column: 9 }, LineColumn { line: 10, column: 1 });
/// assert!(early < late);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LineColumn {
    /// From 1.
    pub line: u32,
    /// In characters, from 1.
    pub column: u32,
}
