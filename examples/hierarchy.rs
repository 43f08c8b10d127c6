//! A site of 10,000 a second: /search has a guaranteed rate of 5,000, /upload of 1,000, and each user of 10. Idle
//! rates are lent to the others by weight.

use std::error::Error;
use std::time::Duration;

use tollgate::clock::Manual;
use tollgate::{
    ClassTree, Rate,
    tree::{Class, Leaf},
};

const USERS: u32 = 100;
/// The first seconds aren't counted: buckets start full, and idle classes fill theirs first.
const SETTLE_TIME: u32 = 8;
const COUNTED_TIME: u32 = 5;

/// Requests a second of search, upload and all users together.
type Rates = [u64; 3];

/// The requests that pass in a second, for these request rates.
fn count_passed(asked: Rates) -> Result<Rates, Box<dyn Error>> {
    let clock = Manual::new();
    let root = Rate::per_second(10_000);
    let tree = ClassTree::builder(root).clock(clock.clone()).build()?;
    let rate = Rate::per_second;
    let routes = tree.add_branch("routes", tree.root(), Class::new(rate(6_000)).ceiling(root))?;
    let search = tree.add_leaf("search", routes, Class::new(rate(5_000)).ceiling(root))?;
    let upload = tree.add_leaf("upload", routes, Class::new(rate(1_000)).ceiling(root))?;
    let class = Class::new(rate(10)).ceiling(rate(100));
    let users = tree.add_leaves("user", tree.root(), class, USERS)?;
    let users: Vec<Leaf> = (0..USERS).map(|user| tree.leaf(users, &user)).collect();

    let mut passed = [0; 3];
    let mut next_user = users.iter().cycle();
    for tick in 0..u64::from(SETTLE_TIME + COUNTED_TIME) * 10_000 {
        for (kind, asked) in asked.iter().enumerate() {
            let due = (tick + 1) * asked / 10_000 - tick * asked / 10_000;
            for _ in 0..due {
                let leaf = match kind {
                    0 => search,
                    1 => upload,
                    _ => *next_user.next().ok_or("there are users")?,
                };
                let allowed = tree.allow(leaf);
                if tick >= u64::from(SETTLE_TIME) * 10_000 {
                    passed[kind] += u64::from(allowed);
                }
            }
        }
        clock.advance(Duration::from_micros(100));
    }
    Ok(passed.map(|in_all| in_all / u64::from(COUNTED_TIME)))
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("      asked for a second             passed a second");
    println!("  search  upload   users       search  upload   users");
    let mixes: [(&str, Rates, Rates); 6] = [
        // 3,000 are guaranteed to no class. They are shared by weight: 6 : 1 between the routes and the users, 5 : 1
        // between the routes.
        (
            "all want all",
            [12_000, 12_000, 9_000],
            [7_143, 1_429, 1_429],
        ),
        ("within rates", [5_000, 1_000, 1_000], [5_000, 1_000, 1_000]),
        ("search idle", [0, 12_000, 9_000], [0, 8_571, 1_429]),
        ("search alone", [20_000, 0, 0], [10_000, 0, 0]),
        ("quiet upload", [20_000, 300, 0], [9_700, 300, 0]),
        ("users to ceil", [0, 0, 20_000], [0, 0, 10_000]),
    ];
    for (name, asked, expected) in mixes {
        let passed = count_passed(asked)?;
        let columns = |rates: Rates| rates.map(|rate| format!("{rate:>8}")).concat();
        println!("{}     {}   {name}", columns(asked), columns(passed));
        for kind in 0..3 {
            let off = passed[kind].abs_diff(expected[kind]);
            assert!(
                off * 50 <= expected[kind],
                "{name}: {passed:?}, not {expected:?}"
            );
            let sure = [5_000, 1_000, 1_000][kind].min(asked[kind]);
            assert!(
                passed[kind] * 1_000 >= sure * 999,
                "{name}: less than its rate"
            );
        }
        let total: u64 = passed.iter().sum();
        let wanted = asked.iter().sum::<u64>().min(10_000);
        assert!(total * 100 >= wanted * 99, "{name}: {total} of {wanted}");
    }
    Ok(())
}
