//! `millrace ctl`: what a person asks a running daemon to change.
//!
//! Owns the list of such requests, each one question on the control socket, and what is said of the
//! answer. The daemon decides: what it refuses is an error here, with its reason.

use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Subcommand;
use millrace::nearest;
use serde_json::json;

use crate::config::words::bytes_for_people;
use crate::verbs::say;
use crate::verbs::stat::{CONNECT_DEFAULT, socket};
use crate::views::Set;
use crate::views::client::Client;
use crate::views::resized::Resized;
use crate::visible::visible;

const SET_EXAMPLES: &str = "\
Examples:
  millrace ctl set vol0 scheduler=deadline    the drives of vol0 serve by sector and by age
  millrace ctl set vol0 scheduler=none --connect unix:/run/millrace/fast.sock.control --json
  millrace ctl get vol0                       what is set

A change holds for all drives of the volume, at once, with I/O under way, and until the daemon ends; \
write it into the configuration to keep it. If a drive cannot have it, nothing changes.
Exit status: 0 if it is set, 2 if the daemon refused.
";

const RESIZE_EXAMPLES: &str = "\
Examples:
  truncate -s +1G disk.img              the drive grows,
  millrace ctl resize vol0              and the daemon in ./millrace-data serves the new size
  millrace ctl resize vol0 --connect unix:/run/millrace/fast.sock.control --json

A volume that is being served can grow, never shrink. A stripe grows by what its smallest drive \
has grown; in a linear volume only the last drive may grow. A virtual machine sees the new size at \
once, an NBD client when it connects again.
Exit status: 0 if the volume has grown or had nothing to grow by, 2 if the daemon refused.
";

/// Why a volume is as before although a drive has grown.
const TOO_LITTLE: &str = "the volume cannot use that: a stripe grows by what its smallest drive has \
                          grown, in whole chunks\n";

/// Arguments of `ctl`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    request: Request,
}

/// What may be asked.
#[derive(Debug, Subcommand)]
enum Request {
    /// Let a volume grow by what its drives have grown, while clients use it
    Resize(ResizeArgs),
    /// Change settings of a volume while clients use it
    Set(SetArgs),
    /// Show the settings of a volume that `set` changes
    Get(GetArgs),
}

/// Arguments of `ctl resize`.
#[derive(Debug, clap::Args)]
#[command(after_help = RESIZE_EXAMPLES)]
struct ResizeArgs {
    /// The volume's name
    volume: String,
    /// The daemon's control socket, unix:PATH
    #[arg(long, value_name = "unix:PATH", value_parser = socket, default_value = CONNECT_DEFAULT)]
    connect: PathBuf,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `ctl set`.
#[derive(Debug, clap::Args)]
#[command(after_help = SET_EXAMPLES)]
struct SetArgs {
    /// The volume's name
    volume: String,
    /// What to set: scheduler=none, scheduler=deadline
    #[arg(required = true, value_name = "KEY=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
    /// The daemon's control socket, unix:PATH
    #[arg(long, value_name = "unix:PATH", value_parser = socket, default_value = CONNECT_DEFAULT)]
    connect: PathBuf,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `ctl get`.
#[derive(Debug, clap::Args)]
struct GetArgs {
    /// The volume's name
    volume: String,
    /// The daemon's control socket, unix:PATH
    #[arg(long, value_name = "unix:PATH", value_parser = socket, default_value = CONNECT_DEFAULT)]
    connect: PathBuf,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Keys that `set` knows.
const KEYS: [&str; 1] = ["scheduler"];

/// A key and its value.
fn setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE, as in scheduler=deadline")?;
    if KEYS.contains(&key) {
        return Ok((key.to_owned(), value.to_owned()));
    }
    let like =
        nearest(key, KEYS).map_or_else(String::new, |like| format!("; did you mean {like}?"));
    Err(format!("there is no setting {key:?} to change; there is {}{like}", KEYS.join(", ")))
}

/// Asks, and says what came of it.
///
/// # Errors
/// If the daemon is not there, or refuses.
pub fn run(args: &Args) -> Result<ExitCode> {
    match &args.request {
        Request::Resize(args) => resize(args),
        Request::Set(args) => set(args),
        Request::Get(args) => get(args),
    }
}

fn set(args: &SetArgs) -> Result<ExitCode> {
    let mut asked = Set { volume: args.volume.clone(), ..Set::default() };
    for (key, value) in &args.settings {
        if asked.scheduler.replace(value.clone()).is_some() {
            bail!("{key} is given twice; give it once");
        }
    }
    let changed = Client::connect(&args.connect)?.set(&asked)?;
    if args.json {
        say(&format!("{}\n", json!(changed)));
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = format!("{}:\n", visible(&changed.volume));
    for drive in &changed.drives {
        let (name, now, before) = (visible(&drive.name), &drive.scheduler, &drive.before);
        let _ = writeln!(text, "  {name}: scheduler={}, before {}", visible(now), visible(before));
    }
    say(&text);
    Ok(ExitCode::SUCCESS)
}

fn get(args: &GetArgs) -> Result<ExitCode> {
    let report = Client::connect(&args.connect)?.stats()?;
    let drives: Vec<_> = report.drives.iter().filter(|drive| drive.volume == args.volume).collect();
    if drives.is_empty() {
        let known: Vec<_> = report.volumes.iter().map(|one| visible(&one.name)).collect();
        bail!("there is no volume {:?}; there are {}", args.volume, known.join(", "));
    }
    if args.json {
        let drives: Vec<_> = drives
            .iter()
            .map(|drive| json!({ "name": drive.name, "scheduler": drive.scheduler }))
            .collect();
        say(&format!("{}\n", json!({ "volume": args.volume, "drives": drives })));
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = format!("{}:\n", visible(&args.volume));
    for drive in drives {
        let scheduler = visible(&drive.scheduler);
        let _ = writeln!(text, "  {}: scheduler={scheduler}", visible(&drive.name));
    }
    say(&text);
    Ok(ExitCode::SUCCESS)
}

fn resize(args: &ResizeArgs) -> Result<ExitCode> {
    let resized = Client::connect(&args.connect)?.resize(&args.volume)?;
    match args.json {
        true => say(&format!("{}\n", json!(resized))),
        false => say(&describe(&resized)),
    }
    Ok(ExitCode::SUCCESS)
}

/// For people: the volume, and the drives that have grown.
fn describe(resized: &Resized) -> String {
    let grown = |old: u64, new: u64| match new > old {
        true => {
            format!("{} ({new} bytes), before {}", bytes_for_people(new), bytes_for_people(old))
        }
        false => format!("{} ({new} bytes), as before", bytes_for_people(new)),
    };
    let (old, new) = (resized.old_bytes, resized.new_bytes);
    let mut text = format!("{}: {}\n", visible(&resized.volume), grown(old, new));
    for drive in resized.drives.iter().filter(|drive| drive.new_bytes > drive.old_bytes) {
        let size = grown(drive.old_bytes, drive.new_bytes);
        let _ = writeln!(text, "  {}: {size}", visible(&drive.name));
    }
    let drives_grew = resized.drives.iter().any(|drive| drive.new_bytes > drive.old_bytes);
    match (new > old, drives_grew) {
        (true, _) => {}
        (false, true) => text.push_str(TOO_LITTLE),
        (false, false) => text.push_str("no drive has grown\n"),
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::resized::Drive;

    fn said(volume: [u64; 2], drives: &[(&str, [u64; 2])]) -> String {
        let drive = |(name, [old_bytes, new_bytes]): &(&str, [u64; 2])| Drive {
            name: (*name).to_owned(),
            old_bytes: *old_bytes,
            new_bytes: *new_bytes,
        };
        describe(&Resized {
            volume: "v".to_owned(),
            old_bytes: volume[0],
            new_bytes: volume[1],
            drives: drives.iter().map(drive).collect(),
        })
    }

    #[test]
    fn what_grew_is_said_with_what_it_was() {
        let text = said([1 << 20, 2 << 20], &[("d0", [1 << 20, 2 << 20])]);
        let whole = "2 MiB (2097152 bytes), before 1 MiB\n";
        assert_eq!(text, format!("v: {whole}  d0: {whole}"));
    }

    #[test]
    fn what_did_not_grow_is_said_with_the_reason() {
        let text = said([1 << 20; 2], &[("d0", [1 << 20; 2])]);
        assert_eq!(text, "v: 1 MiB (1048576 bytes), as before\nno drive has grown\n");
        let text = said([2 << 20; 2], &[("d0", [1 << 20, 3 << 20]), ("d1", [1 << 20; 2])]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "  d0: 3 MiB (3145728 bytes), before 1 MiB");
        assert_eq!(lines[2], TOO_LITTLE.trim_end());
    }
}
