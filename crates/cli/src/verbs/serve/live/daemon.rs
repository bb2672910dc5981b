//! `LiveDaemon`: the running daemon as the control socket and the metrics page see it.
//!
//! `LiveDaemon` owns handles to the volumes and to the server's counters, the current trace
//! recording, and current lock statistics. Otherwise it only reads counters, so that a request
//! costs the I/O threads no more than the transfer of the cache lines that are read.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use millrace::{GroupConfig, Server, VolumeSpace, Words};
use millrace_block::{Disk, DiskCounter, Op, StatsSnapshot, TenantSnapshot, Volume};
use millrace_exports::nbd::Observer;
use millrace_machine::{Native, lock_unpoisoned};
use rustix::system::uname;

use super::dirty_marks::DirtyMarks;
use super::failed_requests::{FailedRequests, drive_problem};
use super::groups;
use super::heap_trim::HeapTrim;
use super::huge_pages::HugePages;
use super::lock_statistics::LockStatistics;
use super::open_files::OpenFilesThreads;
use super::processor_time;
use super::sampler::{StatsSampler, unix_ms};
use super::served_lists::ServedLists;
use super::shown_volumes::ShownVolumes;
use super::trace_recording::TraceRecording;
use super::volume_settings;
use crate::config::group::members::children;
use crate::config::group::targets::by_children;
use crate::views::caches::CacheCounts;
use crate::views::guests::GuestThread;
use crate::views::history::History;
use crate::views::metrics_listener::MetricsListener;
use crate::views::reload_report::{ReloadReport, RunningConfiguration, UnsavedChanges};
use crate::views::settings::{GroupChange, VolumeChange};
use crate::views::{
    AddSection, HistoryRange, Refusal, Reload, RemoveSection, SetGroup, SetVolume, StatsQuery,
    report,
};

const HISTORY_DEFAULT_S: usize = 120;
/// Maximum time for which a reload waits until the former `ServedLists` are unused.
const READERS_TIMEOUT: Duration = Duration::from_secs(1);
const READERS_LOOK: Duration = Duration::from_micros(100);

pub trait Reloader: Send + Sync {
    fn reload(&self, daemon: &LiveDaemon, asked: &Reload) -> Result<ReloadReport, Refusal>;

    fn add(&self, daemon: &LiveDaemon, asked: &AddSection) -> Result<ReloadReport, Refusal>;

    fn remove(&self, daemon: &LiveDaemon, asked: &RemoveSection) -> Result<ReloadReport, Refusal>;

    fn configuration(&self, daemon: &LiveDaemon) -> Result<RunningConfiguration, Refusal>;

    fn unsaved(&self, daemon: &LiveDaemon) -> UnsavedChanges;
}

pub struct LiveDaemon {
    started: Instant,
    pub reloader: Box<dyn Reloader>,
    /// Servers and volumes; `None` once the daemon stops.
    server: Mutex<Option<Server>>,
    lists: Mutex<Arc<ServedLists>>,
    pub recording: TraceRecording,
    pub lock_statistics: LockStatistics,
    pub marks: Arc<DirtyMarks>,
    pub metrics: Arc<MetricsListener>,
    huge_pages: HugePages,
    sampler: StatsSampler,
    failed_requests: FailedRequests,
    pub open_files: OpenFilesThreads,
    heap_trim: HeapTrim,
}

impl LiveDaemon {
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
            sampler: StatsSampler::new(),
            failed_requests: FailedRequests::default(),
        });
        if let Some(server) = daemon.server().as_ref() {
            daemon.open_files.start_if_needed(server);
        }
        daemon
    }

    /// Returns the current `ServedLists`. While a caller keeps them, removed drives stay open.
    pub fn lists(&self) -> Arc<ServedLists> {
        Arc::clone(&lock_unpoisoned(&self.lists))
    }

    /// Replaces the `ServedLists` after a change of volumes or exports. Waits until nobody uses the
    /// former ones, so that their drives can be closed.
    pub fn follow(&self, server: &Server) {
        self.open_files.start_if_needed(server);
        let lists = Arc::new(ServedLists::new(server));
        let mut place = lock_unpoisoned(&self.lists);
        let mut before = std::mem::replace(&mut *place, lists);
        drop(place);
        let deadline = Instant::now() + READERS_TIMEOUT;
        while Arc::get_mut(&mut before).is_none() && Instant::now() < deadline {
            std::thread::sleep(READERS_LOOK);
        }
    }

    /// Locks the server. A reload holds the lock for its whole duration.
    pub fn server(&self) -> MutexGuard<'_, Option<Server>> {
        lock_unpoisoned(&self.server)
    }

    pub fn try_server(&self) -> Option<MutexGuard<'_, Option<Server>>> {
        self.server.try_lock().ok()
    }

    /// Returns the reason why the daemon cannot continue: a thread that serves I/O has died.
    pub fn failure(&self) -> Option<String> {
        // A reload holds the lock of the server. During a reload, this function returns `None`,
        // because the reload reports its own failures.
        let server = self.try_server()?;
        let server = server.as_ref()?;
        let failed = server.servers().has_failed().then(|| "an I/O thread has died".to_owned());
        failed.or_else(|| server.workers().failure().map(|error| error.to_string()))
    }

    pub fn tick(&self) {
        let lists = self.lists();
        self.failed_last_minute(&lists);
        self.sampler.look(&lists.volumes, &lists.caches, &lists.servers.groups);
        self.lock_statistics.end_if_silent();
        let stats = lists.servers.nbd.as_ref().map(Observer::stats).unwrap_or_default();
        self.heap_trim
            .look(stats.connections_accepted.saturating_sub(stats.connections), &lists.volumes);
        lists.targets.look(&lists.servers.groups, &lists.volumes, Instant::now());
    }

    pub fn report(&self, query: StatsQuery) -> report::Report {
        let lists = &*self.lists();
        let groups = &lists.servers.groups;
        let shown = ShownVolumes::of(&lists.volumes, query);
        let drives = lists.volumes.iter().flat_map(|volume| {
            let is_shown = shown.has(volume.name());
            volume.drives().iter().map(move |disk| (volume.name(), disk, is_shown))
        });
        let drives = drives.zip(&lists.schedulers).zip(self.failed_last_minute(lists));
        let drives = drives.filter(|(((.., is_shown), _), _)| *is_shown);
        let drives = drives.map(|(((volume, disk, _), scheduler), failed_last_minute)| {
            let scheduler_configured = (*scheduler).to_owned();
            report::Drive { failed_last_minute, scheduler_configured, ..drive(volume, disk) }
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
            groups: groups::list(groups, lists.targets.said(groups)),
            group_counts: groups::counts(groups, &shown.volumes),
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

    pub fn volumes(&self) -> Vec<Arc<Volume<Native>>> {
        self.lists().volumes.clone()
    }

    pub fn history(&self, range: &HistoryRange) -> History {
        self.sampler.last(range.seconds.unwrap_or(HISTORY_DEFAULT_S))
    }

    pub fn set_volume(&self, asked: &SetVolume) -> Result<VolumeChange, Refusal> {
        let lists = self.lists();
        let groups = &lists.servers.groups;
        let warn = |volume: &Arc<Volume<Native>>| {
            // Skips child groups of single clients, such as `GROUP/1`. The warnings for `GROUP`
            // apply to all its clients.
            let configured = groups.list().into_iter().filter(|group| !group.name.contains('/'));
            let volume = std::slice::from_ref(volume);
            let warnings =
                |group: GroupConfig| lists.targets.at_once(groups, volume, (&group, &|_| true));
            configured.flat_map(warnings).collect()
        };
        volume_settings::set(&lists.volumes, asked, warn)
    }

    pub fn set_group(&self, asked: &SetGroup) -> Result<GroupChange, Refusal> {
        let lists = self.lists();
        let groups = &lists.servers.groups;
        let sets = |key: &str| asked.settings.contains_key(key);
        let warnings = |config: &GroupConfig, sets: &dyn Fn(&str) -> bool| {
            let children = children(&groups.list(), &config.name);
            let mut said = Vec::from_iter(by_children(config, &children, sets));
            said.extend(lists.targets.at_once(groups, &lists.volumes, (config, sets)));
            said
        };
        let warn = |config: &GroupConfig| {
            let mut said = warnings(config, &sets);
            let is_parent = |group: &GroupConfig| config.parent.as_ref() == Some(&group.name);
            if sets("parent")
                && let Some(parent) = groups.list().into_iter().find(is_parent)
            {
                said.extend(warnings(&parent, &|_| true));
            }
            said
        };
        groups::set(groups, asked, warn)
    }

    fn failed_last_minute(&self, lists: &ServedLists) -> Vec<u64> {
        let count = |disk: &Arc<Disk<Native>>| disk.failures().count;
        let counts = lists.disks().map(|disk| (disk.name(), count(disk)));
        self.failed_requests.look(counts, Instant::now())
    }

    pub fn problems(&self) -> Vec<String> {
        let lists = &*self.lists();
        let drives = lists.disks().zip(self.failed_last_minute(lists));
        let problem = |(disk, failed): (&Arc<Disk<Native>>, u64)| {
            drive_problem(disk.name(), failed, disk.failures().trouble.as_deref())
        };
        drives.filter_map(problem).collect()
    }
}

fn guests(lists: &ServedLists) -> Vec<GuestThread> {
    let exports = lists.servers.vhost.stats();
    let threads = exports.iter().flat_map(|(name, threads)| {
        threads.iter().enumerate().map(move |(at, stats)| GuestThread::new(name, at, stats))
    });
    threads.collect()
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
        scheduler: volume_settings::kind_of(disk).word().to_owned(),
        driver: millrace_block::driver_counts(disk)
            .into_iter()
            .map(|(k, n)| (k.to_owned(), n))
            .collect(),
        waiting: disk.waiting(),
        trouble: disk.failures().trouble,
        counts: DiskCounter::ALL
            .map(|counter| (counter.name().to_owned(), stats.counts[counter as usize]))
            .into(),
        ops: ops.map(|(op, stats)| report::OpCounts::of_drive(op, stats)).collect(),
        // Only queues that have had I/O are reported.
        queues: queues
            .iter()
            .filter(|(_, stats)| stats.requests() > 0 || stats.ios() > 0)
            .map(|(hctx, stats)| report::Queue::new(*hctx, stats))
            .collect(),
        ..report::Drive::default()
    }
}

fn volume(volume: &Volume<Native>) -> report::Volume {
    let (tenants, mut all) = (volume.tenants(), TenantSnapshot::default());
    tenants.iter().for_each(|(_, stats)| all.merge(stats));
    let clients = tenants.iter();
    report::Volume {
        name: volume.name().to_owned(),
        size_bytes: volume.capacity() << millrace_block::SECTOR_SHIFT,
        unused_bytes: VolumeSpace::of(volume).unused_bytes(),
        serving: volume.serving().name().to_owned(),
        drives: volume.drives().iter().map(|disk| disk.name().to_owned()).collect(),
        ops: report::OpCounts::of_tenant(&all),
        clients: clients
            .map(|(client, stats)| report::Client {
                client: *client,
                ops: report::OpCounts::of_tenant(stats),
            })
            .collect(),
    }
}
