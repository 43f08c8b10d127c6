//! HTTP and JSON, for every client that speaks neither Envoy's protocol nor Redis'.

mod admin;
mod body;
mod check;
mod descriptor_json;
mod envoy_json;
#[cfg(test)]
#[path = "../tests/common/http_reading.rs"]
mod reading;
#[cfg(test)]
#[path = "../tests/common/json_reading.rs"]
mod reading_json;
mod request;
mod reservations;
mod response;
mod routes;
mod session;
mod usage;

pub(crate) use session::HttpSession;

#[cfg(test)]
mod tests {
    use super::{reading, reading_json};
    use crate::seeds::read_all;

    #[test]
    fn seeds_and_what_is_near_them_are_read_or_refused() {
        let requests = [
            "chunks", "expect", "get", "old", "pipeline", "post", "usage",
        ];
        assert_eq!(read_all("http", reading::read), requests);
        let bodies = ["descriptors", "empty", "facts", "kinds", "list"];
        assert_eq!(read_all("json", reading_json::read), bodies);
    }
}
