//! The events of a simulation, one after another: calls arrive, are served, time out, and servers
//! change.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::concurrency::OwnedPermit;
use tollgate::{ConcurrencyLimiter, Timestamp};

use super::result::{PhaseSamples, to_f64};
use super::{Limit, Phase, Scenario, SimulationResult, TimePoint, exponential};
use crate::AdaptiveController;
use crate::random::SplitMix64;

const TICK: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SimulationEvent {
    Arrival,
    /// A call is done, if the servers' speed is still that for which this event was planned.
    Completion {
        job: usize,
        pace: u64,
    },
    Timeout {
        job: usize,
    },
    PhaseChange {
        phase: usize,
    },
    Tick,
}

struct Job {
    /// None once the call has ended for its client.
    permit: Option<OwnedPermit<Manual>>,
    arrived: Timestamp,
    /// The remaining work at full speed, in nanoseconds.
    remaining_work: f64,
    /// Since when a server works on it, if one does.
    served_since: Option<Timestamp>,
}

pub(super) struct Simulator<'a> {
    scenario: &'a Scenario,
    clock: Manual,
    clients: Vec<Arc<ConcurrencyLimiter<Manual>>>,
    chance: SplitMix64,
    events: BinaryHeap<Reverse<(Timestamp, u64, SimulationEvent)>>,
    next_event: u64,
    jobs: Vec<Job>,
    free: Vec<usize>,
    queue: VecDeque<usize>,
    in_service: Vec<usize>,
    /// Counts changes of speed: events that were planned before a change are void.
    speed_version: u64,
    phase: usize,
    phase_samples: Vec<PhaseSamples>,
    judged_from: Timestamp,
    ends: Timestamp,
    tick: (f64, usize),
    points: Vec<TimePoint>,
}

impl<'a> Simulator<'a> {
    pub(super) fn new(scenario: &'a Scenario, limit: impl Fn(u64) -> Limit, seed: u64) -> Self {
        let clock = Manual::new();
        let client = |number: u64| {
            let builder = match limit(number) {
                Limit::Fixed(limit) => ConcurrencyLimiter::builder(limit),
                Limit::Law(law) => AdaptiveController::new(law).concurrency(),
            };
            Arc::new(builder.clock(clock.clone()).build())
        };
        let clients = (0..u64::from(scenario.clients)).map(client).collect();
        let lasts: Duration = scenario.phases.iter().map(|phase| phase.lasts).sum();
        Self {
            scenario,
            clients,
            chance: SplitMix64::new(seed),
            events: BinaryHeap::new(),
            next_event: 0,
            jobs: Vec::new(),
            free: Vec::new(),
            queue: VecDeque::new(),
            in_service: Vec::new(),
            speed_version: 0,
            phase: 0,
            phase_samples: scenario
                .phases
                .iter()
                .map(|_| PhaseSamples::default())
                .collect(),
            judged_from: Timestamp::ZERO + scenario.settle,
            ends: Timestamp::ZERO + lasts,
            tick: (0.0, 0),
            points: Vec::new(),
            clock,
        }
    }

    pub(super) fn run(mut self) -> SimulationResult {
        let mut from = Timestamp::ZERO;
        for (number, phase) in self.scenario.phases.iter().enumerate() {
            self.schedule(from, SimulationEvent::PhaseChange { phase: number });
            from += phase.lasts;
        }
        self.schedule(Timestamp::ZERO, SimulationEvent::Arrival);
        self.schedule(Timestamp::ZERO + TICK, SimulationEvent::Tick);
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            if now > self.ends {
                break;
            }
            self.clock.set(now);
            match event {
                SimulationEvent::Arrival => self.on_arrival(now),
                SimulationEvent::Completion { job, pace } if pace == self.speed_version => {
                    self.on_completion(now, job)
                }
                SimulationEvent::Completion { .. } => {}
                SimulationEvent::Timeout { job } => self.on_timeout(job),
                SimulationEvent::PhaseChange { phase } => self.on_phase_change(now, phase),
                SimulationEvent::Tick => self.on_tick(now),
            }
        }
        self.into_result()
    }

    fn into_result(self) -> SimulationResult {
        let Scenario {
            settle, service, ..
        } = self.scenario;
        let phases = self.phase_samples.into_iter().zip(&self.scenario.phases);
        let phases = phases.map(|(gathered, phase)| {
            let seconds = phase.lasts.saturating_sub(*settle).as_secs_f64();
            let unloaded = (phase.speed > 0.0).then(|| service.p99().div_f64(phase.speed));
            gathered.into_result(seconds, unloaded)
        });
        SimulationResult {
            phases: phases.collect(),
            points: self.points,
        }
    }

    fn schedule(&mut self, at: Timestamp, event: SimulationEvent) {
        self.events.push(Reverse((at, self.next_event, event)));
        self.next_event += 1;
    }

    fn current_phase(&self) -> Phase {
        self.scenario.phases[self.phase]
    }

    /// A call arrives at one of the clients, and passes its limit or is denied.
    fn on_arrival(&mut self, now: Timestamp) {
        let wait = exponential(&mut self.chance) / self.scenario.arrivals;
        self.schedule(
            now + Duration::from_secs_f64(wait),
            SimulationEvent::Arrival,
        );
        let clients = u64::try_from(self.clients.len()).unwrap_or(1);
        let client = usize::try_from(self.chance.next() % clients).unwrap_or(0);
        // Drawn for denied calls, too, so that all limits meet the same calls.
        let left = self.scenario.service.draw(&mut self.chance);
        let Ok(permit) = self.clients[client].try_acquire_owned() else {
            return;
        };
        let job = Job {
            permit: Some(permit),
            arrived: now,
            remaining_work: left,
            served_since: None,
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.jobs[number] = job;
                number
            }
            None => {
                self.jobs.push(job);
                self.jobs.len() - 1
            }
        };
        self.schedule(
            now + self.scenario.timeout,
            SimulationEvent::Timeout { job: number },
        );
        self.queue.push_back(number);
        self.start_service(now);
    }

    /// Assigns waiting calls to free servers.
    fn start_service(&mut self, now: Timestamp) {
        let phase = self.current_phase();
        while self.in_service.len() < usize::try_from(phase.servers).unwrap_or(usize::MAX)
            && phase.speed > 0.0
        {
            let Some(job) = self.queue.pop_front() else {
                return;
            };
            self.jobs[job].served_since = Some(now);
            self.in_service.push(job);
            self.schedule_completion(now, job);
        }
    }

    /// Plans when a call will be done at the current speed.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "some nanoseconds, and the cast saturates"
    )]
    fn schedule_completion(&mut self, now: Timestamp, job: usize) {
        let takes = (self.jobs[job].remaining_work / self.current_phase().speed) as u64;
        let pace = self.speed_version;
        self.schedule(
            now.plus_nanos(takes),
            SimulationEvent::Completion { job, pace },
        );
    }

    fn on_completion(&mut self, now: Timestamp, job: usize) {
        self.in_service.retain(|served| *served != job);
        let latency = now - self.jobs[job].arrived;
        if let Some(permit) = self.jobs[job].permit.take() {
            permit.success();
            let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
            if now >= self.judged_from {
                self.phase_samples[self.phase].latencies.push(nanos);
            }
            self.tick.0 += latency.as_secs_f64() * 1e3;
            self.tick.1 += 1;
            self.jobs[job].served_since = None;
        } else {
            // Its client gave it up long ago: no other event refers to it, so its entry is free.
            self.free.push(job);
        }
        self.start_service(now);
    }

    /// A call's client gives it up, unless it has ended; servers continue to work on it.
    fn on_timeout(&mut self, job: usize) {
        match self.jobs[job].permit.take() {
            Some(permit) => permit.dropped(),
            None => self.free.push(job),
        }
    }

    fn on_phase_change(&mut self, now: Timestamp, phase: usize) {
        let speed = self.current_phase().speed;
        for job in &self.in_service {
            let job = &mut self.jobs[*job];
            let worked = job
                .served_since
                .replace(now)
                .map_or(Duration::ZERO, |since| now - since);
            job.remaining_work = (job.remaining_work - worked.as_secs_f64() * 1e9 * speed).max(0.0);
        }
        self.phase = phase;
        self.judged_from = now + self.scenario.settle;
        self.speed_version += 1;
        if self.current_phase().speed > 0.0 {
            for job in self.in_service.clone() {
                self.schedule_completion(now, job);
            }
            self.start_service(now);
        }
    }

    fn on_tick(&mut self, now: Timestamp) {
        self.schedule(now + TICK, SimulationEvent::Tick);
        let seen = self.clients.iter().map(|client| client.peek());
        let (limit, in_flight) = seen.fold((0.0, 0.0), |sum, seen| {
            (
                sum.0 + f64::from(seen.limit),
                sum.1 + f64::from(seen.in_use),
            )
        });
        let (sum, count) = std::mem::take(&mut self.tick);
        self.points.push(TimePoint {
            at: now.as_secs_f64(),
            limit,
            in_flight,
            latency: sum / to_f64(count.max(1)),
            goodput: to_f64(count) / TICK.as_secs_f64(),
        });
        self.phase_samples[self.phase].answered.push(count);
        if now > self.judged_from {
            self.phase_samples[self.phase].limits.push(limit);
        }
    }
}
