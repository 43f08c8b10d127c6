//! That the tables of words in docs/internals/decisions/names.md are true: which word is on which type, and what is at the root.
//!
//! A cell is compared with the `pub fn`s of the sources, both ways; the verbs are also named in code.
#![cfg(feature = "quota")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use tollgate::clock::{Manual, Monotonic};
use tollgate::{
    ClassTree, ConcurrencyLimiter, FairLimiter, Limiter, QuotaLimiter, Tiers, concurrency, keyed,
    lanes, stored_keys,
};

const DESIGN: &str = include_str!("../../../docs/internals/decisions/names.md");
const ROOT: &str = include_str!("../src/lib.rs");

/// Names that several modules have, each for the same part that it plays there.
const ROLES: [&str; 8] = [
    "Acquire",
    "Acquiring",
    "Builder",
    "Key",
    "OwnedKey",
    "Receipt",
    "Settings",
    "Stats",
];

/// Types that have aliases in several modules: how such an alias is written, and the module and type with what is common to all.
const GENERIC: [(&str, &str, &str); 3] = [
    ("= WithClock<", "clock", "WithClock"),
    ("= WithClock<TableSettings<", "key_table", "WithClock"),
    ("= KeyHandle<", "key_handle", "KeyHandle"),
];

type Names = BTreeSet<String>;

/// The words that a type has by the tables: of each column, in each row.
fn tables() -> Vec<(String, BTreeMap<String, bool>)> {
    let mut columns: Vec<(String, BTreeMap<String, bool>)> = Vec::new();
    let mut header: Vec<usize> = Vec::new();
    for line in DESIGN.lines() {
        let cells: Vec<_> = line
            .trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().trim_matches('`'))
            .collect();
        if !line.starts_with('|') {
            header.clear();
        } else if line.starts_with("| word | `") {
            for name in &cells[1..] {
                header.push(columns.len());
                columns.push(((*name).to_owned(), BTreeMap::new()));
            }
        } else if !header.is_empty() && !cells[0].starts_with('-') {
            for (number, cell) in header.iter().zip(&cells[1..]) {
                assert!(["yes", ""].contains(cell), "{line}");
                let words = &mut columns[*number].1;
                words.insert(cells[0].to_owned(), *cell == "yes");
            }
        }
    }
    columns
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// The type that a line opens an `impl` of, if it is one of a type itself.
fn implemented(line: &str) -> Option<String> {
    let rest = line.strip_prefix("impl")?;
    // What follows the parameters, which may have some of their own.
    let mut depth = 0_usize;
    let start = rest.char_indices().find(|(_, c)| {
        match c {
            '<' => depth += 1,
            '>' => depth -= 1,
            _ => return depth == 0,
        }
        false
    })?;
    let named = rest[start.0..].trim_start();
    if named.contains(" for ") || line.contains(" for ") {
        return None;
    }
    let end = named.find(|c: char| !c.is_alphanumeric() && c != '_');
    Some(named[..end.unwrap_or(named.len())].to_owned())
}

/// The public functions of each type, by its module and name.
fn functions() -> BTreeMap<(String, String), Names> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&folder, &mut files);
    let mut known: BTreeMap<_, Names> = BTreeMap::new();
    let mut aliases = Vec::new();
    for file in files {
        let within = file.strip_prefix(&folder).expect("a source");
        let module = within.components().next().expect("a name");
        let module = module.as_os_str().to_string_lossy();
        let module = module.trim_end_matches(".rs").to_owned();
        let text = fs::read_to_string(&file).expect("a text");
        // An alias that is too long for a line.
        let text = text.replace("=\n    WithClock<", "= WithClock<");
        let mut owner = None;
        for line in text.lines() {
            if line.starts_with("impl") {
                owner = implemented(line);
            }
            let alias = line.strip_prefix("pub type ");
            if let Some((name, _)) = alias.and_then(|alias| alias.split_once('<')) {
                let alias = (module.clone(), name.to_owned());
                let generic = GENERIC
                    .iter()
                    .filter(|(written, ..)| line.contains(written));
                aliases.extend(generic.map(|(_, home, generic)| (alias.clone(), home, generic)));
            }
            let public = line.strip_prefix("    pub ").unwrap_or_default();
            let public = public.trim_start_matches("const ").strip_prefix("fn ");
            if let (Some(owner), Some(public)) = (&owner, public) {
                let end = public.find(['(', '<']).expect("a signature");
                let key = (module.clone(), owner.clone());
                known
                    .entry(key)
                    .or_default()
                    .insert(public[..end].to_owned());
            }
        }
    }
    for ((module, name), home, generic) in aliases {
        // What is common to all such types, and what this module adds to its own.
        for home in [*home, &module] {
            let common = known.get(&(home.to_owned(), (*generic).to_owned()));
            let common = common.cloned().unwrap_or_default();
            let own = known.entry((module.clone(), name.clone())).or_default();
            own.extend(common);
        }
    }
    known
}

/// The names that a file uses publicly, and where they come from.
fn used(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for statement in text.split(';') {
        let Some((_, path)) = statement.rsplit_once("\npub use ") else {
            continue;
        };
        let (from, names) = path.rsplit_once("::").map_or(("", path), |(from, last)| {
            match path.split_once("::{") {
                Some((from, names)) => (from, names.trim_end_matches('}')),
                None => (from, last),
            }
        });
        let names = names
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty());
        found.extend(names.map(|name| (from.to_owned(), name.to_owned())));
    }
    found
}

#[test]
fn the_root_has_the_limits_and_the_words_they_share() {
    let names: Names = used(ROOT).into_iter().map(|(_, name)| name).collect();
    let expected = [
        "Algorithm",
        "ClassTree",
        "Clock",
        "CompositeLimiter",
        "ConcurrencyLimiter",
        "Decision",
        "DenyReason",
        "FairLimiter",
        "KeyedConcurrencyLimiter",
        "KeyedLimiter",
        "Lanes",
        "Limit",
        "LimitError",
        "Limiter",
        "OnMissingKey",
        "Outcome",
        "Quota",
        "QuotaLimiter",
        "Rate",
        "RateDenied",
        "Reservation",
        "StoredKeyLimiter",
        "Tier",
        "Tiers",
        "Timestamp",
        "WhenFull",
        "tollgate_core as core",
    ];
    let expected: Names = expected.map(String::from).into();
    assert_eq!(names, expected);
}

#[test]
fn a_name_in_two_modules_plays_the_same_part_in_both() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let modules = ROOT.lines().filter_map(|line| {
        let module = line.strip_prefix("pub mod ")?.strip_suffix(';')?;
        (module != "clock").then_some(module)
    });
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for module in modules {
        let text = fs::read_to_string(folder.join(format!("{module}.rs"))).expect("a module");
        let own = used(&text).into_iter();
        // What another module defines and this one shows too is one thing.
        let own = own.filter(|(from, _)| !from.starts_with("crate::") || module == "wait");
        let defined = text.lines().filter_map(|line| {
            let line = line.strip_prefix("pub ")?;
            let name = ["struct ", "enum ", "trait ", "type "]
                .iter()
                .find_map(|kind| line.strip_prefix(kind))?;
            let end = name.find(|c: char| !c.is_alphanumeric())?;
            Some(name[..end].to_owned())
        });
        let names: Names = own.map(|(_, name)| name).chain(defined).collect();
        for name in names {
            places.entry(name).or_default().push(module.to_owned());
        }
    }
    assert!(places.contains_key("Permit") && places["Builder"].len() >= 9);
    places.retain(|name, modules| modules.len() > 1 && !ROLES.contains(&name.as_str()));
    assert_eq!(places, BTreeMap::new());
}

#[test]
fn each_word_is_on_the_types_that_the_tables_say() {
    let (columns, functions) = (tables(), functions());
    let homes: BTreeMap<_, _> = used(ROOT)
        .into_iter()
        .map(|(from, name)| (name, from))
        .collect();
    assert!(columns.len() >= 20, "{} columns", columns.len());
    let mut problems = Vec::new();
    for (name, words) in columns {
        let key = match name.split_once("::") {
            Some((module, name)) => (module.to_owned(), name.to_owned()),
            None => (homes[&name].clone(), name.clone()),
        };
        let has = functions.get(&key).expect(&name);
        for (word, said) in words {
            if has.contains(&word) != said {
                problems.push(format!("{name}::{word}: said {said}"));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// What names functions of a type, so that each is there, and tells which they are.
macro_rules! named {
    ($name:literal, $of:ty: $($word:ident $(::<$given:ty>)?),+) => {{
        $(let _ = <$of>::$word $(::<$given>)?;)+
        ($name, [$(stringify!($word)),+].map(String::from).into_iter().collect::<Names>())
    }};
}

#[test]
fn the_verbs_of_the_table_can_be_called() {
    type Keyed = keyed::Key<'static, Manual>;
    type Exact = stored_keys::Key<'static, String, str, Manual>;
    type Slots = concurrency::Key<'static, &'static tollgate::KeyedConcurrencyLimiter<String>, str>;
    let called = [
        named!("Limiter", Limiter<Manual>: allow, allow_n, check, check_n, check_at, peek, peek_at,
            reserve, reserve_at, acquire, acquire_n),
        named!("keyed::Key", Keyed: at, allow, allow_n, check, check_n, check_at, peek, peek_at,
            reserve, reserve_at, acquire, acquire_n, refund, penalize, reset, block_for),
        named!("stored_keys::Key", Exact: at, allow, allow_n, check, check_n, check_at, peek, peek_at,
            reserve, reserve_at, acquire, acquire_n, refund, penalize, reset, block_for),
        named!("ConcurrencyLimiter", ConcurrencyLimiter<Manual>: try_acquire, try_acquire_n, acquire,
            acquire_n, peek),
        named!("concurrency::Key", Slots: at, try_acquire, try_acquire_n, acquire, acquire_n, peek),
        named!("lanes::Lane", lanes::Lane<'static, Manual>: allow, allow_n, check, check_n, acquire,
            acquire_n),
        named!("FairLimiter", FairLimiter<Manual>: allow::<str>, allow_n::<str>, check::<str>,
            check_n::<str>, acquire::<str>, acquire_n::<str>),
        named!("ClassTree", ClassTree<Manual>: allow, allow_n, check, check_n, check_at, peek, peek_at, refund),
        named!("QuotaLimiter", QuotaLimiter<Manual>: check::<str>, check_n::<str>, check_at::<str>,
            peek::<str>, peek_at::<str>, refund::<str>, reset::<str>),
        named!("Tiers", Tiers<Monotonic, Manual>: allow, check, check_n, peek, refund, penalize,
            reset, block_for),
    ];
    let columns: BTreeMap<_, _> = tables().into_iter().take(called.len()).collect();
    for (name, words) in called {
        let said = columns[name].iter().filter(|(_, said)| **said);
        let said: Names = said.map(|(word, _)| word.clone()).collect();
        assert_eq!(said, words, "{name}");
    }
}
