//! The form of envoyproxy/ratelimit: what is read, which limit a request comes to, what it is answered, and what
//! becomes of it as rules.

mod convert;
mod converted;
mod matching;
mod random_trees;
mod table;
mod verdict;
