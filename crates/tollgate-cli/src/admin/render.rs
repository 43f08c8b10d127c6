//! Renders responses of an admin listener as text.

use std::time::Duration;

use serde_json::Value;
use tollgate_engine::render::escaped;

use super::AdminCommand;
use crate::output::{ColumnAlign, format_columns};
use crate::policy::format_duration;

/// Text from an untrusted source, without terminal control sequences.
pub(super) fn escape_terminal(text: &str) -> String {
    escaped(text).into_owned()
}

/// The response to a command.
pub(super) fn render_response(ask: &AdminCommand, answer: &Value) -> String {
    match ask {
        AdminCommand::Rules => rules_table(answer),
        AdminCommand::Top => top_table(answer),
        AdminCommand::Limiters => limiters_table(answer),
        AdminCommand::Key(_) => keys_text(answer),
        AdminCommand::Overrides { end: None } => overrides_table(&answer["overrides"]),
        AdminCommand::Overrides { .. } | AdminCommand::Unblock(_) => {
            format!("ended: {}\n", override_text(answer))
        }
        AdminCommand::Block(_) | AdminCommand::Override(_) | AdminCommand::Bypass(_) => {
            format!("{}\n", override_text(answer))
        }
        AdminCommand::Reset { .. } => array_items(&answer["rules"]).map(reset_text).collect(),
        AdminCommand::Reload { dry_run } => {
            let would = if *dry_run { "would change" } else { "changed" };
            let (summary, text) = (cell_text(&answer["summary"]), answer["text"].as_str());
            let text = text.unwrap_or_default().lines().map(escape_terminal);
            let text: String = text.map(|line| line + "\n").collect();
            if text.is_empty() {
                return format!("{summary}\n");
            }
            format!("{would}: {summary}\n{text}")
        }
        AdminCommand::Log { .. } => format!("{}\n", cell_text(&answer["level"])),
    }
}

fn array_items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A table cell. An empty value is a dash.
fn cell_text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => escape_terminal(text),
        other => other.to_string(),
    }
}

/// Several values in one cell.
fn joined_cells(value: &Value) -> String {
    let all: Vec<_> = array_items(value).map(cell_text).collect();
    if all.is_empty() {
        "-".to_owned()
    } else {
        all.join(", ")
    }
}

fn duration_text(value: &Value) -> String {
    let seconds = value.as_f64();
    let seconds = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.map_or_else(|| "never".to_owned(), format_duration)
}

/// A table with a header row. The heads are separated by commas, and columns of only numbers are aligned right.
fn format_table(heads: &str, rows: impl Iterator<Item = Vec<String>>) -> String {
    let heads = heads.split(", ").map(str::to_owned).collect();
    let rows: Vec<Vec<String>> = std::iter::once(heads).chain(rows).collect();
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    format_columns(&rows, |column| {
        let mut cells = rows[1..].iter().map(|row| &row[column]);
        if rows.len() > 1 && cells.all(|cell| is_number(cell)) {
            ColumnAlign::Right
        } else {
            ColumnAlign::Left
        }
    })
}

/// The cells of an object's fields, by name.
fn field_cells(object: &Value, names: &str) -> Vec<String> {
    let names = names.split(", ");
    names.map(|name| cell_text(&object[name])).collect()
}

fn rules_table(answer: &Value) -> String {
    let counts = "allowed, denied, near_limit, shadow_denied, missing_key";
    let rows = array_items(&answer["rules"]).map(|rule| {
        let reasons = rule["reasons"].as_object().into_iter().flatten();
        let reasons = reasons.map(|(reason, count)| format!("{reason} {count}"));
        let reasons = reasons.collect::<Vec<_>>().join(", ");
        let mut row = vec![cell_text(&rule["name"]), joined_cells(&rule["limits"])];
        row.extend(field_cells(rule, counts));
        row.push(reasons);
        row
    });
    let heads = "rule, limits, allowed, denied, near limit, in shadow, no key, denied by";
    let mut text = format_table(heads, rows);
    for warning in array_items(&answer["warnings"]) {
        text += &format!("\nwarning: {}\n", cell_text(warning));
    }
    text
}

fn top_table(answer: &Value) -> String {
    let rows = array_items(&answer["keys"]).map(|key| {
        let mut row = field_cells(key, "rule, key, denied, error");
        if key["shadow"] == true {
            row[0].push_str(" (shadow)");
        }
        row
    });
    format_table("rule, key, denied, or less by", rows)
}

fn limiters_table(answer: &Value) -> String {
    let rows = array_items(&answer["limiters"]).map(|limiter| {
        let fallbacks = array_items(&limiter["fallback_keys"])
            .map(|key| format!(", else {}", joined_cells(key)));
        let fallbacks: String = fallbacks.collect();
        let mut row = vec![
            cell_text(&limiter["name"]),
            joined_cells(&limiter["key"]) + &fallbacks,
        ];
        row.extend(field_cells(
            limiter,
            "mode, limit, burst, tokens, waiting, orders",
        ));
        if let Some(now) = limiter["limit_now"].as_u64() {
            row[3] += &format!(", now {now}");
        }
        row
    });
    let heads = "rule, key, mode, limit, burst, tokens, waiting, orders";
    format_table(heads, rows)
}

fn keys_text(answer: &Value) -> String {
    let mut text = String::new();
    for key in array_items(&answer["keys"]) {
        let (rule, of) = (cell_text(&key["rule"]), cell_text(&key["key"]));
        let mode = match key["mode"].as_str() {
            Some("enforce") | None => String::new(),
            Some(mode) => format!(" ({})", escape_terminal(mode)),
        };
        let of = if of.is_empty() { "everybody" } else { &of };
        let tier = match key["applies"].as_bool() {
            None => "",
            Some(true) => ": the tier that applies",
            Some(false) => ": another tier applies",
        };
        text.push_str(&format!("{rule}{mode}, {of}{tier}\n"));
        let is = |act: &str| {
            array_items(&key["overrides"])
                .any(|one| one["act"] == act && one["effect"] == "in force")
        };
        // A block has precedence over a bypass, as in the service.
        let ordered = match (is("block"), is("bypass")) {
            (true, _) => Some("but blocked"),
            (false, true) => Some("but bypassed: passes, and isn't counted"),
            (false, false) => None,
        };
        for limit in array_items(&key["limits"]) {
            text.push_str(&format!("  {}\n", limit_text(limit, ordered)));
        }
        for one in array_items(&key["overrides"]) {
            text.push_str(&format!("  ordered: {}\n", override_text(one)));
        }
    }
    text
}

/// What a key has remaining of one limit, and the decision on the next request unless an override decides.
fn limit_text(limit: &Value, ordered: Option<&str>) -> String {
    let (kind, total) = (cell_text(&limit["limit"]), cell_text(&limit["of"]));
    let is_allowed = limit["allowed"] == true;
    let Some(left) = limit["remaining"].as_u64() else {
        let next = match (ordered, is_allowed) {
            (Some(ordered), _) => ordered,
            (None, true) => "passes meanwhile, as the rule says",
            (None, false) => "refused meanwhile, as the rule says",
        };
        return format!("{kind}: nobody knows what is left: the store can't be asked; {next}");
    };
    let retry = &limit["retry_after"];
    let next = match ordered {
        Some(ordered) => ordered.to_owned(),
        None if is_allowed => "the next passes".to_owned(),
        // It is unknown when a permit will be released.
        None if retry.as_f64() == Some(0.0) => "refused until one is given back".to_owned(),
        None => format!("refused, passes after {}", duration_text(retry)),
    };
    let full = &limit["reset_after"];
    let full = match full.as_f64() {
        Some(0.0) => String::new(),
        _ => format!("; full again after {}", duration_text(full)),
    };
    format!("{kind}: {left} of {total} left; {next}{full}")
}

fn overrides_table(orders: &Value) -> String {
    let rows = array_items(orders).map(|order| {
        let left = Duration::from_secs(order["left"].as_u64().unwrap_or(0));
        let mut row = field_cells(order, "id, act, rule, key, limits");
        if order["key"].is_null() {
            row[3] = "everybody".to_owned();
            if order["rule"].is_null() {
                row[2] = "all".to_owned();
            }
        }
        row.push(format_duration(left));
        row.extend(field_cells(order, "applied, last_applied, by, effect"));
        row
    });
    let heads = "id, act, rule, key, limits, ends in, applied, last, by, effect";
    format_table(heads, rows)
}

/// An override in one line.
fn override_text(order: &Value) -> String {
    let said = |value: &Value, before: &str| {
        let text = value
            .as_str()
            .map(|text| before.to_owned() + &escape_terminal(text));
        text.unwrap_or_default()
    };
    let (with, of) = (
        said(&order["limits"], " with "),
        said(&order["rule"], " of "),
    );
    let key = order["key"].as_str();
    let key = key.map_or_else(|| "everybody".to_owned(), escape_terminal);
    let [id, act, until, last] =
        ["id", "act", "until", "last_applied"].map(|name| cell_text(&order[name]));
    let effect = match order["effect"].as_str() {
        Some("in force") | None => String::new(),
        Some(effect) => format!(" ({})", escape_terminal(effect)),
    };
    let before = &order["in_place_of"];
    let before = before["id"].as_u64().map_or_else(String::new, |id| {
        let (until, with) = (
            cell_text(&before["until"]),
            said(&before["limits"], ", with "),
        );
        format!(", in place of {id} (until {until}{with})")
    });
    let applied = match order["applied"].as_u64() {
        None | Some(0) => String::new(),
        Some(1) => format!(", applied once, at {last}"),
        Some(count) => format!(", applied {count} times, last at {last}"),
    };
    format!("{id}: {act} {key}{of}{with} until {until}{effect}{before}{applied}")
}

/// What was reset for one rule's key.
fn reset_text(of: &Value) -> String {
    let (rule, kept) = (cell_text(&of["rule"]), joined_cells(&of["kept"]));
    let forgotten = match joined_cells(&of["reset"]).as_str() {
        "-" => "nothing".to_owned(),
        limits => limits.to_owned(),
    };
    let kept = match kept.as_str() {
        "-" => String::new(),
        limits => format!("; kept: {limits} (--quotas resets quotas)"),
    };
    format!("reset: {rule}: {forgotten}{kept}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let rows = [["all", "5", "x"], ["per-user", "120", ""]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(
            format_table("rule, denied, why", rows.into_iter()),
            "rule      denied  why\nall            5  x\nper-user     120\n"
        );
        assert_eq!(format_table("rule", std::iter::empty()), "rule\n");
    }

    #[test]
    fn a_key_is_told_what_becomes_of_its_next_request() {
        let of = |limit: &str, allowed: bool, left: Value, times: (f64, f64)| {
            let (retry, full) = times;
            serde_json::json!({"limit": limit, "allowed": allowed, "remaining": left, "of": 3,
                "retry_after": retry, "reset_after": full})
        };
        let left = Value::from(2);
        for (limit, ordered, said) in [
            (
                of("3/h", true, left.clone(), (0.0, 60.0)),
                None,
                "3/h: 2 of 3 left; the next passes; full again after 1m",
            ),
            (
                of("3/h", true, 3.into(), (0.0, 0.0)),
                None,
                "3/h: 3 of 3 left; the next passes",
            ),
            (
                of("3/h", false, 0.into(), (60.0, 120.0)),
                None,
                "3/h: 0 of 3 left; refused, passes after 1m; full again after 2m",
            ),
            (
                of("3 concurrent", false, 0.into(), (0.0, 0.0)),
                None,
                "3 concurrent: 0 of 3 left; refused until one is given back",
            ),
            (
                of("3/h", false, Value::Null, (1.0, 0.0)),
                None,
                "3/h: nobody knows what is left: the store can't be asked; refused meanwhile, as the rule says",
            ),
            (
                of("3/h", true, left, (0.0, 0.0)),
                Some("but blocked"),
                "3/h: 2 of 3 left; but blocked",
            ),
        ] {
            assert_eq!(limit_text(&limit, ordered), said);
        }
    }

    #[test]
    fn what_others_have_chosen_cannot_change_what_is_shown_beside_it() {
        assert_eq!(
            escape_terminal("a\u{1b}[2J\u{202e}b\n"),
            r"a\u{1b}[2J\u{202e}b\n"
        );
    }

    #[test]
    fn a_block_is_before_a_bypass() {
        let key = |acts: &[&str]| {
            let orders = acts.iter().map(|act| {
                serde_json::json!({"id": 1, "act": act, "rule": "r", "key": "user=ada", "limits": null,
                    "until": "2030-01-01T00:00:00Z", "effect": "in force"})
            });
            let limit = serde_json::json!({"limit": "3/h", "allowed": true, "remaining": 3, "of": 3,
                "retry_after": 0.0, "reset_after": 0.0});
            keys_text(
                &serde_json::json!({"keys": [{"rule": "r", "key": "user=ada", "mode": "enforce",
                "limits": [limit], "overrides": orders.collect::<Vec<_>>()}]}),
            )
        };
        assert!(key(&["block", "bypass"]).contains("left; but blocked\n"));
        assert!(key(&["bypass"]).contains("left; but bypassed: passes, and isn't counted\n"));
        assert!(key(&["limit"]).contains("left; the next passes\n"));
    }
}
