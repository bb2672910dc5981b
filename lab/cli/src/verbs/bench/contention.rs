//! `bench --client`: runs clients with different workloads on the same drives, and shows the
//! service that each gets.
//!
//! The flags become a plan for each scheduler (clients.rs reads the clients). The lab runs each
//! plan on a simulated machine or on this one. At the end, this module prints a table or JSON. The
//! verb calls this module for `--client`, and then measures nothing else.

mod clients;
mod table;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use millrace_block::CostModel;
use millrace_console::Form;
use millrace_console::words::duration;
use millrace_experiments::load::contention::{
    ContentionPlan, ContentionReport, Phases, contend, contend_simulated,
};
use millrace_experiments::simulation::{machine, run_rows};

use super::args::BenchArgs;
use super::row_flags::rows_only;
use table::table;

const RUNTIME: Duration = Duration::from_secs(1);
const WARM_UP: Duration = Duration::from_millis(200);

/// Flags that conflict with `--client`. Some are replaced by a key of `--client`, such as `rw`. The
/// rest have no effect on clients.
const OTHERS: &str = "\
    connect virtqueue trace locks verify rw rwmixread bs size iodepth numjobs cpus cpu_list ios \
    serving workers states stack controller calibrate backend stamp plug_high plug_low";

/// Flags for clients with different workloads.
#[derive(Debug, Clone, Args)]
pub struct ContentionArgs {
    /// A client with a workload of its own, `KEY=VALUE,...`; several --client contend for the same
    /// drives. Keys, all optional: name; numjobs (number of such clients), rw, bs, iodepth,
    /// thinktime (its pause after an answer), fsync (writes from one flush to the next), sync=1
    /// (writes are durable once they complete), cpu, start (delay before it begins); group (clients
    /// that name the same group share it; each has its own by default), and for the group weight,
    /// priority (realtime, best-effort, idle), latency-target (p99 2ms, mean 1ms), iops, read-iops,
    /// write-iops, bandwidth, read-bandwidth, write-bandwidth (limits per second), burst (time for
    /// which unused rate accumulates)
    #[arg(long, value_name = "CLIENT", conflicts_with_all = rows_only(OTHERS))]
    pub client: Vec<String>,
    /// With --client, time that the clients run before the measurement begins [default: 200ms]
    #[arg(long, value_name = "TIME", requires = "client", value_parser = duration)]
    pub warm_up: Option<Duration>,
}

/// Runs the clients with each scheduler. The exit code is 0 if every I/O succeeded, 1 if some
/// failed.
pub fn run(args: &BenchArgs) -> Result<ExitCode> {
    let plans = plans(args)?;
    let contests: Vec<ContentionReport> = match &args.machine.machine {
        Some(name) => {
            let model = machine(name).context("--machine")?;
            run_rows(plans.len(), |index| contend_simulated(&model, &plans[index]), |_| ())?
        }
        None => {
            let writers = plans.iter().flat_map(|plan| &plan.clients);
            let writer = writers.into_iter().find(|client| client.rw.writes());
            super::check_overwrite(args, writer.map(|client| format!("client {}", client.name)))?;
            plans.iter().map(contend).collect::<Result<_, _>>()?
        }
    };
    if args.json() {
        super::say_json(&contests)?;
    } else {
        let form = if args.workload.extended { Form::Whole } else { Form::Short };
        let tables = contests.iter().map(|contest| table(contest, form));
        millrace_console::say(&format!("{}\n", tables.collect::<Vec<_>>().join("\n\n")));
    }
    let clients = contests.iter().flat_map(|contest| &contest.clients);
    let failed: Vec<_> = clients.filter(|row| row.failed.errors > 0).collect();
    for row in &failed {
        let first = row.failed.error_text.as_deref().unwrap_or("no detail");
        millrace_console::tell!("client {}: {} errors: {first}", row.name, row.failed.errors);
    }
    Ok(ExitCode::from(u8::from(!failed.is_empty())))
}

fn plans(args: &BenchArgs) -> Result<Vec<ContentionPlan>> {
    let (groups, clients) = clients::read(&args.contend.client)?;
    let queues = (&args.queues.software_queues[..], &args.queues.hardware_queues[..]);
    let (&[software_queues], &[hardware_queues]) = queues else {
        bail!("--client: accepts one --software-queues and one --hardware-queues, not a list")
    };
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let phases = Phases {
        warm_up_ns: ns(args.contend.warm_up.unwrap_or(WARM_UP)),
        length_ns: ns(args.workload.runtime.unwrap_or(RUNTIME)),
        step_ns: None,
        times: false,
    };
    let plan = ContentionPlan {
        drives: args.target.drives()?,
        layout: args.target.layout(),
        scheduler: args.queues.scheduler[0],
        queues: (software_queues, hardware_queues),
        cost: CostModel::default(),
        groups,
        clients,
        phases,
        seed: args.workload.seed,
    };
    let with = |scheduler| ContentionPlan { scheduler, ..plan.clone() };
    Ok(args.queues.scheduler.iter().copied().map(with).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        bench: BenchArgs,
    }

    fn parse(words: &[&str]) -> Result<Command, clap::Error> {
        Command::try_parse_from(["bench"].iter().chain(words))
    }

    #[test]
    fn each_scheduler_has_a_plan_of_all_clients() {
        let words = [
            "--machine",
            "x5690",
            "--scheduler",
            "none,deadline",
            "--drive",
            "model:preset=850evo",
            "--runtime",
            "50ms",
            "--client",
            "weight=300,numjobs=2",
            "--client",
            "rw=write,bs=128k,start=10ms",
        ];
        let plans = plans(&parse(&words).unwrap().bench).unwrap();
        assert_eq!((plans.len(), plans[0].clients.len(), plans[0].groups.len()), (2, 3, 3));
        assert_eq!(plans[0].phases.warm_up_ns, 200_000_000);
    }

    #[test]
    fn flags_for_all_jobs_do_not_go_with_clients() {
        for more in ["--rw=read", "--iodepth=1", "--cpus=2", "--stack=sq", "--locks"] {
            assert!(parse(&["--client", "bs=4k", more]).is_err(), "{more}");
        }
        assert!(parse(&["--warm-up", "1s"]).is_err());
    }

    #[test]
    fn flag_without_its_subject_is_always_refused() {
        for (words, said) in [
            (&["--warm-up", "1s", "--ios", "1"][..], "--warm-up: has no effect without --c"),
            (&["--wait", "poll", "--drive", "null"], "--wait: has no effect without --conn"),
        ] {
            let error = parse(words).unwrap().bench.check_needs().unwrap_err().to_string();
            assert!(error.starts_with(said), "{error}");
        }
        let right = parse(&["--warm-up", "1s", "--client", "bs=4k"]).unwrap().bench;
        assert!(right.check_needs().is_ok());
    }
}
