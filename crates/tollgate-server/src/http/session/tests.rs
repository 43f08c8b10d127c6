//! What is left behind by a client that asks and leaves at once.

use std::sync::mpsc;

use futures_util::FutureExt;
use tollgate::clock::Manual;
use tollgate_engine::backend::Memory;
use tollgate_engine::{Engine, Policy};

use super::*;
use crate::credentials::Credentials;
use crate::decision_service::InitialLimits;
use crate::settings::Settings;
use crate::telemetry::Telemetry;
use crate::throttle_keys::LocalThrottleKeys;

#[test]
fn who_asks_for_metrics_and_leaves_keeps_the_turn_until_they_are_read() {
    let clock = Manual::new();
    let memory = Memory::builder().clock(clock.clone()).wall(clock.clone());
    let engine = Engine::new(Policy::default(), memory.build()).expect("a policy");
    let cells = LocalThrottleKeys::new(10, clock).expect("a table");
    let settings = Settings::default();
    let monitor = Telemetry::new(&settings);
    let (credentials, _) = Credentials::load(&settings, None, None, monitor.health.clone());
    let limits = InitialLimits {
        engine,
        cells,
        whole: Policy::default(),
    };
    let service = Arc::new(Service::new(limits, credentials, monitor, settings));
    let errors = service
        .monitor
        .errors
        .source(Protocol::Metrics, Peer::Disconnected);
    let mut session = HttpSession::new(
        Arc::clone(&service),
        Protocol::Metrics,
        Peer::Disconnected,
        errors,
    );
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.max_blocking_threads(1).build().expect("a runtime");
    runtime.block_on(async {
        // The only thread that could render them is busy.
        let (go, wait) = mpsc::channel::<()>();
        let busy = spawn_blocking(move || wait.recv());
        assert!(session.metrics(None).now_or_never().is_none());
        assert!(service.monitor.scrape_lock.try_lock().is_err());
        drop(go);
        let _ = busy.await.expect("no panic");
        drop(service.monitor.scrape_lock.lock().await);
        session.metrics(None).await.expect("metrics");
        assert!(!session.answer.body.is_empty());
    });
}
