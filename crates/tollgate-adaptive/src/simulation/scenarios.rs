//! The scenarios by which algorithms are scored: by default, three times as many calls as can be
//! served.

use std::time::Duration;

use super::{Phase, Scenario, Service};

const MS: Duration = Duration::from_millis(1);
const FIXED: Service = Service::Fixed(Duration::from_millis(10));
const EXPONENTIAL: Service = Service::Exponential(Duration::from_millis(10));

const fn lognormal(mean: Duration, deviation: f64) -> Service {
    Service::Lognormal { mean, deviation }
}

impl Scenario {
    fn new(name: &'static str, about: &'static str) -> Self {
        Self {
            name,
            about,
            service: FIXED,
            arrivals: 0.0,
            clients: 1,
            timeout: Duration::from_secs(1),
            phases: Vec::new(),
            settle: Duration::from_secs(10),
        }
    }

    /// Sets the calls a second, and the service time of each.
    fn calls(self, arrivals: f64, service: Service) -> Self {
        Self {
            arrivals,
            service,
            ..self
        }
    }

    /// Sets the phases, each as seconds, servers and speed.
    fn phases<const N: usize>(self, phases: [(u64, u32, f64); N]) -> Self {
        let phase = |(seconds, servers, speed)| Phase {
            lasts: Duration::from_secs(seconds),
            servers,
            speed,
        };
        Self {
            phases: phases.map(phase).to_vec(),
            ..self
        }
    }

    /// All scenarios by which algorithms are scored.
    pub fn all() -> Vec<Self> {
        let mut all = Self::server_scenarios();
        all.extend(Self::call_scenarios());
        all
    }

    /// With servers that come and go, or are shared.
    fn server_scenarios() -> Vec<Self> {
        let large = Self {
            settle: Duration::from_secs(5),
            ..Self::new("large", "64 servers, exponential around 10 ms")
        };
        let together = Self {
            clients: 4,
            ..Self::new("together", "4 clients with a limit each share 16 servers")
        };
        vec![
            Self::new("fixed", "8 servers, 10 ms a call")
                .calls(2_400.0, FIXED)
                .phases([(25, 8, 1.0)]),
            Self::new("mmc", "8 servers, exponential around 10 ms")
                .calls(2_400.0, EXPONENTIAL)
                .phases([(25, 8, 1.0)]),
            Self::new("mg1", "one server, lognormal around 2 ms")
                .calls(1_500.0, lognormal(2 * MS, 1.5))
                .phases([(25, 1, 1.0)]),
            large.calls(19_200.0, EXPONENTIAL).phases([(9, 64, 1.0)]),
            Self::new("light", "half as many calls as 8 servers can serve")
                .calls(400.0, EXPONENTIAL)
                .phases([(25, 8, 1.0)]),
            Self::new("halves", "4 of 8 servers fail")
                .calls(2_400.0, EXPONENTIAL)
                .phases([(20, 8, 1.0), (20, 4, 1.0)]),
            Self::new("doubles", "8 servers become 16")
                .calls(4_800.0, EXPONENTIAL)
                .phases([(20, 8, 1.0), (20, 16, 1.0)]),
            Self::new("slows", "each server becomes half as fast")
                .calls(2_400.0, EXPONENTIAL)
                .phases([(20, 8, 1.0), (20, 8, 0.5)]),
            Self::new("stalls", "nothing is served for 3 s")
                .calls(2_400.0, EXPONENTIAL)
                .phases([(20, 8, 1.0), (3, 8, 0.0), (20, 8, 1.0)]),
            Self::new("recovers", "6 of 8 servers fail, and come back")
                .calls(2_400.0, FIXED)
                .phases([(20, 8, 1.0), (20, 2, 1.0), (20, 8, 1.0)]),
            together.calls(4_800.0, EXPONENTIAL).phases([(40, 16, 1.0)]),
        ]
    }

    /// With calls that become slower, or take an uneven time.
    fn call_scenarios() -> Vec<Self> {
        let bimodal = Service::Bimodal {
            quick: 5 * MS,
            slow: 200 * MS,
            part: 0.05,
        };
        vec![
            Self::new("slower", "20 ms become 200 ms, with servers for all")
                .calls(600.0, Service::Exponential(20 * MS))
                .phases([(20, 400, 1.0), (30, 400, 0.1)]),
            Self::new("milder", "20 ms become 50 ms, with servers for all")
                .calls(600.0, Service::Exponential(20 * MS))
                .phases([(20, 400, 1.0), (30, 400, 0.4)]),
            Self::new("tenfold", "64 servers, 5 ms become 50 ms")
                .calls(3_840.0, Service::Exponential(5 * MS))
                .phases([(20, 64, 1.0), (30, 64, 0.1)]),
            Self::new("twentyfold", "64 servers, 5 ms become 100 ms")
                .calls(1_920.0, Service::Fixed(5 * MS))
                .phases([(20, 64, 1.0), (30, 64, 0.05)]),
            Self::new("bimodal", "8 servers, 5 ms, but 200 ms for one call of 20")
                .calls(1_600.0, bimodal)
                .phases([(60, 8, 1.0)]),
            Self::new(
                "tail",
                "8 servers, lognormal around 10 ms, with a long tail",
            )
            .calls(2_400.0, lognormal(10 * MS, 3.0))
            .phases([(40, 8, 1.0)]),
            Self::new(
                "turns",
                "32 servers, 10 ms and 40 ms by turns, a minute each",
            )
            .calls(1_600.0, EXPONENTIAL)
            .phases([1.0, 0.25, 1.0, 0.25].map(|speed| (60, 32, speed))),
        ]
    }
}
