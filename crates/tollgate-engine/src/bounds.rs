//! How much one request may bring: what is beyond is refused with a reason, before any limit is asked.

/// How much one request may bring.
///
/// A request beyond it is refused, as [`Cause::TooMuch`](crate::verdict::Cause::TooMuch) or
/// [`DescriptorFindings::too_much`](crate::engine::DescriptorFindings::too_much), unless the policy is in shadow. Each
/// limit that is asked takes time, and in a shared store everybody's time; a client must not choose how much.
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
    /// Descriptors of a request: 64 unless said otherwise.
    pub descriptors: usize,
    /// Rules that a request meets, and limits that are asked for it: 256 unless said otherwise.
    pub max_checks: usize,
    /// The length of a fact that the policy asks for, or of an entry of a descriptor: any unless said otherwise. Whoever hands in
    /// facts bounds what it reads; a value that is refused for its length would hide the request from all other limits, or
    /// from a list of what is blocked.
    pub fact_bytes: usize,
    /// Requests that wait for their turn at the same time, of all rules that let them: 10,000 unless said
    /// otherwise. Others are refused at once.
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

/// What a request has too much of.
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
    /// Descriptors.
    #[display("{found} descriptors, more than the {most} that are taken")]
    Descriptors {
        /// How many.
        found: usize,
        /// How many may be.
        most: usize,
    },
    /// Limits to be asked, or rules that it meets.
    #[display("{found} limits to be asked, more than the {most} that may be")]
    Checks {
        /// How many, or more.
        found: usize,
        /// How many may be.
        most: usize,
    },
    /// A fact that is too long.
    #[display("the fact {name:?} has {bytes} bytes, more than the {most} that are taken")]
    Fact {
        /// Which.
        name: &'a str,
        /// Its length.
        bytes: usize,
        /// How long it may be.
        most: usize,
    },
    /// An entry of a descriptor that is too long.
    #[display("an entry of a descriptor has {bytes} bytes, more than the {most} that are taken")]
    Entry {
        /// Its length.
        bytes: usize,
        /// How long it may be.
        most: usize,
    },
}

/// The same of a request of facts, by number.
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
