//! Finds the likely cause of a syntax error. A parser reports where it gave up, which is often far from the text that
//! has to change.

use super::{Diagnostic, Format, Position, SYNTAX, Span};

mod yaml;

/// The text around the position where a parser gave up. Lines and columns count from 0 here, in characters.
#[derive(Debug)]
struct ParseFailure<'a> {
    file: u32,
    /// The number of lines of the file before the text.
    lines_before: u32,
    lines: Vec<&'a str>,
    line: usize,
    column: usize,
    /// The parser's message.
    parser_message: &'a str,
}

/// The same error, described by its likely cause if one is found.
pub(super) fn explain_syntax_error(
    problem: Diagnostic,
    text: &str,
    format: Format,
    lines_before: u32,
) -> Diagnostic {
    if problem.code != SYNTAX || problem.help.is_some() {
        return problem;
    }
    let from_0 = |number: u32| usize::try_from(number.saturating_sub(1)).unwrap_or(usize::MAX);
    let scene = ParseFailure {
        file: problem.span.file,
        lines_before,
        lines: split_lines(text),
        line: from_0(problem.span.start.line.saturating_sub(lines_before)),
        column: from_0(problem.span.start.column),
        parser_message: &problem.message,
    };
    let guess = match format {
        Format::Yaml => yaml::explain_yaml(&scene),
        Format::Toml => explain_toml(&scene),
    };
    guess.unwrap_or_else(|| problem.with_help(FALLBACK_HELP))
}

const FALLBACK_HELP: &str =
    "is the line above complete, and is this one indented as those beside it?";

/// The lines of a text, with any line ending.
fn split_lines(text: &str) -> Vec<&str> {
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

impl<'a> ParseFailure<'a> {
    fn text(&self, line: usize) -> &'a str {
        self.lines.get(line).copied().unwrap_or("")
    }

    /// The text from the position to the end of its line.
    fn rest_of_line(&self) -> &'a str {
        let line = self.text(self.line);
        let at = line.char_indices().nth(self.column);
        at.map_or("", |(at, _)| &line[at..])
    }

    /// The number of the last line before this one that has content.
    fn previous_content_line(&self, line: usize) -> Option<usize> {
        let line = line.min(self.lines.len());
        let says = |line: &usize| !line_content(self.text(*line)).text.is_empty();
        (0..line).rev().find(says)
    }

    fn is_at_end(&self) -> bool {
        let below = self.lines.iter().skip(self.line + 1);
        self.rest_of_line().trim().is_empty() && below.clone().all(|line| line.trim().is_empty())
    }

    /// A likely cause at the position itself.
    fn hint_here(
        &self,
        width: usize,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Diagnostic {
        self.hint_at(self.line, self.column, width, message)
            .with_help(help)
    }

    /// A likely cause at another position, with its width in characters.
    fn hint_at(
        &self,
        line: usize,
        column: usize,
        width: usize,
        message: impl Into<String>,
    ) -> Diagnostic {
        let place = |column: usize| Position::new(line + 1, column + 1).below(self.lines_before);
        let span = Span::new(self.file, place(column), place(column + width));
        Diagnostic::error(SYNTAX, message, span)
    }
}

/// A line without its indentation, the dashes of lists, and its comment.
#[derive(Debug)]
struct LineContent<'a> {
    /// The column of the first dash, if there is one.
    dash: Option<usize>,
    /// The column of the text.
    column: usize,
    text: &'a str,
}

fn line_content(line: &str) -> LineContent<'_> {
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
    LineContent { dash, column, text }
}

/// The name that a text begins with, and the text after the colon.
fn leading_name(text: &str) -> Option<(&str, &str)> {
    let fits = |sign: char| sign.is_ascii_alphanumeric() || matches!(sign, '_' | '-' | '.');
    let end = text.find(|sign| !fits(sign)).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    is_name.then_some((name, rest))
}

/// The first word of a text, up to a character that can't be in a plain value.
fn first_word(text: &str) -> &str {
    let end = text.find(|sign: char| sign.is_whitespace() || matches!(sign, ',' | '}' | ']'));
    end.map_or(text, |end| &text[..end])
}

/// A quote or bracket that is still open: its position and its character.
#[derive(Clone, Copy, Debug)]
struct OpenDelimiter {
    line: usize,
    column: usize,
    sign: char,
}

/// The open quotes and brackets at a position.
#[derive(Debug, Default)]
struct OpenDelimiters {
    brackets: Vec<OpenDelimiter>,
    quote: Option<OpenDelimiter>,
    /// Whether a value may begin here. Quotes and brackets have a meaning only where a value begins.
    at_value_start: bool,
}

impl OpenDelimiters {
    /// The state at the position where the parser gave up.
    fn at(scene: &ParseFailure<'_>) -> Self {
        let mut open = Self::default();
        for (number, line) in scene.lines.iter().enumerate().take(scene.line + 1) {
            let end = if number == scene.line {
                scene.column
            } else {
                usize::MAX
            };
            open.line(number, line, end);
        }
        open
    }

    fn line(&mut self, number: usize, line: &str, end: usize) {
        let mut signs = line.chars().enumerate().take(end).peekable();
        let mut before = ' ';
        if self.quote.is_none() {
            self.at_value_start = true;
        }
        while let Some((column, sign)) = signs.next() {
            let next = signs.peek().map(|(_, next)| *next);
            if let Some(quote) = self.quote {
                match sign {
                    '\\' if quote.sign == '"' => {
                        signs.next();
                    }
                    '\'' if quote.sign == '\'' && next == Some('\'') => {
                        signs.next();
                    }
                    _ if sign == quote.sign => self.quote = None,
                    _ => {}
                }
                before = sign;
                continue;
            }
            if sign == '#' && before.is_whitespace() {
                return;
            }
            self.take(
                OpenDelimiter {
                    line: number,
                    column,
                    sign,
                },
                next,
            );
            before = sign;
        }
    }

    fn take(&mut self, opened: OpenDelimiter, next: Option<char>) {
        let in_flow = !self.brackets.is_empty();
        let ends = next.is_none_or(char::is_whitespace);
        match opened.sign {
            ' ' | '\t' => {}
            '"' | '\'' if self.at_value_start => {
                self.quote = Some(opened);
                self.at_value_start = false;
            }
            '{' | '[' if self.at_value_start || in_flow => {
                self.brackets.push(opened);
                self.at_value_start = true;
            }
            '}' | ']' if in_flow => {
                self.brackets.pop();
                self.at_value_start = false;
            }
            ',' if in_flow => self.at_value_start = true,
            ':' | '-' | '?' if ends => self.at_value_start = true,
            _ => self.at_value_start = false,
        }
    }
}

/// Messages of the TOML parser and the help for each. The first that fits is used.
const TOML_HELP: [(&str, &str); 9] = [
    (
        "found a colon",
        "write = in place of the colon; if the file is YAML, name it .yaml",
    ),
    (
        "invalid escape",
        "write \\\\ for a backslash, or put the text in single quotes",
    ),
    ("right bracket", BRACKET_HELP),
    ("right brace", BRACKET_HELP),
    ("expected a value", "write a value after the ="),
    (
        "expected newline, found a comma",
        "take the comma out: each field has a line of its own",
    ),
    ("expected newline", "give each field a line of its own"),
    ("redefinition of table", DUPLICATE_HELP),
    ("duplicate", DUPLICATE_HELP),
];
const BRACKET_HELP: &str =
    "is every [ and { before it closed, and every entry followed by a comma?";
const DUPLICATE_HELP: &str =
    "join the two; each item of a list begins with [[ ]], as in [[limits]]";

fn explain_toml(scene: &ParseFailure<'_>) -> Option<Diagnostic> {
    let says = |part: &str| scene.parser_message.contains(part);
    let line = scene.text(scene.line).trim();
    if says("invalid character in string") || says("unterminated") {
        let message = "a text in quotes isn't closed on its line";
        let help =
            "end it with the quote that it begins with; a text of several lines has three of them";
        return Some(scene.hint_here(1, message, help));
    }
    if says("invalid TOML value") || says("unexpected character") || says("invalid number") {
        return unquoted_value(scene);
    }
    let known = TOML_HELP.iter().find(|(part, _)| says(part));
    let help = match known {
        _ if says("found a newline") && line.starts_with("[[") => {
            "close it with ]], as in [[limits]]"
        }
        Some((_, help)) => help,
        None => "each line is a field, as in rate = \"10/s\", or a table, as in [[limits]]",
    };
    Some(scene.hint_here(1, scene.parser_message, help))
}

/// Finds a value that needs quotes.
fn unquoted_value(scene: &ParseFailure<'_>) -> Option<Diagnostic> {
    let line = scene.text(scene.line);
    let (before, value) = line.split_once('=')?;
    let (name, _) = leading_name(before.trim())?;
    let column = before.chars().count() + 1;
    let spaces = value
        .chars()
        .take_while(|sign| sign.is_whitespace())
        .count();
    let value = first_word(value.trim_start());
    let truth = value.to_ascii_lowercase();
    let (message, help) = match truth.as_str() {
        "true" | "false" => (
            "true and false are in small letters",
            format!("write {name} = {truth}"),
        ),
        _ => (
            "a text has to be in quotes",
            format!("put it in quotes: {name} = {value:?}"),
        ),
    };
    let width = value.chars().count().max(1);
    let guess = scene.hint_at(scene.line, column + spaces, width, message);
    Some(guess.with_help(help))
}
