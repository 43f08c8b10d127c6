//! A service with an admin listener, valid and invalid requests to it, and all state that operators can change.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tollgate_server::{AdminToken, Log, LogFormat, PolicyWatch, Settings};
use tollgate_testkit::temp_folder::TempFolder;

use crate::kit::{Running, secret};

pub(crate) const TOKEN: &str = "only-for-operators";
pub(crate) const JSON: &str = "content-type: application/json\r\n";
pub(crate) const POLICY: &str = "\
limits:
- {name: per-user, key: user, rate: 10/h}
- {name: jobs, match: {path: /jobs}, key: tenant, concurrency: 2}
- {name: all, match: {path: /all}, rate: 5/s}
";

/// What a service has logged.
#[derive(Clone, Default)]
pub(crate) struct Said(Arc<Mutex<Vec<u8>>>);

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("a log").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Said {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("a log").clone()).expect("text")
    }
}

/// A service by the policy above, whose file is in a folder.
pub(crate) struct Operated {
    pub(crate) running: Running,
    pub(crate) scratch: TempFolder,
    pub(crate) said: Said,
}

/// A request: a method, a path, and a body.
pub(crate) type Asked<'a> = (&'a str, &'a str, &'a str);

impl Operated {
    pub(crate) fn new(name: &str, change: impl FnOnce(&mut Settings)) -> Self {
        Self::by(POLICY, name, change)
    }

    /// By another policy.
    pub(crate) fn by(policy: &str, name: &str, change: impl FnOnce(&mut Settings)) -> Self {
        let scratch = TempFolder::new(name);
        let file = scratch.path("policy.yaml");
        std::fs::write(&file, policy).expect("a file");
        let said = Said::default();
        let running = Running::new(policy, |settings| {
            settings.admin_token = AdminToken::File(secret(TOKEN));
            settings.policy_path = Some(file);
            settings.policy_watch = PolicyWatch::Off;
            settings.log = Log::to_writer(said.clone(), LogFormat::Text);
            change(settings);
        });
        Self {
            running,
            scratch,
            said,
        }
    }

    pub(crate) fn host(&self) -> String {
        self.running.admin_address().to_string()
    }

    /// Sends a request as it stands: the status, the head and the body of the answer.
    pub(crate) fn raw(&self, text: &str) -> (u16, String, String) {
        let mut client = self.running.admin();
        client.0.write_all(text.as_bytes()).expect("written");
        let answer = client.rest();
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        let status = head.split(' ').nth(1).expect("a status");
        let status = status.parse().expect("a number");
        (status, head.to_owned(), body.to_owned())
    }

    /// The same with these fields, and whatever else a request needs.
    pub(crate) fn asked(
        &self,
        asked: Asked<'_>,
        host: &str,
        fields: &str,
    ) -> (u16, String, String) {
        let (method, path, body) = asked;
        let length = body.len();
        self.raw(&format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{fields}content-length: {length}\r\n\r\n{body}"
        ))
    }

    /// Sends an operator's request.
    pub(crate) fn operate(&self, asked: Asked<'_>) -> (u16, Value) {
        let fields = format!("{JSON}authorization: Bearer {TOKEN}\r\n");
        let (status, head, body) = self.asked(asked, &self.host(), &fields);
        for field in ["cache-control: no-store", "x-content-type-options: nosniff"] {
            assert_eq!(head.matches(field).count(), 1, "{field}: {head}");
        }
        assert!(!head.contains("access-control"), "{head}");
        (status, serde_json::from_str(&body).expect("JSON"))
    }

    /// The same, of what goes well.
    #[track_caller]
    pub(crate) fn done(&self, asked: Asked<'_>) -> Value {
        let (status, body) = self.operate(asked);
        assert_eq!(status, 200, "{asked:?}: {body}");
        body
    }

    /// Whether a request with these facts passes, and the whole answer.
    pub(crate) fn check(&self, facts: &str) -> (bool, String) {
        let body = format!("{{\"facts\":{facts}}}");
        let (status, answer) = self
            .running
            .http()
            .request("POST", "/v1/check", JSON, &body);
        assert!(matches!(status, 200 | 429), "{answer}");
        (status == 200, answer)
    }

    /// All that operators could have changed.
    pub(crate) fn state(&self) -> Value {
        let get = |path: &str| self.done(("GET", path, ""));
        let server = self.running.server.as_ref().expect("a service");
        json!({
            "overrides": get("/admin/overrides"),
            "rules": get("/admin/rules"),
            "top": get("/admin/top"),
            "log": get("/admin/log"),
            "reload": get("/admin/reload"),
            "key": self.operate(("GET", "/admin/key?rule=per-user&user=ada", "")).1,
            "limiters": get("/debug/limiters"),
            "policy": format!("{:?}", server.policy()),
            // A request that is none, or has no token, changes nothing, but is told.
            "said": self.said.text().lines().filter(|line| !is_of_clients(line)).collect::<Vec<_>>(),
        })
    }
}

/// Whether a log line is about a client, not an operator.
fn is_of_clients(line: &str) -> bool {
    line.contains("protocol error") || line.contains("wrong password or token")
}
