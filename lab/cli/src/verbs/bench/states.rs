//! Table of `bench --states`: I/O states and stage times of each drive in one measurement.
//!
//! Columns:
//! - The number of I/Os in each state of the Falcon paper (Kumar et al., ATC 2017).
//! - The mean time of each stage of the block layer, in microseconds.
//! - The latencies in the block layer and in the device, in microseconds.
//!
//! With several drives, a line below the table compares the drives' mean latencies in the block
//! layer. The line shows the highest mean divided by the lowest mean.

use millrace_console::{Form, Side, TextGrid, WIDTH, shortened, wrapped};
use millrace_experiments::{DriveStates, Row};

use super::table::settings;

const NAME_WIDTH: usize = 10;

/// A column: its name, true if the short table has it, and its value for a drive.
type Column = (&'static str, bool, fn(&DriveStates) -> String);

const COLUMNS: [Column; 17] = [
    ("start", true, |drive| drive.start.to_string()),
    ("split", false, |drive| drive.split.to_string()),
    ("merge", true, |drive| drive.merge.to_string()),
    ("ready", false, |drive| drive.ready.to_string()),
    ("wait", false, |drive| drive.wait.to_string()),
    ("insert", false, |drive| drive.insert.to_string()),
    ("dispatch", true, |drive| drive.dispatch.to_string()),
    ("complete", false, |drive| drive.complete.to_string()),
    ("Q2G", false, |drive| micros(drive.stages.q2g_ns.mean)),
    ("G2I", false, |drive| micros(drive.stages.g2i_ns.mean)),
    ("I2D", false, |drive| micros(drive.stages.i2d_ns.mean)),
    ("stack", true, |drive| micros(drive.stack_ns.mean)),
    ("p50", false, |drive| micros(drive.stack_ns.p50)),
    ("p99", true, |drive| micros(drive.stack_ns.p99)),
    ("device", true, |drive| micros(drive.device_ns.mean)),
    ("p50", false, |drive| micros(drive.device_ns.p50)),
    ("p99", true, |drive| micros(drive.device_ns.p99)),
];

/// Renders the I/O counts and latencies of each drive in a measured configuration, below a line
/// with its settings. Returns `None` if `--states` was not given.
pub fn states(row: &Row, form: Form) -> Option<String> {
    let drives = &row.outcome.states;
    if drives.is_empty() {
        return None;
    }
    let shown: Vec<&Column> =
        COLUMNS.iter().filter(|(_, short, _)| *short || form == Form::Whole).collect();
    let heads = shown.iter().map(|(name, ..)| (*name, Side::Right));
    let mut grid = TextGrid::new(std::iter::once(("drive", Side::Left)).chain(heads));
    for drive in drives {
        let name = match form {
            Form::Short => shortened(&drive.drive, NAME_WIDTH),
            Form::Whole => drive.drive.clone(),
        };
        let cells = shown.iter().map(|(_, _, value)| value(drive));
        grid.row(std::iter::once(name).chain(cells));
    }
    let title = format!("states of {}; mean time in stack and device, in us:", settings(row));
    let title = wrapped(title.split(' ').map(str::to_owned), WIDTH);
    let mut text = format!("{title}\n{}", grid.text());
    if let Some(ratio) = DriveStates::unfairness(drives) {
        text.push_str(&format!("\nstack latency, slowest drive over fastest: {ratio:.2}"));
    }
    Some(text)
}

fn micros(ns: u64) -> String {
    format!("{:.1}", ns as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_experiments::{LatencyNs, Outcome};

    fn row() -> Row {
        let drive = |drive: &str, mean| {
            let stack_ns = LatencyNs { mean, ..LatencyNs::default() };
            DriveStates {
                drive: drive.into(),
                start: 999_999_999,
                merge: 999_999_999,
                dispatch: 999_999_999,
                stack_ns: LatencyNs { p99: 99_999_900, ..stack_ns },
                device_ns: LatencyNs { mean: 99_999_900, p99: 99_999_900, ..stack_ns },
                ..DriveStates::default()
            }
        };
        let states = vec![drive("d0", 2_000), drive("a-drive-with-a-long-name", 3_100)];
        Row { outcome: Outcome { states, ..Outcome::default() }, ..Row::default() }
    }

    #[test]
    fn drives_are_listed_with_latencies_and_their_imbalance() {
        let text = states(&row(), Form::Whole).unwrap();
        let line = |begin: &str| text.lines().find(|line| line.starts_with(begin)).unwrap();
        assert!(line("drive ").contains("  stack  "), "{text}");
        assert!(line("a-drive-with-a-long-name ").contains("  3.1  "), "{text}");
        assert!(text.ends_with("\nstack latency, slowest drive over fastest: 1.55"), "{text}");
        assert_eq!(states(&Row::default(), Form::Whole), None);
    }

    #[test]
    fn the_short_table_fits_80_columns() {
        let text = states(&row(), Form::Short).unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.contains("\na-dri\u{2026}name "), "{text}");
    }
}
