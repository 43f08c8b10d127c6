//! Calls with very many queries: their work is proportional to their number.

use super::*;
use crate::script::ScriptParts;

/// How often a call of one request with this many queries, each of another key, reads the name of a key.
fn reads(server: &Server, numbers: LimitParams, count: usize) -> i64 {
    let mut needs = ScriptParts::default();
    needs.add(&question(numbers, StoreOp::Decide, 1));
    let text = &needs.script().text;
    // The script's own names come after this one, which hides the server's.
    let counted = format!(
        "local all, reads = KEYS, 0
local KEYS = setmetatable({{}}, {{__index = function(_, i) reads = reads + 1 return all[i] end}})
local function run()
{text}
end
run()
return reads"
    );
    let mut records = Vec::new();
    for number in 1..=count {
        let question = question(numbers, StoreOp::Decide, 1);
        question.write_record(&mut records, number == count, needs.is_plain());
    }
    let keys = (0..count).map(|number| format!("k{number}").into_bytes());
    let mut words: Vec<Vec<u8>> = vec![b"EVAL".to_vec(), counted.into_bytes()];
    words.push(count.to_string().into_bytes());
    words.extend(keys);
    words.extend([records, NOW.to_string().into_bytes()]);
    let mut client = server.client().expect("it answers");
    let reply = client.command(&words).expect("no error of the script");
    reply.integer().expect("a number")
}

#[test]
fn a_call_does_as_much_as_it_has_questions() {
    let server = Server::start();
    for algorithm in ALGORITHMS {
        server.command(&["FLUSHALL"]);
        let numbers = rate("10/s", algorithm);
        let [few, many] = [100, 1_000].map(|count| reads(&server, numbers, count));
        assert!(few >= 100, "{few} reads of {algorithm:?}");
        assert!(many <= 10 * few, "{few} and {many} reads of {algorithm:?}");
    }
}
