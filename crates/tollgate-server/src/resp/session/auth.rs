//! Who may ask, by the password that was told, and commands that change what was counted: those are for operators.

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

/// What a connection may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Role {
    /// It has told no password.
    #[default]
    Unknown,
    /// It has told that of clients.
    Client,
    /// It has told that of operators.
    Operator,
}

impl<B: CounterStore> RespSession<B> {
    /// Whether a command is answered at all. Without a password for clients, each is.
    pub(super) fn authorize(&self, command: &[u8]) -> Result<(), String> {
        if self.service.settings.resp_client_password.is_none() || self.role != Role::Unknown {
            return Ok(());
        }
        // As Redis has it: a client may still tell its password, or leave.
        let is_open = [&b"AUTH"[..], b"HELLO", b"QUIT", b"RESET"];
        if is_open.iter().any(|own| command.eq_ignore_ascii_case(own)) {
            return Ok(());
        }
        Err("NOAUTH Authentication required.".to_owned())
    }

    /// Takes a password.
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

    /// What is said to a wrong password: late if there were many, and not often on one connection.
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

    /// Gives back what a request like this cost, and ends the oldest that one holds.
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

    /// Forgets what requests like this have spent.
    pub(super) async fn reset_limits(
        &mut self,
        words: Words<'_>,
        out: &mut ReplyWriter<'_>,
    ) -> CommandResult {
        self.authorize_operator()?;
        let odd = owned_texts(words.clone());
        let mut facts = Facts::new();
        read_facts(words, &odd, &mut facts)?;
        // A fact that is misspelt would be answered as if something had been forgotten.
        let Ok(left) = self.service.decider.engine.remaining_async(&facts).await;
        if left.is_empty() {
            return Err("ERR no limit is for these facts: is one of them misspelt?".to_owned());
        }
        write_refund(self.service.decider.reset(&facts).await, out)
    }
}

fn write_refund(gift: RefundResult, out: &mut ReplyWriter<'_>) -> Result<(), String> {
    match gift {
        RefundResult::Refunded => out.simple("OK"),
        RefundResult::Lost => return Err(format!("UNAVAILABLE {STORE_UNREACHABLE}")),
    }
    Ok(())
}
