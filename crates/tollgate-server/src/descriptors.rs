//! File descriptors: as many as the system grants, shared out before any runs out.
//!
//! A process without a free descriptor accepts nobody, reads no policy and answers no probe. So clients get all but a
//! reserve, and whoever comes beyond that is told so at once.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What listeners, files, the store and operators have to themselves; less where there are few.
const RESERVE: usize = 128;
/// Where the system knows no bound.
const MANY: u64 = 1 << 20;

/// How many descriptors there are, and for whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptors {
    pub(crate) limit: usize,
}

impl Descriptors {
    /// Raises the soft limit to the hard one. Where that isn't allowed, the soft one stays.
    pub(crate) fn raise() -> Self {
        let found = getrlimit(Resource::Nofile);
        let hard = found.maximum.unwrap_or(MANY);
        let mut limit = found.current.unwrap_or(hard);
        let wanted = Rlimit {
            current: Some(hard),
            maximum: found.maximum,
        };
        if limit < hard && setrlimit(Resource::Nofile, wanted).is_ok() {
            limit = hard;
        }
        Self {
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
        }
    }

    /// What no client gets.
    pub(crate) fn reserve(self) -> usize {
        RESERVE.min(self.limit / 4)
    }

    /// Connections of clients, over all listeners.
    pub(crate) fn for_clients(self) -> usize {
        self.limit - self.reserve()
    }

    /// Connections of each listener for operators and scrapes.
    pub(crate) fn for_operators(self) -> usize {
        self.reserve() / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_all_but_a_reserve() {
        for (limit, clients, operators) in [(256, 192, 16), (1_024, 896, 32), (65_536, 65_408, 32)]
        {
            let own = Descriptors { limit };
            assert_eq!(
                (own.for_clients(), own.for_operators()),
                (clients, operators)
            );
        }
    }
}
