//! The scripts that run in the store: exact arithmetic, composed from parts so that a call carries only what it
//! needs.

#[cfg(test)]
mod tests;

use std::sync::OnceLock;

use sha1_smol::Sha1;

use crate::query::{StoreKind, StoreOp, StoreQuery};

/// A script and its SHA-1, by which the store knows it.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) sha: String,
}

impl Script {
    fn new(parts: &[&str]) -> Self {
        let text = parts.join("\n");
        let sha = Sha1::from(&text).digest().to_string();
        Self { text, sha }
    }
}

/// The parts that a call needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScriptParts {
    /// One bit for each kind of limit.
    kinds: u16,
    /// Whether there is any operation but `Decide`.
    acts: bool,
}

const OPEN: &str = include_str!("scripts/open.lua");
const WRITE: &str = include_str!("scripts/write.lua");
const UNITS: &str = include_str!("scripts/units.lua");
const LEVEL: &str = include_str!("scripts/level.lua");
const LEVEL_BACK: &str = include_str!("scripts/level_back.lua");
const PLAIN: &str = include_str!("scripts/plain.lua");
const WINDOW: &str = include_str!("scripts/window.lua");
const COUNTER: &str = include_str!("scripts/counter.lua");
const LOG: &str = include_str!("scripts/log.lua");
const QUOTA: &str = include_str!("scripts/quota.lua");
const ARRIVAL: &str = include_str!("scripts/arrival.lua");
const SLOTS: &str = include_str!("scripts/slots.lua");
const TELL: &str = include_str!("scripts/tell.lua");
const GENERATION: &str = include_str!("scripts/generation.lua");
const ACT: &str = include_str!("scripts/act.lua");
const DECIDE: &str = include_str!("scripts/decide.lua");
const CLOSE: &str = include_str!("scripts/close.lua");
const LEASE: &str = include_str!("scripts/lease.lua");

const LEVELS: u16 = 1 << StoreKind::Level as u8;

impl ScriptParts {
    /// Decisions about levels alone.
    pub(crate) const PLAIN: Self = Self {
        kinds: LEVELS,
        acts: false,
    };
    /// Every operation on every kind of limit.
    #[cfg(feature = "simulation")]
    pub(crate) const EVERYTHING: Self = Self {
        kinds: (2 << StoreKind::Arrival as u8) - LEVELS,
        acts: true,
    };

    /// Adds the parts that this query needs.
    pub(crate) fn add(&mut self, question: &StoreQuery) {
        self.kinds |= 1 << question.params.kind as u8;
        self.acts |= question.op != StoreOp::Decide;
    }

    /// Whether records can use the short form.
    pub(crate) fn is_plain(self) -> bool {
        self == Self::PLAIN
    }

    /// The composed script. There are as many as policies combine kinds.
    pub(crate) fn script(self) -> &'static Script {
        static SCRIPTS: [OnceLock<Script>; 1024] = [const { OnceLock::new() }; 1024];
        let place = usize::from(self.kinds) << 1 | usize::from(self.acts);
        SCRIPTS[place].get_or_init(|| self.compose())
    }

    fn compose(self) -> Script {
        if self.is_plain() {
            return Script::new(&[OPEN, UNITS, LEVEL, PLAIN]);
        }
        let has = |kind: StoreKind| self.kinds & 1 << kind as u8 != 0;
        let mut parts = vec![OPEN, WRITE];
        let mut kinds = String::from("local kinds = {}\n");
        let all = [
            (StoreKind::Level, "level", &[UNITS, LEVEL, LEVEL_BACK][..]),
            (StoreKind::Window, "window", &[WINDOW]),
            (StoreKind::Counter, "counter", &[COUNTER]),
            (StoreKind::Log, "log", &[LOG]),
            (StoreKind::Calendar, "calendar", &[QUOTA]),
            (StoreKind::Rolling, "rolling", &[QUOTA]),
            (StoreKind::Concurrency, "slots", &[SLOTS]),
            (StoreKind::Arrival, "arrival", &[ARRIVAL]),
        ];
        for (kind, name, part) in all.into_iter().filter(|(kind, ..)| has(*kind)) {
            // Quotas of both kinds share one part.
            if !parts.ends_with(part) {
                parts.extend(part);
            }
            kinds += &format!("kinds[{}] = {name}\n", kind as u8);
        }
        if !has(StoreKind::Concurrency) {
            kinds += "local slots, next_holder\n";
        }
        parts.push(&kinds);
        parts.push(TELL);
        if self.acts {
            parts.extend([GENERATION, ACT]);
        } else {
            parts.push("local act, next_reset, generation_of");
        }
        parts.extend([DECIDE, CLOSE]);
        Script::new(&parts)
    }
}

/// The script that takes, renews and returns leases.
pub(crate) fn lease_script() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| Script::new(&[OPEN, UNITS, LEASE]))
}
