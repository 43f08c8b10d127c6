//! The format of envoyproxy/ratelimit: decoding, matching, answers, and the conversion to rules.

mod convert;
mod converted;
mod matching;
mod random_trees;
mod table;
mod verdict;
