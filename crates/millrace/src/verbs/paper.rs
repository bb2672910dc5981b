//! `millrace paper`: repeats a paper's experiments and sets its numbers beside ours.
//!
//! Called by cli.rs. Experiments and their page are the lab's; this prints the page and writes it
//! as one HTML file. Exit status 0 whatever the checks say: they are findings, not failures.
#![allow(clippy::print_stderr)]

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context, Result};
use millrace_lab::systor13::{Part, systor13};

use super::bar::Bar;

const EXAMPLES: &str = "\
Examples:
  millrace paper
      all of SYSTOR 2013: tables, checks, and systor13.html to look at
  millrace paper systor13:fig9,fig10
      two figures
  millrace paper systor13 --json --html /tmp/p.html
      for a program, and the page elsewhere";

/// What of which paper.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Wanted(Vec<Part>);

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Wanted, String> {
        let (paper, parts) = text.split_once(':').unwrap_or((text, ""));
        if paper != "systor13" {
            return Err(format!("{paper}: no such paper here; there is systor13"));
        }
        if parts.is_empty() {
            return Ok(Wanted(Part::all()));
        }
        let mut parts = parts.split([',', ':']).map(str::parse).collect::<Result<Vec<_>, _>>()?;
        parts.sort();
        parts.dedup();
        Ok(Wanted(parts))
    }
}

/// Arguments of `paper`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Paper, and parts of it: systor13[:fig4|fig6|fig7|fig8|fig9|fig10|table2|today,...]
    #[arg(default_value = "systor13", value_name = "PAPER[:PART,...]")]
    wanted: Wanted,
    /// Where the page goes
    #[arg(long, default_value = "systor13.html", value_name = "FILE")]
    html: PathBuf,
    /// Seed of the simulations
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print checks, figures and tables as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the verb.
///
/// # Errors
/// If a simulation fails or the page cannot be written.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut bar = Bar::new(1, std::io::stderr().is_terminal());
    let start = Instant::now();
    let page = systor13(&args.wanted.0, args.seed, |done| bar.show(0, "systor13", done))?;
    bar.clear();
    std::fs::write(&args.html, page.html())
        .with_context(|| format!("{}: cannot write the page", args.html.display()))?;
    let text = if args.json { page.json() } else { page.text() };
    super::say(&text);
    eprintln!("note: {} written, {:.1} s", args.html.display(), start.elapsed().as_secs_f64());
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_paper_are_named_after_a_colon() {
        assert_eq!("systor13".parse(), Ok(Wanted(Part::all())));
        assert_eq!("systor13:fig10,fig9".parse(), Ok(Wanted(vec![Part::Fig9, Part::Fig10])));
        assert!("systor13:fig5".parse::<Wanted>().unwrap_err().contains("fig4, fig6"));
        assert!("atc17".parse::<Wanted>().is_err());
    }
}
