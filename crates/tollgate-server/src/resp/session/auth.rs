//! Authentication by password, and the operators' commands that change counters.

use tollgate_engine::Facts;
use tollgate_engine::backend::RefundResult;

use super::server_commands::DEFAULT_USER;
use super::{CommandResult, RespSession, owned_texts, read_facts};
use crate::address::Protocol;
use crate::decision_answer::STORE_UNREACHABLE;
use crate::decision_service::CounterStore;
use crate::resp::frame::Words;
use crate::resp::response::ReplyWriter;
use crate::wrong_secrets::MAX_TRIES;

/// The role of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Role {
    /// No password was accepted yet.
    #[default]
    Unknown,
    /// The clients' password was accepted.
    Client,
    /// The operators' password was accepted.
    Operator,
}

impl<B: CounterStore> RespSession<B> {
    /// Whether a command may run. Without a clients' password, every command may.
    pub(super) fn authorize(&self, command: &[u8]) -> Result<(), String> {
        if self.service.settings.resp_client_password.is_none() || self.role != Role::Unknown {
            return Ok(());
        }
        // As in Redis: a client may still authenticate, or leave.
        let is_open = [&b"AUTH"[..], b"HELLO", b"QUIT", b"RESET"];
        if is_open.iter().any(|own| command.eq_ignore_ascii_case(own)) {
            return Ok(());
        }
        Err("NOAUTH Authentication required.".to_owned())
    }

    /// Checks a password.
    pub(super) fn authenticate(&mut self, user: &[u8], told: &[u8]) -> Result<(), String> {
        let (operators, clients) = (
            &self.service.settings.resp_operator_password,
            &self.service.settings.resp_client_password,
        );
        if operators.is_none() && clients.is_none() {
            return Err(
                "ERR AUTH called without any password: start the service with --resp-password-file"
                    .to_owned(),
            );
        }
        let [is_operator, is_client] =
            [operators, clients].map(|own| own.as_ref().is_some_and(|own| own.matches(told)));
        self.role = match (is_operator, is_client) {
            _ if user != DEFAULT_USER => return Err(self.wrong_password()),
            (true, _) => Role::Operator,
            (false, true) => Role::Client,
            (false, false) => return Err(self.wrong_password()),
        };
        Ok(())
    }

    /// The error for a wrong password. After many, it is delayed, and the connection closes.
    #[cold]
    fn wrong_password(&mut self) -> String {
        let guesses = &self.service.credentials.wrong_secrets;
        self.delay = guesses.record_wrong_secret(Protocol::Resp, self.peer);
        self.wrong_passwords = self.wrong_passwords.saturating_add(1);
        self.is_closing |= self.wrong_passwords >= MAX_TRIES;
        "WRONGPASS invalid username-password pair or user is disabled.".to_owned()
    }

    fn authorize_operator(&self) -> Result<(), String> {
        match (&self.service.settings.resp_operator_password, self.role) {
            (_, Role::Operator) => Ok(()),
            (Some(_), Role::Unknown) => Err("NOAUTH Authentication required.".to_owned()),
            (Some(_), Role::Client) => {
                Err("NOPERM this is for operators: AUTH with their password".to_owned())
            }
            (None, _) => Err(
                "NOPERM this is for operators: start the service with --resp-password-file, then AUTH"
                    .to_owned(),
            ),
        }
    }

    /// Refunds the cost of a request with these facts, and releases its oldest permits.
    pub(super) async fn refund(
        &mut self,
        words: Words<'_>,
        out: &mut ReplyWriter<'_>,
    ) -> CommandResult {
        self.authorize_operator()?;
        let odd = owned_texts(words.clone());
        let mut facts = Facts::new();
        read_facts(words, &odd, &mut facts)?;
        write_refund(self.service.decider.refund(&facts).await, out)
    }

    /// Resets the counters of requests with these facts.
    pub(super) async fn reset_limits(
        &mut self,
        words: Words<'_>,
        out: &mut ReplyWriter<'_>,
    ) -> CommandResult {
        self.authorize_operator()?;
        let odd = owned_texts(words.clone());
        let mut facts = Facts::new();
        read_facts(words, &odd, &mut facts)?;
        // Checked because a misspelt fact would otherwise look like a successful reset.
        let Ok(left) = self.service.decider.engine.remaining_async(&facts).await;
        if left.is_empty() {
            return Err("ERR no limit is for these facts: is one of them misspelt?".to_owned());
        }
        write_refund(self.service.decider.reset(&facts).await, out)
    }
}

fn write_refund(result: RefundResult, out: &mut ReplyWriter<'_>) -> Result<(), String> {
    match result {
        RefundResult::Refunded => out.simple("OK"),
        RefundResult::Lost => return Err(format!("UNAVAILABLE {STORE_UNREACHABLE}")),
    }
    Ok(())
}
