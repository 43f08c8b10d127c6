//! Redis' protocol (RESP): any Redis client can send checks.

mod frame;
#[cfg(test)]
#[path = "../tests/common/resp_reading.rs"]
mod reading;
mod response;
mod session;

pub(crate) use session::RespSession;

#[cfg(test)]
use crate::cl_throttle;

#[cfg(test)]
mod tests {
    use super::reading::read;
    use crate::seeds::read_all;

    #[test]
    fn seeds_and_what_is_near_them_are_read_or_refused() {
        let commands = [
            "check",
            "hello",
            "inline",
            "ping",
            "pipeline",
            "throttle",
            "throttle-edges",
        ];
        assert_eq!(read_all("resp", read), commands);
    }
}
