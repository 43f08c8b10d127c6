//! Matches globs by a literal head and, after it, a bit-parallel simulation of an automaton: a bit for each position
//! in the pattern that the text may have reached.
//!
//! The walk never backtracks. It takes one step a character for 64 positions of the pattern, so a match takes time in
//! proportion to the text, whatever the pattern is. Many globs can be walked together (`glob_sets.rs`).

/// Words for the positions of a pattern in a single walk.
const WORDS: usize = 4;
/// The most parts that a glob may have after its literal head.
pub(crate) const MAX_PARTS: usize = WORDS * 64 - 1;

/// A compiled glob: `*` matches anything but `/`, `**` matches anything, and `?` matches one character but `/`.
#[derive(Clone, Debug)]
pub(crate) struct Glob {
    /// The literal text that every match begins with; `tail` is the text that every match ends with.
    head: Box<str>,
    tail: Box<str>,
    rest: Box<[GlobPart]>,
    walk: GlobWalk,
    /// Whether any text may follow once the last part is reached.
    is_open: bool,
    /// The glob's number among all globs of a matcher.
    pub(super) number: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GlobPart {
    Char(char),
    /// One character except `/`.
    AnyChar,
    /// Any number of characters except `/`.
    Segment,
    /// Any number of any characters.
    AnyPath,
}

impl GlobPart {
    /// Whether the part may match no character, and several characters.
    pub(super) const fn repeats(self) -> bool {
        matches!(self, Self::Segment | Self::AnyPath)
    }

    pub(super) fn takes(self, character: char) -> bool {
        match self {
            Self::Char(own) => own == character,
            Self::AnyChar | Self::Segment => character != '/',
            Self::AnyPath => true,
        }
    }
}

impl Glob {
    /// `None` if the glob has more parts than a walk has positions for.
    pub(crate) fn new(glob: &str) -> Option<Self> {
        let head_end = glob.find(['*', '?']).unwrap_or(glob.len());
        let (head, rest) = glob.split_at(head_end);
        let mut parts: Vec<GlobPart> = Vec::new();
        for character in rest.chars() {
            let part = match character {
                '*' if parts.last() == Some(&GlobPart::Segment) => {
                    parts.pop();
                    GlobPart::AnyPath
                }
                '*' if parts.last() == Some(&GlobPart::AnyPath) => continue,
                '*' => GlobPart::Segment,
                '?' => GlobPart::AnyChar,
                other => GlobPart::Char(other),
            };
            parts.push(part);
        }
        let tail = rest.rfind(['*', '?']).map_or("", |at| &rest[at + 1..]);
        (parts.len() <= MAX_PARTS).then(|| Self {
            head: head.into(),
            tail: tail.into(),
            walk: GlobWalk::new(&[(0, &parts)]),
            is_open: parts.last() == Some(&GlobPart::AnyPath),
            rest: parts.into(),
            number: 0,
        })
    }

    pub(super) fn head(&self) -> &str {
        &self.head
    }

    /// The parts after the head, if the glob needs a walk.
    pub(super) fn parts(&self) -> Option<&[GlobPart]> {
        match &*self.rest {
            [] | [GlobPart::AnyPath] | [GlobPart::Segment] => None,
            parts => Some(parts),
        }
    }

    /// The text after the head, if the text begins and ends as every match does.
    pub(super) fn strip_ends<'t>(&self, text: &'t str) -> Option<&'t str> {
        let text = text.strip_prefix(&*self.head)?;
        text.ends_with(&*self.tail).then_some(text)
    }

    /// Whether any text may follow the head.
    pub(super) fn is_prefix(&self) -> bool {
        *self.rest == [GlobPart::AnyPath]
    }

    pub(crate) fn matches(&self, text: &str) -> bool {
        let Some(text) = text.strip_prefix(&*self.head) else {
            return false;
        };
        match &*self.rest {
            [] => text.is_empty(),
            [GlobPart::AnyPath] => true,
            [GlobPart::Segment] => !text.contains('/'),
            _ => text.ends_with(&*self.tail) && self.matches_rest(text),
        }
    }
}

/// The transitions of a walk for all positions in some patterns together. A position is a bit, so a word of 64
/// positions takes a handful of instructions for each character.
#[derive(Clone, Debug)]
pub(super) struct GlobWalk {
    /// The positions before the first character.
    pub(super) starts: Box<[u64]>,
    /// The parts that may match any number of characters.
    repeats: Box<[u64]>,
    /// The parts that match a character, by the character's class: first for all unnamed characters, then for `/`,
    /// then for each character that a pattern names. Each class has as many words as a walk.
    takes: Box<[u64]>,
    classes: CharClasses,
}

/// Classes of the characters that patterns name.
#[derive(Clone, Debug)]
pub(super) struct CharClasses {
    /// The class of each ASCII character.
    ascii: Box<[u16; 128]>,
    /// Other named characters and their classes, sorted for a binary search.
    others: Box<[(char, u16)]>,
}

/// Classes that every pattern has.
const UNNAMED: u16 = 0;
const SLASH: u16 = 1;

impl CharClasses {
    /// The classes of these patterns' characters, and a sample character of each class in the order of the classes.
    pub(super) fn of<'p>(parts: impl Iterator<Item = &'p GlobPart>) -> (Self, Vec<char>) {
        let mut named: Vec<char> = parts
            .filter_map(|part| match part {
                GlobPart::Char(own) if *own != '/' => Some(*own),
                _ => None,
            })
            .collect();
        named.sort_unstable();
        named.dedup();
        let (mut ascii, mut others) = ([UNNAMED; 128], Vec::new());
        ascii[usize::from(b'/')] = SLASH;
        for (class, sign) in (SLASH + 1..).zip(&named) {
            match ascii.get_mut(*sign as usize) {
                Some(own) => *own = class,
                None => others.push((*sign, class)),
            }
        }
        // A character of private use that no pattern names stands for all unnamed characters.
        let unnamed = ('\u{e000}'..).find(|sign| named.binary_search(sign).is_err());
        let signs = unnamed.into_iter().chain(['/']).chain(named).collect();
        let classes = Self {
            ascii: Box::new(ascii),
            others: others.into(),
        };
        (classes, signs)
    }

    #[inline]
    pub(super) fn class(&self, sign: char) -> usize {
        usize::from(match self.ascii.get(sign as usize) {
            Some(class) => *class,
            None => {
                let named = self.others.binary_search_by_key(&sign, |(own, _)| *own);
                named.map_or(UNNAMED, |place| self.others[place].1)
            }
        })
    }
}

impl GlobWalk {
    /// A walk of patterns that begin at these positions. A pattern takes one position for each part, and one after
    /// the last.
    pub(super) fn new(patterns: &[(usize, &[GlobPart])]) -> Self {
        let ends = patterns.iter().map(|(first, parts)| first + parts.len());
        let words = ends.max().unwrap_or(0) / 64 + 1;
        let places = |is_so: &dyn Fn(GlobPart) -> bool| {
            let mut places = vec![0u64; words];
            for (first, parts) in patterns {
                for (place, part) in (*first..).zip(*parts) {
                    places[place / 64] |= u64::from(is_so(*part)) << (place % 64);
                }
            }
            places
        };
        let (classes, signs) = CharClasses::of(patterns.iter().flat_map(|(_, parts)| *parts));
        let signs = signs.iter();
        let takes = signs.flat_map(|sign| places(&|part| part.takes(*sign)));
        let takes = takes.collect();
        let repeats = places(&GlobPart::repeats);
        let mut starts = vec![0; words];
        for (first, _) in patterns {
            let start = 1 << (first % 64);
            // A part that may match nothing is also skipped.
            starts[first / 64] |= start | (start & repeats[first / 64]) << 1;
        }
        Self {
            starts: starts.into(),
            repeats: repeats.into(),
            takes,
            classes,
        }
    }

    /// Moves the positions in `at` over a text. With `CARRIES`, a position moves to the next word where a pattern has
    /// more than one.
    pub(super) fn walk_text<const CARRIES: bool>(&self, text: &str, at: &mut [u64]) {
        let words = at.len();
        for sign in text.chars() {
            count_steps(words);
            let from = self.classes.class(sign) * words;
            let takes = &self.takes[from..from + words];
            let (mut moved, mut skipped, mut any) = (0, 0, 0);
            for ((at, takes), repeats) in at.iter_mut().zip(takes).zip(&self.repeats) {
                let taken = *at & takes;
                let (stays, goes) = (taken & repeats, taken & !repeats);
                let reached = stays | goes << 1 | moved;
                // A part that may match nothing is also skipped. No two such parts are adjacent, so one skip is
                // enough.
                let passed = reached & repeats;
                *at = reached | passed << 1 | skipped;
                if CARRIES {
                    (moved, skipped) = (goes >> 63, passed >> 63);
                }
                any |= *at;
            }
            // No position survived, so no further character can match.
            if any == 0 {
                return;
            }
        }
    }
}

impl Glob {
    /// Whether the text after the head matches.
    fn matches_rest(&self, text: &str) -> bool {
        let (walk, end) = (&self.walk, self.rest.len());
        if let ([start], [repeats]) = (&*walk.starts, &*walk.repeats) {
            return self.walk_a_word(text, *start, *repeats);
        }
        let words = walk.starts.len();
        let mut at = [0; WORDS];
        at[..words].copy_from_slice(&walk.starts);
        walk.walk_text::<true>(text, &mut at[..words]);
        at[end / 64] & 1 << (end % 64) != 0
    }

    /// A walk of a pattern whose positions fit one word, as most do. It needs no loop over words.
    fn walk_a_word(&self, text: &str, mut at: u64, repeats: u64) -> bool {
        let (takes, classes, end) = (&*self.walk.takes, &self.walk.classes, self.rest.len());
        let is_done = if self.is_open { 1 << (end - 1) } else { 0 };
        for sign in text.chars() {
            count_steps(1);
            let taken = at & takes[classes.class(sign)];
            let reached = taken & repeats | (taken & !repeats) << 1;
            at = reached | (reached & repeats) << 1;
            // After a final `**` the rest of the text matches in any case.
            if at & is_done != 0 {
                return true;
            }
            if at == 0 {
                return false;
            }
        }
        at & 1 << end != 0
    }
}

#[cfg(test)]
thread_local! {
    /// The number of words that walks have stepped over on this thread.
    pub(super) static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts the steps of a walk, for tests of its cost.
#[inline(always)]
pub(super) fn count_steps(words: usize) {
    #[cfg(test)]
    STEPS.with(|steps| steps.set(steps.get() + words));
    #[cfg(not(test))]
    let _ = words;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::pattern_holds;
    use super::*;
    use crate::policy::Pattern;

    #[test]
    fn globs_mean_what_people_expect() {
        for (glob, text, expect) in [
            ("/api/**", "/api/v1/users", true),
            ("/api/**", "/api/", true),
            ("/api/**", "/api", false),
            ("/api/*", "/api/v1", true),
            ("/api/*", "/api/v1/users", false),
            ("/api/*/users", "/api/v1/users", true),
            ("/api/*/users", "/api/v1/v2/users", false),
            ("/**/users", "/api/v1/v2/users", true),
            ("/**/users", "/users", false),
            ("/a?c", "/abc", true),
            ("/a?c", "/a/c", false),
            ("/a?c", "/aöc", true),
            ("*.html", "index.html", true),
            ("*.html", "a/index.html", false),
            ("**.html", "a/index.html", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("", "", true),
            ("", "x", false),
            ("***", "a/b", true),
        ] {
            let glob_matches = Glob::new(glob).unwrap().matches(text);
            assert_eq!(glob_matches, expect, "{glob:?} {text:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

        #[test]
        fn a_walk_finds_what_trying_every_way_does(
            glob in "[ab/ö]{0,3}(\\*|\\*\\*|\\?|[ab/ö]){0,8}",
            text in "[ab/öc]{0,12}",
        ) {
            let naive = pattern_holds(&Pattern::Glob(glob.clone()), Some(&text));
            prop_assert_eq!(Glob::new(&glob).expect("a short one").matches(&text), naive);
        }

        /// A glob so long that its positions need several words.
        #[test]
        fn a_long_walk_finds_what_a_short_one_does(
            glob in "(\\*|\\*\\*|\\?|[ab/]){1,6}",
            text in "[ab/]{0,9}",
            before in 55..200usize,
        ) {
            let long = Glob::new(&format!("?{}{glob}", "x".repeat(before))).expect("it fits");
            let short = Glob::new(&glob).expect("a short one").matches(&text);
            prop_assert_eq!(long.matches(&format!("y{}{text}", "x".repeat(before))), short);
        }
    }

    #[test]
    fn a_glob_made_to_blow_up_takes_as_long_as_any_other() {
        let glob = Glob::new(&"*a".repeat(100)).unwrap();
        assert!(!glob.matches(&"a".repeat(99)));
        assert!(glob.matches(&"a".repeat(5_000)));
        assert!(Glob::new(&"?".repeat(MAX_PARTS + 1)).is_none());
    }
}
