//! Checks of admitted requests: every window, against the limits that were in force in it.

use tollgate::Rate;

/// Time, amount and limit; all limits have one period. An amount of 0 is a query that reported usage and
/// admitted nothing.
pub(crate) type Admitted = (u64, u64, Rate);

/// No window holds more than the largest burst of the limits that admitted something in it, plus the fastest
/// rate of those that were queried in it times its length.
pub(crate) fn check(admitted: &[Admitted]) {
    for (first, (start, much, rate)) in admitted.iter().enumerate() {
        if *much == 0 {
            continue;
        }
        let period = rate.period().expect("a rate with a period").as_micros();
        let (mut sum, mut burst, mut count) = (0, 0, 0);
        for (end, much, rate) in &admitted[first..] {
            count = count.max(u128::from(rate.count()));
            if *much == 0 {
                continue;
            }
            sum += u128::from(*much);
            burst = burst.max(u128::from(rate.burst_size()));
            let allowed = burst * period + count * u128::from(end - start);
            assert!(
                sum * period <= allowed,
                "{sum} from {start} to {end}: {}.{} more than {burst} and {count} in {period} µs",
                (sum * period - allowed) / period,
                (sum * period - allowed) % period * 10 / period,
            );
        }
    }
}

/// The larger burst and the faster rate of two.
pub(crate) fn looser(one: Rate, other: Rate) -> Rate {
    let period = one.period().expect("a rate with a period");
    assert_eq!(other.period(), Some(period));
    let burst = one.burst_size().max(other.burst_size());
    Rate::new(one.count().max(other.count()), period).burst(burst)
}
