//! Bounds on what one request may bring. A request beyond them is denied with a reason, before any limit is checked.

/// Bounds on what one request may bring.
///
/// A request beyond them is denied, as [`Cause::TooMuch`](crate::verdict::Cause::TooMuch) or
/// [`DescriptorFindings::too_much`](crate::engine::DescriptorFindings::too_much), unless the policy is in shadow
/// mode. Each check takes time, and in a shared store the time of all clients. A client must not be able to choose
/// how much.
///
/// ```
/// # use tollgate::clock::Manual;
/// # use tollgate_engine::backend::Memory;
/// # use tollgate_engine::document::Format;
/// # use tollgate_engine::{Engine, Policy};
/// # let memory = Memory::builder().clock(Manual::new()).wall(Manual::new()).build();
/// use tollgate_engine::{Bounds, Facts, verdict::Cause};
///
/// let policy = Policy::from_text("limits: [{name: a, match: {path: '/**'}, rate: 9/s}]", Format::Yaml)?.policy;
/// let bounds = Bounds { fact_bytes: 1_000, ..Bounds::default() };
/// let engine = Engine::new(policy, memory)?.with_bounds(bounds);
/// let path = format!("/{}", "x".repeat(1_000));
/// let facts = Facts::new().with("path", &path);
/// let verdict = engine.decide(&facts);
/// assert!(verdict.denied().is_some());
/// assert_eq!(verdict.cause().to_string(), "the fact \"path\" has 1001 bytes, more than the 1000 that are taken");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most descriptors of a request: 64 by default.
    pub descriptors: usize,
    /// The most rules that match a request, and the most limits that are checked for it: 256 by default.
    pub max_checks: usize,
    /// The most bytes of a fact that the policy reads, or of an entry of a descriptor: unbounded by default. The
    /// caller bounds the facts that it reads. A value that is rejected here for its length would hide the request
    /// from all other limits, and from block lists.
    pub fact_bytes: usize,
    /// The most requests that wait in queues at the same time, over all rules: 10,000 by default. Further ones are
    /// denied immediately.
    pub max_waiters: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            descriptors: 64,
            max_checks: 256,
            fact_bytes: usize::MAX,
            max_waiters: 10_000,
        }
    }
}

/// The bound that a request exceeds.
///
/// ```
/// use tollgate_engine::verdict::BoundExceeded;
///
/// let many = BoundExceeded::Descriptors { found: 10_000, most: 64 };
/// assert_eq!(many.to_string(), "10000 descriptors, more than the 64 that are taken");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
#[non_exhaustive]
pub enum BoundExceeded<'a> {
    /// Too many descriptors.
    #[display("{found} descriptors, more than the {most} that are taken")]
    Descriptors {
        /// The number of descriptors.
        found: usize,
        /// The bound.
        most: usize,
    },
    /// Too many limits to check, or too many rules that match.
    #[display("{found} limits to be asked, more than the {most} that may be")]
    Checks {
        /// The number, or a part of it.
        found: usize,
        /// The bound.
        most: usize,
    },
    /// A fact is too long.
    #[display("the fact {name:?} has {bytes} bytes, more than the {most} that are taken")]
    Fact {
        /// The name of the fact.
        name: &'a str,
        /// Its length.
        bytes: usize,
        /// The bound.
        most: usize,
    },
    /// An entry of a descriptor is too long.
    #[display("an entry of a descriptor has {bytes} bytes, more than the {most} that are taken")]
    Entry {
        /// Its length.
        bytes: usize,
        /// The bound.
        most: usize,
    },
}

/// The bound that a request of facts exceeds, with the fact's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExceededBound {
    Checks {
        found: usize,
        most: usize,
    },
    Fact {
        slot: u32,
        bytes: usize,
        most: usize,
    },
}
