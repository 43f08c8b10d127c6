//! A JSON Schema of the native form, for editors: made of the table of fields that the decoder reads.

use serde_json::{Map, Value, json};

use crate::native::LONGEST_NAME;
use crate::native::fields::{
    ADAPTIVE, ALGORITHMS, COST, COUNTINGS, FAILURE_KINDS, FAILURES, Field, KEY, MISSING_KEYS,
    MODES, PATTERN, POLICY, ROLLOUT, RULE, SHED, Shape, TIER, UNSETTLED, laws, names,
};
use crate::native::rule::{CHARGED, COUNTED, MOST_KEYS, RULE_KEPT, TIER_KEPT};
use crate::policy::{Counting, is_bucket};

/// A length of time: a number and a unit.
const DURATION: &str = "[0-9][0-9_]*[A-Za-z]+";
/// What can stand for text: a number, `true` or `false` is taken as it is written.
const TEXT: [&str; 3] = ["string", "number", "boolean"];
/// The name of a fact. Of ASCII and Latin it excludes what is neither letter nor digit, and common punctuation. Which
/// characters of other scripts are letters not every validator knows, so that is left to the decoder.
const FACT: &str = "[^\\u0000-,/;-@\\u005b-\\u005e`\\u007b-\\u00a9\\u00ab-\\u00b1\\u00b4\\u00b6-\\u00b8\\u00bb\\u00bf\
                    \\u00d7\\u00f7\\u2000-\\u206f\\ufeff\\s]+";
/// Characters that are invisible or change how others are shown; `render` escapes the same.
const HIDDEN: &str =
    "\\u0000-\\u001f\\u007f-\\u009f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u2069\\ufeff";

/// The schema (draft 2020-12). What it refuses, the decoder refuses; the decoder checks more, such as
/// names that refer to others.
///
/// ```
/// let schema = tollgate_engine::schema::json_schema();
/// assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
/// assert_eq!(schema["properties"]["mode"]["enum"][1], "shadow");
/// ```
pub fn json_schema() -> Value {
    let mut schema = object(POLICY);
    schema.insert(
        "$schema".to_owned(),
        json!("https://json-schema.org/draft/2020-12/schema"),
    );
    schema.insert("title".to_owned(), json!("Tollgate policy"));
    schema.insert("$defs".to_owned(), definitions());
    Value::Object(schema)
}

/// The same as text, as it is kept in files.
///
/// ```
/// let text = tollgate_engine::schema::text();
/// assert!(text.starts_with("{\n") && text.ends_with("}\n"));
/// ```
pub fn text() -> String {
    format!("{:#}\n", json_schema())
}

fn definitions() -> Value {
    let mut limiting: Vec<Value> = COUNTED.into_iter().map(has).collect();
    limiting.push(says("unlimited", &json!([true])));
    let with = |table, more: Value| {
        let mut schema = object(table);
        if let Value::Object(more) = more {
            schema.extend(more);
        }
        Value::Object(schema)
    };
    json!({
        "rule": with(RULE, json!({"required": ["name"], "anyOf": limiting, "allOf": together(RULE_KEPT)})),
        "tier": with(TIER, json!({"anyOf": limiting, "allOf": together(TIER_KEPT)})),
        "match": {
            "type": "object",
            "propertyNames": {"$ref": "#/$defs/fact"},
            "additionalProperties": {"$ref": "#/$defs/pattern"},
        },
        "pattern": {
            "anyOf": [
                {"type": TEXT},
                {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/pattern"}},
                with(PATTERN, json!({"minProperties": 1, "maxProperties": 1})),
            ],
            "examples": ["/api/**", ["GET", "HEAD"], {"prefix": "/api/"}, {"present": true}],
        },
        "cost": {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                with(
                    COST,
                    json!({
                        "anyOf": [has("fact"), {"required": ["default", "settle_within"]}],
                        "allOf": [needs("unsettled", &["settle_within"])],
                    }),
                ),
            ],
            "examples": [{"fact": "tokens", "default": 1}],
        },
        "adaptive": with(ADAPTIVE, json!({"required": ["adaptive", "max"]})),
        "shed": {
            "anyOf": [{"$ref": "#/$defs/fact"}, with(SHED, json!({"required": ["by"]}))],
            "examples": ["header.x-priority", {"by": "priority", "sheddable": "50%"}],
        },
        "keys": with(KEY, json!({"required": ["first"]})),
        "failures": with(FAILURE_KINDS, json!({"minProperties": 1})),
        "rollout": with(ROLLOUT, json!({"required": ["enforce"]})),
        // Text that neither begins nor ends with white space, and has no invisible character.
        "name": {
            "type": TEXT,
            "minLength": 1,
            "maxLength": LONGEST_NAME,
            "pattern": format!("^[^{HIDDEN}\\s]([^{HIDDEN}]*[^{HIDDEN}\\s])?$"),
        },
        "fact": {
            "type": TEXT,
            "maxLength": LONGEST_NAME,
            "pattern": format!("^{FACT}$"),
            "examples": ["user", "header.x-plan"],
        },
        "text": {"type": TEXT},
        "duration": {
            "type": "string",
            "pattern": format!("^\\s*{DURATION}\\s*$"),
            "examples": ["200ms", "30s"],
        },
        "rate": {
            "type": "string",
            "pattern": "^\\s*([0-9][0-9_]*\\s*(/|[Pp][Ee][Rr])|[Zz][Ee][Rr][Oo])",
            "examples": ["10/s burst 20", "1000/h", "5 per 250ms"],
        },
        "quota": {
            "type": "string",
            "pattern": "^\\s*[0-9]+\\s*(/|in)",
            "examples": ["10000/month", "500/day in Europe/Zurich", "900 in any 30d"],
        },
        "key": {
            "anyOf": [
                {"$ref": "#/$defs/fact"},
                {"type": "string", "pattern": format!("^{FACT}/([1-9]|[1-9][0-9]|1[01][0-9]|12[0-8])$")},
            ],
            "examples": ["user", "ip/64", "header.x-plan"],
        },
    })
}

/// A map that has this field.
fn has(field: &str) -> Value {
    json!({"required": [field]})
}

/// A map that has this field, with one of these values.
fn says(field: &str, values: &Value) -> Value {
    json!({"required": [field], "properties": {field: {"enum": values}}})
}

/// A map that has the one field only together with one of the others.
fn needs(one: &str, others: &[&str]) -> Value {
    let mut ways = vec![json!({"not": has(one)})];
    ways.extend(others.iter().copied().map(has));
    json!({"anyOf": ways})
}

/// A map that says what these kinds of limits do without a store, each by itself.
fn fails_by(kinds: &[&str]) -> Value {
    let by_kind = json!({"type": "object", "required": kinds});
    json!({"required": ["on_store_failure"], "properties": {"on_store_failure": by_kind}})
}

/// A map whose key has at least one fact.
fn some_key() -> Value {
    json!({"required": ["key"], "properties": {"key": {"not": {"type": "array", "maxItems": 0}}}})
}

/// A map for which these don't all hold at once.
fn not_all(all: &[Value]) -> Value {
    json!({"not": {"allOf": all}})
}

/// Which fields need or exclude others, as they would do nothing; `kept` are those that say where something is counted.
fn together(kept: &[&str]) -> Vec<Value> {
    let algorithms = ALGORITHMS
        .iter()
        .filter(|(_, algorithm)| !is_bucket(*algorithm));
    let not_lent: Vec<_> = algorithms.map(|(name, _)| *name).collect();
    let failures = FAILURES.iter().filter(|(_, failure)| failure.is_some());
    let failures: Vec<_> = failures.map(|(name, _)| *name).collect();
    let counting = |counting: Counting| says("counting", &json!([counting.name()]));
    let unlimited = says("unlimited", &json!([true]));
    let mut rules = vec![
        needs("cost", &CHARGED),
        needs("algorithm", &["rate"]),
        not_all(&[counting(Counting::Leased), json!({"not": has("rate")})]),
        not_all(&[
            counting(Counting::Leased),
            says("algorithm", &json!(not_lent)),
        ]),
        not_all(&[
            counting(Counting::Local),
            says("on_store_failure", &json!(failures)),
        ]),
        not_all(&[counting(Counting::Local), fails_by(&[])]),
    ];
    rules.extend(COUNTED.map(|kind| not_all(&[fails_by(&[kind]), json!({"not": has(kind)})])));
    rules.extend(kept.iter().map(|kept| needs(kept, &COUNTED)));
    rules.extend(COUNTED.map(|counted| not_all(&[unlimited.clone(), has(counted)])));
    if kept.contains(&"slot") {
        rules.push(needs("slot", &["key"]));
        rules.push(not_all(&[
            has("on_missing_key"),
            json!({"not": some_key()}),
        ]));
        rules.push(needs("warm_up", &["rate"]));
        rules.push(needs("shed", &["concurrency"]));
        rules.push(not_all(&[has("shed"), has("shared")]));
        // To enforce a rule for a part of its keys, it must have keys.
        let part = json!({"required": ["mode"], "properties": {"mode": {"type": "object"}}});
        rules.push(not_all(&[part, json!({"not": some_key()})]));
        rules.push(not_all(&[counting(Counting::Local), has("slot")]));
    }
    rules
}

/// A map of these fields and no others.
fn object(table: &[Field]) -> Map<String, Value> {
    let mut properties = Map::new();
    for field in table {
        let mut schema = shape(field.shape);
        if let Value::Object(schema) = &mut schema {
            schema.insert("description".to_owned(), json!(field.about));
        }
        properties.insert(field.name.to_owned(), schema);
    }
    let mut schema = Map::new();
    schema.insert("type".to_owned(), json!("object"));
    schema.insert("additionalProperties".to_owned(), json!(false));
    schema.insert("properties".to_owned(), Value::Object(properties));
    schema
}

/// A value of this definition.
fn one(name: &str) -> Value {
    json!({"$ref": format!("#/$defs/{name}")})
}

/// A list of values of this definition, at least one.
fn some(name: &str) -> Value {
    json!({"type": "array", "minItems": 1, "items": one(name)})
}

/// A value of this definition, or a list of them.
fn one_or_some(name: &str) -> Value {
    json!({"anyOf": [one(name), some(name)]})
}

/// Values of this definition, each under a name.
fn by_name(name: &str) -> Value {
    json!({"type": "object", "propertyNames": one("name"), "additionalProperties": one(name)})
}

/// Keys of which the first counts that a request has.
fn keys() -> Value {
    json!({
        "type": "array",
        "minItems": 1,
        "maxItems": MOST_KEYS,
        "items": {
            "anyOf": [
                one("key"),
                {"type": "array", "minItems": 1, "maxItems": 16, "items": one("key")},
            ],
        },
    })
}

/// A part of a whole, in percents or as a fraction.
fn part() -> Value {
    json!({
        "anyOf": [
            {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
            {"type": "string", "pattern": "^([1-9][0-9]?|100)\\s*%$"},
        ],
        "examples": ["80%", 0.8],
    })
}

fn shape(shape: Shape) -> Value {
    match shape {
        Shape::Name => one("name"),
        Shape::Fact => one("fact"),
        Shape::Facts => one_or_some("fact"),
        Shape::Names => one_or_some("name"),
        Shape::Rules => some("rule"),
        Shape::Tiers => by_name("tier"),
        Shape::Tenants => by_name("name"),
        Shape::Match => one("match"),
        Shape::Matches => json!({
            "type": "array",
            "minItems": 1,
            "items": {"allOf": [one("match"), {"minProperties": 1}]},
        }),
        Shape::Pattern => one("pattern"),
        Shape::Texts => one_or_some("text"),
        Shape::Key => json!({
            "anyOf": [one("key"), {"type": "array", "maxItems": 16, "items": one("key")}, one("keys")],
            "examples": ["user", ["ip/64", "method"], {"first": ["user", "ip"]}],
        }),
        Shape::Keys => keys(),
        Shape::OnMissingKey => json!({"enum": names(MISSING_KEYS)}),
        Shape::Rates => one_or_some("rate"),
        Shape::Quota => one("quota"),
        Shape::Count => json!({"type": "integer", "minimum": 1, "maximum": u32::MAX}),
        Shape::Concurrency => json!({
            "anyOf": [self::shape(Shape::Count), one("adaptive")],
            "examples": [50, {"adaptive": "little", "min": 10, "max": 200}],
        }),
        Shape::Law => json!({"enum": names(&laws())}),
        Shape::Shed => one("shed"),
        Shape::Number => json!({"type": "integer", "minimum": 0}),
        Shape::Flag => json!({"type": "boolean"}),
        Shape::Cost => one("cost"),
        Shape::Part => part(),
        Shape::Algorithm => json!({"enum": names(ALGORITHMS)}),
        Shape::Mode => json!({"enum": names(MODES)}),
        Shape::RuleMode => json!({
            "anyOf": [{"enum": names(MODES)}, one("rollout")],
            "examples": ["shadow", {"enforce": "10%"}],
        }),
        Shape::FailureMode => json!({"enum": names(FAILURES)}),
        Shape::OnStoreFailure => json!({
            "anyOf": [{"enum": names(FAILURES)}, one("failures")],
            "examples": ["local", {"rate": "local", "quota": "closed"}],
        }),
        Shape::Counting => json!({"enum": names(COUNTINGS)}),
        Shape::Unsettled => json!({"enum": names(UNSETTLED)}),
        Shape::Duration => one("duration"),
        Shape::Over => json!({
            "type": "string",
            "pattern": format!("^\\s*(refuse|wait\\s+{DURATION})\\s*$"),
            "examples": ["refuse", "wait 200ms"],
        }),
    }
}
