//! The record of a scenario, for its checks.

use tollgate::stack::SettlementTiming;
use tollgate_core::Decision;
use tollgate_engine::policy::OnStoreFailure;

use super::super::network::Exchange;
use super::super::scenario::{RefundEvent, Request};
use super::super::{Call, Counts};

/// The record of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Requests with an answer, in the order of the answers.
    pub answers: Vec<ReportedDecision>,
    /// Requests without an answer: they were cancelled, or their node died. The store may have counted them.
    pub unanswered: Vec<UnansweredRequest>,
    /// The versions of the policy: the time, the node and the version.
    pub versions: Vec<(u64, usize, usize)>,
    /// The faults with their times, as far as the checks need them.
    pub faults: Vec<(u64, Fault)>,
    /// Refunds by an operator: when they began, and when they were confirmed.
    pub gifts: Vec<RecordedRefund>,
    /// When the store executed calls, and for which node.
    pub carried_out: Vec<(u64, usize)>,
    /// When nodes sent calls, and when they had a reply.
    pub exchanges: Vec<Exchange>,
    /// When the scenario was over and all was quiet, and the last requests were made.
    pub quiet_at: u64,
    /// The store's keys at each refund, after the scenario and at the end, and whether they expire.
    pub keys: Vec<(String, bool)>,
    /// All calls of scripts, with the time as an argument.
    pub calls: Vec<Call>,
    /// The store's counters.
    pub counts: Counts,
    /// How many requests still waited at the end.
    pub waiting: usize,
    /// The counters of each process when it ended.
    pub counted: Vec<RecordedTally>,
    /// Refunds by descriptors, each of which is decided like a request that passes: the node and its process.
    pub refunds: Vec<(usize, usize)>,
}

/// A process's counters of its own decisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedTally {
    /// The node.
    pub node: usize,
    /// The number of the node's process.
    pub life: usize,
    /// Requests that passed, whatever limits they met.
    pub passed: u64,
    /// Requests that were denied.
    pub denied: u64,
    /// For each rule, the requests that it allowed, and those that it denied.
    pub rules: Vec<(usize, u64, u64)>,
}

/// A decision as the client got it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedDecision {
    /// The request.
    pub ask: Request,
    /// The number of the node's process.
    pub life: usize,
    /// When it was sent.
    pub asked_at: u64,
    /// When it was answered.
    pub at: u64,
    /// The version that decided it, if it didn't wait.
    pub version: usize,
    /// The version when it was answered: a waiting request is decided by the version in force at that time.
    pub last_version: usize,
    /// Whether it passed.
    pub allowed: bool,
    /// The limits of trees that were charged, as bits by their numbers.
    pub charged: u8,
    /// The failure policy that decided, if the store didn't.
    pub fallback: Option<OnStoreFailure>,
    /// The decision of the rule that decided.
    pub decision: Decision,
    /// The rule that decided, if one did.
    pub rule: Option<usize>,
    /// The status of the middleware's denial; `None` if it passed, or there is no middleware.
    pub status: Option<u16>,
    /// When it released what it held; `None` if its node died before.
    pub ended_at: Option<u64>,
    /// The result of its settlement; `None` without a report, or if it reported to the middleware.
    pub settled: Option<SettlementTiming>,
    /// The number of the earlier answer after whose wait it came back.
    pub returned: Option<usize>,
}

/// A request without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnansweredRequest {
    /// The request.
    pub ask: Request,
    /// When it was sent.
    pub asked_at: u64,
}

/// A refund by an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedRefund {
    /// The refund.
    pub gift: RefundEvent,
    /// The earliest time at which it may have been executed.
    pub from: u64,
    /// When it was confirmed; `None` if it never was.
    pub to: Option<u64>,
}

/// A fault that may affect a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The store has lost data.
    Forgot,
    /// The store has lost what was written since this time.
    ForgotSince(u64),
    /// Its clock has stepped.
    Stepped(i64),
    /// A node was frozen, or resumed.
    Frozen(usize),
    /// A node was killed, or its clock stepped; or the store or the network had a fault.
    Other,
    /// A node was restarted.
    Started,
}

impl Record {
    pub(super) fn new() -> Self {
        Self {
            answers: Vec::new(),
            unanswered: Vec::new(),
            gifts: Vec::new(),
            versions: Vec::new(),
            faults: Vec::new(),
            carried_out: Vec::new(),
            exchanges: Vec::new(),
            quiet_at: 0,
            keys: Vec::new(),
            calls: Vec::new(),
            counts: Counts::default(),
            waiting: 0,
            counted: Vec::new(),
            refunds: Vec::new(),
        }
    }
}
