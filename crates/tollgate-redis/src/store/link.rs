//! A connection: how scripts get to a node, and what an error means for the connection.

use ::redis::aio::MultiplexedConnection;
use ::redis::{Cmd, ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};

use crate::error::StoreError;

use super::batch::{Batch, ScriptReference};
use super::error_reason;

/// A working connection, shared by all calls.
#[derive(Clone)]
pub(crate) enum StoreConnection {
    Direct(MultiplexedConnection),
    /// A simulated connection, which is closed like others after this long without a reply.
    #[cfg(feature = "simulation")]
    Simulated(
        std::sync::Arc<dyn crate::simulation::Wire>,
        std::time::Duration,
    ),
}

/// How a node of a cluster is addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AskingMode {
    /// For the hash slots that it has.
    Plain,
    /// For a hash slot that is migrating to it, as its former node replied.
    Asking,
}

/// A failed call, and what follows from it.
#[derive(Debug)]
pub(crate) struct CallFailure {
    pub(crate) error: StoreError,
    pub(crate) action: FailureAction,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FailureAction {
    /// The connection works.
    Keep,
    /// The connection is lost: the call may or may not have been executed.
    Lost,
    /// The connection leads to the wrong server.
    WrongNode,
    /// The keys are at another node of this cluster, by host and port.
    Moved(String),
    /// The keys are at another node for this one call.
    Ask(String),
    /// Some keys are being migrated.
    TryAgain,
    /// The cluster doesn't know the owner of the keys.
    UnknownOwner,
}

impl FailureAction {
    /// Whether the connection can't be used any more.
    pub(super) const fn is_lost(&self) -> bool {
        matches!(self, Self::Lost | Self::WrongNode)
    }
}

impl StoreConnection {
    /// Runs a call. If the store doesn't know the script yet, sends its text. Requests that were cancelled are
    /// dropped before that, because a cancelled request is rolled back in a later call, which this one mustn't
    /// overtake.
    pub(super) async fn run(
        &mut self,
        batch: &mut Batch,
        manner: AskingMode,
    ) -> Result<Vec<i64>, CallFailure> {
        let known = self
            .send_by(&batch.command(ScriptReference::Name), manner)
            .await;
        let reply = match known {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                batch.drop_abandoned();
                if batch.is_empty() {
                    return Ok(Vec::new());
                }
                self.send_by(&batch.command(ScriptReference::Text), manner)
                    .await
            }
            known => known,
        };
        parse_numbers(&reply.map_err(|error| classify_failure(&error))?)
    }

    pub(super) async fn send(&mut self, command: &Cmd) -> Result<Value, RedisError> {
        self.send_by(command, AskingMode::Plain).await
    }

    async fn send_by(&mut self, command: &Cmd, manner: AskingMode) -> Result<Value, RedisError> {
        let value = match (self, manner) {
            (Self::Direct(connection), AskingMode::Plain) => {
                connection.send_packed_command(command).await
            }
            (Self::Direct(connection), AskingMode::Asking) => {
                // Sent together: `ASKING` applies to the next command only.
                let mut both = Pipeline::with_capacity(2);
                both.cmd("ASKING").add_command(command.clone());
                let replies = connection.send_packed_commands(&both, 1, 1).await;
                replies.map(|mut replies| replies.pop().unwrap_or(Value::Nil))
            }
            #[cfg(feature = "simulation")]
            (Self::Simulated(wire, stalled), _) => {
                let reply = tokio::time::timeout(*stalled, wire.send(command.get_packed_command()));
                let stalled = || std::io::Error::from(std::io::ErrorKind::TimedOut);
                let reply = reply.await.map_err(|_| stalled()).flatten();
                ::redis::parse_redis_value(&reply?)
            }
        }?;
        value.extract_error()
    }
}

fn parse_numbers(value: &Value) -> Result<Vec<i64>, CallFailure> {
    ::redis::from_redis_value_ref(value).map_err(|_| CallFailure {
        error: StoreError::garbled(format!("a list of numbers expected, {value:?} came")),
        action: FailureAction::Keep,
    })
}

/// What follows from an error.
pub(super) fn classify_failure(error: &RedisError) -> CallFailure {
    let to = || error.redirect_node().map(|(to, _)| to.to_owned());
    // Redis 6.2 reports errors of a script in the middle of its text.
    let is_read_only = (error.detail()).is_some_and(|text| text.contains("-READONLY "));
    let then = match error.kind() {
        ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown) => {
            FailureAction::WrongNode
        }
        _ if is_read_only => FailureAction::WrongNode,
        ErrorKind::Server(ServerErrorKind::Moved) => {
            to().map_or(FailureAction::UnknownOwner, FailureAction::Moved)
        }
        ErrorKind::Server(ServerErrorKind::Ask) => {
            to().map_or(FailureAction::UnknownOwner, FailureAction::Ask)
        }
        ErrorKind::Server(ServerErrorKind::TryAgain) => FailureAction::TryAgain,
        ErrorKind::Server(ServerErrorKind::ClusterDown) => FailureAction::UnknownOwner,
        ErrorKind::Server(_) | ErrorKind::Extension => FailureAction::Keep,
        _ => FailureAction::Lost,
    };
    let error = error_reason::store_error(error);
    CallFailure {
        error,
        action: then,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_is_the_wrong_place_in_every_wording() {
        let error = |code: &str, text: &str| {
            let reply = ::redis::parse_redis_value(format!("-{code} {text}\r\n").as_bytes());
            let error = reply.and_then(Value::extract_error).unwrap_err();
            classify_failure(&error).action
        };
        let text = "You can't write against a read only replica. script: a1, on @user_script:1.";
        assert_eq!(error("READONLY", text), FailureAction::WrongNode);
        let text = "Error running script (call to f_a1): @user_script:1: @user_script: 1: \
                    -READONLY You can't write against a read only replica.";
        assert_eq!(error("ERR", text), FailureAction::WrongNode);
        let text = "Error running script (call to f_a1): @user_script:1: -OOM command not allowed";
        assert_eq!(error("ERR", text), FailureAction::Keep);
        assert_eq!(error("BUSY", "Redis is busy"), FailureAction::Keep);
    }
}
