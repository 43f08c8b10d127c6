//! Names of header fields, so that they aren't read anew for each answer.

use http::HeaderName;
use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, FORWARDED, HOST,
    RETRY_AFTER,
};

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
                "retry-after" => RETRY_AFTER,
                "cache-control" => CACHE_CONTROL,
                "content-type" => CONTENT_TYPE,
                "authorization" => AUTHORIZATION,
                "content-length" => CONTENT_LENGTH,
                "cookie" => COOKIE,
                "forwarded" => FORWARDED,
                "host" => HOST,
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
);
