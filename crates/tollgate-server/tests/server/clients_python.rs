//! redis-py with its defaults: its pipelines are transactions, and each command is charged once.

use std::process::Command;

use tollgate_testkit::external_programs::python_with_redis;

use crate::kit::{Running, secret};

const POLICY: &str = "limits: [{name: per-user, key: user, rate: 3/h}]";

/// What a script prints that has `r`, a client of the service.
fn printed(running: &Running, script: &str) -> String {
    let port = running.resp_address().port();
    let script = format!(
        "import redis\nr = redis.Redis(port={port}, protocol=3, decode_responses=True)\n{script}"
    );
    let run = Command::new(python_with_redis())
        .args(["-c", &script])
        .output();
    let run = run.expect("Python starts");
    let errors = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{errors}");
    String::from_utf8(run.stdout).expect("text")
}

#[test]
fn a_pipeline_of_redis_py_is_charged_once() {
    let running = Running::new(POLICY, |_| {});
    let said = printed(
        &running,
        r#"
p = r.pipeline()
for _ in range(3):
    p.execute_command("CL.THROTTLE", "k", 1, 1, 60)
p.execute_command("TG.CHECK", "user=ada")
*three, check = p.execute()
print([answer[0] for answer in three], check["remaining"])
p = r.pipeline()
p.watch("k")
p.multi()
p.ttl("k")
p.exists("k", "other")
print(p.execute())
p = r.pipeline()
p.execute_command("TG.CHECK", "user=ada")
p.execute_command("GET", "k")
try:
    p.execute()
except redis.ResponseError as error:
    print(error)
print(r.execute_command("TG.PEEK", "user=ada")["remaining"])
with r.pipeline(transaction=False) as p:
    p.execute_command("TG.CHECK", "user=ada")
    print(p.execute()[0]["remaining"])
"#,
    );
    assert_eq!(
        said,
        "[0, 0, 1] 2\n[120, 1]\nunknown command 'GET': see COMMAND DOCS\n2\n1\n".replace(
            "unknown",
            "Command # 2 (GET k) of pipeline caused error: unknown"
        )
    );
}

#[test]
fn what_redis_py_asks_of_any_server_is_answered() {
    let running = Running::new(POLICY, |settings| {
        settings.resp_operator_password = Some(secret("sesame"));
    });
    let said = printed(
        &running,
        r#"
info = r.info()
print(info["role"], info["connected_clients"] > 0, info["used_memory"] > 0, info["redis_version"])
print(list(r.info("replication")))
print(r.command_count() == len(r.command_list()) == len(r.command()))
print(r.command()["cl.throttle"]["arity"], r.command_getkeys("CL.THROTTLE", "k", 1, 1, 1))
print(r.client_setname("me"), r.client_getname(), r.client_info()["name"], len(r.client_list()))
print(r.client_no_evict("ON"), r.select(0), r.dbsize(), r.type("k"), r.ttl("k"))
r.execute_command("CL.THROTTLE", "k", 1, 1, 60)
print(r.dbsize(), r.type("k"), 59_000 < r.pttl("k") <= 60_000, r.delete("k", "other"), r.exists("k"))
print(r.auth("sesame"), r.auth("sesame", "default"))
try:
    r.auth("sesame", "other")
except redis.exceptions.AuthenticationError as error:
    print(error)
print(r.reset())
"#,
    );
    assert_eq!(
        said,
        "master True True 7.0.15\n['role', 'connected_slaves']\nTrue\n-5 ['k']\nTrue me me 1\nOK True 0 none -2\n\
         1 string True 1 0\nTrue True\ninvalid username-password pair or user is disabled.\nRESET\n"
    );
}
