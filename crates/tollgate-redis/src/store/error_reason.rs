//! Translates errors of the client library: the kind of failure, and what to do about it.

use std::error::Error;
use std::io;
use std::sync::Arc;

use ::redis::{ErrorKind, RedisError};

use crate::error::{FailureKind, StoreError};

/// What to do when one side uses TLS and the other doesn't.
pub(super) const NO_TLS_ADVICE: &str = "it speaks no TLS on this port; write redis instead of rediss into its URL, or the \
                      port on which it does";
pub(super) const TLS_ONLY_ADVICE: &str = "it speaks nothing but TLS on this port; write rediss instead of redis into its \
                        URL, or the port on which it does";
/// What to do when the login is rejected.
const WRONG_LOGIN_ADVICE: &str = "wrong user or password; correct them in its URL, as user:password@ before the \
                           host, with %40 for @ and the like";
const MISSING_LOGIN_ADVICE: &str =
    "it wants a password; write it into its URL, as :password@ or user:password@ before the host";
/// What to do when the sentinels, which have logins of their own, reject theirs.
const WRONG_SENTINEL_LOGIN: &str = "the sentinels know no such user or password; correct them in the URL, as \
                                    ?sentinel_password=… with &sentinel_user=… if need be, and %26 for & and \
                                    the like";
const NO_SENTINEL_LOGIN: &str = "the sentinels want a password of their own; write it into the URL, as \
                                 ?sentinel_password=… with &sentinel_user=… if need be";
/// The permissions that a user needs.
const PERMISSIONS_ADVICE: &str = "; what a user of limits needs: ~tollgate:* +evalsha +eval +time +get +set +del \
                      +pexpire +zadd +zcard +zcount +zrange +zrangebyscore +zrank +zrem +zremrangebyscore \
                      +zscore (of another prefix than tollgate its own keys), +select for another database \
                      than 0, +role behind sentinels, +cluster|slots +asking in a cluster";
const SENTINEL_PERMISSIONS_ADVICE: &str =
    "; what the user of the sentinels needs: +role +sentinel|masters";

/// Translates an error of the store.
pub(super) fn store_error(error: &RedisError) -> StoreError {
    let (kind, text) = classify(error);
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension => StoreError::ErrorReply { kind, error: text },
        _ if kind == FailureKind::Auth => StoreError::ErrorReply { kind, error: text },
        _ => StoreError::unreachable(kind, text),
    }
}

/// Translates an error of sentinels, before any store was queried.
pub(super) fn sentinel_error(error: &RedisError) -> StoreError {
    let (kind, _) = classify(error);
    let error = match kind {
        FailureKind::Auth if is_wrong_login(&server_text(error)) => WRONG_SENTINEL_LOGIN.to_owned(),
        FailureKind::Auth => NO_SENTINEL_LOGIN.to_owned(),
        FailureKind::NoPermission => server_text(error) + SENTINEL_PERMISSIONS_ADVICE,
        _ => return store_error(error),
    };
    StoreError::ErrorReply { kind, error }
}

fn classify(error: &RedisError) -> (FailureKind, String) {
    let kind = match error.kind() {
        ErrorKind::AuthenticationFailed => FailureKind::Auth,
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => FailureKind::InvalidResponse,
        ErrorKind::MasterNameNotFoundBySentinel | ErrorKind::NoValidReplicasFoundBySentinel => {
            FailureKind::NotFound
        }
        ErrorKind::ClusterConnectionNotFound => FailureKind::Unreachable,
        ErrorKind::Io | ErrorKind::Client => return classify_io(error),
        _ => {
            let code = error.code().and_then(kind_from_code);
            let said = || error.detail().and_then(kind_from_text);
            code.or_else(said).unwrap_or(FailureKind::Other)
        }
    };
    (kind, with_advice(kind, server_text(error)))
}

/// The kind and the text of an input or output error.
fn classify_io(error: &RedisError) -> (FailureKind, String) {
    let text = server_text(error);
    let Some(cause) = io_cause(error) else {
        // A cluster's errors about its nodes are only text.
        let kind = error.detail().and_then(kind_from_text);
        let kind = kind.unwrap_or(FailureKind::Unreachable);
        return (kind, with_advice(kind, text));
    };
    #[cfg(feature = "tls")]
    if let Some(told) = tls_advice(cause) {
        return (FailureKind::Tls, told);
    }
    let kind = cause.downcast_ref::<io::Error>().map(io::Error::kind);
    let kind = match kind {
        Some(io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) => FailureKind::TimedOut,
        Some(io::ErrorKind::ConnectionRefused) => FailureKind::Refused,
        Some(io::ErrorKind::NotFound) => FailureKind::NotFound,
        Some(io::ErrorKind::PermissionDenied) => FailureKind::NoPermission,
        Some(
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::NotConnected,
        ) => FailureKind::Disconnected,
        // A failed name lookup has no error kind of its own.
        _ => kind_from_text(&text).unwrap_or(FailureKind::Unreachable),
    };
    (kind, text)
}

/// The cause below the library's own error.
fn io_cause(error: &RedisError) -> Option<&(dyn Error + Send + Sync + 'static)> {
    let source = error.source()?;
    let shared = source.downcast_ref::<Arc<dyn Error + Send + Sync>>()?;
    Some(&**shared)
}

/// The error as the server sent it, without the library's name for it.
fn server_text(error: &RedisError) -> String {
    match (error.code(), error.source()) {
        (Some(code), Some(_)) => [code, error.detail().unwrap_or_default()].join(" "),
        _ => error.to_string(),
    }
}

/// Appends the advice for a kind of failure.
fn with_advice(kind: FailureKind, text: String) -> String {
    match kind {
        FailureKind::Auth if is_wrong_login(&text) => WRONG_LOGIN_ADVICE.to_owned(),
        FailureKind::Auth => MISSING_LOGIN_ADVICE.to_owned(),
        FailureKind::NoPermission => text + PERMISSIONS_ADVICE,
        _ => text,
    }
}

/// Whether the server rejected a login.
fn is_wrong_login(text: &str) -> bool {
    text.contains("AuthenticationFailed")
}

/// The kind by the code at the beginning of a server's error.
fn kind_from_code(code: &str) -> Option<FailureKind> {
    Some(match code {
        "NOAUTH" | "WRONGPASS" => FailureKind::Auth,
        "NOPERM" => FailureKind::NoPermission,
        "READONLY" | "MASTERDOWN" | "MISCONF" | "NOREPLICAS" => FailureKind::ReadOnly,
        "OOM" => FailureKind::OutOfMemory,
        "LOADING" => FailureKind::Loading,
        "BUSY" => FailureKind::Busy,
        "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN" => FailureKind::Moved,
        _ => return None,
    })
}

/// The kind by a code within a text: an error in a script, or of a node of a cluster.
fn kind_from_text(text: &str) -> Option<FailureKind> {
    const SAID: [(&str, FailureKind); 14] = [
        ("AuthenticationFailed", FailureKind::Auth),
        ("Authentication required", FailureKind::Auth),
        ("no permissions", FailureKind::NoPermission),
        ("can't run this command", FailureKind::NoPermission),
        ("timed out", FailureKind::TimedOut),
        ("Connection refused", FailureKind::Refused),
        ("failed to lookup address", FailureKind::NotFound),
        ("No such file", FailureKind::NotFound),
        ("Connection reset", FailureKind::Disconnected),
        ("broken pipe", FailureKind::Disconnected),
        ("unexpected end of file", FailureKind::Disconnected),
        ("peer certificate", FailureKind::Tls),
        ("fatal alert", FailureKind::Tls),
        ("corrupt message", FailureKind::Tls),
    ];
    let mut words = text.split(|letter: char| !letter.is_ascii_uppercase());
    let code = words.find_map(kind_from_code);
    let said = || SAID.iter().find(|(words, _)| text.contains(words));
    code.or_else(|| said().map(|(_, kind)| *kind))
}

/// The advice for a TLS error: about certificates and handshakes.
#[cfg(feature = "tls")]
fn tls_advice(cause: &(dyn Error + Send + Sync + 'static)) -> Option<String> {
    use rustls::{AlertDescription, CertificateError};

    let inner = cause.downcast_ref::<io::Error>();
    let inner = inner.and_then(io::Error::get_ref);
    let error = inner.unwrap_or(cause).downcast_ref::<rustls::Error>()?;
    let hint = match error {
        // The other side didn't speak TLS.
        rustls::Error::InvalidMessage(_) => return Some(NO_TLS_ADVICE.to_owned()),
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "; name who signed the store's certificate in its URL: ?ca=FILE"
        }
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "; write a name into the store's URL that its certificate has",
        rustls::Error::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA,
        ) => "; name a certificate that the store knows in its URL: ?cert=FILE&key=FILE",
        _ => "",
    };
    Some(format!("{error}{hint}"))
}

#[cfg(test)]
mod tests {
    use ::redis::{ServerErrorKind, Value};

    use super::*;

    fn said(reply: &str) -> RedisError {
        let reply = ::redis::parse_redis_value(format!("-{reply}\r\n").as_bytes());
        reply.and_then(Value::extract_error).unwrap_err()
    }

    #[test]
    fn every_word_of_a_server_has_its_kind() {
        let script = "ERR Error running script (call to f_a1): @user_script:1: @user_script: 1: ";
        for (reply, expected) in [
            ("NOAUTH Authentication required.", FailureKind::Auth),
            (
                "WRONGPASS invalid username-password pair",
                FailureKind::Auth,
            ),
            (
                "NOPERM this user has no permissions",
                FailureKind::NoPermission,
            ),
            (
                "ERR The user executing the script can't run this command or subcommand",
                FailureKind::NoPermission,
            ),
            (
                "ERR ACL failure in script: User a has no permissions to run the 'get' command",
                FailureKind::NoPermission,
            ),
            (
                "READONLY You can't write against a read only replica.",
                FailureKind::ReadOnly,
            ),
            ("MASTERDOWN Link with MASTER is down", FailureKind::ReadOnly),
            (
                "MISCONF Errors writing to the AOF file",
                FailureKind::ReadOnly,
            ),
            (
                "NOREPLICAS Not enough good replicas to write.",
                FailureKind::ReadOnly,
            ),
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                FailureKind::OutOfMemory,
            ),
            (
                "LOADING Redis is loading the dataset in memory",
                FailureKind::Loading,
            ),
            ("BUSY Redis is busy running a script.", FailureKind::Busy),
            ("MOVED 7629 127.0.0.1:24287", FailureKind::Moved),
            ("ASK 7629 127.0.0.1:24287", FailureKind::Moved),
            (
                "TRYAGAIN Multiple keys request during rehashing of slot",
                FailureKind::Moved,
            ),
            ("CLUSTERDOWN Hash slot not served", FailureKind::Moved),
            ("ERR DB index is out of range", FailureKind::Other),
            (
                "CROSSSLOT Keys in request don't hash to the same slot",
                FailureKind::Other,
            ),
        ] {
            assert_eq!(store_error(&said(reply)).kind(), expected, "{reply}");
            // Redis 6.2 reports errors of a script in the middle of its text.
            let within = store_error(&said(&format!("{script}-{reply}"))).kind();
            assert_eq!(within, expected, "-{reply}");
        }
        let error = store_error(&said("OOM command not allowed."));
        assert_eq!(
            error.to_string(),
            "the store answered with an error: OOM command not allowed."
        );
    }

    #[test]
    fn what_a_cluster_only_tells_by_text_has_its_kind() {
        for (text, expected) in [
            (
                "Password authentication failed - AuthenticationFailed",
                FailureKind::Auth,
            ),
            ("\"NOAUTH\": Authentication required.", FailureKind::Auth),
            ("Connection refused (os error 111)", FailureKind::Refused),
            ("timed out", FailureKind::TimedOut),
            ("invalid peer certificate: UnknownIssuer", FailureKind::Tls),
            (
                "received fatal alert: CertificateRequired",
                FailureKind::Tls,
            ),
            (
                "Connection reset by peer (os error 104)",
                FailureKind::Disconnected,
            ),
            ("No route to host (os error 113)", FailureKind::Unreachable),
        ] {
            let what = "Failed to create initial connections";
            let error = RedisError::from((ErrorKind::Io, what, text.to_owned()));
            assert_eq!(store_error(&error).kind(), expected, "{text}");
        }
    }

    #[test]
    fn what_goes_wrong_on_the_way_has_its_kind() {
        for (kind, expected) in [
            (io::ErrorKind::TimedOut, FailureKind::TimedOut),
            (io::ErrorKind::ConnectionRefused, FailureKind::Refused),
            (io::ErrorKind::ConnectionReset, FailureKind::Disconnected),
            (io::ErrorKind::BrokenPipe, FailureKind::Disconnected),
            (io::ErrorKind::UnexpectedEof, FailureKind::Disconnected),
            (io::ErrorKind::NotFound, FailureKind::NotFound),
            (io::ErrorKind::PermissionDenied, FailureKind::NoPermission),
            (io::ErrorKind::HostUnreachable, FailureKind::Unreachable),
            (io::ErrorKind::NetworkUnreachable, FailureKind::Unreachable),
        ] {
            let error = RedisError::from(io::Error::from(kind));
            assert_eq!(store_error(&error).kind(), expected, "{kind:?}");
        }
        let unknown = "failed to lookup address information: Name or service not known";
        let error = RedisError::from(io::Error::other(unknown));
        assert_eq!(store_error(&error).kind(), FailureKind::NotFound);
        let refused = RedisError::from((
            ErrorKind::Server(ServerErrorKind::ResponseError),
            "Redis server refused to switch database",
            "Authentication required.".to_owned(),
        ));
        assert_eq!(store_error(&refused).kind(), FailureKind::Auth);
    }
}
