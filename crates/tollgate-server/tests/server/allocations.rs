//! A denial allocates no more than an allowed request, on each protocol, as the allocator counts.

use std::io::{Read, Write};
use std::time::Duration;

use tollgate_testkit::redis::Client;

use crate::kit::Running;
use crate::rls_client::SHOULD;
use crate::rls_raw::{ADA, DATA, Raw, call};

/// Decisions that are counted, after as many that aren't: buffers have their size then.
const COUNTED: u64 = 100;

const RULES: &str = "limits: [{name: per-user, key: user, rate: 210/h}]";
const TREE: &str = "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 210, name: users}}]";

/// A client that sends one request, and returns whether it was allowed.
type Ask<'r> = Box<dyn FnMut() -> bool + 'r>;

/// The allocations of a decision, over many that all allow or all deny.
fn allocations(running: &Running, ask: &mut Ask<'_>, admits: bool) -> u64 {
    let mut many = || {
        for _ in 0..COUNTED {
            assert_eq!(ask(), admits);
        }
    };
    many();
    // To count asks for something, too.
    let own = running.pass(Duration::ZERO);
    let before = running.pass(Duration::ZERO);
    many();
    let all = running.pass(Duration::ZERO) - before - (before - own);
    // HTTP/2 has tables that grow now and then.
    (all + COUNTED / 2) / COUNTED
}

/// Compares the allocations of an allowed and a denied request: the latter has no more.
#[track_caller]
fn refusals_cost_no_more(protocol: &str, policy: &str, client: impl Fn(&Running) -> Ask<'_>) {
    let running = Running::in_still_time(policy, |_| {});
    let mut ask = client(&running);
    let admission = allocations(&running, &mut ask, true);
    while ask() {}
    let refusal = allocations(&running, &mut ask, false);
    #[expect(clippy::print_stdout, reason = "a number that people ask for")]
    {
        println!("{protocol}: {admission} allocations for an admission, {refusal} for a refusal");
    }
    assert!(
        refusal <= admission,
        "{protocol}: {refusal}, not {admission}"
    );
}

fn by_resp<'r>(
    running: &'r Running,
    words: &'static [&str],
    place: usize,
    yes: &'static str,
) -> Ask<'r> {
    let mut client = Client::tcp(running.resp_address()).expect("a connection");
    Box::new(move || client.command(words).expect("an answer").items()[place] == yes)
}

/// By one connection that is kept.
fn by_http<'r>(running: &'r Running, path: &str, body: &str) -> Ask<'r> {
    let mut client = running.http().0;
    let length = body.len();
    let said = format!(
        "POST {path} HTTP/1.1\r\nhost: here\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    Box::new(move || {
        client.write_all(said.as_bytes()).expect("written");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            client.read_exact(&mut byte).expect("an answer");
            head.extend(byte);
        }
        let head = String::from_utf8(head).expect("text");
        let (_, length) = head.split_once("content-length: ").expect("a length");
        let length = length.lines().next().and_then(|number| number.parse().ok());
        let read = client.read_exact(&mut vec![0; length.expect("a number")]);
        read.expect("a body");
        head.starts_with("HTTP/1.1 200 ")
    })
}

/// By one connection that is kept. A call is one write, as Envoy's are: what comes in parts waits, which costs more.
fn by_rls(running: &Running) -> Ask<'_> {
    let mut raw = Raw::greeted(running, &[]);
    let mut stream = 1;
    Box::new(move || {
        raw.say(&call(stream, SHOULD, ADA));
        let answer = raw.hear_until(|(kind, of, _)| (*kind, *of) == (DATA, stream));
        stream += 2;
        answer.expect("an answer").2[6] == 1
    })
}

#[test]
fn on_resp() {
    const CHECK: &[&str] = &["TG.CHECK", "user=ada"];
    const THROTTLE: &[&str] = &["CL.THROTTLE", "k", "209", "1", "3600"];
    refusals_cost_no_more("TG.CHECK", RULES, |running| by_resp(running, CHECK, 1, "1"));
    refusals_cost_no_more("CL.THROTTLE", RULES, |running| {
        by_resp(running, THROTTLE, 0, "0")
    });
}

#[test]
fn on_http() {
    let facts = r#"{"facts":{"user":"ada"}}"#;
    refusals_cost_no_more("/v1/check", RULES, |running| {
        by_http(running, "/v1/check", facts)
    });
    let descriptors =
        r#"{"domain":"edge","descriptors":[{"entries":[{"key":"user","value":"ada"}]}]}"#;
    refusals_cost_no_more("/json", TREE, |running| {
        by_http(running, "/json", descriptors)
    });
}

#[test]
fn on_rls() {
    refusals_cost_no_more("RLS by a tree", TREE, by_rls);
    refusals_cost_no_more("RLS by rules", RULES, by_rls);
}

#[test]
fn what_is_asked_about_the_server_costs_no_more_with_more_rules() {
    let cost = |rules: usize, command: &'static [&str]| {
        let rules = (0..rules).map(|number| format!("{{name: r{number}, key: user, rate: 5/s}}"));
        let policy = format!("limits: [{}]", rules.collect::<Vec<_>>().join(","));
        let running = Running::in_still_time(&policy, |_| {});
        let mut client = Client::tcp(running.resp_address()).expect("a connection");
        let mut ask = || client.command(command).expect("an answer");
        ask();
        let before = running.pass(Duration::ZERO);
        ask();
        running.pass(Duration::ZERO) - before
    };
    for command in [&["INFO"][..], &["TG.RULES"]] {
        let (few, many) = (cost(10, command), cost(1_000, command));
        // Buffers may have to grow.
        assert!(many <= few + 20, "{command:?}: {few} and {many}");
    }
}
