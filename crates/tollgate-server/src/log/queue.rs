//! Lines on their way to somebody who may not read them: written by a thread, and left out if too many wait.
//!
//! Standard error may be a pipe, and a pipe that nobody reads blocks whoever writes. No thread that serves does.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

/// The most bytes that wait.
const MAX_BYTES: usize = 1 << 20;

/// Takes lines, each of which is one write, and never waits.
#[derive(Debug)]
pub(super) struct LineQueue {
    messages: mpsc::Sender<Message>,
    waiting: Arc<QueueCounters>,
}

/// What the writer is sent. It ends with the last of its senders.
#[derive(Debug)]
enum Message {
    Line(Vec<u8>),
    /// All lines before are written once this is dropped.
    Flush(#[expect(dead_code, reason = "its receiver hears of the drop")] mpsc::Sender<()>),
}

/// Counts are relaxed: the channel orders the lines themselves.
#[derive(Debug, Default)]
struct QueueCounters {
    bytes: AtomicUsize,
    /// Lines that were left out, and how many of them the reader hasn't been told of.
    dropped: AtomicU64,
    unreported: AtomicU64,
}

impl LineQueue {
    /// Writes lines by a thread of its own. The summary is written in place of so many lines.
    pub(super) fn start(
        out: impl Write + Send + 'static,
        summary: impl Fn(u64) -> Vec<u8> + Send + 'static,
    ) -> io::Result<Self> {
        let (messages, receiver) = mpsc::channel();
        let waiting = Arc::<QueueCounters>::default();
        let own = Arc::clone(&waiting);
        let thread = thread::Builder::new().name("log".to_owned());
        thread.spawn(move || own.write(&receiver, out, summary))?;
        Ok(Self { messages, waiting })
    }

    pub(super) fn push(&self, line: Vec<u8>) {
        let QueueCounters {
            bytes,
            dropped,
            unreported,
        } = &*self.waiting;
        let length = line.len();
        if bytes.fetch_add(length, Relaxed) + length > MAX_BYTES {
            bytes.fetch_sub(length, Relaxed);
            dropped.fetch_add(1, Relaxed);
            unreported.fetch_add(1, Relaxed);
        } else {
            // It fails if the writer panicked: a service runs on if nobody reads what it says.
            let _ = self.messages.send(Message::Line(line));
        }
    }

    /// Lines that were left out.
    pub(super) fn dropped(&self) -> u64 {
        self.waiting.dropped.load(Relaxed)
    }

    /// Waits until all is written, but no longer than this.
    pub(super) fn drain(&self, within: Duration) {
        let (flush, flushed) = mpsc::channel();
        let _ = self.messages.send(Message::Flush(flush));
        // Nothing is sent. Whoever doesn't read misses the end.
        let _ = flushed.recv_timeout(within);
    }
}

impl QueueCounters {
    /// Writes what comes, until nobody says more.
    fn write(
        &self,
        messages: &mpsc::Receiver<Message>,
        mut out: impl Write,
        summary: impl Fn(u64) -> Vec<u8>,
    ) {
        for message in messages {
            let Message::Line(mut line) = message else {
                continue;
            };
            let before = self.bytes.fetch_sub(line.len(), Relaxed);
            // All that was said before what is missing comes first.
            if before == line.len() && self.unreported.load(Relaxed) > 0 {
                line.extend(summary(self.unreported.swap(0, Relaxed)));
            }
            // A service runs on if nobody reads what it says.
            let _ = out.write_all(&line).and_then(|()| out.flush());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that takes a line when it is told to.
    struct Slow {
        go: mpsc::Receiver<()>,
        seen: mpsc::Sender<String>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.go.recv();
            let text = String::from_utf8_lossy(bytes);
            let _ = self.seen.send(text.into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_stops_keeps_nobody_waiting_and_is_told_what_it_missed() {
        let ((go, wait), (seen, lines)) = (mpsc::channel(), mpsc::channel());
        let summary = |count| format!("{count} left out\n").into_bytes();
        let slow = Slow { go: wait, seen };
        let queue = LineQueue::start(slow, summary).expect("a thread");
        let long = "x".repeat(MAX_BYTES / 4);
        // The first may be on its way to the reader; of the others four fit.
        for _ in 0..12 {
            queue.push(long.clone().into_bytes());
        }
        let dropped = queue.dropped();
        assert!((7..=8).contains(&dropped), "{dropped}");
        drop(go);
        queue.drain(Duration::from_secs(20));
        drop(queue);
        let all: Vec<_> = lines.iter().collect();
        assert_eq!(all.len() as u64, 12 - dropped);
        let last = all.last().expect("lines");
        assert!(last.ends_with(&format!("{dropped} left out\n")));
    }

    #[test]
    fn what_waits_is_written_before_the_end() {
        let (go, wait) = mpsc::channel();
        let (seen, lines) = mpsc::channel();
        let queue = LineQueue::start(Slow { go: wait, seen }, |_| Vec::new()).expect("a thread");
        queue.push(b"one\n".to_vec());
        queue.push(b"two\n".to_vec());
        queue.drain(Duration::ZERO);
        drop(go);
        queue.drain(Duration::from_secs(20));
        assert_eq!(lines.try_iter().collect::<Vec<_>>(), ["one\n", "two\n"]);
    }
}
