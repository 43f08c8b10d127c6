//! Parts of the chores that the tidy test shares: the pages of the book, and lists of words.

pub mod pages;
pub mod words;
