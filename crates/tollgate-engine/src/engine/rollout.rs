//! The keys for which a rule is enforced during a rollout: the same in every process and after every start, and a
//! larger percentage keeps those of a smaller one.

use crate::limits::RequestKey;
use crate::policy::{Mode, Rule};

/// The part of a rule's keys for which it is enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rollout {
    pub(crate) percent: u8,
    /// A hash of the rule's name, so that different rules are tried on different users.
    salt: u64,
}

impl Rollout {
    /// `None` if the rule is enforced for all keys, or for none.
    pub(crate) fn from_rule(rule: &Rule, mode: Mode) -> Option<Self> {
        let is_part = mode == Mode::Enforce && rule.enforced_percent < 100;
        is_part.then(|| Self {
            percent: rule.enforced_percent,
            salt: hash_bytes(START, rule.name.as_bytes()),
        })
    }

    /// The rule's mode for one key.
    pub(crate) fn mode_for_key(self, key: &RequestKey<'_>) -> Mode {
        if self.percentile(key) < self.percent {
            Mode::Enforce
        } else {
            Mode::Shadow
        }
    }

    /// The position of a key, from 0 to 99.
    fn percentile(self, key: &RequestKey<'_>) -> u8 {
        let mut hash = self.salt;
        key.write_bytes(&mut |bytes| hash = hash_bytes(hash, bytes));
        let place = (u128::from(mix_bits(hash)) * 100) >> 64;
        u8::try_from(place).unwrap_or(u8::MAX)
    }
}

/// FNV-1a, which gives the same hash everywhere and forever. A collision gains an attacker nothing here.
const START: u64 = 0xcbf2_9ce4_8422_2325;
const FACTOR: u64 = 0x0100_0000_01b3;

fn hash_bytes(hash: u64, bytes: &[u8]) -> u64 {
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(FACTOR);
    bytes.iter().fold(hash, fold)
}

/// Spreads all bits over the upper ones, which determine the position.
fn mix_bits(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}
