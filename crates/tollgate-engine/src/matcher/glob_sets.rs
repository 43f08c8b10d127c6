//! Many globs with one head, walked over a long text together: 64 places of their patterns at a time, so that a
//! hundred of them take little longer than one.
//!
//! Places are laid out as in one glob's own walk, one glob after the other, none over the end of a word. The
//! place after a glob's last part takes no character, so nothing goes from one glob to the next.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::glob::{Glob, GlobPart, GlobWalk};

/// Fewer rules, or shorter texts, than these are faster looked at one by one. Tests have few and short ones.
const MIN_GLOBS: usize = if cfg!(test) { 2 } else { 8 };
const MIN_TEXT_LENGTH: usize = if cfg!(test) { 1 } else { 256 };
/// The most places of a set, in words: what a set takes in memory grows with them and with the characters that
/// they name.
const MAX_WORDS: usize = 64;

/// All globs of a matcher, while it is made.
#[derive(Debug, Default)]
pub(super) struct GlobSetBuilder {
    numbers: HashMap<String, u32, FixedState>,
    globs: Vec<Glob>,
    /// The most alternatives that one condition has.
    alternatives: usize,
}

/// Those that share a head, in sets.
#[derive(Debug)]
pub(super) struct GlobSets {
    sets: Box<[GlobWalk]>,
    /// By the number of a glob: its set, and where in the set it ends.
    ends: Box<[Option<(u32, EndPlace)>]>,
    alternatives: usize,
}

/// The last place of a glob, which is reached by what matches.
#[derive(Clone, Copy, Debug)]
struct EndPlace {
    word: u32,
    bit: u64,
}

/// What walks over the texts of one request have found.
#[derive(Debug)]
pub(super) struct GlobMatches<'s> {
    sets: &'s GlobSets,
    walked: Vec<WalkResult>,
}

/// A walk of one set over one fact.
#[derive(Debug)]
struct WalkResult {
    set: u32,
    slot: u32,
    /// The places that the text ends at.
    at: Box<[u64]>,
}

impl GlobSetBuilder {
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
    pub(super) fn into_sets(self) -> GlobSets {
        let mut heads: HashMap<&str, Vec<(usize, &[GlobPart])>, FixedState> = HashMap::default();
        for (number, glob) in self.globs.iter().enumerate() {
            // Those with more places than a word walk by themselves.
            if let Some(parts) = glob.parts().filter(|parts| parts.len() < 64) {
                heads.entry(glob.head()).or_default().push((number, parts));
            }
        }
        let mut ends = vec![None; self.globs.len()];
        let mut sets = Vec::new();
        let heads = heads.into_values().filter(|globs| globs.len() >= MIN_GLOBS);
        // One place for each part and one more, at most 64 of a glob.
        let chunks: Vec<_> = heads.collect();
        for globs in chunks.iter().flat_map(|globs| globs.chunks(MAX_WORDS)) {
            let set = u32::try_from(sets.len()).unwrap_or(u32::MAX);
            let (made, own) = walk_of(globs);
            sets.push(made);
            for ((number, _), end) in globs.iter().zip(own) {
                ends[*number] = Some((set, end));
            }
        }
        GlobSets {
            sets: sets.into(),
            ends: ends.into(),
            alternatives: self.alternatives,
        }
    }
}

impl GlobSets {
    /// Whether so many rules on so long a text are worth a walk together.
    #[inline]
    pub(super) fn is_worthwhile(&self, rules: usize, longest: usize) -> bool {
        longest >= MIN_TEXT_LENGTH
            && !self.sets.is_empty()
            && rules.max(self.alternatives) >= MIN_GLOBS
    }
}

/// A walk of several globs, and where each ends.
fn walk_of(globs: &[(usize, &[GlobPart])]) -> (GlobWalk, Vec<EndPlace>) {
    // Where each begins: in the word that it still fits.
    let mut free = 0;
    let patterns = globs.iter().map(|(_, parts)| {
        if free % 64 + parts.len() >= 64 {
            free = (free / 64 + 1) * 64;
        }
        let first = free;
        free += parts.len() + 1;
        (first, *parts)
    });
    let patterns: Vec<_> = patterns.collect();
    let ends = patterns.iter().map(|(first, parts)| {
        let place = first + parts.len();
        EndPlace {
            word: u32::try_from(place / 64).unwrap_or(u32::MAX),
            bit: 1 << (place % 64),
        }
    });
    (GlobWalk::new(&patterns), ends.collect())
}

impl<'s> GlobMatches<'s> {
    pub(super) const fn new(sets: &'s GlobSets) -> Self {
        Self {
            sets,
            walked: Vec::new(),
        }
    }

    /// Whether a glob matches the text of this fact.
    pub(super) fn matches(&mut self, glob: &Glob, slot: u32, text: &str) -> bool {
        let end = self.sets.ends.get(glob.number as usize).copied();
        let Some((set, end)) = end.flatten().filter(|_| text.len() >= MIN_TEXT_LENGTH) else {
            return glob.matches(text);
        };
        let Some(text) = glob.strip_ends(text) else {
            return false;
        };
        let same = |walked: &WalkResult| (walked.set, walked.slot) == (set, slot);
        let known = self.walked.iter().position(same);
        let known = known.unwrap_or_else(|| {
            let walk = &self.sets.sets[set as usize];
            let mut at = walk.starts.clone();
            walk.walk_text::<false>(text, &mut at);
            self.walked.push(WalkResult { set, slot, at });
            self.walked.len() - 1
        });
        self.walked[known].at[end.word as usize] & end.bit != 0
    }
}
