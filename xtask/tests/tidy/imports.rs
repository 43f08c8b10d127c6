//! Imports between modules go one way.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::{files, root};

/// Which modules of a crate each of its modules imports from, apart from tests.
fn imports(source: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut sources = Vec::new();
    files(source, "rs", &mut sources);
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in sources {
        let path = file.strip_prefix(source).unwrap().with_extension("");
        let mut parts = path.iter().map(|part| part.to_string_lossy().into_owned());
        let own = parts.next().unwrap_or_default();
        if own == "lib" || parts.any(|part| part == "tests") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or("");
        let code = text.lines().filter(|line| !line.trim().starts_with("//"));
        for after in code.flat_map(|line| line.split("crate::").skip(1)) {
            let end = after.find(|sign: char| !sign.is_ascii_lowercase() && sign != '_');
            let other = &after[..end.unwrap_or(after.len())];
            if !other.is_empty() && other != own {
                imports
                    .entry(own.clone())
                    .or_default()
                    .insert(other.to_owned());
            }
        }
    }
    imports
}

/// All modules that one needs, directly or by others.
fn needed(imports: &BTreeMap<String, BTreeSet<String>>, module: &str) -> BTreeSet<String> {
    let (mut found, mut open) = (BTreeSet::new(), vec![module.to_owned()]);
    while let Some(next) = open.pop() {
        for other in imports.get(&next).into_iter().flatten() {
            if found.insert(other.clone()) {
                open.push(other.clone());
            }
        }
    }
    found
}

#[test]
fn modules_import_one_way() {
    // The engine asks backends, and both speak of limits.
    let engine = imports(&root().join("crates/tollgate-engine/src"));
    for (module, above) in [
        ("backend", "engine"),
        ("limits", "engine"),
        ("limits", "backend"),
    ] {
        assert!(engine.contains_key(module), "no module {module}");
        assert!(
            !needed(&engine, module).contains(above),
            "{module} needs {above}, which is above it"
        );
    }
    let redis = imports(&root().join("crates/tollgate-redis/src"));
    assert!(redis.contains_key("direct") && redis.contains_key("store"));
    for module in redis.keys() {
        assert!(
            !needed(&redis, module).contains(module),
            "{module} of tollgate-redis needs itself, by others"
        );
    }
}
