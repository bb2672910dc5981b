//! The running daemon as its views see it.
//!
//! Owns handles to the volumes and to the server's counters, the recording of a trace if there
//! is one (trace_recording.rs), and lock statistics while they are taken (lock_statistics.rs). Else
//! counters are read and nothing else, so that a client that asks costs the I/O threads no more
//! than the transfer of the cache lines that are read. Called by the verbs of verbs/ctl.rs on the
//! thread of `views`; made by `serve` when all stands.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millrace::{Server, Space};
use millrace_block::{Disk, Op, StatsSnapshot, TenantSnapshot, Volume};
use millrace_exports::nbd::Observer;
use millrace_machine::Native;
use rustix::system::uname;

use super::dirty_marks::DirtyMarks;
use super::failed_requests::drive_problem;
use super::group_counts;
use super::group_settings;
use super::heap_trim::HeapTrim;
use super::huge_pages::HugePages;
use super::lock_statistics::LockStatistics;
use super::open_files::OpenFilesThreads;
use super::processor_time;
use super::sampler::{Sampler, unix_ms};
use super::served_lists::{ServedLists, places_before};
use super::shown_volumes::ShownVolumes;
use super::trace_recording::TraceRecording;
use super::volume_settings;
use crate::views::caches::CacheCounts;
use crate::views::guests::GuestThread;
use crate::views::history::History;
use crate::views::metrics_listener::MetricsListener;
use crate::views::reload_report::{ReloadReport, RunningConfiguration, UnsavedChanges};
use crate::views::settings::GroupChange;
use crate::views::{
    AddSection, HistoryRange, Refusal, Reload, RemoveSection, SetGroup, StatsQuery, report,
};

/// Seconds of samples in an answer unless more or fewer are asked for.
const HISTORY_S: usize = 120;
/// How long a reload waits for readers of lists that are no longer served, and how often it looks.
const READERS_TIMEOUT: Duration = Duration::from_secs(1);
const READERS_LOOK: Duration = Duration::from_micros(100);

/// The configuration of a daemon, and changes of it.
pub trait Reloader: Send + Sync {
    /// Makes a daemon serve the configuration in a file.
    ///
    /// # Errors
    /// Why not; everything is as before then.
    fn reload(&self, daemon: &LiveDaemon, asked: &Reload) -> Result<ReloadReport, Refusal>;

    /// Adds a section to what a daemon serves.
    ///
    /// # Errors
    /// As [`Reloader::reload`].
    fn add(&self, daemon: &LiveDaemon, asked: &AddSection) -> Result<ReloadReport, Refusal>;

    /// Removes a section from what a daemon serves.
    ///
    /// # Errors
    /// As [`Reloader::reload`].
    fn remove(&self, daemon: &LiveDaemon, asked: &RemoveSection) -> Result<ReloadReport, Refusal>;

    /// Returns what a daemon serves now.
    ///
    /// # Errors
    /// If it cannot be written as TOML.
    fn configuration(&self, daemon: &LiveDaemon) -> Result<RunningConfiguration, Refusal>;

    /// Compares what a daemon serves now with its configuration file as that is now.
    fn unsaved(&self, daemon: &LiveDaemon) -> UnsavedChanges;
}

/// What runs, for the views: they read and change it through the lists of the moment.
pub struct LiveDaemon {
    started: Instant,
    reloader: Box<dyn Reloader>,
    /// `None` once it stops.
    server: Mutex<Option<Server>>,
    lists: Mutex<Arc<ServedLists>>,
    recording: TraceRecording,
    lock_statistics: LockStatistics,
    marks: Arc<DirtyMarks>,
    metrics: Arc<MetricsListener>,
    huge_pages: HugePages,
    sampler: Sampler,
    open_files: OpenFilesThreads,
    heap_trim: HeapTrim,
}

impl LiveDaemon {
    /// A daemon that begins to serve.
    pub fn new(
        server: Server,
        (marks, reloader, metrics): (Arc<DirtyMarks>, Box<dyn Reloader>, Arc<MetricsListener>),
    ) -> Arc<LiveDaemon> {
        let daemon = Arc::new_cyclic(|daemon| LiveDaemon {
            open_files: OpenFilesThreads::new(daemon),
            heap_trim: HeapTrim::default(),
            started: Instant::now(),
            reloader,
            lists: Mutex::new(Arc::new(ServedLists::new(&server))),
            server: Mutex::new(Some(server)),
            recording: TraceRecording::default(),
            lock_statistics: LockStatistics::default(),
            marks,
            metrics,
            huge_pages: HugePages::default(),
            sampler: Sampler::new(),
        });
        if let Some(server) = daemon.server().as_ref() {
            daemon.open_files.start_if_needed(server);
        }
        daemon
    }

    /// What is served now. Whoever keeps it keeps drives open that are removed.
    pub fn lists(&self) -> Arc<ServedLists> {
        Arc::clone(&self.lists.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has the views read what is served from now on.
    pub fn follow(&self, server: &Server) {
        self.open_files.start_if_needed(server);
        let before = self.lists();
        let mut lists = ServedLists::new(server);
        let names = |lists: &ServedLists| -> [Vec<String>; 2] {
            let volumes = lists.volumes.iter().map(|volume| volume.name().to_owned());
            [volumes.collect(), lists.disks().map(|disk| disk.name().to_owned()).collect()]
        };
        let ([volumes_before, drives_before], [volumes, drives]) = (names(&before), names(&lists));
        let places = places_before(&drives_before, &drives);
        lists.failed = before.failed.followed_by(places.into_iter());
        self.sampler.follow(places_before(&volumes_before, &volumes).into_iter());
        drop(before);
        self.replace_lists(lists);
    }

    /// Has the views read other lists, and waits until nobody reads the ones of before, whose
    /// drives may be closed then.
    fn replace_lists(&self, lists: ServedLists) {
        let mut place = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::replace(&mut *place, Arc::new(lists));
        drop(place);
        let deadline = Instant::now() + READERS_TIMEOUT;
        while Arc::get_mut(&mut before).is_none() && Instant::now() < deadline {
            std::thread::sleep(READERS_LOOK);
        }
    }

    /// The server, for one caller at a time; a reload has it for as long as it takes.
    pub fn server(&self) -> MutexGuard<'_, Option<Server>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server, unless a reload has it.
    pub fn try_server(&self) -> Option<MutexGuard<'_, Option<Server>>> {
        self.server.try_lock().ok()
    }

    /// The server of a daemon that stops. Waits for a reload that is under way.
    pub fn take_server(&self) -> Option<Server> {
        self.server().take()
    }

    /// Why the daemon cannot go on: a thread that it needs has ended.
    pub fn failure(&self) -> Option<String> {
        // A reload that is under way says itself what fails.
        let server = self.try_server()?;
        let server = server.as_ref()?;
        let failed = server.servers().failed().then(|| "an I/O thread has died".to_owned());
        failed.or_else(|| server.workers().failure().map(|error| error.to_string()))
    }

    /// Ends lock statistics whose client has gone away, looks at latency targets and failures, and
    /// takes a sample of all counters; to be called once a second.
    pub fn tick(&self) {
        let lists = self.lists();
        failed_last_minute(&lists);
        self.sampler.look(&lists.volumes, &lists.caches, &lists.servers.groups);
        self.lock_statistics.end_if_silent();
        let stats = lists.servers.nbd.as_ref().map(Observer::stats).unwrap_or_default();
        self.heap_trim
            .look(stats.connections_accepted.saturating_sub(stats.connections), &lists.volumes);
        lists.targets.look(&lists.servers.groups, &lists.volumes, Instant::now());
    }

    /// The counters that a query asks for.
    pub fn report(&self, query: StatsQuery) -> report::Report {
        let lists = &*self.lists();
        let groups = &lists.servers.groups;
        let shown = ShownVolumes::of(&lists.volumes, query);
        let drives = lists.volumes.iter().flat_map(|volume| {
            let is_shown = shown.has(volume.name());
            volume.drives().iter().map(move |disk| (volume.name(), disk, is_shown))
        });
        let drives = drives.zip(&lists.schedulers).zip(failed_last_minute(lists));
        let drives = drives.filter(|(((.., is_shown), _), _)| *is_shown);
        let drives = drives.map(|(((volume, disk, _), scheduler), failed_last_minute)| {
            let configured = configured((drive(volume, disk), scheduler));
            report::Drive { failed_last_minute, ..configured }
        });
        let failures = lists.servers.failures();
        let exports = lists.exports.iter().zip(failures).map(|(export, failed)| report::Export {
            errors: failed.count,
            last_error: failed.last.to_owned(),
            ..export.clone()
        });
        let exports: Vec<_> =
            exports.filter(|one| one.errors > 0 || shown.has(&one.volume)).collect();
        let mut idle = shown.idle;
        idle.exports = lists.exports.len() - exports.len();
        report::Report {
            daemon: report::DaemonIdentity {
                host: uname().nodename().to_string_lossy().into_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                pid: std::process::id(),
                unix_ms: unix_ms(),
            },
            uptime_ns: u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX),
            drives: drives.collect(),
            volumes: shown.volumes.iter().map(|one| volume(one)).collect(),
            idle,
            groups: group_settings::list(groups, lists.targets.said(groups)),
            group_counts: group_counts::counts(groups, &shown.volumes),
            caches: lists.caches.iter().map(|cache| CacheCounts::new(cache)).collect(),
            unacknowledged: self.marks.lost(),
            exports,
            guests: guests(lists),
            processor: processor_time::of_process(),
            server: report::Server {
                stats: lists.servers.nbd.as_ref().map(Observer::stats).unwrap_or_default(),
                huge_page_bytes: self.huge_pages.bytes(Instant::now()),
            },
        }
    }
}

impl LiveDaemon {
    /// The volumes that are served.
    pub fn volumes(&self) -> Vec<Arc<Volume<Native>>> {
        self.lists().volumes.clone()
    }

    /// The source of configurations, which changes them.
    pub fn reloader(&self) -> &dyn Reloader {
        &*self.reloader
    }

    /// The threads that open and close files of directories.
    pub fn open_files(&self) -> &OpenFilesThreads {
        &self.open_files
    }

    /// The marks of dirty caches.
    pub fn marks(&self) -> &Arc<DirtyMarks> {
        &self.marks
    }

    /// The place of the metrics page.
    pub fn metrics(&self) -> &MetricsListener {
        &self.metrics
    }

    /// The recording of a trace.
    pub fn recording(&self) -> &TraceRecording {
        &self.recording
    }

    /// Lock statistics.
    pub fn lock_statistics(&self) -> &LockStatistics {
        &self.lock_statistics
    }

    /// Samples of the last seconds.
    pub fn history(&self, range: &HistoryRange) -> History {
        self.sampler.last(range.seconds.unwrap_or(HISTORY_S))
    }

    /// Sets what is asked of a group.
    ///
    /// # Errors
    /// As [`group_settings::set`].
    pub fn set_group(&self, asked: &SetGroup) -> Result<GroupChange, Refusal> {
        let lists = self.lists();
        let groups = &lists.servers.groups;
        let sets = |key: &str| asked.settings.contains_key(key);
        let warn = |config: &_| {
            let mut said = group_settings::ignored_by_caches(&lists.cached, config, sets);
            if sets("latency-target") {
                said.extend(lists.targets.at_once(groups, &lists.volumes, config));
            }
            said
        };
        group_settings::set(groups, asked, warn)
    }

    /// A line for each drive that is not well.
    pub fn problems(&self) -> Vec<String> {
        let lists = &*self.lists();
        let drives = lists.disks().zip(failed_last_minute(lists));
        let problem = |(disk, failed): (&Arc<Disk<Native>>, u64)| {
            drive_problem(disk.name(), failed, disk.failures().trouble.as_deref())
        };
        drives.filter_map(problem).collect()
    }
}

/// Requests that each drive failed in the last minute.
fn failed_last_minute(lists: &ServedLists) -> Vec<u64> {
    lists.failed.look(lists.disks().map(|disk| disk.failures().count), Instant::now())
}

fn guests(lists: &ServedLists) -> Vec<GuestThread> {
    let thread = |name: &str, at, stats: &_| GuestThread::new(name, at, stats);
    let exports = lists.servers.vhost.stats().into_iter();
    exports
        .flat_map(|(name, threads)| {
            let threads = threads.iter().enumerate();
            threads.map(|(at, stats)| thread(&name, at, stats)).collect::<Vec<_>>()
        })
        .collect()
}

/// A drive with the scheduler that it had at the start.
fn configured((drive, scheduler): (report::Drive, &&'static str)) -> report::Drive {
    report::Drive { scheduler_configured: (*scheduler).to_owned(), ..drive }
}

fn drive(volume: &str, disk: &Disk<Native>) -> report::Drive {
    let queues = disk.queue_stats();
    let mut stats = StatsSnapshot::default();
    queues.iter().for_each(|(_, queue)| stats.merge(queue));
    let ops = Op::ALL.into_iter().zip(&stats.ops);
    report::Drive {
        name: disk.name().to_owned(),
        volume: volume.to_owned(),
        size_bytes: disk.capacity() << millrace_block::SECTOR_SHIFT,
        in_flight: stats.in_flight(),
        tags_in_use: disk.tags_in_use(),
        scheduler: volume_settings::scheduler_of(disk).to_owned(),
        scheduler_configured: String::new(),
        failed_last_minute: 0,
        driver: millrace_block::driver_counts(disk)
            .into_iter()
            .map(|(k, n)| (k.to_owned(), n))
            .collect(),
        waiting: disk.waiting(),
        trouble: disk.failures().trouble,
        counts: report::Counts(stats.counts),
        ops: ops.map(|(op, stats)| report::OpCounts::new(op, stats)).collect(),
        // Threads have accounts of queues that they may use, and perhaps never do.
        queues: queues
            .iter()
            .filter(|(_, stats)| stats.requests() > 0 || stats.ios() > 0)
            .map(|(hctx, stats)| report::Queue::new(*hctx, stats))
            .collect(),
    }
}

fn volume(volume: &Volume<Native>) -> report::Volume {
    let (tenants, mut all) = (volume.tenants(), TenantSnapshot::default());
    tenants.iter().for_each(|(_, stats)| all.merge(stats));
    let clients = tenants.iter();
    report::Volume {
        name: volume.name().to_owned(),
        size_bytes: volume.capacity() << millrace_block::SECTOR_SHIFT,
        unused_bytes: Space::of(volume).unused_bytes(),
        serving: volume.serving().name().to_owned(),
        drives: volume.drives().iter().map(|disk| disk.name().to_owned()).collect(),
        ops: report::OpTotals::all(&all),
        clients: clients
            .map(|(client, stats)| report::Client {
                client: *client,
                ops: report::OpTotals::all(stats),
            })
            .collect(),
    }
}
