//! Globs: a literal head, and a walk over the sets of places in the rest that a text may be at.
//!
//! The walk never goes back, so a match takes time in proportion to the text and to the pattern,
//! whatever they are.

/// Places in a pattern that a walk keeps without asking for memory.
const WORDS: usize = 4;
/// The most parts that a glob may have after its literal head.
pub(crate) const MOST_PARTS: usize = WORDS * 64 - 1;

/// A compiled glob: `*` is anything but `/`, `**` anything, `?` one character but `/`.
#[derive(Clone, Debug)]
pub(crate) struct Glob {
    /// What every match begins with.
    head: Box<str>,
    rest: Box<[Part]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Just(char),
    /// One character but `/`.
    One,
    /// Any number of characters but `/`.
    Segment,
    /// Any number of any characters.
    All,
}

impl Part {
    /// Whether it may stand for no character, and for more than one.
    const fn repeats(self) -> bool {
        matches!(self, Self::Segment | Self::All)
    }

    fn takes(self, character: char) -> bool {
        match self {
            Self::Just(own) => own == character,
            Self::One | Self::Segment => character != '/',
            Self::All => true,
        }
    }
}

impl Glob {
    /// None if it has more parts than a walk can follow.
    pub(crate) fn new(glob: &str) -> Option<Self> {
        let head_end = glob.find(['*', '?']).unwrap_or(glob.len());
        let (head, rest) = glob.split_at(head_end);
        let mut parts: Vec<Part> = Vec::new();
        for character in rest.chars() {
            let part = match character {
                '*' if parts.last() == Some(&Part::Segment) => {
                    parts.pop();
                    Part::All
                }
                '*' if parts.last() == Some(&Part::All) => continue,
                '*' => Part::Segment,
                '?' => Part::One,
                other => Part::Just(other),
            };
            parts.push(part);
        }
        (parts.len() <= MOST_PARTS).then(|| Self {
            head: head.into(),
            rest: parts.into(),
        })
    }

    pub(super) fn head(&self) -> &str {
        &self.head
    }

    /// Whether anything may follow its head.
    pub(super) fn is_prefix(&self) -> bool {
        *self.rest == [Part::All]
    }

    pub(crate) fn matches(&self, text: &str) -> bool {
        let Some(text) = text.strip_prefix(&*self.head) else {
            return false;
        };
        match &*self.rest {
            [] => text.is_empty(),
            [Part::All] => true,
            [Part::Segment] => !text.contains('/'),
            parts => walk(parts, text),
        }
    }
}

/// A set of places in a pattern.
#[derive(Clone, Copy, Default)]
struct Places([u64; WORDS]);

impl Places {
    fn add(&mut self, place: usize) {
        self.0[place / 64] |= 1 << (place % 64);
    }

    fn has(&self, place: usize) -> bool {
        self.0[place / 64] & (1 << (place % 64)) != 0
    }

    /// Adds a place, and those after it that need no character to be reached.
    fn reach(&mut self, parts: &[Part], mut place: usize) {
        self.add(place);
        while parts.get(place).is_some_and(|part| part.repeats()) {
            place += 1;
            self.add(place);
        }
    }
}

fn walk(parts: &[Part], text: &str) -> bool {
    let mut places = Places::default();
    places.reach(parts, 0);
    for character in text.chars() {
        let mut next = Places::default();
        for (place, part) in parts.iter().enumerate() {
            if places.has(place) && part.takes(character) {
                let reached = if part.repeats() { place } else { place + 1 };
                next.reach(parts, reached);
            }
        }
        places = next;
    }
    places.has(parts.len())
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_glob_made_to_blow_up_takes_as_long_as_any_other() {
        let glob = Glob::new(&"*a".repeat(100)).unwrap();
        assert!(!glob.matches(&"a".repeat(99)));
        assert!(glob.matches(&"a".repeat(5_000)));
        assert!(Glob::new(&"?".repeat(MOST_PARTS + 1)).is_none());
    }
}
