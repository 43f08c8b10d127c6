//! A worker that does less while the machine is busy: its rate follows the CPU pressure, between 100 and 10,000 a
//! second. If the kernel has no such file, the program prints so. Then it runs with recorded readings of a day that
//! was busy at noon.

use std::time::Duration;

use tollgate::clock::{Clock, Monotonic};
use tollgate::{Limiter, Rate, Timestamp};
use tollgate_adaptive::{
    AdaptiveController, Bounds, CpuPressure, CpuUsage, Gauge, GaugeError, GaugeTarget,
    LimitAlgorithm,
};

type BoxError = Box<dyn std::error::Error>;

/// The pressure if the kernel reports it, or else the usage.
fn gauge() -> Option<(Box<dyn Gauge>, f64)> {
    match CpuPressure::open() {
        Ok(pressure) => return Some((Box::new(pressure), 0.2)),
        Err(error) => println!("{error}"),
    }
    match CpuUsage::open() {
        Ok(used) => Some((Box::new(used), 0.7)),
        Err(error) => {
            println!("{error}");
            None
        }
    }
}

/// Recorded readings instead of a machine's.
struct RecordedGauges(std::vec::IntoIter<f64>);

impl Gauge for RecordedGauges {
    fn read(&mut self, _: Timestamp) -> Result<f64, GaugeError> {
        Ok(self.0.next().unwrap_or_default())
    }
}

/// A worker and the controller of its rate.
struct Worker {
    limiter: Limiter,
    controller: AdaptiveController<GaugeTarget>,
    target: f64,
    done: u64,
}

impl Worker {
    fn new(target: f64) -> Result<Self, BoxError> {
        let law = GaugeTarget::new(Bounds::new(100.0, 10_000.0)?, target)?.initial(2_000.0);
        Ok(Self {
            limiter: Limiter::new(Rate::per_second(2_000).burst(100)),
            controller: AdaptiveController::new(law).on_change(|change| println!("  {change}")),
            target,
            done: 0,
        })
    }

    /// Works for a while, reads the gauge, and sets the rate that follows from it.
    async fn run_turn(&mut self, gauge: &mut dyn Gauge) -> Result<f64, BoxError> {
        let clock = Monotonic::new();
        // The steps of the algorithm are made for `GaugeTarget::EVERY`, 10 s; an example is shorter.
        let until = clock.now() + Duration::from_millis(20);
        while clock.now() < until {
            self.limiter.acquire().await?;
            self.done += 1; // … here it would work.
        }
        let (reading, before) = (gauge.read(clock.now())?, self.controller.limit());
        println!("reading {reading:.2} for a target of {}", self.target);
        self.controller
            .observe_and_apply_rate(&self.limiter, &reading)?;
        let now = self.controller.limit();
        // Whatever the machine does: the rate falls above the target, rises below it, and stays within the bounds.
        let expected = match reading / self.target {
            busy if busy > 1.1 => before * 0.8,
            idle if idle < 0.9 => before * 1.1,
            _ => before,
        };
        assert!((now - expected.clamp(100.0, 10_000.0)).abs() < 1e-6);
        let in_force = self.limiter.rate().as_per_second();
        assert!((in_force - now).abs() < 0.001, "{in_force} a second");
        Ok(now)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    if let Some((mut gauge, target)) = gauge() {
        println!("this machine, now:");
        let mut worker = Worker::new(target)?;
        for _ in 0..3 {
            worker.run_turn(&mut *gauge).await?;
        }
        let limit = worker.controller.limit();
        println!("{} pieces of work, now {limit:.0} a second", worker.done);
        assert!(worker.done >= 3, "each turn does some");
    }

    println!("a day that is busy at noon:");
    let day = vec![0.3, 0.5, 0.95, 0.99, 0.8, 0.7, 0.4];
    let (mut worker, mut limits) = (Worker::new(0.7)?, Vec::new());
    let mut gauge = RecordedGauges(day.into_iter());
    for _ in 0..7 {
        limits.push(worker.run_turn(&mut gauge).await?.round());
    }
    assert_eq!(
        limits,
        [
            2_200.0, 2_420.0, 1_936.0, 1_549.0, 1_239.0, 1_239.0, 1_363.0
        ]
    );
    Ok(())
}
