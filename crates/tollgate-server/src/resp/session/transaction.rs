//! `MULTI … EXEC`: commands that are queued, and then run one by one.
//!
//! Clients send them for pipelines, too: redis-py's is a transaction unless it is told otherwise. Commands of other
//! connections may run in between, as each decides by itself; nothing is watched. A command that can't be queued makes
//! `EXEC` run nothing, so nothing is charged.

use super::{Session, commands};
use crate::decider::Store;

/// The most that one connection queues, in bytes: some 5,000 short commands.
const MOST: usize = 256 * 1024;

/// What is queued between `MULTI` and `EXEC`.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// Commands one after the other: how many words, and each word behind its length.
    bytes: Vec<u8>,
    count: usize,
    /// A command couldn't be queued.
    is_broken: bool,
}

impl Queue {
    /// How many commands.
    pub(super) const fn len(&self) -> usize {
        self.count
    }

    fn push<'w>(&mut self, words: impl ExactSizeIterator<Item = &'w [u8]> + Clone) -> bool {
        let size = words.clone().map(|word| word.len() + 4).sum::<usize>() + 4;
        if self.bytes.len() + size > MOST {
            return false;
        }
        let number = |number: usize, bytes: &mut Vec<u8>| {
            // All are below the most above.
            bytes.extend(u32::try_from(number).unwrap_or(0).to_le_bytes());
        };
        number(words.len(), &mut self.bytes);
        for word in words {
            number(word.len(), &mut self.bytes);
            self.bytes.extend_from_slice(word);
        }
        self.count += 1;
        true
    }
}

/// Takes one command off the front of what was queued.
fn next<'q>(rest: &mut &'q [u8]) -> Option<Vec<&'q [u8]>> {
    fn number(rest: &mut &[u8]) -> Option<usize> {
        let (digits, behind) = rest.split_first_chunk::<4>()?;
        *rest = behind;
        usize::try_from(u32::from_le_bytes(*digits)).ok()
    }
    let count = number(rest)?;
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let length = number(rest)?;
        let (word, behind) = rest.split_at_checked(length)?;
        words.push(word);
        *rest = behind;
    }
    Some(words)
}

impl<B: Store> Session<B> {
    /// Answers a command between `MULTI` and `EXEC`.
    pub(super) async fn in_transaction<'w>(
        &mut self,
        words: impl ExactSizeIterator<Item = &'w [u8]> + Clone + Send,
        out: &mut Vec<u8>,
    ) {
        let name = words.clone().next().unwrap_or_default();
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        if is("EXEC") && words.len() == 1 {
            return self.exec(out).await;
        }
        if is("QUIT") || is("RESET") {
            self.queue = None;
            return self.dispatch(words, out).await;
        }
        let mut replies = self.replies(out);
        if is("DISCARD") && words.len() == 1 {
            self.queue = None;
            return replies.simple("OK");
        }
        if is("MULTI") {
            return replies.error("ERR MULTI calls can not be nested");
        }
        if is("WATCH") {
            return replies.error("ERR WATCH inside MULTI is not allowed");
        }
        // Queued, guesses would all be answered at once.
        let queued = if is("AUTH") || is("HELLO") {
            Err(format!(
                "ERR {} is not allowed inside a transaction",
                String::from_utf8_lossy(name).to_ascii_uppercase()
            ))
        } else {
            self.may_ask(name)
        };
        let queued = queued.and_then(|()| commands::find(name, words.len()).map(drop));
        let Some(queue) = self.queue.as_deref_mut() else {
            return;
        };
        let queued = queued.and_then(|()| {
            let full = || {
                format!("ERR no more than {MOST} bytes of commands are queued: send fewer between MULTI and EXEC")
            };
            queue.push(words).then_some(()).ok_or_else(full)
        });
        match queued {
            Ok(()) => replies.simple("QUEUED"),
            Err(wrong) => {
                queue.is_broken = true;
                // It will never run.
                queue.bytes = Vec::new();
                replies.error(&wrong);
            }
        }
    }

    /// Runs what is queued, unless something couldn't be.
    async fn exec(&mut self, out: &mut Vec<u8>) {
        let queue = self.queue.take().unwrap_or_default();
        let mut replies = self.replies(out);
        if queue.is_broken {
            return replies.error("EXECABORT Transaction discarded because of previous errors.");
        }
        replies.array(queue.count);
        let mut rest = queue.bytes.as_slice();
        while let Some(words) = next(&mut rest) {
            self.dispatch(words.iter().copied(), out).await;
        }
    }
}
