//! Writes an explanation as text.

use std::io::{self, Write};
use std::time::Duration;

use tollgate_engine::render;

use super::super::check::counting_text;
use super::super::request::{DecidedRequest, DescriptorCharge, OVER_LIMIT};
use super::super::simulated_engine::StoreState;
use super::super::time::format_duration;
use super::entries::{DescriptorEntry, RuleEntry};
use super::{Color, ExplainHeader};

/// The options of the output.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextWriter {
    pub(super) color: Color,
    pub(super) store: StoreState,
}

impl TextWriter {
    pub(super) fn write(
        self,
        head: &ExplainHeader<'_>,
        steps: &[DecidedRequest],
        out: &mut impl Write,
    ) -> io::Result<()> {
        if let Some(rules) = &head.rules {
            writeln!(out, "rules")?;
            for rule in rules {
                self.write_rule(rule, out)?;
            }
        }
        if let Some(descriptors) = &head.descriptors {
            writeln!(out, "descriptors")?;
            for found in descriptors {
                self.write_descriptor(found, out)?;
            }
        }
        for hint in &head.hints {
            let line = format!(
                "hint: nothing asks for the fact {:?}; did you mean {:?}?",
                hint.fact, hint.near
            );
            writeln!(out, "{}", render::escaped(&line))?;
        }
        writeln!(out, "\nrequests, from {}", head.at)?;
        writeln!(
            out,
            "  {:>12}  {:7}  {:>9}  {:>14}  rule",
            "at", "outcome", "remaining", "retry after"
        )?;
        for step in steps {
            self.write_request(step, out)?;
        }
        Ok(())
    }

    fn write_rule(self, rule: &RuleEntry<'_>, out: &mut impl Write) -> io::Result<()> {
        let applies = if rule.applies { "yes" } else { "no " };
        let mut notes = Vec::new();
        notes.extend(mode_note(rule));
        let warm_up = rule.warm_up.map(format_duration);
        notes.extend(warm_up.map(|length| format!("warms up for {length}")));
        notes.extend(rule.counting.and_then(counting_text).map(str::to_owned));
        let wait = rule.may_wait.map(format_duration);
        notes.extend(wait.map(|wait| format!("may wait {wait}")));
        notes.extend(rule.shed.iter().map(|by| format!("sheds by {by}")));
        notes.extend(self.store_down_note(rule.on_store_failure.as_deref()));
        let (name, notes) = (&rule.rule, bracketed(&notes));
        let line = format!("  {applies}  {name}{notes}: {}", rule.standing);
        writeln!(out, "{}", render::escaped(&line))?;
        if rule.applies && !rule.limits.is_empty() {
            writeln!(out, "       {}", rule.limits.join(", "))?;
        }
        Ok(())
    }

    fn write_descriptor(self, found: &DescriptorEntry, out: &mut impl Write) -> io::Result<()> {
        let mut notes = found.notes.clone();
        notes.extend(self.store_down_note(found.on_store_failure.as_deref()));
        let mut line = format!("  {}: ", found.descriptor);
        match (&found.limit, &found.why) {
            (Some(limit), Some(why)) => line.push_str(&format!("{limit}, {why}")),
            (Some(limit), None) => {
                line.push_str(&format!("{limit}{}", bracketed(&notes)));
            }
            (None, why) => {
                line.push_str(&format!("no limit: {}", why.as_deref().unwrap_or("")));
            }
        }
        writeln!(out, "{}", render::escaped(&line))?;
        if !found.limits.is_empty() {
            writeln!(out, "    {}", found.limits.join(", "))?;
        }
        Ok(())
    }

    /// What the rule does without the store, if the store is down.
    fn store_down_note(self, failure: Option<&str>) -> Option<String> {
        let failure = failure.filter(|_| self.store == StoreState::Down);
        failure.map(|failure| format!("{failure} without the store"))
    }

    fn write_request(self, step: &DecidedRequest, out: &mut impl Write) -> io::Result<()> {
        let remaining = step
            .remaining
            .map_or("-".to_owned(), |left| left.to_string());
        let retry = match step.retry_after {
            Some(Duration::ZERO) => "-".to_owned(),
            Some(wait) => format_duration(wait),
            None => "never".to_owned(),
        };
        let rule = render::escaped(step.rule.as_deref().unwrap_or("-"));
        let at = format_duration(step.at);
        let outcome = self.color.paint_outcome(step.outcome, 7);
        write!(
            out,
            "  {at:>12}  {outcome}  {remaining:>9}  {retry:>14}  {rule}"
        )?;
        if let Some(limit) = &step.limit {
            write!(out, ": {limit}")?;
        }
        if let Some(choice) = step.without_store {
            write!(out, " (no store: {choice})")?;
        }
        if let Some(waits) = step.waits {
            let longest = format_duration(waits.longest);
            let then = if waits.passes {
                "it passes then"
            } else {
                "that isn't enough"
            };
            write!(out, " (may wait {longest}: {then})")?;
        }
        if let Some(what) = &step.too_much {
            write!(out, " (no rule was asked: {})", render::escaped(what))?;
        }
        for shadow in &step.shadow {
            let shadow = render::escaped(shadow);
            write!(out, " (in shadow {shadow} would refuse)")?;
        }
        writeln!(out)?;
        for of in &step.left {
            let left = of
                .remaining
                .map_or("all".to_owned(), |left| left.to_string());
            let rule = render::escaped(&of.rule);
            writeln!(out, "  {:>12}  {left} left of {rule}: {}", "", of.limit)?;
        }
        for each in &step.descriptors {
            write_charge(each, out)?;
        }
        Ok(())
    }
}

/// A note on a mode that isn't fully enforced.
fn mode_note(rule: &RuleEntry<'_>) -> Option<String> {
    let percent = rule.enforced_percent;
    match (percent, rule.is_in_shadow()) {
        (1..100, true) => Some(format!("in shadow: enforced for {percent}% of its keys")),
        (1..100, false) => Some(format!("enforced, as for {percent}% of its keys")),
        (_, true) => Some("in shadow".to_owned()),
        (_, false) => None,
    }
}

/// Remarks on a limit, in brackets after its name.
fn bracketed(notes: &[String]) -> String {
    if notes.is_empty() {
        String::new()
    } else {
        format!(" ({})", notes.join(", "))
    }
}

/// Writes the charge of one descriptor below its request.
fn write_charge(each: &DescriptorCharge, out: &mut impl Write) -> io::Result<()> {
    let descriptor = render::escaped(&each.descriptor);
    let over = match each.status {
        OVER_LIMIT => "over its limit, ",
        _ => "",
    };
    write!(out, "  {:>12}  {descriptor}: ", "")?;
    match (&each.limit, each.remaining) {
        (None, None) => writeln!(out, "no limit"),
        (_, None) => writeln!(out, "unlimited"),
        (_, Some(left)) if each.charged > 0 => {
            writeln!(out, "{over}charged {}, {left} left", each.charged)
        }
        (_, Some(left)) => writeln!(out, "{over}not charged, {left} left"),
    }
}
