//! Imports between the modules of a crate go one way.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::{files, root};

/// Which modules of a crate each of its modules imports from, apart from tests.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// The code of a file: without comments, and without the tests at its end.
fn code(file: &Path) -> String {
    let text = fs::read_to_string(file).expect("a text file");
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let is_attribute =
        |line: &str| line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test");
    // A module of tests in a file of its own may be named anywhere.
    let is_elsewhere = |line: &str| line.starts_with("mod ") && line.ends_with(';');
    let ends = |place: &usize| {
        is_attribute(lines[*place]) && !lines.get(place + 1).is_some_and(|next| is_elsewhere(next))
    };
    let end = (0..lines.len()).find(ends).unwrap_or(lines.len());
    let code = lines[..end].iter().filter(|line| !line.starts_with("//"));
    code.copied().collect::<Vec<_>>().join("\n")
}

/// The first words of the paths in a list such as `{a::B, c::{D, E}}`, up to its closing brace.
fn path_heads(list: &str) -> Vec<&str> {
    let (mut heads, mut depth, mut start) = (Vec::new(), 0, Some(0));
    for (at, sign) in list.char_indices() {
        match sign {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => start = Some(at + 1),
            _ => {}
        }
        if depth == 0
            && let Some(from) = start
            && !list[from..].trim_start().is_empty()
        {
            heads.push(word(list[from..].trim_start()));
            start = None;
        }
    }
    heads
}

/// The word that a text begins with.
fn word(text: &str) -> &str {
    let end = text.find(|sign: char| !sign.is_ascii_alphanumeric() && sign != '_');
    &text[..end.unwrap_or(text.len())]
}

/// The names that stand behind `crate::`.
fn names(code: &str) -> Vec<&str> {
    let paths = code.split("crate::").skip(1);
    let names = paths.flat_map(|path| match path.strip_prefix('{') {
        Some(list) => path_heads(list),
        None => vec![word(path)],
    });
    names.filter(|name| !name.is_empty()).collect()
}

/// The modules that the names of a crate's root come from.
fn exported(lib: &str) -> BTreeMap<String, String> {
    let mut from = BTreeMap::new();
    for line in lib.split(';') {
        let Some((_, path)) = line.split_once("use ") else {
            continue;
        };
        if let Some((module, names)) = path.trim().split_once("::") {
            let words = names.split(|sign: char| !sign.is_ascii_alphanumeric() && sign != '_');
            from.extend(words.map(|name| (name.to_owned(), module.to_owned())));
        }
    }
    from
}

fn imports(source: &Path) -> Imports {
    let mut sources = Vec::new();
    files(source, "rs", &mut sources);
    let from_root = exported(&code(&source.join("lib.rs")));
    let modules: BTreeMap<_, _> = sources
        .iter()
        .filter_map(|file| {
            let path = file.strip_prefix(source).ok()?.with_extension("");
            let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
            let is_test = parts.iter().any(|part| *part == "tests");
            let own = parts[0].clone().into_owned();
            (own != "lib" && !is_test).then_some((file, own))
        })
        .collect();
    let all: BTreeSet<_> = modules.values().cloned().collect();
    let mut imports = Imports::new();
    for (file, own) in &modules {
        let code = code(file);
        let needed = imports.entry(own.clone()).or_default();
        for name in names(&code) {
            let module = from_root.get(name).map_or(name, String::as_str);
            if module != own && all.contains(module) {
                needed.insert(module.to_owned());
            }
        }
    }
    imports
}

/// All modules that one needs, directly or by others.
fn transitive_imports(imports: &Imports, module: &str) -> BTreeSet<String> {
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

/// The imports that close rings, each as `module -> module`.
fn import_cycles(imports: &Imports) -> Vec<String> {
    let edges = imports
        .iter()
        .flat_map(|(one, others)| others.iter().map(move |other| (one, other)));
    let closing = edges.filter(|(one, other)| transitive_imports(imports, other).contains(*one));
    closing
        .map(|(one, other)| format!("{one} -> {other}"))
        .collect()
}

#[test]
fn no_modules_of_a_crate_import_each_other_in_a_ring() {
    let mut checked = 0;
    for entry in fs::read_dir(root().join("crates")).expect("the crates") {
        let folder = entry.expect("a crate").path();
        let name = folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let rings = import_cycles(&imports(&folder.join("src")));
        assert!(rings.is_empty(), "{name}: {}", rings.join(", "));
        checked += 1;
    }
    assert!(checked >= 10, "only {checked} crates were found");
}

/// The engine asks backends, and both speak of limits.
#[test]
fn backends_know_nothing_of_the_engine() {
    let engine = imports(&root().join("crates/tollgate-engine/src"));
    for (module, above) in [
        ("backend", "engine"),
        ("limits", "engine"),
        ("limits", "backend"),
    ] {
        assert!(engine.contains_key(module), "no module {module}");
        assert!(
            !transitive_imports(&engine, module).contains(above),
            "{module} needs {above}, which is above it"
        );
    }
}

#[test]
fn rings_are_found_through_lists_and_the_root_of_a_crate() {
    let list = "use crate::{a::{B, C}, d, Root};\nlet x = crate::e::f(crate::g);";
    assert_eq!(names(list), ["a", "d", "Root", "e", "g"]);
    let root = exported("mod a;\npub use a::{One, two::Three};\npub use b::Four;\n");
    assert_eq!((root["Three"].as_str(), root["Four"].as_str()), ("a", "b"));
    let ring = |edges: &[(&str, &str)]| {
        let mut imports = Imports::new();
        for (one, other) in edges {
            let others = imports.entry((*one).to_owned()).or_default();
            others.insert((*other).to_owned());
        }
        import_cycles(&imports)
    };
    assert_eq!(ring(&[("a", "b"), ("b", "c"), ("a", "c")]), [""; 0]);
    assert_eq!(
        ring(&[("a", "b"), ("b", "c"), ("c", "b")]),
        ["b -> c", "c -> b"]
    );
}
