//! A compiled condition on one fact, and the uncompiled check that explains a mismatch.

use std::fmt;
use std::sync::Arc;

use super::PatternError;
use super::glob::{Glob, MAX_PARTS};
use super::glob_sets::GlobSetBuilder;
use super::inline_text::InlineText;
use super::regex::{FullMatchRegex, RegexCache};
use crate::address::{Address, Network};
use crate::facts::Facts;
use crate::policy::{MatchConditions, Pattern};

/// A compiled pattern.
// Small, so that reading the conditions of a rule touches few cache lines.
#[derive(Clone, Debug)]
pub(super) enum CompiledPattern {
    Exact(InlineText),
    OneOf(Box<[CompiledPattern]>),
    Glob(Box<Glob>),
    Prefix(InlineText),
    Regex(Arc<FullMatchRegex>),
    Cidr(Box<Network>),
    Present,
    Absent,
    Not(Box<CompiledPattern>),
    /// A pattern that other rules have too. It is likely in the processor's cache after they were checked.
    Shared(Arc<CompiledPattern>),
}

impl CompiledPattern {
    pub(super) fn new(
        pattern: &Pattern,
        regexes: &mut RegexCache,
        globs: &mut GlobSetBuilder,
    ) -> Result<Self, PatternError> {
        let error = |text: &str, why: String| PatternError {
            pattern: text.to_owned(),
            why,
        };
        Ok(match pattern {
            Pattern::Exact(text) => Self::Exact(InlineText::new(text)),
            Pattern::OneOf(patterns) => {
                globs.note_alternatives(patterns.len());
                let tests = patterns.iter();
                let tests = tests.map(|pattern| Self::new(pattern, regexes, globs));
                Self::OneOf(tests.collect::<Result<_, PatternError>>()?)
            }
            Pattern::Glob(glob) => {
                let mut compiled = Glob::new(glob).ok_or_else(|| {
                    let why =
                        format!("a glob has at most {MAX_PARTS} characters after its first * or ?");
                    error(glob, why)
                })?;
                if compiled.is_prefix() {
                    Self::Prefix(InlineText::new(compiled.head()))
                } else {
                    globs.add(glob, &mut compiled);
                    Self::Glob(Box::new(compiled))
                }
            }
            Pattern::Prefix(prefix) => Self::Prefix(InlineText::new(prefix)),
            Pattern::Regex(regex) => {
                let whole = regexes.add(regex);
                Self::Regex(whole.map_err(|why| error(regex, why.to_string()))?)
            }
            Pattern::Cidr(network) => {
                Self::Cidr(Box::new(Network::parse(network).ok_or_else(|| {
                    let why =
                        "expected an address, or a network such as 10.0.0.0/8 or 2001:db8::/32";
                    error(network, why.to_owned())
                })?))
            }
            Pattern::Present => Self::Present,
            Pattern::Absent => Self::Absent,
            Pattern::Not(pattern) => Self::Not(Box::new(Self::new(pattern, regexes, globs)?)),
        })
    }

    /// Whether the pattern matches a fact. `address` is the fact's parsed address, needed only for a pattern that
    /// [wants one](Self::wants_address).
    #[inline]
    pub(super) fn holds(&self, text: Option<&str>, address: Option<Address>) -> bool {
        match (self, text) {
            // The most frequent pattern comes first.
            (Self::Prefix(prefix), Some(text)) => text.as_bytes().starts_with(prefix.as_bytes()),
            (Self::Exact(exact), Some(text)) => exact.as_bytes() == text.as_bytes(),
            _ => self.holds_by(text, address, &mut |glob, text| glob.matches(text)),
        }
    }

    /// Like [`holds`](Self::holds), with another function to match globs.
    pub(super) fn holds_by(
        &self,
        text: Option<&str>,
        address: Option<Address>,
        globs: &mut impl FnMut(&Glob, &str) -> bool,
    ) -> bool {
        match (self, text) {
            (Self::Shared(test), _) => test.holds_by(text, address, globs),
            (Self::Not(test), _) => !test.holds_by(text, address, globs),
            (Self::OneOf(tests), _) => {
                let mut tests = tests.iter();
                tests.any(|test| test.holds_by(text, address, globs))
            }
            (Self::Absent, _) => text.is_none(),
            (_, None) => false,
            (Self::Present, Some(_)) => true,
            (Self::Exact(exact), Some(text)) => exact.as_bytes() == text.as_bytes(),
            (Self::Prefix(prefix), Some(text)) => text.as_bytes().starts_with(prefix.as_bytes()),
            (Self::Glob(glob), Some(text)) => globs(glob, text),
            (Self::Regex(regex), Some(text)) => regex.is_match(text),
            (Self::Cidr(network), Some(_)) => address.is_some_and(|own| network.contains(own)),
        }
    }

    /// Whether the pattern needs the fact's parsed address.
    pub(super) fn wants_address(&self) -> bool {
        match self {
            Self::Cidr(_) => true,
            Self::OneOf(tests) => tests.iter().any(Self::wants_address),
            Self::Not(test) => test.wants_address(),
            Self::Shared(test) => test.wants_address(),
            _ => false,
        }
    }
}

/// The result of checking one rule's conditions.
///
/// ```
/// use tollgate_engine::Facts;
/// use tollgate_engine::matcher::explain;
/// use tollgate_engine::policy::{MatchConditions, Pattern};
///
/// let rule = MatchConditions {
///     conditions: vec![("path".to_owned(), Pattern::Prefix("/api/".to_owned()))],
///     ..MatchConditions::default()
/// };
/// let explained = explain(&rule, &Facts::new().with("path", "/healthz"));
/// assert!(!explained.matches());
/// assert_eq!(
///     explained.to_string(),
///     "path is \"/healthz\", and should begin with \"/api/\""
/// );
/// assert_eq!(
///     explain(&rule, &Facts::new()).to_string(),
///     "path is not known, and should begin with \"/api/\""
/// );
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Explained<'a> {
    /// The first condition that doesn't hold, with the fact's value.
    pub failed: Option<(&'a str, &'a Pattern, Option<&'a str>)>,
    /// The number of conditions.
    pub conditions: usize,
}

impl Explained<'_> {
    /// Whether all conditions hold.
    pub fn matches(&self) -> bool {
        self.failed.is_none()
    }
}

/// Finds the first condition of a rule that fails for these facts.
///
/// ```
/// use tollgate_engine::Facts;
/// use tollgate_engine::matcher::explain;
/// use tollgate_engine::policy::MatchConditions;
///
/// let everything = MatchConditions::default();
/// let explained = explain(&everything, &Facts::new());
/// assert_eq!(explained.to_string(), "it is for every request");
/// ```
pub fn explain<'a>(rule: &'a MatchConditions, facts: &Facts<'a>) -> Explained<'a> {
    let conditions = rule.conditions.iter();
    let mut asked = conditions.map(|(fact, pattern)| (fact.as_str(), pattern, facts.get(fact)));
    Explained {
        failed: asked.find(|(_, pattern, text)| {
            // The compiled form bounds the time for patterns that are built to be slow.
            let test = CompiledPattern::new(
                pattern,
                &mut RegexCache::default(),
                &mut GlobSetBuilder::default(),
            );
            !test.is_ok_and(|test| test.holds(*text, text.and_then(Address::parse)))
        }),
        conditions: rule.conditions.len(),
    }
}

impl fmt::Display for Explained<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((fact, pattern, text)) = self.failed else {
            return match self.conditions {
                0 => f.write_str("it is for every request"),
                1 => f.write_str("its condition holds"),
                count => write!(f, "all {count} conditions hold"),
            };
        };
        match text {
            Some(text) => write!(f, "{fact} is {text:?}, and should {}", PatternText(pattern)),
            None => write!(
                f,
                "{fact} is not known, and should {}",
                PatternText(pattern)
            ),
        }
    }
}

/// A pattern in words, after "should".
struct PatternText<'a>(&'a Pattern);

impl fmt::Display for PatternText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Pattern::Exact(text) => write!(f, "be {text:?}"),
            Pattern::Glob(glob) => write!(f, "match {glob:?}"),
            Pattern::Prefix(prefix) => write!(f, "begin with {prefix:?}"),
            Pattern::Regex(regex) => write!(f, "match the regular expression {regex:?}"),
            Pattern::Cidr(network) => write!(f, "be an address in {network}"),
            Pattern::Present => f.write_str("be known"),
            Pattern::Absent => f.write_str("not be known"),
            Pattern::Not(pattern) => write!(f, "not {}", PatternText(pattern)),
            Pattern::OneOf(patterns) => {
                for (number, pattern) in patterns.iter().enumerate() {
                    let or = if number > 0 { ", or " } else { "" };
                    write!(f, "{or}{}", PatternText(pattern))?;
                }
                Ok(())
            }
        }
    }
}
