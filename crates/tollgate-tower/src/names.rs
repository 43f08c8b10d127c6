//! Names of header fields, so that they aren't read anew for each answer.

use http::HeaderName;
use http::header::{CONTENT_TYPE, RETRY_AFTER};

macro_rules! names {
    ($($text:literal),* $(,)?) => {
        /// The name of a field that is in every answer, or in every refusal.
        #[inline]
        pub(crate) fn known(name: &str) -> Option<HeaderName> {
            Some(match name {
                $($text => {
                    const NAME: HeaderName = HeaderName::from_static($text);
                    NAME
                })*
                "retry-after" => RETRY_AFTER,
                "content-type" => CONTENT_TYPE,
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
);
