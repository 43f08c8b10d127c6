//! What a Redis client says on one connection, and what it is answered.

use std::sync::Arc;

use tollgate_engine::Facts;

use super::frame::{Frame, Most};
use super::reply::{Replies, Version};
use super::throttle::{Ask, Throttle};
use crate::cells::Cells;
use crate::connection::{ENOUGH, Heard, Speaks, Then};
use crate::drain::ENDS;
use crate::measured::Protocol;
use crate::service::{Answered, Service, Store};

mod about;
mod operator;

use operator::Standing;

/// One client's connection.
pub(crate) struct Session<B: Store> {
    service: Arc<Service<B>>,
    frame: Frame,
    version: Version,
    id: u64,
    name: Vec<u8>,
    /// What it may do, by the password that it has told.
    standing: Standing,
    is_over: bool,
    /// The limit of the last `CL.THROTTLE`: most clients ask by one.
    last: Option<(Ask, <B::Cells as Cells>::Limit)>,
}

impl<B: Store> Session<B> {
    pub(crate) fn new(service: Arc<Service<B>>, id: u64) -> Self {
        Self {
            service,
            frame: Frame::default(),
            version: Version::Two,
            id,
            name: Vec::new(),
            standing: Standing::default(),
            is_over: false,
            last: None,
        }
    }

    /// Answers one command.
    async fn command<'w>(
        &mut self,
        mut words: impl ExactSizeIterator<Item = &'w [u8]> + Clone + Send,
        out: &mut Vec<u8>,
    ) {
        let Some(name) = words.next() else {
            return;
        };
        let version = self.version;
        let mut out = Replies {
            bytes: out,
            version,
        };
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        let answered = if let Err(refused) = self.may_ask(name) {
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
            self.about(name, words, &mut out)
        };
        if let Err(wrong) = answered {
            out.error(&wrong);
        }
    }

    async fn throttle<'w>(
        &mut self,
        words: impl ExactSizeIterator<Item = &'w [u8]> + Send,
        out: &mut Replies<'_>,
    ) -> Result<(), String> {
        let mut asked = Throttle::read(words).map_err(wrong)?;
        if self.service.replicas > 1 {
            asked.ask = asked.ask.divided(self.service.replicas);
        }
        let most = self.service.bounds.key_bytes;
        if asked.key.len() > most {
            return Err(format!(
                "ERR a key of more than the {most} bytes that are taken"
            ));
        }
        let cells = &self.service.cells;
        let limit = match &mut self.last {
            Some((ask, limit)) if *ask == asked.ask => limit,
            last => {
                let rate = asked.ask.rate().map_err(wrong)?;
                let limit = cells.limit(rate).map_err(wrong)?;
                &mut last.insert((asked.ask, limit)).1
            }
        };
        let charged = cells.charge(limit, asked.key, asked.quantity).await;
        let decision = charged.map_err(|why| format!("UNAVAILABLE {why}"))?;
        out.array(5);
        for number in asked.ask.answer(&decision) {
            out.integer(number);
        }
        Ok(())
    }

    async fn check<'w>(
        &mut self,
        words: impl Iterator<Item = &'w [u8]> + Send,
        out: &mut Replies<'_>,
    ) -> Result<(), String> {
        let mut facts = Facts::new();
        read_facts(words, &mut facts)?;
        let checked = self.service.check(&facts, |answer| tell(out, answer));
        checked
            .await
            .unwrap_or_else(|full| Err(format!("UNAVAILABLE {full}")))
    }

    async fn peek<'w>(
        &mut self,
        words: impl Iterator<Item = &'w [u8]> + Send,
        out: &mut Replies<'_>,
    ) -> Result<(), String> {
        let mut facts = Facts::new();
        read_facts(words, &mut facts)?;
        self.service.peek(&facts, |answer| tell(out, answer)).await
    }
}

impl<B: Store> Speaks for Session<B> {
    async fn answer(&mut self, input: &[u8], out: &mut Vec<u8>) -> Heard {
        let since = self.service.measured.now();
        let bounds = &self.service.bounds;
        let most = Most {
            bytes: bounds.request_bytes,
            words: bounds.arguments,
        };
        let (mut used, mut answered) = (0, 0);
        let then = 'heard: {
            for _ in 0..bounds.pipeline {
                if out.len() >= ENOUGH {
                    break;
                }
                let mut frame = std::mem::take(&mut self.frame);
                let rest = &input[used..];
                match frame.read(rest, &most) {
                    Ok(Some(length)) => {
                        self.command(frame.words(rest), out).await;
                        frame.clear();
                        answered += 1;
                        used += length;
                    }
                    Ok(None) => {
                        if rest.is_empty() {
                            frame.shrink();
                        }
                        self.frame = frame;
                        break 'heard Then::Read;
                    }
                    Err(broken) => {
                        let version = self.version;
                        Replies {
                            bytes: out,
                            version,
                        }
                        .error(&format!("ERR {broken}"));
                        self.is_over = true;
                    }
                }
                self.frame = frame;
                if self.is_over {
                    break 'heard Then::Close;
                }
            }
            Then::Answer
        };
        self.service.measured.took(Protocol::Resp, since, answered);
        Heard { used, then }
    }

    fn lets_wait(&self) -> bool {
        self.service.engine.lets_wait()
    }

    fn too_slow(&mut self, out: &mut Vec<u8>) {
        let version = self.version;
        let seconds = self.service.bounds.request_time.as_secs();
        Replies {
            bytes: out,
            version,
        }
        .error(&format!("ERR the command wasn't sent within {seconds} s"));
    }

    const TELLS_THE_LAST: bool = false;

    fn is_last(&mut self) {}

    fn ends_first(&mut self, out: &mut Vec<u8>) {
        let version = self.version;
        Replies {
            bytes: out,
            version,
        }
        .error(&format!("UNAVAILABLE {ENDS}"));
    }
}

fn wrong(why: impl std::fmt::Display) -> String {
    format!("ERR {why}")
}

/// Reads `name=value … [COST n]`. Into facts that are there already: they are large to be moved.
fn read_facts<'w>(
    mut words: impl Iterator<Item = &'w [u8]>,
    facts: &mut Facts<'w>,
) -> Result<(), String> {
    while let Some(word) = words.next() {
        let text = std::str::from_utf8(word).map_err(|_| "ERR facts are UTF-8 text".to_owned())?;
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => facts.set(name, value),
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

/// Six pairs: whether it is allowed, the rule that decided, its limit, what is left, and two times in seconds.
fn tell(out: &mut Replies<'_>, answer: &Answered<'_>) -> Result<(), String> {
    if let Some(rule) = answer.failure() {
        return Err(format!(
            "UNAVAILABLE the store can't be asked about {rule:?}, and nothing passes without it"
        ));
    }
    if let Some(what) = answer.too_much() {
        return Err(wrong(what));
    }
    out.map(6);
    out.word(b"$7\r\nallowed\r\n");
    out.boolean(answer.is_allowed);
    out.word(b"$4\r\nrule\r\n");
    match answer.rule() {
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
    if answer.is_allowed || decision.retry_after < std::time::Duration::MAX {
        out.seconds(decision.retry_after);
    } else {
        out.null();
    }
    out.word(b"$11\r\nreset_after\r\n");
    out.seconds(decision.reset_after);
    Ok(())
}
