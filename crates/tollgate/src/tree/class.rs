//! The settings of a class: its guarantee and how far it may borrow, and why they can be invalid.

use std::fmt;

use tollgate_core::{Arithmetic, LimitError, Rate, TokenBucket};

use super::node::{MAX_DEPTH, PRIORITIES};

/// The guarantee of a class, and how far it may borrow beyond it.
///
/// * **rate**: guaranteed, with its burst.
/// * **ceil**: what it may reach by borrowing what others leave idle. Without a ceil it can't borrow.
/// * **priority**, 0 to 7: spare capacity is offered to lower numbers first. It never affects what is
///   guaranteed. A class without one inherits its parent's; the root's is 0.
/// * **weight**: its share of the spare capacity among classes of equal priority. By default the number
///   of tokens a second of its rate.
///
/// ```
/// use tollgate::{Rate, tree::Class};
///
/// let search = Class::new(Rate::per_second(5_000)).ceiling(Rate::per_second(8_000)).priority(1);
/// assert_eq!(search.rate(), Rate::per_second(5_000));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a class does nothing until it is added to a tree"]
pub struct Class {
    rate: Rate,
    ceil: Option<Rate>,
    priority: Option<u8>,
    weight: Option<u32>,
}

impl Class {
    /// A class that is guaranteed this rate and gets no more.
    pub const fn new(rate: Rate) -> Self {
        Self {
            rate,
            ceil: None,
            priority: None,
            weight: None,
        }
    }

    /// Allows borrowing up to this rate, which must be at least its own, with at least its own burst.
    pub const fn ceiling(mut self, ceil: Rate) -> Self {
        self.ceil = Some(ceil);
        self
    }

    /// Sets the order in which spare capacity is offered: 0 first, 7 last.
    pub const fn priority(mut self, priority: u8) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Sets its share of the spare capacity among classes of the same priority; 0 counts as 1. Set it
    /// for all siblings or for none: the default is the number of tokens a second of the rate.
    pub const fn weight(mut self, weight: u32) -> Self {
        self.weight = Some(weight);
        self
    }

    /// The guaranteed rate.
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Compiles the class for decisions, or returns what is wrong with it.
    pub(super) fn compile(&self, name: &str, strict: bool) -> Result<CompiledClass, TreeError> {
        let limit = |rate| {
            TokenBucket::new(rate).map_err(|error| TreeError::Rate {
                name: name.into(),
                error,
            })
        };
        if self.ceil.is_some() && strict {
            return Err(TreeError::CeilingInStrictTree { name: name.into() });
        }
        if let Some(ceil) = self.ceil
            && (self.rate.is_faster_than(ceil) || ceil.burst_size() < self.rate.burst_size())
        {
            return Err(TreeError::CeilingBelowRate {
                name: name.into(),
                rate: self.rate,
                ceil,
            });
        }
        if let Some(priority) = self.priority
            && usize::from(priority) >= PRIORITIES
        {
            return Err(TreeError::PriorityTooLarge {
                name: name.into(),
                priority,
            });
        }
        Ok(CompiledClass {
            class: *self,
            rate: limit(self.rate)?,
            ceil: self.ceil.map(limit).transpose()?,
            level: self.priority,
            stride: self.stride(),
        })
    }

    /// How far a token moves the virtual time of a borrower: the inverse of its weight.
    fn stride(&self) -> u64 {
        let (tokens, period) = match (self.weight, self.rate.period()) {
            (None, Some(period)) => (self.rate.count(), period.as_nanos()),
            (None, None) if self.rate.is_unlimited() => (u64::MAX, 1),
            (weight, _) => (u64::from(weight.unwrap_or(1).max(1)), 1_000_000_000),
        };
        let stride = period.saturating_mul(STRIDE_SCALE) / u128::from(tokens.max(1));
        u64::try_from(stride)
            .unwrap_or(u64::MAX)
            .clamp(1, MAX_STRIDE)
    }
}

/// Steps of virtual time per nanosecond.
const STRIDE_SCALE: u128 = 1 << 16;
/// Slower classes share as if they were this slow, about one token in 200 days.
const MAX_STRIDE: u64 = 1 << 60;

/// A class that is compiled for decisions.
#[derive(Clone, Copy, Debug)]
pub(super) struct CompiledClass {
    pub(super) class: Class,
    pub(super) rate: TokenBucket,
    pub(super) ceil: Option<TokenBucket>,
    pub(super) level: Option<u8>,
    pub(super) stride: u64,
}

/// Why a tree couldn't be changed. After an error nothing is changed.
///
/// ```
/// use tollgate::{Rate, ClassTree, tree::Class};
///
/// let tree = ClassTree::new(Rate::per_second(100));
/// let class = Class::new(Rate::per_second(60)).ceiling(Rate::per_second(50));
/// let error = tree.add_leaf("search", tree.root(), class).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "class \"search\": its ceil \"50/s\" is below its rate \"60/s\"; give a ceil that is at least \
///      as fast and takes the same burst, or none"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TreeError {
    /// The rate or the ceil can't be represented.
    Rate {
        /// The class.
        name: String,
        /// What is wrong with the rate.
        error: LimitError,
    },
    /// The ceil is slower than the rate, or has a smaller burst.
    CeilingBelowRate {
        /// The class.
        name: String,
        /// The guaranteed rate.
        rate: Rate,
        /// The ceil.
        ceil: Rate,
    },
    /// The tree was built without borrowing.
    CeilingInStrictTree {
        /// The class.
        name: String,
    },
    /// The root has no parent to borrow from.
    CeilingOfRoot,
    /// A priority must be 0 to 7.
    PriorityTooLarge {
        /// The class.
        name: String,
        /// The given priority.
        priority: u8,
    },
    /// The tree would have too many levels.
    TooDeep {
        /// The class.
        name: String,
    },
    /// The class still has children.
    HasChildren {
        /// The class.
        name: String,
    },
    /// The root can't be removed.
    IsRoot,
    /// The class was removed before.
    NodeRemoved,
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate { name, error } => write!(f, "class \"{name}\": {error}"),
            Self::CeilingBelowRate { name, rate, ceil } => write!(
                f,
                "class \"{name}\": its ceil \"{ceil}\" is below its rate \"{rate}\"; give a ceil that \
                 is at least as fast and takes the same burst, or none"
            ),
            Self::CeilingInStrictTree { name } => write!(
                f,
                "class \"{name}\": a strict tree lends nothing; leave the ceil out, or build the tree \
                 without strict()"
            ),
            Self::CeilingOfRoot => f.write_str(
                "the root has nobody to borrow from; leave the ceil out and give it the whole rate",
            ),
            Self::PriorityTooLarge { name, priority } => write!(
                f,
                "class \"{name}\": priority {priority} is above {}; 0 is served first",
                PRIORITIES - 1
            ),
            Self::TooDeep { name } => write!(
                f,
                "class \"{name}\": a tree has at most {MAX_DEPTH} levels, from the root to a leaf"
            ),
            Self::HasChildren { name } => write!(
                f,
                "class \"{name}\" still has classes below it; remove those first"
            ),
            Self::IsRoot => f.write_str("the root can't be removed; drop the tree instead"),
            Self::NodeRemoved => f.write_str("the class is no longer in this tree"),
        }
    }
}

impl std::error::Error for TreeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Rate { error, .. } => Some(error),
            _ => None,
        }
    }
}
