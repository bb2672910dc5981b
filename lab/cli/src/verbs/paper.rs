//! `millrace-lab paper`: repeats experiments of papers and compares the papers' figures with our
//! results.
//!
//! Called by cli.rs. The lab has the experiments and their pages; this verb prints each page and,
//! with `--output`, writes it as one HTML file. The exit status is 1 if a check fails. After
//! Ctrl-C, the verb prints the parts that are complete, but writes no page. So an incomplete page
//! never replaces a complete one.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use millrace_console::words::{whole, word};
use millrace_console::{ProgressBar, WIDTH, wrapped};
use millrace_drives::Words;
use millrace_experiments::page::{Check, CheckKind, CheckVerdict, Page};
use millrace_experiments::papers::{PAPERS, Paper};
use millrace_experiments::{Interrupt, Mechanism, PartSelection, Step};

use super::interrupt::{self, INTERRUPTED};

const EXAMPLES: &str = "\
Examples:
  millrace-lab paper
      all papers: tables and checks; no file is written
  millrace-lab paper -o /tmp
      all papers, with plots in /tmp/systor13.html, /tmp/atc17.html and so on
  millrace-lab paper systor13:fig9,fig10 -o .
      two figures; their page is systor13-fig9-fig10.html in this directory
  millrace-lab paper systor13:fig4 --without lines,spinners
      each point twice, the second time without two mechanisms of the machine: what hangs on them
  millrace-lab paper atc17 --json -o /tmp/p.html
      one paper for a program, and its page in a file of this name

Mechanisms of machines: spinners, distance, links, queueing, lines, sharing, fairness.
Of systor13: dio-count, queue-counters, noise
Of atc17: lookup-lock, host-busy, controller-lock, coalescing, dies
Of msst15: preemption, roaming, bound, translation, signals
Of ols02: copies, kernel, driver-lock, adapter-command, adapter-bandwidth, crowd

Exit status: 0 if every check holds, 1 if one does not (its name and the reason are printed), 130 \
after Ctrl-C, which prints the parts that were finished. What a check finds --without a mechanism \
does not count.

Parts of systor13: fig4, fig6, fig7, fig8, fig9, fig10, table2, today
Parts of atc17: scaling, stripes, controllers, watermarks, latency, ideal, tags, fairness, nvme,
    auto, buffered, ext4, graph, servers, utilities
Parts of msst15: null, nvme, gap, threads, ablations, effects, dearer
Parts of ols02: dm, readv, dsw, calls, native, ablations
Parts of schedulers: scaling, weights, equal, shallow, target, limits, idle, disk";

#[derive(Debug, Clone)]
struct PaperSelection {
    paper: &'static Paper,
    parts: Vec<&'static str>,
}

impl PaperSelection {
    fn whole(paper: &'static Paper) -> PaperSelection {
        PaperSelection { paper, parts: paper.parts.to_vec() }
    }

    /// Adds the parts in `other`, such as `fig4`, if both selections are for the same paper.
    /// Otherwise, adds nothing and returns false.
    fn takes(&mut self, other: &PaperSelection) -> bool {
        let is_same = self.paper.name == other.paper.name;
        if is_same {
            let all = self.paper.parts.iter().copied();
            let has = |part: &&str| self.parts.contains(part) || other.parts.contains(part);
            self.parts = all.filter(has).collect();
        }
        is_same
    }

    fn check_without(&self, without: &[Mechanism]) -> Result<()> {
        let known = match without {
            [] => Vec::new(),
            _ => self.paper.mechanisms(&self.parts)?,
        };
        let Some(other) = without.iter().find(|one| !known.contains(one)) else { return Ok(()) };
        let (name, word) = (self.paper.name, other.word());
        if known.is_empty() {
            bail!(
                "--without {word}: only mechanisms of a simulated machine can be left out, and \
                 {name} measures this machine"
            );
        }
        let known: Vec<&str> = known.iter().map(|mechanism| mechanism.word()).collect();
        bail!(
            "--without {word}: the runs of {name} do not have this mechanism; they have {}",
            known.join(", ")
        );
    }

    /// Returns the file name of the HTML page for the selected parts. If only some parts are
    /// selected, or `--without` is given, the name differs from that of the complete page, which
    /// must not be replaced.
    fn file(&self, without: &[Mechanism]) -> PathBuf {
        let mut name = vec![self.paper.name];
        if self.parts.len() < self.paper.parts.len() {
            name.extend(&self.parts);
        }
        if !without.is_empty() {
            name.push("without");
            name.extend(without.iter().map(|mechanism| mechanism.word()));
        }
        format!("{}.html", name.join("-")).into()
    }
}

impl FromStr for PaperSelection {
    type Err = String;

    fn from_str(text: &str) -> Result<PaperSelection, String> {
        let (paper, parts) = text.split_once(':').unwrap_or((text, ""));
        if text.ends_with(':') {
            return Err(format!(
                "{text}: add the names of figures or tables after the colon, or remove the colon"
            ));
        }
        let Some(found) = PAPERS.iter().find(|known| known.name == paper) else {
            let no = match paper {
                "" => "no paper is named".to_owned(),
                paper => format!("there is no paper {paper}"),
            };
            let names: Vec<&str> = PAPERS.iter().map(|known| known.name).collect();
            let (last, others) = names.split_last().expect("there are several papers");
            return Err(format!("{no}; choose {} or {last}", others.join(", ")));
        };
        match parts.is_empty() {
            true => Ok(PaperSelection::whole(found)),
            false if found.parts.is_empty() => Err(format!("{text}: {paper} has no parts")),
            false => Ok(PaperSelection { paper: found, parts: parts_of(parts, found)? }),
        }
    }
}

fn parts_of(list: &str, paper: &Paper) -> Result<Vec<&'static str>, String> {
    let named: Vec<&str> = list.split([',', ':']).collect();
    if named.contains(&"") {
        return Err(format!("{list}: a part has no name; remove the comma"));
    }
    if let Some(other) = named.iter().find(|word| !paper.parts.contains(word)) {
        let (paper, all) = (paper.name, paper.parts.join(", "));
        return Err(format!("{paper} has no part {other}; choose from {all}"));
    }
    Ok(paper.parts.iter().copied().filter(|part| named.contains(part)).collect())
}

/// Arguments of `paper`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Papers to repeat, or parts of papers: systor13[:fig4,...], atc17[:scaling,...],
    /// msst15[:null,...], ols02[:dm,...]. Two names stand for experiments of our own:
    /// schedulers[:weights,...] compares schedulers, and walk measures this machine [default: all
    /// papers and experiments]
    #[arg(value_name = "PAPER[:PART,...]")]
    wanted: Vec<PaperSelection>,
    /// Write the page with plots to this file, or into this directory as PAPER.html, or as
    /// PAPER-PART.html if parts are given [default: no page is written]
    #[arg(short, long, value_name = "FILE|DIRECTORY", alias = "html")]
    output: Option<PathBuf>,
    /// Run each simulation twice and show both results side by side. The second run is without the
    /// given mechanisms of the simulated machine or kernel, which are listed below
    #[arg(long, value_name = "MECHANISM,...", value_delimiter = ',')]
    #[arg(value_parser = word::<Mechanism>)]
    without: Vec<Mechanism>,
    /// Seed of the simulations
    #[arg(long, default_value_t = 1, value_parser = whole::<u64>(0..=u64::MAX))]
    seed: u64,
    /// Print checks, figures and tables as JSON; for several papers, one object with a key for each
    /// paper
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<ExitCode> {
    let papers = match args.wanted.as_slice() {
        [] => PAPERS.iter().map(PaperSelection::whole).collect(),
        wanted => each_paper(wanted),
    };
    let without = each_once(&args.without);
    papers.iter().try_for_each(|paper| paper.check_without(&without))?;
    if let Some(output) = &args.output {
        check_output(output, papers.len())?;
    }
    let interrupt = interrupt::on_ctrl_c()?;
    let (mut pages, mut unwritten) = (Vec::new(), None);
    for paper in &papers {
        let start = Instant::now();
        let page = page_of(paper, (args, &without), &interrupt)?;
        if !args.json {
            millrace_console::say(&page.text());
        }
        let file = args.output.as_ref().map(|output| file_in(output, paper, &without));
        if let Some(file) = file.filter(|_| !interrupt.is_set()) {
            unwritten = unwritten.or(write(&page, &file, start).err());
        }
        pages.push((paper.paper.name, page));
        if interrupt.is_set() {
            break;
        }
    }
    if args.json {
        millrace_console::say(&json_of(&pages));
    }
    if interrupt.is_set() {
        let last = pages.last().map_or("", |(name, _)| name);
        millrace_console::tell!(
            "interrupted during {last}: its finished parts are above, but its page was not written"
        );
        return Ok(ExitCode::from(INTERRUPTED));
    }
    if let Some(error) = unwritten {
        return Err(error);
    }
    let failed = failed(&pages);
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    millrace_console::tell!("{}", wrapped(failed.split(' ').map(str::to_owned), WIDTH));
    Ok(ExitCode::from(1))
}

fn each_paper(wanted: &[PaperSelection]) -> Vec<PaperSelection> {
    let mut each: Vec<PaperSelection> = Vec::new();
    for one in wanted {
        if !each.iter_mut().any(|paper| paper.takes(one)) {
            each.push(one.clone());
        }
    }
    each
}

fn each_once(mechanisms: &[Mechanism]) -> Vec<Mechanism> {
    let mut each = Vec::new();
    for one in mechanisms {
        if !each.contains(one) {
            each.push(*one);
        }
    }
    each
}

/// Lists the checks that do not hold, in a sentence. Returns an empty text if all hold.
fn failed(pages: &[(&str, Page)]) -> String {
    let no = |check: &&Check| check.kind != CheckKind::Input && check.holds == CheckVerdict::No;
    let of = |(_, page): &'_ (_, Page)| {
        page.checks.iter().filter(no).map(|check| check.id.clone()).collect::<Vec<_>>()
    };
    let names: Vec<String> = pages.iter().flat_map(of).collect();
    match names.len() {
        0 => String::new(),
        1 => format!("1 check does not hold: {}; the tables above show why", names[0]),
        count => {
            format!("{count} checks do not hold: {}; the tables above show why", names.join(", "))
        }
    }
}

fn page_of(
    paper: &PaperSelection,
    (args, without): (&Args, &[Mechanism]),
    interrupt: &Interrupt,
) -> Result<Page> {
    let mut bar = ProgressBar::new(0);
    let PaperSelection { paper, parts } = paper;
    let wanted = PartSelection { parts, seed: args.seed, without };
    let page = paper.run(wanted, &mut |step: Step<'_>| {
        bar.step(step.done, step.of, &format!("{}: {}", paper.name, step.task));
        if interrupt.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    bar.clear();
    Ok(page)
}

fn file_in(output: &Path, paper: &PaperSelection, without: &[Mechanism]) -> PathBuf {
    if output.is_dir() { output.join(paper.file(without)) } else { output.to_owned() }
}

/// Returns an error if the pages of `papers` papers cannot be written to `output`. Called before
/// the simulations, which may take long.
fn check_output(output: &Path, papers: usize) -> Result<()> {
    if output.is_dir() {
        return Ok(());
    }
    if papers > 1 {
        bail!(
            "--output {}: this is not a directory, and there are {papers} papers; make it a \
             directory, or \
             name one paper",
            output.display()
        );
    }
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty());
    if !folder.is_none_or(Path::is_dir) {
        bail!(
            "--output {}: the page cannot go there; name a directory, or a file in a directory \
             that \
             exists",
            output.display()
        );
    }
    Ok(())
}

fn write(page: &Page, file: &Path, start: Instant) -> Result<()> {
    std::fs::write(file, page.html())
        .with_context(|| format!("{}: cannot write the page", file.display()))?;
    millrace_console::tell!(
        "note: {} written, {:.1} s",
        file.display(),
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

fn json_of(pages: &[(&str, Page)]) -> String {
    match pages {
        [(_, page)] => page.json(),
        pages => {
            let each = |(name, page): &(&str, Page)| format!("\"{name}\": {}", page.json());
            format!("{{{}}}", pages.iter().map(each).collect::<Vec<_>>().join(",\n"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<(&'static str, Vec<&'static str>), String> {
        text.parse::<PaperSelection>().map(|one| (one.paper.name, one.parts))
    }

    #[test]
    fn parts_of_a_paper_are_named_after_a_colon() {
        let all = vec!["null", "nvme", "gap", "threads", "ablations", "effects", "dearer"];
        assert_eq!(parsed("msst15"), Ok(("msst15", all)));
        assert!(parsed("systor13:").is_err(), "a list without anything is no list of all");
        assert_eq!(parsed("systor13:fig10,fig9"), Ok(("systor13", vec!["fig9", "fig10"])));
        assert!(parsed("systor13:fig5").unwrap_err().contains("fig4, fig6"));
        assert_eq!(parsed("atc17:nvme:nvme"), Ok(("atc17", vec!["nvme"])));
        assert!(parsed("atc17:fig5").unwrap_err().contains("scaling, stripes"));
        assert_eq!(parsed("schedulers:weights"), Ok(("schedulers", vec!["weights"])));
        assert_eq!(parsed("walk"), Ok(("walk", vec![])));
        assert_eq!(parsed("walk:all"), Err("walk:all: walk has no parts".into()));
        assert!(parsed("fast16").unwrap_err().contains("atc17, msst15"));
    }

    #[test]
    fn page_goes_to_the_file_or_into_the_folder() {
        let folder = std::env::temp_dir();
        let paper: PaperSelection = "systor13:fig10,fig9".parse().unwrap();
        let inside = folder.join("systor13-fig9-fig10.html");
        assert_eq!(file_in(&folder, &paper, &[]), inside);
        let file = folder.join("millrace-no-such-folder.html");
        assert_eq!(file_in(&file, &paper, &[]), file);
        assert!(check_output(&folder, 2).is_ok() && check_output(&file, 1).is_ok());
        let refused = |output: &Path, papers| check_output(output, papers).unwrap_err().to_string();
        assert!(refused(&file, 2).contains("this is not a directory, and there are 2 papers"));
        assert!(refused(&file.join("page.html"), 1).contains("the page cannot go there"));
    }

    #[test]
    fn parts_of_a_paper_that_is_named_twice_are_joined() {
        let wanted = ["atc17:nvme", "walk", "atc17:tags,nvme", "walk"];
        let each = each_paper(&wanted.map(|text| text.parse().unwrap()));
        let each: Vec<_> = each.into_iter().map(|one| (one.paper.name, one.parts)).collect();
        assert_eq!(each, [("atc17", vec!["tags", "nvme"]), ("walk", vec![])]);
    }

    #[test]
    fn a_part_that_is_not_there_is_named() {
        let refused = |text: &str| parsed(text).unwrap_err();
        assert!(
            refused("systor13:fig5").starts_with("systor13 has no part fig5; choose from fig4, ")
        );
        assert_eq!(refused("systor13:,"), ",: a part has no name; remove the comma");
        assert!(refused("").starts_with("no paper is named; choose systor13"));
    }

    #[test]
    fn what_paper_does_not_have_is_refused_with_words_that_it_has() {
        let refused = |paper: &str, without| {
            let error =
                paper.parse::<PaperSelection>().unwrap().check_without(&[without]).unwrap_err();
            error.to_string()
        };
        let text = refused("atc17", Mechanism::Spinners);
        assert!(
            text.starts_with("--without spinners: the runs of atc17 do not have this mechanism")
        );
        assert!(text.contains("distance, links, queueing, lookup-lock, host-busy"), "{text}");
        let text = refused("msst15:null", Mechanism::Distance);
        assert!(
            text.ends_with("sharing, fairness, preemption, roaming, bound, translation, signals"),
            "{text}"
        );
        let text = refused("systor13", Mechanism::Copies);
        assert!(text.ends_with("queueing, lines, dio-count, queue-counters, noise"), "{text}");
        assert!(refused("walk", Mechanism::Sharing).contains("measures this machine"));
        let fits = |paper: &str, without: &[Mechanism]| {
            paper.parse::<PaperSelection>().unwrap().check_without(without).is_ok()
        };
        assert!(fits("ols02:dm", &[Mechanism::Copies, Mechanism::Links]));
        assert!(fits("walk", &[]) && fits("schedulers:disk", &[Mechanism::Spinners]));
    }

    #[test]
    fn help_and_documents_have_every_mechanism() {
        let document = include_str!("../../../../docs/lab/papers.md");
        let helped: Vec<&str> = EXAMPLES.split([',', ' ', '\n']).collect();
        for (mechanism, word) in Mechanism::WORDS {
            assert!(document.contains(&format!("| `{word}` | ")), "{mechanism:?}");
            assert!(helped.contains(word), "{mechanism:?}");
        }
    }

    #[test]
    fn page_of_some_parts_does_not_take_place_of_whole_one() {
        let file = |paper: &str, without: &[Mechanism]| {
            paper.parse::<PaperSelection>().unwrap().file(without).display().to_string()
        };
        assert_eq!(file("atc17", &[]), "atc17.html");
        assert_eq!(file("systor13:fig10,fig9", &[]), "systor13-fig9-fig10.html");
        let two = [Mechanism::Dies, Mechanism::LookupLock];
        assert_eq!(file("atc17:nvme", &two), "atc17-nvme-without-dies-lookup-lock.html");
    }

    #[test]
    fn checks_that_do_not_hold_are_named() {
        let check = |id: &str, kind, holds: bool| Check::new(id, kind, Default::default(), holds);
        let page = Page {
            checks: vec![
                check("a", CheckKind::Input, false),
                check("b", CheckKind::Quantitative, true),
                check("c", CheckKind::OrderOnly, false),
            ],
            ..Page::default()
        };
        assert_eq!(failed(&[("p", Page::default())]), "");
        let said = "1 check does not hold: c; the tables above show why";
        assert_eq!(failed(&[("p", page.clone())]), said);
        assert!(
            failed(&[("p", page.clone()), ("q", page)]).starts_with("2 checks do not hold: c, c;")
        );
    }

    #[test]
    fn several_papers_are_one_object_and_one_is_itself() {
        let page = || Page { title: "t".into(), ..Page::default() };
        let one: serde_json::Value = serde_json::from_str(&json_of(&[("a", page())])).unwrap();
        assert_eq!(one["title"], "t");
        let two = json_of(&[("a", page()), ("b", page())]);
        let two: serde_json::Value = serde_json::from_str(&two).unwrap();
        assert_eq!((&two["a"]["title"], &two["b"]["title"]), (&"t".into(), &"t".into()));
    }
}
