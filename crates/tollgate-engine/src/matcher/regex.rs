//! Regular expressions for the whole of a text. What they take in memory is known, and bounded for each
//! and for all of a policy together.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use regex_automata::meta;
use regex_automata::util::syntax;

/// What one may take, in bytes.
pub(crate) const MAX_REGEX_BYTES: usize = 1 << 20;
/// What all of a policy may take together, in bytes.
pub(crate) const MAX_TOTAL_BYTES: usize = 64 << 20;
/// How deep groups may be nested, with the one that is put around the whole.
const MAX_NESTING: u32 = 52;
/// What may be remembered of the steps through a text, for each thread that matches.
const CACHE_BYTES: usize = 256 << 10;
/// What a table may take that some are put into to be faster.
const TABLE: usize = 64 << 10;

/// A compiled regular expression.
#[derive(Debug)]
pub(crate) struct FullMatchRegex(meta::Regex);

/// Why a regular expression can't be used.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
pub(crate) enum RegexError {
    /// It takes more than so many bytes.
    #[display("a regular expression that takes more than {_0} bytes")]
    TooLarge(usize),
    /// With those before it, it takes more than so many bytes.
    #[display("the regular expressions take more than {_0} bytes together")]
    TooMuch(usize),
    /// It can't be read: a picture of where and why.
    Unreadable(String),
}

impl FullMatchRegex {
    pub(super) fn is_match(&self, text: &str) -> bool {
        self.0.is_match(text)
    }

    fn new(regex: &str) -> Result<Self, RegexError> {
        let built = build(&format!("\\A(?:{regex})\\z")).or_else(|error| {
            // With the flag x its last line may be a comment, which must not take in what follows.
            build(&format!("\\A(?:{regex}\n)\\z")).map_err(|_| error)
        });
        built.map(Self).map_err(|error| {
            if error.size_limit().is_some() {
                return RegexError::TooLarge(MAX_REGEX_BYTES);
            }
            // By itself, so that the picture is of what was written.
            let alone = build(regex).err();
            let why = alone.as_ref().and_then(|error| error.syntax_error());
            let why = why.or(error.syntax_error());
            RegexError::Unreadable(why.map_or_else(|| error.to_string(), ToString::to_string))
        })
    }
}

fn build(regex: &str) -> Result<meta::Regex, Box<meta::BuildError>> {
    let bounds = meta::Config::new()
        .nfa_size_limit(Some(MAX_REGEX_BYTES))
        .onepass_size_limit(Some(TABLE))
        .hybrid_cache_capacity(CACHE_BYTES);
    meta::Builder::new()
        .configure(bounds)
        // A line break in a value is a character like any other: else it would hide the value from `.*`.
        .syntax(
            syntax::Config::new()
                .nest_limit(MAX_NESTING)
                .dot_matches_new_line(true),
        )
        .build(regex)
        .map_err(Box::new)
}

/// All of a policy, each compiled once.
#[derive(Debug, Default)]
pub(crate) struct RegexCache {
    known: HashMap<String, Arc<FullMatchRegex>, FixedState>,
    /// How many were read, good or not.
    read: usize,
    bytes: usize,
}

impl RegexCache {
    /// One more, or the same again.
    pub(crate) fn add(&mut self, regex: &str) -> Result<Arc<FullMatchRegex>, RegexError> {
        if let Some(known) = self.known.get(regex) {
            return Ok(Arc::clone(known));
        }
        if self.bytes > MAX_TOTAL_BYTES {
            return Err(RegexError::TooMuch(MAX_TOTAL_BYTES));
        }
        let built = FullMatchRegex::new(regex);
        self.read += 1;
        self.bytes = self.bytes.saturating_add(match &built {
            Ok(whole) => whole.0.memory_usage(),
            // It was built as far as it may go, and that took its time.
            Err(RegexError::TooLarge(most)) => *most,
            Err(_) => 0,
        });
        let whole = Arc::new(built?);
        if self.bytes > MAX_TOTAL_BYTES {
            return Err(RegexError::TooMuch(MAX_TOTAL_BYTES));
        }
        self.known.insert(regex.to_owned(), Arc::clone(&whole));
        Ok(whole)
    }

    /// Whether this is one of them.
    pub(crate) fn knows(&self, regex: &str) -> bool {
        self.known.contains_key(regex)
    }

    /// How many were read so far, good or not.
    pub(crate) fn count(&self) -> usize {
        self.read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_regex_is_for_the_whole_of_a_text() {
        let mut all = RegexCache::default();
        for (regex, text, expect) in [
            ("a|ab", "ab", true),
            ("a", "ab", false),
            ("(?x) a # comment", "a", true),
            ("a$\n?", "a\n", false),
            (".*union.*", "\nunion", true),
            ("bad.*", "bad\n", true),
        ] {
            assert_eq!(all.add(regex).unwrap().is_match(text), expect, "{regex}");
        }
        assert_eq!(all.count(), 6);
        assert!(all.add("a").is_ok() && all.count() == 6);
    }

    #[test]
    fn what_is_too_large_counts_as_if_it_were_not() {
        let mut all = RegexCache::default();
        let large = |number: usize| format!("a{number}(?:x{{1000}}){{1000}}");
        let found = (0..100).map(|number| all.add(&large(number)).unwrap_err());
        let found: Vec<_> = found.collect();
        assert_eq!(found[0], RegexError::TooLarge(MAX_REGEX_BYTES));
        assert_eq!(found[99], RegexError::TooMuch(MAX_TOTAL_BYTES));
    }
}
