//! `millrace serve`: opens the drives of a configuration and serves its volumes until it is
//! stopped.
//!
//! This module owns the order of a start: configuration checked, drives opened, volumes created,
//! workers started, sockets bound, control socket and metrics page started, `ready` printed. On a
//! stop signal the daemon drains, flushes, stops the workers, and exits. Nothing is served before
//! everything is ready, and a failed start removes the files that it created.

mod check;
pub mod live;
mod reload;
mod start;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use millrace::{CacheMode, Listen, Server, Servers, VolumeConfig};
use millrace_console::{ERROR, logging, lost_output, output_queue, say};
use millrace_exports::remove_socket_files;
use millrace_machine::Native;
use millrace_reactor::Backend;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sd_notify::NotifyState;

use crate::config::words;
use crate::config::{self, ServePlan};
use crate::verbs::ctl::AnsweringDaemon;
use crate::views::ViewThread;
use check::{findings, running, start_error, view_sockets, warnings};
use live::daemon::LiveDaemon;
use live::dirty_data::{self, DaemonEnd};
use live::dirty_marks::{self, DirtyMarks};
use live::huge_pages;
use live::watch::{DaemonWatch, log_lost};
use reload::{ConfigReloader, StartFlags};
use start::images::ImageArgs;
use start::report;
use start::signals::{self, Signals};
use start::source::Source;
use start::startup::StartProgress;
use start::{drives, thread_count};

const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

const FEW_THREADS: &str = "this configuration needs more threads than the system allows: cannot \
                           start those of signals and of the log";

const EXAMPLES: &str = "\
Examples:
  millrace serve                        four 1 GiB drives in ./millrace-data, as volume vol0
  millrace serve disk.img               a disk of yours, over NBD on the Unix socket disk.sock
  millrace serve /dev/sdb --read-only --nbd tcp:10809
  millrace serve a.img b.img --layout stripe --vhost-user vm.sock
  millrace serve disk.img --print-config > my.toml    a configuration to begin your own with
  millrace serve my.toml --check        is the file valid, and can it start on this host?
  millrace serve disk.img --nbd tcp:0.0.0.0:10809 --tls-certificate server-cert.pem \
--tls-key server-key.pem --tls-client-ca ca-cert.pem
  millrace serve my.toml --threads 2    serve it from two I/O threads
  millrace serve --metrics 9100         with metrics at http://127.0.0.1:9100/metrics

`millrace stat` shows what it does meanwhile.

Signals: SIGTERM, SIGINT and SIGQUIT finish what is in flight, flush, and exit with 0; a second \
one, half a second later or more, exits at once with 1. SIGHUP reads the configuration again, as \
`millrace ctl reload` does. SIGUSR2 is ignored with a line in the log. SIGUSR1 cuts the power of all `fault` drives with a volatile cache (for tests).

The log goes to standard error, with all warnings and notes, and results to standard output. \
MILLRACE_LOG=debug, or -v, logs more.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Files or block devices to serve; several of them form one volume. Or a configuration to
    /// serve: NAME.toml, or `-` for standard input. Without FILE, a volume in a data directory is
    /// served
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Configuration to serve, a TOML file of any name
    #[arg(long, value_name = "FILE", conflicts_with = "files")]
    config: Option<PathBuf>,
    /// Check the configuration, change nothing, print what would be served, and exit. The exit
    /// status is 1 if a start would fail because a drive or socket is missing, in use or not
    /// allowed. If the daemon of this configuration is running, print what `millrace ctl reload`
    /// would change, or why the reload would fail
    #[arg(long)]
    check: bool,
    /// Print the configuration and exit
    #[arg(long)]
    print_config: bool,
    /// Directory of the volume that is served if no file is given [default: millrace-data]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["config", "files"])]
    data_dir: Option<String>,
    /// I/O threads [default: one per CPU, at most 4]
    #[arg(long, value_name = "N", value_parser = words::whole::<u16>(1..=1024))]
    threads: Option<u16>,
    /// I/O backend: auto, io_uring or epoll [default: auto]
    #[arg(long, value_parser = words::setting::<Backend>)]
    backend: Option<Backend>,
    /// Address of the Prometheus metrics, served at /metrics: a port on loopback, or ADDRESS:PORT
    #[arg(long, value_name = "ADDR", value_parser = words::metrics)]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    images: ImageArgs,
}

/// Serves until a signal. Returns exit status 0 if everything was flushed, else 1.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (config, data_dir) = (args.config.as_deref(), args.data_dir.as_deref());
    let source = Source::read(&args.files, config, data_dir, &args.images)?;
    let loaded = config::load(&source.name, &source.text, &source.base);
    let mut plan = match loaded {
        Err(problems) if args.check => {
            logging::report_on(&source.name);
            say(&findings::not_valid(&source.name, &problems));
            return Ok(ExitCode::from(ERROR));
        }
        loaded => loaded?,
    };
    if args.print_config {
        say(&source.text);
        return Ok(ExitCode::SUCCESS);
    }
    let flags = StartFlags { threads: args.threads, backend: args.backend, metrics: args.metrics };
    flags.apply(&mut plan.config.server);
    if args.check {
        logging::report_on(&source.name);
        if let Some(checked) = running::check(&plan, source.file.as_deref())? {
            return Ok(checked);
        }
        warnings::on_plan(&plan, args.metrics);
        let found = findings::measure(&plan, source.data_dir.as_deref(), args.metrics);
        say(&report::checked(&plan, &found));
        return Ok(if found.starts { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let signals = StartSignals::install()?;
    let served = serve(plan, &source, flags, &signals);
    match signals.startup.undo() {
        Some(said) if served.is_err() => {
            tracing::info!("{said}");
            Ok(ExitCode::SUCCESS)
        }
        _ => served,
    }
}

/// Main thread's connection to the thread that waits for signals.
struct StartSignals {
    startup: Arc<StartProgress>,
    /// Channel that is disconnected at the first stop signal.
    stopped: Receiver<()>,
    /// Receives the signals after the first stop signal.
    signals: Receiver<Signals>,
}

impl StartSignals {
    fn install() -> anyhow::Result<StartSignals> {
        // `install` blocks the signals in this thread. Threads started later inherit that, so only
        // the signal thread gets signals.
        let mut signals = Signals::install().context("cannot install signal handlers")?;
        output_queue::start(lost_output).context(FEW_THREADS)?;
        let startup = Arc::new(StartProgress::default());
        let (alive, stopped) = channel::<()>();
        let (give_back, given_back) = channel();
        let theirs = Arc::clone(&startup);
        let waiting = move || {
            signals.wait(&theirs);
            drop(alive);
            // If the start has failed, `send` fails, because the main thread no longer receives.
            let _ = give_back.send(signals);
        };
        Native::try_spawn("millrace-signals", None, waiting).context(FEW_THREADS)?;
        Ok(StartSignals { startup, stopped, signals: given_back })
    }
}

fn serve(
    mut plan: ServePlan,
    source: &Source,
    flags: StartFlags,
    signals: &StartSignals,
) -> anyhow::Result<ExitCode> {
    let startup = &*signals.startup;
    let reloader = ConfigReloader::new(source, &plan, flags);
    raise_descriptor_limit();
    view_sockets::refuse_unused_sockets(&plan)?;
    if let Some(folder) = &source.data_dir {
        startup.make_folder(folder)?;
    }
    let marks = Arc::new(open_marks(&plan, startup)?);
    let mut opened = drives::open(&plan, startup)?;
    marks.keep_for(opened.caches.iter().map(|(cache, _)| cache));
    startup.step("starting the drives' workers")?;
    thread_count::check(&plan, &opened)?;
    let workers = opened
        .start_workers(plan.config.server.backend)
        .context("cannot start the drives' workers; serving = \"inline\" needs none")?;
    startup.step("binding sockets and starting the servers' threads")?;
    let sockets = view_sockets::bind(&plan, flags.metrics)?;
    let warn = Arc::new(|text: &str| tracing::warn!("{text}"));
    let server = Servers::start(&plan.config, &opened, warn);
    let server = server.map_err(|error| start_error::to_problems(&plan, &error))?;
    startup.serves()?;
    take_real_ports(&mut plan, &server);
    opened.notes.extend(server.notes());
    warnings::on_plan(&plan, flags.metrics);
    warnings::on_start(&plan, &opened, &workers);
    tracing::debug!("{}", huge_pages::allowed());
    marks.lost().iter().for_each(|volume| tracing::warn!("{}", dirty_marks::warning(volume)));
    say(&report::serving(&plan, &opened, &workers, source.data_dir.as_deref()));
    say(&view_sockets::describe(&sockets));
    let server = Server::from_parts(&plan.config, opened, workers, server);
    let parts = (Arc::clone(&marks), Box::new(reloader) as _, Arc::clone(&sockets.metrics));
    let daemon = LiveDaemon::new(server, parts);
    startup.reload_by(&daemon);
    let views = ViewThread::start(sockets, Arc::new(AnsweringDaemon::new(&daemon)));
    let views = views.context("cannot start the thread of the control socket")?;
    signals::tell_manager(NotifyState::Ready);
    say(&format!("ready {}\n", std::process::id()));
    let mut watch = DaemonWatch::new(&daemon);
    watch.watch(&signals.stopped);
    let signals = signals.signals.recv().context("the thread of signals panicked")?;
    let code = stop(signals, (watch, daemon, marks));
    // The control socket closes last, so that its clients can watch the stop.
    drop(views);
    Ok(code)
}

fn open_marks(plan: &ServePlan, startup: &StartProgress) -> anyhow::Result<DirtyMarks> {
    let Some(state) = &plan.daemon.state else { return Ok(DirtyMarks::default()) };
    startup
        .step(format!("opening the state directory \"{}\" ([server] state)", state.display()))?;
    let is_dirtied =
        |one: &&VolumeConfig| one.cache.is_some_and(|cache| cache.mode == CacheMode::WriteBack);
    let volumes = plan.config.volumes.iter().filter(is_dirtied);
    let marks = DirtyMarks::open(state, volumes.map(|volume| volume.name.as_str()));
    marks.map_err(|error| {
        plan.problem(plan.lines.server.at("state"), format!("state: {error:#}")).into()
    })
}

/// Raises the limit on file descriptors as far as allowed. A guest needs three descriptors for each
/// queue, a client needs one, and shells start programs with a limit of 1,024.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Errors are ignored: the daemon then runs with its current limit on file descriptors.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn take_real_ports(plan: &mut ServePlan, server: &Servers) {
    for (listener, real) in plan.listeners.iter_mut().zip(server.addresses()) {
        if let Listen::Tcp(address) = real {
            listener.address = Listen::Tcp(*address);
        }
    }
}

/// Stops the servers, reports lost data, then stops the threads. A thread whose drive hangs may not
/// end, so the report comes first.
fn stop(
    signals: Signals,
    (mut watch, daemon, marks): (DaemonWatch, Arc<LiveDaemon>, Arc<DirtyMarks>),
) -> ExitCode {
    signals::tell_manager(NotifyState::Stopping);
    tracing::info!(
        "stopping: finishing what is in flight, {} s at most, then flushing; caches are written \
         out as long as their drives make progress",
        DRAIN_TIMEOUT.as_secs()
    );
    // A weak reference, so that the signal thread does not keep the drives open.
    let theirs = Arc::downgrade(&daemon);
    signals.exit_at_the_next_one(move || {
        tracing::error!("stopped at once by a second signal: requests in flight are not answered");
        if let Some(daemon) = theirs.upgrade() {
            log_lost(&daemon, DaemonEnd::SecondSignal);
        }
    });
    let Some(mut server) = daemon.server().take() else { return ExitCode::FAILURE };
    let (stopping, done) = channel::<()>();
    let mut hang = Vec::new();
    let outcome = std::thread::scope(|scope| {
        let watch = &mut watch;
        // If the watching thread cannot be started, `last_look` below still reports the failed
        // I/Os.
        let _ = thread::Builder::new().spawn_scoped(scope, move || watch.watch_stop(&done));
        let mut outcome = server.halt(DRAIN_TIMEOUT);
        if outcome.is_clean() {
            hang = server.join();
            outcome.failures.extend(hang.iter().cloned());
        }
        drop(stopping);
        outcome
    });
    // Logs the failed I/Os of drives and exports since the last check, including a failed last
    // flush.
    watch.last_look();
    match outcome.is_clean() {
        true => tracing::info!("{}", report::stopped(&outcome)),
        false => tracing::error!("{}", report::stopped(&outcome)),
    }
    marks.settle(|volume| dirty_data::is_lost(&daemon, volume, &outcome.failures));
    if outcome.is_clean() {
        return ExitCode::SUCCESS;
    }
    // The control socket is removed before the threads are joined, because a join may wait for a
    // drive. Programs that wait for the socket's removal are not delayed.
    remove_socket_files();
    if hang.is_empty() {
        hang = server.join();
        hang.iter().for_each(|failure| tracing::error!("{failure}"));
    }
    if hang.is_empty() {
        return ExitCode::FAILURE;
    }
    // Exits without closing drives, because closing a hanging drive would hang.
    output_queue::finish();
    std::process::exit(1);
}
