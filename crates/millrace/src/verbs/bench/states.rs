//! The table of `bench --states`: what each drive of a row did.
//!
//! Pure text out of a row: I/Os by the states that \[FALCON\] names, the means of the stages of the
//! stack, the two latencies that states bound, and how unequal the drives were. Called by the verb
//! for each row.

use comfy_table::{CellAlignment, Table, presets};
use millrace_lab::{DriveStates, LatencyNs, Row};

const HEAD: [&str; 18] = [
    "drive",
    "start",
    "split",
    "merge",
    "ready",
    "wait",
    "insert",
    "dispatch",
    "complete",
    "Q2G",
    "G2I",
    "I2D",
    "stack mean",
    "p50",
    "p99",
    "device mean",
    "p50",
    "p99",
];

/// The drives of a row under a line that says which row; none if nobody asked.
pub fn states(row: &Row) -> Option<String> {
    let drives = &row.outcome.states;
    if drives.is_empty() {
        return None;
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(HEAD);
    for drive in drives {
        table.add_row(cells(drive));
    }
    let columns = table.column_iter_mut().skip(1);
    columns.for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    let (queues, rw, depth) = (&row.queues, &row.rw, row.iodepth);
    let mut text = format!(
        "states of {} {} {rw} bs={} with {} jobs, iodepth {depth}; latencies in us:\n",
        queues.stack, queues.serving, row.bs, row.jobs
    );
    table.to_string().lines().for_each(|line| {
        text.push_str(line.trim_end());
        text.push('\n');
    });
    if let Some(ratio) = DriveStates::unfairness(drives) {
        text.push_str(&format!("stack latency, slowest drive over fastest: {ratio:.2}"));
    }
    Some(text.trim_end().to_owned())
}

fn cells(drive: &DriveStates) -> Vec<String> {
    let counts = [
        drive.start,
        drive.split,
        drive.merge,
        drive.ready,
        drive.wait,
        drive.insert,
        drive.dispatch,
        drive.complete,
    ];
    let mut cells = vec![drive.drive.clone()];
    cells.extend(counts.map(|count| count.to_string()));
    let stages = &drive.stages;
    let means = [&stages.q2g_ns, &stages.g2i_ns, &stages.i2d_ns].map(|stage| stage.mean);
    cells.extend(means.map(|ns| format!("{:.1}", ns as f64 / 1e3)));
    cells.extend(times(&drive.stack_ns));
    cells.extend(times(&drive.device_ns));
    cells
}

/// Mean, p50 and p99 in microseconds.
fn times(latency: &LatencyNs) -> [String; 3] {
    [latency.mean, latency.p50, latency.p99].map(|ns| format!("{:.1}", ns as f64 / 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_lab::Outcome;

    #[test]
    fn drives_are_listed_with_their_latencies_and_how_unequal_they_are() {
        let drive = |drive: &str, mean| {
            let stack_ns = LatencyNs { mean, ..LatencyNs::default() };
            DriveStates { drive: drive.into(), start: 7, stack_ns, ..DriveStates::default() }
        };
        let states = vec![drive("d0", 2_000), drive("d1", 3_100)];
        let row = Row { outcome: Outcome { states, ..Outcome::default() }, ..Row::default() };
        let text = states_lines(&row);
        assert!(text[1].starts_with("drive") && text[1].contains("stack mean"), "{text:?}");
        assert!(text[3].starts_with("d1") && text[3].contains("3.1"), "{text:?}");
        assert_eq!(text[4], "stack latency, slowest drive over fastest: 1.55");
        assert_eq!(super::states(&Row::default()), None);
    }

    fn states_lines(row: &Row) -> Vec<String> {
        let text = super::states(row).unwrap();
        text.lines().map(|line| line.trim().to_owned()).collect()
    }
}
