//! `millrace ctl`: what a person asks a running daemon to change.
//!
//! Owns the list of such requests, each one question on the control socket, and what is said of the
//! answer. The daemon decides: what it refuses is an error here, with its reason.

mod clients;
mod edit;
mod groups;
mod log_level;
mod reload;
mod save;
mod toml;
mod version;
mod why;

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::{Result, anyhow, bail};
use clap::Subcommand;
use millrace::nearest;
use millrace_console::{say, visible};
use serde_json::{Value, json};

use crate::config::words::bytes_for_people;
use crate::verbs::connect::Connect;
use crate::views::growth::VolumeGrowth;
use crate::views::report::{Drive, Report, Volume};
use crate::views::{Set, StatsQuery};

const SET_EXAMPLES: &str = "\
Examples:
  millrace ctl set vol0 scheduler=deadline    the drives of vol0 serve by sector and by age
  millrace ctl set vol0 scheduler=none --connect unix:/run/millrace/fast.sock.control --json
  millrace ctl set group gold weight=400 iops=20k bandwidth=none

A change holds at once, with I/O under way, and until the daemon ends; `millrace ctl get --toml` \
prints it for the configuration. The scheduler is that of all drives of the volume. A group has the \
keys of [[group]] but name, in the same words, and none takes a limit away. If a part of a change \
cannot be, nothing changes.
Exit status: 0 if it is set, 2 if the daemon refused.
";

const GET_EXAMPLES: &str = "\
Examples:
  millrace ctl get                all volumes and groups
  millrace ctl get vol0           the schedulers of the drives of vol0
  millrace ctl get groups         all groups, those of single clients too
  millrace ctl get group gold
  millrace ctl get --toml         groups, and schedulers that were set, as the configuration has them
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

const ACKNOWLEDGE_EXAMPLES: &str = "\
Examples:
  millrace ctl acknowledge vol0     after fsck, or the database's own check, of what is on vol0

With [server] state = \"DIR\", a daemon that dies with a dirty cache leaves a mark, and the next one \
warns at its start and in `millrace stat` until the volume is acknowledged.
Exit status: 0 if it is, 2 if the volume has nothing to acknowledge.
";

/// Place of `--connect`, which belongs to each request.
const EXAMPLES: &str = "\
Examples:
  millrace ctl resize vol0              asks the daemon that is found
  millrace ctl get --connect unix:/run/millrace/fast.sock.control

Each request takes --connect unix:PATH behind its name: the daemon's control socket, which `serve` \
prints as `control at unix:PATH`. Without it the variable MILLRACE_CONTROL names the socket; without \
both, the first daemon is asked that has one in ./millrace-data, the working folder, \
$XDG_RUNTIME_DIR/millrace or /run/millrace.
";

/// Why a volume is as before although a drive has grown.
const TOO_LITTLE: &str = "the volume cannot use that: a stripe grows by what its smallest drive has \
                          grown, in whole chunks\n";

/// Drives that must grow first of which a line is shown.
const NEEDS_SHOWN: usize = 8;

/// Arguments of `ctl`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(subcommand)]
    request: Request,
}

/// What may be asked.
#[derive(Debug, Subcommand)]
enum Request {
    /// Let a volume grow by what its drives have grown, while clients use it
    Resize(ResizeArgs),
    /// Change settings of a volume or a group while clients use it
    Set(SetArgs),
    /// Show the settings that `set` changes
    Get(GetArgs),
    /// Say what I/Os of a volume wait for, group by group
    Why(why::WhyArgs),
    /// Forget that an earlier daemon ended with a dirty cache of a volume, once that is checked
    Acknowledge(AcknowledgeArgs),
    /// Show who is connected: number, export, group, requests, peer
    Clients(clients::ClientsArgs),
    /// End the connection of a client
    Disconnect(clients::DisconnectArgs),
    /// Serve the configuration as it is now, without a restart
    Reload(reload::ReloadArgs),
    /// Add a drive, volume, export or group to what is served
    Add(edit::AddArgs),
    /// Remove a drive, volume, export or group from what is served
    Remove(edit::RemoveArgs),
    /// Write what is served to the configuration file
    Save(save::SaveArgs),
    /// Show or change how much the daemon logs
    LogLevel(log_level::LogLevelArgs),
    /// Print the versions of this program and of the daemon
    Version(version::VersionArgs),
}

/// Arguments of `ctl resize`.
#[derive(Debug, clap::Args)]
#[command(after_help = RESIZE_EXAMPLES)]
struct ResizeArgs {
    /// The volume's name
    volume: String,
    #[command(flatten)]
    daemon: Daemon,
}

/// Arguments of `ctl acknowledge`.
#[derive(Debug, clap::Args)]
#[command(after_help = ACKNOWLEDGE_EXAMPLES)]
struct AcknowledgeArgs {
    /// The volume's name, as the warning has it
    volume: String,
    #[command(flatten)]
    daemon: Daemon,
}

/// Arguments of `ctl set`.
#[derive(Debug, clap::Args)]
#[command(after_help = SET_EXAMPLES)]
struct SetArgs {
    /// The volume's name; or the word group, and before the settings the group's name
    #[arg(value_name = "VOLUME|group NAME")]
    target: String,
    /// What to set: scheduler=none of a volume, weight=400 or iops=20k of a group
    #[arg(required = true, value_name = "KEY=VALUE")]
    settings: Vec<String>,
    #[command(flatten)]
    daemon: Daemon,
}

/// Arguments of `ctl get`.
#[derive(Debug, clap::Args)]
#[command(after_help = GET_EXAMPLES)]
struct GetArgs {
    /// The volume's name, `group NAME`, or `groups`; nothing: all volumes and groups
    #[arg(value_name = "VOLUME|group NAME|groups", num_args = 0..=2)]
    target: Vec<String>,
    /// Print lines for the configuration: groups as they are now, and what else was set
    #[arg(long, conflicts_with_all = ["target", "json"])]
    toml: bool,
    #[command(flatten)]
    daemon: Daemon,
}

/// The daemon that is asked, and how its answer is printed.
#[derive(Debug, clap::Args)]
struct Daemon {
    #[command(flatten)]
    connect: Connect,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

/// Keys that `set` knows of a volume.
const KEYS: [&str; 1] = ["scheduler"];

/// A key of a volume and its value.
fn setting(args: &SetArgs, text: &str) -> Result<(String, String)> {
    let (key, value) = pair(text, "scheduler=deadline")?;
    if KEYS.contains(&key.as_str()) {
        return Ok((key, value));
    }
    // Which groups there are helps to say what is wrong; without a daemon the key does alone.
    let report = args.daemon.connect.client().and_then(|mut client| client.stats(StatsQuery::ALL));
    if let Some(hint) = groups::meant(&report.unwrap_or_default(), args, &key) {
        bail!(hint);
    }
    let like =
        nearest(&key, KEYS).map_or_else(String::new, |like| format!("; did you mean {like}?"));
    bail!("there is no setting {key:?} to change; there is {}{like}", KEYS.join(", "))
}

/// A key and its value, written as the example is.
fn pair(text: &str, example: &str) -> Result<(String, String)> {
    match text.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => bail!("{text:?}: write KEY=VALUE, as in {example}"),
    }
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
        Request::Why(args) => why::run(args),
        Request::Acknowledge(args) => acknowledge(args),
        Request::Clients(args) => clients::show(args),
        Request::Disconnect(args) => clients::disconnect(args),
        Request::Reload(args) => reload::run(args),
        Request::Add(args) => edit::add(args),
        Request::Remove(args) => edit::remove(args),
        Request::Save(args) => save::run(args),
        Request::LogLevel(args) => log_level::run(args),
        Request::Version(args) => version::run(args),
    }
}

fn acknowledge(args: &AcknowledgeArgs) -> Result<ExitCode> {
    args.daemon.connect.client()?.acknowledge(&args.volume)?;
    say(&match args.daemon.json {
        true => format!("{}\n", json!({ "volume": args.volume })),
        false => format!("{}: acknowledged\n", visible(&args.volume)),
    });
    Ok(ExitCode::SUCCESS)
}

fn set(args: &SetArgs) -> Result<ExitCode> {
    if let ("group", Some((name, settings))) = (args.target.as_str(), args.settings.split_first())
        && !name.contains('=')
    {
        return groups::set(&args.daemon, name, settings);
    }
    let mut asked = Set { volume: args.target.clone(), ..Set::default() };
    for text in &args.settings {
        let (key, value) = setting(args, text)?;
        if asked.scheduler.replace(value).is_some() {
            bail!("{key} is given twice; give it once");
        }
    }
    let changed = args.daemon.connect.client()?.set(&asked)?;
    if args.daemon.json {
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
    let report = args.daemon.connect.client()?.stats(StatsQuery::ALL)?;
    let target: Vec<&str> = args.target.iter().map(String::as_str).collect();
    let (volumes, shown) = match target[..] {
        [] => (report.volumes.iter().collect(), report.groups.iter().collect()),
        ["groups"] => (Vec::new(), report.groups.iter().collect()),
        ["group", name] => (Vec::new(), vec![groups::find(&report, name)?]),
        ["group"] => bail!("which group? write group NAME, or groups for all of them"),
        [name] => (vec![volume(&report, name)?], Vec::new()),
        [name, ..] => bail!("{name:?}: write VOLUME, group NAME, or groups"),
    };
    if args.toml {
        say(&toml::lines(&report)?);
        return Ok(ExitCode::SUCCESS);
    }
    if args.daemon.json {
        let volumes: Vec<Value> = volumes.iter().map(|one| volume_json(&report, one)).collect();
        let answer = match (target.len(), &volumes[..]) {
            (1, [volume]) => volume.clone(),
            (2, _) => json!(shown[0]),
            (1, _) => json!({ "groups": shown }),
            _ => json!({ "volumes": volumes, "groups": shown }),
        };
        say(&format!("{answer}\n"));
        return Ok(ExitCode::SUCCESS);
    }
    let mut text: String = volumes.iter().map(|one| volume_text(&report, one)).collect();
    text.push_str(&match target[..] {
        ["group", _] => groups::describe(shown[0]),
        _ if shown.is_empty() => String::new(),
        _ => groups::table(&shown),
    });
    say(&text);
    groups::warn(shown.iter().flat_map(|group| &group.warnings));
    Ok(ExitCode::SUCCESS)
}

/// The volume of a name.
fn volume<'a>(report: &'a Report, name: &str) -> Result<&'a Volume> {
    report.volumes.iter().find(|one| one.name == name).ok_or_else(|| {
        let known: Vec<_> = report.volumes.iter().map(|one| visible(&one.name)).collect();
        let text = format!("there is no volume {name:?}; there are {}", known.join(", "));
        match report.groups.iter().any(|group| group.name == name) {
            true => anyhow!("{text}; did you mean `millrace ctl get group {}`?", visible(name)),
            false => anyhow!(text),
        }
    })
}

/// The drives of a volume.
fn drives<'a>(report: &'a Report, volume: &'a Volume) -> impl Iterator<Item = &'a Drive> {
    report.drives.iter().filter(|drive| drive.volume == volume.name)
}

fn volume_json(report: &Report, volume: &Volume) -> Value {
    let drive = |drive: &Drive| json!({ "name": drive.name, "scheduler": drive.scheduler });
    let drives: Vec<Value> = drives(report, volume).map(drive).collect();
    json!({ "volume": volume.name, "drives": drives })
}

fn volume_text(report: &Report, volume: &Volume) -> String {
    let mut text = format!("{}:\n", visible(&volume.name));
    for drive in drives(report, volume) {
        let (name, scheduler) = (visible(&drive.name), visible(&drive.scheduler));
        let _ = writeln!(text, "  {name}: scheduler={scheduler}");
    }
    text
}

fn resize(args: &ResizeArgs) -> Result<ExitCode> {
    let resized = args.daemon.connect.client()?.resize(&args.volume)?;
    match args.daemon.json {
        true => say(&format!("{}\n", json!(resized))),
        false => say(&describe(&resized)),
    }
    Ok(ExitCode::SUCCESS)
}

/// For people: the volume, and the drives that have grown.
fn describe(resized: &VolumeGrowth) -> String {
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
    for need in resized.needs.iter().take(NEEDS_SHOWN) {
        let (name, has, needs) = (visible(&need.name), need.has_bytes, need.needs_bytes);
        let _ = writeln!(text, "  {name} must grow first: it has {has} bytes, and needs {needs}");
    }
    if resized.needs.len() > NEEDS_SHOWN {
        let more = resized.needs.len() - NEEDS_SHOWN;
        let _ = writeln!(text, "  {more} more drives must grow, too");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::growth::{Drive, DriveNeed};

    fn said(volume: [u64; 2], drives: &[(&str, [u64; 2])]) -> String {
        let drive = |(name, [old_bytes, new_bytes]): &(&str, [u64; 2])| Drive {
            name: (*name).to_owned(),
            old_bytes: *old_bytes,
            new_bytes: *new_bytes,
        };
        describe(&VolumeGrowth {
            volume: "v".to_owned(),
            old_bytes: volume[0],
            new_bytes: volume[1],
            drives: drives.iter().map(drive).collect(),
            needs: Vec::new(),
        })
    }

    #[test]
    fn drives_that_must_grow_first_are_named_with_what_they_need() {
        let need =
            |at: u64| DriveNeed { name: format!("d{at}"), has_bytes: at, needs_bytes: 65536 };
        let resized =
            VolumeGrowth { needs: (0..10).map(need).collect(), ..VolumeGrowth::default() };
        let text = describe(&resized);
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(lines[3], "  d3 must grow first: it has 3 bytes, and needs 65536");
        assert_eq!((lines.len(), lines[8]), (9, "  2 more drives must grow, too"));
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
