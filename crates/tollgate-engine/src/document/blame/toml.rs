//! What is likely wrong with TOML.

use super::{Guess, Scene, name, word};

pub(super) fn guess(scene: &Scene<'_>) -> Option<Guess> {
    let says = |part: &str| scene.says.contains(part);
    let line = scene.text(scene.line).trim();
    let same = |help: String| Some(scene.here(1, scene.says, help));
    let told = |help: &str| same(help.to_owned());
    if says("found a colon") {
        return told("write = in place of the colon; if the file is YAML, name it .yaml");
    }
    if says("invalid escape") {
        return told("write \\\\ for a backslash, or put the text in single quotes");
    }
    if says("invalid character in string") || says("unterminated") {
        let message = "a text in quotes isn't closed on its line";
        let help =
            "end it with the quote that it begins with; a text of several lines has three of them";
        return Some(scene.here(1, message, help));
    }
    if says("invalid TOML value") || says("unexpected character") || says("invalid number") {
        return unquoted(scene);
    }
    if says("found a newline") && line.starts_with("[[") {
        return told("close it with ]], as in [[limits]]");
    }
    if says("right bracket") || says("right brace") {
        return told("is every [ and { before it closed, and every entry followed by a comma?");
    }
    if says("expected a value") {
        return told("write a value after the =");
    }
    if says("expected newline, found a comma") {
        return told("take the comma out: each field has a line of its own");
    }
    if says("expected newline") {
        return told("give each field a line of its own");
    }
    if says("redefinition of table") || says("duplicate") {
        return told("join the two; each item of a list begins with [[ ]], as in [[limits]]");
    }
    told("each line is a field, as in rate = \"10/s\", or a table, as in [[limits]]")
}

/// A value that has to be in quotes.
fn unquoted(scene: &Scene<'_>) -> Option<Guess> {
    let line = scene.text(scene.line);
    let (before, value) = line.split_once('=')?;
    let (name, _) = name(before.trim())?;
    let column = before.chars().count() + 1;
    let spaces = value
        .chars()
        .take_while(|sign| sign.is_whitespace())
        .count();
    let value = word(value.trim_start());
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
    Some(Guess {
        line: scene.line,
        column: column + spaces,
        width: value.chars().count().max(1),
        message: message.to_owned(),
        help,
    })
}
