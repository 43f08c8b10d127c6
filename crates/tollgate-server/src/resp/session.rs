//! What a Redis client says on one connection, and what it is answered.

use std::sync::Arc;

use tollgate_engine::Facts;

use super::frame::{Frame, Most};
use super::reply::{Replies, Version};
use super::throttle::{Ask, Throttle};
use crate::connection::{Heard, Speaks, Then};
use crate::service::{Service, Store, Told};

mod about;

/// One client's connection.
pub(crate) struct Session<B: Store> {
    service: Arc<Service<B>>,
    frame: Frame,
    version: Version,
    id: u64,
    name: Vec<u8>,
    /// It has told the password, or there is none to tell.
    is_trusted: bool,
    is_over: bool,
    /// The limit of the last `CL.THROTTLE`: most clients ask by one.
    last: Option<(Ask, B::Compiled)>,
}

impl<B: Store> Session<B> {
    pub(crate) fn new(service: Arc<Service<B>>, id: u64) -> Self {
        Self {
            frame: Frame::default(),
            version: Version::Two,
            id,
            name: Vec::new(),
            is_trusted: false,
            is_over: false,
            last: None,
            service,
        }
    }

    fn most(&self) -> Most {
        let bounds = &self.service.bounds;
        Most {
            bytes: bounds.request_bytes,
            words: bounds.arguments,
        }
    }

    /// Answers one command.
    async fn command<'w>(
        &mut self,
        mut words: impl ExactSizeIterator<Item = &'w [u8]> + Clone + Send,
        out: &mut Replies<'_>,
    ) {
        let Some(name) = words.next() else {
            return;
        };
        let is = |other: &str| name.eq_ignore_ascii_case(other.as_bytes());
        if is("CL.THROTTLE") {
            self.throttle(words, out).await;
        } else if is("TG.CHECK") {
            self.check(words, out).await;
        } else if is("TG.PEEK") {
            self.peek(words, out).await;
        } else if is("TG.REFUND") {
            self.refund(words, out).await;
        } else if is("TG.RESET") {
            self.reset_limits(words, out).await;
        } else if is("TG.RULES") {
            self.rules(out);
        } else {
            self.about(name, words, out);
        }
    }

    async fn throttle<'w>(
        &mut self,
        words: impl ExactSizeIterator<Item = &'w [u8]>,
        out: &mut Replies<'_>,
    ) {
        let asked = match Throttle::read(words) {
            Ok(asked) => asked,
            Err(wrong) => return out.error(&format!("ERR {wrong}")),
        };
        if asked.key.len() > self.service.bounds.key_bytes {
            let most = self.service.bounds.key_bytes;
            return out.error(&format!("ERR a key of more than the {most} bytes that are taken"));
        }
        if self.last.as_ref().is_none_or(|(ask, _)| *ask != asked.ask) {
            let rate = asked.ask.rate();
            let compiled = rate.and_then(|rate| Ok(self.service.compile(rate)?));
            match compiled {
                Ok(compiled) => self.last = Some((asked.ask, compiled)),
                Err(wrong) => return out.error(&format!("ERR {wrong}")),
            }
        }
        let Some((_, compiled)) = &self.last else {
            return;
        };
        match self.service.throttle(compiled, asked.key, asked.quantity).await {
            Ok(decision) => {
                out.array(5);
                for number in asked.ask.answer(&decision) {
                    out.integer(number);
                }
            }
            Err(why) => out.error(&format!("UNAVAILABLE {why}")),
        }
    }

    async fn check<'w>(
        &mut self,
        words: impl Iterator<Item = &'w [u8]> + Send,
        out: &mut Replies<'_>,
    ) {
        let facts = match facts(words) {
            Ok(facts) => facts,
            Err(wrong) => return out.error(&wrong),
        };
        let told = self.service.check(&facts).await;
        tell(out, &told);
    }

    async fn peek<'w>(
        &mut self,
        words: impl Iterator<Item = &'w [u8]> + Send,
        out: &mut Replies<'_>,
    ) {
        let facts = match facts(words) {
            Ok(facts) => facts,
            Err(wrong) => return out.error(&wrong),
        };
        let told = self.service.peek(&facts).await;
        tell(out, &told);
    }
}
