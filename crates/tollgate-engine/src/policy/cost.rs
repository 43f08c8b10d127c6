//! What a request costs a rule, when that is known, and what becomes of it if it is too much.

use std::time::Duration;

/// What a request costs a rule.
///
/// ```
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::policy::Cost;
///
/// let policy = Policy::from_text("limits: [{name: a, rate: 9/s, cost: {fact: tokens, default: 2}}]", Format::Yaml)?.policy;
/// assert_eq!(policy.rules[0].cost, Cost { fact: Some("tokens".to_owned()), default: 2, settle: None });
/// # Ok::<(), tollgate_engine::Rejected>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The fact that says so, as a whole number.
    pub fact: Option<String>,
    /// What it costs if that is unknown, or no number.
    pub default: u64,
    /// Whether this is an estimate: what the request did cost is told when it is over.
    pub settle: Option<Settle>,
}

impl Default for Cost {
    fn default() -> Self {
        Self {
            fact: None,
            default: 1,
            settle: None,
        }
    }
}

/// How a cost that is an estimate becomes what the request did cost.
///
/// ```
/// use std::time::Duration;
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::policy::{Settle, Unsettled};
///
/// let text = "limits: [{name: a, rate: 900/min, cost: {fact: max_tokens, settle_within: 1m}}]";
/// let policy = Policy::from_text(text, Format::Yaml)?.policy;
/// let minute = Settle { within: Duration::from_secs(60), unsettled: Unsettled::Charge };
/// assert_eq!(policy.rules[0].cost.settle, Some(minute));
/// # Ok::<(), tollgate_engine::Rejected>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settle {
    /// For so long the estimate is held. After that all of it counts as spent.
    pub within: Duration,
    /// What a request is charged that ends without saying what it cost.
    pub unsettled: Unsettled,
}

/// What a request is charged that ends without saying what it cost: its client has gone, or its task was dropped.
///
/// ```
/// use tollgate_engine::policy::Unsettled;
///
/// // Nobody gets a request for nothing by hanging up.
/// assert_eq!(Unsettled::default(), Unsettled::Charge);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Unsettled {
    /// The estimate.
    #[default]
    Charge,
    /// Nothing.
    Refund,
}

impl Unsettled {
    /// As files say it.
    ///
    /// ```
    /// use tollgate_engine::policy::Unsettled;
    ///
    /// assert_eq!(Unsettled::Refund.name(), "refund");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            Self::Charge => "charge",
            Self::Refund => "refund",
        }
    }
}

/// What becomes of a request that is over a rule's limit.
///
/// ```
/// use std::time::Duration;
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::policy::Over;
///
/// let policy = Policy::from_text("limits: [{name: a, rate: 9/s, over: wait 200ms}]", Format::Yaml)?.policy;
/// assert_eq!(policy.rules[0].over, Over::Wait(Duration::from_millis(200)));
/// # Ok::<(), tollgate_engine::Rejected>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Over {
    /// It is refused.
    #[default]
    Refuse,
    /// It waits for its turn, for no longer than this, where it is decided by a call that can wait.
    Wait(Duration),
}
