//! Commands that change what was counted: for operators, who tell their password first.

use tollgate_engine::Facts;
use tollgate_engine::backend::Gift;

use super::{Session, read_facts};
use crate::resp::reply::Replies;
use crate::service::{LOST, Store};

impl<B: Store> Session<B> {
    fn may_operate(&self) -> Result<(), String> {
        match (&self.service.password, self.is_operator) {
            (_, true) => Ok(()),
            (Some(_), false) => Err("NOAUTH Authentication required.".to_owned()),
            (None, false) => Err(
                "NOPERM this is for operators: start the service with --resp-password-file, then AUTH"
                    .to_owned(),
            ),
        }
    }

    /// Gives back what a request like this cost, and ends the oldest that one holds.
    pub(super) async fn refund<'w>(
        &mut self,
        words: impl Iterator<Item = &'w [u8]> + Send,
        out: &mut Replies<'_>,
    ) -> Result<(), String> {
        self.may_operate()?;
        let mut facts = Facts::new();
        read_facts(words, &mut facts)?;
        tell(self.service.refund(&facts).await, out)
    }

    /// Forgets what requests like this have spent.
    pub(super) async fn reset_limits<'w>(
        &mut self,
        words: impl Iterator<Item = &'w [u8]> + Send,
        out: &mut Replies<'_>,
    ) -> Result<(), String> {
        self.may_operate()?;
        let mut facts = Facts::new();
        read_facts(words, &mut facts)?;
        tell(self.service.reset(&facts).await, out)
    }
}

fn tell(gift: Gift, out: &mut Replies<'_>) -> Result<(), String> {
    match gift {
        Gift::Given => out.simple("OK"),
        Gift::Lost => return Err(format!("UNAVAILABLE {LOST}")),
    }
    Ok(())
}
