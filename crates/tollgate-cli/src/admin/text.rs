//! What a service answers, as people read it.

use std::time::Duration;

use serde_json::Value;

use super::table::table;
use super::{Ask, Orders, Reload};
use crate::policy::readable;

/// Text that somebody else has chosen, without what a terminal would obey.
pub(super) fn plain(text: &str) -> String {
    let signs = text.chars().map(|sign| {
        if sign.is_control() {
            sign.escape_default().to_string()
        } else {
            sign.to_string()
        }
    });
    signs.collect()
}

/// What was answered to a question.
pub(super) fn of(ask: &Ask, answer: &Value) -> String {
    match ask {
        Ask::Rules => rules(answer),
        Ask::Top => top(answer),
        Ask::Limiters => limiters(answer),
        Ask::Key(_) => keys(answer),
        Ask::Orders(Orders { end: None }) => orders(&answer["orders"]),
        Ask::Orders(_) | Ask::Unblock(_) => format!("ended: {}\n", order(answer)),
        Ask::Block(_) | Ask::Override(_) | Ask::Bypass(_) => format!("{}\n", order(answer)),
        Ask::Reset(_) => {
            let rules = list(&answer["rules"]).map(cell).collect::<Vec<_>>();
            format!("reset: {}\n", rules.join(", "))
        }
        Ask::Reload(Reload { dry_run }) => {
            let would = if *dry_run { "would change" } else { "changed" };
            let (summary, text) = (cell(&answer["summary"]), answer["text"].as_str());
            let text = text.unwrap_or_default().lines().map(plain);
            let text: String = text.map(|line| line + "\n").collect();
            format!("{would}: {summary}\n{text}")
        }
        Ask::Log(_) => format!("{}\n", cell(&answer["level"])),
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A value in a table. Nothing is a dash.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => plain(text),
        other => other.to_string(),
    }
}

/// Several of them in one.
fn joined(value: &Value) -> String {
    let all: Vec<_> = list(value).map(cell).collect();
    if all.is_empty() {
        "-".to_owned()
    } else {
        all.join(", ")
    }
}

fn time(value: &Value) -> String {
    let seconds = value
        .as_f64()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.map_or_else(|| "never".to_owned(), readable)
}

fn rules(answer: &Value) -> String {
    let rows = list(&answer["rules"]).map(|rule| {
        let reasons = rule["reasons"].as_object().into_iter().flatten();
        let reasons: Vec<_> = reasons
            .map(|(reason, count)| format!("{reason} {count}"))
            .collect();
        vec![
            cell(&rule["name"]),
            joined(&rule["limits"]),
            cell(&rule["allowed"]),
            cell(&rule["denied"]),
            cell(&rule["near_limit"]),
            cell(&rule["shadow_denied"]),
            reasons.join(", "),
        ]
    });
    let names = [
        "rule",
        "limits",
        "allowed",
        "denied",
        "near limit",
        "in shadow",
        "denied by",
    ];
    table(&names, &rows.collect::<Vec<_>>())
}

fn top(answer: &Value) -> String {
    let rows = list(&answer["keys"]).map(|key| {
        ["rule", "key", "denied", "error"]
            .map(|name| cell(&key[name]))
            .to_vec()
    });
    table(
        &["rule", "key", "denied", "or less by"],
        &rows.collect::<Vec<_>>(),
    )
}

fn limiters(answer: &Value) -> String {
    let rows = list(&answer["limiters"]).map(|limiter| {
        let names = [
            "name", "mode", "limit", "burst", "tokens", "waiting", "orders",
        ];
        let mut row = names.map(|name| cell(&limiter[name])).to_vec();
        row.insert(1, joined(&limiter["key"]));
        row
    });
    let names = [
        "rule", "key", "mode", "limit", "burst", "tokens", "waiting", "orders",
    ];
    table(&names, &rows.collect::<Vec<_>>())
}

fn keys(answer: &Value) -> String {
    let mut text = String::new();
    for key in list(&answer["keys"]) {
        let (rule, of) = (cell(&key["rule"]), cell(&key["key"]));
        let mode = match key["mode"].as_str() {
            Some("enforce") | None => String::new(),
            Some(mode) => format!(" ({})", plain(mode)),
        };
        let of = if of.is_empty() {
            "everybody".to_owned()
        } else {
            of
        };
        text.push_str(&format!("{rule}{mode}, {of}\n"));
        // A bypass may be over the block.
        let is = |act: &str| {
            list(&key["orders"]).any(|one| one["act"] == act && one["effect"] == "in force")
        };
        let is_blocked = is("block") && !is("bypass");
        for limit in list(&key["limits"]) {
            let (kind, left) = (cell(&limit["limit"]), cell(&limit["remaining"]));
            let total = cell(&limit["of"]);
            let next = match limit["allowed"].as_bool() {
                Some(true) if is_blocked => "but blocked".to_owned(),
                Some(true) => "the next passes".to_owned(),
                _ => format!("refused, passes after {}", time(&limit["retry_after"])),
            };
            let full = time(&limit["reset_after"]);
            text.push_str(&format!(
                "  {kind}: {left} of {total} left; {next}; full again after {full}\n"
            ));
        }
        for one in list(&key["orders"]) {
            text.push_str(&format!("  ordered: {}\n", order(one)));
        }
    }
    text
}

fn orders(orders: &Value) -> String {
    let rows = list(orders).map(|order| {
        let left = Duration::from_secs(order["left"].as_u64().unwrap_or(0));
        vec![
            cell(&order["id"]),
            cell(&order["act"]),
            cell(&order["rule"]),
            cell(&order["key"]),
            cell(&order["limits"]),
            readable(left),
            cell(&order["by"]),
            cell(&order["effect"]),
        ]
    });
    let names = [
        "id", "act", "rule", "key", "limits", "ends in", "by", "effect",
    ];
    table(&names, &rows.collect::<Vec<_>>())
}

/// One order in a line.
fn order(order: &Value) -> String {
    let with = order["limits"].as_str();
    let with = with.map_or_else(String::new, |limits| format!(" with {}", plain(limits)));
    let key = order["key"]
        .as_str()
        .map_or_else(|| "everybody".to_owned(), plain);
    let of = order["rule"].as_str();
    let of = of.map_or_else(String::new, |rule| format!(" of {}", plain(rule)));
    let (id, act, until) = (
        cell(&order["id"]),
        cell(&order["act"]),
        cell(&order["until"]),
    );
    let effect = match order["effect"].as_str() {
        Some("in force") | None => String::new(),
        Some(effect) => format!(" ({})", plain(effect)),
    };
    format!("{id}: {act} {key}{of}{with} until {until}{effect}")
}
