//! Reserve, then settle: the tokens of a model's response are known only afterwards. An estimate is reserved while
//! the request runs, and the unused part is refunded.

use std::error::Error;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    Algorithm, CompositeLimiter, Limit, Quota, QuotaLimiter, Rate, StoredKeyLimiter,
    stack::CostReservation,
};

/// The budget of a tenant: a minute's worth in one burst.
const A_MINUTE: u64 = 60_000;
const A_DAY: u64 = 3_000_000;
/// The most that a request can cost, which is all that is known when it arrives.
const ESTIMATE: u64 = 4_000;
/// After this many seconds, a request that isn't settled is charged its estimate.
const LONGEST: u64 = 60;
/// The seconds for which two requests arrive each second.
const BUSY: u64 = 600;
/// The request whose client disconnects: its usage isn't reported.
const DROPPED: u64 = 5;
/// The request that is cancelled before it spends anything.
const CANCELLED: u64 = 7;
/// The request that runs longer than its reservation.
const HUNG: u64 = 9;

/// The actual cost of a request: about a thousand tokens.
const fn cost(number: u64) -> u64 {
    250 + number * 7_919 % 1_501
}

/// The duration of a request, in seconds.
const fn run_time(number: u64) -> u64 {
    match number {
        DROPPED | CANCELLED => 2,
        HUNG => LONGEST + 40,
        _ => 5 + number * 31 % 16,
    }
}

/// The result of ten busy minutes.
struct MinuteTotals {
    served: u64,
    refused: u64,
    /// Spent tokens: the arrival and the end of each request, and the number.
    spent: Vec<(u64, u64, u64)>,
    /// The charge to the daily quota.
    charged: u64,
}

impl MinuteTotals {
    fn tokens(&self) -> u64 {
        self.spent.iter().map(|(_, _, tokens)| tokens).sum()
    }

    /// The used part of the limit, in percent.
    fn utilisation(&self) -> u64 {
        let last = self.spent.iter().map(|(_, done, _)| *done).max();
        100 * self.tokens() / max_possible(last.unwrap_or(0).max(BUSY))
    }

    /// The most tokens that were spent in any span of this many seconds, counted at the arrival or at the end of each
    /// request.
    fn most_within(&self, seconds: u64) -> u64 {
        let within = |from: u64, when: fn(&(u64, u64, u64)) -> u64| {
            let inside = |spent: &&(u64, u64, u64)| (from..from + seconds).contains(&when(spent));
            let inside = self.spent.iter().filter(inside);
            inside.map(|(_, _, tokens)| tokens).sum::<u64>()
        };
        let spans = (0..BUSY + LONGEST)
            .map(|from| within(from, |spent| spent.0).max(within(from, |spent| spent.1)));
        spans.max().unwrap_or(0)
    }
}

/// The most tokens that the limit allows in this many seconds.
const fn max_possible(seconds: u64) -> u64 {
    A_MINUTE + A_MINUTE * seconds / 60
}

/// A tenant's limits on a clock of its own.
struct Budget {
    minute: StoredKeyLimiter<String, Manual>,
    day: QuotaLimiter<Manual>,
    stack: CompositeLimiter,
    clock: Manual,
}

impl Budget {
    fn new() -> Result<Self, Box<dyn Error>> {
        let clock = Manual::new();
        Ok(Self {
            minute: StoredKeyLimiter::builder(Rate::per_minute(A_MINUTE), 1_000)
                .algorithm(Algorithm::TokenBucket)
                .clock(clock.clone())
                .build()?,
            day: QuotaLimiter::builder(Quota::per_day(A_DAY), 1_000_000)
                .clock(clock.clone())
                .build()?,
            stack: CompositeLimiter::new(),
            clock,
        })
    }

    /// Reserves the estimate while a request runs, then settles the actual cost.
    fn with_settlement(&self) -> MinuteTotals {
        let (minute, day) = (self.minute.key("acme"), self.day.key("acme"));
        let levels = [
            Limit::estimated("tokens a minute", &minute, ESTIMATE),
            Limit::estimated("tokens a day", &day, ESTIMATE),
        ];
        let mut running: Vec<(u64, u64, CostReservation<'_>)> = Vec::new();
        let (mut served, mut refused, mut spent) = (0, 0, Vec::new());
        for second in 0..BUSY + 2 * LONGEST {
            let done = |&mut (number, came, _): &mut (u64, u64, CostReservation<'_>)| {
                second >= came + run_time(number)
            };
            for (number, came, hold) in running.extract_if(.., done) {
                match number {
                    DROPPED => {
                        // The estimate stays charged.
                        drop(hold);
                        spent.push((came, second, ESTIMATE));
                    }
                    CANCELLED => hold.cancel(),
                    HUNG => {
                        // Too late: the reservation has expired, so the estimate is already charged.
                        hold.settle(cost(number));
                        spent.push((came, came + LONGEST, ESTIMATE));
                    }
                    _ => {
                        hold.settle(cost(number));
                        spent.push((came, second, cost(number)));
                    }
                }
            }
            for _ in 0..if second < BUSY { 2 } else { 0 } {
                let longest = Duration::from_secs(LONGEST);
                match self.stack.hold(&levels, longest) {
                    Ok(hold) => {
                        running.push((served, second, hold));
                        served += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
            self.clock.advance(Duration::from_secs(1));
        }
        assert!(running.is_empty());
        self.minutes(served, refused, spent)
    }

    /// Charges the estimate, whatever a request costs.
    fn without_settlement(&self) -> MinuteTotals {
        let (minute, day) = (self.minute.key("acme"), self.day.key("acme"));
        let levels = [
            Limit::new("tokens a minute", &minute).cost(ESTIMATE),
            Limit::new("tokens a day", &day).cost(ESTIMATE),
        ];
        let (mut served, mut refused, mut spent) = (0, 0, Vec::new());
        for second in 0..BUSY {
            for _ in 0..2 {
                if self.stack.allow(&levels).is_some() {
                    spent.push((second, second + run_time(served), cost(served)));
                    served += 1;
                } else {
                    refused += 1;
                }
            }
            self.clock.advance(Duration::from_secs(1));
        }
        self.minutes(served, refused, spent)
    }

    fn minutes(&self, served: u64, refused: u64, spent: Vec<(u64, u64, u64)>) -> MinuteTotals {
        MinuteTotals {
            served,
            refused,
            spent,
            charged: A_DAY - self.day.peek("acme").remaining,
        }
    }
}

/// One request step by step: what a reservation takes, and what is refunded.
fn step_by_step() -> Result<(), Box<dyn Error>> {
    let budget = Budget::new()?;
    let acme = budget.minute.key("acme");
    let levels = [Limit::estimated("tokens a minute", &acme, ESTIMATE)];
    let left = |what: &str, expected: u64| {
        let left = budget.minute.key("acme").peek().remaining;
        println!("{what:<46} {left:>6} left");
        assert_eq!(left, expected, "{what}");
    };
    let longest = Duration::from_secs(LONGEST);
    let hold = || budget.stack.hold(&levels, longest);
    let first = hold().map_err(|refusal| refusal.to_string())?;
    left("a request holds 4,000", 56_000);
    budget.clock.advance(Duration::from_secs(30));
    left("half a minute later: what is out doesn't drain", 56_000);
    first.settle(1_200);
    left("it is settled at 1,200", 58_800);
    let second = hold().map_err(|refusal| refusal.to_string())?;
    second.cancel();
    left("another is cancelled, and has spent nothing", 58_800);
    let third = hold().map_err(|refusal| refusal.to_string())?;
    budget.clock.advance(longest);
    left("a third is over after a minute, all spent", 56_000);
    third.settle(100);
    left("it is too late to settle it", 56_000);
    println!();
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    step_by_step()?;

    let settled = Budget::new()?.with_settlement();
    let charged = Budget::new()?.without_settlement();
    println!("ten minutes, two requests a second, 60,000 tokens a minute:");
    println!("                       served  refused   tokens  of what is allowed");
    for (what, minutes) in [
        ("hold, then settle", &settled),
        ("charge the estimate", &charged),
    ] {
        println!(
            "{what:<22} {:>6} {:>8} {:>8} {:>17} %",
            minutes.served,
            minutes.refused,
            minutes.tokens(),
            minutes.utilisation()
        );
    }
    assert!(settled.utilisation() >= 85, "{}", settled.utilisation());
    assert!(charged.utilisation() <= 30, "{}", charged.utilisation());

    // No span of time has more than the limit allows, however long requests run.
    println!();
    for seconds in [1, 10, 60, 300] {
        let (most, bound) = (settled.most_within(seconds), max_possible(seconds));
        println!("most in any {seconds:>3} s: {most:>7} of {bound:>7} tokens");
        assert!(most <= bound, "{most} in {seconds} s, above {bound}");
    }

    // The daily quota was charged the actual costs, not the estimates.
    println!(
        "the day: {} charged, {} spent",
        settled.charged,
        settled.tokens()
    );
    assert_eq!(settled.charged, settled.tokens());
    assert_eq!(charged.charged, charged.served * ESTIMATE);
    Ok(())
}
