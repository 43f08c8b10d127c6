//! The errors of a policy as they are found, no more of them than people read.

use crate::diagnostic::{Diagnostic, Severity};
use crate::document::Span;
use crate::native::codes;

/// Most errors that are kept.
const MOST: usize = 1_000;

/// What was found so far.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    found: Vec<Diagnostic>,
    more: usize,
    unread: Reading,
}

/// Whether all that belongs to a policy was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Reading {
    #[default]
    Whole,
    Partial,
}

impl Problems {
    pub(crate) fn push(&mut self, problem: Diagnostic) {
        debug_assert_eq!(problem.severity, Severity::Error);
        if self.found.len() < MOST {
            self.found.push(problem);
        } else {
            self.more += 1;
        }
    }

    /// Whether further errors are only counted, so that their texts need not be made.
    pub(crate) fn is_full(&self) -> bool {
        self.found.len() >= MOST
    }

    /// Notes that a file is missing or no tree: what refers to its names is not judged.
    pub(crate) fn some_unread(&mut self) {
        self.unread = Reading::Partial;
    }

    pub(crate) fn all_was_read(&self) -> bool {
        self.unread == Reading::Whole
    }

    pub(crate) fn len(&self) -> usize {
        self.found.len() + self.more
    }

    /// All of them in the order of the files; the last says how many more there are.
    pub(crate) fn into_sorted(mut self) -> Vec<Diagnostic> {
        self.found.sort_by_key(|problem| problem.span);
        self.found.dedup();
        if self.more > 0 {
            let at = self.found.last().map_or_else(Span::default, |last| Span {
                file: last.span.file,
                ..Span::default()
            });
            let message = format!("{} more errors are not shown", self.more);
            self.found.push(
                Diagnostic::error(codes::TOO_MANY_ERRORS, message, at)
                    .help("correct these first, then check again"),
            );
        }
        self.found
    }
}
