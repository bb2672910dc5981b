//! Table of lock statistics as lockmeter shows them: `io_request_lock` and the request queues'
//! locks in one simulation.
//!
//! Locks are taken at call sites in millrace's source. Instead of a call site, the table shows the
//! kernel function that the call site models.

use millrace_trace::LockLine;

use crate::simulation::ObservedRow;

const NAMES: [&str; 2] = ["io-request", "request-queue"];

fn locks(seen: &ObservedRow) -> &[LockLine] {
    seen.row.machine.as_ref().and_then(|machine| machine.locks.as_deref()).unwrap_or(&[])
}

pub(super) fn spin_share(seen: &ObservedRow, name: Option<&str>) -> f64 {
    let sums = locks(seen).iter().filter(|line| line.site.is_none());
    let of = sums.filter(|line| name.is_none_or(|name| line.name == name));
    of.map(|line| line.spin_share).sum()
}

pub(super) fn old_lock(seen: &ObservedRow) -> Option<&LockLine> {
    locks(seen).iter().find(|line| line.site.is_none() && line.name == "io-request")
}

pub(super) fn rows(seen: &ObservedRow) -> Vec<Vec<String>> {
    let lines = locks(seen);
    let percent = |part: f64| format!("{:.1} %", part * 100.0);
    let us = |ns: u64| format!("{:.1}", ns as f64 / 1e3);
    let row = |line: &LockLine| {
        vec![
            line.name.clone(),
            place(line, lines),
            percent(line.held_share),
            percent(line.contended_share),
            us(line.hold_ns_mean),
            us(line.wait_ns_mean),
            percent(line.spin_share * 7.0 / 8.0),
            line.acquisitions.to_string(),
        ]
    };
    lines.iter().filter(|line| NAMES.contains(&line.name.as_str())).map(row).collect()
}

/// Returns the name of the kernel function that corresponds to a lock's call site. `LAYER` lists
/// the functions for the call sites in sq.rs, `ADAPTER` for those in linux24.rs, in source order.
fn place(line: &LockLine, all: &[LockLine]) -> String {
    const LAYER: [&str; 3] = ["request_fn", "__make_request", "end of request"];
    const ADAPTER: [&str; 2] = ["dispatch", "interrupt"];
    let Some(site) = &line.site else { return "all".to_owned() };
    let (file, _) = site.rsplit_once(':').unwrap_or((site, ""));
    let number = |site: &str| site.rsplit_once(':').and_then(|(_, line)| line.parse::<u32>().ok());
    let others = all.iter().filter(|other| other.name == line.name);
    let before = others.filter_map(|other| other.site.as_deref());
    let before = before.filter(|other| other.starts_with(file) && number(other) < number(site));
    let known: &[&str] = match file {
        file if file.ends_with("sq.rs") => &LAYER,
        file if file.ends_with("linux24.rs") => &ADAPTER,
        _ => &[],
    };
    known.get(before.count()).map_or_else(|| site.clone(), |name| (*name).to_owned())
}
