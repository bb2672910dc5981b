//! The result table of `bench`.
//!
//! Pure text out of rows, and of what their locks did.

use comfy_table::{CellAlignment, Table, presets};
use millrace_lab::{LockLine, Row};

const HEAD: [&str; 15] = [
    "stack", "cpus", "jobs", "rw", "bs", "iodepth", "stamp", "IOPS", "MB/s", "ns/IO", "mean",
    "p50", "p99", "p99.9", "max",
];

/// The rows as a table; times in the unit that fits each.
pub fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let other = |queues: &str| !matches!(queues, "" | "core");
    let queues = rows
        .iter()
        .any(|row| other(&row.queues.software_queues) || other(&row.queues.hardware_queues));
    // Of no interest where one thread serves one drive.
    let serving = rows.iter().any(|row| {
        let named = !row.queues.serving.is_empty();
        named && (row.queues.serving != "inline" || row.drives.contains('+'))
    });
    let verified = rows.iter().any(|row| row.outcome.verified > 0);
    let errors = rows.iter().any(|row| row.outcome.errors > 0);
    let machine = rows.iter().any(|row| row.machine.is_some());
    let notified = rows.iter().any(|row| row.cost.notifications.is_some());
    let mut head: Vec<&str> = HEAD.to_vec();
    head.extend(
        [
            ("serving", serving),
            ("sw-queues", queues),
            ("hw-queues", queues),
            ("kicks/IO", notified),
            ("intr/IO", notified),
            ("verified", verified),
            ("errors", errors),
            ("machine", machine),
            ("interface", machine),
        ]
        .into_iter()
        .filter_map(|(name, shown)| shown.then_some(name)),
    );
    table.set_header(head);
    for row in rows {
        let mut cells = cells(row);
        if serving {
            cells.push(row.queues.serving.clone());
        }
        if queues {
            cells.extend([row.queues.software_queues.clone(), row.queues.hardware_queues.clone()]);
        }
        if notified {
            let woken = row.cost.notifications.unwrap_or_default();
            let each = [woken.kicks_per_io, woken.interrupts_per_io];
            cells.extend(each.map(|count| format!("{count:.3}")));
        }
        if verified {
            cells.push(row.outcome.verified.to_string());
        }
        if errors {
            cells.push(row.outcome.errors.to_string());
        }
        if machine {
            let row = row.machine.clone().unwrap_or_default();
            cells.extend([row.machine, row.interface]);
        }
        table.add_row(cells);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        if ![0, 3, 6].contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let text = table.to_string();
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

const LOCKS_HEAD: [&str; 11] = [
    "lock",
    "taken at",
    "taken",
    "rejected",
    "contended",
    "mean wait",
    "max wait",
    "mean hold",
    "max hold",
    "held",
    "CPU spinning",
];

/// What the locks of a row did, under a line that says which row, if that was asked for.
pub fn locks(row: &Row) -> Option<String> {
    let machine = row.machine.as_ref()?;
    let locks = machine.locks.as_ref()?;
    let (queues, depth, interface) = (&row.queues, row.iodepth, &machine.interface);
    let title = format!(
        "locks of {} {} {interface} on {} CPUs, iodepth {depth}:",
        queues.stack, row.rw, queues.cpus
    );
    Some(format!("{title}\n{}", lock_table(locks)))
}

/// Lock statistics as a table, in lockmeter's columns.
pub fn lock_table(locks: &[LockLine]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(LOCKS_HEAD);
    let percent = |share: f64| format!("{:.2} %", share * 100.0);
    for lock in locks {
        let (name, site) = match &lock.site {
            None => (lock.name.as_str(), ""),
            Some(site) => ("", site.strip_prefix("crates/").unwrap_or(site)),
        };
        table.add_row([
            name.to_owned(),
            site.to_owned(),
            lock.acquisitions.to_string(),
            lock.rejected.to_string(),
            percent(lock.contended_share),
            time(lock.wait_ns_mean),
            time(lock.wait_ns_max),
            time(lock.hold_ns_mean),
            time(lock.hold_ns_max),
            percent(lock.held_share),
            percent(lock.spin_share),
        ]);
    }
    let columns = table.column_iter_mut().skip(2);
    columns.for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    let text = table.to_string();
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n")
}

fn cells(row: &Row) -> Vec<String> {
    let lat = &row.lat_ns;
    let mut cells = vec![
        row.queues.stack.clone(),
        row.queues.cpus.to_string(),
        row.jobs.to_string(),
        row.rw.clone(),
        row.bs.to_string(),
        row.iodepth.to_string(),
        row.stamp.clone(),
        rate(row.iops),
        format!("{:.0}", row.bw_bytes_per_s / 1e6),
        format!("{:.1}", f64::from(row.jobs) * 1e9 / row.iops.max(1e-9)),
    ];
    cells.extend([lat.mean, lat.p50, lat.p99, lat.p999, lat.max].map(time));
    cells
}

/// I/Os a second with three or four digits.
fn rate(iops: f64) -> String {
    match iops {
        iops if iops >= 1e6 => format!("{:.2} M", iops / 1e6),
        iops if iops >= 1e4 => format!("{:.1} K", iops / 1e3),
        iops => format!("{iops:.0}"),
    }
}

/// A time in the unit that fits.
pub fn time(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{:.1} us", ns as f64 / 1e3),
        _ => format!("{:.1} ms", ns as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_lab::{Cost, Notifications, Outcome};

    #[test]
    fn rates_and_times_have_the_unit_that_fits() {
        assert_eq!([rate(950.4), rate(84_120.0), rate(36.1e6)], ["950", "84.1 K", "36.10 M"]);
        assert_eq!([time(950), time(84_120), time(12_000_000)], ["950 ns", "84.1 us", "12.0 ms"]);
    }

    #[test]
    fn table_shows_kicks_of_virtqueues_only() {
        let row = Row { iops: 1e6, jobs: 1, ..Row::default() };
        assert!(!table(std::slice::from_ref(&row)).contains("kicks"));
        let notifications = Notifications { kicks_per_io: 0.25, interrupts_per_io: 0.0 };
        let cost = Cost { notifications: Some(notifications), ..Cost::default() };
        let shown = table(&[Row { cost, ..row }]);
        assert!(shown.contains("kicks/IO") && shown.contains("0.250"), "{shown}");
    }

    #[test]
    fn table_shows_errors_only_if_there_are_some() {
        let row = Row { iops: 1e6, jobs: 1, ..Row::default() };
        assert!(!table(std::slice::from_ref(&row)).contains("errors"));
        let outcome = Outcome { errors: 3, ..Outcome::default() };
        assert!(table(&[Row { outcome, ..row }]).contains("errors"));
    }
}
