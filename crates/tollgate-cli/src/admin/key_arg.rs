//! Keys as arguments: a fact as a request has it, or the text that `admin top` shows.

use std::fmt::Write;
use std::str::FromStr;

use serde_json::{Map, Value, json};
use tollgate_engine::orders::{FactPattern, KeyTextError, Target, TargetKey};

use crate::policy::one_value_each;

/// One argument of a key: `user=ada`; or a key as lists and logs show it, in one argument: `user="a b" plan=free`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyArg {
    text: String,
    /// It stands for itself, as a list has shown it.
    is_shown: bool,
}

impl FromStr for KeyArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let own = |is_shown| {
            let text = text.to_owned();
            Ok(Self { text, is_shown })
        };
        let no_fact = || format!("{text:?} is no fact; write it as name=value");
        let (name, value) = text.split_once('=').ok_or_else(no_fact)?;
        if name.is_empty() {
            return Err(no_fact());
        }
        match Target::from_text(None, text) {
            Err(error @ KeyTextError::Cut) => Err(error.to_string()),
            // A shell takes the quotes of user="a b" away, and leaves a value with a space, which is no text of a list.
            Ok(_) if value.contains(['"', ' ']) => own(true),
            _ => own(false),
        }
    }
}

/// What is sent of them: facts as they are; or, if one was taken from a list, the text of all.
///
/// # Errors
/// A fact has two values, of which one would be left out.
pub(super) fn add_to(body: &mut Map<String, Value>, args: &[KeyArg]) -> Result<(), String> {
    if args.is_empty() {
        return Ok(());
    }
    if args.iter().any(|arg| arg.is_shown) {
        let text = args.iter().map(shown).collect::<Vec<_>>().join(" ");
        body.insert("key".to_owned(), json!(text));
        return Ok(());
    }
    let facts = one_value_each(args.iter().filter_map(|arg| arg.text.split_once('=')))?;
    body.insert("facts".to_owned(), facts.into());
    Ok(())
}

/// An argument as lists show it.
fn shown(arg: &KeyArg) -> String {
    if arg.is_shown {
        return arg.text.clone();
    }
    let pairs = arg.text.split_once('=');
    let target = Target::written(None, pairs);
    let mut text = String::new();
    // Writing to a text doesn't fail. A glob stays one: only where it has to stand in quotes it is a text of its own.
    let _ = match target.whose() {
        TargetKey::Patterns(facts) => facts.iter().try_for_each(|(name, pattern)| match pattern {
            FactPattern::Exact(value) => write!(text, "{name}={value:?}"),
            other => write!(text, "{name}={other}"),
        }),
        whose => write!(text, "{whose}"),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(args: &[&str]) -> Value {
        let args = args.iter().map(|arg| arg.parse::<KeyArg>());
        let args: Vec<_> = args.collect::<Result<_, _>>().expect("arguments");
        let mut body = Map::new();
        add_to(&mut body, &args).expect("one value each");
        body.into()
    }

    #[test]
    fn facts_are_sent_as_they_are_and_what_a_list_shows_as_text() {
        for (args, expect) in [
            (&["user=ada"][..], json!({"facts": {"user": "ada"}})),
            (
                &["ip=2001:db8::/64"],
                json!({"facts": {"ip": "2001:db8::/64"}}),
            ),
            (
                &["path=/api/**", "user=a"],
                json!({"facts": {"path": "/api/**", "user": "a"}}),
            ),
            // The shell has taken the quotes away.
            (&["user=a b"], json!({"facts": {"user": "a b"}})),
            (
                &["user=\"a b\" plan=free"],
                json!({"key": "user=\"a b\" plan=free"}),
            ),
            (
                &["user=ada plan=free"],
                json!({"key": "user=ada plan=free"}),
            ),
            (
                &["user=\"a*\"", "plan=two words"],
                json!({"key": "user=\"a*\" plan=\"two words\""}),
            ),
            (
                &["user=\"a\"", "path=/x/*"],
                json!({"key": "user=\"a\" path=/x/*"}),
            ),
        ] {
            assert_eq!(sent(args), expect, "{args:?}");
        }
    }

    #[test]
    fn what_is_no_key_is_said() {
        let wrong = |arg: &str| arg.parse::<KeyArg>().expect_err("no key");
        assert_eq!(wrong("ada"), "\"ada\" is no fact; write it as name=value");
        assert_eq!(wrong("=ada"), "\"=ada\" is no fact; write it as name=value");
        assert!(wrong("user=aaaa…").starts_with("the key ends with …"));
    }
}
