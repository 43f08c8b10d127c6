//! Names of header fields as constants, so they aren't parsed for each response.

use http::HeaderName;

macro_rules! names {
    ($($text:literal),* $(,)?) => {
        /// The constant of a name that is often read in requests or written in responses.
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
