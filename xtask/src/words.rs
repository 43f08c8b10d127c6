//! Words in pages and names: those that must not come back, and the dictionary of correct spellings.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::pages::{Page, root};

/// A word or phrase that must not come back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BannedWord {
    /// In lower case.
    pub word: String,
    /// What to write instead.
    pub instead: String,
    /// Longer phrases in which the word is right, in lower case.
    pub except: Vec<String>,
}

impl BannedWord {
    /// Whether a line has the word by itself, in any case, outside of the excepted phrases.
    pub fn is_in(&self, line: &str) -> bool {
        let mut line = line.to_lowercase();
        for phrase in &self.except {
            line = line.replace(phrase, " ");
        }
        let is_edge = |sign: Option<char>| !sign.is_some_and(|sign| sign.is_alphanumeric());
        line.match_indices(&self.word).any(|(at, word)| {
            let (before, behind) = (&line[..at], &line[at + word.len()..]);
            is_edge(before.chars().next_back()) && is_edge(behind.chars().next())
        })
    }

    /// Whether an identifier has the word as one of its parts: `slot` in `slot_life`, `SlotLife` and `SLOT`.
    pub fn is_in_identifier(&self, identifier: &str) -> bool {
        let parts = identifier_words(identifier).join(" ");
        self.is_in(&parts)
    }
}

/// The words of an identifier, in lower case.
pub fn identifier_words(identifier: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for sign in identifier.chars() {
        let is_new = sign == '_' || (sign.is_uppercase() && was_lower);
        if is_new {
            words.push(String::new());
        }
        was_lower = sign.is_lowercase() || sign.is_ascii_digit();
        if let Some(word) = words.last_mut().filter(|_| sign != '_') {
            word.extend(sign.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The list of words that must not come back, for `pages` or for `identifiers`.
///
/// A line of the file is `word => what to write instead`, and may end with `; except phrase, other phrase`.
/// Lines that begin with `#` are comments, and `[pages]` begins a part.
///
/// # Errors
/// If the file can't be read, or a line of it isn't valid.
pub fn banned(part: &str) -> io::Result<Vec<BannedWord>> {
    let path = root().join("xtask/banned-words.txt");
    parse_banned(&fs::read_to_string(path)?, part)
}

fn parse_banned(text: &str, part: &str) -> io::Result<Vec<BannedWord>> {
    let (mut words, mut current) = (Vec::new(), "");
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[') {
            current = name.trim_end_matches(']');
            continue;
        }
        if line.is_empty() || line.starts_with('#') || current != part {
            continue;
        }
        let wrong = || io::Error::other(format!("{line}: a line is word => what to write instead"));
        let (word, rest) = line.split_once(" => ").ok_or_else(wrong)?;
        let (instead, except) = rest.split_once("; except ").unwrap_or((rest, ""));
        let except = except.split(", ").filter(|phrase| !phrase.is_empty());
        words.push(BannedWord {
            word: word.to_lowercase(),
            instead: instead.to_owned(),
            except: except.map(str::to_lowercase).collect(),
        });
    }
    Ok(words)
}

/// The words that pages may use: one a line, sorted, in lower case.
#[derive(Clone, Debug, Default)]
pub struct Dictionary {
    words: BTreeSet<String>,
}

impl Dictionary {
    /// The path of the file.
    pub fn path() -> PathBuf {
        root().join("xtask/known-words.txt")
    }

    /// Reads the words.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn load() -> io::Result<Self> {
        let text = fs::read_to_string(Self::path())?;
        let words = text.lines().map(str::to_owned).collect();
        Ok(Self { words })
    }

    /// The unknown words of a page, each with the first line that has it.
    pub fn unknown(&self, page: &Page) -> Vec<(usize, String)> {
        let mut seen = BTreeSet::new();
        let mut unknown = Vec::new();
        for (line, text) in page.prose() {
            for word in spelled(&text) {
                if !self.words.contains(&word) && seen.insert(word.clone()) {
                    unknown.push((line, word));
                }
            }
        }
        unknown
    }

    /// Adds a word. Returns whether it is new.
    pub fn add(&mut self, word: String) -> bool {
        self.words.insert(word)
    }

    /// Writes the words, sorted.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let lines: Vec<_> = self.words.iter().map(String::as_str).collect();
        fs::write(path, lines.join("\n") + "\n")
    }
}

/// The words of a line that a dictionary can contain: at least three letters, no digits, in lower case.
pub fn spelled(line: &str) -> impl Iterator<Item = String> {
    let is_part = |sign: char| sign.is_alphanumeric() || matches!(sign, '\'' | '’' | '_');
    let words = line.split(move |sign: char| !is_part(sign));
    words.filter_map(|word| {
        let word = word.trim_matches(['\'', '’', '_']).replace('’', "'");
        let word = word.strip_suffix("'s").unwrap_or(&word);
        let is_word = word
            .chars()
            .all(|sign| sign.is_alphabetic() || sign == '\'');
        (is_word && word.chars().count() > 2).then(|| word.to_lowercase())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "# Words.\n[pages]\nslot => permit; except hash slot, cluster slots\nby what => name the thing\n\n[identifiers]\nasked => requested\n";

    #[test]
    fn a_banned_word_is_found_by_itself_and_not_in_a_phrase_that_may_have_it() {
        let words = parse_banned(LIST, "pages").expect("a list");
        assert_eq!(words.len(), 2);
        let (slot, by_what) = (&words[0], &words[1]);
        assert_eq!(slot.instead, "permit");
        assert!(slot.is_in("A Slot is free.") && slot.is_in("slot"));
        assert!(!slot.is_in("the hash slot") && !slot.is_in("slotted"));
        assert!(slot.is_in("a hash slot and a slot"));
        assert!(by_what.is_in("By what clients are told apart"));
        assert!(parse_banned("[pages]\nnothing", "pages").is_err());
    }

    #[test]
    fn identifiers_are_taken_apart() {
        assert_eq!(identifier_words("SlotLife"), ["slot", "life"]);
        assert_eq!(identifier_words("MAX_SLOTS"), ["max", "slots"]);
        let words = parse_banned(LIST, "identifiers").expect("a list");
        let asked = &words[0];
        assert!(asked.is_in_identifier("was_asked") && asked.is_in_identifier("FactsAsked"));
        assert!(!asked.is_in_identifier("tasked"));
    }

    #[test]
    fn words_are_found_without_numbers_names_in_code_and_endings() {
        let words: Vec<_> = spelled("The store's 3rd Lua_script isn't ok: x86.").collect();
        assert_eq!(words, ["the", "store", "isn't"]);
    }
}
