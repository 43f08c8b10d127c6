//! A queue of log lines to a thread that writes them. Lines are dropped when the queue is full.
//!
//! Standard error may be a pipe, and a pipe that nobody reads blocks its writer. So no thread that serves writes there.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

/// The most bytes in the queue.
const MAX_BYTES: usize = 1 << 20;

/// Queues lines without ever blocking. Each line is one write.
#[derive(Debug)]
pub(super) struct LineQueue {
    messages: mpsc::Sender<Message>,
    waiting: Arc<QueueCounters>,
}

/// A message to the writer, which ends with the last sender.
#[derive(Debug)]
enum Message {
    Line(Vec<u8>),
    /// Dropped once all lines before it are written.
    Flush(#[expect(dead_code, reason = "its receiver hears of the drop")] mpsc::Sender<()>),
}

/// The counts are relaxed: the channel orders the lines themselves.
#[derive(Debug, Default)]
struct QueueCounters {
    bytes: AtomicUsize,
    /// The number of dropped lines, and the part of them that the log doesn't mention yet.
    dropped: AtomicU64,
    unreported: AtomicU64,
}

impl LineQueue {
    /// Starts the writer's thread. `summary` writes a line about this many dropped lines.
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
            // Sending fails if the writer has panicked. That must not stop the service.
            let _ = self.messages.send(Message::Line(line));
        }
    }

    /// The number of dropped lines.
    pub(super) fn dropped(&self) -> u64 {
        self.waiting.dropped.load(Relaxed)
    }

    /// Waits until all lines are written, at most for `within`.
    pub(super) fn drain(&self, within: Duration) {
        let (flush, flushed) = mpsc::channel();
        let _ = self.messages.send(Message::Flush(flush));
        // Nothing is ever sent: the sender is dropped. After the timeout the rest of the log is lost.
        let _ = flushed.recv_timeout(within);
    }
}

impl QueueCounters {
    /// Writes lines until all senders are dropped.
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
            // The queue is empty here, so the summary comes after all lines that preceded the dropped ones.
            if before == line.len() && self.unreported.load(Relaxed) > 0 {
                line.extend(summary(self.unreported.swap(0, Relaxed)));
            }
            // A failed write must not stop the service.
            let _ = out.write_all(&line).and_then(|()| out.flush());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that takes a line on request.
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
        // The first line may be on its way to the reader; four of the others fit.
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
