//! `Model`: the machine to simulate: its topology, and a table of costs with their origins.
//!
//! Plain data, created by programs or (feature `serde`) read from files. In files, a cost without
//! an origin and an unknown key are errors. `Simulation` validates a model before use. Invariant:
//! nothing here depends on the program that runs; constants are fixed once for each machine, never
//! for an experiment.

pub(crate) mod prices;
pub(crate) mod time;
pub(crate) mod transfer;

use std::borrow::Cow;
use std::format;
use std::string::String;

use millrace_machine::Stage;
use transfer::Transfer;

/// Maximum number of CPUs of a model.
pub const CPUS_MAX: u32 = 256;
/// Maximum number of CPU sockets of a model.
pub const SOCKETS_MAX: u32 = 32;

/// A duration, and the source of its value.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct Cost {
    /// Duration in nanoseconds, 0 to 1e9.
    pub ns: f64,
    /// Publication, measurement or reasoning from which the value is taken.
    pub origin: Cow<'static, str>,
}

/// A bandwidth, and the source of its value.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct Rate {
    /// Bytes per nanosecond (that is, GB/s) in one direction, above 0.
    pub bytes_per_ns: f64,
    /// Publication, measurement or reasoning from which the value is taken.
    pub origin: Cow<'static, str>,
}

/// A fraction such as [`WorkCosts::jitter`], and the source of its value.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct Share {
    /// Fraction as a number from 0 to 1.
    pub share: f64,
    /// Publication, measurement or reasoning from which the value is taken.
    pub origin: Cow<'static, str>,
}

/// A number of cache lines that a step touches, such as [`WorkCosts::request_queue`], and the
/// source of this number.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct Lines {
    /// Number of cache lines, 1 to 64.
    pub lines: u32,
    /// Publication, measurement or reasoning from which the value is taken.
    pub origin: Cow<'static, str>,
}

/// Maximum number of consecutive transfers of a cache line within one socket, and the source of
/// this number.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct Turns {
    /// Maximum number of consecutive transfers of a cache line within one socket, 0 to 1,000.
    pub turns: u32,
    /// Publication, measurement or reasoning from which the value is taken.
    pub origin: Cow<'static, str>,
}

impl CacheCosts {
    /// Returns the default of [`CacheCosts::near`]: 0, which gives a cache line to the CPUs in
    /// order of request, without preference for CPUs of the same socket.
    #[must_use]
    pub fn in_order() -> Turns {
        Turns { turns: 0, origin: Cow::Borrowed("not given") }
    }

    #[cfg(feature = "serde")]
    fn one_at_a_time() -> bool {
        true
    }
}

impl Cost {
    /// Creates a cost of `ns` nanoseconds.
    #[must_use]
    pub fn new(ns: f64, origin: &'static str) -> Self {
        Cost { ns, origin: Cow::Borrowed(origin) }
    }
}

/// Hyper-threading, the same for every core. The CPUs of a core have consecutive numbers: with two
/// CPUs per core, CPUs 0 and 1 are core 0.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct HyperThreads {
    /// CPUs per core, 1 to 8; 1 means no hyper-threads.
    pub per_core: u32,
    /// Throughput of a core whose threads are all busy, relative to one busy thread.
    pub gain: Factor,
}

/// A factor such as [`HyperThreads::gain`], and the source of its value.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct Factor {
    /// Number by which a quantity is multiplied, from 1 to 8. For example, a gain of 1.25 means 25
    /// percent more throughput.
    pub factor: f64,
    /// Publication, measurement or reasoning from which the value is taken.
    pub origin: Cow<'static, str>,
}

/// Wiring between the sockets of one board.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(rename_all = "lowercase"))]
pub enum Wiring {
    /// Each pair of sockets has a link: all are one hop apart.
    #[default]
    Full,
    /// Each socket has links to the two sockets of neighbouring numbers; all others are two hops
    /// away.
    Ring,
    /// One bus for all sockets: every transfer occupies the bus, all sockets are one hop apart, and
    /// [`CacheCosts::link`] is the bandwidth of the bus.
    Bus,
}

/// Description of a machine: topology and costs.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct Model {
    /// Name of the machine, for reports.
    pub name: String,
    /// Cores per socket. A socket is a NUMA node, and CPUs are numbered socket by socket. A core is
    /// one CPU unless it has hyper-threads.
    pub cores_per_socket: u32,
    /// Number of sockets, 1 to [`SOCKETS_MAX`], with at most [`CPUS_MAX`] CPUs in total.
    pub sockets: u32,
    /// Sockets per board; 0 if there is only one board.
    #[cfg_attr(feature = "serde", serde(default))]
    pub sockets_per_board: u32,
    /// Wiring between the sockets of a board.
    #[cfg_attr(feature = "serde", serde(default))]
    pub wiring: Wiring,
    /// Number of hyper-threads per core, and their speed; `None` for one thread per core.
    #[cfg_attr(feature = "serde", serde(default))]
    pub hyper_threads: Option<HyperThreads>,
    /// Clock frequency in GHz, only for reports: all costs are in nanoseconds.
    pub ghz: f64,
    /// Costs of memory accesses.
    pub cache: CacheCosts,
    /// Costs of locked instructions, fences and clock reads, and the polling interval.
    pub cpu: CpuCosts,
    /// Costs of threads.
    pub threads: ThreadCosts,
    /// Costs of the program's work between its accesses to shared data.
    pub work: WorkCosts,
}

/// Costs of memory accesses.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct CacheCosts {
    /// Cost of an access to a line in the CPU's own cache.
    pub l1: Cost,
    /// Cost of a transfer of a line from another core of the socket.
    pub socket: Transfer,
    /// Cost of a transfer of a line from a socket one hop away.
    pub one_hop: Transfer,
    /// Cost of a transfer of a line from a socket two hops away on the same board.
    pub two_hops: Transfer,
    /// Cost of a transfer of a line from another board.
    pub board: Transfer,
    /// Cost of an access to a line that no cache holds.
    pub memory: Cost,
    /// Bandwidth of the link between two sockets of a board.
    pub link: Rate,
    /// Bandwidth of the link between two boards.
    pub board_link: Rate,
    /// Fraction of the spinning CPUs that delay the hand-over of a ticket lock. After a release,
    /// each spinning CPU reads the lock's cache line again. If a CPU does so before the next
    /// holder, the hand-over is delayed. At 0, reads by spinning CPUs take no time.
    pub spinner: Share,
    /// Maximum number of consecutive transfers of a contended line within one socket while CPUs of
    /// other sockets wait. At 0, the default, CPUs get the line in order of request.
    #[cfg_attr(feature = "serde", serde(default = "CacheCosts::in_order"))]
    pub near: Turns,
    /// If true, CPUs that request a line at the same time get it one after the other, as on every
    /// real machine. If false, each CPU gets the line as fast as if no other CPU requested it, to
    /// measure the effect of queueing.
    #[cfg_attr(feature = "serde", serde(skip, default = "CacheCosts::one_at_a_time"))]
    pub queueing: bool,
}

/// Costs of locked instructions, fences and clock reads, and the polling interval.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct CpuCosts {
    /// Extra cost of a locked instruction, compared to a plain store.
    pub locked: Cost,
    /// Cost of a full memory fence.
    pub fence: Cost,
    /// Cost of reading the clock.
    pub clock_read: Cost,
    /// Interval between two polls of a CPU that waits for something other than memory.
    pub spin_poll: Cost,
}

/// Costs of threads and of the operating system.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct ThreadCosts {
    /// Cost of entering and leaving the kernel.
    pub system_call: Cost,
    /// Cost of switching a CPU to a thread other than the one that it ran last.
    pub context_switch: Cost,
    /// Cost of waking another thread. The thread that calls for the wake-up spends this time.
    pub wake: Cost,
    /// Delay from the wake-up to the first instruction of the woken thread, if its CPU is idle.
    pub wake_latency: Cost,
    /// Cost of sending an inter-processor interrupt.
    pub interrupt_send: Cost,
    /// Cost of handling an inter-processor interrupt.
    pub interrupt_handle: Cost,
    /// Maximum time that a thread runs while others wait for its CPU.
    pub time_slice: Cost,
    /// Fair scheduling with wake-up preemption. `None` stands for round robin in order of arrival.
    #[cfg_attr(feature = "serde", serde(default))]
    pub fairness: Option<Fairness>,
}

/// Parameters of a scheduler that gives the threads of a CPU equal run times, similar to Linux's
/// CFS.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct Fairness {
    /// Difference in run time that allows preemption. A woken thread preempts the current thread if
    /// the current thread has run longer by more than this time.
    pub granularity: Cost,
    /// Maximum lead in run time of a woken thread, compared to the minimum run time of the threads
    /// on its CPU. A longer lead is cut to this time. Limits the advantage of a thread that has
    /// slept for long.
    pub credit: Cost,
}

/// Costs of one unit of `Machine::work`, by [`Stage`].
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct WorkCosts {
    /// Cost of submitting an I/O through the interface of a program or server.
    pub interface: Cost,
    /// Cost of the work on a bio before the bio enters a queue.
    pub submit: Cost,
    /// Cost of inserting a bio into a queue.
    pub insert: Cost,
    /// Cost of removing a request from a queue and starting the request.
    pub dispatch: Cost,
    /// Cost of running the driver's code for a request.
    pub driver: Cost,
    /// Cost of completing a request.
    pub complete: Cost,
    /// Cost of visiting one entry of a list that is searched or sorted. 0 by default.
    #[cfg_attr(feature = "serde", serde(default = "WorkCosts::no_search"))]
    pub search: Cost,
    /// Minimum number of cache lines that are written under the lock of the single-queue design.
    /// The lines stand for data that this lock protects in the kernel, and that the simulated block
    /// layer lacks.
    pub request_queue: Lines,
    /// Maximum relative deviation of the cost of work. Deviations are drawn from the seed, so that
    /// CPUs do not move in lockstep.
    pub jitter: Share,
}

impl WorkCosts {
    /// Returns the default of [`WorkCosts::search`], no cost.
    #[must_use]
    pub fn no_search() -> Cost {
        Cost::new(0.0, "not given")
    }
}

/// Invalid value of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelError {
    /// Key of the value in a model's file, such as `cache.l1.ns`.
    pub key: &'static str,
    /// Requirement that the value violates, and the value itself.
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
    check(key, !origin.trim().is_empty(), || {
        String::from("the origin must state where the value comes from")
    })
}

impl Model {
    /// Returns a machine with round numbers, unlike any real machine, for tests and exploration.
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

    /// Returns the total number of CPUs.
    #[must_use]
    pub fn cpus(&self) -> u32 {
        self.sockets.saturating_mul(self.cpus_per_socket())
    }

    /// Returns the CPUs per socket, including hyper-threads.
    #[must_use]
    pub fn cpus_per_socket(&self) -> u32 {
        let per_core = self.hyper_threads.as_ref().map_or(1, |threads| threads.per_core);
        self.cores_per_socket.saturating_mul(per_core)
    }

    /// Returns the cost of one unit of `Machine::work` in a stage of an I/O's path.
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
    /// Returns the first key with an invalid value.
    pub fn validate(&self) -> Result<(), ModelError> {
        let is_name = !self.name.is_empty() && !self.name.contains(char::is_control);
        check("name", is_name, || {
            "must not be empty, and must not contain control characters".into()
        })?;
        let (sockets, cores) = (self.sockets, self.cores_per_socket);
        check("sockets", (1..=SOCKETS_MAX).contains(&sockets), || {
            format!("must be 1 to {SOCKETS_MAX}, is {sockets}")
        })?;
        check("cores_per_socket", cores > 0 && self.cpus() <= CPUS_MAX, || {
            format!("{sockets} x {cores} CPUs: must be 1 to {CPUS_MAX} in total")
        })?;
        let board = self.sockets_per_board;
        check("sockets_per_board", board == 0 || sockets % board == 0, || {
            format!("must be a divisor of {sockets}, the number of sockets, but is {board}")
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
        check("cpu.spin_poll", poll_ns >= 1.0, || {
            format!("ns = {poll_ns} is too small; write 1 or more")
        })?;
        let slice_ns = self.threads.time_slice.ns;
        check("threads.time_slice", slice_ns >= 1_000.0, || {
            format!("ns = {slice_ns} is too small; write 1000 or more")
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
