//! Names of header fields, so that they aren't read anew for each answer.

use http::HeaderName;

macro_rules! names {
    ($($text:literal),* $(,)?) => {
        /// The name of a field that is looked for in requests, or is in many answers.
        #[inline]
        pub(crate) fn known(name: &str) -> Option<HeaderName> {
            Some(match name {
                $($text => {
                    const NAME: HeaderName = HeaderName::from_static($text);
                    NAME
                })*
                _ => return None,
            })
        }
    };
}

names!(
    "ratelimit-policy",
    "ratelimit",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-used",
    "x-forwarded-for",
    "x-real-ip",
    "x-api-key",
    "retry-after",
    "cache-control",
    "content-type",
    "authorization",
    "content-length",
    "cookie",
    "forwarded",
    "host",
);
