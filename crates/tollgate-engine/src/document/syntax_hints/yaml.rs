//! Finds the likely cause of a YAML syntax error: the commonest mistakes, each by the lines around the position.

use super::{
    Diagnostic, OpenDelimiter, OpenDelimiters, ParseFailure, first_word, leading_name, line_content,
};

/// The checks, from the most to the least certain.
const RULES: [fn(&ParseFailure<'_>) -> Option<Diagnostic>; 13] = [
    merge_conflict_mark,
    unfilled_template,
    tab_indentation,
    reserved_character,
    invalid_escape,
    unclosed_quote,
    unclosed_bracket,
    unmatched_closing,
    missing_space_after_colon,
    missing_space_after_dash,
    second_colon,
    missing_colon,
    bad_indentation,
];

pub(super) fn explain_yaml(scene: &ParseFailure<'_>) -> Option<Diagnostic> {
    RULES.iter().find_map(|guess| guess(scene))
}

/// Finds the marks of an unresolved merge conflict.
fn merge_conflict_mark(scene: &ParseFailure<'_>) -> Option<Diagnostic> {
    let marks = ["<<<<<<<", "=======", ">>>>>>>"];
    let is_mark = |line: &&str| marks.iter().any(|mark| line.starts_with(mark));
    let line = scene.lines.iter().position(is_mark)?;
    let guess = scene.hint_at(
        line,
        0,
        marks[0].len(),
        "a mark of a merge that has conflicts",
    );
    Some(guess.with_help("choose one of the two sides, and take the marks out"))
}

/// Finds a placeholder that a template engine should have replaced.
fn unfilled_template(scene: &ParseFailure<'_>) -> Option<Diagnostic> {
    let marks = ["{{", "{%"];
    let lines = scene.lines.iter().enumerate().take(scene.line + 1);
    let mut lines = lines.rev().take(2);
    let (line, at) = lines.find_map(|(number, line)| {
        let found = marks.iter().filter_map(|mark| line.find(mark)).min()?;
        Some((number, line[..found].chars().count()))
    })?;
    let guess = scene.hint_at(line, at, 2, "a template that isn't filled in");
    Some(guess.with_help("check what comes out of it"))
}

/// Finds a tab in the indentation of the line or of the next one. The parser may stop before it.
fn tab_indentation(scene: &ParseFailure<'_>) -> Option<Diagnostic> {
    let lines = scene.line..scene.line + 2;
    let (line, column) = lines.into_iter().find_map(|line| {
        let text = scene.text(line);
        let indentation = text.len() - text.trim_start_matches([' ', '\t']).len();
        Some((line, text[..indentation].find('\t')?))
    })?;
    let guess = scene.hint_at(line, column, 1, "a tab in the indentation");
    Some(guess.with_help("YAML is indented with spaces"))
}

/// Finds a plain text that begins with a character reserved by YAML.
fn reserved_character(scene: &ParseFailure<'_>) -> Option<Diagnostic> {
    let rest = scene.rest_of_line();
    let sign = rest.chars().next()?;
    let text = first_word(rest);
    let why = match sign {
        '@' | '`' | '%' if scene.parser_message.contains("unexpected character") => {
            "no text can begin with it"
        }
        '*' if scene.parser_message.contains("anchor") => {
            "it stands for what has an anchor, and nothing has one of this name"
        }
        '|' | '>' if scene.parser_message.contains("block scalar") => {
            "it begins a text on the lines below"
        }
        _ => return None,
    };
    let width = text.chars().count();
    let help = format!("put the text in quotes: {text:?}");
    Some(scene.hint_here(width, format!("{sign} has a meaning in YAML: {why}"), help))
}

/// Finds an invalid escape in double quotes.
fn invalid_escape(scene: &ParseFailure<'_>) -> Option<Diagnostic> {
    if !scene.parser_message.contains("escape") {
        return None;
    }
    const ESCAPES: &str = "0abt\tnvfre \"/\\N_LPxuU";
    let line = scene.text(scene.line);
    let mut signs = line.chars().enumerate().skip(scene.column);
    while let Some((column, sign)) = signs.next() {
        let Some((_, next)) = (sign == '\\').then(|| signs.next()).flatten() else {
            continue;
        };
        if !ESCAPES.contains(next) {
            let message = format!("\\{next} means nothing in double quotes");
            let help = format!("put the text in single quotes, or write \\\\{next}");
            return Some(
                scene
                    .hint_at(scene.line, column, 2, message)
                    .with_help(help),
            );
        }
    }
    None
}

/// Finds a quote that isn't closed, or that closes too early.
fn unclosed_quote(scene: &ParseFailure<'_>) -> Option<Diagnostic> {
    if scene.parser_message.contains("trailing content") {
        let message = "something follows a text in quotes";
        let help = "put all of it in one pair of quotes, or a comma between them";
        return Some(scene.hint_here(
            first_word(scene.rest_of_line()).chars().count(),
            message,
            help,
        ));
    }
    let here = OpenDelimiter {
        line: scene.line,
        column: scene.column,
        sign: scene.rest_of_line().chars().next().unwrap_or(' '),
    };
    let opened =
        if scene.parser_message.contains("quoted scalar") && matches!(here.sign, '"' | '\'') {
            here
        } else {
            OpenDelimiters::at(scene).quote?
        };
    let OpenDelimiter { line, column, sign } = opened;
    let message = format!("the text that begins with this {sign} isn't closed");
    Some(
        scene
            .hint_at(line, column, 1, message)
            .with_help(format!("end it with {sign}")),
    )
}

/// Finds a bracket that isn't closed, or a missing comma inside brackets.
fn unclosed_bracket(scene: &ParseFailure<'_>) -> Option<Diagnostic> {
    let opened = *OpenDelimiters::at(scene).brackets.last()?;
    let close = match opened.sign {
        '[' => ']',
        _ => '}',
    };
    if opened.line == scene.line && !scene.is_at_end() {
        let message = format!("expected a comma or {close}");
        let help = "put a comma between two entries, and a text with \": \" in it in quotes";
        return Some(scene.hint_here(1, message, help));
    }
    let line = scene.text(opened.line);
    let comment = line.chars().skip(opened.column).collect::<String>();
    let help = if comment.contains(" #") {
        "\" #\" begins a comment: put a text with it in quotes".to_owned()
    } else {
        format!("end it with {close}, and put a comma between two entries")
    };
    let message = format!("this {} isn't closed", opened.sign);
    Some(
        scene
            .hint_at(opened.line, opened.column, 1, message)
            .with_help(help),
    )
}

/// Finds a closing bracket without an opening one.
fn unmatched_closing(scene: &ParseFailure<'_>) -> Option<Diagnostic> {
    let sign = scene.rest_of_line().chars().next()?;
    matches!(sign, '}' | ']').then(|| {
        let message = format!("this {sign} closes nothing");
        scene.hint_here(1, message, "take it out, or open it before")
    })
}

/// The line and the one before it.
fn nearby_lines(scene: &ParseFailure<'_>) -> impl Iterator<Item = usize> {
    let before = scene.previous_content_line(scene.line);
    before.into_iter().chain([scene.line])
}

/// Finds `rate:10/s`.
fn missing_space_after_colon(scene: &ParseFailure<'_>) -> Option<Diagnostic> {
    nearby_lines(scene).find_map(|line| {
        let bare = line_content(scene.text(line));
        let (name, rest) = leading_name(bare.text)?;
        let value = rest.strip_prefix(':')?;
        if value.is_empty() || value.starts_with([' ', '\t', '/', ':']) {
            return None;
        }
        let help = match value.chars().next() {
            Some('[' | '{') => "put one between them".to_owned(),
            _ => format!("write {name}: {}", first_word(value)),
        };
        let message = format!("no space after the colon of {name:?}");
        let column = bare.column + name.chars().count();
        Some(scene.hint_at(line, column, 1, message).with_help(help))
    })
}

/// Finds `-name: a`.
fn missing_space_after_dash(scene: &ParseFailure<'_>) -> Option<Diagnostic> {
    nearby_lines(scene).find_map(|line| {
        let bare = line_content(scene.text(line));
        let rest = bare.text.strip_prefix('-')?;
        let (name, _) = leading_name(rest)?;
        let guess = scene.hint_at(line, bare.column, 1, "no space after the dash");
        Some(guess.with_help(format!("write - {name}")))
    })
}

/// Finds `name: a: b`.
fn second_colon(scene: &ParseFailure<'_>) -> Option<Diagnostic> {
    if !scene.parser_message.contains("mapping values") {
        return None;
    }
    let line = scene.text(scene.line);
    let before: String = line.chars().take(scene.column).collect();
    let (_, value) = before.split_once(": ")?;
    let help = match value.split_whitespace().last() {
        Some("burst") => "write it without a colon, as in 10/s burst 20".to_owned(),
        _ => "put a text with \": \" in it in quotes, or begin a new line".to_owned(),
    };
    Some(scene.hint_here(1, "a second colon in one line", help))
}

/// Finds a name without a colon, above a line that has one.
fn missing_colon(scene: &ParseFailure<'_>) -> Option<Diagnostic> {
    let lines = if scene.is_at_end() {
        [Some(scene.line), scene.previous_content_line(scene.line)]
    } else {
        [scene.previous_content_line(scene.line), Some(scene.line)]
    };
    lines.into_iter().flatten().find_map(|line| {
        let bare = line_content(scene.text(line));
        let (name, rest) = leading_name(bare.text)?;
        if rest.contains(':') {
            return None;
        }
        let value = rest.trim_start().trim_start_matches('=').trim_start();
        let help = if value.is_empty() {
            format!("write {name}:")
        } else {
            format!("write {name}: {value}")
        };
        let column = bare.column + name.chars().count();
        let message = format!("no colon after {name:?}");
        Some(scene.hint_at(line, column, 1, message).with_help(help))
    })
}

/// Finds a line whose indentation no line above has.
fn bad_indentation(scene: &ParseFailure<'_>) -> Option<Diagnostic> {
    let own = line_content(scene.text(scene.line));
    let column = own.dash.unwrap_or(own.column);
    let mut left = usize::MAX;
    let mut near: Option<(usize, usize)> = None;
    for line in (0..scene.line).rev() {
        let other = line_content(scene.text(line));
        if other.text.is_empty() {
            continue;
        }
        let alike = match own.dash {
            Some(_) => other.dash,
            None => Some(other.column),
        };
        let start = other.dash.unwrap_or(other.column);
        if let Some(alike) = alike.filter(|alike| *alike < left) {
            if alike == column {
                return None;
            }
            if near.is_none_or(|(best, _)| alike.abs_diff(column) < best.abs_diff(column)) {
                near = Some((alike, line));
            }
        }
        left = left.min(start);
        if left == 0 {
            break;
        }
    }
    let (alike, line) = near?;
    let below = match own.dash {
        Some(_) => "the dash".to_owned(),
        None => format!("{:?}", leading_name(line_content(scene.text(line)).text)?.0),
    };
    let spaces = match alike {
        0 => "no space".to_owned(),
        1 => "1 space".to_owned(),
        more => format!("{more} spaces"),
    };
    let line = line + 1;
    let help = format!("begin it below {below} of line {line}, with {spaces} before it");
    let message = "the indentation fits none of the lines above";
    Some(
        scene
            .hint_at(scene.line, column, 1, message)
            .with_help(help),
    )
}
