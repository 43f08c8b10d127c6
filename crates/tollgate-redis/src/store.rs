//! How queries get to the store and replies back.

mod batch;
mod certificate_files;
mod clock_skew;
mod connect;
mod deadline;
mod driver;
mod error_reason;
mod hash_slots;
mod link;
mod peer;
mod queue;
mod request;
mod shared_state;
mod tls_probe;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use derive_more::Debug;
use tokio::sync::oneshot;

use crate::address::Address;
use crate::error::StoreError;
use crate::host::Host;
use crate::query::{QueryReplies, RawReply, StoreQuery};

use connect::Connector;
use driver::Driver;
use request::{CallReply, QueuedCall, StoreCall};
use shared_state::DriverState;
pub(crate) use shared_state::StoreCounters;

pub(crate) use deadline::RequestDeadline;

/// Lanes of leases have numbers from here on, after those of a cluster's hash slots.
const FIRST_LEASE_LANE: u16 = hash_slots::SLOTS;

/// A store that can be queried.
#[derive(Debug)]
#[debug("Store({timeout:?}, {:?})", shared.stats)]
pub(crate) struct Store {
    shared: Arc<DriverState>,
    timeout: Duration,
    is_cluster: bool,
}

impl Store {
    /// A store for tests, with a long timeout.
    #[cfg(test)]
    pub(crate) fn patient(server: &tollgate_testkit::redis::Server) -> Self {
        let address = server.url().parse().expect("a server's own URL");
        let host = Host::system().expect("a runtime");
        Self::new(&address, Duration::from_secs(10), &host).expect("a plain address")
    }

    /// Connects in the background.
    pub(crate) fn new(
        address: &Address,
        timeout: Duration,
        host: &Host,
    ) -> Result<Self, StoreError> {
        let connector = Connector::new(address, timeout, host)?;
        let is_cluster = connector.is_cluster();
        let shared = Arc::new(DriverState::new(host));
        host.spawn(Driver::new(Arc::clone(&shared), connector).run());
        Ok(Self {
            shared,
            timeout,
            is_cluster,
        })
    }

    pub(crate) fn stats(&self) -> &StoreCounters {
        &self.shared.stats
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.shared.stats.is_failing.load(Ordering::Relaxed)
    }

    /// Whether any node of a cluster answers.
    pub(crate) fn answers_in_part(&self) -> bool {
        self.shared.stats.answers_in_part.load(Ordering::Relaxed)
    }

    /// The lane of a key: only queries of the same lane can share a call.
    pub(crate) fn lane(&self, key: &str) -> u16 {
        if self.is_cluster {
            crate::store_key::hash_slot(key)
        } else {
            0
        }
    }

    /// The deadline for all queries of a request, from now on.
    pub(crate) fn patience(&self) -> RequestDeadline {
        RequestDeadline::new(&self.shared, self.timeout)
    }

    /// Sends queries of one lane, all or none.
    pub(crate) async fn ask(
        &self,
        questions: Vec<StoreQuery>,
        at: Option<u64>,
    ) -> Result<QueryReplies, StoreError> {
        self.ask_with(&mut self.patience(), questions, at).await
    }

    /// Sends queries of one lane, as part of a request that has already spent some of its deadline.
    pub(crate) async fn ask_with(
        &self,
        patience: &mut RequestDeadline,
        questions: Vec<StoreQuery>,
        at: Option<u64>,
    ) -> Result<QueryReplies, StoreError> {
        let lane = questions.first().map_or(0, |first| self.lane(&first.key));
        let sent = self.send(StoreCall::Queries(questions), at, lane, patience);
        let CallReply { now, numbers } = sent.await?;
        let each = RawReply::parse_all(&numbers).collect();
        Ok(QueryReplies { now, replies: each })
    }

    /// Runs the script of leases.
    pub(crate) async fn lease(
        &self,
        key: Box<str>,
        numbers: Vec<u8>,
        at: Option<u64>,
    ) -> Result<Vec<i64>, StoreError> {
        // Leases have lanes of their own: in a lane with others, they would split the others' batches and wait
        // for them.
        let lane = FIRST_LEASE_LANE + crate::store_key::hash_slot(&key);
        let (job, mut patience) = (StoreCall::Lease { key, numbers }, self.patience());
        let reply = self.send(job, at, lane, &mut patience).await?;
        Ok(reply.numbers)
    }

    async fn send(
        &self,
        job: StoreCall,
        at: Option<u64>,
        lane: u16,
        patience: &mut RequestDeadline,
    ) -> Result<CallReply, StoreError> {
        let asking = async {
            let (reply, answer) = oneshot::channel();
            self.shared.queue.push(QueuedCall {
                job,
                at,
                lane,
                is_retry: false,
                reply,
            })?;
            answer.await.unwrap_or(Err(StoreError::Stopped))
        };
        patience.wait(asking).await
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.shared.queue.close();
    }
}
