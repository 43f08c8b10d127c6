//! The OpenAPI description is true: every operation is called from it.

use serde_json::Value;

use crate::kit::Running;

const POLICY: &str = "limits: [{name: per-user, key: user, rate: 100/s, concurrency: 5}]";

fn document(running: &Running) -> Value {
    let (status, answer) = running.http().request("GET", "/openapi.json", "", "");
    assert_eq!(status, 200);
    let body = answer.split_once("\r\n\r\n").expect("a body").1;
    serde_json::from_str(body).expect("JSON")
}

/// The page for people has every operation and every field of a decision, and no operation that there isn't.
#[test]
fn the_page_has_all_that_the_document_has() {
    let running = Running::new(POLICY, |_| {});
    let document = document(&running);
    let page = include_str!("../../../../docs/reference/http.md");
    let (operations, _) = page.split_once("\n## ").expect("a section");
    let rows = operations.lines().filter(|line| line.starts_with("| `"));
    let shown: Vec<_> = rows
        .flat_map(|row| row.split('`').skip(1).step_by(2))
        .collect();
    let mut told = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        let methods = methods.as_object().expect("methods").keys();
        told.extend(methods.map(|method| format!("{} {path}", method.to_uppercase())));
    }
    for operation in &told {
        assert!(shown.contains(&operation.as_str()), "{operation}");
    }
    assert_eq!(shown.len(), told.len(), "{shown:?}");
    let decision = &document["components"]["schemas"]["Decision"]["properties"];
    for field in decision.as_object().expect("fields").keys() {
        assert!(page.contains(&format!("| `{field}` | ")), "{field}");
    }
}

/// What a reference leads to.
fn resolved<'d>(document: &'d Value, schema: &'d Value) -> &'d Value {
    match schema["$ref"].as_str() {
        Some(path) => document
            .pointer(path.trim_start_matches('#'))
            .expect("what is referred to"),
        None => schema,
    }
}

/// Whether a value has what a schema wants of it, as far as these schemas go.
fn fits(document: &Value, schema: &Value, value: &Value) -> bool {
    let schema = resolved(document, schema);
    if let Some(any) = schema["oneOf"].as_array() {
        return any.iter().any(|one| fits(document, one, value));
    }
    let is = |kind: &Value| match kind.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_u64(),
        Some("number") => value.is_number(),
        Some("null") => value.is_null(),
        other => panic!("{other:?}"),
    };
    let of_kind = match &schema["type"] {
        Value::Null => true,
        Value::Array(kinds) => kinds.iter().any(is),
        kind => is(kind),
    };
    let required = schema["required"].as_array().into_iter().flatten();
    let has_all = required
        .map(|name| name.as_str().expect("a name"))
        .all(|name| !value[name].is_null() || value.get(name).is_some());
    let known = schema["properties"].as_object().into_iter().flatten();
    let fields_fit = known
        .filter_map(|(name, own)| Some((own, value.get(name)?)))
        .all(|(own, field)| fits(document, own, field));
    let items_fit = match (&schema["items"], value.as_array()) {
        (Value::Null, _) | (_, None) => true,
        (own, Some(items)) => items.iter().all(|item| fits(document, own, item)),
    };
    of_kind && has_all && fields_fit && items_fit
}

#[test]
fn every_operation_answers_as_the_document_says() {
    let running = Running::new(POLICY, |_| {});
    let document = document(&running);
    let paths = document["paths"].as_object().expect("paths");
    // In an order in which what is held is there.
    let order = [
        "/v1/check",
        "/v1/peek",
        "/v1/reserve",
        "/v1/settle",
        "/v1/permits",
        "/v1/permits/renew",
        "/v1/permits/release",
    ];
    let others = paths
        .keys()
        .map(String::as_str)
        .filter(|path| !order.contains(path));
    let mut driven = 0;
    for path in order.into_iter().chain(others) {
        for (method, operation) in paths[path].as_object().expect("methods") {
            let content = &operation["requestBody"]["content"]["application/json"];
            let text = if content.is_null() {
                String::new()
            } else {
                content["example"].to_string()
            };
            let query = operation["parameters"].as_array().into_iter().flatten();
            let query: Vec<_> = query
                .map(|one| {
                    format!(
                        "{}={}",
                        one["name"].as_str().expect("a name"),
                        one["example"].as_str().expect("an example")
                    )
                })
                .collect();
            let target = if query.is_empty() {
                path.to_owned()
            } else {
                format!("{path}?{}", query.join("&"))
            };
            let fields = if text.is_empty() {
                ""
            } else {
                "content-type: application/json\r\n"
            };
            let (status, answer) =
                running
                    .http()
                    .request(&method.to_uppercase(), &target, fields, &text);
            let said = &operation["responses"][status.to_string()];
            assert!(
                !said.is_null(),
                "{method} {path}: {status} isn't in the document: {answer}"
            );
            let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
            let media = head
                .lines()
                .find_map(|line| line.strip_prefix("content-type: "))
                .expect("a type");
            let schema = &said["content"][media]["schema"];
            assert!(
                !schema.is_null(),
                "{method} {path}: {media} isn't in the document"
            );
            if media.ends_with("json") {
                let body: Value = serde_json::from_str(body).expect("JSON");
                assert!(
                    fits(&document, schema, &body),
                    "{method} {path}: {body} isn't {schema}"
                );
            }
            if !content.is_null() {
                let example = &content["example"];
                assert!(
                    fits(&document, &content["schema"], example),
                    "{path}: its own example doesn't fit"
                );
                let (status, _) = running.http().request("POST", path, fields, "{\"x\": 1");
                assert!(status == 400 || status == 403, "{path}: {status}");
            }
            driven += 1;
        }
    }
    assert_eq!(driven, paths.len());
}

#[test]
fn nothing_answers_that_isnt_in_the_document() {
    let running = Running::new(POLICY, |_| {});
    let document = document(&running);
    let source = include_str!("../../src/http/routes.rs");
    let (_, table) = source.split_once("const PUBLIC").expect("the table");
    let (table, _) = table.split_once("];").expect("its end");
    let public: Vec<_> = table
        .split('"')
        .filter(|text| text.starts_with('/'))
        .collect();
    assert!(public.len() >= 10, "{public:?}");
    for route in public {
        assert!(document["paths"].get(route).is_some(), "{route}");
    }
}
