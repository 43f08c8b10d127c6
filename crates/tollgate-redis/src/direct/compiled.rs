//! A limit as the store reads it, and the names of its keys.

use std::fmt::Write as _;
use std::hash::BuildHasher;

use tollgate_engine::backend::{Check, Limit};
use tollgate_engine::policy::Counting;

use super::Direct;
use crate::error::StoreLimitError;
use crate::key::{self, Sharing};
use crate::lease::Leased;
use crate::question::{Form, Kind};

/// A limit as the store reads it.
#[derive(Debug)]
pub(crate) struct Compiled {
    pub(crate) form: Form,
    pub(crate) is_leased: bool,
    pub(super) leased: Option<Leased>,
    /// What its keys begin with, up to the hash tag.
    head: String,
    /// Its counter, escaped.
    counter: String,
    /// Which value of the key is the hash tag.
    slot: Option<Box<str>>,
    /// Of all that its keys are called by, and what they are judged by: another limit has another one, whoever
    /// asks by it.
    pub(super) version: u64,
}

/// What a key's values take, mostly.
const ROOM: usize = 48;

/// Which values of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Values {
    /// Those that say on which node of a cluster it is.
    OfTag,
    Others,
}

impl Compiled {
    pub(super) fn new(limit: &Limit, direct: &Direct) -> Result<Self, StoreLimitError> {
        let kind = limit.kind();
        let form = Form::new(kind, direct.life)?;
        // What is out of a level is kept track of as leases are, whoever has it.
        let is_level = matches!(&form, Form::Asked(numbers) if numbers.kind == Kind::Level);
        let keeps_track = limit.keeps_estimates() && is_level;
        let is_leased = limit.counting() == Counting::Leased || keeps_track;
        let sharing = if is_leased {
            Sharing::Leased
        } else {
            Sharing::Exact
        };
        let head = key::head(&direct.prefix, kind, sharing);
        let mut counter = String::new();
        key::escape(&limit.counter().name, &mut counter);
        let _ = write!(counter, ":{}", limit.counter().ordinal);
        let slot: Option<Box<str>> = limit.slot().map(Into::into);
        let what = (&head, &counter, &slot, format!("{form:?}"));
        let version = direct.hasher.hash_one(what);
        let leased = match &form {
            Form::Asked(numbers) if is_leased && numbers.kind == Kind::Level => Some(Leased {
                numbers: *numbers,
                version,
            }),
            _ => None,
        };
        if is_leased && leased.is_none() && form.known(0).is_none() {
            return Err(StoreLimitError::NotALevel {
                what: "a lease",
                limit: format!("{kind:?}"),
            });
        }
        Ok(Self {
            head,
            version,
            form,
            is_leased,
            leased,
            counter,
            slot,
        })
    }

    /// The name of a check's key: its first value is the hash tag, unless the limit says which.
    pub(crate) fn key(&self, check: &Check<'_>) -> String {
        let mut key = String::with_capacity(self.head.len() + self.counter.len() + ROOM);
        key.push_str(&self.head);
        key.push('{');
        if self.write_values(check, &mut key, Values::OfTag) == 0 {
            key.push_str(&self.counter);
        }
        key.push_str("}:");
        key.push_str(&self.counter);
        self.write_values(check, &mut key, Values::Others);
        key
    }

    /// Appends these of a key's values, and tells how many there were.
    fn write_values(&self, check: &Check<'_>, key: &mut String, which: Values) -> usize {
        let (mut number, mut written) = (0, 0);
        check.key.each(&mut |fact, value| {
            let is_tag = match &self.slot {
                Some(slot) => **slot == *fact,
                None => number == 0,
            };
            number += 1;
            if is_tag != (which == Values::OfTag) {
                return;
            }
            match (written, which) {
                (0, Values::OfTag) => {}
                (0, Values::Others) => key.push(':'),
                _ => key.push(','),
            }
            written += 1;
            key::escape(fact, key);
            key.push('=');
            key::escape(value, key);
        });
        written
    }
}
