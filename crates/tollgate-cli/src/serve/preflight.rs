//! `tollgate serve --check`: checks everything that a start needs, and reports each check in one line. Nothing is
//! served.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::io::Write;

use tollgate::clock::Monotonic;
use tollgate_engine::backend::Memory;
use tollgate_engine::{Engine, LoadError, LoadedPolicy, render};
use tollgate_redis::{Address as Store, ConnectError, Redis};
use tollgate_server::preflight::{self, CheckOutcome};
use tollgate_server::{Address, Log, Settings};

use super::{STORE_READY_TIMEOUT, ServeOptions};
use crate::outcome::CliError;

/// The area of a check. Its number is the exit code if a check of the area fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CheckArea {
    /// Settings and the policy.
    Configuration = 2,
    /// Certificates and secrets.
    Secrets,
    /// The store of the counters.
    Store,
    /// Ports, files and folders.
    System,
}

/// The results so far.
#[derive(Default)]
struct PreflightReport {
    lines: String,
    checks: usize,
    failed: usize,
    areas: BTreeSet<CheckArea>,
}

impl PreflightReport {
    fn add_line(&mut self, standing: &str, what: &str, text: &str) {
        let text = render::escaped(text);
        // Writing to a string can't fail.
        let _ = writeln!(self.lines, "{standing:<8}{what}: {text}");
    }

    fn add_ok(&mut self, what: &str, text: &str) {
        self.checks += 1;
        self.add_line("ok", what, text);
    }

    /// Adds a warning that belongs to no check.
    fn add_warning(&mut self, what: &str, text: &str) {
        self.add_line("warning", what, text);
    }

    fn add_failure(&mut self, area: CheckArea, what: &str, text: &str) {
        self.checks += 1;
        self.failed += 1;
        self.areas.insert(area);
        self.add_line("failed", what, text);
    }

    fn add_result(
        &mut self,
        area: CheckArea,
        what: &str,
        found: Result<CheckOutcome, impl fmt::Display>,
    ) {
        match found {
            Ok(CheckOutcome::Passed(text)) => self.add_ok(what, &text),
            Ok(CheckOutcome::Warning(text)) => {
                self.checks += 1;
                self.add_warning(what, &text);
            }
            Err(why) => self.add_failure(area, what, &why.to_string()),
        }
    }

    fn finish(mut self, out: &mut impl Write) -> Result<(), CliError> {
        let (checks, failed) = (self.checks, self.failed);
        if failed == 0 {
            self.lines.push_str("it could start\n");
        }
        let written = out.write_all(self.lines.as_bytes());
        (written.and_then(|()| out.flush())).map_err(CliError::failed)?;
        match self.areas.first() {
            None => Ok(()),
            Some(&area) => Err(CliError::new(
                area as u8,
                format_args!("{failed} of {checks} checks failed: it couldn't start like this"),
            )),
        }
    }
}

impl ServeOptions {
    /// Runs all checks, even after one has failed.
    pub(super) async fn preflight(&self, out: &mut impl Write, log: &Log) -> Result<(), CliError> {
        let mut report = PreflightReport::default();
        let config = CheckArea::Configuration;
        let sense = || CheckOutcome::Passed("make sense together".to_owned());
        report.add_result(config, "settings", self.validate().map(|()| sense()));
        let checked = self.check_policy(&mut report);
        let settings = self.check_secrets(&mut report, log);
        if let Some(Err(open)) = settings.as_ref().map(preflight::admin_exposure) {
            report.add_failure(config, "admin", &open.to_string());
        }
        self.check_store(&mut report, checked.as_ref()).await;
        self.check_ports(&mut report).await;
        let descriptors = preflight::descriptors(self.limits.max_connections);
        report.add_result(
            CheckArea::System,
            "file descriptors",
            Ok::<_, String>(descriptors),
        );
        if let Some(folder) = self
            .state_options
            .state
            .as_ref()
            .filter(|_| self.is_in_memory())
        {
            report.add_result(CheckArea::System, "state", preflight::state(folder));
        }
        if let Some(path) = &self.ready_file {
            let (shown, written) = (path.display(), preflight::file(path));
            let written = written.map(|()| CheckOutcome::Passed(format!("{shown} can be written")));
            let why = |error| format!("can't write --ready-file {shown}: {error}");
            report.add_result(CheckArea::System, "ready file", written.map_err(why));
        }
        report.finish(out)
    }

    /// Checks the policy. Each error and warning is one line.
    fn check_policy(&self, report: &mut PreflightReport) -> Option<LoadedPolicy> {
        let checked = match self.load_policy() {
            Ok(checked) => checked,
            Err(failure) => {
                let mut fail =
                    |why: &str| report.add_failure(CheckArea::Configuration, "policy", why);
                match failure.policy_errors() {
                    Some(LoadError { errors, sources }) => render::to_reports(errors, sources)
                        .iter()
                        .map(in_one_line)
                        .for_each(|why| fail(&why)),
                    None => fail(&failure.to_string()),
                }
                return None;
            }
        };
        let part = checked.policy.share_for_replicas(self.replicas).policy;
        if self.is_in_memory()
            && let Err(error) = Engine::new(part, Memory::<Monotonic>::new())
        {
            report.add_failure(CheckArea::Configuration, "policy", &error.to_string());
            return None;
        }
        let shown = match &self.policy {
            Some(path) => path.display().to_string(),
            None => "the example".to_owned(),
        };
        report.add_ok("policy", &format!("{shown} can be put in force"));
        for warning in render::to_reports(&checked.warnings, &checked.sources) {
            report.add_warning("policy", &in_one_line(&warning));
        }
        for warning in self.start_warnings(&checked.policy) {
            report.add_warning("start", &warning);
        }
        Some(checked)
    }

    /// Checks certificates and secrets. Returns all settings if they can be read.
    fn check_secrets(&self, report: &mut PreflightReport, log: &Log) -> Option<Settings> {
        if let Some(tls) = self.security.tls() {
            report.add_result(
                CheckArea::Secrets,
                "certificate",
                preflight::certificates(tls),
            );
        }
        match self.settings(log) {
            Ok(settings) => {
                report.add_ok("secrets", "can be read");
                Some(settings)
            }
            Err(failure) => {
                report.add_failure(CheckArea::Secrets, "secrets", &failure.to_string());
                None
            }
        }
    }

    /// Checks the store with the timeout of a start. It must answer, even if a start doesn't require it.
    async fn check_store(&self, report: &mut PreflightReport, checked: Option<&LoadedPolicy>) {
        if self.is_in_memory() || self.backend.parse::<Store>().is_err() {
            return;
        }
        let shown = Store::without_login(&self.backend);
        let build = || -> Result<Redis, ConnectError> {
            Redis::builder(&self.backend)?
                .timeout(self.store_timeout)
                .build()
        };
        let redis = match build() {
            Ok(redis) => redis,
            Err(why) => {
                return report.add_failure(CheckArea::Store, "store", &format!("{shown}: {why}"));
            }
        };
        let answers = redis.ready(STORE_READY_TIMEOUT).await;
        let answers = answers.map(|()| CheckOutcome::Passed(format!("{shown} answers")));
        let why = |error| format!("{shown}: {error}");
        report.add_result(CheckArea::Store, "store", answers.map_err(why));
        if let Some(checked) = checked
            && let Err(error) = Engine::new(checked.policy.clone(), redis)
        {
            report.add_failure(CheckArea::Configuration, "policy", &error.to_string());
        }
    }

    /// Checks that every listener can be bound.
    async fn check_ports(&self, report: &mut PreflightReport) {
        let mut taken: Vec<&Address> = Vec::new();
        for (_, protocol, address) in self.listeners() {
            if *address == Address::Disabled {
                continue;
            }
            let free = preflight::address(protocol, address, &taken).await;
            let free = free.map(|()| CheckOutcome::Passed(format!("{address} is free")));
            report.add_result(CheckArea::System, protocol, free);
            taken.push(address);
        }
    }
}

/// A diagnostic in one line, with its position and help.
fn in_one_line(report: &render::DiagnosticReport<'_>) -> String {
    let place = match report.line {
        0 => format!("{}: ", report.file),
        line => format!("{}:{line}:{}: ", report.file, report.column),
    };
    let help = report.help.map(|help| format!("; {help}"));
    let help = help.unwrap_or_default();
    format!("{place}{}{help}", report.message).replace('\n', " ")
}
