//! What a rule does about overload: a limit that finds itself, and who is shed first.

use std::fmt;

use tollgate_adaptive::NamedLaw;
use tollgate_adaptive::shed::Shares;

/// How many at once is found out by a law, from how long requests take and how they end: one law a rule, in each process by
/// itself, whatever the key and whether there is a store.
///
/// ```
/// use tollgate_adaptive::NamedLaw;
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
/// use tollgate_engine::policy::Adaptive;
///
/// let text = "limits: [{name: api, concurrency: {adaptive: gradient2, min: 5, max: 200}}]";
/// let policy = Policy::from_text(text, Format::Yaml)?.policy;
/// let adaptive = Adaptive { law: NamedLaw::Gradient2, min: 5, max: 200 };
/// assert_eq!(policy.rules[0].adaptive, Some(adaptive));
/// assert_eq!(adaptive.to_string(), "5 to 200 at once by gradient2");
/// # Ok::<(), tollgate_engine::Rejected>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Adaptive {
    /// The law.
    pub law: NamedLaw,
    /// The limit never falls below this: 1 unless said otherwise.
    pub min: u32,
    /// The limit never rises above this.
    pub max: u32,
}

/// As people read it.
impl fmt::Display for Adaptive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { law, min, max } = self;
        write!(f, "{min} to {max} at once by {law}")
    }
}

/// Who is shed first when too many run at once: requests whose class may use a smaller part of the limit.
///
/// ```
/// use tollgate_adaptive::shed::{Criticality, Shares};
/// use tollgate_engine::Policy;
/// use tollgate_engine::document::Format;
///
/// let text = "limits: [{name: api, concurrency: 10, shed: {by: priority, sheddable: 50%}}]";
/// let policy = Policy::from_text(text, Format::Yaml)?.policy;
/// let shed = policy.rules[0].shed.as_ref().expect("by priority");
/// assert_eq!((shed.by.as_str(), shed.shares), ("priority", Shares::new(50, 90)));
/// assert_eq!(shed.shares.of(Criticality::Sheddable, 10), 5);
/// # Ok::<(), tollgate_engine::Rejected>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shed {
    /// The fact that says how critical a request is: `critical`, `default` or `sheddable`. A request that lacks it, or has
    /// another value, is a default one.
    pub by: String,
    /// Which part of the limit each class may use.
    pub shares: Shares,
}
