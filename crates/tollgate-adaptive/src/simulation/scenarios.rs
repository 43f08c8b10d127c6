//! The scenarios that laws are judged by: three times as many calls as can be served, unless said otherwise.

use std::time::Duration;

use super::{Phase, Scenario, Service};

const TEN_MS: Duration = Duration::from_millis(10);

const fn phase(seconds: u64, servers: u32, speed: f64) -> Phase {
    Phase {
        lasts: Duration::from_secs(seconds),
        servers,
        speed,
    }
}

fn scenario(
    name: &'static str,
    about: &'static str,
    service: Service,
    arrivals: f64,
    phases: &[Phase],
) -> Scenario {
    Scenario {
        name,
        about,
        service,
        arrivals,
        clients: 1,
        timeout: Duration::from_secs(1),
        phases: phases.to_vec(),
        settle: Duration::from_secs(10),
    }
}

/// What makes each scenario.
pub const SCENARIOS: [fn() -> Scenario; 18] = [
    || {
        let service = Service::Fixed(TEN_MS);
        scenario(
            "fixed",
            "8 servers, 10 ms a call",
            service,
            2_400.0,
            &[phase(25, 8, 1.0)],
        )
    },
    || {
        let service = Service::Exponential(TEN_MS);
        scenario(
            "mmc",
            "8 servers, exponential around 10 ms",
            service,
            2_400.0,
            &[phase(25, 8, 1.0)],
        )
    },
    || {
        let service = Service::Lognormal {
            mean: Duration::from_millis(2),
            deviation: 1.5,
        };
        scenario(
            "mg1",
            "one server, lognormal around 2 ms",
            service,
            1_500.0,
            &[phase(25, 1, 1.0)],
        )
    },
    || {
        let service = Service::Exponential(TEN_MS);
        let about = "64 servers, exponential around 10 ms";
        let large = scenario("large", about, service, 19_200.0, &[phase(9, 64, 1.0)]);
        Scenario {
            settle: Duration::from_secs(5),
            ..large
        }
    },
    || {
        let service = Service::Exponential(TEN_MS);
        let about = "half as many calls as 8 servers can serve";
        scenario("light", about, service, 400.0, &[phase(25, 8, 1.0)])
    },
    || {
        let service = Service::Exponential(TEN_MS);
        let phases = [phase(20, 8, 1.0), phase(20, 4, 1.0)];
        scenario("halves", "4 of 8 servers fail", service, 2_400.0, &phases)
    },
    || {
        let service = Service::Exponential(TEN_MS);
        let phases = [phase(20, 8, 1.0), phase(20, 16, 1.0)];
        scenario("doubles", "8 servers become 16", service, 4_800.0, &phases)
    },
    || {
        let service = Service::Exponential(TEN_MS);
        let phases = [phase(20, 8, 1.0), phase(20, 8, 0.5)];
        scenario(
            "slows",
            "each server becomes half as fast",
            service,
            2_400.0,
            &phases,
        )
    },
    || {
        let service = Service::Exponential(TEN_MS);
        let phases = [phase(20, 8, 1.0), phase(3, 8, 0.0), phase(20, 8, 1.0)];
        scenario(
            "stalls",
            "nothing is served for 3 s",
            service,
            2_400.0,
            &phases,
        )
    },
    || {
        let service = Service::Fixed(TEN_MS);
        let phases = [phase(20, 8, 1.0), phase(20, 2, 1.0), phase(20, 8, 1.0)];
        scenario(
            "recovers",
            "6 of 8 servers fail, and come back",
            service,
            2_400.0,
            &phases,
        )
    },
    || Scenario {
        clients: 4,
        ..scenario(
            "together",
            "4 clients with a limit each share 16 servers",
            Service::Exponential(TEN_MS),
            4_800.0,
            &[phase(40, 16, 1.0)],
        )
    },
    || {
        let service = Service::Exponential(Duration::from_millis(20));
        let phases = [phase(20, 400, 1.0), phase(30, 400, 0.1)];
        let about = "20 ms become 200 ms, with servers for all";
        scenario("slower", about, service, 600.0, &phases)
    },
    || {
        let service = Service::Exponential(Duration::from_millis(20));
        let phases = [phase(20, 400, 1.0), phase(30, 400, 0.4)];
        let about = "20 ms become 50 ms, with servers for all";
        scenario("milder", about, service, 600.0, &phases)
    },
    || {
        let service = Service::Exponential(Duration::from_millis(5));
        let phases = [phase(20, 64, 1.0), phase(30, 64, 0.1)];
        let about = "64 servers, 5 ms become 50 ms";
        scenario("tenfold", about, service, 3_840.0, &phases)
    },
    || {
        let service = Service::Fixed(Duration::from_millis(5));
        let phases = [phase(20, 64, 1.0), phase(30, 64, 0.05)];
        let about = "64 servers, 5 ms become 100 ms";
        scenario("twentyfold", about, service, 1_920.0, &phases)
    },
    || {
        let service = Service::Bimodal {
            quick: Duration::from_millis(5),
            slow: Duration::from_millis(200),
            part: 0.05,
        };
        let about = "8 servers, 5 ms, but 200 ms for one call of 20";
        scenario("bimodal", about, service, 1_600.0, &[phase(60, 8, 1.0)])
    },
    || {
        let service = Service::Lognormal {
            mean: TEN_MS,
            deviation: 3.0,
        };
        let about = "8 servers, lognormal around 10 ms, with a long tail";
        scenario("tail", about, service, 2_400.0, &[phase(40, 8, 1.0)])
    },
    || {
        let service = Service::Exponential(TEN_MS);
        let phases = [1.0, 0.25, 1.0, 0.25].map(|speed| phase(60, 32, speed));
        let about = "32 servers, 10 ms and 40 ms by turns, a minute each";
        scenario("turns", about, service, 1_600.0, &phases)
    },
];
