//! What a request holds from its admission to the end of its answer.

use std::fmt;

use tollgate::concurrency::{Ending, Permit, PermitHome};
use tollgate::stack::Hold;
use tollgate_engine::verdict::Permits;

use super::after::{Reply, Usage, Watch, ending_of};
use super::fields::Fields;
use crate::grpc;

/// What limits hold for a request that passed. Dropping it gives back slots, and charges what isn't settled.
pub trait Held: Send + 'static {
    /// The request cost so much. Said once; what is said later is too late.
    fn settle(&mut self, spent: u64) {
        let _ = spent;
    }

    /// The request cost what is held for it: what dropping this means as well, unless a rule says otherwise.
    fn charge(&mut self) {}

    /// Whether nothing is held: then it makes no difference when it is dropped.
    fn is_empty(&self) -> bool {
        false
    }

    /// The request was answered like this: what limits that adapt learn from.
    fn replied(&mut self, reply: &dyn Reply) {
        let _ = reply;
    }

    /// The service failed, and there is no answer.
    fn failed(&mut self) {}
}

/// Nothing.
impl Held for () {
    fn is_empty(&self) -> bool {
        true
    }
}

impl<H: Held> Held for Option<H> {
    fn settle(&mut self, spent: u64) {
        if let Some(held) = self {
            held.settle(spent);
        }
    }

    fn charge(&mut self) {
        if let Some(held) = self {
            held.charge();
        }
    }

    fn is_empty(&self) -> bool {
        self.as_ref().is_none_or(Held::is_empty)
    }

    fn replied(&mut self, reply: &dyn Reply) {
        if let Some(held) = self {
            held.replied(reply);
        }
    }

    fn failed(&mut self) {
        if let Some(held) = self {
            held.failed();
        }
    }
}

impl Held for Permits {
    fn settle(&mut self, spent: u64) {
        Self::settle(self, spent);
    }

    fn charge(&mut self) {
        Self::charge(self);
    }

    fn is_empty(&self) -> bool {
        Self::is_empty(self)
    }

    fn replied(&mut self, reply: &dyn Reply) {
        let status = grpc::http_status(reply.status(), reply.line("grpc-status"));
        self.tell(ending_of(status));
    }

    fn failed(&mut self) {
        self.tell(Ending::Dropped);
    }
}

/// A permit is released when it is dropped.
impl<H: PermitHome + Send + 'static> Held for Permit<H> {}

/// An estimate of one limit.
#[derive(Debug)]
pub struct Estimate(Option<Hold<'static>>);

impl Estimate {
    pub(super) const fn new(hold: Hold<'static>) -> Self {
        Self(Some(hold))
    }
}

impl Held for Estimate {
    fn settle(&mut self, spent: u64) {
        if let Some(hold) = self.0.take() {
            hold.settle(spent);
        }
    }

    fn charge(&mut self) {
        if let Some(hold) = self.0.take() {
            drop(hold.keep());
        }
    }

    fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

/// What goes along with a request that passed, until the head of its answer is there. Dropping it before that (the client
/// has gone) gives back slots, and what isn't settled is charged: then there is nothing to be watched.
///
/// Most hold little, and all pay for what is moved: without anything held it is two words.
#[derive(Debug)]
pub struct Ticket<H: Held> {
    held: H,
    along: Along,
}

/// What goes along with what is held.
#[derive(Debug)]
enum Along {
    Fields(Fields),
    Watched(Box<Watched>),
}

#[derive(Debug)]
struct Watched {
    fields: Fields,
    watch: Box<Watch>,
}

/// What is held while the body of an answer is being sent. Dropping it is its end.
pub struct Rest<H: Held> {
    held: H,
    watch: Option<Box<Watch>>,
}

impl<H: Held + Default> Ticket<H> {
    /// Of a request that no limit is for.
    #[inline]
    pub fn free() -> Self {
        Self::telling(Fields::new())
    }

    /// Of a request that holds nothing, whose answer says this.
    #[inline]
    pub fn telling(fields: Fields) -> Self {
        Self::new(H::default(), fields, None)
    }
}

impl<H: Held> Ticket<H> {
    #[inline]
    pub(super) fn new(held: H, fields: Fields, watch: Option<Box<Watch>>) -> Self {
        let along = match watch {
            None => Along::Fields(fields),
            Some(watch) => Along::Watched(Box::new(Watched { fields, watch })),
        };
        Self { held, along }
    }

    /// Whether it makes no difference: nothing is held, and nothing is to be said.
    #[inline(always)]
    pub fn is_blank(&self) -> bool {
        match &self.along {
            Along::Fields(fields) => fields.is_empty() && self.held.is_empty(),
            Along::Watched(_) => false,
        }
    }

    /// Where the service tells what it used, to be put into the extensions of the request.
    #[inline]
    pub fn usage(&self) -> Option<&Usage> {
        match &self.along {
            Along::Fields(_) => None,
            Along::Watched(watched) => watched.watch.usage(),
        }
    }

    /// The service tells what it used there, because a layer before has said so already: of both of them, one would be told
    /// nothing.
    pub fn share(&mut self, usage: Usage) {
        if let Along::Watched(watched) = &mut self.along {
            watched.watch.share(usage);
        }
    }

    /// The head of the answer is there: what it says of the limit, and what is held until its body has ended.
    #[inline]
    pub fn replied(self, reply: &dyn Reply) -> (Fields, Option<Rest<H>>) {
        let Self { mut held, along } = self;
        held.replied(reply);
        match along {
            Along::Fields(fields) if held.is_empty() => (fields, None),
            Along::Fields(fields) => (fields, Some(Rest { held, watch: None })),
            Along::Watched(watched) => {
                let Watched { fields, watch } = *watched;
                let mut rest = Rest::watched(held, watch);
                rest.change(|watch, held| watch.replied(reply, held));
                (fields, Some(rest))
            }
        }
    }

    /// The service failed without an answer.
    pub fn failed(self) {
        let Self { mut held, along } = self;
        held.failed();
        if let Along::Watched(watched) = along {
            Rest::watched(held, watched.watch).change(|watch, held| watch.failed(held));
        }
    }
}

impl<H: Held> Rest<H> {
    const fn watched(held: H, watch: Box<Watch>) -> Self {
        let watch = Some(watch);
        Self { held, watch }
    }

    fn change(&mut self, change: impl FnOnce(&mut Watch, &mut H)) {
        if let Some(watch) = &mut self.watch {
            change(watch, &mut self.held);
        }
    }

    /// So many bytes of the body were sent.
    #[inline]
    pub fn sent(&mut self, bytes: usize) {
        self.change(|watch, _| watch.sent(bytes as u64));
    }

    /// The body ends with trailers that say this `grpc-status`.
    pub fn trailer(&mut self, grpc_status: Option<&[u8]>) {
        self.change(|watch, _| watch.trailer(grpc_status));
    }
}

impl<H: Held> Drop for Rest<H> {
    fn drop(&mut self) {
        self.change(|watch, held| watch.ended(held));
    }
}

impl<H: Held> fmt::Debug for Rest<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rest")
            .field("watch", &self.watch)
            .finish_non_exhaustive()
    }
}
