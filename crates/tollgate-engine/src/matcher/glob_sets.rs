//! Walks many globs with one head over a long text together: 64 positions of their patterns at a time, so that a
//! hundred globs take little longer than one.
//!
//! The positions are laid out as in a single glob's walk, one glob after the other. No glob crosses the end of a
//! word, so no carry between words is needed. The position after a glob's last part matches no character, so no
//! position moves from one glob to the next.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::glob::{Glob, GlobPart, GlobWalk};

/// Fewer rules or shorter texts are matched faster one by one. Tests have few rules and short texts, so their bounds
/// are lower.
const MIN_GLOBS: usize = if cfg!(test) { 2 } else { 8 };
const MIN_TEXT_LENGTH: usize = if cfg!(test) { 1 } else { 256 };
/// The most words for the positions of a set. The memory of a set grows with its words times the characters that its
/// patterns name.
const MAX_WORDS: usize = 64;

/// Collects the globs of a matcher.
#[derive(Debug, Default)]
pub(super) struct GlobSetBuilder {
    numbers: HashMap<String, u32, FixedState>,
    globs: Vec<Glob>,
    /// The most alternatives in one condition.
    alternatives: usize,
}

/// Sets of globs that share a head.
#[derive(Debug)]
pub(super) struct GlobSets {
    sets: Box<[GlobWalk]>,
    /// The set and the end position of each glob, by its number.
    ends: Box<[Option<(u32, EndPlace)>]>,
    alternatives: usize,
}

/// The last position of a glob. A walk that reaches it has matched.
#[derive(Clone, Copy, Debug)]
struct EndPlace {
    word: u32,
    bit: u64,
}

/// The results of walks over the texts of one request.
#[derive(Debug)]
pub(super) struct GlobMatches<'s> {
    sets: &'s GlobSets,
    walked: Vec<WalkResult>,
}

/// The result of walking one set over one fact.
#[derive(Debug)]
struct WalkResult {
    set: u32,
    slot: u32,
    /// The positions at the end of the text.
    at: Box<[u64]>,
}

impl GlobSetBuilder {
    /// Gives a glob its number. Globs with the same text have the same number.
    pub(super) fn add(&mut self, text: &str, glob: &mut Glob) {
        let next = u32::try_from(self.globs.len()).unwrap_or(u32::MAX);
        let number = *self.numbers.entry(text.to_owned()).or_insert(next);
        glob.number = number;
        if number == next {
            self.globs.push(glob.clone());
        }
    }

    /// Records the number of a condition's alternatives.
    pub(super) fn note_alternatives(&mut self, count: usize) {
        self.alternatives = self.alternatives.max(count);
    }

    /// The sets of globs that share a head with others.
    pub(super) fn into_sets(self) -> GlobSets {
        let mut heads: HashMap<&str, Vec<(usize, &[GlobPart])>, FixedState> = HashMap::default();
        for (number, glob) in self.globs.iter().enumerate() {
            // Globs with more positions than a word walk alone.
            if let Some(parts) = glob.parts().filter(|parts| parts.len() < 64) {
                heads.entry(glob.head()).or_default().push((number, parts));
            }
        }
        let mut ends = vec![None; self.globs.len()];
        let mut sets = Vec::new();
        let heads = heads.into_values().filter(|globs| globs.len() >= MIN_GLOBS);
        // A glob has at most 64 positions, one word, so a chunk of `MAX_WORDS` globs fits a set.
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
    /// Whether a common walk is faster than single ones for this many rules and this length of text.
    #[inline]
    pub(super) fn is_worthwhile(&self, rules: usize, longest: usize) -> bool {
        longest >= MIN_TEXT_LENGTH
            && !self.sets.is_empty()
            && rules.max(self.alternatives) >= MIN_GLOBS
    }
}

/// The walk of several globs, and the end position of each.
fn walk_of(globs: &[(usize, &[GlobPart])]) -> (GlobWalk, Vec<EndPlace>) {
    // A glob that doesn't fit the rest of a word begins at the next word.
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

    /// Whether a glob matches the text of this fact. The first glob of a set walks the whole set, and the others
    /// reuse the result.
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
            // `<false>`: no glob of a set crosses a word, so nothing carries over.
            let walk = &self.sets.sets[set as usize];
            let mut at = walk.starts.clone();
            walk.walk_text::<false>(text, &mut at);
            self.walked.push(WalkResult { set, slot, at });
            self.walked.len() - 1
        });
        self.walked[known].at[end.word as usize] & end.bit != 0
    }
}
