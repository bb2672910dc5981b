//! `millrace top`: shows a running daemon live on a terminal.
//!
//! `top` changes the mode of the terminal while it runs, and restores the mode in any case. After a
//! panic, ratatui restores it. Before a signal ends the program, a second thread restores it. The
//! program waits for a key or the next report, fetches the report from the control socket, and
//! draws. model.rs holds the state, draw.rs draws it.

mod draw;
mod model;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use ratatui::DefaultTerminal;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::verbs::connect::Connect;
use crate::verbs::stat::interval;
use crate::views::StatsQuery;
use crate::views::client::Client;
use crate::views::requests::STATS;
use model::TopModel;

const EXAMPLES: &str = "\
Examples:
  millrace top                          the daemon that it finds: see --connect
  millrace top 0.5 --connect unix:/run/millrace/fast.sock.control

Keys:
";

const KEYS: &str = "  q             ends
  tab           the lower table shows hardware queues (DRIVE:N), then clients, then groups, then
                caches if there are some, then drives again
  s  r          sort by the next column; reverse the order
  +  -          double or halve the interval
  space         pause or continue the display
  up  down      move through the lower table; page up and page down move faster
  ?             explain keys and columns";

const COLUMNS: &str = "\
r/s w/s       reads and writes that completed, a second, after merging
rMiB wMiB     MiB (1,048,576 bytes) that they moved, a second
r_p99 w_p99   99 % of reads and writes took no longer
aqu-sz        I/Os waiting or in the drive, on average
%util         time that I/Os spent in the drive, in percent of the interval
err           I/Os that failed since the daemon began, in red
flight        I/Os that wait or are in the drive now
r_avg w_avg   mean time of reads and writes
f/s d/s       flushes; discards and writes of zeroes, a second
I/Os          I/Os per second over time, the newest at the right; the highest of a row is full
The column by which rows are sorted has an arrow. A dash stands where there is no figure.";

const END: &str = "\
`millrace stat --help` defines the columns. A terminal with fewer than 76 columns shows fewer columns \
and no graph; one with 105 or more shows more columns.";

#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}{KEYS}\n\nColumns:\n{COLUMNS}\n\n{END}"))]
pub struct Args {
    /// Time between two reports, such as 1 (second) or 500ms
    #[arg(value_parser = interval, default_value = "1")]
    interval: Duration,
    #[command(flatten)]
    connect: Connect,
    /// Show idle volumes, too; by default they are hidden if there are more than 64 volumes
    #[arg(long)]
    all: bool,
}

impl Args {
    fn query(&self) -> StatsQuery {
        StatsQuery { all: self.all }
    }
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut client = args.connect.client()?;
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        bail!("top needs a terminal; `millrace stat` writes to files and pipes");
    }
    let mut model = TopModel::new(args.interval);
    model.update(client.ask(&STATS, &args.query())?);
    model.recall(&client.history(model.seconds_recalled())?);
    give_back_at_signals()?;
    let mut terminal = ratatui::try_init()?;
    let shown = show(&mut terminal, (&mut client, args.query()), &mut model);
    give_back();
    // `terminal` is leaked, because dropping it prints an error if the terminal is gone.
    std::mem::forget(terminal);
    shown.map(|()| ExitCode::SUCCESS)
}

fn give_back() {
    let _ = ratatui::try_restore();
    let _ = execute!(std::io::stdout(), Show);
}

/// Starts a thread that restores the terminal before a signal ends the program.
fn give_back_at_signals() -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let wait = move || {
        for signal in signals.forever() {
            give_back();
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    };
    std::thread::Builder::new().name("millrace-signals".to_owned()).spawn(wait)?;
    Ok(())
}

fn show(
    terminal: &mut DefaultTerminal,
    (client, query): (&mut Client, StatsQuery),
    model: &mut TopModel,
) -> anyhow::Result<()> {
    let mut next = Instant::now() + model.interval;
    loop {
        terminal.draw(|frame| draw::draw(frame, model))?;
        if event::poll(next.saturating_duration_since(Instant::now()))? {
            let interval = model.interval;
            // Other events, such as a new size of the terminal, only need a redraw.
            if let Event::Key(key) = event::read()?
                && key.kind != KeyEventKind::Release
                && !pressed(key, model)
            {
                return Ok(());
            }
            if model.interval != interval {
                next = next.min(Instant::now() + model.interval);
            }
        }
        if Instant::now() >= next {
            model.update(client.ask(&STATS, &query)?);
            next = Instant::now() + model.interval;
        }
    }
}

/// Handles a key. Returns false if the key ends the program.
fn pressed(key: KeyEvent, model: &mut TopModel) -> bool {
    let is_interrupt =
        key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    if model.explained && !is_interrupt {
        // While the help is shown, any key returns to the tables.
        model.explained = !model.explained;
        return true;
    }
    match key.code {
        KeyCode::Char('?' | 'h') => model.explained = !model.explained,
        KeyCode::Char('q') | KeyCode::Esc => return false,
        _ if is_interrupt => return false,
        KeyCode::Tab => model.next_below(),
        KeyCode::Char('s') => model.sort_by_next(),
        KeyCode::Char('r') => model.reversed = !model.reversed,
        KeyCode::Char(' ') => model.held = !model.held,
        KeyCode::Char('+') => model.change_interval(2.0),
        KeyCode::Char('-') => model.change_interval(0.5),
        KeyCode::Up => model.scroll(-1),
        KeyCode::Down => model.scroll(1),
        KeyCode::PageUp => model.scroll(-10),
        KeyCode::PageDown => model.scroll(10),
        _ => {}
    }
    true
}
