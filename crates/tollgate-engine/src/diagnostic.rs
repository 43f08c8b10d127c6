//! Diagnostics: what is wrong with a file, where, and what to do about it.

/// The severity of a [`Diagnostic`].
///
/// ```
/// use tollgate_engine::document::Format;
/// use tollgate_engine::{Policy, Severity};
///
/// let checked = Policy::from_text("limits: [{name: a, rate: 9/s burst 1}]", Format::Yaml)?;
/// assert_eq!(checked.warnings[0].severity, Severity::Warning);
/// assert!(Severity::Warning < Severity::Error);
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
#[display(rename_all = "lowercase")]
pub enum Severity {
    /// The policy can be used, but may not do what was intended.
    Warning,
    /// The policy can't be used.
    Error,
}

/// The stable name of a kind of diagnostic, such as `unknown-field`. Scripts may rely on it.
///
/// ```
/// use tollgate_engine::{Code, lint};
///
/// assert_eq!(lint::BURST_RATIO, Code("burst-ratio"));
/// assert_eq!(lint::BURST_RATIO.to_string(), "burst-ratio");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
#[display("{_0}")]
pub struct Code(pub &'static str);

/// One problem in a file.
///
/// ```
/// use tollgate_engine::document::Span;
/// use tollgate_engine::{Code, Diagnostic};
///
/// let wrong = Diagnostic::error(Code("unknown-field"), "unknown field \"rat\"", Span::default())
///     .with_help("did you mean \"rate\"?");
/// assert_eq!(wrong.to_string(), "error[unknown-field]: unknown field \"rat\"");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{severity}[{code}]: {message}")]
pub struct Diagnostic {
    /// The severity.
    pub severity: Severity,
    /// The kind of problem.
    pub code: Code,
    /// What is wrong, in one line.
    pub message: String,
    /// The position.
    pub span: Span,
    /// What to do about it.
    pub help: Option<String>,
}

impl Diagnostic {
    /// A problem that makes the file unusable.
    pub fn error(code: Code, message: impl Into<String>, span: Span) -> Self {
        Self::new(Severity::Error, code, message.into(), span)
    }

    /// A problem that may be intended.
    pub fn warning(code: Code, message: impl Into<String>, span: Span) -> Self {
        Self::new(Severity::Warning, code, message.into(), span)
    }

    /// Adds what to do about it.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    fn new(severity: Severity, code: Code, message: String, span: Span) -> Self {
        Self {
            severity,
            code,
            message,
            span,
            help: None,
        }
    }
}

/// A range of characters in a file.
///
/// ```
/// use tollgate_engine::document::{Format, parse};
///
/// let file = parse("limits: 5", Format::Yaml, 0).expect("YAML");
/// assert_eq!((file.span.file, file.span.start.line), (0, 1));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// The number of the policy's file, in the order in which they were read.
    pub file: u32,
    /// The first character.
    pub start: Position,
    /// The first character after the range.
    pub end: Position,
}

impl Span {
    pub(crate) const fn new(file: u32, start: Position, end: Position) -> Self {
        Self { file, start, end }
    }

    /// Only its first character, for a position in a text of several lines.
    pub(crate) const fn first(self) -> Self {
        Self::new(self.file, self.start, self.start)
    }

    /// A file as a whole.
    pub(crate) fn of_file(file: u32) -> Self {
        Self {
            file,
            ..Self::default()
        }
    }
}

/// The position of a character in a file: line and column, both from 1 (0 if unknown).
///
/// ```
/// use tollgate_engine::document::Position;
///
/// let (early, late) = (Position { line: 2, column: 9 }, Position { line: 10, column: 1 });
/// assert!(early < late);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The line, from 1.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
}

impl Position {
    /// The position this many lines further down.
    pub(crate) const fn below(mut self, lines: u32) -> Self {
        self.line = self.line.saturating_add(lines);
        self
    }

    /// A position from a line and a column, both from 1.
    pub(crate) fn new(line: usize, column: usize) -> Self {
        let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Self {
            line: small(line),
            column: small(column),
        }
    }
}
