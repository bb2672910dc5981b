//! The running daemon as its views see it: answers of the control socket, and metrics.
//!
//! Owns handles to the volumes and to the server's counters, and the recording of a trace if there
//! is one (trace_recording.rs), and lock statistics while they are taken (lock_statistics.rs); has
//! volumes grow on request (resize.rs). Else counters are read and nothing else, so that whoever
//! asks costs the I/O threads no more than the transfer of the cache lines that are read. Called by
//! the thread of `views`; made by `serve` when all stands.

use std::sync::Arc;
use std::time::Instant;

use millrace::{Cache, ExportFailures, Observers, Opened, Space};
use millrace_block::{Disk, Op, StatsSnapshot, TenantSnapshot, Volume};
use millrace_console::{logging, visible};
use millrace_exports::nbd::{Observer, ServerStats};
use millrace_exports::vhost::VhostObserver;
use millrace_machine::Native;
use rustix::system::uname;
use serde::Serialize;
use serde_json::{Map, Value};

use super::dirty_marks::DirtyMarks;
use super::failed_requests::{FailedRequests, drive_problem};
use super::group_counts;
use super::group_settings;
use super::huge_pages::HugePages;
use super::latency_targets::LatencyTargets;
use super::lock_statistics::LockStatistics;
use super::processor_time;
use super::resize;
use super::sampler::{Sampler, unix_ms};
use super::shown_volumes::ShownVolumes;
use super::trace_recording::TraceRecording;
use super::volume_settings;
use crate::config::ServePlan;
use crate::views::caches::CacheCounts;
use crate::views::clients::{Clients, ConnectedClient};
use crate::views::guests::GuestThread;
use crate::views::settings::{GroupChange, LogLevelChange};
use crate::views::{self, Answers, LogLevel, Refusal, SetGroup, StatsQuery, Verb, report};

/// Seconds of samples in an answer unless more or fewer are asked for.
const HISTORY_S: usize = 120;

/// Handles to all that the views read or change.
pub struct LiveDaemon {
    started: Instant,
    volumes: Vec<Arc<Volume<Native>>>,
    caches: Vec<Arc<Cache<Native>>>,
    /// Without their errors.
    exports: Vec<report::Export>,
    servers: Observers,
    /// Schedulers of the drives at the start.
    schedulers: Vec<&'static str>,
    recording: TraceRecording,
    lock_statistics: LockStatistics,
    targets: LatencyTargets,
    /// Groups of exports of volumes that have a cache, with the volumes.
    cached: Vec<(String, String)>,
    marks: Arc<DirtyMarks>,
    huge_pages: HugePages,
    failed: FailedRequests,
    sampler: Sampler,
}

impl LiveDaemon {
    /// A daemon that begins to serve.
    pub fn new(
        plan: &ServePlan,
        opened: &Opened,
        (servers, marks): (Observers, Arc<DirtyMarks>),
    ) -> LiveDaemon {
        let exports = plan.config.exports.iter().map(|export| report::Export {
            name: export.name.clone(),
            volume: export.volume.clone(),
            read_only: export.read_only,
            ..report::Export::default()
        });
        LiveDaemon {
            started: Instant::now(),
            exports: exports.collect(),
            schedulers: opened
                .volumes
                .iter()
                .flat_map(|volume| volume.drives())
                .map(|disk| volume_settings::scheduler_of(disk))
                .collect(),
            volumes: opened.volumes.clone(),
            caches: opened.caches.iter().map(|(cache, _)| Arc::clone(cache)).collect(),
            servers,
            recording: TraceRecording::default(),
            lock_statistics: LockStatistics::default(),
            targets: LatencyTargets::new(plan),
            cached: group_settings::cached(&plan.config),
            marks,
            huge_pages: HugePages::default(),
            failed: FailedRequests::default(),
            sampler: Sampler::new(),
        }
    }

    /// Ends lock statistics whose client has gone away, looks at latency targets and failures, and
    /// takes a sample of all counters; to be called once a second.
    pub fn tick(&self) {
        self.failed_last_minute();
        self.sampler.look(&self.volumes, &self.caches, &self.servers.groups);
        self.lock_statistics.end_if_silent();
        self.targets.look(&self.servers.groups, &self.volumes, Instant::now());
    }

    /// The requests of each export that failed because of drives.
    pub fn failed_exports(&self) -> Vec<ExportFailures> {
        self.servers.failures()
    }

    /// All drives, in the order of the volumes.
    pub fn disks(&self) -> impl Iterator<Item = &Arc<Disk<Native>>> {
        self.volumes.iter().flat_map(|volume| volume.drives())
    }

    /// Requests that each drive failed in the last minute.
    fn failed_last_minute(&self) -> Vec<u64> {
        self.failed.look(self.disks().map(|disk| disk.failures().count), Instant::now())
    }

    /// The counters that a query asks for.
    fn report(&self, query: StatsQuery) -> report::Report {
        let groups = &self.servers.groups;
        let shown = ShownVolumes::of(&self.volumes, query);
        let drives = self.volumes.iter().flat_map(|volume| {
            let is_shown = shown.has(volume.name());
            volume.drives().iter().map(move |disk| (volume.name(), disk, is_shown))
        });
        let drives = drives.zip(&self.schedulers).zip(self.failed_last_minute());
        let drives = drives.filter(|(((.., is_shown), _), _)| *is_shown);
        let drives = drives.map(|(((volume, disk, _), scheduler), failed_last_minute)| {
            let configured = configured((drive(volume, disk), scheduler));
            report::Drive { failed_last_minute, ..configured }
        });
        let failures = self.servers.failures();
        let exports = self.exports.iter().zip(failures).map(|(export, failed)| report::Export {
            errors: failed.count,
            last_error: failed.last.to_owned(),
            ..export.clone()
        });
        let exports: Vec<_> =
            exports.filter(|one| one.errors > 0 || shown.has(&one.volume)).collect();
        let mut idle = shown.idle;
        idle.exports = self.exports.len() - exports.len();
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
            groups: group_settings::list(groups, self.targets.said(groups)),
            group_counts: group_counts::counts(groups, &shown.volumes),
            caches: self.caches.iter().map(|cache| CacheCounts::new(cache)).collect(),
            unacknowledged: self.marks.lost(),
            exports,
            guests: self.guests(),
            processor: processor_time::of_process(),
            server: server(
                &self.servers.nbd.as_ref().map(Observer::stats).unwrap_or_default(),
                self.huge_pages.bytes(Instant::now()),
            ),
        }
    }
}

impl LiveDaemon {
    fn set_group(&self, asked: &SetGroup) -> Result<GroupChange, Refusal> {
        let groups = &self.servers.groups;
        let sets = |key: &str| asked.settings.contains_key(key);
        let warn = |config: &_| {
            let mut said = group_settings::ignored_by_caches(&self.cached, config, sets);
            if sets("latency-target") {
                said.extend(self.targets.at_once(groups, &self.volumes, config));
            }
            said
        };
        group_settings::set(groups, asked, warn)
    }

    fn clients(&self) -> Clients {
        let groups = &self.servers.groups;
        let clients = self.servers.nbd.as_ref().map(Observer::clients).unwrap_or_default();
        let named = clients.into_iter().map(|client| ConnectedClient::new(client, groups));
        Clients { clients: named.collect() }
    }

    fn disconnect(&self, number: u16) -> Result<ConnectedClient, Refusal> {
        let gone = self.servers.nbd.as_ref().and_then(|nbd| nbd.disconnect(number));
        let gone = gone.map(|client| ConnectedClient::new(client, &self.servers.groups));
        gone.ok_or_else(|| {
            let text = format!("there is no client {number}; `millrace ctl clients` shows them");
            Refusal::new("not-found", text)
        })
    }

    fn guests(&self) -> Vec<GuestThread> {
        let exports = self.servers.vhost.iter().flat_map(VhostObserver::stats);
        let thread = |name: &str, at, stats: &_| GuestThread::new(name, at, stats);
        exports
            .flat_map(|(name, threads)| {
                let threads = threads.iter().enumerate();
                threads.map(|(at, stats)| thread(&name, at, stats)).collect::<Vec<_>>()
            })
            .collect()
    }
}

impl LiveDaemon {
    /// The marks of dirty caches.
    pub fn marks(&self) -> &DirtyMarks {
        &self.marks
    }

    /// The caches of volumes.
    pub fn caches(&self) -> &[Arc<Cache<Native>>] {
        &self.caches
    }
}

impl Answers for LiveDaemon {
    fn answer(&self, verb: &Verb) -> Result<Value, Refusal> {
        match verb {
            Verb::Version => Ok(views::greeting()),
            Verb::Stats(query) => value(self.report(*query)),
            Verb::Clients => value(self.clients()),
            Verb::Disconnect(asked) => self.disconnect(asked.client).and_then(value),
            Verb::History(range) => value(self.sampler.last(range.seconds.unwrap_or(HISTORY_S))),
            Verb::TraceStart(start) => self.recording.start(&self.volumes, start).map(nothing),
            Verb::TraceStatus => self.recording.status().and_then(value),
            Verb::TraceStop => self.recording.stop().and_then(value),
            Verb::LocksStart => self.lock_statistics.start(&self.volumes).map(nothing),
            Verb::LocksStatus => self.lock_statistics.status().and_then(value),
            Verb::LocksStop => self.lock_statistics.stop().and_then(value),
            Verb::Resize(asked) => resize::resize(&self.volumes, &asked.volume).and_then(value),
            Verb::Acknowledge(asked) => self.marks.acknowledge(&asked.volume).map(nothing),
            Verb::Set(asked) => volume_settings::set(&self.volumes, asked).and_then(value),
            Verb::SetGroup(asked) => self.set_group(asked).and_then(value),
            Verb::LogLevel(asked) => log_level(asked).and_then(value),
        }
    }

    fn metrics(&self, query: StatsQuery) -> String {
        views::prometheus(&self.report(query))
    }

    fn problems(&self) -> Vec<String> {
        let drives = self.disks().zip(self.failed_last_minute());
        let problem = |(disk, failed): (&Arc<Disk<Native>>, u64)| {
            drive_problem(disk.name(), failed, disk.failures().trouble.as_deref())
        };
        drives.filter_map(problem).collect()
    }
}

/// A drive with the scheduler that it had at the start.
fn configured((drive, scheduler): (report::Drive, &&'static str)) -> report::Drive {
    report::Drive { scheduler_configured: (*scheduler).to_owned(), ..drive }
}

/// Tells the level of the log, or changes it and says so.
fn log_level(asked: &LogLevel) -> Result<LogLevelChange, Refusal> {
    let Some(level) = &asked.level else {
        return Ok(LogLevelChange { level: logging::level(), before: None });
    };
    let refused = |error: anyhow::Error| Refusal::new("bad-request", error.to_string());
    let before = logging::set_level(level).map_err(refused)?;
    tracing::info!("log level {} from now on, before {}", visible(level), visible(&before));
    Ok(LogLevelChange { level: level.clone(), before: Some(before) })
}

fn nothing((): ()) -> Value {
    Value::Object(Map::new())
}

fn value(answer: impl Serialize) -> Result<Value, Refusal> {
    serde_json::to_value(answer).map_err(|error| Refusal::new("internal", error.to_string()))
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
        counts: report::Counts::from(&stats),
        ops: ops.map(|(op, stats)| report::OpCounts::new(op, stats)).collect(),
        // Threads have accounts of queues that they may use, and perhaps never do.
        queues: queues
            .iter()
            .filter(|(_, stats)| stats.requests > 0 || stats.ios() > 0)
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

fn server(stats: &ServerStats, huge_page_bytes: u64) -> report::Server {
    report::Server {
        connections: report::Connections {
            open: stats.connections,
            accepted: stats.accepted,
            refused: stats.refused,
            protocol_errors: stats.protocol_errors,
            handshake_timeouts: stats.handshake_timeouts,
            stalled: stats.stalled,
        },
        requests: stats.requests,
        errors: stats.errors,
        requests_in_flight: stats.requests_in_flight,
        buffers_in_use: stats.buffers_in_use,
        buffer_bytes: stats.buffer_bytes,
        huge_page_bytes,
        copied_bytes: stats.payload.copied_bytes,
        bounced: stats.payload.bounced,
        memory_waits: stats.payload.memory_waits,
        receives: stats.receives,
        sends: stats.sends,
        system_calls: stats.system_calls,
    }
}
