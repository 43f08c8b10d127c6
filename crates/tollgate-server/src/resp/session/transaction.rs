//! `MULTI … EXEC`: commands are queued, and then run one by one.
//!
//! Some clients use transactions for pipelines: redis-py does by default. Commands of other connections may run in
//! between, as each command is decided alone, and `WATCH` has no effect. If a command can't be queued, `EXEC` runs
//! none, so nothing is charged.

use super::{RespSession, commands};
use crate::decision_service::CounterStore;
use crate::resp::frame::{CommandBounds, CommandParser, Words};
use crate::resp::response::{ReplyWriter, Version};

/// The most bytes that one connection queues: about 5,000 short commands.
const MAX_QUEUED_BYTES: usize = 256 * 1024;

/// The commands between `MULTI` and `EXEC`.
#[derive(Debug, Default)]
pub(super) struct CommandQueue {
    /// The commands in RESP, one after another.
    bytes: Vec<u8>,
    /// How much of [`MAX_QUEUED_BYTES`] they take.
    size: usize,
    count: usize,
    /// A command couldn't be queued.
    is_broken: bool,
}

impl CommandQueue {
    /// The number of commands.
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
        // Queued guesses of a password would all be answered together, without delays between them.
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
                // The queue will never run, so its memory is freed.
                (queue.bytes, queue.size) = (Vec::new(), 0);
                replies.error(&wrong);
            }
        }
    }

    /// Runs the queued commands, unless one couldn't be queued.
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
