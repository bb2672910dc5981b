//! A worker process that runs scenarios one after the other, and its parent's handle (`Worker`).
//!
//! A failed assertion of the block layer aborts a release build, so every scenario runs in a child
//! process, and the death of a child counts as a violation. The child reads tasks (`WorkerOrder`)
//! as lines of JSON, and writes one line of JSON for each scenario. A task may cover many seeds, so
//! that a worker does not wait for its parent after each seed.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use millrace_experiments::explorer::{self, Scenario, ScenarioOutcome, Violation};
use nix::time::ClockId;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::args::WorkerTask;

#[derive(Debug, Clone, Copy)]
struct TimeLimits {
    /// Limit on the worker's CPU time. Other load on the machine does not use up this time.
    processor: Duration,
    /// Limit on the elapsed time, for a worker that hangs asleep and so uses no CPU time.
    wall: Duration,
}

const PATIENCE: TimeLimits =
    TimeLimits { processor: Duration::from_secs(60), wall: Duration::from_secs(600) };
const LOOK: Duration = Duration::from_millis(100);

/// A message that tells a worker process what to run.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerOrder {
    /// Run the scenarios of consecutive seeds, up to the first violation. Fields: the first seed,
    /// and the number of seeds.
    Seeds(u64, u64),
    Scenario(Box<Scenario>),
}

/// Reply of a worker about one scenario.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerReply {
    Outcome(ScenarioOutcome),
    Invalid(String),
}

/// Main loop of a worker process, until its input ends.
pub fn serve(task: WorkerTask<'_>) -> Result<ExitCode> {
    std::panic::set_hook(Box::new(|panic| {
        let violation = explorer::violation_so_far().unwrap_or_else(|| {
            let payload = panic.payload();
            let text = payload.downcast_ref::<&str>().map(ToString::to_string);
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
            let detail = text.unwrap_or_else(|| "a panic payload that is not a string".to_owned());
            let place = panic.location().map(ToString::to_string).unwrap_or_default();
            Violation { kind: "panic".to_owned(), detail: format!("{detail} ({place})") }
        });
        answer(&WorkerReply::Outcome(failed(violation)));
        std::process::exit(3);
    }));
    explorer::with_bug(task.plant, || {
        for line in std::io::stdin().lock().lines() {
            match serde_json::from_str(&line?).context("an order")? {
                WorkerOrder::Seeds(first, count) => {
                    let mut seeds = first..first.saturating_add(count);
                    while seeds.next().is_some_and(|seed| play(&task.scenario_of(seed))) {}
                }
                WorkerOrder::Scenario(scenario) => {
                    play(&scenario);
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    })
    .map_err(|text| anyhow!(text))?
}

fn play(scenario: &Scenario) -> bool {
    let reply = match explorer::run(scenario) {
        Ok(outcome) => WorkerReply::Outcome(outcome),
        Err(text) => WorkerReply::Invalid(text),
    };
    answer(&reply);
    matches!(reply, WorkerReply::Outcome(ScenarioOutcome { violation: None, .. }))
}

fn answer(reply: &WorkerReply) {
    let text = serde_json::to_string(reply).expect("plain data always serializes");
    millrace_console::say(&format!("{text}\n"));
}

fn failed(violation: Violation) -> ScenarioOutcome {
    ScenarioOutcome { ios: 0, events: 0, virtual_ns: 0, digest: 0, violation: Some(violation) }
}

#[derive(Debug)]
enum WorkerFailure {
    Slow(String),
    Dead,
}

impl WorkerProcess {
    fn reply(&self, patience: TimeLimits) -> Result<String, WorkerFailure> {
        let (start, spent) = (Instant::now(), self.processor_time());
        loop {
            match self.replies.recv_timeout(LOOK) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Disconnected) => return Err(WorkerFailure::Dead),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.processor_time().saturating_sub(spent) >= patience.processor {
                let most = patience.processor.as_secs();
                return Err(WorkerFailure::Slow(format!("no reply within {most} s of CPU time")));
            }
            if start.elapsed() >= patience.wall {
                let most = patience.wall.as_secs();
                return Err(WorkerFailure::Slow(format!("no reply within {most} s")));
            }
        }
    }

    fn processor_time(&self) -> Duration {
        let worker = Pid::from_raw(self.child.id().cast_signed());
        let now = ClockId::pid_cpu_clock_id(worker).and_then(ClockId::now);
        now.map_or(Duration::ZERO, Duration::from)
    }
}

pub struct Worker {
    plant: Option<String>,
    cache: bool,
    running: Option<WorkerProcess>,
}

struct WorkerProcess {
    child: Child,
    orders: ChildStdin,
    replies: Receiver<String>,
}

impl Worker {
    pub fn new(subject: WorkerTask<'_>) -> Worker {
        let plant = subject.plant.map(str::to_owned);
        Worker { plant, cache: subject.cache, running: None }
    }

    /// Runs a scenario. If the worker dies or does not reply, the outcome is a violation.
    pub fn run(&mut self, scenario: &Scenario) -> Result<ScenarioOutcome> {
        let running = self.order(&WorkerOrder::Scenario(Box::new(scenario.clone())))?;
        self.outcome(running)
    }

    /// Runs the scenarios of `count` seeds, from `first` on. `each` receives each seed's outcome
    /// and returns true to continue.
    pub fn run_seeds(
        &mut self,
        first: u64,
        count: u64,
        mut each: impl FnMut(u64, ScenarioOutcome) -> bool,
    ) -> Result<()> {
        let (mut seed, end) = (first, first.saturating_add(count));
        while seed < end {
            let mut running = Some(self.order(&WorkerOrder::Seeds(seed, end - seed))?);
            while let Some(worker) = running.take() {
                let outcome = self.outcome(worker);
                let outcome = outcome.with_context(|| format!("seed {seed}"))?;
                seed += 1;
                if !each(seed - 1, outcome) {
                    // The caller needs no more outcomes, but the worker process may already be
                    // running the next seed: stop the process.
                    self.stop();
                    return Ok(());
                }
                if seed < end {
                    running = self.running.take();
                }
            }
        }
        Ok(())
    }

    fn order(&mut self, order: &WorkerOrder) -> Result<WorkerProcess> {
        let mut running = match self.running.take() {
            Some(running) => running,
            None => start(WorkerTask { plant: self.plant.as_deref(), cache: self.cache })?,
        };
        let line = serde_json::to_string(order).context("an order as JSON")?;
        // If the worker has died, this write fails. The missing reply then reveals the death.
        let _ = writeln!(running.orders, "{line}");
        Ok(running)
    }

    fn outcome(&mut self, running: WorkerProcess) -> Result<ScenarioOutcome> {
        match running.reply(PATIENCE) {
            Ok(line) => {
                let reply = serde_json::from_str(&line).context("a worker's reply")?;
                let WorkerReply::Outcome(outcome) = reply else {
                    self.running = Some(running);
                    let WorkerReply::Invalid(text) = reply else { unreachable!("there are two") };
                    return Err(anyhow!(text));
                };
                // After a violation memory may have leaked or be corrupt, so the next scenario gets
                // a new process.
                match outcome.violation {
                    None => self.running = Some(running),
                    Some(_) => drop(end(running)),
                }
                Ok(outcome)
            }
            Err(WorkerFailure::Slow(detail)) => {
                end(running)?;
                Ok(failed(Violation { kind: "hang".to_owned(), detail }))
            }
            Err(WorkerFailure::Dead) => {
                let detail = format!("the worker died: {}", end(running)?);
                Ok(failed(Violation { kind: "crash".to_owned(), detail }))
            }
        }
    }

    fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            let _ = end(running);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
    }
}

fn end(mut running: WorkerProcess) -> Result<ExitStatus> {
    drop(running.orders);
    // A worker exits when its input is closed, unless it hangs.
    match running.replies.recv_timeout(Duration::from_millis(200)) {
        Err(RecvTimeoutError::Disconnected) => {}
        _ => running.child.kill().context("cannot stop a worker process")?,
    }
    running.child.wait().context("cannot wait for a worker process")
}

fn start(task: WorkerTask<'_>) -> Result<WorkerProcess> {
    let program = std::env::current_exe().context("the path of this program")?;
    let mut command = Command::new(program);
    // Ctrl-C on a terminal must reach only the verb, which ends its workers itself.
    command.args(["explore", "--worker"]).args(task.cache.then_some("--cache")).process_group(0);
    if let Some(plant) = task.plant {
        command.args(["--plant", plant]);
    }
    // With these settings glibc keeps freed memory for the next scenario, instead of returning it
    // to the system.
    for (key, bytes) in [("TRIM_THRESHOLD", 1u64 << 30), ("MMAP_THRESHOLD", 1 << 25)] {
        command.env(format!("MALLOC_{key}_"), bytes.to_string());
    }
    spawn(&mut command)
}

fn spawn(command: &mut Command) -> Result<WorkerProcess> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().context("cannot start a worker process")?;
    let orders = child.stdin.take().context("a worker without input")?;
    let out = child.stdout.take().context("a worker without output")?;
    let (sender, replies) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    Ok(WorkerProcess { child, orders, replies })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the failure reported for a shell that runs this script and does not reply.
    fn silence(script: &str, processor_ms: u64, wall_ms: u64) -> WorkerFailure {
        let running = spawn(Command::new("sh").args(["-c", script])).unwrap();
        let [processor, wall] = [processor_ms, wall_ms].map(Duration::from_millis);
        let silence = running.reply(TimeLimits { processor, wall }).unwrap_err();
        end(running).unwrap();
        silence
    }

    #[test]
    fn worker_hangs_by_its_processor_time_or_after_long_time_of_any() {
        let busy = silence("while :; do :; done", 100, 600_000);
        assert!(matches!(busy, WorkerFailure::Slow(text) if text.ends_with("of CPU time")));
        let asleep = silence("exec sleep 1000", 60_000, 300);
        assert!(matches!(asleep, WorkerFailure::Slow(text) if text.ends_with("within 0 s")));
        assert!(matches!(silence("exit 0", 60_000, 600_000), WorkerFailure::Dead));
    }
}
