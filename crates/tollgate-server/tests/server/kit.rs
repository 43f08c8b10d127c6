//! A service on free ports, a clock that the test moves, and clients that send raw bytes.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use tokio::runtime::{self, Runtime};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tollgate::clock::Manual;
use tollgate_engine::Policy;
use tollgate_engine::backend::Memory;
use tollgate_engine::document::Format;
use tollgate_redis::{Redis, RedisBuilder};
use tollgate_server::{Address, DateHeader, Secret, Server, Settings, StartError};
use tollgate_testkit::allocation_counter::allocation_count;
use tollgate_testkit::temp_folder::TempFolder;

/// A service that runs in a runtime of its own, until it is dropped.
pub(crate) struct Running {
    pub(crate) clock: Arc<Manual>,
    pub(crate) server: Option<Server>,
    /// Its own, if time stands still there.
    time: Option<Time>,
    runtime: Runtime,
}

/// The clock of a runtime on a thread of its own: it moves when a test says so.
struct Time {
    pass: UnboundedSender<(Duration, mpsc::Sender<u64>)>,
    handle: runtime::Handle,
}

impl Time {
    fn of(runtime: Runtime) -> Self {
        let (pass, mut passes) = unbounded_channel::<(Duration, mpsc::Sender<u64>)>();
        let handle = runtime.handle().clone();
        std::thread::spawn(move || {
            runtime.block_on(async {
                // As long as something blocks, time doesn't pass by itself.
                let (over, wait) = mpsc::channel::<()>();
                let still = tokio::task::spawn_blocking(move || wait.recv());
                while let Some((time, done)) = passes.recv().await {
                    tokio::time::advance(time).await;
                    // Whoever waited for this has its turn before more passes.
                    for _ in 0..8 {
                        tokio::task::yield_now().await;
                    }
                    done.send(allocation_count()).expect("a test that waits");
                }
                drop(over);
                still.await.expect("an end").expect_err("nothing was said");
            });
        });
        Self { pass, handle }
    }
}

impl Running {
    /// By a policy, with settings that a test may change.
    pub(crate) fn new(policy: &str, change: impl FnOnce(&mut Settings)) -> Self {
        Self::by(read(policy), change)
    }

    /// A service in memory, by a policy that no single file can express.
    pub(crate) fn by(policy: Policy, change: impl FnOnce(&mut Settings)) -> Self {
        Self::in_memory(policy, change, None)
    }

    fn in_memory(
        policy: Policy,
        change: impl FnOnce(&mut Settings),
        still: Option<Runtime>,
    ) -> Self {
        let clock = Arc::new(Manual::new());
        let memory = Memory::builder()
            .clock(Arc::clone(&clock))
            .wall(Arc::clone(&clock))
            .build();
        let own = Arc::clone(&clock);
        Self::start(clock, policy, change, still, async |policy, settings| {
            Server::in_memory(policy, memory, own, settings).await
        })
    }

    /// The same on a store, whose time is its own.
    pub(crate) fn on_store(policy: &str, url: &str, change: impl FnOnce(&mut Settings)) -> Self {
        let builder = Redis::builder(url).expect("an address");
        // A busy machine may take its time. A store that was killed is noticed at once all the same.
        let builder = builder.timeout(Duration::from_secs(60));
        Self::on_redis(read(policy), builder, Arc::default(), change)
    }

    /// A service on a store, by a policy that no single file can express.
    pub(crate) fn on_store_by(policy: Policy, url: &str) -> Self {
        let builder = Redis::builder(url).expect("an address");
        let builder = builder.timeout(Duration::from_secs(60));
        Self::on_redis(policy, builder, Arc::default(), |_| {})
    }

    /// The same by a clock that the test moves: what a store answers is what memory does, to the microsecond.
    pub(crate) fn on_store_in_time(
        policy: &str,
        url: &str,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let clock = Arc::new(Manual::new());
        let builder = Redis::builder(url)
            .expect("an address")
            .timeout(Duration::from_secs(60))
            // A clock that leaps gives nobody time to renew.
            .permit_ttl(Duration::from_secs(1_000_000))
            // It would tell of the refusal that it knows, of several.
            .deny_cache(0)
            .node_count(1)
            .clock(Arc::clone(&clock));
        Self::on_redis(read(policy), builder, clock, change)
    }

    fn on_redis(
        policy: Policy,
        builder: RedisBuilder,
        clock: Arc<Manual>,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        Self::start(clock, policy, change, None, async |policy, settings| {
            let redis = builder.build().expect("a store");
            Server::on_store(policy, redis, settings).await
        })
    }

    /// In memory, and all times that clients may take are virtual too: they pass by [`Self::pass`].
    pub(crate) fn in_still_time(policy: &str, change: impl FnOnce(&mut Settings)) -> Self {
        let still = runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime");
        Self::in_memory(read(policy), change, Some(still))
    }

    /// Lets time pass for a service in still time. What it has begun to read or write is done before. How often it has
    /// asked for memory until then.
    pub(crate) fn pass(&self, time: Duration) -> u64 {
        let own = self.time.as_ref().expect("still time");
        let (done, wait) = mpsc::channel();
        own.pass.send((time, done)).expect("a runtime");
        wait.recv().expect("time has passed")
    }

    fn start(
        clock: Arc<Manual>,
        policy: Policy,
        change: impl FnOnce(&mut Settings),
        still: Option<Runtime>,
        start: impl AsyncFnOnce(Policy, Settings) -> Result<Server, StartError>,
    ) -> Self {
        let runtime = runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let any: Address = "127.0.0.1:0".parse().expect("an address");
        let mut settings = Settings {
            http: any.clone(),
            grpc: any.clone(),
            resp: any.clone(),
            admin: any,
            // Answers are compared byte by byte, and many tests send what is wrong.
            http_date: DateHeader::Off,
            max_wrong_secrets: 1_000_000,
            ..Settings::default()
        };
        change(&mut settings);
        let started = start(policy, settings);
        let host = still.as_ref().unwrap_or(&runtime);
        let server = host.block_on(started).expect("a service");
        Self {
            clock,
            server: Some(server),
            time: still.map(Time::of),
            runtime,
        }
    }

    fn address(&self, of: impl Fn(&Server) -> Option<Address>) -> SocketAddr {
        match self.server.as_ref().and_then(of) {
            Some(Address::Tcp(address)) => address,
            other => panic!("{other:?} is no port"),
        }
    }

    pub(crate) fn resp(&self) -> Client {
        Client::to(self.resp_address())
    }

    pub(crate) fn resp_address(&self) -> SocketAddr {
        self.address(|server| server.addresses().resp.clone())
    }

    pub(crate) fn http(&self) -> Client {
        Client::to(self.http_address())
    }

    pub(crate) fn http_address(&self) -> SocketAddr {
        self.address(|server| server.addresses().http.clone())
    }

    pub(crate) fn admin(&self) -> Client {
        Client::to(self.admin_address())
    }

    pub(crate) fn admin_address(&self) -> SocketAddr {
        self.address(|server| server.addresses().admin.clone())
    }

    pub(crate) fn metrics(&self) -> Client {
        Client::to(self.address(|server| server.addresses().metrics.clone()))
    }

    pub(crate) fn grpc(&self) -> SocketAddr {
        self.address(|server| server.addresses().grpc.clone())
    }

    /// Does something beside the test.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        doing: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.runtime.spawn(doing)
    }

    /// Does something in the time of a service in still time.
    pub(crate) fn spawn_in_its_time<T: Send + 'static>(
        &self,
        doing: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.time.as_ref().expect("still time").handle.spawn(doing)
    }

    pub(crate) fn block_on<T>(&self, doing: impl Future<Output = T>) -> T {
        self.runtime.block_on(doing)
    }
}

/// A policy of one file.
pub(crate) fn read(policy: &str) -> Policy {
    let read = Policy::from_text(policy, Format::Yaml);
    read.expect("a policy").policy
}

/// A secret as operators keep it: in a file.
pub(crate) fn secret(text: &str) -> Secret {
    // Tests beside this one have secrets, too.
    static MADE: AtomicU32 = AtomicU32::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let folder = TempFolder::new(&format!("secret-{number}"));
    let file = folder.path("secret");
    std::fs::write(&file, text).expect("a file");
    Secret::from_file(&file).expect("a secret")
}

/// A log that a test reads.
#[derive(Clone, Default)]
pub(crate) struct Said(pub(crate) Arc<Mutex<Vec<u8>>>);

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("not poisoned").extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Said {
    /// All output so far.
    pub(crate) fn text(&self) -> String {
        let bytes = self.0.lock().expect("not poisoned").clone();
        String::from_utf8(bytes).expect("text")
    }
}

/// A connection of bytes.
pub(crate) struct Client(pub(crate) TcpStream);

impl Client {
    pub(crate) fn to(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("a connection");
        let long = Some(Duration::from_secs(60));
        stream.set_read_timeout(long).expect("a timeout");
        Self(stream)
    }

    /// Says something, and reads until as much has come.
    pub(crate) fn ask(&mut self, say: &str, length: usize) -> String {
        self.0.write_all(say.as_bytes()).expect("written");
        let mut answer = vec![0; length];
        self.0
            .read_exact(&mut answer)
            .unwrap_or_else(|error| panic!("{say:?}: {error}"));
        String::from_utf8(answer).expect("text")
    }

    /// Says something, and checks what is answered.
    #[track_caller]
    pub(crate) fn expect(&mut self, say: &str, answer: &str) {
        assert_eq!(self.ask(say, answer.len()), answer, "to {say:?}");
    }

    /// Reads until the other side closes, or resets what it hasn't read.
    pub(crate) fn rest(&mut self) -> String {
        String::from_utf8(self.bytes()).expect("text")
    }

    /// The same of any bytes.
    pub(crate) fn bytes(&mut self) -> Vec<u8> {
        let (mut rest, mut bytes) = (Vec::new(), [0; 4_096]);
        loop {
            match self.0.read(&mut bytes) {
                Ok(0) => break,
                Ok(read) => rest.extend(&bytes[..read]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
                Err(error) => panic!("{error}, after {:?}", rest.escape_ascii().to_string()),
            }
        }
        rest
    }

    /// Sends a request of HTTP that closes the connection after it; the status, and all that came.
    pub(crate) fn request(
        &mut self,
        method: &str,
        path: &str,
        fields: &str,
        body: &str,
    ) -> (u16, String) {
        let length = body.len();
        let host = self.0.peer_addr().expect("an address");
        let text = format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{fields}content-length: {length}\r\n\r\n{body}"
        );
        self.0.write_all(text.as_bytes()).expect("written");
        let answer = self.rest();
        let status = answer
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        (
            status.unwrap_or_else(|| panic!("no status: {answer:?}")),
            answer,
        )
    }
}
