//! `Model`: the machine to simulate: its topology, and a table of costs with their origins.
//!
//! Plain data, made by programs or (feature `serde`) read from files in which a cost without an
//! origin and an unknown key are errors. Used by `Simulation`, which checks it first. Invariant:
//! nothing here depends on what is run; constants are fixed once per machine, never per experiment.

pub(crate) mod prices;
pub(crate) mod time;
pub(crate) mod transfer;

use std::borrow::Cow;
use std::format;
use std::string::String;

use millrace_machine::Stage;
use transfer::Transfer;

/// CPUs that a model may have at most.
pub const CPUS_MAX: u32 = 256;
/// Sockets that a model may have at most.
pub const SOCKETS_MAX: u32 = 32;

/// A time, and where it comes from.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct Cost {
    /// Nanoseconds, 0 to 1e9.
    pub ns: f64,
    /// Publication, measurement or reasoning that it is taken from.
    pub origin: Cow<'static, str>,
}

/// A bandwidth, and where it comes from.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct Rate {
    /// Bytes in a nanosecond (that is, GB/s) in one direction, above 0.
    pub bytes_per_ns: f64,
    /// Publication, measurement or reasoning that it is taken from.
    pub origin: Cow<'static, str>,
}

/// A fraction, and where it comes from.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct Share {
    /// 0 to 1.
    pub share: f64,
    /// Publication, measurement or reasoning that it is taken from.
    pub origin: Cow<'static, str>,
}

/// A number of cache lines, and where it comes from.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct Lines {
    /// Lines, 1 to 64.
    pub lines: u32,
    /// Publication, measurement or reasoning that it is taken from.
    pub origin: Cow<'static, str>,
}

/// How often something happens in a row, and where that comes from.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct Turns {
    /// Times, 0 to 1,000.
    pub turns: u32,
    /// Publication, measurement or reasoning that it is taken from.
    pub origin: Cow<'static, str>,
}

impl CacheCosts {
    /// Lines are handed on in the order in which they are asked for.
    #[must_use]
    pub fn in_order() -> Turns {
        Turns { turns: 0, origin: Cow::Borrowed("not given") }
    }

    /// As real machines are; no file can say otherwise.
    #[cfg(feature = "serde")]
    fn one_at_a_time() -> bool {
        true
    }
}

impl Cost {
    /// A cost of so many nanoseconds.
    #[must_use]
    pub fn new(ns: f64, origin: &'static str) -> Self {
        Cost { ns, origin: Cow::Borrowed(origin) }
    }
}

/// Hyper-threads of every core. Siblings have neighbouring numbers: with two, CPUs 0 and 1 are
/// core 0.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct HyperThreads {
    /// CPUs of a core, 1 to 8; 1 is a core without hyper-threads.
    pub per_core: u32,
    /// What a core does with all its threads busy, times what it does with one.
    pub gain: Factor,
}

/// A factor, and where it comes from.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct Factor {
    /// 1 to 8.
    pub factor: f64,
    /// Publication, measurement or reasoning that it is taken from.
    pub origin: Cow<'static, str>,
}

/// How the sockets of one board are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum Wiring {
    /// A link from each socket to each other one: all are one hop apart.
    #[default]
    Full,
    /// A link to the two neighbours in number; all others are two hops away.
    Ring,
    /// One bus for all sockets: every transfer occupies it, all are one hop apart, and
    /// [`CacheCosts::link`] is its bandwidth.
    Bus,
}

/// A machine.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct Model {
    /// For reports.
    pub name: String,
    /// Cores of a socket, which is a NUMA node; CPUs are numbered in the order of sockets. A core
    /// is one CPU unless it has hyper-threads.
    pub cores_per_socket: u32,
    /// Sockets, 1 to [`SOCKETS_MAX`], and at most [`CPUS_MAX`] CPUs in all.
    pub sockets: u32,
    /// Sockets of a board; 0 if there is only one board.
    #[cfg_attr(feature = "serde", serde(default))]
    pub sockets_per_board: u32,
    /// How the sockets of a board are joined.
    #[cfg_attr(feature = "serde", serde(default))]
    pub wiring: Wiring,
    /// Hyper-threads: none unless given.
    #[cfg_attr(feature = "serde", serde(default))]
    pub hyper_threads: Option<HyperThreads>,
    /// Clock frequency, for reports: all costs are in nanoseconds.
    pub ghz: f64,
    /// What memory accesses cost.
    pub cache: CacheCosts,
    /// What instructions cost that are not plain.
    pub cpu: CpuCosts,
    /// What threads cost.
    pub threads: ThreadCosts,
    /// What the program's own work costs.
    pub work: WorkCosts,
}

/// Costs of memory accesses.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct CacheCosts {
    /// A line that the CPU's own cache holds.
    pub l1: Cost,
    /// A line from another core of the socket.
    pub socket: Transfer,
    /// A line from a socket one hop away.
    pub one_hop: Transfer,
    /// A line from a socket two hops away on the same board.
    pub two_hops: Transfer,
    /// A line from another board.
    pub board: Transfer,
    /// A line that no cache holds.
    pub memory: Cost,
    /// Bandwidth of the link between two sockets of a board.
    pub link: Rate,
    /// Bandwidth of the link between two boards.
    pub board_link: Rate,
    /// Part of the re-reads of a ticket lock's line by those that spin on it which come before the
    /// next holder's; at 0 they take no time behind a CPU that joins them either.
    pub spinner: Share,
    /// How often a line that CPUs of several sockets wait for goes on to one of the same socket
    /// before it must leave; 0 unless given: it goes in order of request.
    #[cfg_attr(feature = "serde", serde(default = "CacheCosts::in_order"))]
    pub near: Turns,
    /// Whether CPUs that want a line at once get it one after the other, as on every real machine.
    /// Without it each gets the line as fast as if it alone wanted it: to see what hangs on that.
    #[cfg_attr(feature = "serde", serde(skip, default = "CacheCosts::one_at_a_time"))]
    pub queueing: bool,
}

/// Costs of instructions.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct CpuCosts {
    /// What a locked instruction costs more than a plain store.
    pub locked: Cost,
    /// A full memory fence.
    pub fence: Cost,
    /// Reading the clock.
    pub clock_read: Cost,
    /// Time between two looks of a CPU that polls something other than memory.
    pub spin_poll: Cost,
}

/// Costs of threads and of the operating system.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct ThreadCosts {
    /// Entering and leaving the kernel.
    pub system_call: Cost,
    /// A CPU that goes on with another thread than it last ran.
    pub context_switch: Cost,
    /// Waking a thread: to the waker.
    pub wake: Cost,
    /// From the waking to the first instruction of the thread woken, if its CPU is idle.
    pub wake_latency: Cost,
    /// Sending an inter-processor interrupt.
    pub interrupt_send: Cost,
    /// Being interrupted by one.
    pub interrupt_handle: Cost,
    /// How long a thread runs while others wait for its CPU.
    pub time_slice: Cost,
    /// Whether a thread that wakes may take its CPU from another: not, unless given. Without it
    /// threads take turns in the order in which they came.
    #[cfg_attr(feature = "serde", serde(default))]
    pub fairness: Option<Fairness>,
}

/// A scheduler that goes by how long each thread has run.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct Fairness {
    /// A thread that wakes takes the CPU from one that has run for so much longer.
    pub granularity: Cost,
    /// A thread falls behind by so much at most while it sleeps.
    pub credit: Cost,
}

/// Costs of `Machine::work`, per unit.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct WorkCosts {
    /// [`Stage::Interface`].
    pub interface: Cost,
    /// [`Stage::Submit`].
    pub submit: Cost,
    /// [`Stage::Insert`].
    pub insert: Cost,
    /// [`Stage::Dispatch`].
    pub dispatch: Cost,
    /// [`Stage::Driver`].
    pub driver: Cost,
    /// [`Stage::Complete`].
    pub complete: Cost,
    /// [`Stage::Search`]; 0 unless given.
    #[cfg_attr(feature = "serde", serde(default = "WorkCosts::no_search"))]
    pub search: Cost,
    /// Lines that each holder of the single-queue design's lock writes under it, where the
    /// program's own value has fewer: what that lock protected in the kernel modelled.
    pub request_queue: Lines,
    /// Greatest deviation of a charge, so that CPUs do not move in lockstep; drawn from the seed.
    pub jitter: Share,
}

impl WorkCosts {
    /// Nothing is searched on a machine that does not say what it costs.
    #[must_use]
    pub fn no_search() -> Cost {
        Cost::new(0.0, "not given")
    }
}

/// What is wrong with a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelError {
    /// The key, as in a file: `cache.l1.ns`.
    pub key: &'static str,
    /// What it must be, and what it is.
    pub problem: String,
}

impl core::fmt::Display for ModelError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "machine model: {}: {}", self.key, self.problem)
    }
}

impl std::error::Error for ModelError {}

fn check(
    key: &'static str,
    good: bool,
    problem: impl FnOnce() -> String,
) -> Result<(), ModelError> {
    if good { Ok(()) } else { Err(ModelError { key, problem: problem() }) }
}

fn origin_given(key: &'static str, origin: &str) -> Result<(), ModelError> {
    check(key, !origin.trim().is_empty(), || String::from("the origin must say where it is from"))
}

impl Model {
    /// A machine of round numbers, for tests and for exploring: no real machine.
    #[must_use]
    pub fn plain(sockets: u32, cores_per_socket: u32) -> Model {
        let cost = |ns| Cost::new(ns, "a round number");
        let transfer = |ns| Transfer::new(ns, "a round number");
        let rate = |bytes_per_ns| Rate { bytes_per_ns, origin: Cow::Borrowed("a round number") };
        let share = |share| Share { share, origin: Cow::Borrowed("a round number") };
        Model {
            name: String::from("plain"),
            cores_per_socket,
            sockets,
            sockets_per_board: 0,
            wiring: Wiring::Full,
            hyper_threads: None,
            ghz: 2.5,
            cache: CacheCosts {
                l1: cost(2.0),
                socket: transfer(40.0),
                one_hop: transfer(100.0),
                two_hops: transfer(150.0),
                board: transfer(250.0),
                memory: cost(80.0),
                link: rate(12.0),
                board_link: rate(6.0),
                spinner: share(0.5),
                near: CacheCosts::in_order(),
                queueing: true,
            },
            cpu: CpuCosts {
                locked: cost(8.0),
                fence: cost(10.0),
                clock_read: cost(10.0),
                spin_poll: cost(50.0),
            },
            threads: ThreadCosts {
                system_call: cost(100.0),
                context_switch: cost(1_000.0),
                wake: cost(500.0),
                wake_latency: cost(2_000.0),
                interrupt_send: cost(300.0),
                interrupt_handle: cost(700.0),
                time_slice: cost(1_000_000.0),
                fairness: None,
            },
            work: WorkCosts {
                interface: cost(50.0),
                submit: cost(50.0),
                insert: cost(20.0),
                dispatch: cost(50.0),
                driver: cost(30.0),
                complete: cost(50.0),
                search: cost(0.0),
                request_queue: Lines { lines: 1, origin: Cow::Borrowed("a round number") },
                jitter: share(0.1),
            },
        }
    }

    /// CPUs in all.
    #[must_use]
    pub fn cpus(&self) -> u32 {
        self.sockets.saturating_mul(self.cpus_per_socket())
    }

    /// CPUs of a socket: its cores' hyper-threads, or its cores.
    #[must_use]
    pub fn cpus_per_socket(&self) -> u32 {
        let per_core = self.hyper_threads.as_ref().map_or(1, |threads| threads.per_core);
        self.cores_per_socket.saturating_mul(per_core)
    }

    /// What a unit of a stage costs.
    #[must_use]
    pub fn work_of(&self, stage: Stage) -> &Cost {
        let work = &self.work;
        match stage {
            Stage::Interface => &work.interface,
            Stage::Submit => &work.submit,
            Stage::Insert => &work.insert,
            Stage::Dispatch => &work.dispatch,
            Stage::Driver => &work.driver,
            Stage::Complete => &work.complete,
            Stage::Search => &work.search,
        }
    }

    /// Checks every value.
    ///
    /// # Errors
    /// The first key whose value cannot be.
    pub fn validate(&self) -> Result<(), ModelError> {
        let is_name = !self.name.is_empty() && !self.name.contains(char::is_control);
        check("name", is_name, || "must be a word or some, without control characters".into())?;
        let (sockets, cores) = (self.sockets, self.cores_per_socket);
        check("sockets", (1..=SOCKETS_MAX).contains(&sockets), || {
            format!("must be 1 to {SOCKETS_MAX}, is {sockets}")
        })?;
        check("cores_per_socket", cores > 0 && self.cpus() <= CPUS_MAX, || {
            format!("{sockets} x {cores} CPUs: must be 1 to {CPUS_MAX} in all")
        })?;
        let board = self.sockets_per_board;
        check("sockets_per_board", board == 0 || sockets % board == 0, || {
            format!("must divide the {sockets} sockets, is {board}")
        })?;
        check("ghz", (0.01..100.0).contains(&self.ghz), || {
            format!("must be at least 0.01 and below 100, is {:e}", self.ghz)
        })?;
        for (key, cost) in self.costs() {
            check(key, (0.0..=1e9).contains(&cost.ns), || {
                format!("ns must be 0 to 1e9, is {}", cost.ns)
            })?;
            origin_given(key, &cost.origin)?;
        }
        for (key, transfer) in self.transfers() {
            for (part, ns) in transfer.given() {
                check(key, (0.0..=1e9).contains(&ns), || {
                    format!("{part} must be 0 to 1e9, is {ns}")
                })?;
            }
            origin_given(key, &transfer.origin)?;
        }
        self.validate_rest()
    }

    fn transfers(&self) -> [(&'static str, &Transfer); 4] {
        let CacheCosts { socket, one_hop, two_hops, board, .. } = &self.cache;
        [
            ("cache.socket", socket),
            ("cache.one_hop", one_hop),
            ("cache.two_hops", two_hops),
            ("cache.board", board),
        ]
    }

    fn validate_rest(&self) -> Result<(), ModelError> {
        let cache = &self.cache;
        for (key, rate) in [("cache.link", &cache.link), ("cache.board_link", &cache.board_link)] {
            check(key, rate.bytes_per_ns > 0.001 && rate.bytes_per_ns < 1e6, || {
                format!("bytes_per_ns must be above 0.001, is {}", rate.bytes_per_ns)
            })?;
            origin_given(key, &rate.origin)?;
        }
        for (key, share) in [("cache.spinner", &cache.spinner), ("work.jitter", &self.work.jitter)]
        {
            check(key, (0.0..=1.0).contains(&share.share), || {
                format!("share must be 0 to 1, is {}", share.share)
            })?;
            origin_given(key, &share.origin)?;
        }
        let Turns { turns, origin } = &cache.near;
        check("cache.near", *turns <= 1_000, || format!("turns must be 0 to 1000, is {turns}"))?;
        origin_given("cache.near", origin)?;
        let Lines { lines, origin } = &self.work.request_queue;
        check("work.request_queue", (1..=64).contains(lines), || {
            format!("lines must be 1 to 64, is {lines}")
        })?;
        origin_given("work.request_queue", origin)?;
        if let Some(Fairness { granularity, credit }) = &self.threads.fairness {
            for (key, cost) in
                [("threads.fairness.granularity", granularity), ("threads.fairness.credit", credit)]
            {
                check(key, (0.0..=1e9).contains(&cost.ns), || {
                    format!("ns must be 0 to 1e9, is {}", cost.ns)
                })?;
                origin_given(key, &cost.origin)?;
            }
        }
        if let Some(HyperThreads { per_core, gain }) = &self.hyper_threads {
            check("hyper_threads.per_core", (1..=8).contains(per_core), || {
                format!("must be 1 to 8, is {per_core}")
            })?;
            check(
                "hyper_threads.gain",
                (1.0..=f64::from(*per_core)).contains(&gain.factor),
                || format!("factor must be 1 to {per_core}, is {}", gain.factor),
            )?;
            origin_given("hyper_threads.gain", &gain.origin)?;
        }
        let poll_ns = self.cpu.spin_poll.ns;
        check("cpu.spin_poll", poll_ns >= 1.0, || format!("ns must be at least 1, is {poll_ns}"))?;
        let slice_ns = self.threads.time_slice.ns;
        check("threads.time_slice", slice_ns >= 1_000.0, || {
            format!("ns must be at least 1000, is {slice_ns}")
        })
    }

    fn costs(&self) -> [(&'static str, &Cost); 20] {
        let (cache, cpu, threads, work) = (&self.cache, &self.cpu, &self.threads, &self.work);
        [
            ("cache.l1", &cache.l1),
            ("cache.memory", &cache.memory),
            ("cpu.locked", &cpu.locked),
            ("cpu.fence", &cpu.fence),
            ("cpu.clock_read", &cpu.clock_read),
            ("cpu.spin_poll", &cpu.spin_poll),
            ("threads.system_call", &threads.system_call),
            ("threads.context_switch", &threads.context_switch),
            ("threads.wake", &threads.wake),
            ("threads.wake_latency", &threads.wake_latency),
            ("threads.interrupt_send", &threads.interrupt_send),
            ("threads.interrupt_handle", &threads.interrupt_handle),
            ("threads.time_slice", &threads.time_slice),
            ("work.interface", &work.interface),
            ("work.submit", &work.submit),
            ("work.insert", &work.insert),
            ("work.dispatch", &work.dispatch),
            ("work.driver", &work.driver),
            ("work.complete", &work.complete),
            ("work.search", &work.search),
        ]
    }
}
