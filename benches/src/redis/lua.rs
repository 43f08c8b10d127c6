//! A handwritten GCRA script, called by `redis-benchmark`.

use std::process::Command;
use std::time::Duration;

use super::load::Bench;
use super::{BURST, COUNT, Failure, KEYS, TASKS};
use crate::runner::{as_count, as_f64};
use crate::timing::Stopwatch;

/// It keeps one number, the time at which the key is as if never used, and returns four: whether the request
/// passes, what remains, how long until it would pass, and how long until the key is as if never used.
pub(crate) const TEXT: &str = "\
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, tolerance = tonumber(ARGV[1]), tonumber(ARGV[2])
local tat = tonumber(redis.call('GET', KEYS[1])) or now
if tat < now then tat = now end
local after = tat + interval
if after - now > tolerance then
  return {0, math.floor((tolerance - (tat - now)) / interval), after - now - tolerance, tat - now}
end
redis.call('SET', KEYS[1], after, 'PX', math.ceil((after - now) / 1000))
return {1, math.floor((tolerance - (after - now)) / interval), 0, after - now}
";

pub(super) struct Script<'a> {
    bench: &'a Bench,
    sha: String,
}

impl<'a> Script<'a> {
    pub(super) fn new(bench: &'a Bench) -> Result<Self, Failure> {
        let sha = bench.server.command(&["SCRIPT", "LOAD", TEXT]).text();
        let sha = sha.ok_or("the server took no script")?;
        Ok(Self { bench, sha })
    }

    /// How many calls take about this long. They cover all keys.
    pub(super) fn calls_for(&self, span: Duration) -> Result<u64, Failure> {
        let (some, watch) = (KEYS as u64 * 2, Stopwatch::start());
        self.run(some)?;
        let share = span.as_secs_f64() / watch.elapsed().as_secs_f64();
        Ok(as_count(as_f64(some) * share).max(some))
    }

    /// Processor time of the server for each call, in nanoseconds.
    pub(super) fn run(&self, calls: u64) -> Result<f64, Failure> {
        let server = &self.bench.server;
        let hour = 3_600_000_000;
        let (interval, tolerance) = (hour / COUNT, hour / COUNT * BURST);
        let (counted, before) = (server.command_calls("evalsha"), server.cpu_time());
        let status = Command::new("redis-benchmark")
            .args(["-q", "-c", "1"])
            .args(["-p", &server.port().to_string()])
            .args(["-P", &TASKS.to_string()])
            .args(["-r", &KEYS.to_string()])
            .args(["-n", &calls.to_string()])
            .args(["evalsha", &self.sha, "1", "lua:__rand_int__"])
            .args([interval.to_string(), tolerance.to_string()])
            .output()?
            .status;
        let spent = server.cpu_time() - before;
        let counted = server.command_calls("evalsha") - counted;
        if !status.success() || counted < calls {
            return Err(
                format!("redis-benchmark made {counted} of {calls} calls: {status}").into(),
            );
        }
        Ok(spent.as_secs_f64() * 1e9 / as_f64(counted))
    }
}
