//! The key of a request as a number that tells it from others, for tables that keep keys themselves.

use std::hash::{BuildHasher, Hash};

use foldhash::quality::RandomState;

use super::Mistake;
use super::keys::KeyOf;
use super::missing::{Instead, Keyless, MissingKey, SHARED_KEY};
use super::request::Request;

/// What is kept in place of a key: two hashes of it with seeds that nobody knows. So no token can be read from memory, and
/// no two keys that a client chooses meet.
pub type Fingerprint = [u64; 2];

/// Where keys are found, and what is kept of them.
#[derive(Debug)]
pub(super) struct Finder<K> {
    pub(super) key: K,
    pub(super) keyless: Keyless,
    seeds: [RandomState; 2],
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Key(Fingerprint),
    /// It has none, and passes.
    Pass,
    /// It has none, and its client is to blame.
    Deny(MissingKey),
    /// It has none, and the server is to blame.
    Fail(Mistake),
}

impl<K> Finder<K> {
    pub(super) fn new(key: K) -> Self {
        Self {
            key,
            keyless: Keyless::default(),
            seeds: [RandomState::default(), RandomState::default()],
        }
    }

    pub(super) fn find<R: Request + ?Sized>(&self, request: &R) -> Found
    where
        K: KeyOf<R>,
    {
        if let Some(key) = self.key.key(request) {
            self.keyless.some_have_one();
            return Found::Key(self.print(&key));
        }
        match self.keyless.instead(&self.key, request) {
            Instead::Pass => Found::Pass,
            Instead::OneCounter => Found::Key(self.print(&SHARED_KEY)),
            Instead::Deny(missing) => Found::Deny(missing),
            Instead::Fail(why) => Found::Fail(why),
        }
    }

    fn print(&self, key: &impl Hash) -> Fingerprint {
        let [one, other] = &self.seeds;
        [one.hash_one(key), other.hash_one(key)]
    }
}
