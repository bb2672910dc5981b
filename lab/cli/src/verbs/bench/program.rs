//! `bench --program`: runs servers, utilities, writers and a graph engine on drives of this
//! program.
//!
//! Each program is measured with each serving mode, and the results are printed as a table. For
//! each measurement, drives are opened anew, behind the cache that the program uses.
//! millrace-experiments has the programs. The verb calls this module for `--program`, and then
//! measures nothing else.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use millrace::{Words, build_volume, cache_over};
use millrace_console::{ProgressBar, Side, TextGrid};
use millrace_experiments::Interrupt;
use millrace_experiments::programs::Task;
use millrace_experiments::programs::native::{ProgramPlan, ProgramRun, run_program_row};
use millrace_runtime::CacheFlusher;

use super::args::BenchArgs;
use super::plan::{self, RowPlan};
use crate::verbs::drive_notes::DriveNotes;
use crate::verbs::interrupt;

struct Line {
    plan: RowPlan,
    task: Task,
    run: ProgramRun,
}

impl Line {
    fn per_second(&self) -> f64 {
        if self.run.seconds > 0.0 { self.run.operations as f64 / self.run.seconds } else { 0.0 }
    }
}

/// Runs the programs. The exit code is 0 if every I/O succeeded, 1 if some failed, 130 after
/// Ctrl-C.
pub fn run(args: &BenchArgs, interrupt: &Interrupt) -> Result<ExitCode> {
    if args.target.drive.is_empty() {
        bail!("--program: needs drives to work on, such as --drive model:preset=850evo");
    }
    let (plans, tasks) = (plan::rows(args)?, &args.program.program);
    let writer = tasks.iter().find(|task| task.writes());
    super::check_overwrite(args, writer.map(|task| format!("program {task}")))?;
    let mut bar = ProgressBar::new(plans.len() * tasks.len());
    let (mut lines, mut notes) = (Vec::new(), Vec::new());
    for (task, plan) in tasks.iter().flat_map(|task| plans.iter().map(move |plan| (*task, plan))) {
        if interrupt.is_set() {
            break;
        }
        bar.show(lines.len(), &format!("{task} {}", plan.serving.serving.name()), 0.0);
        let run = run_one(args, (task, plan), (interrupt, &mut notes))?;
        lines.push(Line { plan: plan.clone(), task, run });
    }
    bar.clear();
    notes.sort();
    notes.dedup();
    notes.iter().for_each(|note: &String| millrace_console::tell!("note: {note}"));
    print(args, &lines)?;
    let errors: u64 = lines.iter().map(|line| line.run.errors).sum();
    if errors > 0 {
        millrace_console::tell!("{errors} I/Os of programs failed");
    }
    Ok(interrupt::exit_code(interrupt, u8::from(errors > 0)))
}

fn run_one(
    args: &BenchArgs,
    (task, row): (Task, &RowPlan),
    (interrupt, notes): (&Interrupt, &mut Vec<String>),
) -> Result<ProgramRun> {
    let threads = u16::try_from(task.threads()).context("threads of a program")?;
    let cache = args.target.cache.or_else(|| task.cache());
    let options = row.volume_options(args, threads + u16::from(cache.is_some()))?;
    let (volume, mut remarks) =
        build_volume("bench", args.target.layout(), &args.target.drives()?, &options)?;
    notes.append(&mut remarks);
    let _news = DriveNotes::of([&volume]);
    let cached = cache.map(|cache| cache_over(Arc::clone(&volume), cache, threads)).transpose()?;
    let (volume, cache) = match cached {
        Some((over, cache)) => (over, Some(cache)),
        None => (volume, None),
    };
    let start = |cache| CacheFlusher::start(cache, threads, row.plan.reactor);
    let mut flusher = cache.as_ref().map(start).transpose()?;
    let plan = ProgramPlan {
        cpus: row.plan.cpus.clone(),
        runtime: row.plan.runtime,
        seed: args.workload.seed,
        reactor: row.plan.reactor,
        interrupt: interrupt.clone(),
    };
    let run = run_program_row(&volume, task, &plan);
    if let Some(flusher) = &mut flusher {
        flusher.stop()?;
    }
    Ok(run?)
}

fn print(args: &BenchArgs, lines: &[Line]) -> Result<()> {
    if args.json() {
        let rows: Vec<serde_json::Value> = lines.iter().map(|line| json(args, line)).collect();
        return super::say_json(&rows);
    }
    let left = ["program", "serving", "stack"].map(|name| (name, Side::Left));
    let right = ["threads", "op/s", "of the first"].map(|name| (name, Side::Right));
    let mut grid = TextGrid::new(left.into_iter().chain(right));
    for line in lines {
        let first =
            lines.iter().find(|other| other.task == line.task).map_or(0.0, Line::per_second);
        let share = if first > 0.0 { line.per_second() / first } else { 0.0 };
        grid.row([
            line.task.to_string(),
            line.plan.serving.serving.name().to_owned(),
            line.plan.stack.word().to_owned(),
            line.run.threads.to_string(),
            format!("{:.0}", line.per_second()),
            format!("{share:.2}"),
        ]);
    }
    let drives = args.target.drives()?.iter().map(ToString::to_string).collect::<Vec<_>>();
    let text = format!(
        "{}: an op is a file operation of a server, or 4 KiB that another program reads, writes or \
         copies\n{}\n",
        drives.join("+"),
        grid.text()
    );
    millrace_console::say(&text);
    Ok(())
}

fn json(args: &BenchArgs, line: &Line) -> serde_json::Value {
    serde_json::json!({
        "program": line.task.to_string(),
        "serving": line.plan.serving.serving.name(),
        "stack": line.plan.stack.word(),
        "threads": line.run.threads,
        "operations": line.run.operations,
        "seconds": line.run.seconds,
        "operations_per_second": line.per_second(),
        "total_err": line.run.errors,
        "drives": args.target.drive,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::bench::test_args::parse;

    #[test]
    fn programs_are_called_by_name_and_refuse_their_own_options() {
        let args = parse("--program tar,fileserver --drive null").unwrap();
        assert_eq!(
            args.program.program.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["tar", "fileserver"]
        );
        for own in ["--rw read", "--bs 4k", "--machine x5690", "--iodepth 1", "--numjobs 2"] {
            assert!(parse(&format!("--program tar {own}")).is_err(), "{own}");
        }
        let wrong = parse("--program nginx").unwrap_err().to_string();
        assert!(wrong.contains("not a program; there are writers, pagerank"), "{wrong}");
    }

    #[test]
    fn each_program_runs_on_modelled_drives() {
        let drives = "--drive model:preset=950pro --drive model:preset=950pro";
        let names = "writers,pagerank,webserver,copy-from,copy-to,tar,untar";
        let args = format!("--program {names} --serving inline --runtime 20ms {drives}");
        let args = parse(&args).unwrap();
        let (row, mut notes) = (&plan::rows(&args).unwrap()[0], Vec::new());
        for task in &args.program.program {
            let run = run_one(&args, (*task, row), (&Interrupt::default(), &mut notes)).unwrap();
            assert!(run.operations > 0 && run.errors == 0, "{task}: {run:?}");
        }
    }
}
