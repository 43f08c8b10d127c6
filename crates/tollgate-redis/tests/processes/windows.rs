//! Whether any window holds more admissions than a limit allows.

use tollgate::Rate;
use tollgate_testkit::traffic::Random;

/// The store's clock shows microseconds: two of its times may be so much closer than they were.
const GRAIN: i128 = 1_000;

/// An admission, which was decided some time between these, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admission {
    pub(crate) asked: u64,
    pub(crate) told: u64,
    /// By the node itself.
    pub(crate) is_local: bool,
}

/// A window that holds more than the limit allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) admitted: u64,
}

/// Looks at every window, and counts those admissions in it that were asked for and told within. Returns
/// the first that ends with an excess.
///
/// For each end, a tree has the number of admissions since each start, as (number · period + count ·
/// start): the largest of them decides.
pub(crate) fn excess(admissions: &[Admission], rate: Rate) -> Option<Excess> {
    let period = i128::try_from(rate.period()?.as_nanos()).expect("few years");
    let (count, burst) = (i128::from(rate.count()), i128::from(rate.burst_size()));
    let mut starts: Vec<u64> = admissions.iter().map(|one| one.asked).collect();
    starts.sort_unstable();
    starts.dedup();
    let mut ends = admissions.to_vec();
    ends.sort_unstable_by_key(|one| one.told);
    let owed = starts.iter().map(|start| count * i128::from(*start));
    let mut since = Tree::new(owed.collect());
    let mut most = 0;
    for (number, end) in ends.iter().enumerate() {
        let place = starts.partition_point(|start| *start <= end.asked);
        since.add_to_first(place, period);
        most = most.max(place);
        // Those told at the same time belong to it.
        if ends
            .get(number + 1)
            .is_some_and(|next| next.told == end.told)
        {
            continue;
        }
        let (largest, place) = since.largest_of_first(most);
        let to = i128::from(end.told);
        if largest - count * to > burst * period + count * GRAIN {
            let from = starts[place];
            let admitted = (largest - count * i128::from(from)) / period;
            return Some(Excess {
                from,
                to: end.told,
                admitted: u64::try_from(admitted).expect("as many as came"),
            });
        }
    }
    None
}

/// Numbers to whose first ones something is added, and whose largest is asked for.
struct Tree {
    size: usize,
    /// The largest below each node, without what was added above it.
    largest: Vec<i128>,
    added: Vec<i128>,
}

impl Tree {
    fn new(numbers: Vec<i128>) -> Self {
        let size = numbers.len().next_power_of_two();
        let mut largest = vec![i128::MIN / 2; 2 * size];
        largest[size..size + numbers.len()].copy_from_slice(&numbers);
        for node in (1..size).rev() {
            largest[node] = largest[2 * node].max(largest[2 * node + 1]);
        }
        Self {
            size,
            largest,
            added: vec![0; 2 * size],
        }
    }

    fn add_to_first(&mut self, end: usize, number: i128) {
        self.add((1, 0, self.size), end, number);
    }

    fn add(&mut self, (node, from, to): (usize, usize, usize), end: usize, number: i128) {
        if end <= from {
            return;
        }
        if to <= end {
            self.largest[node] += number;
            self.added[node] += number;
            return;
        }
        let middle = from.midpoint(to);
        self.add((2 * node, from, middle), end, number);
        self.add((2 * node + 1, middle, to), end, number);
        let below = self.largest[2 * node].max(self.largest[2 * node + 1]);
        self.largest[node] = below + self.added[node];
    }

    /// The largest, and its place.
    fn largest_of_first(&self, end: usize) -> (i128, usize) {
        self.find((1, 0, self.size), end)
    }

    fn find(&self, (node, from, to): (usize, usize, usize), end: usize) -> (i128, usize) {
        if end <= from {
            return (i128::MIN / 2, from);
        }
        if to - from == 1 {
            return (self.largest[node], from);
        }
        let middle = from.midpoint(to);
        let is_left = self.largest[2 * node] >= self.largest[2 * node + 1];
        // All of it counts: the larger half has the largest.
        let (largest, place) = match (to <= end, is_left) {
            (true, true) => self.find((2 * node, from, middle), end),
            (true, false) => self.find((2 * node + 1, middle, to), end),
            (false, _) => {
                let left = self.find((2 * node, from, middle), end);
                let right = self.find((2 * node + 1, middle, to), end);
                if left.0 >= right.0 { left } else { right }
            }
        };
        (largest + self.added[node], place)
    }
}

#[test]
fn the_quick_search_finds_what_the_slow_one_does() {
    let mut random = Random::new(1);
    let mut below = |most| random.below(most);
    let rate: Rate = "100/s burst 5".parse().unwrap();
    let mut found = 0;
    for _ in 0..2_000 {
        let spread = 10_000_000 * (1 + below(30));
        let admissions: Vec<Admission> = (0..1 + below(30))
            .map(|_| {
                let asked = 1_700_000_000_000_000_000 + below(spread);
                let told = asked + below(20_000_000);
                Admission {
                    asked,
                    told,
                    is_local: false,
                }
            })
            .collect();
        let quick = excess(&admissions, rate);
        assert_eq!(
            quick.is_some(),
            has_excess(&admissions, rate),
            "{admissions:?}"
        );
        if let Some(Excess { from, to, admitted }) = quick {
            let within = |one: &&Admission| from <= one.asked && one.told <= to;
            let counted = admissions.iter().filter(within).count();
            assert_eq!(u64::try_from(counted).unwrap(), admitted);
            found += 1;
        }
    }
    assert!((200..1_800).contains(&found), "{found} of both kinds");
}

#[test]
fn one_more_than_the_limit_is_found() {
    let rate: Rate = "1000/s burst 10".parse().unwrap();
    // Ten at once, and one each millisecond after that.
    let at = |number: u64| {
        let told = 1_700_000_000_000_000_000 + number.saturating_sub(9) * 1_000_000;
        Admission {
            asked: told,
            told,
            is_local: false,
        }
    };
    let mut admissions: Vec<Admission> = (0..5_000).map(at).collect();
    assert_eq!(excess(&admissions, rate), None);
    admissions.push(at(3_000));
    let found = excess(&admissions, rate).unwrap();
    assert_eq!((found.from, found.to), (at(0).asked, at(3_000).told));
    assert_eq!(found.admitted, 3_002);
}

/// The same, slowly.
fn has_excess(admissions: &[Admission], rate: Rate) -> bool {
    let period = i128::try_from(rate.period().expect("a limit").as_nanos()).expect("few years");
    let (count, burst) = (i128::from(rate.count()), i128::from(rate.burst_size()));
    admissions.iter().any(|first| {
        admissions.iter().any(|last| {
            let (from, to) = (first.asked, last.told);
            let within = |one: &&Admission| from <= one.asked && one.told <= to;
            let admitted = i128::try_from(admissions.iter().filter(within).count()).expect("few");
            let length = i128::from(to) - i128::from(from) + GRAIN;
            length >= GRAIN && admitted * period > burst * period + count * length
        })
    })
}
