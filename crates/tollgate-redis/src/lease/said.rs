//! What a node and the store say to each other about a lease.

use std::time::Duration;

use crate::error::StoreError;
use crate::question::{Numbers, micros, put, wait};

/// What a node says to the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lessee {
    pub(super) holder: u64,
    /// How often it has asked; 0 if that isn't counted.
    pub(super) number: u64,
    pub(super) holds: u64,
    pub(super) returns: u64,
    pub(super) more: u64,
    /// The most that it may hold.
    pub(super) most: u64,
    pub(super) life: Duration,
    /// If it can't hold as much, it gets nothing.
    pub(super) least: u64,
    /// So many units are owed at least, beside what is out; 0 if that isn't known.
    pub(super) spent: u64,
    /// So many tokens of what is owed are forgiven, beside what is out.
    pub(super) forgiven: u64,
}

/// All that is owed.
pub(super) const EVERYTHING: u64 = 1 << 53;

/// Who holds nothing, and so changes nothing for those who do: no holder is called so.
const NOBODY: u64 = 0;

impl Lessee {
    /// One who holds nothing and takes nothing.
    pub(super) fn of_nobody(life: Duration) -> Self {
        Self {
            holder: NOBODY,
            number: 0,
            holds: 0,
            returns: 0,
            more: 0,
            most: 0,
            life,
            least: 0,
            spent: 0,
            forgiven: 0,
        }
    }

    pub(super) fn record(&self, numbers: &Numbers) -> Vec<u8> {
        let [price, drain, capacity, ..] = numbers.five;
        let Self {
            holder,
            number,
            holds,
            returns,
            more,
            most,
            life,
            least,
            spent,
            forgiven,
        } = *self;
        let life = micros(life);
        let mut record = Vec::with_capacity(13 * 8);
        put(
            &mut record,
            &[
                price, drain, capacity, holder, number, holds, returns, more, most, life, least,
                spent, forgiven,
            ],
        );
        record
    }
}

/// What the store says to a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lent {
    pub(super) granted: u64,
    /// Of what it holds.
    pub(super) kept: u64,
    /// What is left for others.
    pub(super) remaining: u64,
    pub(super) retry_after: Duration,
}

impl Lent {
    pub(super) fn read(reply: &[i64]) -> Result<Self, StoreError> {
        let [_, _, granted, kept, remaining, retry_after, _] = *reply else {
            let came = reply.len();
            return Err(StoreError::Garbled {
                what: format!("7 numbers of a lease expected, {came} came"),
            });
        };
        let number = |number: i64| u64::try_from(number).unwrap_or(0);
        Ok(Self {
            granted: number(granted),
            kept: number(kept),
            remaining: number(remaining),
            retry_after: wait(retry_after),
        })
    }
}
