//! The verb `man`: manual pages generated from a program's command-line definition.
//!
//! This verb writes one page for the program and one for each verb, as git does, to standard output
//! or into a directory. Each program's cli.rs calls it with its definition, including the examples.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Command;
use clap_mangen::Man;

use crate::{counted, say};

/// Arguments of `man`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory to write all pages to, created if missing; without it, the page of the program
    /// goes to standard output
    dir: Option<PathBuf>,
}

/// Prints the program's page, or writes all pages into a directory.
pub fn run(args: &Args, command: Command) -> Result<ExitCode> {
    let pages = pages(command)?;
    match &args.dir {
        None => pages.first().into_iter().for_each(|(_, page)| say(page)),
        Some(dir) => {
            write(dir, &pages)?;
            say(&format!("{} written to {}\n", counted(pages.len(), "page"), dir.display()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn write(dir: &Path, pages: &[(String, String)]) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("{}: cannot make it", dir.display()))?;
    for (name, page) in pages {
        let file = dir.join(name);
        std::fs::write(&file, page)
            .with_context(|| format!("{}: cannot write the page", file.display()))?;
    }
    Ok(())
}

/// Returns all pages with their file names, the program's page first.
pub fn pages(mut command: Command) -> Result<Vec<(String, String)>> {
    // Pages are named like `millrace-serve`. clap sets such names in `Command::build`.
    command.build();
    let mut pages = Vec::new();
    add(&command, &mut pages)?;
    Ok(pages)
}

fn add(command: &Command, pages: &mut Vec<(String, String)>) -> Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page).context("a manual page")?;
    let page = String::from_utf8(page).context("a manual page")?;
    pages.push((format!("{name}.1"), as_it_stands(&page)));
    let verbs = command.get_subcommands().filter(|verb| verb.get_name() != "help");
    verbs.filter(|verb| !verb.is_hide_set()).try_for_each(|verb| add(verb, pages))
}

/// Keeps the line breaks and columns of the examples, which roff would otherwise join.
fn as_it_stands(page: &str) -> String {
    let Some((before, extra)) = page.split_once(".SH EXTRA\n") else { return page.to_owned() };
    let (extra, after) = match extra.split_once(".SH ") {
        Some((extra, after)) => (extra, format!(".SH {after}")),
        None => (extra, String::new()),
    };
    format!("{before}.SH NOTES\n.nf\n{extra}.fi\n{after}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_not_there_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("man/man1");
        let args = Args { dir: Some(below.clone()) };
        let verb = Command::new("verb").subcommand(Command::new("part"));
        run(&args, Command::new("p").subcommand(verb)).unwrap();
        assert!(below.join("p.1").exists() && below.join("p-verb-part.1").exists());
    }
}
