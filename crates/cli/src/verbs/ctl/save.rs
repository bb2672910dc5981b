//! `millrace ctl save`: saves the configuration of a running daemon in a file.
//!
//! The daemon returns the text, with the comments of unchanged sections; this program writes it
//! with the permissions of its user. ctl.rs calls this file.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use millrace_console::visible;
use serde_json::json;

use super::Daemon;
use crate::views::Reload;
use crate::views::reload_report::RunningConfiguration;
use crate::views::requests::{CONFIGURATION, NoArguments, RELOAD};

const EXAMPLES: &str = "\
Examples:
  millrace ctl save              to the file that the daemon read last
  millrace ctl save new.toml     to a new file beside it

Writes what `ctl add`, `remove` and `set` have changed; sections that are as they were keep their \
comments. A file that was edited since the daemon read it stays as it is.
Exit status: 0 if it is written, 2 if not.
";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct SaveArgs {
    /// New file to write to [default: the file that the daemon read last]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

pub fn run(daemon: &Daemon, args: &SaveArgs) -> Result<ExitCode> {
    let mut client = daemon.connect.client()?;
    let running = client.ask(&CONFIGURATION, &NoArguments {})?;
    let file = args.file.as_deref().map(std::path::absolute).transpose()?;
    let no_file =
        || anyhow!("the daemon has no configuration file; name one: millrace ctl save FILE");
    let file = file.or_else(|| running.file.clone()).ok_or_else(no_file)?;
    check(&running, &file)?;
    replace(&file, &running.text)?;
    if running.file.as_ref() == Some(&file) {
        // The daemon reloads the new file, so that it no longer reports the served settings as
        // unsaved.
        client.ask(&RELOAD, &Reload::default())?;
    }
    let shown = file.display().to_string();
    daemon.print(&json!({ "file": shown }), || format!("{}: written\n", visible(&shown)))
}

/// Refuses to overwrite a file. Exception: the daemon's own configuration file, if nobody has
/// edited it since the daemon read it. Also refuses a directory other than that of the daemon's
/// configuration, because the configuration contains relative paths.
fn check(running: &RunningConfiguration, file: &Path) -> Result<()> {
    let shown = file.display();
    match fs::symlink_metadata(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => bail!("{shown}: {error}; choose a file that can be written"),
        Ok(_) if running.file.as_deref() != Some(file) => {
            bail!("{shown}: this file exists already; choose a new name")
        }
        Ok(_) => {
            let text = fs::read(file).with_context(|| format!("{shown}: cannot be read"))?;
            if running.as_read.as_ref().is_none_or(|read| read.as_bytes() != text) {
                bail!(
                    "{shown}: edited since the daemon read it: `millrace ctl reload` takes the \
                     edits, or save to another file and compare"
                );
            }
        }
    }
    let folder = file.parent().unwrap_or(Path::new("/"));
    let (its, wanted) = (fs::canonicalize(&running.folder), fs::canonicalize(folder));
    if its.ok() != wanted.ok() {
        bail!(
            "{shown}: paths in the configuration are relative to {}; save the file there",
            running.folder.display()
        );
    }
    Ok(())
}

fn replace(file: &Path, text: &str) -> Result<()> {
    let failed = || format!("{}: cannot be written", file.display());
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    // A symbolic link stays; the file that it points to is replaced.
    let target = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let new = target.with_file_name(name);
    let write = || -> std::io::Result<()> {
        let mut written = fs::File::create_new(&new)?;
        if let Ok(meta) = fs::metadata(file) {
            written.set_permissions(meta.permissions())?;
        }
        written.write_all(text.as_bytes())?;
        written.sync_all()?;
        fs::rename(&new, &target)
    };
    let written = write();
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written.with_context(failed)
}
