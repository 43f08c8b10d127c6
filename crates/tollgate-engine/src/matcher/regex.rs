//! Regular expressions that match the whole of a text. Their memory is bounded, for each expression and for all
//! expressions of a policy together.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use regex_automata::meta;
use regex_automata::util::syntax;

/// Most bytes of one compiled expression.
pub(crate) const MAX_REGEX_BYTES: usize = 1 << 20;
/// Most bytes of all compiled expressions of a policy.
pub(crate) const MAX_TOTAL_BYTES: usize = 64 << 20;
/// Deepest nesting of groups, including the group around the whole expression.
const MAX_NESTING: u32 = 52;
/// Most bytes of the lazy automaton's cache, for each thread that matches.
const CACHE_BYTES: usize = 256 << 10;
/// Most bytes of the table of a small expression's automaton, which makes it faster.
const TABLE: usize = 64 << 10;

/// A compiled regular expression.
#[derive(Debug)]
pub(crate) struct FullMatchRegex(meta::Regex);

/// The error of a regular expression that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
pub(crate) enum RegexError {
    /// The expression takes more than this many bytes.
    #[display("a regular expression that takes more than {_0} bytes")]
    TooLarge(usize),
    /// Together with the expressions before it, it takes more than this many bytes.
    #[display("the regular expressions take more than {_0} bytes together")]
    TooMuch(usize),
    /// The syntax is wrong. The text is a diagram of the position and the reason.
    Unreadable(String),
}

impl FullMatchRegex {
    pub(super) fn is_match(&self, text: &str) -> bool {
        self.0.is_match(text)
    }

    fn new(regex: &str) -> Result<Self, RegexError> {
        let built = build(&format!("\\A(?:{regex})\\z")).or_else(|error| {
            // With the flag `x`, the last line may be a comment. The line break keeps it from swallowing the group's
            // end.
            build(&format!("\\A(?:{regex}\n)\\z")).map_err(|_| error)
        });
        built.map(Self).map_err(|error| {
            if error.size_limit().is_some() {
                return RegexError::TooLarge(MAX_REGEX_BYTES);
            }
            // The expression is compiled alone first, so that the diagram shows what the author wrote.
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
        // `.` matches a line break too. Otherwise a client could hide a value from `.*` with one.
        .syntax(
            syntax::Config::new()
                .nest_limit(MAX_NESTING)
                .dot_matches_new_line(true),
        )
        .build(regex)
        .map_err(Box::new)
}

/// All regular expressions of a policy, each compiled once.
#[derive(Debug, Default)]
pub(crate) struct RegexCache {
    known: HashMap<String, Arc<FullMatchRegex>, FixedState>,
    /// How many expressions were read, valid or not.
    read: usize,
    bytes: usize,
}

impl RegexCache {
    /// Compiles an expression, or returns the compiled one if the policy has it already.
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
            // It was compiled up to the bound, which took as long as a valid one, so it counts in full.
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

    /// Whether the policy has this expression already.
    pub(crate) fn knows(&self, regex: &str) -> bool {
        self.known.contains_key(regex)
    }

    /// How many expressions were read so far, valid or not.
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
