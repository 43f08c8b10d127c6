//! File watch: a save touches many files, and one build is enough. There are never two builds at a time, and at least
//! one every two seconds while a user keeps typing. Ten seconds of typing, on a clock that the program moves.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::Clock;
use tollgate::clock::{Manual, sleep_until};
use tollgate_shape::Debounce;

fn main() {
    let clock = Manual::new();
    let builds = Arc::new(Mutex::new(Vec::new()));
    let (log, time) = (Arc::clone(&builds), clock.clone());
    let rebuild = Debounce::new(Duration::from_millis(200))
        .max_wait(Duration::from_secs(2))
        .clock(clock.clone())
        .build_async(move |changed: String| {
            log.lock()
                .expect("no build panics")
                .push((time.now(), changed));
            // A build takes half a second; changes meanwhile are built after it.
            sleep_until(time.clone(), time.now() + Duration::from_millis(500))
        });

    for tick in 0..200u32 {
        if tick < 100 || tick == 150 {
            // Each save of an editor is three events.
            for file in ["main.rs", "main.rs~", ".main.rs.swp"] {
                rebuild.call(format!("{file} at tick {tick}"));
            }
        }
        clock.advance(Duration::from_millis(50));
    }

    let builds = builds.lock().expect("no build panics");
    for (at, changed) in builds.iter() {
        println!("{at}: built because of {changed}");
    }
    println!("303 events, {} builds", builds.len());
    assert_eq!(builds.len(), 4);
}
