//! Reads any bytes as a JSON body, for the fuzz target and for the tests that read the target's seeds.

use serde_json::Value;

use super::body::{self, CheckRequest};

/// Reads a body as `/v1/check` does, and says whether it is one. What it isn't is told, and what it is every reader of
/// JSON reads.
pub(crate) fn read(bytes: &[u8]) -> bool {
    let any = serde_json::from_slice::<Value>(bytes);
    let one = body::parse_body::<CheckRequest<'_>>(bytes);
    let many = body::parse_body::<Vec<CheckRequest<'_>>>(bytes);
    if let (Err(one), Err(many)) = (&one, &many) {
        assert!(!one.is_empty() && !many.is_empty());
        return false;
    }
    let any = any.expect("JSON");
    match (&one, &many) {
        // Which is also read as the fields of one, in their order.
        (_, Ok(many)) => {
            let list = any.as_array().expect("a list");
            assert_eq!(list.len(), many.len());
            many.iter()
                .zip(list)
                .for_each(|(one, any)| compare(one, any));
        }
        (Ok(one), _) => compare(one, &any),
        _ => {}
    }
    true
}

/// Of equal names the last counts, for both.
fn compare(asked: &CheckRequest<'_>, any: &Value) {
    let Some(any) = any.as_object() else {
        return;
    };
    let facts = asked.facts();
    let cost = any.get("cost").and_then(Value::as_u64);
    assert_eq!(facts.cost(), cost);
    for (name, value) in any
        .get("facts")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let text = value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned);
        let found = facts.iter().find(|(own, _)| own == name);
        assert_eq!(
            found.map(|(_, value)| value),
            Some(text.as_str()),
            "{name:?}"
        );
    }
    let listed = any.get("descriptors").and_then(Value::as_array);
    let descriptors = asked.descriptors.iter().flatten();
    for (one, any) in descriptors.zip(listed.into_iter().flatten()) {
        let Some(any) = any.as_object() else { continue };
        let entries = any.get("entries").and_then(Value::as_array);
        assert_eq!(one.entries().len(), entries.map_or(0, Vec::len));
    }
}
