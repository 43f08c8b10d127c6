//! Redis' key commands for keys of `CL.THROTTLE`: a key exists as long as it has spent anything.
//!
//! They need no more permission than `CL.THROTTLE`: its callers choose the limit anyway, and could as well choose a
//! larger one.

use std::time::Duration;

use super::{CommandResult, RespSession};
use crate::decision_service::CounterStore;
use crate::resp::frame::Words;
use crate::resp::response::ReplyWriter;
use crate::throttle_keys::ThrottleKeys;

impl<B: CounterStore> RespSession<B> {
    /// Answers a key command.
    pub(super) async fn answer_key_command(
        &mut self,
        command: &str,
        words: Words<'_>,
        out: &mut ReplyWriter<'_>,
    ) -> CommandResult {
        let cells = &self.service.decider.throttle_keys;
        let most = self.service.decider.bounds.key_bytes;
        let mut found = 0;
        let mut left = Duration::ZERO;
        match command {
            "scan" | "keys" => {
                return Err(
                    "ERR keys can't be listed: what is kept of them are fingerprints".to_owned(),
                );
            }
            "dbsize" => {
                let Some(count) = cells.active_keys() else {
                    return Err(
                        "ERR keys of CL.THROTTLE are in the store, which has others too: ask it"
                            .to_owned(),
                    );
                };
                out.count(count as u64);
                return Ok(());
            }
            _ => {}
        }
        for key in words {
            if key.len() > most {
                return Err(format!(
                    "ERR a key of more than the {most} bytes that are taken"
                ));
            }
            let unavailable = |why| format!("UNAVAILABLE {why}");
            let is_there = if matches!(command, "del" | "unlink") {
                cells.reset_key(key).await.map_err(unavailable)?
            } else {
                left = cells.debt_of(key).await.map_err(unavailable)?;
                left > Duration::ZERO
            };
            found += u64::from(is_there);
        }
        let millis = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        match command {
            "ttl" | "pttl" if found == 0 => out.integer(-2),
            // Redis rounds in the same way.
            "ttl" => out.count(millis.saturating_add(500) / 1_000),
            "pttl" => out.count(millis),
            "type" => out.simple(if found > 0 { "string" } else { "none" }),
            _ => out.count(found),
        }
        Ok(())
    }
}
