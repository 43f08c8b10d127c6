//! `MULTI … EXEC`: commands that are queued, and then run one by one.
//!
//! Clients send them for pipelines, too: redis-py's is a transaction unless it is told otherwise. Commands of other
//! connections may run in between, as each decides by itself; nothing is watched. A command that can't be queued makes
//! `EXEC` run nothing, so nothing is charged.

use super::{RespSession, commands};
use crate::decision_service::CounterStore;
use crate::resp::frame::{CommandBounds, CommandParser, Words};
use crate::resp::response::{ReplyWriter, Version};

/// The most that one connection queues, in bytes: some 5,000 short commands.
const MAX_QUEUED_BYTES: usize = 256 * 1024;

/// What is queued between `MULTI` and `EXEC`.
#[derive(Debug, Default)]
pub(super) struct CommandQueue {
    /// Commands one after the other, as clients send them.
    bytes: Vec<u8>,
    /// How much of [`MOST`] they take.
    size: usize,
    count: usize,
    /// A command couldn't be queued.
    is_broken: bool,
}

impl CommandQueue {
    /// How many commands.
    pub(super) const fn len(&self) -> usize {
        self.count
    }

    fn push(&mut self, words: Words<'_>) -> bool {
        let size = words.clone().map(|word| word.len() + 4).sum::<usize>() + 4;
        if self.size + size > MAX_QUEUED_BYTES {
            return false;
        }
        self.size += size;
        self.count += 1;
        let mut out = ReplyWriter {
            bytes: &mut self.bytes,
            version: Version::Two,
        };
        out.array(words.len());
        words.for_each(|word| out.bulk(word));
        true
    }
}

impl<B: CounterStore> RespSession<B> {
    /// Answers a command between `MULTI` and `EXEC`.
    pub(super) async fn queue_command(&mut self, words: Words<'_>, out: &mut Vec<u8>) {
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
            self.authorize(name)
        };
        let queued = queued.and_then(|()| commands::find(name, words.len()).map(drop));
        let Some(queue) = self.queue.as_deref_mut() else {
            return;
        };
        let queued = queued.and_then(|()| {
            let full = || {
                format!("ERR no more than {MAX_QUEUED_BYTES} bytes of commands are queued: send fewer between MULTI and EXEC")
            };
            queue.push(words).then_some(()).ok_or_else(full)
        });
        match queued {
            Ok(()) => replies.simple("QUEUED"),
            Err(wrong) => {
                queue.is_broken = true;
                // It will never run.
                (queue.bytes, queue.size) = (Vec::new(), 0);
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
        let (mut frame, mut rest) = (CommandParser::default(), queue.bytes.as_slice());
        let most = CommandBounds {
            bytes: usize::MAX,
            words: usize::MAX,
        };
        while let Ok(Some(length)) = frame.read(rest, &most) {
            self.dispatch(frame.words(rest), out).await;
            frame.clear();
            rest = &rest[length..];
        }
    }
}
