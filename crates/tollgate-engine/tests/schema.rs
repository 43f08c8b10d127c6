//! The schema and the decoder agree on every policy, as far as a schema can express it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::sync::LazyLock;

use proptest::prelude::*;
use regex::Regex;
use serde_json::{Map, Value, json};
use tollgate_engine::document::{self, Format, Node};
use tollgate_engine::{Policy, schema};

/// Whether a text is of a pattern, which takes longer to be made than to be used.
fn is_like(pattern: &str, text: &str) -> bool {
    thread_local! {
        static MADE: RefCell<HashMap<String, Regex>> = RefCell::default();
    }
    MADE.with_borrow_mut(|made| {
        let new = || Regex::new(pattern).expect("as the schema is made");
        made.entry(pattern.to_owned())
            .or_insert_with(new)
            .is_match(text)
    })
}

/// A small validator of just the words that the schema uses; any other is an error, so that none is
/// taken for true by being overlooked.
fn conforms(value: &Value, schema: &Value, root: &Value) -> Result<(), String> {
    let rules = schema.as_object().expect("a schema is an object");
    for (word, rule) in rules {
        let fits = match (word.as_str(), value) {
            ("$schema" | "title" | "$defs" | "description" | "examples", _) => true,
            ("$ref", _) => {
                let path = rule
                    .as_str()
                    .expect("as the schema is made")
                    .trim_start_matches('#');
                conforms(value, root.pointer(path).expect(path), root)?;
                true
            }
            ("type", _) => match rule {
                Value::Array(kinds) => kinds.iter().any(|kind| is(value, kind)),
                kind => is(value, kind),
            },
            ("enum", _) => rule
                .as_array()
                .expect("as the schema is made")
                .contains(value),
            ("anyOf", _) => {
                let mut any = rule.as_array().expect("as the schema is made").iter();
                any.any(|schema| conforms(value, schema, root).is_ok())
            }
            ("not", _) => conforms(value, rule, root).is_err(),
            ("allOf", _) => {
                for schema in rule.as_array().expect("as the schema is made") {
                    conforms(value, schema, root)?;
                }
                true
            }
            ("pattern", Value::String(text)) => {
                is_like(rule.as_str().expect("as the schema is made"), text)
            }
            ("minLength", Value::String(text)) => text.chars().count() >= size(rule),
            ("maxLength", Value::String(text)) => text.chars().count() <= size(rule),
            ("minimum", Value::Number(number)) => number.as_f64() >= rule.as_f64(),
            ("maximum", Value::Number(number)) => number.as_f64() <= rule.as_f64(),
            ("exclusiveMinimum", Value::Number(number)) => number.as_f64() > rule.as_f64(),
            ("minItems", Value::Array(items)) => items.len() >= size(rule),
            ("maxItems", Value::Array(items)) => items.len() <= size(rule),
            ("items", Value::Array(items)) => {
                for item in items {
                    conforms(item, rule, root)?;
                }
                true
            }
            ("minProperties", Value::Object(fields)) => fields.len() >= size(rule),
            ("maxProperties", Value::Object(fields)) => fields.len() <= size(rule),
            ("required", Value::Object(fields)) => {
                let mut names = rule.as_array().expect("as the schema is made").iter();
                names.all(|name| fields.contains_key(name.as_str().expect("as the schema is made")))
            }
            ("propertyNames", Value::Object(fields)) => {
                for name in fields.keys() {
                    conforms(&json!(name), rule, root)?;
                }
                true
            }
            ("properties", Value::Object(fields)) => {
                for (name, schema) in rule.as_object().expect("as the schema is made") {
                    if let Some(value) = fields.get(name) {
                        conforms(value, schema, root)?;
                    }
                }
                true
            }
            ("additionalProperties", Value::Object(fields)) => {
                let known = rules.get("properties").and_then(Value::as_object);
                let mut others = fields
                    .iter()
                    .filter(|(name, _)| known.is_none_or(|known| !known.contains_key(*name)));
                match rule {
                    Value::Bool(false) => others.next().is_none(),
                    schema => {
                        for (_, value) in others {
                            conforms(value, schema, root)?;
                        }
                        true
                    }
                }
            }
            // Words about other kinds of value hold of this one.
            (
                "pattern"
                | "minLength"
                | "maxLength"
                | "minimum"
                | "maximum"
                | "exclusiveMinimum"
                | "minItems"
                | "maxItems"
                | "items"
                | "minProperties"
                | "maxProperties"
                | "required"
                | "propertyNames"
                | "properties"
                | "additionalProperties",
                _,
            ) => true,
            (other, _) => panic!("the validator doesn't know {other:?}"),
        };
        if !fits {
            return Err(format!("{value} against {word} {rule}"));
        }
    }
    Ok(())
}

fn size(rule: &Value) -> usize {
    usize::try_from(rule.as_u64().expect("a number")).expect("a small number")
}

fn is(value: &Value, kind: &Value) -> bool {
    match kind.as_str().expect("a kind") {
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_i64() || value.is_u64(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("the validator doesn't know {other:?}"),
    }
}

/// A file's tree as JSON, as editors see it.
fn json(node: &Node) -> Value {
    use document::Value as Tree;
    match &node.value {
        Tree::Null => Value::Null,
        Tree::Bool(is) => json!(is),
        Tree::Integer(number) => json!(number),
        Tree::Float(number) => json!(number),
        Tree::Text(text) => json!(text),
        Tree::List(items) => items.iter().map(json).collect(),
        Tree::Map(fields) => {
            let fields = fields.iter().map(|(name, value)| {
                let name = match &name.value {
                    Tree::Text(name) => name.clone(),
                    Tree::Bool(is) => is.to_string(),
                    Tree::Integer(number) => number.to_string(),
                    other => format!("{other:?}"),
                };
                (name, json(value))
            });
            Value::Object(fields.collect::<Map<_, _>>())
        }
    }
}

/// Whether the schema takes a text, and whether the decoder does.
fn both(text: &str, format: Format) -> (Result<(), String>, Result<(), String>) {
    static SCHEMA: LazyLock<Value> = LazyLock::new(schema::json_schema);
    let tree = document::parse(text, format, 0).expect("a tree");
    let decoded = Policy::from_text(text, format).map(drop);
    (
        conforms(&json(&tree), &SCHEMA, &SCHEMA),
        decoded.map_err(|rejected| rejected.to_string()),
    )
}

#[test]
fn the_schema_takes_every_valid_example_of_the_docs() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference");
    let docs: String = ["policy", "errors", "lints"]
        .map(|page| fs::read_to_string(format!("{folder}/{page}.md")).expect("the docs"))
        .join("\n");
    let mut checked = 0;
    for block in docs.split("\n```").skip(1).step_by(2) {
        let (fence, text) = block.split_once('\n').expect("a block");
        let format = match fence.split_whitespace().next() {
            Some("yaml") => Format::Yaml,
            Some("toml") => Format::Toml,
            _ => continue,
        };
        // It is of our own form.
        if fence.contains("fails=") || fence.contains("Cargo.toml") || text.starts_with("domain:") {
            continue;
        }
        let (schema, _) = both(text, format);
        assert_eq!(schema, Ok(()), "{text}");
        checked += 1;
    }
    assert!(checked > 25, "only {checked} examples");
}

#[test]
fn both_refuse_what_has_a_wrong_shape() {
    for rule in [
        "nam: a",
        "name: a, rat: 1/s",
        "name: a, rate: 5",
        "name: a, rate: []",
        "name: a, rate: soon",
        "name: a, quota: 5",
        "name: a, quota: often",
        "name: a, concurrency: 0",
        "name: a, concurrency: 5000000000",
        "name: a, concurrency: many",
        "name: a, rate: 1/s, unlimited: perhaps",
        "name: a, rate: 1/s, algorithm: magic",
        "name: a, rate: 1/s, mode: on",
        "name: a, key: user, rate: 1/s, mode: {enforce: 0%}",
        "name: a, key: user, rate: 1/s, mode: {enforce: 101%}",
        "name: a, key: user, rate: 1/s, mode: {enforce: some}",
        "name: a, key: user, rate: 1/s, mode: {shadow: 10%}",
        "name: a, key: user, rate: 1/s, mode: {}",
        "name: a, key: [], rate: 1/s, mode: {enforce: 10%}",
        "name: a, rate: 1/s, warm_up: soon",
        "name: a, rate: 1/s, warm_up: 5",
        "name: a, rate: 1/s, on_store_failure: panic",
        "name: a, rate: 1/s, counting: here",
        "name: a, rate: 1/s, cost: 0",
        "name: a, rate: 1/s, cost: {default: 1}",
        "name: a, rate: 1/s, cost: {fact: x, default: -1}",
        "name: a, rate: 1/s, key: {user: 1}",
        "name: a, rate: 1/s, key: ip/129",
        "name: a, rate: 1/s, key: a b",
        "name: a, rate: 1/s, match: /x",
        "name: a, rate: 1/s, match: {path: []}",
        "name: a, rate: 1/s, match: {path: {}}",
        "name: a, rate: 1/s, match: {path: {prefix: /a, glob: /b}}",
        "name: a, rate: 1/s, match: {path: {begins: /a}}",
        "name: a, rate: 1/s, match: {path: {present: 1}}",
        "name: a, rate: 1/s, match: {a b: c}",
        "name: a, rate: 1/s, replaces: []",
        "name: a, rate: 1/s, shared: [x]",
        "name: a",
        "rate: 1/s",
    ] {
        let (schema, decoded) = both(&format!("limits: [{{{rule}}}]"), Format::Yaml);
        assert!(schema.is_err() && decoded.is_err(), "{rule}");
    }
    for rest in [
        "limits: []",
        "limits: {}",
        "tiers: {free: {}}",
        "tiers: {free: {rate: 1/s, price: 5}}",
        "tiers: {free: {rate: 1/s, counting: here}}",
        "tiers: {free: {rate: 1/s, algorithm: magic}}",
        "tiers: {free: {rate: 1/s, cost: 0}}",
        "tiers: {free: {rate: 1/s, on_store_failure: panic}}",
        "tiers: {free: {rate: 1/s, mode: shadow}}",
        "tenants: [a]",
        "exempt: [{}]",
        "exempt: {path: /a}",
        "block: [/a]",
        "near_limit: 5",
        "near_limit: 0.0",
        "near_limit: 101%",
        "mode: [shadow]",
        "mode: {enforce: 10%}",
        "include: {}",
        "version: 1",
        "[]",
    ] {
        let (schema, decoded) = both(rest, Format::Yaml);
        assert!(schema.is_err() && decoded.is_err(), "{rest}");
    }
}

/// Signs that names are made of, and those that they may not have.
fn name() -> impl Strategy<Value = String> {
    let sign = prop_oneof![
        6 => prop::sample::select(vec!['a', 'Z', '7', 'ä', '-', '.', '_', ':', '/', '%']),
        1 => prop::sample::select(vec![' ', '\t', '\n', '\0', '\u{1b}', '\u{85}', '\u{a0}']),
        1 => prop::sample::select(vec!['\u{feff}', '\u{200b}', '\u{202e}', '\u{2028}', '\u{2064}']),
        1 => prop::sample::select(vec!['\u{345}', '\u{903}', '\u{2160}', '\u{b2}', '\u{301}']),
    ];
    let signs = prop_oneof![8 => 0..6usize, 1 => 198..203usize];
    signs.prop_flat_map(move |signs| {
        let signs = prop::collection::vec(sign.clone(), signs);
        signs.prop_map(|signs| signs.into_iter().collect())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn both_take_the_same_names(name in name()) {
        let name = json!(name).to_string();
        for text in [
            format!("limits: [{{name: {name}, rate: 1/s}}]"),
            format!("limits: [{{name: a, key: {name}, rate: 1/s}}]"),
            format!("limits: [{{name: a, key: [b, {name}], rate: 1/s}}]"),
            format!("limits: [{{name: a, key: b, hash_tag: {name}, rate: 1/s}}]"),
            format!("limits: [{{name: a, match: {{{name}: b}}, rate: 1/s}}]"),
            format!("limits: [{{name: a, cost: {{fact: {name}}}, rate: 1/s}}]"),
            format!("limits: [{{name: a, shared: {name}, rate: 1/s}}, {{name: b, shared: {name}, rate: 1/s}}]"),
            format!("limits: [{{name: a, rate: 1/s, replaces: {name}}}, {{name: {name}, rate: 1/s}}]"),
            format!("tiers: {{{name}: {{rate: 1/s}}}}\ntenants: {{{name}: {name}}}\ndefault_tier: {name}"),
            format!("tiers: {{a: {{rate: 1/s}}}}\ntier_fact: {name}"),
        ] {
            let (schema, decoded) = both(&text, Format::Yaml);
            // One that is called as another, or not by a fact of the key, is more than a schema can tell; so is
            // whether a rare sign is a letter.
            let told = decoded.as_ref().err().is_some_and(|why| !why.contains("[bad-name]") && !why.contains("[bad-key]"));
            let told = told || (schema.is_ok() && text.contains(['\u{301}']));
            prop_assert_eq!(schema.is_ok(), decoded.is_ok() || told, "{} {:?} {:?}", text, schema, decoded);
        }
    }
}

#[test]
fn both_take_numbers_and_truths_where_text_is_meant() {
    for rule in [
        "name: a, rate: 1/s, key: 1",
        "name: a, rate: 1/s, key: [1, true, 1.5]",
        "name: 1, rate: 1/s",
        "name: a, rate: 1/s, cost: {fact: 7}",
        "name: a, rate: 1/s, match: {7: 7}",
    ] {
        let (schema, decoded) = both(&format!("limits: [{{{rule}}}]"), Format::Yaml);
        assert_eq!((schema, decoded), (Ok(()), Ok(())), "{rule}");
    }
}

#[test]
fn the_same_condition_in_another_spelling_is_given_twice() {
    for (conditions, fact) in [
        ("header.X-A: a, header.x-a: b", "header.x-a"),
        ("'7': a, 7: b", "7"),
        ("path: a, 'path': b", "path"),
        ("true: a, 'true': b", "true"),
    ] {
        let text = format!("limits:\n- name: a\n  rate: 1/s\n  match: {{{conditions}}}\n");
        let rejected = Policy::from_text(&text, Format::Yaml).expect_err(conditions);
        let message = format!("error[duplicate-field]: field {fact:?} is given twice");
        let found: Vec<_> = rejected.errors.iter().map(ToString::to_string).collect();
        assert_eq!(found, [message], "{conditions}");
        assert_eq!(
            rejected.errors[0].help.as_deref(),
            Some("the first is on line 4")
        );
    }
    let tenants = "tiers: {a: {rate: 1/s}}\ntenants: {7: a, '7': a}\n";
    let rejected = Policy::from_text(tenants, Format::Yaml).expect_err("twice");
    assert_eq!(rejected.errors[0].code.0, "duplicate-field");
}

/// Every way to write a rule of these fields, each left out or with one of its values.
fn ways(fields: &[&[&str]]) -> Vec<String> {
    let mut ways = vec![String::new()];
    for values in fields {
        let with = |way: &String| {
            let value = |value: &&str| format!("{way}, {value}");
            values.iter().map(value).collect::<Vec<_>>()
        };
        let more: Vec<_> = ways.iter().flat_map(with).collect();
        ways.extend(more);
    }
    ways
}

#[test]
fn both_refuse_the_same_fields_that_do_nothing_together() {
    let limits: [&[&str]; 4] = [
        &["rate: 9/s"],
        &["quota: 9/day"],
        &["concurrency: 9"],
        &["unlimited: true", "unlimited: false"],
    ];
    let kept: [&[&str]; 4] = [
        &["cost: 2"],
        &["algorithm: leaky", "algorithm: sliding-log"],
        &["counting: exact", "counting: leased", "counting: local"],
        &["on_store_failure: open", "on_store_failure: inherit"],
    ];
    let key: [&[&str]; 2] = [
        &[
            "key: user",
            "key: [ip, user], hash_tag: user",
            "hash_tag: user",
        ],
        &["warm_up: 5s", "mode: {enforce: 10%}"],
    ];
    let mut taken = 0;
    for way in ways(&[&limits[..], &kept, &key].concat()) {
        let rule = format!("limits: [{{name: a{way}}}]");
        let (schema, decoded) = both(&rule, Format::Yaml);
        assert_eq!(
            schema.is_ok(),
            decoded.is_ok(),
            "{rule} {schema:?} {decoded:?}"
        );
        taken += usize::from(schema.is_ok());
    }
    assert!(taken > 400, "only {taken} are valid");
    for way in ways(&[&limits[..], &kept].concat()) {
        let tier = format!(
            "default_tier: a\ntiers: {{a: {{{}}}}}",
            way.trim_start_matches(", ")
        );
        let (schema, decoded) = both(&tier, Format::Yaml);
        assert_eq!(
            schema.is_ok(),
            decoded.is_ok(),
            "{tier} {schema:?} {decoded:?}"
        );
    }
}

/// All patterns in a schema.
fn patterns(schema: &Value, found: &mut Vec<String>) {
    match schema {
        Value::Object(fields) => {
            let pattern = fields.get("pattern").and_then(Value::as_str);
            found.extend(pattern.map(str::to_owned));
            fields.values().for_each(|field| patterns(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| patterns(item, found)),
        _ => {}
    }
}

#[test]
fn patterns_are_written_so_that_every_validator_reads_them() {
    let mut found = Vec::new();
    patterns(&schema::json_schema(), &mut found);
    assert!(found.len() >= 5, "only {found:?}");
    for pattern in found {
        // Python has no \p, others no look-around and no names: all have white space and four digits.
        for (at, _) in pattern.match_indices('\\') {
            let rest = &pattern[at + 1..];
            let digits = rest.get(1..5).unwrap_or_default();
            let is_sign = rest.starts_with('u') && u32::from_str_radix(digits, 16).is_ok();
            assert!(rest.starts_with('s') || is_sign, "\\{rest} in {pattern}");
        }
        assert!(!pattern.contains("(?") && pattern.is_ascii(), "{pattern}");
        let classes = ["[:", "&&", "--", "~~", "[["];
        assert!(
            !classes.iter().any(|class| pattern.contains(class)),
            "{pattern}"
        );
    }
}

#[test]
fn the_schema_takes_every_letter_and_digit_in_the_name_of_a_fact_and_no_other_sign_that_is_common()
{
    let schema = schema::json_schema();
    let pattern = schema["$defs"]["fact"]["pattern"]
        .as_str()
        .expect("a pattern");
    for sign in ('\0'..=char::MAX).step_by(1) {
        let is_one = sign.is_alphanumeric() || "_-.:".contains(sign);
        let takes = is_like(pattern, sign.encode_utf8(&mut [0; 4]));
        // What it can't tell, `check` does.
        assert!(takes || !is_one, "{sign:?} is refused");
        assert!(
            !takes || is_one || sign >= '\u{2070}' || !is_common(sign),
            "{sign:?} is taken"
        );
    }
}

/// Signs of the languages that are written from left to right around the Mediterranean, and punctuation.
fn is_common(sign: char) -> bool {
    sign < '\u{2c2}' || ('\u{2000}'..'\u{2070}').contains(&sign)
}
