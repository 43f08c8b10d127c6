//! Denials in the log: a random sample, at most a few lines a second, with hashes instead of keys.

use std::cell::Cell;
use std::fmt::{self, Display};
use std::hash::{BuildHasher, RandomState};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::clock::{Clock, Monotonic};
use tollgate::{Algorithm, Limiter, Rate};
use tollgate_engine::counters::limiter_name;
use tollgate_engine::observer::{Event, Observer, ObserverInterest};
use tollgate_engine::policy::Mode;
use tollgate_engine::verdict::Cause;
use tollgate_engine::warning::Warning;

use crate::log::{Level, Log};

/// All denials, in units of [`SampleRate`].
const FULL_SHARE: u32 = 1_000_000;

/// Which denials are logged.
///
/// ```
/// use tollgate_server::DenialLog;
///
/// let none = DenialLog { share: "0".parse()?, ..DenialLog::default() };
/// assert_eq!((none.share.to_string().as_str(), none.max_per_second), ("0%", 10));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenialLog {
    /// The share of denials that is logged: 1 % by default.
    pub share: SampleRate,
    /// The most lines in any second: 10 by default. The number of suppressed lines is logged later.
    pub max_per_second: u32,
}

impl Default for DenialLog {
    fn default() -> Self {
        Self {
            share: SampleRate(FULL_SHARE / 100),
            max_per_second: 10,
        }
    }
}

/// A share with a resolution of a ten-thousandth of a percent.
///
/// ```
/// use tollgate_server::SampleRate;
///
/// assert_eq!("2.5%".parse::<SampleRate>()?.to_string(), "2.5%");
/// assert_eq!("0".parse::<SampleRate>()?.to_string(), "0%");
/// assert!("5".parse::<SampleRate>().is_err() && "101%".parse::<SampleRate>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRate(u32);

impl FromStr for SampleRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("no share {text:?}: write 1%, 0.01%, 100%, or 0 for none");
        if text == "0" {
            return Ok(Self(0));
        }
        let number = text.strip_suffix('%').ok_or_else(wrong)?.trim();
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        let digits = format!("{whole}{part:0<4}");
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty() || part.is_empty() || part.len() > 4 || !is_number {
            return Err(wrong());
        }
        let all = digits.parse().ok().filter(|all| *all <= FULL_SHARE);
        all.map(Self).ok_or_else(wrong)
    }
}

impl Display for SampleRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / 10_000, self.0 % 10_000);
        let part = format!("{part:04}");
        match part.trim_end_matches('0') {
            "" => write!(f, "{whole}%"),
            part => write!(f, "{whole}.{part}%"),
        }
    }
}

/// Logs a sample of the denials.
#[derive(derive_more::Debug)]
#[debug("Denials {{ share: {:?}, .. }}", SampleRate(*share))]
pub(crate) struct DenialLogger<C: Clock = Monotonic> {
    log: Log,
    share: u32,
    /// `None` if no lines may be written.
    line_limiter: Option<Limiter<C>>,
    /// Randomly seeded in each process, so that hashes can't be reversed by guessing keys.
    hasher: RandomState,
    suppressed: AtomicU64,
}

/// The observer of an engine's denials.
pub(crate) struct DenialObserver<C: Clock = Monotonic>(pub(crate) Arc<DenialLogger<C>>);

impl DenialLogger {
    pub(crate) fn new(log: Log, wanted: DenialLog) -> Self {
        Self::with_clock(log, wanted, Monotonic::default())
    }
}

impl<C: Clock> DenialLogger<C> {
    fn with_clock(log: Log, wanted: DenialLog, clock: C) -> Self {
        // A sliding log bounds every second, wherever it begins.
        let rate = Rate::per_second(u64::from(wanted.max_per_second));
        let pace = Limiter::builder(rate).algorithm(Algorithm::SlidingLog);
        Self {
            log,
            share: wanted.share.0,
            line_limiter: pace.clock(clock).build().ok(),
            hasher: RandomState::new(),
            suppressed: AtomicU64::new(0),
        }
    }

    fn log_event(&self, event: &Event<'_>) {
        let Some(reason) = event.reason else {
            return;
        };
        let what = match event.mode {
            Mode::Enforce => "denied",
            Mode::Shadow => "would be denied (shadow)",
            Mode::Off => return,
        };
        if self.share == 0 || !is_sampled(self.share) || self.log.level() < Level::Info {
            return;
        }
        let may_say = |pace: &Limiter<C>| pace.check().is_allowed();
        if !self.line_limiter.as_ref().is_some_and(may_say) {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let cause = match event.cause {
            Cause::Rule(name)
            | Cause::Tier(name)
            | Cause::Descriptor(name)
            | Cause::StoreFailure(name) => limiter_name(name).into_owned(),
            other => format!("({other})"),
        };
        let hash = event.key.map(|key| self.hasher.hash_one(key.fingerprint()));
        let key = hash.map_or_else(|| "-".to_owned(), |hash| format!("{hash:016x}"));
        let said: [(&str, &dyn Display); 3] =
            [("rule", &cause), ("reason", &reason), ("key_hash", &key)];
        self.log.info(what, &said);
    }

    /// Logs the number of suppressed lines since the last time, if there were any.
    pub(crate) fn log_suppressed(&self) {
        let count = self.suppressed.swap(0, Ordering::Relaxed);
        if count > 0 {
            let said: [(&str, &dyn Display); 1] = [("count", &count)];
            self.log.info("more denials were left out", &said);
        }
    }
}

impl<C: Clock + 'static> Observer for DenialObserver<C> {
    fn on_decision(&self, event: &Event<'_>) {
        self.0.log_event(event);
    }

    /// Warnings are logged whatever the sample rate: a policy has at most one for each limit.
    fn on_warning(&self, warning: &Warning) {
        let rule = warning.rule().map_or_else(|| "-".into(), limiter_name);
        let said: [(&str, &dyn Display); 2] = [("rule", &rule), ("why", warning)];
        let headline = match warning {
            Warning::CostNeverFound { .. } => "a limit finds no cost",
            _ => "a limit applies to nobody",
        };
        self.0.log.warn(headline, &said);
    }

    fn wants(&self) -> ObserverInterest {
        ObserverInterest::Denials
    }
}

/// A random choice with this probability.
fn is_sampled(share: u32) -> bool {
    thread_local! {
        static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(0_u8) | 1);
    }
    if share >= FULL_SHARE {
        return true;
    }
    // xorshift64*: a few instructions, and statistically good enough for a sample.
    let mut state = STATE.get();
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    STATE.set(state);
    let drawn = state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32;
    (drawn * u64::from(FULL_SHARE)) >> 32 < u64::from(share)
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::Mutex;
    use std::time::Duration;

    use tollgate::clock::Manual;
    use tollgate_engine::backend::Memory;
    use tollgate_engine::document::Format;
    use tollgate_engine::{Engine, Facts, Policy};

    use super::*;
    use crate::log::LogFormat;

    /// A log that a test reads.
    #[derive(Clone, Default)]
    struct Said(Arc<Mutex<Vec<u8>>>);

    impl Write for Said {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("not poisoned").extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Said {
        /// The lines since the previous call, without their times.
        fn take(&self) -> Vec<String> {
            let bytes = std::mem::take(&mut *self.0.lock().expect("not poisoned"));
            let text = String::from_utf8(bytes).expect("text");
            let lines = text.lines().filter_map(|line| line.split_once("Z "));
            lines.map(|(_, line)| line.to_owned()).collect()
        }
    }

    #[test]
    fn no_second_has_more_lines_than_were_chosen_and_the_rest_is_counted() {
        let (clock, said) = (Manual::new(), Said::default());
        let wanted = DenialLog {
            share: SampleRate(FULL_SHARE),
            max_per_second: 3,
        };
        let log = Log::to_writer(said.clone(), LogFormat::Text);
        let denials = Arc::new(DenialLogger::with_clock(log.clone(), wanted, clock.clone()));
        let memory = Memory::builder().clock(clock.clone()).wall(clock.clone());
        let text = "limits: [{name: own, key: user, rate: 1/day}, {name: tried, rate: 1/day, mode: shadow}]";
        let policy = Policy::from_text(text, Format::Yaml)
            .expect("a policy")
            .policy;
        let engine = Engine::new(policy, memory.build()).expect("a policy");
        let engine = engine.with_observer(DenialObserver(Arc::clone(&denials)));
        let ask = |user: &str, times: usize| {
            for _ in 0..times {
                let _ = engine.decide(&Facts::new().with("user", user));
            }
        };
        ask("ada", 21);
        let lines = said.take();
        assert_eq!(lines.len(), 3, "{lines:?}");
        let start = "info: denied rule=own reason=rate key_hash=";
        let hash = lines[0].strip_prefix(start).expect("a hash");
        assert_eq!(hash.len(), 16);
        assert!(lines.iter().all(|line| line.ends_with(hash)), "{lines:?}");
        clock.advance(Duration::from_millis(999));
        ask("ada", 5);
        assert_eq!(said.take(), Vec::<String>::new());
        clock.advance(Duration::from_millis(1));
        ask("bea", 2);
        let lines = said.take();
        let in_shadow = "info: would be denied (shadow) rule=tried reason=rate key_hash=";
        assert!(
            lines.len() == 2 && lines[0].starts_with(in_shadow),
            "{lines:?}"
        );
        assert!(
            lines[1].starts_with(start) && !lines[1].ends_with(hash),
            "{lines:?}"
        );
        denials.log_suppressed();
        denials.log_suppressed();
        assert_eq!(said.take(), ["info: more denials were left out count=22"]);
        log.set_level(Level::Warn);
        clock.advance(Duration::from_secs(9));
        ask("ada", 5);
        denials.log_suppressed();
        assert_eq!(said.take(), Vec::<String>::new());
    }

    #[test]
    fn shares_are_read_as_they_are_written() {
        for (text, millionths) in [
            ("0", 0),
            ("0%", 0),
            ("1%", 10_000),
            ("0.01%", 100),
            ("12.5%", 125_000),
            ("100%", FULL_SHARE),
        ] {
            assert_eq!(text.parse(), Ok(SampleRate(millionths)), "{text}");
        }
        for wrong in [
            "", "%", "1", "-1%", "100.1%", "1.%", ".5%", "1.x%", "0.00001%", "+1%",
        ] {
            let said = wrong.parse::<SampleRate>().expect_err(wrong);
            assert!(said.ends_with("write 1%, 0.01%, 100%, or 0 for none"));
        }
    }

    #[test]
    fn a_share_of_many_is_chosen() {
        let chosen = (0..100_000)
            .filter(|_| is_sampled(FULL_SHARE / 100))
            .count();
        assert!((700..1_300).contains(&chosen), "{chosen}");
        assert!((0..1_000).all(|_| is_sampled(FULL_SHARE) && !is_sampled(0)));
    }
}
