//! What is kept of a story that was played, for those who check it.

use tollgate::stack::SettlementTiming;
use tollgate_core::Decision;
use tollgate_engine::policy::OnStoreFailure;

use super::super::network::Exchange;
use super::super::scenario::{RefundEvent, Request};
use super::super::{Call, Counts};

/// The record of a story.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Requests that got an answer, in the order in which they did.
    pub answers: Vec<ReportedDecision>,
    /// Requests that got no answer: they were given up, or their node died. The store may have counted them.
    pub unanswered: Vec<UnansweredRequest>,
    /// Which version of the policy a node had from when on.
    pub versions: Vec<(u64, usize, usize)>,
    /// What went wrong and when, as the checker has to know it.
    pub faults: Vec<(u64, Fault)>,
    /// What an operator gave back: from when on, and when that was over, if it was heard of.
    pub gifts: Vec<RecordedRefund>,
    /// When calls were carried out by the store, and for which node.
    pub carried_out: Vec<(u64, usize)>,
    /// What nodes sent and when they had an answer.
    pub exchanges: Vec<Exchange>,
    /// When the story was over and all was quiet, and the last requests were made.
    pub quiet_at: u64,
    /// Keys that the store kept whenever something was given back, once the story was over and in the end, and
    /// whether they end by themselves.
    pub keys: Vec<(String, bool)>,
    /// All calls of scripts, with the time told.
    pub calls: Vec<Call>,
    /// What the store did.
    pub counts: Counts,
    /// How many requests still waited for a turn in the end.
    pub waiting: usize,
    /// What each process had counted when it ended.
    pub counted: Vec<RecordedTally>,
    /// Refunds by descriptors, each of which is decided like a request that passes: of a node, in a life.
    pub refunds: Vec<(usize, usize)>,
}

/// What a process has counted of its own decisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedTally {
    /// The node.
    pub node: usize,
    /// Which life of it.
    pub life: usize,
    /// Requests that passed, whatever limits they met.
    pub passed: u64,
    /// Requests that were denied.
    pub denied: u64,
    /// By rule, requests that it let pass, and that it denied.
    pub rules: Vec<(usize, u64, u64)>,
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedDecision {
    /// The request.
    pub ask: Request,
    /// Which life of its node.
    pub life: usize,
    /// When it asked.
    pub asked_at: u64,
    /// When it was told.
    pub at: u64,
    /// The version that it was judged by, if it didn't wait.
    pub version: usize,
    /// The version when it was answered: a request that waits is judged by what is in force at its turn.
    pub last_version: usize,
    /// Whether it passed.
    pub allowed: bool,
    /// The limits of trees that were charged, by the bits of their numbers.
    pub charged: u8,
    /// Who decided, if no store did.
    pub fallback: Option<OnStoreFailure>,
    /// What the rule that decided said.
    pub decision: Decision,
    /// Which rule that was, if one did.
    pub rule: Option<usize>,
    /// The status of the middleware's refusal; none if it passed, or there is no middleware.
    pub status: Option<u16>,
    /// When it gave back what it held; none if its node died before.
    pub ended_at: Option<u64>,
    /// What it was told when it said what it cost; none if it didn't say so, or said it to the middleware.
    pub settled: Option<SettlementTiming>,
    /// It came back at the time that it had been told: of the answer with this number.
    pub returned: Option<usize>,
}

/// A request without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnansweredRequest {
    /// The request.
    pub ask: Request,
    /// When it asked.
    pub asked_at: u64,
}

/// Something given back by an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedRefund {
    /// What.
    pub gift: RefundEvent,
    /// Since when it may have been given.
    pub from: u64,
    /// When it was given for sure; none if nobody knows.
    pub to: Option<u64>,
}

/// Something that a limit may suffer from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The store has forgotten something.
    Forgot,
    /// The store has forgotten what was written since this time.
    ForgotSince(u64),
    /// Its clock has stepped.
    Stepped(i64),
    /// A node was frozen, or got its turn again.
    Frozen(usize),
    /// A node was killed, or its clock stepped; or the store or the network was in trouble.
    Other,
    /// A node was started anew.
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
