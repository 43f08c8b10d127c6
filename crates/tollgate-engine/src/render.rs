//! Renders diagnostics for people, with the lines in question, and for programs, as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use crate::diagnostic::{Diagnostic, Severity};
use crate::document::Span;
pub use crate::escape::escaped;
use crate::escape::is_hidden;
use crate::sources::{Source, Sources};

/// The most characters of a line that are shown.
const MAX_LINE_WIDTH: usize = 100;

/// Renders diagnostics for people: one paragraph each, with the position, the line and what to do.
///
/// ```
/// use tollgate_engine::document::Format;
/// use tollgate_engine::{Policy, render};
///
/// let text = "limits:\n- name: api\n  rate: 10/fortnight\n";
/// let rejected = Policy::from_text(text, Format::Yaml).unwrap_err();
/// assert_eq!(
///     render::to_text(&rejected.errors, &rejected.sources),
///     "error[bad-rate]: unknown unit \"fortnight\"\n \
///      --> <text>:3:12\n  \
///      |\n\
///      3 |   rate: 10/fortnight\n  \
///      |            ^^^^^^^^^\n  \
///      = help: use ns, us, ms, s, m (minute), h, d or w\n"
/// );
/// ```
pub fn to_text(diagnostics: &[Diagnostic], sources: &Sources) -> String {
    to_styled_text(diagnostics, sources, &|_, text| text.to_owned())
}

/// The style of a piece of text, for callers that color it.
///
/// ```
/// use tollgate_engine::document::Format;
/// use tollgate_engine::render::{TextStyle, to_styled_text};
/// use tollgate_engine::Policy;
///
/// let rejected = Policy::from_text("limits: 5", Format::Yaml).unwrap_err();
/// let shown = to_styled_text(&rejected.errors, &rejected.sources, &|piece, text| match piece {
///     TextStyle::Error => format!("<{text}>"),
///     _ => text.to_owned(),
/// });
/// assert!(shown.starts_with("<error[wrong-type]>: expected a list of rules"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TextStyle {
    /// The kind of an error, and the marks below its line.
    Error,
    /// The kind of a warning, and the marks below its line.
    Warning,
    /// The frame around the line, with its number.
    Frame,
    /// The label of the help.
    Help,
}

/// Renders as [`to_text`], with each piece styled by `paint`: in colors, or as HTML.
///
/// ```
/// use tollgate_engine::document::Format;
/// use tollgate_engine::{Policy, render};
///
/// let rejected = Policy::from_text("limits: 5", Format::Yaml).unwrap_err();
/// let plain = render::to_styled_text(&rejected.errors, &rejected.sources, &|_, text| text.to_owned());
/// assert_eq!(plain, render::to_text(&rejected.errors, &rejected.sources));
/// ```
pub fn to_styled_text(
    diagnostics: &[Diagnostic],
    sources: &Sources,
    paint: &dyn Fn(TextStyle, &str) -> String,
) -> String {
    let mut text = String::new();
    for (index, diagnostic) in diagnostics.iter().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        // Writing to a `String` never fails.
        let _ = render_diagnostic(&mut text, diagnostic, sources, paint);
    }
    text
}

fn render_diagnostic(
    text: &mut String,
    diagnostic: &Diagnostic,
    sources: &Sources,
    paint: &dyn Fn(TextStyle, &str) -> String,
) -> std::fmt::Result {
    let kind = match diagnostic.severity {
        Severity::Warning => TextStyle::Warning,
        Severity::Error => TextStyle::Error,
    };
    let head = visible_text(&diagnostic.to_string());
    let (code, message) = head.split_once(": ").unwrap_or((&head, ""));
    writeln!(text, "{}: {message}", paint(kind, code))?;
    let span = diagnostic.span;
    let file = sources.get(span.file);
    let name = visible_text(file.map_or("<unknown>", |file| file.name()));
    let line = file.and_then(|file| file.line(span.start.line));
    let number = span.start.line.to_string();
    let margin = " ".repeat(number.len());
    let frame = |text: &str| paint(TextStyle::Frame, text);
    let (arrow, bar) = (frame("-->"), frame("|"));
    match file.zip(line) {
        Some((file, line)) => {
            let (shown, marks) = line_with_marks(file, line, span);
            let column = span.start.column;
            writeln!(text, "{margin}{arrow} {name}:{number}:{column}")?;
            writeln!(text, "{margin} {bar}")?;
            let number = frame(&number);
            writeln!(text, "{}", format!("{number} {bar} {shown}").trim_end())?;
            let blank = marks.len() - marks.trim_start().len();
            let (blank, marks) = marks.split_at(blank);
            writeln!(text, "{margin} {bar} {blank}{}", paint(kind, marks))?;
        }
        None => writeln!(text, "{margin}{arrow} {name}")?,
    }
    if let Some(help) = &diagnostic.help {
        let label = paint(TextStyle::Help, "= help:");
        writeln!(text, "{margin} {label} {}", visible_text(help))?;
    }
    Ok(())
}

/// The part of a line around a span, and the marks below it.
fn line_with_marks(file: &Source, line: &str, span: Span) -> (String, String) {
    let index = |column: u32| usize::try_from(column).unwrap_or(usize::MAX);
    let start = index(span.start.column).saturating_sub(1);
    // A span of several lines is marked to the end of its first line.
    let end = if span.end.line > span.start.line {
        usize::MAX
    } else {
        index(span.end.column).saturating_sub(1).max(start + 1)
    };
    // A long line is cut so that the start of the span is visible.
    let from = if line.len() > MAX_LINE_WIDTH {
        start.saturating_sub(MAX_LINE_WIDTH / 2)
    } else {
        0
    };
    let column = u32::try_from(from).unwrap_or(u32::MAX).saturating_add(1);
    let (part, more) = file.line_window(span.start.line, column, MAX_LINE_WIDTH);
    let mut shown = String::new();
    let mut marks = String::new();
    if from > 0 {
        shown.push('…');
        marks.push(' ');
    }
    let mut at = from;
    for sign in part.chars() {
        shown.push(visible_char(sign));
        if at < end {
            marks.push(if at >= start {
                '^'
            } else if sign == '\t' {
                '\t'
            } else {
                ' '
            });
        }
        at += 1;
    }
    if more {
        shown.push('…');
    }
    if start >= at {
        // The span begins just after the last character.
        marks.push('^');
    }
    (shown, marks)
}

/// The character, or a replacement if it could change what a terminal displays.
fn visible_char(sign: char) -> char {
    match sign {
        '\t' => '\t',
        _ if is_hidden(sign) => '\u{fffd}',
        _ => sign,
    }
}

fn visible_text(text: &str) -> String {
    text.chars().map(visible_char).collect()
}

/// A diagnostic for programs. Lines and columns count from 1; 0 is a file as a whole.
///
/// ```
/// use tollgate_engine::document::Format;
/// use tollgate_engine::{Policy, render};
///
/// let rejected = Policy::from_text("limits: 5", Format::Yaml).unwrap_err();
/// let reports = render::to_reports(&rejected.errors, &rejected.sources);
/// assert_eq!((reports[0].code, reports[0].column), ("wrong-type", 9));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DiagnosticReport<'a> {
    /// `error` or `warning`.
    pub severity: &'static str,
    /// The stable name.
    pub code: &'static str,
    /// What is wrong.
    pub message: &'a str,
    /// The file's path, as it was given or included.
    pub file: &'a str,
    /// The line of the first character.
    pub line: u32,
    /// The column of the first character.
    pub column: u32,
    /// The line of the first character after the span.
    pub end_line: u32,
    /// The column of the first character after the span.
    pub end_column: u32,
    /// What to do about it.
    pub help: Option<&'a str>,
}

/// Converts diagnostics for programs.
///
/// ```
/// use tollgate_engine::document::Format;
/// use tollgate_engine::{Policy, render};
///
/// let checked = Policy::from_text("limits: [{name: a, rate: 9/s burst 1}]", Format::Yaml)?;
/// let reports = render::to_reports(&checked.warnings, &checked.sources);
/// assert_eq!((reports[0].severity, reports[0].code), ("warning", "burst-ratio"));
/// # Ok::<(), tollgate_engine::LoadError>(())
/// ```
pub fn to_reports<'a>(
    diagnostics: &'a [Diagnostic],
    sources: &'a Sources,
) -> Vec<DiagnosticReport<'a>> {
    let report = |diagnostic: &'a Diagnostic| DiagnosticReport {
        severity: match diagnostic.severity {
            Severity::Warning => "warning",
            Severity::Error => "error",
        },
        code: diagnostic.code.0,
        message: &diagnostic.message,
        file: sources
            .get(diagnostic.span.file)
            .map_or("", |file| file.name()),
        line: diagnostic.span.start.line,
        column: diagnostic.span.start.column,
        end_line: diagnostic.span.end.line,
        end_column: diagnostic.span.end.column,
        help: diagnostic.help.as_deref(),
    };
    diagnostics.iter().map(report).collect()
}

/// Renders diagnostics as one line of JSON: a list of objects.
///
/// ```
/// use tollgate_engine::document::Format;
/// use tollgate_engine::{Policy, render};
///
/// let rejected = Policy::from_text("limits: 5", Format::Yaml).unwrap_err();
/// let json = render::to_json(&rejected.errors, &rejected.sources);
/// assert!(json.starts_with(r#"[{"severity":"error","code":"wrong-type","message":"expected a list"#));
/// ```
pub fn to_json(diagnostics: &[Diagnostic], sources: &Sources) -> String {
    // Serializing text and numbers never fails.
    serde_json::to_string(&to_reports(diagnostics, sources)).unwrap_or_default()
}
