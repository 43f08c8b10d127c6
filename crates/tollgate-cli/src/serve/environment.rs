//! Finds environment variables that look like settings but aren't.

use clap::error::{ContextKind, ContextValue};
use clap::{Args, Command};

use super::settings;
use crate::admin::Admin;
use crate::ask::AskOptions;

const ENV_PREFIX: &str = "TOLLGATE_";

/// Warnings about variables with the prefix of settings that set nothing, one line each.
pub(super) fn unknown_variable_warnings(
    variables: impl IntoIterator<Item = String>,
) -> Vec<String> {
    // Variables of the other commands are set for those commands, so they are no mistake.
    let ask = AskOptions::augment_args(Command::new("ask"));
    let admin = Admin::augment_args(Command::new("admin"));
    let known = known_variables(&settings::serve_cli().subcommands([ask, admin]));
    let is_ours = |name: &String| name.starts_with(ENV_PREFIX) && !is_kubernetes_link(name);
    let unknown = variables.into_iter().filter(is_ours);
    let mut unknown: Vec<_> = unknown.filter(|name| !known.contains(name)).collect();
    unknown.sort();
    let said = unknown.iter().map(|name| match similar_variable(name) {
        Some(near) => format!("{name} in the environment is no setting: did you mean {near}?"),
        None => format!("{name} in the environment is no setting: tollgate serve --help has all"),
    });
    said.collect()
}

/// The variables of a command and of its subcommands.
fn known_variables(command: &Command) -> Vec<String> {
    let own = command.get_arguments().filter_map(clap::Arg::get_env);
    let own = own.map(|name| name.to_string_lossy().into_owned());
    own.chain(command.get_subcommands().flat_map(known_variables))
        .collect()
}

/// Whether Kubernetes set the variable, as it does for each service in a namespace. A service named `tollgate` is
/// common.
fn is_kubernetes_link(name: &str) -> bool {
    let has_number = |rest: &str| rest.starts_with(|first: char| first.is_ascii_digit());
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || name.ends_with("_PORT")
        || name.split("_PORT_").skip(1).any(has_number)
}

/// The variable of the setting with the closest name.
fn similar_variable(name: &str) -> Option<String> {
    let flag = name
        .strip_prefix(ENV_PREFIX)?
        .to_lowercase()
        .replace('_', "-");
    let words = ["tollgate", "serve", &format!("--{flag}=x")].map(str::to_owned);
    let error = settings::serve_cli().try_get_matches_from(words).err()?;
    let Some(ContextValue::String(near)) = error.get(ContextKind::SuggestedArg) else {
        return None;
    };
    let near = near.trim_start_matches("--");
    Some(settings::env_variable(near))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_sets_nothing_is_told_with_what_may_be_meant() {
        for (name, expect) in [
            ("TOLLGATE_HTP", Some("did you mean TOLLGATE_HTTP?")),
            (
                "TOLLGATE_MAX_CONECTIONS",
                Some("did you mean TOLLGATE_MAX_CONNECTIONS?"),
            ),
            ("TOLLGATE_XYZZY", Some("tollgate serve --help has all")),
            ("TOLLGATE_HTTP", None),
            ("TOLLGATE_POLICY", None),
            ("HOME", None),
        ] {
            let said = unknown_variable_warnings([name.to_owned()]);
            let expect =
                expect.map(|what| format!("{name} in the environment is no setting: {what}"));
            assert_eq!(said, Vec::from_iter(expect));
        }
    }

    #[test]
    fn what_kubernetes_sets_for_a_service_is_no_mistake() {
        let set = [
            "TOLLGATE_SERVICE_HOST",
            "TOLLGATE_SERVICE_PORT",
            "TOLLGATE_SERVICE_PORT_HTTP",
            "TOLLGATE_PORT",
            "TOLLGATE_PORT_8080_TCP",
            "TOLLGATE_PORT_8080_TCP_ADDR",
            "TOLLGATE_PODS_PORT_8081_TCP_PROTO",
        ];
        assert_eq!(
            unknown_variable_warnings(set.map(str::to_owned)),
            Vec::<String>::new()
        );
        assert_eq!(
            unknown_variable_warnings(["TOLLGATE_PORTS".to_owned()]).len(),
            1
        );
    }
}
