//! `tollgate serve --check`: all that a start needs, looked at one by one and told in a line each. Nothing is served.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};
use std::io::Write;

use tollgate::clock::Monotonic;
use tollgate_engine::backend::Memory;
use tollgate_engine::{Checked, Engine, Rejected, render};
use tollgate_redis::{Address as Store, ConnectError, Redis};
use tollgate_server::preflight::{self, Found};
use tollgate_server::{Address, Log, Settings};

use super::{MEET_STORE, Serve};
use crate::outcome::CliError;

/// What a check is about, by the exit code if something of it is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CheckArea {
    /// Settings and the policy.
    Configuration = 2,
    /// Certificates and secrets.
    Secrets,
    /// The store that limits are counted in.
    Store,
    /// Ports, files and folders.
    System,
}

/// What was found so far.
#[derive(Default)]
struct PreflightReport {
    lines: String,
    checks: usize,
    failed: usize,
    areas: BTreeSet<CheckArea>,
}

impl PreflightReport {
    fn line(&mut self, standing: &str, what: &str, text: &str) {
        let text = render::escaped(text);
        // Writing to a string can't fail.
        let _ = writeln!(self.lines, "{standing:<8}{what}: {text}");
    }

    fn well(&mut self, what: &str, text: &str) {
        self.checks += 1;
        self.line("ok", what, text);
    }

    /// Something that isn't a check of its own.
    fn warn(&mut self, what: &str, text: &str) {
        self.line("warning", what, text);
    }

    fn fail(&mut self, area: CheckArea, what: &str, text: &str) {
        self.checks += 1;
        self.failed += 1;
        self.areas.insert(area);
        self.line("failed", what, text);
    }

    fn found(&mut self, area: CheckArea, what: &str, found: Result<Found, impl fmt::Display>) {
        match found {
            Ok(Found::Well(text)) => self.well(what, &text),
            Ok(Found::Warning(text)) => {
                self.checks += 1;
                self.warn(what, &text);
            }
            Err(why) => self.fail(area, what, &why.to_string()),
        }
    }

    fn end(mut self, out: &mut impl Write) -> Result<(), CliError> {
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

impl Serve {
    /// Looks at all that a start needs, also where something was wrong before.
    pub(super) async fn preflight(&self, out: &mut impl Write, log: &Log) -> Result<(), CliError> {
        let mut report = PreflightReport::default();
        let config = CheckArea::Configuration;
        let sense = || Found::Well("make sense together".to_owned());
        report.found(config, "settings", self.check().map(|()| sense()));
        let checked = self.check_policy(&mut report);
        let settings = self.check_secrets(&mut report, log);
        if let Some(Err(open)) = settings.as_ref().map(preflight::operators) {
            report.fail(config, "admin", &open.to_string());
        }
        self.check_store(&mut report, checked.as_ref()).await;
        self.check_ports(&mut report).await;
        let descriptors = preflight::descriptors(self.most.max_connections);
        report.found(
            CheckArea::System,
            "file descriptors",
            Ok::<_, String>(descriptors),
        );
        if let Some(folder) = self.keep.state.as_ref().filter(|_| self.is_in_memory()) {
            report.found(CheckArea::System, "state", preflight::state(folder));
        }
        if let Some(path) = &self.ready_file {
            let (shown, written) = (path.display(), preflight::file(path));
            let written = written.map(|()| Found::Well(format!("{shown} can be written")));
            let why = |error| format!("can't write --ready-file {shown}: {error}");
            report.found(CheckArea::System, "ready file", written.map_err(why));
        }
        report.end(out)
    }

    /// The policy, with every error and warning in a line.
    fn check_policy(&self, report: &mut PreflightReport) -> Option<Checked> {
        let checked = match self.policy() {
            Ok(checked) => checked,
            Err(failure) => {
                let mut fail = |why: &str| report.fail(CheckArea::Configuration, "policy", why);
                match failure.rejected() {
                    Some(Rejected { errors, sources }) => render::reports(errors, sources)
                        .iter()
                        .map(in_one_line)
                        .for_each(|why| fail(&why)),
                    None => fail(&failure.to_string()),
                }
                return None;
            }
        };
        let part = checked.policy.divided(self.replicas).policy;
        if self.is_in_memory()
            && let Err(error) = Engine::new(part, Memory::<Monotonic>::new())
        {
            report.fail(CheckArea::Configuration, "policy", &error.to_string());
            return None;
        }
        let shown = match &self.policy {
            Some(path) => path.display().to_string(),
            None => "the example".to_owned(),
        };
        report.well("policy", &format!("{shown} can be put in force"));
        for warning in render::reports(&checked.warnings, &checked.sources) {
            report.warn("policy", &in_one_line(&warning));
        }
        for warning in self.start_warnings(&checked.policy) {
            report.warn("start", &warning);
        }
        Some(checked)
    }

    /// Certificates and secrets; all settings, if they can be read.
    fn check_secrets(&self, report: &mut PreflightReport, log: &Log) -> Option<Settings> {
        if let Some(tls) = self.secure.tls() {
            report.found(
                CheckArea::Secrets,
                "certificate",
                preflight::certificates(tls),
            );
        }
        match self.settings(log) {
            Ok(settings) => {
                report.well("secrets", "can be read");
                Some(settings)
            }
            Err(failure) => {
                report.fail(CheckArea::Secrets, "secrets", &failure.to_string());
                None
            }
        }
    }

    /// The store, which is given as long as at the start; here it has to answer, whether a start needs it or not.
    async fn check_store(&self, report: &mut PreflightReport, checked: Option<&Checked>) {
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
            Err(why) => return report.fail(CheckArea::Store, "store", &format!("{shown}: {why}")),
        };
        let answers = redis.ready(MEET_STORE).await;
        let answers = answers.map(|()| Found::Well(format!("{shown} answers")));
        let why = |error| format!("{shown}: {error}");
        report.found(CheckArea::Store, "store", answers.map_err(why));
        if let Some(checked) = checked
            && let Err(error) = Engine::new(checked.policy.clone(), redis)
        {
            report.fail(CheckArea::Configuration, "policy", &error.to_string());
        }
    }

    /// Every listener that isn't off.
    async fn check_ports(&self, report: &mut PreflightReport) {
        let mut taken: Vec<&Address> = Vec::new();
        for (_, protocol, address) in self.listeners() {
            if *address == Address::Off {
                continue;
            }
            let free = preflight::address(protocol, address, &taken).await;
            let free = free.map(|()| Found::Well(format!("{address} is free")));
            report.found(CheckArea::System, protocol, free);
            taken.push(address);
        }
    }
}

/// A diagnostic with its place and what to do.
fn in_one_line(report: &render::Report<'_>) -> String {
    let place = match report.line {
        0 => format!("{}: ", report.file),
        line => format!("{}:{line}:{}: ", report.file, report.column),
    };
    let help = report.help.map(|help| format!("; {help}"));
    let help = help.unwrap_or_default();
    format!("{place}{}{help}", report.message).replace('\n', " ")
}
