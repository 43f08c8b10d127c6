//! Many globs with one head, walked over a long text together: 64 places of their patterns at a time, so that a
//! hundred of them take little longer than one.
//!
//! Places are laid out as in one glob's own walk, one glob after the other, none over the end of a word. The
//! place after a glob's last part takes no character, so nothing goes from one glob to the next.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::glob::{Classes, Glob, Part, count_steps};

/// Fewer rules, or shorter texts, than these are faster looked at one by one. Tests have few and short ones.
const MANY: usize = if cfg!(test) { 2 } else { 8 };
const LONG: usize = if cfg!(test) { 1 } else { 256 };
/// The most places of a set, in words: what a set takes in memory grows with them and with the characters that
/// they name.
const MOST_WORDS: usize = 64;

/// All globs of a matcher, while it is made.
#[derive(Debug, Default)]
pub(super) struct Globs {
    numbers: HashMap<String, u32, FixedState>,
    globs: Vec<Glob>,
    /// The most alternatives that one condition has.
    alternatives: usize,
}

/// Those that share a head, in sets.
#[derive(Debug)]
pub(super) struct Sets {
    sets: Box<[Set]>,
    /// By the number of a glob: its set, and where in the set it ends.
    ends: Box<[Option<(u32, End)>]>,
    alternatives: usize,
}

/// The last place of a glob, which is reached by what matches.
#[derive(Clone, Copy, Debug)]
struct End {
    word: u32,
    bit: u64,
}

/// The places of several globs.
#[derive(Debug)]
struct Set {
    /// Where they begin.
    starts: Box<[u64]>,
    /// The parts that may stand for any number of characters.
    repeats: Box<[u64]>,
    /// The parts that take a character, class by class.
    takes: Box<[u64]>,
    classes: Classes,
}

/// What walks over the texts of one request have found.
#[derive(Debug)]
pub(super) struct Found<'s> {
    sets: &'s Sets,
    walked: Vec<Walked>,
}

/// A walk of one set over one fact.
#[derive(Debug)]
struct Walked {
    set: u32,
    slot: u32,
    /// The places that the text ends at.
    at: Box<[u64]>,
}

impl Globs {
    /// Gives a glob its number: the same as one that is written alike.
    pub(super) fn add(&mut self, text: &str, glob: &mut Glob) {
        let next = u32::try_from(self.globs.len()).unwrap_or(u32::MAX);
        let number = *self.numbers.entry(text.to_owned()).or_insert(next);
        glob.number = number;
        if number == next {
            self.globs.push(glob.clone());
        }
    }

    /// A condition has so many alternatives.
    pub(super) fn note_alternatives(&mut self, count: usize) {
        self.alternatives = self.alternatives.max(count);
    }

    /// The sets of those that share a head with others.
    pub(super) fn into_sets(self) -> Sets {
        let mut heads: HashMap<&str, Vec<(usize, &[Part])>, FixedState> = HashMap::default();
        for (number, glob) in self.globs.iter().enumerate() {
            // Those with more places than a word walk by themselves.
            if let Some(parts) = glob.parts().filter(|parts| parts.len() < 64) {
                heads.entry(glob.head()).or_default().push((number, parts));
            }
        }
        let mut ends = vec![None; self.globs.len()];
        let mut sets = Vec::new();
        let heads = heads.into_values().filter(|globs| globs.len() >= MANY);
        // One place for each part and one more, at most 64 of a glob.
        let chunks: Vec<_> = heads.collect();
        for globs in chunks.iter().flat_map(|globs| globs.chunks(MOST_WORDS)) {
            let set = u32::try_from(sets.len()).unwrap_or(u32::MAX);
            let (made, own) = Set::new(globs);
            sets.push(made);
            for ((number, _), end) in globs.iter().zip(own) {
                ends[*number] = Some((set, end));
            }
        }
        Sets {
            sets: sets.into(),
            ends: ends.into(),
            alternatives: self.alternatives,
        }
    }
}

impl Sets {
    /// Whether so many rules on so long a text are worth a walk together.
    #[inline]
    pub(super) fn pay(&self, rules: usize, longest: usize) -> bool {
        longest >= LONG && !self.sets.is_empty() && rules.max(self.alternatives) >= MANY
    }
}

impl Set {
    fn new(globs: &[(usize, &[Part])]) -> (Self, Vec<End>) {
        // Where each begins: in the word that it still fits.
        let (mut word, mut free, mut begins) = (0, 0, Vec::with_capacity(globs.len()));
        for (_, parts) in globs {
            if free + parts.len() >= 64 {
                (word, free) = (word + 1, 0);
            }
            begins.push((word, free));
            free += parts.len() + 1;
        }
        let words = word + 1;
        let places = |is_so: &dyn Fn(Part) -> bool| {
            let mut places = vec![0u64; words];
            for ((word, first), (_, parts)) in begins.iter().zip(globs) {
                for (place, part) in parts.iter().enumerate() {
                    places[*word] |= u64::from(is_so(*part)) << (first + place);
                }
            }
            places
        };
        let (classes, signs) = Classes::of(globs.iter().flat_map(|(_, parts)| *parts));
        let takes = signs
            .iter()
            .flat_map(|sign| places(&|part| part.takes(*sign)));
        let takes = takes.collect();
        let repeats = places(&Part::repeats);
        let mut starts = vec![0u64; words];
        let mut ends = Vec::with_capacity(globs.len());
        for ((word, first), (_, parts)) in begins.iter().zip(globs) {
            let start = 1 << first;
            // What may stand for nothing is passed by.
            starts[*word] |= start | (start & repeats[*word]) << 1;
            ends.push(End {
                word: u32::try_from(*word).unwrap_or(u32::MAX),
                bit: 1 << (first + parts.len()),
            });
        }
        let set = Self {
            starts: starts.into(),
            repeats: repeats.into(),
            takes,
            classes,
        };
        (set, ends)
    }

    /// The places that the text ends at.
    fn walk(&self, text: &str) -> Box<[u64]> {
        let mut at = self.starts.clone();
        let words = at.len();
        for sign in text.chars() {
            count_steps(words);
            let from = self.classes.class(sign) * words;
            let takes = &self.takes[from..from + words];
            let mut any = 0;
            for ((at, takes), repeats) in at.iter_mut().zip(takes).zip(&self.repeats) {
                let taken = *at & takes;
                let reached = taken & repeats | (taken & !repeats) << 1;
                *at = reached | (reached & repeats) << 1;
                any |= *at;
            }
            if any == 0 {
                break;
            }
        }
        at
    }
}

impl<'s> Found<'s> {
    pub(super) const fn new(sets: &'s Sets) -> Self {
        Self {
            sets,
            walked: Vec::new(),
        }
    }

    /// Whether a glob matches the text of this fact.
    pub(super) fn matches(&mut self, glob: &Glob, slot: u32, text: &str) -> bool {
        let end = self.sets.ends.get(glob.number as usize).copied();
        let Some((set, end)) = end.flatten().filter(|_| text.len() >= LONG) else {
            return glob.matches(text);
        };
        let Some(text) = glob.between(text) else {
            return false;
        };
        let same = |walked: &Walked| (walked.set, walked.slot) == (set, slot);
        let known = self.walked.iter().position(same);
        let known = known.unwrap_or_else(|| {
            let at = self.sets.sets[set as usize].walk(text);
            self.walked.push(Walked { set, slot, at });
            self.walked.len() - 1
        });
        self.walked[known].at[end.word as usize] & end.bit != 0
    }
}
