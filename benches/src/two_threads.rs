//! Two threads that start and stop together, so that every call that counts was made while both ran. One of
//! them is the caller's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread;
use std::time::Duration;

use crate::peers::{Gate, Padded};
use crate::runner::{Measure, Sample, as_f64, calls_for_a_sample};
use crate::timing::{self, Stopwatch};

/// Calls between two checks whether the other thread is done.
const BATCH: u64 = 256;

/// The work of a thread: its number and how many calls to make; returns how many were admitted.
pub(crate) type Work = Arc<dyn Fn(usize, u64) -> u64 + Send + Sync>;

/// The caller's thread and a helper, which spins between jobs: both stay on their cores, while a sleeping
/// thread might wake up on the other's.
pub(crate) struct ThreadPair {
    jobs: Sender<Job>,
    shares: Receiver<ThreadShare>,
}

#[derive(Clone)]
struct Job {
    work: Work,
    length: RunLength,
    meeting: Arc<StartBarrier>,
}

/// When the first thread stops, which stops the other.
#[derive(Clone, Copy)]
enum RunLength {
    Calls(u64),
    Time(Duration),
}

/// The part of one thread.
struct ThreadShare {
    nanos: f64,
    calls: u64,
    admitted: u64,
    switched: bool,
}

/// A barrier for the threads of a job.
struct StartBarrier {
    threads: usize,
    arrived: Padded<AtomicUsize>,
    done: Padded<AtomicBool>,
}

impl ThreadPair {
    pub(crate) fn new() -> Self {
        let (jobs, queue) = mpsc::channel::<Job>();
        let (sender, shares) = mpsc::channel();
        thread::spawn(move || {
            loop {
                match queue.try_recv() {
                    Ok(job) => {
                        // The receiver is gone if the pair was dropped.
                        let _ = sender.send(job.run(1));
                    }
                    Err(TryRecvError::Empty) => std::hint::spin_loop(),
                    Err(TryRecvError::Disconnected) => return,
                }
            }
        });
        Self { jobs, shares }
    }

    /// Measures `work` on both threads at once.
    pub(crate) fn both(&self, work: Work) -> TwoThreadPeer<'_> {
        self.measure(2, work)
    }

    /// Measures `work` on the caller's thread alone.
    pub(crate) fn one(&self, work: Work) -> TwoThreadPeer<'_> {
        self.measure(1, work)
    }

    /// Both threads on one limiter.
    pub(crate) fn share(&self, gate: Arc<dyn Gate>) -> TwoThreadPeer<'_> {
        self.both(Arc::new(move |_, calls| gate.run_calls(calls)))
    }

    /// Both threads on one limiter, for this many calls each.
    pub(crate) fn share_fixed(&self, calls: u64, gate: Arc<dyn Gate>) -> TwoThreadPeer<'_> {
        self.both_fixed(calls, Arc::new(move |_, calls| gate.run_calls(calls)))
    }

    /// As [`both`](Self::both), for this many calls each.
    pub(crate) fn both_fixed(&self, calls: u64, work: Work) -> TwoThreadPeer<'_> {
        TwoThreadPeer {
            crew: self,
            threads: 2,
            work,
            calls,
        }
    }

    /// Admissions in a second while both threads call one limiter for this long, starting with an empty one.
    pub(crate) fn admitted_per_second(&self, gate: Arc<dyn Gate>, time: Duration) -> f64 {
        while gate.allow() {}
        let watch = Stopwatch::start();
        let work: Work = Arc::new(move |_, calls| gate.run_calls(calls));
        let shares = self.run(2, RunLength::Time(time), work);
        let admitted = shares.iter().map(|share| share.admitted).sum();
        as_f64(admitted) * 1e9 / watch.nanos()
    }

    fn measure(&self, threads: usize, work: Work) -> TwoThreadPeer<'_> {
        let calls = calls_for_a_sample(|calls| {
            longest(&self.run(threads, RunLength::Calls(calls), Arc::clone(&work)))
        });
        TwoThreadPeer {
            crew: self,
            threads,
            work,
            calls,
        }
    }

    fn run(&self, threads: usize, length: RunLength, work: Work) -> Vec<ThreadShare> {
        let job = Job {
            work,
            length,
            meeting: Arc::new(StartBarrier {
                threads,
                arrived: Padded(AtomicUsize::new(0)),
                done: Padded(AtomicBool::new(false)),
            }),
        };
        if threads == 2 {
            self.jobs.send(job.clone()).expect("the helper lives");
        }
        let mut shares = vec![job.run(0)];
        while shares.len() < threads {
            match self.shares.try_recv() {
                Ok(share) => shares.push(share),
                Err(TryRecvError::Empty) => std::hint::spin_loop(),
                Err(TryRecvError::Disconnected) => panic!("the helper lives"),
            }
        }
        shares
    }
}

/// One kind of work on a pair of threads.
pub(crate) struct TwoThreadPeer<'a> {
    crew: &'a ThreadPair,
    threads: usize,
    work: Work,
    calls: u64,
}

impl Measure for TwoThreadPeer<'_> {
    fn sample(&mut self) -> Sample {
        let length = RunLength::Calls(self.calls);
        let shares = self.crew.run(self.threads, length, Arc::clone(&self.work));
        let nanos: f64 = shares.iter().map(|share| share.nanos).sum();
        let calls: u64 = shares.iter().map(|share| share.calls).sum();
        // A thread with hardly any calls was off its core: then the other ran alone.
        let least = shares.iter().map(|share| share.calls).min().unwrap_or(0);
        let alone = least < calls / (8 * self.threads as u64);
        Sample {
            nanos: nanos / as_f64(calls),
            switched: alone || shares.iter().any(|share| share.switched),
        }
    }
}

impl Job {
    fn run(&self, index: usize) -> ThreadShare {
        // Once to start together, and once more after the slow read of the counters.
        self.meeting.wait(1);
        let before = timing::context_switches();
        self.meeting.wait(2);
        let watch = Stopwatch::start();
        let (mut calls, mut admitted) = (0, 0);
        while !self.meeting.done.0.load(Ordering::Relaxed) && !self.length.is_reached(calls, watch)
        {
            admitted += (self.work)(index, BATCH);
            calls += BATCH;
        }
        self.meeting.done.0.store(true, Ordering::Relaxed);
        ThreadShare {
            nanos: watch.nanos(),
            calls,
            admitted,
            switched: timing::context_switches() != before,
        }
    }
}

impl RunLength {
    fn is_reached(self, calls: u64, watch: Stopwatch) -> bool {
        match self {
            Self::Calls(most) => calls >= most,
            Self::Time(time) => watch.elapsed() >= time,
        }
    }
}

impl StartBarrier {
    /// Spins until every thread has arrived this many times.
    fn wait(&self, times: usize) {
        self.arrived.0.fetch_add(1, Ordering::AcqRel);
        let mut turns = 0_u32;
        while self.arrived.0.load(Ordering::Acquire) < times * self.threads {
            std::hint::spin_loop();
            turns += 1;
            if turns.is_multiple_of(1 << 12) {
                // The other thread may need this very core to get here.
                thread::yield_now();
            }
        }
    }
}

fn longest(shares: &[ThreadShare]) -> f64 {
    shares.iter().map(|share| share.nanos).fold(0.0, f64::max)
}
