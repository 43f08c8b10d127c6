//! One RESP connection: commands are parsed, authorized and answered.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tollgate::Timestamp;
use tollgate_engine::Facts;
use tollgate_engine::engine::ThrottleDecision;
use tollgate_engine::facts::{fact_name, text_of_bytes};
use tollgate_engine::verdict::DenyReason;

use super::frame::{CommandBounds, CommandParser, Words};
use super::response::{ReplyWriter, Version};
use crate::address::{Peer, Protocol};
use crate::cl_throttle::{ThrottleCommand, ThrottleLimit, ThrottleParameters};
use crate::connection::{ByteProtocol, InputProgress, TimeLimits};
use crate::decision_answer::{
    DecisionAnswer, DecisionReport, outcome_of_peek, outcome_of_verdict, store_unreachable_for,
};
use crate::decision_service::CounterStore;
use crate::drain::SHUTTING_DOWN;
use crate::protocol_errors::{ErrorKind, ErrorSource};
use crate::service::Service;
use crate::settings::ShadowVisibility;
use crate::throttle_keys::ThrottleKeys;

mod auth;
mod commands;
mod key_commands;
mod server_commands;
mod transaction;

use auth::Role;
use transaction::CommandQueue;

/// `Ok` if the command was answered; else the error reply.
type CommandResult = Result<(), String>;

/// The client's description of itself (`HELLO`, `CLIENT SETNAME`, `CLIENT SETINFO`).
#[derive(Debug, Default)]
struct ClientInfo {
    name: Vec<u8>,
    library: Vec<u8>,
    library_version: Vec<u8>,
}

impl ClientInfo {
    /// Checks that the name can be shown in one line.
    fn check(name: &[u8]) -> Result<(), String> {
        if name.len() > 256 || name.iter().any(|byte| !byte.is_ascii_graphic()) {
            return Err(
                "ERR a name of a connection is up to 256 printable characters without spaces"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

/// A limit of `CL.THROTTLE`, prepared for charges.
struct CachedLimit<B: CounterStore> {
    ask: ThrottleParameters,
    limit: ThrottleLimit,
    ready: <B::Cells as ThrottleKeys>::Limit,
}

/// One client's connection.
pub(crate) struct RespSession<B: CounterStore> {
    service: Arc<Service<B>>,
    frame: CommandParser,
    version: Version,
    id: u64,
    peer: Peer,
    /// Boxed, as most clients don't describe themselves.
    named: Option<Box<ClientInfo>>,
    /// The commands that wait for `EXEC`.
    queue: Option<Box<CommandQueue>>,
    wrong_passwords: u8,
    /// The delay of the reply to a wrong password.
    delay: Duration,
    /// The client's role, by its password.
    role: Role,
    is_closing: bool,
    errors: ErrorSource,
    /// The limit of the last `CL.THROTTLE`: most clients use only one.
    last: Option<CachedLimit<B>>,
}

impl<B: CounterStore> RespSession<B> {
    pub(crate) fn new(service: Arc<Service<B>>, id: u64, from: Peer, errors: ErrorSource) -> Self {
        Self {
            service,
            frame: CommandParser::default(),
            version: Version::Two,
            id,
            peer: from,
            named: None,
            queue: None,
            wrong_passwords: 0,
            delay: Duration::ZERO,
            role: Role::default(),
            is_closing: false,
            errors,
            last: None,
        }
    }

    fn named(&mut self) -> &mut ClientInfo {
        self.named.get_or_insert_default()
    }

    /// A writer of replies, in the client's protocol version.
    const fn replies<'o>(&self, out: &'o mut Vec<u8>) -> ReplyWriter<'o> {
        ReplyWriter {
            bytes: out,
            version: self.version,
        }
    }

    /// Answers one command, or queues it.
    async fn command(&mut self, words: Words<'_>, out: &mut Vec<u8>) {
        if self.queue.is_some() {
            // Boxed as transactions are rare: every connection would have room for this large future.
            return Box::pin(self.queue_command(words, out)).await;
        }
        self.dispatch(words, out).await;
    }

    /// Answers one command.
    async fn dispatch(&mut self, mut words: Words<'_>, out: &mut Vec<u8>) {
        let count = words.len();
        let Some(name) = words.next() else {
            return;
        };
        let mut out = self.replies(out);
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        let answered = if let Err(refused) = self.authorize(name) {
            Err(refused)
        } else if is("CL.THROTTLE") {
            self.throttle(words, &mut out).await
        } else if is("TG.CHECK") {
            self.check(words, &mut out).await
        } else if is("TG.PEEK") {
            self.peek(words, &mut out).await
        } else if is("TG.REFUND") {
            self.refund(words, &mut out).await
        } else if is("TG.RESET") {
            self.reset_limits(words, &mut out).await
        } else {
            match commands::find(name, count) {
                Ok(known) if known.is_about_keys() => {
                    Box::pin(self.answer_key_command(known.name, words, &mut out)).await
                }
                Ok(known) => self.answer_server_command(known.name, words, &mut out),
                Err(wrong) => Err(wrong),
            }
        };
        if let Err(wrong) = answered {
            out.error(&wrong);
        }
    }

    async fn throttle(&mut self, words: Words<'_>, out: &mut ReplyWriter<'_>) -> CommandResult {
        let mut asked = ThrottleCommand::read(words).map_err(error_text)?;
        if self.service.decider.replicas > 1 {
            asked.ask = asked.ask.divided(self.service.decider.replicas);
        }
        let most = self.service.decider.bounds.key_bytes;
        if asked.key.len() > most {
            return Err(format!(
                "ERR a key of more than the {most} bytes that are taken"
            ));
        }
        let cells = &self.service.decider.throttle_keys;
        let last = match &mut self.last {
            Some(last) if last.ask == asked.ask => last,
            last => {
                let limit = asked.ask.limit().map_err(error_text)?;
                last.insert(CachedLimit {
                    ask: asked.ask,
                    limit,
                    ready: cells.prepare_limit(limit).map_err(error_text)?,
                })
            }
        };
        let charged = cells.charge(&last.ready, asked.key, asked.quantity).await;
        // A quantity of 0 only peeks.
        if asked.quantity > 0 {
            let denied = match &charged {
                Ok(charged) => last.limit.deny_reason(charged, asked.quantity),
                Err(_) => Some(DenyReason::Store),
            };
            let (engine, key) = (&self.service.decider.engine, asked.key);
            engine.count_throttle(ThrottleDecision { key, denied });
        }
        let charged = charged.map_err(|why| format!("UNAVAILABLE {why}"))?;
        out.array(5);
        for number in last.limit.answer(&charged, asked.quantity) {
            out.integer(number);
        }
        Ok(())
    }

    async fn check(&mut self, words: Words<'_>, out: &mut ReplyWriter<'_>) -> CommandResult {
        let odd = owned_texts(words.clone());
        let mut facts = Facts::new();
        read_facts(words, &odd, &mut facts)?;
        let service = &self.service;
        let checked = service.decider.check(&facts, &[]).await;
        let verdict = checked.map_err(|full| format!("UNAVAILABLE {full}"))?;
        write_answer(
            out,
            &outcome_of_verdict(&verdict),
            service.settings.shadow_visibility,
        )
    }

    async fn peek(&mut self, words: Words<'_>, out: &mut ReplyWriter<'_>) -> CommandResult {
        let odd = owned_texts(words.clone());
        let mut facts = Facts::new();
        read_facts(words, &odd, &mut facts)?;
        let service = &self.service;
        let Ok(findings) = service.decider.engine.peek_async(&facts).await;
        write_answer(
            out,
            &outcome_of_peek(&findings),
            service.settings.shadow_visibility,
        )
    }
}

impl<B: CounterStore> RespSession<B> {
    /// Delays the reply to a wrong password. Commands behind it wait too, so that pipelining doesn't speed up guessing.
    #[cold]
    async fn delay_answer(&mut self) {
        tokio::time::sleep(std::mem::take(&mut self.delay)).await;
    }
}

impl<B: CounterStore> ByteProtocol for RespSession<B> {
    fn time_limits(&self) -> TimeLimits {
        self.service.decider.bounds.patience()
    }

    fn begin_batch(&mut self) -> Timestamp {
        self.service.monitor.measured.now()
    }

    async fn answer(&mut self, input: &[u8], out: &mut Vec<u8>) -> InputProgress {
        let bounds = &self.service.decider.bounds;
        let most = CommandBounds {
            bytes: bounds.request_bytes,
            words: bounds.max_arguments,
        };
        let mut frame = std::mem::take(&mut self.frame);
        let progress = match frame.read(input, &most) {
            Ok(Some(length)) => {
                self.command(frame.words(input), out).await;
                if !self.delay.is_zero() {
                    self.delay_answer().await;
                }
                frame.clear();
                if self.is_closing {
                    InputProgress::Close(1)
                } else {
                    InputProgress::Answered(length)
                }
            }
            Ok(None) => {
                if input.is_empty() {
                    frame.shrink();
                }
                InputProgress::Incomplete
            }
            Err(broken) => {
                self.errors
                    .record_unreadable(broken.is_too_large(), &broken);
                self.replies(out).error(&format!("ERR {broken}"));
                InputProgress::Close(0)
            }
        };
        self.frame = frame;
        progress
    }

    fn record_batch(&mut self, since: Timestamp, requests: u64) {
        let measured = &self.service.monitor.measured;
        measured.record_requests(Protocol::Resp, since, requests);
    }

    fn may_wait(&self) -> bool {
        self.service.decider.engine.has_waiting_rules()
    }

    fn write_timeout(&mut self, out: &mut Vec<u8>) {
        let seconds = self.service.decider.bounds.request_timeout.as_secs();
        let why = format!("the command wasn't sent within {seconds} s");
        self.errors.record(ErrorKind::Timeout, &why);
        self.replies(out).error(&format!("ERR {why}"));
    }

    const ANNOUNCES_CLOSE: bool = false;

    fn announce_close(&mut self) {}

    fn ends_first(&mut self, out: &mut Vec<u8>) {
        self.replies(out)
            .error(&format!("UNAVAILABLE {SHUTTING_DOWN}"));
    }
}

fn error_text(why: impl std::fmt::Display) -> String {
    format!("ERR {why}")
}

/// The texts of words that aren't facts as they are, in their order.
fn owned_texts(words: Words<'_>) -> Vec<String> {
    let odd = words.filter_map(|word| match text_of_word(word) {
        Cow::Owned(text) => Some(text),
        Cow::Borrowed(_) => None,
    });
    odd.collect()
}

/// A word as text. The name of a header fact becomes lower case, as policies have it.
fn text_of_word(word: &[u8]) -> Cow<'_, str> {
    let text = text_of_bytes(word);
    if !text.starts_with("header.") {
        return text;
    }
    let named = text.split_once('=').and_then(|(name, value)| {
        let Cow::Owned(name) = fact_name(name) else {
            return None;
        };
        Some(format!("{name}={value}"))
    });
    named.map_or(text, Cow::Owned)
}

/// Reads `name=value … [COST n]`; `odd` has the texts of words that had to be changed. It fills existing facts, as they
/// are large to move.
fn read_facts<'f, 'w: 'f>(
    mut words: Words<'w>,
    odd: &'f [String],
    facts: &mut Facts<'f>,
) -> CommandResult {
    let mut odd = odd.iter();
    while let Some(word) = words.next() {
        let text = match text_of_word(word) {
            Cow::Borrowed(text) => text,
            Cow::Owned(_) => odd.next().map_or("", String::as_str),
        };
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => match facts.get(name) {
                Some(other) if other != value => {
                    return Err(format!("ERR the fact {name:?} has two values: send one"));
                }
                Some(_) => {}
                None => facts.set(name, value),
            },
            None if text.eq_ignore_ascii_case("COST") => {
                let cost = words.next().and_then(|word| std::str::from_utf8(word).ok());
                let cost = cost.and_then(|text| text.parse().ok());
                facts.set_cost(cost.ok_or("ERR COST is followed by a whole number")?);
            }
            _ => return Err(format!("ERR {text:?} is no fact: write name=value")),
        }
    }
    Ok(())
}

/// Writes six pairs: whether it is allowed, the deciding rule, its limit, the remaining tokens, and two durations in
/// seconds. A denial has two more: the reason, and the denying limit of the rule. If clients may see them, an allowed
/// answer lists the rules in shadow mode that would have denied it.
fn write_answer(
    out: &mut ReplyWriter<'_>,
    answer: &DecisionAnswer<'_>,
    shadow: ShadowVisibility,
) -> CommandResult {
    if let Some(rule) = answer.failure() {
        return Err(format!("UNAVAILABLE {}", store_unreachable_for(rule)));
    }
    if let Some(what) = answer.too_much() {
        return Err(error_text(what));
    }
    let report = DecisionReport::of(answer, shadow);
    let more = [
        report.reason.is_some(),
        report.limited_by.is_some(),
        !report.shadow.is_empty(),
    ];
    out.map(6 + more.into_iter().filter(|there| *there).count());
    out.word(b"$7\r\nallowed\r\n");
    out.boolean(report.is_allowed);
    out.word(b"$4\r\nrule\r\n");
    match &report.rule {
        Some(name) => out.text(name),
        None => out.null(),
    }
    let decision = &answer.decision;
    let counts = [
        (&b"$5\r\nlimit\r\n"[..], decision.limit),
        (b"$9\r\nremaining\r\n", decision.remaining),
    ];
    for (name, count) in counts {
        out.word(name);
        if decision.is_unlimited() {
            out.null();
        } else {
            out.count(count);
        }
    }
    out.word(b"$11\r\nretry_after\r\n");
    if report.is_allowed || decision.wait_or_max() < Duration::MAX {
        out.seconds(decision.wait_or_max());
    } else {
        out.null();
    }
    out.word(b"$11\r\nreset_after\r\n");
    out.seconds(decision.reset_after);
    if let Some(reason) = report.reason {
        out.word(b"$6\r\nreason\r\n");
        out.text(reason.name());
    }
    if let Some(limit) = report.limited_by {
        out.word(b"$10\r\nlimited_by\r\n");
        out.text(limit.as_str());
    }
    if !report.shadow.is_empty() {
        out.word(b"$6\r\nshadow\r\n");
        out.array(report.shadow.len());
        report.shadow.iter().for_each(|rule| out.text(rule));
    }
    Ok(())
}
