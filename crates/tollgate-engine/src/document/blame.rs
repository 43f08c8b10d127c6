//! What is most likely wrong with a text that can't be read: a parser says where it gave up, people want to know what
//! to change, and where.

use super::{Diagnostic, Format, Place, SYNTAX, Span};

mod scan;
mod toml;
mod yaml;

/// The text around the place where a parser gave up. Lines and columns count from 0 here, in characters.
#[derive(Debug)]
struct Scene<'a> {
    lines: Vec<&'a str>,
    line: usize,
    column: usize,
    /// What the parser said.
    says: &'a str,
}

/// What is likely wrong.
#[derive(Debug)]
struct Guess {
    line: usize,
    column: usize,
    width: usize,
    message: String,
    help: String,
}

/// The same problem, told by its likely cause.
pub(super) fn likely(problem: Diagnostic, text: &str, format: Format) -> Diagnostic {
    if problem.code != SYNTAX || problem.help.is_some() {
        return problem;
    }
    let from_0 = |number: u32| {
        usize::try_from(number)
            .unwrap_or(usize::MAX)
            .saturating_sub(1)
    };
    let scene = Scene {
        lines: lines(text),
        line: from_0(problem.span.start.line),
        column: from_0(problem.span.start.column),
        says: &problem.message,
    };
    let guess = match format {
        Format::Yaml => yaml::guess(&scene),
        Format::Toml => toml::guess(&scene),
    };
    let Some(guess) = guess else {
        return problem.help(FALLBACK);
    };
    let place = |column: usize| Place {
        line: small(guess.line + 1),
        column: small(column + 1),
    };
    let span = Span {
        file: problem.span.file,
        start: place(guess.column),
        end: place(guess.column + guess.width),
    };
    Diagnostic::error(SYNTAX, guess.message, span).help(guess.help)
}

const FALLBACK: &str = "is the line above complete, and is this one indented as those beside it?";

/// The lines of a text, whatever ends them.
fn lines(text: &str) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['\n', '\r']) {
        lines.push(&rest[..at]);
        let length = if rest[at..].starts_with("\r\n") { 2 } else { 1 };
        rest = &rest[at + length..];
    }
    lines.push(rest);
    lines
}

fn small(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl<'a> Scene<'a> {
    fn text(&self, line: usize) -> &'a str {
        self.lines.get(line).copied().unwrap_or("")
    }

    /// What stands from the place on.
    fn rest(&self) -> &'a str {
        let line = self.text(self.line);
        let at = line.char_indices().nth(self.column);
        at.map_or("", |(at, _)| &line[at..])
    }

    /// The number of the last line before this one that says something.
    fn before(&self, line: usize) -> Option<usize> {
        let line = line.min(self.lines.len());
        (0..line)
            .rev()
            .find(|line| !bare(self.text(*line)).text.is_empty())
    }

    fn is_at_end(&self) -> bool {
        let below = self.lines.iter().skip(self.line + 1);
        self.rest().trim().is_empty() && below.clone().all(|line| line.trim().is_empty())
    }

    /// A guess at the place itself.
    fn here(&self, width: usize, message: impl Into<String>, help: impl Into<String>) -> Guess {
        Guess {
            line: self.line,
            column: self.column,
            width,
            message: message.into(),
            help: help.into(),
        }
    }
}

/// A line without its indentation, the dashes of lists, and its comment.
#[derive(Debug)]
struct Bare<'a> {
    /// Where the first dash stands, if there is one.
    dash: Option<usize>,
    /// Where the text begins.
    column: usize,
    text: &'a str,
}

fn bare(line: &str) -> Bare<'_> {
    let mut text = line.trim_start();
    let mut column = line.chars().count() - text.chars().count();
    let mut dash = None;
    while let Some(rest) = text.strip_prefix("- ") {
        dash.get_or_insert(column);
        let trimmed = rest.trim_start();
        column += text.chars().count() - trimmed.chars().count();
        text = trimmed;
    }
    let comment = if text.starts_with('#') {
        Some(0)
    } else {
        text.find(" #")
    };
    let text = comment.map_or(text, |at| &text[..at]).trim_end();
    Bare { dash, column, text }
}

/// The name that a text begins with, and what follows.
fn name(text: &str) -> Option<(&str, &str)> {
    let fits = |sign: char| sign.is_ascii_alphanumeric() || matches!(sign, '_' | '-' | '.');
    let end = text.find(|sign| !fits(sign)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    is_name.then_some((name, rest))
}

/// The first word of a text, as far as it might be a value.
fn word(text: &str) -> &str {
    let end = text.find(|sign: char| sign.is_whitespace() || matches!(sign, ',' | '}' | ']'));
    end.map_or(text, |end| &text[..end])
}
