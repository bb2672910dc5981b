//! Logging: messages of the program through `tracing`, on standard error.
//!
//! Results of a verb go to standard output, never through this module. On a terminal a line is the
//! message alone; elsewhere it begins with the time and the level; a JSON line also has the event's
//! fields (drive, op, sector). A daemon's lines go through a queue (output_queue.rs), so that
//! logging never waits for a reader.

use std::fmt::{self, Write};
use std::io::{self, IsTerminal};
use std::str::FromStr;
use std::sync::{Mutex, OnceLock};

use anyhow::{Context, anyhow, bail};
use clap::ValueEnum;
use millrace::unknown_word;
use millrace_machine::lock_unpoisoned;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

use crate::visible::visible;
use crate::{name, output_queue};

const VARIABLE: &str = "MILLRACE_LOG";

/// Crates that log. Each module path in a log filter begins with one of these names.
pub const LOGGING_CRATES: [&str; 3] = ["millrace", "millrace_console", "millrace_exports"];

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Active log filter and its text. Set when logging is installed.
static FILTER: OnceLock<(reload::Handle<Targets, Registry>, Mutex<String>)> = OnceLock::new();

/// Format of log lines, set when logging is installed. The error that ends the program is also
/// printed in this format.
static FORMAT: OnceLock<Format> = OnceLock::new();

/// Format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// One line of text
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// File that log lines are about, such as a checked configuration. Set by [`report_on`].
static REPORTED_FILE: OnceLock<String> = OnceLock::new();

/// Prints all later text lines like a compiler's messages about `file`: `my.toml:12: warning: ...`,
/// without time and program name. JSON lines do not change.
pub fn report_on(file: &str) {
    REPORTED_FILE.get_or_init(|| visible(file).into_owned());
}

/// Inserts the severity of a message after the position at its beginning (`file` and line), or in
/// front of a message without a position.
fn finding(file: &str, level: Level, text: &str) -> String {
    let severity = match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "note",
        Level::DEBUG => "debug",
        _ => "trace",
    };
    let behind_file = text.strip_prefix(file).filter(|_| !file.is_empty());
    let message = behind_file.and_then(|rest| {
        let rest = rest.trim_start_matches(|letter: char| letter == ':' || letter.is_ascii_digit());
        rest.strip_prefix(' ')
    });
    match message {
        Some(message) => {
            let position = text.strip_suffix(message).unwrap_or_default();
            format!("{position}{severity}: {message}")
        }
        None => format!("{severity}: {text}"),
    }
}

/// Logging flags, which every verb takes.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Args {
    /// Log more: -v for what clients do, -vv for everything; MILLRACE_LOG=LEVEL does the same
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Format of the log lines on standard error
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value_t)]
    log_format: Format,
}

/// Installs logging. Must be called once. Fails if `MILLRACE_LOG` is not a valid filter.
pub fn install(args: Args) -> anyhow::Result<()> {
    let variable = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let text = filter(args.verbose, variable.as_deref());
    let (targets, handle) = reload::Layer::new(read_filter(VARIABLE, text)?);
    FORMAT.get_or_init(|| args.log_format);
    FILTER.get_or_init(|| (handle, Mutex::new(text.to_owned())));
    let registry = tracing_subscriber::registry().with(targets);
    let layer = tracing_subscriber::fmt::layer().with_writer(Log).log_internal_errors(false);
    let installed = match args.log_format {
        Format::Json => registry.with(layer.json().flatten_event(true)).try_init(),
        Format::Text => {
            let stamped = !std::io::stderr().is_terminal() && !has_journal();
            registry.with(layer.event_format(TextFormat { stamped })).try_init()
        }
    };
    installed.map_err(|error| anyhow!("logging was started twice: {error}"))
}

/// Writer of log lines. Writes to the output queue of standard error if the daemon has started that
/// queue, otherwise directly to standard error.
#[derive(Debug, Clone, Copy)]
pub struct Log;

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match output_queue::log() {
            Some(queue) => queue.add(bytes.to_vec()),
            None => io::Write::write_all(&mut io::stderr().lock(), bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Log;

    fn make_writer(&self) -> Log {
        Log
    }
}

/// Returns true if log lines are JSON.
pub fn is_json() -> bool {
    FORMAT.get() == Some(&Format::Json)
}

/// Returns true if systemd's journal, which adds the time itself, reads standard error.
fn has_journal() -> bool {
    std::env::var_os("JOURNAL_STREAM").is_some()
}

/// Returns the current filter, in the syntax of `MILLRACE_LOG`.
pub fn level() -> String {
    let text = FILTER.get().map(|(_, text)| lock_unpoisoned(text));
    text.map_or_else(String::new, |text| text.clone())
}

/// Replaces the filter by `text`, in the syntax of `MILLRACE_LOG`, and returns the former filter.
/// Fails if the text is not a valid filter, or names a module of a crate that does not log.
pub fn set_level(text: &str) -> anyhow::Result<String> {
    let targets = read_filter("log-level", text)?;
    for (module, _) in text.split(',').filter_map(|part| part.split_once('=')) {
        let module = module.trim();
        let name = module.split("::").next().unwrap_or(module);
        if !LOGGING_CRATES.contains(&name) {
            bail!(unknown_word("module", &visible(module), &LOGGING_CRATES));
        }
    }
    let Some((handle, now)) = FILTER.get() else { bail!("log-level: logging is not installed") };
    let mut now = lock_unpoisoned(now);
    handle.reload(targets).context("log-level: cannot change the filter")?;
    Ok(std::mem::replace(&mut *now, text.to_owned()))
}

/// Returns the initial filter. `-v` overrides the environment variable `MILLRACE_LOG`.
fn filter(verbose: u8, variable: Option<&str>) -> &str {
    match (verbose, variable) {
        (0, None) => "info",
        (0, Some(text)) => text,
        (1, _) => "debug",
        _ => "trace",
    }
}

/// Parses a filter: LEVEL for all modules, MODULE=LEVEL for one. `source` names the filter's origin
/// in errors. A word without `=` must be a level. If a misspelt level counted as a module, all
/// other messages would be silenced, even warnings about failing drives.
fn read_filter(source: &str, text: &str) -> anyhow::Result<Targets> {
    let mut targets = Targets::new().with_default(LevelFilter::INFO);
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (module, level) = match part.split_once('=') {
            Some((module, level)) => (Some(module.trim()), level.trim()),
            None => (None, part),
        };
        // An empty level is refused here, because `LevelFilter` would parse it as ERROR.
        let known = LevelFilter::from_str(level).ok().filter(|_| !level.is_empty());
        let level = known.ok_or_else(|| {
            anyhow!(
                "{source}=\"{}\": {}, or several MODULE=LEVEL separated by commas",
                visible(text),
                unknown_word("log level", &visible(level), &LEVELS)
            )
        })?;
        targets = match module {
            Some(module) => targets.with_target(module, level),
            None => targets.with_default(level),
        };
    }
    Ok(targets)
}

struct TextFormat {
    /// True if a line begins with the time in UTC and the level.
    stamped: bool,
}

impl<S, N> FormatEvent<S, N> for TextFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut message = Message::default();
        event.record(&mut message);
        let (level, text) = (*event.metadata().level(), visible(&message.text));
        if let Some(file) = REPORTED_FILE.get() {
            return writeln!(out, "{}", finding(file, level, &text));
        }
        if self.stamped {
            SystemTime.format_time(&mut out)?;
            return writeln!(out, " {level:5} {}: {text}", name::name());
        }
        let kind = match level {
            Level::WARN => "warning: ",
            Level::DEBUG => "debug: ",
            Level::TRACE => "trace: ",
            _ => "",
        };
        writeln!(out, "{}: {kind}{text}", name::name())
    }
}

/// Message of an event. Text lines omit the event's fields, because the message contains the same
/// information.
#[derive(Default)]
struct Message {
    text: String,
}

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.text, "{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct LogCapture(Arc<Mutex<Vec<u8>>>);

    impl io::Write for LogCapture {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn said(stamped: bool, verbose: u8, log: impl FnOnce()) -> String {
        let sink = LogCapture::default();
        let writer = sink.clone();
        let layer = tracing_subscriber::fmt::layer().with_writer(move || writer.clone());
        let subscriber = tracing_subscriber::registry()
            .with(read_filter(VARIABLE, filter(verbose, None)).unwrap())
            .with(layer.event_format(TextFormat { stamped }));
        tracing::subscriber::with_default(subscriber, log);
        let bytes = sink.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_terminal_gets_the_message_and_a_word_where_it_is_a_warning() {
        let text = said(false, 0, || {
            tracing::info!("ready");
            tracing::warn!(drive = "d0", "drive d0: read failed");
            tracing::error!("an I/O thread has died");
            tracing::debug!("not wanted");
        });
        assert_eq!(
            text,
            "millrace: ready\nmillrace: warning: drive d0: read failed\n\
             millrace: an I/O thread has died\n"
        );
    }

    #[test]
    fn a_file_gets_time_and_level_and_no_control_characters() {
        let text = said(true, 1, || tracing::debug!("client {}\u{1b}[2J", "a\nb"));
        let (stamp, rest) = text.split_once(' ').unwrap();
        assert!(stamp.starts_with("20") && stamp.ends_with('Z') && stamp.contains('T'), "{stamp}");
        assert_eq!(rest, "DEBUG millrace: client a\\nb\\u{1b}[2J\n");
    }

    #[test]
    fn a_finding_has_its_severity_behind_its_position() {
        for (file, level, text, line) in [
            ("a.toml", Level::ERROR, "a.toml:12: size = 1: no", "a.toml:12: error: size = 1: no"),
            ("a.toml", Level::WARN, "a.toml: no export", "a.toml: warning: no export"),
            ("a.toml", Level::INFO, "drive d: slow", "note: drive d: slow"),
            ("", Level::ERROR, "drive d: slow", "error: drive d: slow"),
        ] {
            assert_eq!(finding(file, level, text), line);
        }
    }

    #[test]
    fn the_variable_filters_unless_the_flag_is_given() {
        let debug = |verbose, variable| {
            let targets = read_filter(VARIABLE, filter(verbose, variable)).unwrap();
            targets.would_enable("millrace", &Level::DEBUG)
        };
        assert!(!debug(0, None));
        assert!(debug(1, None) && debug(2, Some("error")));
        assert!(debug(0, Some("debug")) && debug(0, Some(" warn,millrace=debug ")));
        let targets = read_filter(VARIABLE, "elsewhere=debug").unwrap();
        assert!(targets.would_enable("millrace", &Level::WARN), "what it does not name stays");
    }

    #[test]
    fn a_word_that_is_no_level_is_refused_with_the_levels() {
        for (text, word) in
            [("bogus", "bogus"), ("verbose", "verbose"), ("millrace=loud", "loud"), ("a=", "")]
        {
            let refused = read_filter(VARIABLE, text).unwrap_err().to_string();
            let said = format!(
                "MILLRACE_LOG=\"{text}\": unknown log level \"{word}\"; choose off, error, warn, \
                 info, debug or trace"
            );
            assert!(refused.starts_with(&said), "{refused}");
            assert!(refused.ends_with("several MODULE=LEVEL separated by commas"), "{refused}");
        }
    }
}
