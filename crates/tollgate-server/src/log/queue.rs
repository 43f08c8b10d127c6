//! Lines on their way to somebody who may not read them: written by a thread, and left out if too many wait.
//!
//! Standard error may be a pipe, and a pipe that nobody reads blocks whoever writes. No thread that serves does.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The most bytes that wait.
const MOST_BYTES: usize = 1 << 20;

/// What is written instead of so many lines.
type Summary = dyn Fn(u64) -> Vec<u8> + Send;

/// Takes lines, each of which is one write, and never waits.
#[derive(Debug)]
pub(super) struct Queue(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    is_writing: bool,
    /// Nobody will say more.
    is_closed: bool,
    /// Lines that were left out, and how many of them the reader wasn't told of.
    dropped: u64,
    untold: u64,
}

impl Queue {
    /// Writes lines by a thread of its own.
    pub(super) fn start(
        out: impl Write + Send + 'static,
        summary: impl Fn(u64) -> Vec<u8> + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let own = Arc::clone(&shared);
        let thread = thread::Builder::new().name("log".to_owned());
        thread.spawn(move || own.write(out, &summary))?;
        Ok(Self(shared))
    }

    pub(super) fn push(&self, line: Vec<u8>) {
        let mut waiting = self.0.waiting();
        if waiting.bytes + line.len() > MOST_BYTES {
            waiting.dropped += 1;
            waiting.untold += 1;
        } else {
            waiting.bytes += line.len();
            waiting.lines.push_back(line);
            self.0.changed.notify_all();
        }
    }

    /// Lines that were left out.
    pub(super) fn dropped(&self) -> u64 {
        self.0.waiting().dropped
    }

    /// Waits until all is written, but no longer than this.
    pub(super) fn drain(&self, within: Duration) {
        let is_busy = |waiting: &mut Waiting| waiting.is_writing || !waiting.lines.is_empty();
        let waiting = self.0.waiting();
        // Whoever doesn't read misses the end.
        let _ = self.0.changed.wait_timeout_while(waiting, within, is_busy);
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.0.waiting().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what comes, until nobody says more.
    fn write(&self, mut out: impl Write, summary: &Summary) {
        loop {
            let waiting = self.waiting();
            let is_idle = |waiting: &mut Waiting| waiting.lines.is_empty() && !waiting.is_closed;
            let waited = self.changed.wait_while(waiting, is_idle);
            let mut waiting = waited.unwrap_or_else(PoisonError::into_inner);
            let Some(mut line) = waiting.lines.pop_front() else {
                return;
            };
            waiting.bytes -= line.len();
            waiting.is_writing = true;
            // All that was said before what is missing comes first.
            if waiting.lines.is_empty() && waiting.untold > 0 {
                line.extend(summary(std::mem::take(&mut waiting.untold)));
            }
            drop(waiting);
            // A service runs on if nobody reads what it says.
            let _ = out.write_all(&line).and_then(|()| out.flush());
            self.waiting().is_writing = false;
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

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
        let queue = Queue::start(slow, summary).expect("a thread");
        let long = "x".repeat(MOST_BYTES / 4);
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
        let queue = Queue::start(Slow { go: wait, seen }, |_| Vec::new()).expect("a thread");
        queue.push(b"one\n".to_vec());
        queue.push(b"two\n".to_vec());
        queue.drain(Duration::ZERO);
        drop(go);
        queue.drain(Duration::from_secs(20));
        assert_eq!(lines.try_iter().collect::<Vec<_>>(), ["one\n", "two\n"]);
    }
}
