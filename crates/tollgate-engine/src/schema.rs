//! The JSON Schema of the native form, for editors: the same as `docs/reference/policy.schema.json`.

use serde_json::Value;

/// The schema (draft 2020-12). The decoder rejects everything that the schema rejects, and checks more, such as names
/// that refer to others.
///
/// ```
/// let schema = tollgate_engine::schema::json_schema();
/// assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
/// assert_eq!(schema["properties"]["mode"]["enum"][1], "shadow");
/// ```
pub fn json_schema() -> Value {
    serde_json::from_str(text()).expect("the schema is JSON: tests read it")
}

/// The schema as text, as it is kept in files.
///
/// ```
/// let text = tollgate_engine::schema::text();
/// assert!(text.starts_with("{\n") && text.ends_with("}\n"));
/// ```
pub const fn text() -> &'static str {
    include_str!("../docs/policy.schema.json")
}
