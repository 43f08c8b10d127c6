//! Why a rule is for a request, or which condition says that it isn't.

use std::fmt;

use super::globs::Globs;
use super::pattern::Test;
use super::regex::Regexes;
use crate::address::Address;
use crate::facts::Facts;
use crate::policy::{Match, Pattern};

/// What came of one rule's conditions.
///
/// ```
/// use tollgate_engine::Facts;
/// use tollgate_engine::matcher::explain;
/// use tollgate_engine::policy::{Match, Pattern};
///
/// let rule = Match {
///     conditions: vec![("path".to_owned(), Pattern::Prefix("/api/".to_owned()))],
///     ..Match::default()
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
    /// The first condition that doesn't hold, and what is known of its fact.
    pub failed: Option<(&'a str, &'a Pattern, Option<&'a str>)>,
    /// How many conditions there are.
    pub conditions: usize,
}

impl Explained<'_> {
    /// Whether all conditions hold.
    pub fn matches(&self) -> bool {
        self.failed.is_none()
    }
}

/// Says which condition of a rule fails for these facts, if one does.
///
/// ```
/// use tollgate_engine::Facts;
/// use tollgate_engine::matcher::explain;
/// use tollgate_engine::policy::Match;
///
/// let everything = Match::default();
/// let explained = explain(&everything, &Facts::new());
/// assert_eq!(explained.to_string(), "it is for every request");
/// ```
pub fn explain<'a>(rule: &'a Match, facts: &Facts<'a>) -> Explained<'a> {
    let conditions = rule.conditions.iter();
    let mut asked = conditions.map(|(fact, pattern)| (fact.as_str(), pattern, facts.get(fact)));
    Explained {
        failed: asked.find(|(_, pattern, text)| {
            // Compiled, as that takes no longer for a pattern that is made to take long.
            let test = Test::new(pattern, (&mut Regexes::default(), &mut Globs::default()));
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
            Some(text) => write!(f, "{fact} is {text:?}, and should {}", Wanted(pattern)),
            None => write!(f, "{fact} is not known, and should {}", Wanted(pattern)),
        }
    }
}

/// What a pattern asks for, after "should".
struct Wanted<'a>(&'a Pattern);

impl fmt::Display for Wanted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Pattern::Exact(text) => write!(f, "be {text:?}"),
            Pattern::Glob(glob) => write!(f, "match {glob:?}"),
            Pattern::Prefix(prefix) => write!(f, "begin with {prefix:?}"),
            Pattern::Regex(regex) => write!(f, "match the regular expression {regex:?}"),
            Pattern::Cidr(network) => write!(f, "be an address in {network}"),
            Pattern::Present => f.write_str("be known"),
            Pattern::Absent => f.write_str("not be known"),
            Pattern::Not(pattern) => write!(f, "not {}", Wanted(pattern)),
            Pattern::OneOf(patterns) => {
                for (number, pattern) in patterns.iter().enumerate() {
                    let or = if number > 0 { ", or " } else { "" };
                    write!(f, "{or}{}", Wanted(pattern))?;
                }
                Ok(())
            }
        }
    }
}
