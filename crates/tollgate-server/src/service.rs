//! What all protocols share: the engine, the keys that bring their limits along, and the bounds.

use std::convert::Infallible;
use std::fmt::{self, Write};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use smallvec::SmallVec;
use tollgate::clock::{Clock, Wall};
use tollgate_engine::backend::{Backend, Gift, LimitKind, Memory};
use tollgate_engine::engine::DescriptorRequest;
use tollgate_engine::verdict::Permits;
use tollgate_engine::{Conditions, Engine, Facts, Policy, Verdict};
pub(crate) use tollgate_http::Answered;
use tollgate_http::Dialect;
use tollgate_redis::Redis;

use crate::admin::Admin;
use crate::bounds::Bounds;
use crate::cells::{Cells, Here, There};
use crate::denials::{Denials, Told};
use crate::drain::Closing;
use crate::guesses::Guesses;
use crate::health::Health;
use crate::holds::{Full, Holds, Room};
use crate::log::Log;
use crate::measured::Measured;
use crate::metrics::Kept;
use crate::protocol_errors::ProtocolErrors;
use crate::reload::Reloader;
use crate::renew::Renewed;
use crate::rls::{RlsClosed, Waiting};
use crate::secret::Secret;
use crate::settings::{HttpDate, Settings, ShadowAnswers};
use crate::state::Progress;
use crate::store_events::StoreEvents;
use crate::vitals::{StoreProbes, StoreSight};

/// A store is given so long to answer when nobody asks it anything else.
const MEET_STORE: Duration = Duration::from_secs(1);

/// What decides, for every protocol.
pub(crate) struct Service<B: Store> {
    pub(crate) engine: Engine<B>,
    pub(crate) cells: B::Cells,
    pub(crate) bounds: Bounds,
    pub(crate) holds: Holds,
    /// The header fields that tell what is left.
    pub(crate) dialects: Vec<Dialect>,
    /// Whether they name rules in shadow, too.
    pub(crate) shadow_answers: ShadowAnswers,
    /// The same for Envoy to add.
    pub(crate) rls_headers: Vec<Dialect>,
    /// What Envoy is told of a decision that could not be made.
    pub(crate) rls_closed: RlsClosed,
    /// How many count apart: limits that come along with a request are divided by it, as those of the policy are.
    pub(crate) replicas: u32,
    /// What an operator has to tell on RESP.
    pub(crate) password: Option<Secret>,
    /// What everybody has to tell on RESP, if it isn't the operators'.
    pub(crate) client_password: Option<Secret>,
    /// What an operator has to tell on HTTP.
    pub(crate) token: Option<Secret>,
    /// What everybody has to tell on HTTP, if it isn't the operators'.
    pub(crate) client_token: Option<Secret>,
    /// Whether answers of HTTP have a date.
    pub(crate) http_date: HttpDate,
    /// What was sent instead of secrets.
    pub(crate) guesses: Guesses,
    /// Who may operate it.
    pub(crate) admin: Admin,
    /// All that is kept in files and read again.
    pub(crate) renewed: Renewed,
    /// Where it says what happens to it.
    pub(crate) log: Log,
    /// Whether it should be asked.
    pub(crate) health: Health,
    /// Says some of the refusals.
    pub(crate) denials: Arc<Denials>,
    /// What is measured of clients.
    pub(crate) measured: Measured,
    /// What clients do that their protocol doesn't allow.
    pub(crate) errors: Arc<ProtocolErrors>,
    /// Calls of gRPC whose messages aren't complete.
    pub(crate) waiting: Arc<Waiting>,
    /// One scrape at a time: each looks at all keys.
    pub(crate) scraping: Arc<tokio::sync::Mutex<()>>,
    /// Whether clients' connections end.
    pub(crate) closing: Closing,
    /// The policy in force, before it was divided.
    pub(crate) whole: Mutex<Arc<Policy>>,
    /// Where the policy comes from.
    pub(crate) reloader: Reloader,
    /// How saving goes, if it is saved.
    pub(crate) state: Progress,
    /// Whether its store was there when it was asked last.
    pub(crate) store_sight: StoreProbes,
}

/// So many of those that are refused most are told.
const TOP: usize = 128;

impl<B: Store> Service<B> {
    /// What decides by a policy, as these settings say.
    pub(crate) fn new(
        (engine, whole, cells): (Engine<B>, Policy, B::Cells),
        (admin, renewed): (Admin, Renewed),
        settings: Settings,
    ) -> Self {
        let health = settings.store_events.as_ref().map(StoreEvents::health);
        let denials = Arc::new(Denials::new(settings.log.clone(), settings.log_denials));
        let engine = engine.with_observer(Told(Arc::clone(&denials)));
        let errors = ProtocolErrors::new(settings.log.clone());
        let engine = engine.with_tallies(settings.limiters).with_top(TOP);
        Self {
            engine: engine.with_bounds(tollgate_engine::Bounds {
                descriptors: settings.bounds.descriptors,
                ..tollgate_engine::Bounds::default()
            }),
            cells,
            holds: Holds::new(settings.bounds.holds),
            bounds: settings.bounds,
            dialects: settings.dialects,
            shadow_answers: settings.shadow_answers,
            rls_headers: settings.rls_headers,
            rls_closed: settings.rls_closed,
            replicas: settings.replicas.max(1),
            password: settings.password,
            client_password: settings.client_password,
            token: settings.token,
            client_token: settings.client_token,
            guesses: Guesses::new(settings.wrong_secrets),
            http_date: settings.http_date,
            admin,
            renewed,
            log: settings.log,
            health: health.unwrap_or_default(),
            denials,
            measured: Measured::new(),
            errors,
            waiting: Arc::default(),
            scraping: Arc::default(),
            closing: Closing::default(),
            whole: Mutex::new(Arc::new(whole)),
            reloader: Reloader::new(settings.policy_path),
            state: Progress::default(),
            store_sight: StoreProbes::default(),
        }
    }
}

/// Which limits an answer tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitsTold {
    /// The one that decided.
    Decider,
    /// All that the request met, for header fields.
    All,
}

impl LimitsTold {
    /// Those that these header fields list.
    pub(crate) const fn by(dialects: &[Dialect]) -> Self {
        if dialects.is_empty() {
            Self::Decider
        } else {
            Self::All
        }
    }

    /// On which conditions a request is decided that is told of these.
    pub(crate) const fn conditions(self) -> Conditions<'static> {
        match self {
            Self::Decider => Conditions::new(),
            Self::All => Conditions::new().listing_limits(),
        }
    }

    /// Decides where that may take its time.
    async fn decide<'f, B: Backend<Error = Infallible>>(
        self,
        engine: &Engine<B>,
        facts: &'f Facts<'f>,
    ) -> Verdict<'f> {
        match engine.decide_on(self.conditions(), facts).await {
            Ok(Some(verdict)) => verdict,
            // Only said on the condition that some facts alone are known.
            Ok(None) => {
                let Ok(verdict) = engine.decide_async(facts).await;
                verdict
            }
        }
    }
}

/// Who answers: memory, or a store.
pub(crate) trait Store: Backend<Error = Infallible> + Sized + 'static {
    /// Who keeps keys that bring their limits along.
    type Cells: Cells;

    /// It answers at once, if no rule lets requests wait.
    const IS_HERE: bool;

    /// Decides a request. It waits where its rule says so.
    fn decide<'f>(
        engine: &Engine<Self>,
        facts: &'f Facts<'f>,
        told: LimitsTold,
    ) -> impl Future<Output = Verdict<'f>> + Send;

    /// What metrics show of it.
    fn kept(service: &Service<Self>) -> Kept;

    /// Asks whether it is there, as a request would: without an answer in time, why not.
    fn probe(&self) -> impl Future<Output = Result<(), String>> + Send;
}

impl<C: Clock + 'static, W: Clock + 'static> Store for Memory<C, W> {
    type Cells = Here<C>;
    const IS_HERE: bool = true;

    #[inline]
    async fn decide<'f>(
        engine: &Engine<Self>,
        facts: &'f Facts<'f>,
        told: LimitsTold,
    ) -> Verdict<'f> {
        match told {
            _ if engine.lets_wait() => told.decide(engine, facts).await,
            LimitsTold::Decider => engine.decide(facts),
            LimitsTold::All => engine.decide_listing_limits(facts),
        }
    }

    fn kept(service: &Service<Self>) -> Kept {
        let memory = service.engine.backend();
        let mut tables = memory.tables();
        tables.push(service.cells.table());
        Kept {
            backend: "memory",
            tables,
            in_flight: memory.in_flight(),
            ..Kept::default()
        }
    }

    async fn probe(&self) -> Result<(), String> {
        Ok(())
    }
}

impl Store for Redis {
    type Cells = There;
    const IS_HERE: bool = false;

    async fn decide<'f>(
        engine: &Engine<Self>,
        facts: &'f Facts<'f>,
        told: LimitsTold,
    ) -> Verdict<'f> {
        told.decide(engine, facts).await
    }

    fn kept(service: &Service<Self>) -> Kept {
        let redis = service.engine.backend();
        let store = redis.stats();
        let mut tables = redis.tables();
        tables.push(service.cells.table());
        Kept {
            backend: "redis",
            tables,
            in_flight: store.slots as u64,
            is_without_store: match service.store_sight.at(service.engine.requests()) {
                StoreSight::Answers => false,
                StoreSight::Missing => true,
                StoreSight::AskRequests => redis.fallback_active(),
            },
            store,
        }
    }

    async fn probe(&self) -> Result<(), String> {
        let answered = self.ready(MEET_STORE).await;
        answered.map_err(|error| error.to_string())
    }
}

impl<B: Store> Service<B> {
    /// Decides a request, and keeps what it holds for as long as nobody gives it back. If no more may be held, it is
    /// not decided: a slot that nobody keeps would be free at once.
    pub(crate) async fn check<R>(
        &self,
        facts: &Facts<'_>,
        told: LimitsTold,
        tell: impl FnOnce(&Answered<'_>) -> R,
    ) -> Result<R, Full> {
        // Rare steps are in boxes: every connection has room for the largest step.
        let mut verdict = if self.holds.has_plenty() {
            B::decide(&self.engine, facts, told).await
        } else {
            Box::pin(self.decide_in_room(facts, told)).await?
        };
        if let Verdict::Passed(passed) = &mut verdict
            && let Some(permits) = passed.take_permits()
            && let Err(full) = self.lend(&name_of(facts), permits, None)
        {
            Box::pin(self.take_back(facts)).await;
            return Err(full);
        }
        Ok(tell(&Answered::of(&verdict, verdict.refused().is_none())))
    }

    /// Decides a request once there is room for what it may come to hold, and keeps that.
    async fn decide_in_room<'f>(
        &self,
        facts: &'f Facts<'f>,
        told: LimitsTold,
    ) -> Result<Verdict<'f>, Full> {
        let room = self.room_for(Some(facts), None)?;
        let mut verdict = B::decide(&self.engine, facts, told).await;
        if let Verdict::Passed(passed) = &mut verdict
            && let Some(permits) = passed.take_permits()
            && let Err(full) = self.lend(&name_of(facts), permits, room)
        {
            self.take_back(facts).await;
            return Err(full);
        }
        Ok(verdict)
    }

    /// Decides a request, and leaves it to the caller to keep what it holds.
    pub(crate) async fn decide<R>(
        &self,
        facts: &Facts<'_>,
        told: LimitsTold,
        tell: impl FnOnce(&Answered<'_>) -> R,
    ) -> (R, Option<Permits>) {
        let mut verdict = B::decide(&self.engine, facts, told).await;
        let permits = match &mut verdict {
            Verdict::Passed(passed) => passed.take_permits(),
            Verdict::Refused(_) => None,
        };
        let told = tell(&Answered::of(&verdict, verdict.refused().is_none()));
        (told, permits)
    }

    /// What a request would be told.
    pub(crate) async fn peek<R>(
        &self,
        facts: &Facts<'_>,
        tell: impl FnOnce(&Answered<'_>) -> R,
    ) -> R {
        let Ok(findings) = self.engine.peek_async(facts).await;
        tell(&Answered::of(&findings, findings.decision().is_allowed()))
    }
}

impl<B: Store> Service<B> {
    /// Room for what a request may come to hold by its rules and its trees, before anything is decided; none if there is
    /// plenty, or it needs none.
    #[inline]
    pub(crate) fn room_for(
        &self,
        facts: Option<&Facts<'_>>,
        descriptors: Option<&DescriptorRequest<'_>>,
    ) -> Result<Option<Room<'_>>, Full> {
        if self.holds.has_plenty() {
            return Ok(None);
        }
        let engine = &self.engine;
        let needs_room = facts.is_some_and(|facts| engine.would_hold(facts))
            || descriptors.is_some_and(|request| engine.would_hold_descriptors(request));
        needs_room.then(|| self.holds.reserve()).transpose()
    }

    /// Keeps what a request holds, for a caller that has no name for it but what it asked.
    #[cold]
    pub(crate) fn lend(
        &self,
        name: &[u8],
        permits: Permits,
        room: Option<Room<'_>>,
    ) -> Result<(), Full> {
        let held = (permits, self.bounds.hold_time);
        self.holds.keep(name, held, room)
    }

    /// Takes back what a request was charged that can't run, and whose permits were cancelled. What others hold isn't
    /// touched.
    #[cold]
    pub(crate) async fn take_back(&self, facts: &Facts<'_>) {
        let Ok(_) = self.engine.refund_cancelled_async(facts).await;
    }

    /// Gives back what a request like this cost, and ends the oldest that one holds without a name.
    pub(crate) async fn refund(&self, facts: &Facts<'_>) -> Gift {
        let Ok(gift) = match self.holds.take(&name_of(facts)) {
            Some(permits) => {
                drop(permits);
                self.engine.refund_dropped_async(facts).await
            }
            None => self.engine.refund_async(facts).await,
        };
        gift
    }

    /// Forgets what requests like this have spent.
    pub(crate) async fn reset(&self, facts: &Facts<'_>) -> Gift {
        let Ok(gift) = self.engine.forget_async(facts).await;
        gift
    }
}

/// What an operator is told whose gift a store couldn't be told of.
pub(crate) const LOST: &str =
    "the store can't be asked, so it isn't done, or not everywhere: ask again once it can";

/// What a request without a name is known by: its facts, in one order whatever order they come in.
pub(crate) fn name_of(facts: &Facts<'_>) -> Vec<u8> {
    let mut pairs: Vec<_> = facts.iter().collect();
    pairs.sort_unstable();
    let mut name = vec![b'f'];
    for text in pairs.into_iter().flat_map(|(fact, value)| [fact, value]) {
        name.extend((text.len() as u64).to_le_bytes());
        name.extend(text.as_bytes());
    }
    name
}

/// The limit of a rule that denied a request, as the policy says it; none if it passed, or no limit did.
pub(crate) fn limited_by(answered: &Answered<'_>) -> Option<LimitText> {
    let limit = answered.limit().filter(|_| !answered.is_allowed);
    limit.map(LimitText::of)
}

/// A limit as a policy says it, `100/m`. Denials may be very many, so it asks for no memory unless it is long.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LimitText(SmallVec<[u8; 40]>);

impl LimitText {
    pub(crate) fn of(limit: &LimitKind) -> Self {
        let mut text = Self::default();
        // Bytes take whatever is written.
        let _ = write!(text, "{limit}");
        text
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl Write for LimitText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// The time, for the one dialect that tells it.
pub(crate) fn unix_now(dialects: &[Dialect]) -> u64 {
    if dialects.contains(&Dialect::Github) {
        Wall.now().as_nanos() / 1_000_000_000
    } else {
        0
    }
}
