//! Adaptive algorithms with signals that are stuck or senseless, and the kernel's files.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tollgate::Timestamp;
use tollgate::clock::Manual;
use tollgate::{ConcurrencyLimiter, Limiter, Rate};
use tollgate_adaptive::{
    AdaptiveAlgorithm, AdaptiveController, Aimd, Bbr, Bounds, CgroupCpu, ChangeReason, CpuPressure,
    CpuUsage, Damped, Gauge, GaugeTarget, Gradient, Gradient2, LatencyThreshold, LimitAlgorithm,
    LimitChange, Little, Sample, SelfTuning, Vegas, Windowed,
};
use tollgate_testkit::temp_folder::TempFolder;

fn bounds() -> Bounds {
    Bounds::new(5.0, 100.0).unwrap()
}

/// Samples one after another, each 10 ms long, with all of the limit in flight.
fn feed(
    law: &mut dyn LimitAlgorithm,
    samples: std::ops::Range<u64>,
    with: impl Fn(Sample) -> Sample,
) {
    for number in samples {
        let sample = Sample::new(Duration::from_millis(10), 200);
        law.observe(&with(sample.at(Timestamp::from_millis(20 * number))));
    }
}

#[test]
fn a_signal_that_is_stuck_at_success_stops_at_the_most() {
    for named in AdaptiveAlgorithm::ALL {
        let mut law = named.make(bounds(), 1).unwrap();
        let mut most: f64 = 0.0;
        for hundred in 0..300 {
            feed(&mut law, 100 * hundred..100 * hundred + 100, |sample| {
                sample
            });
            most = most.max(law.limit());
        }
        assert!(most <= 100.0, "{named}: {most}");
        // BBR goes by what is delivered, and Little probes now and then; all others end there.
        if !matches!(named, AdaptiveAlgorithm::Bbr) {
            assert!(most > 99.0, "{named}: {most}");
        }
    }
}

#[test]
fn a_signal_that_is_stuck_at_failure_stops_at_the_least() {
    for named in AdaptiveAlgorithm::ALL {
        // These learn nothing from drops, as their originals.
        if matches!(
            named,
            AdaptiveAlgorithm::Gradient2 | AdaptiveAlgorithm::Windowed | AdaptiveAlgorithm::Bbr
        ) {
            continue;
        }
        let mut law = named.make(bounds(), 1).unwrap();
        feed(&mut law, 0..30_000, Sample::dropped);
        let least = bounds().clamp(law.limit());
        assert!(least <= 6.0, "{named}: {least}");
    }
}

/// All of the limit.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "limits of these tests are from 1 to 100"
)]
fn in_use(law: &dyn LimitAlgorithm) -> u32 {
    law.bounds().clamp(law.limit()) as u32
}

/// Samples 10 ms apart from this time on, with 8 servers that take so long for each call.
fn serve(law: &mut dyn LimitAlgorithm, from: Timestamp, calls: u64, takes: Duration) {
    for number in 0..calls {
        let in_flight = in_use(law);
        let rtt = takes.mul_f64((f64::from(in_flight) / 8.0).max(1.0));
        let at = from + Duration::from_millis(10 * number);
        law.observe(&Sample::new(rtt, in_flight).at(at));
    }
}

/// A law that waits for a time which was an hour ago would be deaf for an hour.
#[test]
fn a_clock_that_is_set_back_silences_no_law() {
    for named in AdaptiveAlgorithm::ALL {
        let mut law = named.make(bounds(), 1).unwrap();
        let millis = Duration::from_millis;
        serve(&mut law, Timestamp::from_secs(7_200), 2_000, millis(10));
        let mut changes = 0;
        for number in 0..4_000 {
            let at = Timestamp::from_secs(3_600) + millis(10 * number);
            let in_flight = in_use(&law);
            // Quick and slow calls in turns, some of them dropped: something for every law.
            let is_slow = number / 1_000 % 2 == 1;
            let sample = Sample::new(millis(if is_slow { 400 } else { 10 }), in_flight).at(at);
            let sample = if is_slow && number % 2 == 0 {
                sample.dropped()
            } else {
                sample
            };
            changes += u32::from(law.observe(&sample).is_some());
        }
        assert!(changes > 0, "{named}");
    }
}

/// As if a backend moved to another continent: only the latency changed, and its concurrency is the same.
#[test]
fn the_default_law_learns_that_calls_became_forty_times_slower() {
    let mut law = Little::new(Bounds::new(1.0, 100.0).unwrap());
    let slow = Duration::from_millis(400);
    serve(&mut law, Timestamp::ZERO, 20_000, Duration::from_millis(10));
    serve(&mut law, Timestamp::from_secs(1_000), 60_000, slow);
    assert!(law.limit() >= 8.0, "{law:?}");
}

/// Calls that are dropped now and then, whatever the load is, don't take the limit to its least; an outage does.
#[test]
fn the_default_law_bears_one_drop_of_a_hundred_and_falls_when_all_are_dropped() {
    let mut law = Little::new(Bounds::new(1.0, 100.0).unwrap());
    let mut running = std::collections::VecDeque::new();
    let (mut now, mut random) = (Timestamp::ZERO, 0x2545_f491_4f6c_dd1d_u64);
    let mut lowest = f64::INFINITY;
    for number in 0..60_000 {
        while running.len() < 100 && f64::from(u32::try_from(running.len()).unwrap()) < law.limit()
        {
            running.push_back((now, u32::try_from(running.len()).unwrap() + 1));
        }
        // All of them are served at once, in 10 ms each.
        let (started, in_flight) = running.pop_front().unwrap();
        now = now.max(started + Duration::from_millis(10));
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let sample = Sample::new(now - started, in_flight).at(started);
        let is_dropped = random.is_multiple_of(100) || number >= 59_000;
        law.observe(&if is_dropped { sample.dropped() } else { sample });
        if (5_000..59_000).contains(&number) {
            lowest = lowest.min(law.limit());
        }
    }
    assert!(lowest >= 8.0, "{lowest}");
    assert!(law.limit() < 1.5, "{law:?}");
}

#[test]
fn times_of_nothing_change_nothing() {
    for named in AdaptiveAlgorithm::ALL {
        let mut law = named.make(bounds(), 1).unwrap();
        feed(&mut law, 0..500, |sample| sample);
        let before = law.limit();
        for dropped in [false, true] {
            for number in 0..1_000 {
                let mut sample =
                    Sample::new(Duration::ZERO, 200).at(Timestamp::from_millis(number));
                if dropped {
                    sample = sample.dropped();
                }
                assert_eq!(law.observe(&sample), None, "{named}");
            }
        }
        assert_eq!(law.limit().to_bits(), before.to_bits(), "{named}");
    }
    let mut target = GaugeTarget::new(bounds(), 0.5).unwrap().initial(50.0);
    for reading in [f64::NAN, f64::INFINITY, -1.0] {
        assert_eq!(target.observe(&reading), None);
    }
    assert_eq!(target.limit(), 50.0);
}

#[test]
fn a_clock_that_goes_back_changes_nothing_of_a_limit() {
    let clock = Manual::starting_at(Timestamp::from_secs(1_000));
    let controller = AdaptiveController::new(Aimd::new(bounds()).initial(50.0));
    let limiter = controller.concurrency().clock(clock.clone()).build();
    let permit = limiter.try_acquire().unwrap();
    clock.set(Timestamp::from_secs(500));
    permit.dropped();
    assert_eq!((controller.limit(), limiter.peek().limit), (50.0, 50));
}

#[test]
fn a_controller_that_was_cloned_and_steers_already_reports_to_whom_it_is_given_then() {
    let heard = Arc::new(std::sync::Mutex::new(Vec::new()));
    let report_to = |name: &'static str| {
        let heard = Arc::clone(&heard);
        move |change: &LimitChange| heard.lock().unwrap().push((name, change.to))
    };
    let controller =
        AdaptiveController::new(Aimd::new(bounds()).initial(40.0)).on_change(report_to("first"));
    let clone = controller.clone();
    let limiter = clone.concurrency().build();
    clone.set_limit(30.0);
    let controller = controller.on_change(report_to("second"));
    limiter.try_acquire().unwrap().dropped();
    controller.set_limit(20.0);
    clone.set_limit(10.0);
    let expected = [
        ("first", 30.0),
        ("second", 15.0),
        ("second", 20.0),
        ("second", 10.0),
    ];
    assert_eq!(*heard.lock().unwrap(), expected);
}

#[test]
fn permits_steer_their_limit_and_changes_are_told_with_their_reason() {
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let heard = Arc::clone(&told);
    let clock = Manual::new();
    let controller = AdaptiveController::new(Aimd::new(bounds()).initial(10.0))
        .on_change(move |change| heard.lock().unwrap().push((change.to, change.reason)));
    let limiter = controller.concurrency().clock(clock.clone()).build();
    let permits: Vec<_> = (0..10).map(|_| limiter.try_acquire().unwrap()).collect();
    clock.advance(Duration::from_millis(5));
    let mut permits = permits.into_iter().rev();
    permits.next().unwrap().success();
    assert_eq!(limiter.peek().limit, 11);
    permits.next().unwrap().dropped();
    permits.next().unwrap().ignored();
    assert_eq!(limiter.peek().limit, 5);
    controller.set_limit(40.0);
    permits.next().unwrap().dropped();
    assert_eq!(limiter.peek().limit, 20);
    let told = told.lock().unwrap();
    let expected = [
        (11.0, ChangeReason::Room),
        (5.5, ChangeReason::Dropped),
        (40.0, ChangeReason::SetByOperator),
        (20.0, ChangeReason::Dropped),
    ];
    assert_eq!(*told, expected);
}

#[test]
fn a_rate_follows_and_keeps_its_burst() {
    let limiter = Limiter::with_clock(Rate::per_second(100).burst(7), Manual::new());
    let controller =
        AdaptiveController::new(GaugeTarget::new(bounds(), 0.5).unwrap().initial(100.0));
    assert!(
        controller
            .observe_and_apply_rate(&limiter, &0.9)
            .unwrap()
            .is_some()
    );
    assert_eq!(limiter.rate().to_string(), "80000 per 1000s burst 7");
    assert!(
        controller
            .observe_and_apply_rate(&limiter, &f64::NAN)
            .unwrap()
            .is_none()
    );
}

#[test]
fn jitter_damping_and_the_longest_step_hold_within_the_bounds() {
    let aimd = Aimd::new(bounds()).initial(100.0);
    let mut law = Damped::new(aimd)
        .jitter(0.5, 3)
        .unwrap()
        .max_step(0.1)
        .unwrap();
    let mut last = 100.0;
    for _ in 0..200 {
        let sample = Sample::new(Duration::from_millis(1), 100);
        LimitAlgorithm::<Sample>::observe(&mut law, &sample.dropped());
        let limit = LimitAlgorithm::<Sample>::limit(&law);
        assert!(limit <= last && limit >= last * 0.9 - 1e-9 && limit >= 5.0);
        last = limit;
    }
    assert_eq!(last, 5.0);
}

#[test]
fn gauges_read_what_the_kernel_writes() {
    let folder = TempFolder::new("gauges");
    let at = |name: &str| folder.path(name);
    fs::write(
        at("stat"),
        "cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 2 3 4\n",
    )
    .unwrap();
    let mut cpu = CpuUsage::at(at("stat")).unwrap();
    assert!(
        cpu.read(Timestamp::ZERO).unwrap().is_nan(),
        "no tick has passed"
    );
    fs::write(at("stat"), "cpu  130 0 130 730 110 0 0 0 0 0\n").unwrap();
    assert_eq!(cpu.read(Timestamp::ZERO).unwrap(), 0.6);

    let pressure = "some avg10=12.50 avg60=1.00 avg300=0.10 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
    fs::write(at("pressure"), pressure).unwrap();
    let mut gauge = CpuPressure::at(at("pressure")).unwrap();
    assert_eq!(gauge.read(Timestamp::ZERO).unwrap(), 0.125);

    fs::write(at("cpu.stat"), "usage_usec 1000000\nuser_usec 1\n").unwrap();
    fs::write(at("cpu.max"), "50000 100000\n").unwrap();
    let mut group = CgroupCpu::open(folder.folder()).unwrap();
    assert!(
        group.read(Timestamp::from_secs(1)).unwrap().is_nan(),
        "a rate needs two"
    );
    fs::write(at("cpu.stat"), "usage_usec 1250000\n").unwrap();
    assert_eq!(group.read(Timestamp::from_secs(2)).unwrap(), 0.5);
}

#[test]
fn a_file_that_is_missing_or_strange_is_an_error_at_the_start() {
    let folder = TempFolder::new("no-gauges");
    let gone = folder.path("stat");
    let error = CpuUsage::at(&gone).unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("{} can't be read: ", gone.display())),
        "{error}"
    );
    assert!(
        error.ends_with("; only Linux has it; elsewhere write a Gauge of your own"),
        "{error}"
    );
    fs::write(&gone, "intr 5\n").unwrap();
    let error = CpuUsage::at(&gone).unwrap_err().to_string();
    assert_eq!(
        error,
        format!(
            "{} has no line of times that begins with cpu",
            gone.display()
        )
    );
    assert!(CgroupCpu::open(folder.folder()).is_err());
}

/// Beginnings that no bounds hold, and what laws make of any samples from there.
#[test]
fn a_law_that_begins_out_of_its_bounds_comes_into_them() {
    let initials = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -3.0, 0.0, 1e300];
    for initial in initials {
        let laws: Vec<Box<dyn LimitAlgorithm>> = vec![
            Box::new(Little::new(bounds()).initial(initial)),
            Box::new(Aimd::new(bounds()).initial(initial)),
            Box::new(Vegas::new(bounds()).initial(initial)),
            Box::new(Gradient::new(bounds()).initial(initial)),
            Box::new(Gradient2::new(bounds()).initial(initial)),
            Box::new(Windowed::new(Gradient2::new(bounds()).initial(initial))),
            Box::new(Bbr::new(bounds()).initial(initial)),
            Box::new(SelfTuning::new(bounds(), 0.9).unwrap().initial(initial)),
            Box::new(
                LatencyThreshold::running(bounds(), 2.0, 0.9)
                    .unwrap()
                    .initial(initial),
            ),
            Box::new(
                Damped::new(Aimd::new(bounds()).initial(initial))
                    .damping(0.5)
                    .unwrap(),
            ),
            Box::new(
                Damped::new(Little::new(bounds()).initial(initial))
                    .max_step(0.1)
                    .unwrap(),
            ),
        ];
        for (number, law) in laws.into_iter().enumerate() {
            let controller = AdaptiveController::new(law);
            for sample in senseless() {
                controller.observe(&sample);
                let limit = controller.limit::<Sample>();
                assert!(
                    (5.0..=100.0).contains(&limit),
                    "law {number} from {initial}: {limit}"
                );
            }
            // What is put in force is what the law itself goes on from.
            for _ in 0..3_000 {
                controller.observe(&Sample::new(Duration::from_millis(10), 200).at(END));
            }
            let own = controller.with_law(|law| law.limit());
            assert!(own.is_finite(), "law {number} from {initial}: {own}");
        }
    }
}

/// As late as it can be, so that no law takes it to have begun under an earlier limit.
const END: Timestamp = Timestamp::from_nanos(u64::MAX);

fn senseless() -> impl Iterator<Item = Sample> {
    (0..4_000_u64).map(|number| {
        let rtt = match number % 5 {
            0 => Duration::MAX,
            1 => Duration::from_nanos(1),
            2 => Duration::from_millis(number),
            3 => Duration::ZERO,
            _ => Duration::from_secs(1 << (number % 40)),
        };
        let in_flight = [0, 1, 50, u32::MAX][usize::try_from(number % 4).unwrap()];
        let at = Timestamp::from_millis(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20);
        let sample = Sample::new(rtt, in_flight).at(at);
        if number % 7 == 0 {
            sample.dropped()
        } else {
            sample
        }
    })
}

/// An operator's override is in force with the next reading, also with one that changes nothing.
#[test]
fn a_limit_that_was_set_is_put_in_force_by_a_reading_that_is_on_target() {
    let law = GaugeTarget::new(bounds(), 0.7).unwrap().initial(50.0);
    let controller = AdaptiveController::new(law);
    let limiter = ConcurrencyLimiter::new(50);
    controller.set_limit(10.0);
    assert_eq!(controller.observe_and_apply(&limiter, &0.7), None);
    assert_eq!(limiter.peek().limit, 10);
}

#[test]
fn of_two_changes_at_once_the_later_is_in_force() {
    let limiter = Arc::new(Limiter::with_clock(Rate::per_second(64), Manual::new()));
    let law = Aimd::new(Bounds::new(1.0, 64.0).unwrap()).initial(64.0);
    let dropped = Sample::new(Duration::from_millis(1), u32::MAX).dropped();
    // Another call ends after the law has changed and before that is in force.
    let other: Arc<OnceLock<AdaptiveController<Aimd>>> = Arc::default();
    let nested = {
        let (limiter, other, once) = (
            Arc::clone(&limiter),
            Arc::clone(&other),
            AtomicBool::new(true),
        );
        move |_: &LimitChange| {
            if once.swap(false, Ordering::Relaxed) {
                other
                    .get()
                    .unwrap()
                    .observe_and_apply_rate(&limiter, &dropped)
                    .unwrap();
            }
        }
    };
    let controller = AdaptiveController::new(law).on_change(nested);
    other.set(controller.clone()).unwrap();
    controller
        .observe_and_apply_rate(&limiter, &dropped)
        .unwrap();
    assert_eq!(controller.limit(), 16.0);
    assert_eq!(limiter.rate().as_per_second(), 16.0);
}
