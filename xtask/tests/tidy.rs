//! What no compiler checks: every source file says what lives in it, and fits in a head.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Files above this length want to be two.
const MOST_LINES: usize = 600;

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder that can be listed") {
        let path = entry.expect("an entry that can be read").path();
        let name = path.file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                sources(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_source_file_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    sources(root, &mut files);
    assert!(files.len() > 30, "only {} sources found", files.len());
    let mut problems = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let shown = file.strip_prefix(root).unwrap().display();
        if !text.starts_with("//!") {
            problems.push(format!(
                "{shown}: doesn't open with a //! line saying what lives there"
            ));
        }
        let lines = text.lines().count();
        if lines > MOST_LINES {
            problems.push(format!("{shown}: {lines} lines, more than {MOST_LINES}"));
        }
        // Spelled in two parts so that this file doesn't find itself.
        for unfinished in [
            concat!("todo", "!("),
            concat!("unimplemented", "!("),
            concat!("FIX", "ME"),
        ] {
            if text.contains(unfinished) {
                problems.push(format!("{shown}: contains {unfinished}"));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Which modules of a crate each of its modules imports from, apart from tests.
fn imports(source: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut files = Vec::new();
    sources(source, &mut files);
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in files {
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
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    // The engine asks backends, and both speak of limits.
    let engine = imports(&root.join("crates/tollgate-engine/src"));
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
    let redis = imports(&root.join("crates/tollgate-redis/src"));
    assert!(redis.contains_key("direct") && redis.contains_key("store"));
    for module in redis.keys() {
        assert!(
            !needed(&redis, module).contains(module),
            "{module} of tollgate-redis needs itself, by others"
        );
    }
}
