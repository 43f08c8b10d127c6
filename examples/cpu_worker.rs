//! A worker that does less while the machine is busy: its rate follows the use of processors, between 100 and 10,000 a
//! second. Where the kernel has no such file it says so at the start, and works at a fixed rate.

use std::time::Duration;

use tollgate::adaptive::{Bounds, Controller, CpuPressure, CpuUse, Gauge, Target};
use tollgate::clock::{Clock, Monotonic};
use tollgate::{Limiter, Rate};

type Failed = Box<dyn std::error::Error>;

/// Pressure if the kernel tells of it, and use if not.
fn gauge() -> Option<(Box<dyn Gauge>, f64)> {
    match CpuPressure::open() {
        Ok(pressure) => return Some((Box::new(pressure), 0.2)),
        Err(error) => println!("{error}"),
    }
    match CpuUse::open() {
        Ok(used) => Some((Box::new(used), 0.7)),
        Err(error) => {
            println!("{error}");
            None
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failed> {
    let clock = Monotonic::new();
    let limiter = Limiter::new(Rate::per_second(2_000).burst(100));
    let Some((mut gauge, target)) = gauge() else {
        println!("works at {} whatever the machine does", limiter.rate());
        return Ok(());
    };
    let law = Target::new(Bounds::new(100.0, 10_000.0)?, target)?.initial(2_000.0);
    let controller = Controller::new(law).on_change(|change| println!("{change}"));
    let mut done = 0_u32;
    for _ in 0..5 {
        // Target::EVERY, 10 s, is what its steps are made for; an example is shorter.
        let until = clock.now() + Duration::from_millis(50);
        while clock.now() < until {
            limiter.acquire().await?;
            done += 1;
        }
        let reading = gauge.read(clock.now())?;
        println!("reading {reading:.2} for a target of {target}");
        controller.steer_rate(&limiter, &reading)?;
    }
    println!(
        "{done} pieces of work, now at most {:.0} a second",
        controller.limit()
    );
    Ok(())
}
