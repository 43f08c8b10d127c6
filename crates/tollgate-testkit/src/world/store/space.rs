//! The keys: values and expiries, and changes that the replica doesn't have yet.

use std::collections::BTreeMap;

use super::error::{ServerError, WRONG_TYPE};
use super::sorted::Sorted;
use crate::traffic::Random;

/// All keys in order.
#[derive(Debug, Default)]
pub(super) struct Keyspace {
    keys: BTreeMap<Box<[u8]>, Entry>,
    /// The former values of keys that have changed since the replica caught up.
    before: BTreeMap<Box<[u8]>, Option<Entry>>,
    /// In microseconds; it may be earlier than before.
    pub(super) now: u64,
    pub(super) past: ExpiredKeyAction,
}

/// What an access to an expired key does.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum ExpiredKeyAction {
    #[default]
    Deletes,
    /// The key is hidden and unchanged: deleting it is up to the master.
    Hides,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) value: Value,
    /// The last millisecond in which it exists.
    pub(super) expires: Option<i64>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Text(Vec<u8>),
    Sorted(Sorted),
}

impl Keyspace {
    pub(super) fn millis(&self) -> i64 {
        i64::try_from(self.now / 1000).unwrap_or(i64::MAX)
    }

    /// The present value of a key.
    pub(super) fn peek_entry(&mut self, key: &[u8]) -> Option<&Entry> {
        let now = self.millis();
        let is_expired = self.keys.get(key)?.is_expired(now);
        if is_expired {
            if let ExpiredKeyAction::Deletes = self.past {
                self.remove(key);
            }
            return None;
        }
        self.keys.get(key)
    }

    /// The present value of a key, to be changed.
    pub(super) fn change(&mut self, key: &[u8]) -> Option<&mut Entry> {
        self.peek_entry(key)?;
        self.remember(key);
        self.keys.get_mut(key)
    }

    /// The string of a key.
    pub(super) fn text(&mut self, key: &[u8]) -> Result<Option<&[u8]>, ServerError> {
        match self.peek_entry(key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(Value::Sorted(_)) => Err(ServerError::new(WRONG_TYPE)),
        }
    }

    /// The sorted set of a key.
    pub(super) fn sorted(&mut self, key: &[u8]) -> Result<Option<&Sorted>, ServerError> {
        match self.peek_entry(key).map(|entry| &entry.value) {
            None => Ok(None),
            Some(Value::Sorted(set)) => Ok(Some(set)),
            Some(Value::Text(_)) => Err(ServerError::new(WRONG_TYPE)),
        }
    }

    /// Changes a sorted set if there is one. An empty one is removed.
    pub(super) fn change_sorted<R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut Sorted) -> R,
    ) -> Result<Option<R>, ServerError> {
        let (result, is_empty) = match self.change(key).map(|entry| &mut entry.value) {
            None => return Ok(None),
            Some(Value::Text(_)) => return Err(ServerError::new(WRONG_TYPE)),
            Some(Value::Sorted(set)) => (change(set), set.is_empty()),
        };
        if is_empty {
            self.keys.remove(key);
        }
        Ok(Some(result))
    }

    pub(super) fn put(&mut self, key: &[u8], entry: Entry) {
        self.remember(key);
        match self.keys.get_mut(key) {
            Some(place) => *place = entry,
            None => {
                self.keys.insert(key.into(), entry);
            }
        }
    }

    pub(super) fn remove(&mut self, key: &[u8]) {
        self.remember(key);
        self.keys.remove(key);
    }

    /// All keys, including expired ones.
    pub(super) fn keys(&self) -> impl ExactSizeIterator<Item = (&[u8], &Entry)> {
        self.keys.iter().map(|(key, entry)| (&**key, entry))
    }

    /// The value of a key, even if it is expired.
    pub(super) fn entry(&self, key: &[u8]) -> Option<&Entry> {
        self.keys.get(key)
    }

    /// Deletes some of the expired keys.
    pub(super) fn expire_some(&mut self, random: &mut Random) {
        if let ExpiredKeyAction::Hides = self.past {
            return;
        }
        let now = self.millis();
        let past = self.keys.iter().filter(|(_, entry)| entry.is_expired(now));
        let chosen = past.filter(|_| random.below(2) == 0);
        let chosen: Vec<Box<[u8]>> = chosen.map(|(key, _)| key.clone()).collect();
        chosen.iter().for_each(|key| self.remove(key));
    }

    pub(super) fn clear(&mut self) {
        let keys: Vec<Box<[u8]>> = self.keys.keys().cloned().collect();
        keys.iter().for_each(|key| self.remove(key));
    }

    /// The replica catches up with the present state.
    pub(super) fn replicate(&mut self) {
        self.before.clear();
    }

    /// Reverts to the replica's state.
    pub(super) fn fail_over(&mut self) {
        for (key, entry) in std::mem::take(&mut self.before) {
            match entry {
                Some(entry) => self.keys.insert(key, entry),
                None => self.keys.remove(&key),
            };
        }
    }

    fn remember(&mut self, key: &[u8]) {
        if !self.before.contains_key(key) {
            self.before.insert(key.into(), self.keys.get(key).cloned());
        }
    }
}

impl Entry {
    fn is_expired(&self, now: i64) -> bool {
        self.expires.is_some_and(|expires| now > expires)
    }
}
