//! Five limits of a request, and the clients that send requests.

use std::time::Duration;

use tollgate::{KeyedLimiter, Limit, Limiter, Rate};

use crate::peers::{self, Load};

/// Users, and as many addresses.
pub(crate) const USERS: usize = 1_000;
const TENANTS: usize = 100;

/// The names of keys.
pub(crate) struct Names {
    users: Vec<String>,
    addresses: Vec<String>,
    tenants: Vec<String>,
}

impl Names {
    pub(crate) fn new() -> Self {
        let named = |count, name: fn(usize) -> String| (0..count).map(name).collect();
        Self {
            users: named(USERS, |user| format!("user:{user:011}")),
            addresses: named(USERS, |address| format!("10.20.{:03}.{address:05}", 7)),
            tenants: named(TENANTS, |tenant| format!("tenant:{tenant:09}")),
        }
    }

    #[inline(always)]
    pub(crate) fn user(&self, step: u64) -> &str {
        name_of(&self.users, step)
    }
}

/// The name for this step, in an order without locality.
#[inline(always)]
pub(crate) fn name_of(names: &[String], step: u64) -> &str {
    let mixed = step.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    let index = (mixed * names.len() as u64) >> 32;
    &names[usize::try_from(index).unwrap_or(0)]
}

/// Three keyed limits, and two that all clients share.
pub(crate) struct Limits {
    pub(crate) users: KeyedLimiter,
    addresses: KeyedLimiter,
    tenants: KeyedLimiter,
    route: Limiter,
    service: Limiter,
    pub(crate) names: Names,
}

impl Limits {
    /// Limits that allow everything.
    pub(crate) fn unlimited() -> Self {
        let wide = || Rate::new(1, Duration::from_secs(60)).burst(1_000_000);
        Self::new(wide(), wide())
    }

    /// Like [`unlimited`](Self::unlimited), but the users' limits are used up.
    pub(crate) fn users_drained() -> Self {
        let wide = Rate::new(1, Duration::from_secs(60)).burst(1_000_000);
        let limits = Self::new(Rate::per_hour(1).burst(1), wide);
        for user in &limits.names.users {
            assert!(limits.users.allow(user.as_str()), "a new key passes");
        }
        limits
    }

    fn new(users: Rate, others: Rate) -> Self {
        Self {
            users: KeyedLimiter::new(users, USERS),
            addresses: KeyedLimiter::new(others, USERS),
            tenants: KeyedLimiter::new(others, TENANTS),
            route: peers::tollgate_gate(Load::ADMIT),
            service: peers::tollgate_gate(Load::ADMIT),
            names: Names::new(),
        }
    }

    /// The limits of a request, narrowest first.
    #[inline(always)]
    pub(crate) fn five(&self, step: u64) -> [Limit<'_>; 5] {
        let names = &self.names;
        [
            Limit::new("user", &self.users.key(name_of(&names.users, step))),
            Limit::new(
                "address",
                &self.addresses.key(name_of(&names.addresses, step)),
            ),
            Limit::new("tenant", &self.tenants.key(name_of(&names.tenants, step))),
            Limit::new("route", &self.route),
            Limit::new("service", &self.service),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_user_gets_a_turn() {
        let names = Names::new();
        let mut seen = vec![false; USERS];
        for step in 0..20 * USERS as u64 {
            let number = names.user(step).trim_start_matches("user:");
            seen[number.parse::<usize>().unwrap()] = true;
        }
        assert!(seen.into_iter().all(|seen| seen));
    }
}
